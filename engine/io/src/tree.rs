//! A folder of small files that tests take for a machine. Removed when dropped.

use std::fs;
use std::path::Path;

use crate::conformance::ScratchFiles;

pub(crate) struct Tree(ScratchFiles);

impl Tree {
    pub(crate) fn new(files: &[(&str, &str)]) -> Tree {
        let tree = Tree(ScratchFiles::default());
        files.iter().for_each(|(path, text)| tree.add(path, text));
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0.dir
    }

    /// Writes a file, over one that is there.
    pub(crate) fn add(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Makes a symbolic link, as `/sys` has them.
    pub(crate) fn link(&self, path: &str, to: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, path).unwrap();
    }
}
