//! Operations as system calls that do not block. Owns nothing.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

use super::Op;
use super::msghdr::MsghdrTable;
use super::opening::last_errno;
use crate::scatter::TRANSFER_BYTES_MAX;

/// Tries a socket operation once: a count, or a negative error number; `-EAGAIN` when the socket is not ready. `msghdrs`, of which
/// no entry is in use, describes it to the kernel during the call.
pub(super) fn on_socket(op: &mut Op, fd: RawFd, msghdrs: &mut MsghdrTable) -> i32 {
    let n = match op {
        Op::Connect { addr, .. } => {
            let (addr, len) = msghdrs.address(0, addr);
            // SAFETY: the kernel reads the address, which `msghdrs` keeps until the next description.
            let rc = unsafe { libc::connect(fd, addr, len) };
            return match rc {
                0 => 0,
                _ => match last_errno() {
                    // The result of a second call after a successful connect.
                    libc::EISCONN => 0,
                    libc::EINPROGRESS | libc::EALREADY | libc::EINTR => -libc::EAGAIN,
                    errno => -errno,
                },
            };
        }
        Op::Send { bytes, from, .. } => {
            let rest = &bytes[*from..];
            let len = rest.len().min(TRANSFER_BYTES_MAX);
            // SAFETY: the kernel reads `rest`, which the borrowed operation owns.
            unsafe { libc::send(fd, rest.as_ptr().cast(), len, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) }
        }
        Op::Recv { into, .. } if into.pieces() > 1 => {
            let header = msghdrs.receive(0, into.targets());
            // SAFETY: the kernel writes into the pieces, which the borrowed operation owns, and into the header, which
            // `msghdrs` keeps until the next description.
            unsafe { libc::recvmsg(fd, header, libc::MSG_DONTWAIT) }
        }
        Op::Recv { into, .. } => {
            let (target, len) = into.first_target();
            // SAFETY: the kernel writes into the one piece, which the borrowed operation owns.
            unsafe { libc::recv(fd, target.cast(), len, libc::MSG_DONTWAIT) }
        }
        _ => unreachable!("{op:?} is not about a socket"),
    };
    outcome(n)
}

/// Does a file operation, which may block: a count, or a negative error number.
pub(super) fn on_file(op: &mut Op, file: Option<&File>) -> i32 {
    let fd = file.map_or(-1, AsRawFd::as_raw_fd);
    loop {
        let n = match op {
            Op::ReadAt { offset, into, .. } => {
                let len = into.reach().min(TRANSFER_BYTES_MAX);
                // SAFETY: the kernel writes into the window and its padding, which the borrowed operation owns.
                unsafe { libc::pread(fd, into.target(len).cast(), len, *offset as libc::off_t) }
            }
            Op::WriteAt { offset, from, start, .. } => {
                let rest = &from.bytes()[*start..];
                let len = rest.len().min(TRANSFER_BYTES_MAX);
                // SAFETY: the kernel reads `rest`, which the borrowed operation has a read pin on.
                unsafe { libc::pwrite(fd, rest.as_ptr().cast(), len, *offset as libc::off_t) }
            }
            Op::SyncData { .. } => {
                // SAFETY: no memory is passed to the kernel.
                unsafe { libc::fdatasync(fd) as isize }
            }
            Op::Open(opening) => return opening.run(),
            Op::Stat { facts, .. } => return facts.run(fd),
            Op::Connect { .. } | Op::Send { .. } | Op::Recv { .. } => unreachable!("{op:?} is not about a file"),
        };
        match outcome(n) {
            errno if errno == -libc::EINTR => {}
            result => return result,
        }
    }
}

fn outcome(n: isize) -> i32 {
    // Transfers are at most 2^30 bytes long.
    if n < 0 { -last_errno() } else { n as i32 }
}
