//! The simulated machine's disk from outside of its rings: as its control thread sees it, and what befalls it.

use std::path::{Path, PathBuf};

use fuelrail_base::Result;

use super::SimWorld;
use super::disk::{SimDisk, SimDiskFailure};
use super::world::World;

impl SimWorld {
    /// Says what the disk is like from now on.
    pub fn set_disk(&self, disk: SimDisk) {
        self.world.borrow_mut().disk.settings = disk;
    }

    /// Says what is wrong with all files below this path from now on; the default: nothing any more.
    pub fn fail_disk(&self, below: &Path, failure: SimDiskFailure) {
        self.world.borrow_mut().disk.fail(below, failure);
    }

    /// Makes a file of these bytes, synced with its name, in the place of one that is there.
    ///
    /// # Errors
    /// `File` when the disk is full or refuses.
    pub fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.world.borrow_mut().disk.write_file(path, bytes)
    }

    /// All bytes of a file, as a read sees them.
    ///
    /// # Errors
    /// `File` when there is none or the disk refuses.
    pub fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        self.world.borrow().disk.read_file(path)
    }

    /// The names of all files.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.world.borrow().disk.names.live().keys().cloned().collect()
    }

    /// Renames a file, over one that is there; a power cut may undo it until [`sync_names`](SimWorld::sync_names) or a
    /// sync of any file. False when there is no such file.
    pub fn rename_file(&self, from: &Path, to: &Path) -> bool {
        self.world.borrow_mut().disk.names.rename(from, to)
    }

    /// Removes a file's name; a power cut may bring it back, as it may undo a rename. Files open already stay what they are.
    /// False when there is no such file.
    pub fn remove_file(&self, path: &Path) -> bool {
        self.world.borrow_mut().disk.names.remove(path)
    }

    /// Makes the names of all files survive a power cut, as syncing a directory does.
    pub fn sync_names(&self) {
        self.world.borrow_mut().disk.names.commit();
    }

    /// Goes on with the disk of a machine that was started again: what failed works anew. Its rings are to be dropped first.
    pub fn inherit_disk(&self, before: &SimWorld) {
        let disk = core::mem::take(&mut before.world.borrow_mut().disk);
        self.world.borrow_mut().disk = disk.restarted();
    }

    /// Flips one bit of a file. False when it has none.
    pub fn rot(&self, path: &Path) -> bool {
        let World { disk, prng, .. } = &mut *self.world.borrow_mut();
        disk.rot(path, prng)
    }

    /// Cuts the power of the disk. Synced writes stay; of every write since then all, nothing or some sectors; of names made,
    /// changed and removed since the last sync those up to some point. The rings of the machine that lost its power are
    /// to be dropped first: of the writes they had under way any part may be there, too.
    pub fn cut_power(&self) {
        let World { disk, prng, .. } = &mut *self.world.borrow_mut();
        disk.cut_power(prng);
    }
}
