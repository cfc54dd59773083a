//! The names of the simulated disk's files, and which of them a power cut leaves.
//!
//! Changes reach the disk in their order, and a cut keeps those up to some point of it. Syncing a file or a directory brings
//! all of them there, as the journals of ext4 and XFS do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fuelrail_base::prng::Prng;

/// A file, whatever it is called.
pub(super) type Inode = u64;

/// All names before and after each change since the last sync: a cut leaves one of these, and the last is what everybody sees.
#[derive(Debug)]
pub(super) struct Names(Vec<BTreeMap<PathBuf, Inode>>);

impl Default for Names {
    fn default() -> Names {
        Names(vec![BTreeMap::new()])
    }
}

impl Names {
    /// The names as everybody sees them.
    pub(super) fn live(&self) -> &BTreeMap<PathBuf, Inode> {
        self.0.last().expect("the names before the first change are there")
    }

    pub(super) fn make(&mut self, path: &Path, inode: Inode) {
        let mut names = self.live().clone();
        names.insert(path.to_owned(), inode);
        self.0.push(names);
    }

    /// False when there is no such file.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> bool {
        let mut names = self.live().clone();
        let Some(inode) = names.remove(from) else { return false };
        names.insert(to.to_owned(), inode);
        self.0.push(names);
        true
    }

    /// False when there is no such file.
    pub(super) fn remove(&mut self, path: &Path) -> bool {
        let mut names = self.live().clone();
        let is = names.remove(path).is_some();
        if is {
            self.0.push(names);
        }
        is
    }

    /// Everything so far survives a power cut.
    pub(super) fn commit(&mut self) {
        self.0.drain(..self.0.len() - 1);
    }

    /// Leaves the changes up to some point, as the dice say.
    pub(super) fn cut_power(&mut self, prng: &mut Prng) {
        self.0.truncate(1 + prng.below(self.0.len() as u64) as usize);
        self.commit();
    }

    /// Files that have a name, or may have one again after a power cut.
    pub(super) fn reachable(&self) -> BTreeSet<Inode> {
        self.0.iter().flat_map(BTreeMap::values).copied().collect()
    }
}
