//! The files and the members of the workspace, as every check of `tidy` sees them.

use super::source::{self, Source};
use crate::steps::{cargo_in, printed};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What the checks look at. Paths are from the root, with `/`.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// The text of every file that is text.
    pub(super) files: BTreeMap<String, String>,
    pub(super) sources: BTreeMap<String, Source>,
    pub(super) crates: Vec<Crate>,
}

/// A member of the workspace, as `cargo metadata` lists it.
#[derive(Debug, Default)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) folder: String,
    /// Kind and root of every target.
    pub(super) targets: Vec<(String, String)>,
    /// Members it depends on, and whether only its tests do.
    pub(super) members: Vec<(String, bool)>,
    /// The names by which its code knows all dependencies.
    pub(super) libraries: Vec<String>,
}

impl Workspace {
    /// Reads the files that git tracks or would track (without git, all but build outputs) and the members.
    pub(super) fn read(root: &Path) -> Result<Workspace, String> {
        const LIST: &str = "git ls-files -z --cached --others --exclude-standard 2>/dev/null || \
                            find . -name target -prune -o -type f -printf '%P\\0'";
        let paths = printed(Command::new("sh").args(["-c", LIST]).current_dir(root))?;
        let listed = printed(&mut cargo_in(root, ["metadata", "--no-deps", "--locked", "--format-version", "1"]))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let parse = |listed: &str| serde_json::from_str::<Value>(listed).map_err(|e| format!("cargo metadata: {e}"));
        let metadata = parse(&listed.replace(&format!("{}/", text(&parse(&listed)?["workspace_root"])), ""))?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let crates = list(&metadata["packages"]).into_iter().map(|package| {
            let dependencies = list(&package["dependencies"]);
            let library = |d: &Value| text(&d[if d["rename"].is_null() { "name" } else { "rename" }]).replace('-', "_");
            let members = dependencies.iter().filter(|d| d["path"].is_string());
            let target = |t: &Value| (text(&t["kind"][0]), text(&t["src_path"]));
            Crate {
                name: text(&package["name"]),
                folder: text(&package["manifest_path"]).trim_end_matches("/Cargo.toml").to_owned(),
                targets: list(&package["targets"]).iter().map(target).collect(),
                members: members.map(|d| (text(&d["name"]), d["kind"] == "dev")).collect(),
                libraries: dependencies.iter().map(library).collect(),
            }
        });
        // A listed file that is gone, or is not text, is no concern of these checks.
        let read = |path: &str| Some((path.to_owned(), std::fs::read_to_string(root.join(path)).ok()?));
        Workspace::new(paths.split('\0').filter_map(read).collect(), crates.collect())
    }

    fn new(files: BTreeMap<String, String>, crates: Vec<Crate>) -> Result<Workspace, String> {
        let sources = files.iter().filter(|(path, _)| path.ends_with(".rs")).map(|(path, text)| {
            let source = source::read(text).map_err(|e| format!("{path}:{}: {e}", e.span().start().line))?;
            Ok((path.clone(), source))
        });
        Ok(Workspace { sources: sources.collect::<Result<_, String>>()?, files, crates })
    }

    /// The files of a crate, without those of crates inside its folder.
    pub(super) fn files_of(&self, krate: &Crate) -> impl Iterator<Item = (&String, &String)> {
        let is_in = |path: &str, folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        let inner = self.crates.iter().filter(move |other| is_in(&other.folder, &krate.folder));
        let inner: Vec<&str> = inner.map(|other| other.folder.as_str()).collect();
        let files = self.files.iter().filter(move |(path, _)| is_in(path, &krate.folder));
        files.filter(move |(path, _)| !inner.iter().any(|folder| is_in(path, folder)))
    }

    /// The engine and its crate of rings, made of these files.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Workspace {
        let krate = |name: &str, folder: &str| {
            let targets = vec![("lib".to_owned(), format!("{folder}/src/lib.rs"))];
            Crate { name: name.to_owned(), folder: folder.to_owned(), targets, ..Crate::default() }
        };
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let crates = vec![krate("fuelrail", "engine"), krate("fuelrail-io", "engine/io")];
        Workspace::new(files, crates).expect("fixtures parse")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is one above");
        let workspace = Workspace::read(root).expect("cargo is there, and all files parse");
        assert!(workspace.files.contains_key("scripts/src/tidy.rs"));
        let flow = workspace.crates.iter().find(|krate| krate.folder == "engine/flow").expect("a member");
        assert!(flow.targets.contains(&("lib".to_owned(), "engine/flow/src/lib.rs".to_owned())));
        assert!(flow.members.contains(&("fuelrail-bucket".to_owned(), true)), "{flow:?}");
    }
}
