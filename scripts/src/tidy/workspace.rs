//! The files and the packages of the workspace, as every check of `tidy` sees them.

use crate::steps::{cargo_in, printed};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// What the checks look at. Paths are from the root, with `/`.
#[derive(Default)]
pub(super) struct Workspace {
    /// The text of every file that is text.
    pub(super) files: BTreeMap<String, String>,
    pub(super) packages: Vec<Package>,
    /// See [`minimal`].
    pub(super) minimal: BTreeSet<String>,
}

/// A member of the workspace, as `cargo metadata` lists it.
#[derive(Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// The registries that it may be published to: any without a list.
    pub(crate) publish: Option<Vec<String>>,
    pub(super) manifest_path: String,
    pub(super) targets: Vec<Target>,
    pub(super) dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
pub(crate) struct Target {
    pub(super) kind: Vec<String>,
    pub(super) src_path: String,
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(super) name: String,
    pub(super) rename: Option<String>,
    /// `dev` for those of tests.
    pub(super) kind: Option<String>,
    /// Of a member of the workspace.
    pub(super) path: Option<String>,
}

impl Package {
    pub(super) fn folder(&self) -> &str {
        self.manifest_path.trim_end_matches("Cargo.toml").trim_end_matches('/')
    }
}

/// The members of the workspace. Paths are from the root.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>, String> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let listed = printed(&mut cargo_in(root, ["metadata", "--no-deps", "--locked", "--format-version", "1"]))?;
    let root_path = root.canonicalize().map_err(|e| format!("{}: {e}", root.display()))?;
    let listed = listed.replace(&format!("{}/", root_path.display()), "");
    let metadata: Metadata = serde_json::from_str(&listed).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(metadata.packages)
}

impl Workspace {
    /// Reads the files that git tracks or would track (without git, all but build outputs) and the members.
    pub(super) fn read(root: &Path) -> Result<Workspace, String> {
        const LIST: &str = "git ls-files -z --cached --others --exclude-standard 2>/dev/null || \
                            find . -name target -prune -o -type f -printf '%P\\0'";
        let paths = printed(Command::new("sh").args(["-c", LIST]).current_dir(root))?;
        // A listed file that is gone, or is not text, is no concern of these checks.
        let read = |path: &str| Some((path.to_owned(), std::fs::read_to_string(root.join(path)).ok()?));
        let files = paths.split('\0').filter_map(read).collect();
        Ok(Workspace { files, packages: packages(root)?, minimal: minimal(root)? })
    }

    /// The Rust files of a package, without those of packages inside its folder.
    pub(super) fn sources(&self, package: &Package) -> impl Iterator<Item = (&str, &str)> {
        let is_in = |path: &str, folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        let inner = self.packages.iter().map(Package::folder).filter(move |other| is_in(other, package.folder()));
        let inner: Vec<&str> = inner.collect();
        let files = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        let files = files.filter(move |(path, _)| path.ends_with(".rs") && is_in(path, package.folder()));
        files.filter(move |(path, _)| !inner.iter().any(|folder| is_in(path, folder)))
    }

    /// The engine and its crate of rings, made of these files.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Workspace {
        let package = |name: &str, folder: &str| Package {
            name: name.to_owned(),
            publish: None,
            manifest_path: format!("{folder}/Cargo.toml"),
            targets: vec![Target { kind: vec!["lib".to_owned()], src_path: format!("{folder}/src/lib.rs") }],
            dependencies: Vec::new(),
        };
        Workspace {
            files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect(),
            packages: vec![package("fuelrail", "engine"), package("fuelrail-io", "engine/io")],
            minimal: BTreeSet::new(),
        }
    }
}

/// The packages that a build of the engine without its features compiles, ours included.
pub(crate) fn minimal(root: &Path) -> Result<BTreeSet<String>, String> {
    const TREE: [&str; 9] =
        ["tree", "--locked", "--package", "fuelrail", "--no-default-features", "--edges", "normal", "--prefix", "none"];
    let tree = printed(&mut cargo_in(root, TREE))?;
    Ok(tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is one above");
        let workspace = Workspace::read(root).expect("cargo is there");
        assert!(workspace.files.contains_key("scripts/src/tidy.rs"));
        assert!(workspace.minimal.iter().any(|package| package.starts_with("fuelrail-wire ")));
        let flow = workspace.packages.iter().find(|package| package.folder() == "engine/flow").expect("a member");
        assert!(flow.targets.iter().any(|target| target.src_path == "engine/flow/src/lib.rs"));
        assert!(flow.dependencies.iter().any(|d| d.name == "fuelrail-bucket" && d.kind.as_deref() == Some("dev")));
    }
}
