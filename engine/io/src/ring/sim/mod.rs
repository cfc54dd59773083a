//! A ring in virtual time: a whole network and a disk in one thread, exactly repeatable by seed.
//!
//! All rings of a world share its clock, its faults, its host and its disk. Nothing here reads a real clock or sleeps.

mod conn;
mod disk;
mod faults;
mod flight;
mod host;
mod world;

pub use disk::{SimDisk, SimDiskFailure};
pub use faults::{SimCounts, SimFaults};
pub use host::{Host, Replies};

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use fuelrail_base::{Instant, Result};

use self::world::World;
use super::file::FileOptions;
use super::{Done, FileId, Full, Op, OpId, Ring, RingFacts, SockId};
use crate::directory::OwnDirectory;
use crate::wake::Waker;

/// The world all simulated rings of a test share. Clones are the same world.
///
/// A [`Host`] is called from inside the world and must not use its handles: it gets the time as an argument.
#[derive(Clone)]
pub struct SimWorld {
    world: Rc<RefCell<World>>,
}

impl SimWorld {
    /// A world whose every choice follows from `seed`.
    #[must_use]
    pub fn new(seed: u64, faults: SimFaults, host: Box<dyn Host>) -> SimWorld {
        SimWorld { world: Rc::new(RefCell::new(World::new(seed, faults, host))) }
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.world.borrow().now
    }

    /// Jumps to the next event or to the next instant a ring waits for, whichever is first, and lets it happen. Stays
    /// where it is when a ring was woken and has not looked yet. False when nothing is pending: if the rings have
    /// nothing to do either, the world stands still for ever.
    pub fn advance(&self) -> bool {
        self.world.borrow_mut().advance()
    }

    /// What was injected so far.
    #[must_use]
    pub fn counts(&self) -> SimCounts {
        self.world.borrow().counts
    }
}

/// The machine's disk from outside of its rings: as its control thread sees it, and what befalls it.
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

/// One shard's ring in a simulated world.
pub struct SimRing {
    world: Rc<RefCell<World>>,
    id: usize,
    waker: Waker,
}

impl SimRing {
    /// A ring with the default size of the real one: 512 operations, 512 sockets.
    #[must_use]
    pub fn new(world: &SimWorld) -> SimRing {
        SimRing::with_capacity(world, 512, 512)
    }

    /// A ring of so many operations in flight and so many sockets.
    #[must_use]
    pub fn with_capacity(world: &SimWorld, entries: u32, sockets: u32) -> SimRing {
        let waker = Waker::flag();
        let id = world.world.borrow_mut().add_ring(entries, sockets, waker.clone());
        SimRing { world: world.world.clone(), id, waker }
    }

    /// Whether a real ring would have slept in the last wait. Where it would not, the caller runs again before time goes on:
    /// advancing the world all the same hides a loop that spins.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        self.world.borrow_mut().seat(self.id).sleeps
    }
}

impl Ring for SimRing {
    fn now(&self) -> Instant {
        self.world.borrow().now
    }

    fn socket(&mut self, _addr: &SocketAddr) -> Result<SockId> {
        self.world.borrow_mut().socket(self.id)
    }

    fn close(&mut self, sock: SockId) {
        self.world.borrow_mut().close(self.id, sock.into());
    }

    /// A path names a file of the simulated disk, in whatever directory.
    fn open_in(&mut self, _: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.world.borrow_mut().open_file(self.id, path, options)
    }

    fn close_file(&mut self, file: FileId) {
        self.world.borrow_mut().close(self.id, file.into());
    }

    fn push(&mut self, op: Op, token: u64) -> Result<OpId, Full> {
        op.check();
        let mut world = self.world.borrow_mut();
        let seat = world.seat(self.id);
        let (name, submits) = seat.ops.register(op, token)?;
        if submits {
            seat.queued.push(name);
        }
        Ok(name.into())
    }

    fn cancel(&mut self, op: OpId) {
        let mut world = self.world.borrow_mut();
        let seat = world.seat(self.id);
        if seat.ops.mark_cancelled(op.into()) {
            seat.cancels.push((op.into(), false));
        }
    }

    /// Never sleeps: notes `until` as a wake-up the world must not jump over.
    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        self.world.borrow_mut().wait(self.id, until);
        Ok(())
    }

    fn pop(&mut self) -> Option<Done> {
        self.world.borrow_mut().seat(self.id).ops.pop()
    }

    fn in_flight(&self) -> usize {
        self.world.borrow_mut().seat(self.id).ops.in_flight
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn facts(&self) -> RingFacts {
        RingFacts {
            backend: "sim",
            abilities: vec!["virtual time"],
            refusals: Vec::new(),
            counts: self.world.borrow_mut().seat(self.id).ops.counts,
        }
    }
}

impl Drop for SimRing {
    fn drop(&mut self) {
        self.world.borrow_mut().remove_ring(self.id);
    }
}
