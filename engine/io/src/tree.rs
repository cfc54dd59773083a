//! A folder of small files that tests take for a machine. Removed when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) struct Tree(PathBuf);

static SERIAL: AtomicU32 = AtomicU32::new(0);

impl Tree {
    pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Tree {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("fuelrail-tree-{name}-{}-{serial}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let tree = Tree(root);
        files.iter().for_each(|(path, text)| tree.add(path, text));
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// Writes a file, over one that is there.
    pub(crate) fn add(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Makes a symbolic link, as `/sys` has them.
    pub(crate) fn link(&self, path: &str, to: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, path).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
