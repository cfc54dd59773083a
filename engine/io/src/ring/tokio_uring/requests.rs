//! Operations as requests the runtime takes: entries of the submission queue of its own version of `io-uring`.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use io_uring_06::{cqueue, opcode, squeue, types};
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

use crate::arena::Mapping;
use crate::ring::Op;
use crate::ring::opening::{OPEN_FLAGS, Opening, STAT_MASK};
use crate::ring::table::Name;
use crate::ring::uring::setup::BUFFER_BYTES_MAX;
use crate::ring::wires::Wires;

/// Longest single transfer handed to the kernel; it may be cut short anyway.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// What comes of an operation: whose it is, and what the kernel says of it.
#[derive(Debug)]
pub(super) struct Outcome(pub(super) Name);

impl OneshotOutputTransform for Outcome {
    type Output = (Name, i32);
    type StoredData = ();

    fn transform_oneshot_output(self, (): (), entry: cqueue::Entry) -> (Name, i32) {
        (self.0, entry.result())
    }
}

/// An operation in the runtime's hands. It owns nothing: the memory it names stays with the ring's books, so that no drop
/// of this, of the future around it or of the runtime can free what the kernel writes to.
pub(super) type Flight = InFlightOneshot<(), Outcome>;

/// Where the memory of an operation is registered, if it is.
pub(super) struct Registered<'a>(pub(super) Option<&'a Arc<Mapping>>);

impl Registered<'_> {
    /// Index of the buffer this place lies in, and how much of `len` bytes does: a piece that crosses from one buffer
    /// into the next is cut short there. `None` for memory that is not registered.
    fn buffer(&self, place: *const u8, len: usize) -> Option<(u16, usize)> {
        let (base, bytes) = self.0?.range();
        let offset = (place as usize).checked_sub(base as usize).filter(|offset| offset + len <= bytes)?;
        Some(((offset / BUFFER_BYTES_MAX) as u16, len.min(BUFFER_BYTES_MAX - offset % BUFFER_BYTES_MAX)))
    }
}

/// The entry for an operation on this descriptor, and whether it is a receive into registered memory.
pub(super) fn entry(
    name: Name,
    op: &mut Op,
    fd: &OwnedFd,
    wires: &mut Wires,
    registered: &Registered<'_>,
) -> (squeue::Entry, bool) {
    let fd = types::Fd(fd.as_raw_fd());
    let plain = |entry| (entry, false);
    match op {
        Op::Connect { addr, .. } => {
            let (addr, len) = wires.address(name.index, addr);
            plain(opcode::Connect::new(fd, addr.cast(), len).build())
        }
        Op::Send { bytes, from, .. } => {
            let rest = &bytes[*from..];
            let len = rest.len().min(TRANSFER_BYTES_MAX) as u32;
            plain(opcode::Send::new(fd, rest.as_ptr(), len).flags(libc::MSG_NOSIGNAL).build())
        }
        Op::Recv { into, .. } if into.pieces() > 1 => {
            plain(opcode::RecvMsg::new(fd, wires.receive(name.index, into.targets()).cast()).build())
        }
        Op::Recv { into, .. } => {
            let one_body = into.is_one_body();
            let Some((target, len)) = into.targets().next() else { unreachable!("checked to ask for bytes") };
            let len = len.min(TRANSFER_BYTES_MAX);
            match registered.buffer(target, len).filter(|_| one_body) {
                Some((buffer, len)) => (opcode::ReadFixed::new(fd, target, len as u32, buffer).build(), true),
                None => plain(opcode::Recv::new(fd, target, len as u32).build()),
            }
        }
        Op::ReadAt { offset, into, .. } => {
            let len = into.reach().min(TRANSFER_BYTES_MAX);
            let target = into.target(len);
            plain(match registered.buffer(target, len) {
                Some((buffer, len)) => opcode::ReadFixed::new(fd, target, len as u32, buffer).offset(*offset).build(),
                None => opcode::Read::new(fd, target, len as u32).offset(*offset).build(),
            })
        }
        Op::WriteAt { offset, from, start, .. } => {
            let bytes = &from.bytes()[*start..];
            let (source, len) = (bytes.as_ptr(), bytes.len().min(TRANSFER_BYTES_MAX));
            plain(match registered.buffer(source, len) {
                Some((buffer, len)) => opcode::WriteFixed::new(fd, source, len as u32, buffer).offset(*offset).build(),
                None => opcode::Write::new(fd, source, len as u32).offset(*offset).build(),
            })
        }
        Op::Stat { facts, .. } => {
            let stat = opcode::Statx::new(fd, c"".as_ptr(), facts.target().cast());
            plain(stat.flags(libc::AT_EMPTY_PATH).mask(STAT_MASK).build())
        }
        Op::Open(_) => unreachable!("{op:?} is not about an open file"),
        Op::SyncData { .. } => plain(opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()),
    }
}

/// The entry that opens a file.
pub(super) fn open(opening: &Opening) -> squeue::Entry {
    static HOW: types::OpenHow = types::OpenHow::new().flags(OPEN_FLAGS as u64);
    opcode::OpenAt2::new(types::Fd(libc::AT_FDCWD), opening.text().as_ptr(), &raw const HOW).build()
}

/// Hands an entry to the runtime, in whose context this must be called; it goes to the kernel when the thread parks.
pub(super) fn submit(name: Name, entry: squeue::Entry) -> Flight {
    UnsubmittedOneshot::new((), Outcome(name), entry).submit()
}

/// Asks for all operations on a descriptor back. Nobody waits for the answer: the operations themselves say.
pub(super) fn submit_cancel(fd: RawFd) {
    let nobody = Name { index: u32::MAX, generation: u32::MAX };
    let entry = opcode::AsyncCancel2::new(types::CancelBuilder::fd(types::Fd(fd)).all()).build();
    drop(submit(nobody, entry));
}
