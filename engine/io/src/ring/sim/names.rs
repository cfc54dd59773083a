//! The names of the simulated disk's files, and which of them a power cut leaves.
//!
//! Changes are journaled: they reach the disk in their order, and a cut keeps those up to some point of it. Syncing a file
//! or a directory brings all of them there, as the journals of ext4 and XFS do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fuelrail_base::prng::Prng;

/// A file, whatever it is called.
pub(super) type Inode = u64;

#[derive(Clone, Debug)]
enum Change {
    Made(PathBuf, Inode),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

#[derive(Debug, Default)]
pub(super) struct Names {
    live: BTreeMap<PathBuf, Inode>,
    durable: BTreeMap<PathBuf, Inode>,
    /// From the durable names to the live ones, oldest first.
    journal: Vec<Change>,
}

impl Names {
    pub(super) fn find(&self, path: &Path) -> Option<Inode> {
        self.live.get(path).copied()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.live.keys().map(PathBuf::as_path)
    }

    pub(super) fn make(&mut self, path: &Path, inode: Inode) {
        self.change(Change::Made(path.to_owned(), inode));
    }

    /// False when there is no such file.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> bool {
        let is = self.live.contains_key(from);
        if is {
            self.change(Change::Renamed(from.to_owned(), to.to_owned()));
        }
        is
    }

    /// False when there is no such file.
    pub(super) fn remove(&mut self, path: &Path) -> bool {
        let is = self.live.contains_key(path);
        if is {
            self.change(Change::Removed(path.to_owned()));
        }
        is
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.live, &change);
        self.journal.push(change);
    }

    /// Everything so far survives a power cut.
    pub(super) fn commit(&mut self) {
        self.durable.clone_from(&self.live);
        self.journal.clear();
    }

    /// Leaves the changes up to some point, as the dice say.
    pub(super) fn cut_power(&mut self, prng: &mut Prng) {
        let kept = prng.below(self.journal.len() as u64 + 1) as usize;
        for change in &self.journal[..kept] {
            apply(&mut self.durable, change);
        }
        self.live.clone_from(&self.durable);
        self.journal.clear();
    }

    /// Files that have a name.
    pub(super) fn named(&self) -> BTreeSet<Inode> {
        self.live.values().copied().collect()
    }

    /// Files that have a name, or may have one again after a power cut.
    pub(super) fn reachable(&self) -> BTreeSet<Inode> {
        let made = self.journal.iter().filter_map(|change| match change {
            Change::Made(_, inode) => Some(*inode),
            Change::Renamed(..) | Change::Removed(_) => None,
        });
        self.live.values().chain(self.durable.values()).copied().chain(made).collect()
    }
}

fn apply(names: &mut BTreeMap<PathBuf, Inode>, change: &Change) {
    match change {
        Change::Made(path, inode) => drop(names.insert(path.clone(), *inode)),
        Change::Renamed(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        Change::Removed(path) => drop(names.remove(path)),
    }
}
