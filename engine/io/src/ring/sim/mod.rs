//! A ring in virtual time: a whole network and a disk in one thread, reproducible by seed.
//!
//! All rings of a world share its clock, its faults, its host and its disk. Nothing here reads a real clock or sleeps.

mod disk;
mod faults;
mod flight;
mod network;
mod world;

pub use disk::{SimDisk, SimDiskFailure};
pub use faults::{SimCounts, SimFaults};
pub use network::{Host, Replies};

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
    /// A world whose choices all follow from `seed`.
    pub fn new(seed: u64, faults: SimFaults, host: Box<dyn Host>) -> SimWorld {
        SimWorld { world: Rc::new(RefCell::new(World::new(seed, faults, host))) }
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.world.borrow().now
    }

    /// Advances to the next event or to the next instant a ring waits for, whichever is first, and runs it. Does nothing
    /// when a ring was woken and has not run yet. False when nothing is pending: if the rings have nothing to do either,
    /// the world is deadlocked.
    pub fn advance(&self) -> bool {
        self.world.borrow_mut().advance()
    }

    /// The machine refuses sockets for IPv6 from now on.
    pub fn refuse_ipv6(&self) {
        self.world.borrow_mut().has_ipv6 = false;
    }

    /// Faults injected so far.
    pub fn counts(&self) -> SimCounts {
        self.world.borrow().counts
    }
}

/// The machine's disk from outside of its rings: as a control thread sees it, and its faults.
impl SimWorld {
    /// Sets the properties of the disk from now on.
    pub fn set_disk(&self, disk: SimDisk) {
        self.world.borrow_mut().disk.settings = disk;
    }

    /// Sets the failure of all files below this path from now on; the default clears it.
    pub fn fail_disk(&self, below: &Path, failure: SimDiskFailure) {
        self.world.borrow_mut().disk.fail(below, failure);
    }

    /// Creates a file of these bytes, synced with its name; replaces an existing one.
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
    pub fn files(&self) -> Vec<PathBuf> {
        self.world.borrow().disk.names.live().keys().cloned().collect()
    }

    /// Removes a file's name; a power cut may bring it back until a sync of any file. Open files are not affected.
    /// False when there is no such file.
    pub fn remove_file(&self, path: &Path) -> bool {
        self.world.borrow_mut().disk.names.remove(path)
    }

    /// Takes over the disk of a machine that was restarted, without its failures. Its rings are to be dropped first.
    pub fn inherit_disk(&self, before: &SimWorld) {
        let disk = core::mem::take(&mut before.world.borrow_mut().disk);
        self.world.borrow_mut().disk = disk.restarted();
    }

    /// Flips one bit of a file. False when it has none.
    pub fn rot(&self, path: &Path) -> bool {
        let World { disk, prng, .. } = &mut *self.world.borrow_mut();
        disk.rot(path, prng)
    }

    /// Cuts the power of the disk. Synced writes survive; of every later write all, none or some sectors; of the names created
    /// and removed since the last sync those up to some point. The rings of that machine are to be dropped first: of
    /// their writes in flight any part may survive, too.
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
    pub fn new(world: &SimWorld) -> SimRing {
        SimRing::with_capacity(world, 512, 512)
    }

    /// A ring of so many operations in flight and so many sockets.
    pub fn with_capacity(world: &SimWorld, entries: u32, sockets: u32) -> SimRing {
        let waker = Waker::flag();
        let id = world.world.borrow_mut().add_ring(entries, sockets, waker.clone());
        SimRing { world: world.world.clone(), id, waker }
    }

    /// Whether a real ring would have slept in the last wait. If not, run the caller again before advancing the world: a loop
    /// that spins would be hidden otherwise.
    pub fn sleeps(&self) -> bool {
        self.world.borrow_mut().ring_state(self.id).sleeps
    }
}

impl Ring for SimRing {
    fn now(&self) -> Instant {
        self.world.borrow().now
    }

    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId> {
        self.world.borrow_mut().socket(self.id, addr)
    }

    fn close(&mut self, sock: SockId) {
        self.world.borrow_mut().close(self.id, sock.into());
    }

    /// Opens a file of the simulated disk by its path; the directory is ignored.
    fn open_in(&mut self, _: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.world.borrow_mut().open_file(self.id, path, options)
    }

    fn close_file(&mut self, file: FileId) {
        self.world.borrow_mut().close(self.id, file.into());
    }

    fn push(&mut self, op: Op, token: u64) -> Result<OpId, Full> {
        op.check();
        let mut world = self.world.borrow_mut();
        let state = world.ring_state(self.id);
        let (name, submits) = state.ops.register(op, token)?;
        if submits {
            state.queued.push(name);
        }
        Ok(name.into())
    }

    fn cancel(&mut self, op: OpId) {
        let mut world = self.world.borrow_mut();
        let state = world.ring_state(self.id);
        if state.ops.mark_cancelled(op.into()) {
            state.cancels.push((op.into(), false));
        }
    }

    /// Never sleeps: notes `until` as a wake-up that the world must not skip.
    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        self.world.borrow_mut().wait(self.id, until);
        Ok(())
    }

    fn pop(&mut self) -> Option<Done> {
        self.world.borrow_mut().ring_state(self.id).ops.pop()
    }

    fn in_flight(&self) -> usize {
        self.world.borrow_mut().ring_state(self.id).ops.in_flight
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn facts(&self) -> RingFacts {
        RingFacts {
            backend: "sim",
            abilities: vec!["virtual time"],
            refusals: Vec::new(),
            counts: self.world.borrow_mut().ring_state(self.id).ops.counts,
        }
    }
}

impl Drop for SimRing {
    fn drop(&mut self) {
        self.world.borrow_mut().remove_ring(self.id);
    }
}
