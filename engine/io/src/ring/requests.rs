//! Operations as io_uring requests. Owns nothing.

use std::os::fd::AsRawFd;

use io_uring::{opcode, squeue, types};

use super::Op;
use super::calls::MsghdrTable;
use super::file::{OPEN_FLAGS, STAT_MASK};
use super::kernel::Descriptor;
use super::table::Name;
use crate::arena::Mapping;
use crate::scatter::TRANSFER_BYTES_MAX;

/// Most bytes one registered buffer may have: the kernel's limit.
pub(super) const BUFFER_BYTES_MAX: usize = 1 << 30;

/// The request for an operation on this descriptor, through registered memory where its bytes lie in it. With `table`, the descriptor
/// has in the kernel's table the place that it has in the ring's.
pub(super) fn request(
    name: Name,
    op: &mut Op,
    held: Option<&mut Descriptor>,
    table: bool,
    msghdrs: &mut MsghdrTable,
    registered: Option<&Mapping>,
) -> squeue::Entry {
    // `statx` takes a descriptor of the process only.
    let (fd, flags) = match &held {
        Some(_) if table && !matches!(op, Op::Stat { .. }) => (op.holding().index as i32, squeue::Flags::FIXED_FILE),
        Some(held) => (held.fd.as_raw_fd(), squeue::Flags::empty()),
        None => (libc::AT_FDCWD, squeue::Flags::empty()),
    };
    let fd = types::Fd(fd);
    let entry = match op {
        Op::Connect { addr, .. } => {
            let (addr, len) = msghdrs.address(name.index, addr);
            opcode::Connect::new(fd, addr, len).build()
        }
        Op::Send { bytes, from, .. } => {
            let rest = &bytes[*from..];
            let len = rest.len().min(TRANSFER_BYTES_MAX) as u32;
            opcode::Send::new(fd, rest.as_ptr(), len).flags(libc::MSG_NOSIGNAL).build()
        }
        Op::Recv { into, .. } => {
            let patience = into.patience_bytes();
            if let Some(held) = held {
                held.wake_for(patience);
            }
            if into.pieces() > 1 {
                opcode::RecvMsg::new(fd, msghdrs.receive(name.index, into.targets())).build()
            } else {
                let registered = registered.filter(|_| patience == 0 && into.is_one_body());
                let (target, len) = into.first_target();
                match buffer(registered, target, len) {
                    Some((buffer, len)) => opcode::ReadFixed::new(fd, target, len, buffer).build(),
                    None => {
                        let flags = if patience > 0 { libc::MSG_WAITALL } else { 0 };
                        opcode::Recv::new(fd, target, len as u32).flags(flags).build()
                    }
                }
            }
        }
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
        Op::Open(opening) => {
            static HOW: types::OpenHow = types::OpenHow::new().flags(OPEN_FLAGS as u64);
            opcode::OpenAt2::new(fd, opening.text().as_ptr(), &raw const HOW).build()
        }
        Op::Stat { facts, .. } => {
            let stat = opcode::Statx::new(fd, c"".as_ptr(), facts.target().cast());
            stat.flags(libc::AT_EMPTY_PATH).mask(STAT_MASK).build()
        }
        Op::SyncData { .. } => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
    };
    entry.flags(flags).user_data(name.to_bits())
}

/// The registered buffer this place lies in, and how much of `len` bytes does: a transfer that crosses from one buffer into
/// the next is cut short there. `None` for memory that is not registered.
fn buffer(registered: Option<&Mapping>, place: *const u8, len: usize) -> Option<(u16, u32)> {
    let (base, bytes) = registered?.range();
    let offset = (place as usize).checked_sub(base as usize).filter(|offset| offset + len <= bytes)?;
    let len = len.min(BUFFER_BYTES_MAX - offset % BUFFER_BYTES_MAX);
    Some(((offset / BUFFER_BYTES_MAX) as u16, len as u32))
}
