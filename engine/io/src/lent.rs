//! Memory that another process lends: its arena, mapped here to be read.
//!
//! Owns the mapping, and the headers of the slots that are made over it where the lender says. The lender knows when bytes are released only
//! by being told: the socket that it lent the memory over stays open until the last slot is gone, so that its end says the same.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fuelrail_base::{Error, Kind, Result};
use rustix::fs::SealFlags;

use crate::arena::Mapping;
use crate::local::LocalSocket;
use crate::remote_free::RemoteFreeList;
use crate::slot::Slot;
use crate::wake::Waker;

/// Memory of another process, of which slots are borrowed. Belongs to one thread; its slots may go anywhere.
#[derive(Debug)]
pub struct BorrowedMemory {
    remote: Arc<RemoteFreeList>,
    bytes: u64,
    /// What the lender calls the slot of each header in use.
    names: Vec<u64>,
    free_headers: Vec<u32>,
}

/// Borrowed memory, for those who register it with a device: mapped, and the connection to its lender open, as long as this lives.
#[derive(Clone, Debug)]
pub struct BorrowedSpan(Arc<Mapping>);

impl BorrowedSpan {
    /// Where it begins, page-aligned, and how many bytes it has.
    pub fn span(&self) -> (*const u8, usize) {
        let (base, len) = self.0.range();
        (base.cast_const(), len)
    }
}

impl BorrowedMemory {
    /// All of it.
    pub fn whole(&self) -> BorrowedSpan {
        BorrowedSpan(self.remote.mapping())
    }

    /// Maps all of `memory`, which came over `socket`, for at most `slots` slots at a time.
    ///
    /// # Errors
    /// `Protocol` when it is not memory that keeps its length; `Environment` when it cannot be mapped.
    pub fn map(memory: &OwnedFd, socket: &LocalSocket, slots: u32) -> Result<BorrowedMemory> {
        // Of anything but a memfd there are no seals. One that could shrink would end this process with a SIGBUS.
        let is_fixed = rustix::fs::fcntl_get_seals(memory).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let bytes = rustix::fs::fstat(memory).map_or(0, |facts| u64::try_from(facts.st_size).unwrap_or(0));
        if !is_fixed || bytes == 0 {
            let cause = "the other process lends something else than memory of a fixed length";
            return Err(Error::new(Kind::Protocol, cause).with_hint("use the same version of fuelrail on both sides"));
        }
        let mapping = Mapping::borrowed(bytes as usize, memory, socket.descriptor()).map_err(|error| {
            Error::from_io(Kind::Environment, "mapping the memory of the process that reads", error)
                .with_hint("raise the address-space limit (ulimit -v)")
        })?;
        let remote = Arc::new(RemoteFreeList::new(Arc::new(mapping), slots));
        Ok(BorrowedMemory { remote, bytes, names: vec![0; slots as usize], free_headers: (0..slots).rev().collect() })
    }

    /// The slot of `len` bytes at `offset`, to be read, which the lender calls `name`. `None` where it does not lie in the memory, or all
    /// headers are in use.
    pub fn slot(&mut self, name: u64, offset: u64, len: u64) -> Option<Slot> {
        offset.checked_add(len).filter(|end| *end <= self.bytes)?;
        let index = self.free_headers.pop()?;
        self.names[index as usize] = name;
        let ptr = self.remote.at(offset, len as usize);
        Some(Slot::borrowed(self.remote.hand_out(index), ptr, len as usize))
    }

    /// Shows the name of every slot that was dropped since the last call.
    pub fn take_released(&mut self, mut each: impl FnMut(u64)) {
        let BorrowedMemory { remote, names, free_headers, .. } = self;
        remote.take_returned(|index| {
            each(names[index as usize]);
            free_headers.push(index);
        });
    }

    /// Slots that are still held.
    pub fn outstanding(&self) -> usize {
        self.remote.outstanding()
    }

