//! File operations as io_uring requests. Owns nothing.

use io_uring::{opcode, squeue, types};

use super::setup::BUFFER_BYTES_MAX;
use crate::arena::Mapping;
use crate::ring::Op;
use crate::ring::opening::{OPEN_FLAGS, Opening, STAT_MASK};

/// Longest single transfer handed to the kernel; it may be cut short anyway.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// The request for an operation on a file, through registered memory where its bytes lie in it.
pub(super) fn entry(op: &mut Op, fd: types::Fd, registered: Option<&Mapping>) -> squeue::Entry {
    match op {
        Op::ReadAt { offset, into, .. } => {
            let len = into.reach().min(TRANSFER_BYTES_MAX);
            let target = into.target(len);
            match buffer(registered, target, len) {
                Some((buffer, len)) => opcode::ReadFixed::new(fd, target, len, buffer).offset(*offset).build(),
                None => opcode::Read::new(fd, target, len as u32).offset(*offset).build(),
            }
        }
        Op::WriteAt { offset, from, start, .. } => {
            let rest = &from.bytes()[*start..];
            let len = rest.len().min(TRANSFER_BYTES_MAX);
            match buffer(registered, rest.as_ptr(), len) {
                Some((buffer, len)) => opcode::WriteFixed::new(fd, rest.as_ptr(), len, buffer).offset(*offset).build(),
                None => opcode::Write::new(fd, rest.as_ptr(), len as u32).offset(*offset).build(),
            }
        }
        Op::Stat { facts, .. } => {
            let stat = opcode::Statx::new(fd, c"".as_ptr(), facts.target().cast());
            stat.flags(libc::AT_EMPTY_PATH).mask(STAT_MASK).build()
        }
        Op::SyncData { .. } => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        Op::Connect { .. } | Op::Send { .. } | Op::Recv { .. } | Op::Open(_) => {
            unreachable!("{op:?} is not about an open file")
        }
    }
}

/// The request that opens a file.
pub(super) fn open(opening: &Opening) -> squeue::Entry {
    static HOW: types::OpenHow = types::OpenHow::new().flags(OPEN_FLAGS as u64);
    opcode::OpenAt2::new(types::Fd(libc::AT_FDCWD), opening.text().as_ptr(), &raw const HOW).build()
}

/// The registered buffer this place lies in, and how much of `len` bytes does: a transfer that crosses from one buffer into
/// the next is cut short there. `None` for memory that is not registered.
fn buffer(registered: Option<&Mapping>, place: *const u8, len: usize) -> Option<(u16, u32)> {
    let (base, bytes) = registered?.range();
    let offset = (place as usize).checked_sub(base as usize).filter(|offset| offset + len <= bytes)?;
    let len = len.min(BUFFER_BYTES_MAX - offset % BUFFER_BYTES_MAX);
    Some(((offset / BUFFER_BYTES_MAX) as u16, len as u32))
}
