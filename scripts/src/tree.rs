//! The files of the project, read once into memory: what every check of tidy looks at.
//!
//! Owns the list of paths and the text of the text files. Never writes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Larger files are data, not text anybody edits; they are listed but not read.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// Every file of the project: its path from the root, with `/`, and its text when it has one.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// Reads what git tracks or would track below `root`; without git, all files except `target` folders and `.git`.
    ///
    /// # Errors
    /// When a folder cannot be listed or a file cannot be read.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let paths = match listed_by_git(root) {
            Some(paths) => paths,
            None => {
                let mut paths = Vec::new();
                walk(root, root, &mut paths)?;
                paths
            }
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let place = root.join(&path);
            // A file that git still lists but that is gone from the disk is on its way out.
            let Ok(facts) = fs::symlink_metadata(&place) else { continue };
            if !facts.is_file() || facts.len() > TEXT_BYTES_MAX {
                files.insert(path, None);
                continue;
            }
            files.insert(path, String::from_utf8(fs::read(&place)?).ok());
        }
        Ok(Tree { files })
    }

    /// A tree made of these files, for tests.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect() }
    }

    /// All paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// All files that are text: path and text, sorted by path.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The text of one file, if it is there and is text.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Whether the file is there.
    pub fn has(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

fn walk(root: &Path, folder: &Path, paths: &mut Vec<String>) -> io::Result<()> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<io::Result<_>>()?;
    entries.sort();
    for entry in entries {
        let name = entry.file_name().unwrap_or_default();
        if entry.is_dir() && !entry.is_symlink() {
            if name != "target" && name != ".git" {
                walk(root, &entry, paths)?;
            }
        } else if let Ok(relative) = entry.strip_prefix(root) {
            paths.push(relative.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_folder_without_git_and_leaves_build_outputs_out() {
        let folder = tempfile::tempdir().unwrap();
        for (path, bytes) in [("a/b.rs", &b"fn b() {}"[..]), ("target/x.rs", b"x"), ("raw.bin", b"\xff\xfe")] {
            let place = folder.path().join(path);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, bytes).unwrap();
        }
        let tree = Tree::read(folder.path()).unwrap();
        assert_eq!(tree.paths().collect::<Vec<_>>(), ["a/b.rs", "raw.bin"]);
        assert_eq!(tree.texts().collect::<Vec<_>>(), [("a/b.rs", "fn b() {}")]);
        assert!(tree.has("raw.bin") && tree.text("raw.bin").is_none());
    }

    #[test]
    fn asks_git_where_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| {
            assert!(Command::new("git").arg("-C").arg(folder.path()).args(args).status().unwrap().success());
        };
        git(&["init", "--quiet"]);
        for (path, text) in [(".gitignore", "built/\n"), ("seen.rs", ""), ("built/no.rs", "")] {
            let place = folder.path().join(path);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
        }
        let tree = Tree::read(folder.path()).unwrap();
        assert_eq!(tree.paths().collect::<Vec<_>>(), [".gitignore", "seen.rs"]);
    }
}