    /// Sets the waker that each dropped slot wakes.
    ///
    /// # Panics
    /// When it was set before.
    pub fn set_waker(&self, waker: Waker) {
        assert!(self.remote.set_waker(waker), "the waker of borrowed memory is set once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, ArenaConfig};
    use crate::directory::OwnDirectory;
    use crate::local::{LocalListener, Received};
    use crate::tree::Tree;
    use std::os::fd::AsFd;

    /// Two ends of a connection.
    fn pair(tree: &Tree) -> (LocalSocket, LocalSocket) {
        let listener = LocalListener::bind(OwnDirectory::open(tree.root()).unwrap(), "s").unwrap();
        let one = LocalSocket::connect(&OwnDirectory::open(tree.root()).unwrap(), "s").unwrap().unwrap();
        (one, listener.accept().unwrap().unwrap())
    }

    #[test]
    fn what_is_lent_is_read_elsewhere_and_released_by_its_name() {
        let tree = Tree::new(&[]);
        let (ours, theirs) = pair(&tree);
        let (arena, mut regions) =
            Arena::new(&ArenaConfig { bytes: 4 << 20, lent: true, ..ArenaConfig::default() }).unwrap();
        let mut filling = regions[0].alloc(5000).unwrap().fill();
        filling.carve(5000).unwrap().put(&[7; 5000]);
        let slot = filling.seal().unwrap();
        let offset = slot.as_ptr() as u64 - arena.span().0 as u64;
        assert!(theirs.send(b"here", arena.lend()).unwrap());
        let Received::Bytes(4, Some(memory)) = ours.receive(&mut [0; 64]).unwrap() else { panic!("bytes and memory") };
        assert!(std::fs::File::from(memory.try_clone().unwrap()).set_len(0).is_err(), "its length is fixed");
        assert!(Mapping::new(4096, libc::MAP_SHARED, Some(&memory.try_clone().unwrap().into())).is_err(), "to write");
        let mut borrowed = BorrowedMemory::map(&memory, &ours, 2).unwrap();
        for (at, len) in [(4 << 20, 1), (0, (4 << 20) + 1), (u64::MAX, 2), (2, u64::MAX)] {
            assert!(borrowed.slot(1, at, len).is_none(), "{at}+{len} lies outside");
        }
        let (mut read, kept) = (borrowed.slot(11, offset, 5000).unwrap(), borrowed.slot(12, offset, 10).unwrap());
        assert!(borrowed.slot(13, 0, 1).is_none(), "it has two headers");
        assert_eq!((&read[..], &kept[..]), (&[7; 5000][..], &[7; 10][..]));
        read.own().unwrap();
        read[0] = 9;
        assert_eq!((read[0], read[4999], slot[0], read.is_borrowed()), (9, 7, 7, false), "a copy is written");
        let mut released = Vec::new();
        borrowed.take_released(|name| released.push(name));
        assert_eq!((released, borrowed.outstanding()), (vec![11], 1));
        // The connection ends with the last slot, whatever else goes before.
        drop((borrowed, ours));
        assert!(matches!(theirs.receive(&mut [0; 8]).unwrap(), Received::Nothing));
        assert_eq!(kept[..], [7; 10]);
        drop(kept);
        assert!(matches!(theirs.receive(&mut [0; 8]).unwrap(), Received::Closed));
    }

    #[test]
    #[should_panic(expected = "another process's memory is not written")]
    fn borrowed_bytes_are_not_written() {
        let tree = Tree::new(&[]);
        let (ours, _theirs) = pair(&tree);
        let (arena, _regions) =
            Arena::new(&ArenaConfig { bytes: 1 << 20, lent: true, ..ArenaConfig::default() }).unwrap();
        let memory = arena.lend().unwrap().try_clone_to_owned().unwrap();
        BorrowedMemory::map(&memory, &ours, 1).unwrap().slot(1, 0, 8).unwrap()[0] = 1;
    }

    #[test]
    fn a_file_and_memory_that_may_shrink_are_refused() {
        let tree = Tree::new(&[("file", "some bytes")]);
        let (ours, _theirs) = pair(&tree);
        let file = OwnedFd::from(std::fs::File::open(tree.root().join("file")).unwrap());
        let loose = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        for memory in [file, loose, ours.as_fd().try_clone_to_owned().unwrap()] {
            assert_eq!(BorrowedMemory::map(&memory, &ours, 1).unwrap_err().kind(), Kind::Protocol);
        }
    }
}
