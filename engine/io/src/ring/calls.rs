//! Operations as system calls that do not block, and the msghdr table: message headers, scatter lists and addresses that the kernel reads
//! while an operation is in flight.

use core::cell::UnsafeCell;
use core::mem::{self, MaybeUninit};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use fuelrail_base::limits::SCATTER_PIECES_MAX;
use rustix::net::SocketAddrAny;
use rustix::net::addr::SocketAddrArg;

use super::Op;
use super::file::last_errno;
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

struct Entry {
    msg: libc::msghdr,
    pieces: [libc::iovec; SCATTER_PIECES_MAX],
    addr: MaybeUninit<SocketAddrAny>,
}

/// One entry per operation of the ring.
///
/// Each at its operation's index, allocated once and never moved. The kernel may read (and in a message header also write) an entry from
/// the submission of its operation to its completion, so entries are only reached through raw pointers, and written only when their
/// operation is being made.
pub(super) struct MsghdrTable(Box<[UnsafeCell<Entry>]>);

impl MsghdrTable {
    pub(super) fn new(count: u32) -> MsghdrTable {
        // SAFETY: an entry is made of integers, raw pointers and what need not be initialised; all zeroes is a valid value of each.
        MsghdrTable((0..count).map(|_| UnsafeCell::new(unsafe { mem::zeroed() })).collect())
    }

    fn entry(&self, index: u32) -> *mut Entry {
        self.0[index as usize].get()
    }

    /// Describes a receive into `targets`, at most [`SCATTER_PIECES_MAX`] of them; returns the header for the kernel.
    /// The operation at `index` must be new: not yet submitted.
    pub(super) fn receive(&mut self, index: u32, targets: impl Iterator<Item = (*mut u8, usize)>) -> *mut libc::msghdr {
        let entry = self.entry(index);
        let mut count = 0;
        for (base, len) in targets.take(SCATTER_PIECES_MAX) {
            // SAFETY: `count` is below the array's length; the entry lives in this table and the kernel does not know
            // it yet, because its operation is not submitted.
            unsafe { (*entry).pieces[count] = libc::iovec { iov_base: base.cast(), iov_len: len } };
            count += 1;
        }
        // SAFETY: as above. The header points into the same entry, which does not move and lives as long as this table,
        // which the ring keeps until its last operation is reaped.
        unsafe {
            (*entry).msg = mem::zeroed();
            (*entry).msg.msg_iov = (&raw mut (*entry).pieces).cast();
            (*entry).msg.msg_iovlen = count;
            &raw mut (*entry).msg
        }
    }

    /// Describes a peer; returns address and length for the kernel. The operation at `index` must be new.
    pub(super) fn address(&mut self, index: u32, peer: &SocketAddr) -> (*const libc::sockaddr, libc::socklen_t) {
        let entry = self.entry(index);
        // SAFETY: the entry lives in this table and the kernel does not know it yet.
        unsafe {
            let addr = (*entry).addr.write(peer.as_any());
            (addr.as_ptr().cast(), addr.addr_len())
        }
    }
}
