//! The msghdr table: message headers, scatter lists and addresses that the kernel reads while an operation is in flight.
//!
//! One entry per operation, at the operation's index, allocated once and never moved. The kernel may read (and in a
//! message header also write) an entry from the submission of its operation to its completion, so entries are only
//! reached through raw pointers, and written only when their operation is being made.

use core::cell::UnsafeCell;
use core::mem::{self, MaybeUninit};
use std::net::SocketAddr;

use fuelrail_base::limits::SCATTER_PIECES_MAX;
use rustix::net::SocketAddrAny;
use rustix::net::addr::SocketAddrArg;

struct Entry {
    msg: libc::msghdr,
    pieces: [libc::iovec; SCATTER_PIECES_MAX],
    addr: MaybeUninit<SocketAddrAny>,
}

/// One entry per operation of the ring.
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
