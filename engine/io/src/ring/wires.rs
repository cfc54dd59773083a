//! The descriptions the kernel reads while an operation flies: message headers, scatter lists, addresses.
//!
//! One entry per operation, at the operation's index, allocated once and never moved. The kernel may read (and in a
//! message header also write) an entry from the submission of its operation to its completion, so entries are only
//! reached through raw pointers, and written only when their operation is being made.

use core::mem;
use core::ptr::NonNull;
use std::net::SocketAddr;

use fuelrail_base::limits::SCATTER_PIECES_MAX;

struct Wire {
    msg: libc::msghdr,
    pieces: [libc::iovec; SCATTER_PIECES_MAX],
    addr: libc::sockaddr_storage,
}

/// One entry per operation of the ring.
pub(super) struct Wires {
    base: NonNull<Wire>,
    count: usize,
}

impl Wires {
    pub(super) fn new(count: u32) -> Wires {
        // SAFETY: a wire is made of integers and raw pointers; all zeroes is a valid value of each.
        let entries: Box<[Wire]> = (0..count).map(|_| unsafe { mem::zeroed() }).collect();
        let base = NonNull::from(Box::leak(entries)).cast();
        Wires { base, count: count as usize }
    }

    fn entry(&self, index: u32) -> *mut Wire {
        assert!((index as usize) < self.count, "an operation has a wire");
        // SAFETY: checked to lie inside the allocation, which lives as long as this table.
        unsafe { self.base.as_ptr().add(index as usize) }
    }

    /// Describes a receive into `targets`, at most [`SCATTER_PIECES_MAX`] of them; returns the header for the kernel.
    /// The operation at `index` must be new: not yet submitted.
    pub(super) fn receive(&mut self, index: u32, targets: impl Iterator<Item = (*mut u8, usize)>) -> *mut libc::msghdr {
        let wire = self.entry(index);
        let mut count = 0;
        for (base, len) in targets.take(SCATTER_PIECES_MAX) {
            // SAFETY: `count` is below the array's length; the entry lives in this table and the kernel does not know
            // it yet, because its operation is not submitted.
            unsafe { (*wire).pieces[count] = libc::iovec { iov_base: base.cast(), iov_len: len } };
            count += 1;
        }
        // SAFETY: as above. The header points into the same entry, which does not move and lives as long as this table,
        // which the ring keeps until its last operation is reaped.
        unsafe {
            (*wire).msg = mem::zeroed();
            (*wire).msg.msg_iov = (&raw mut (*wire).pieces).cast();
            (*wire).msg.msg_iovlen = count;
            &raw mut (*wire).msg
        }
    }

    /// Describes a peer; returns address and length for the kernel. The operation at `index` must be new.
    pub(super) fn address(&mut self, index: u32, peer: &SocketAddr) -> (*const libc::sockaddr, libc::socklen_t) {
        let wire = self.entry(index);
        // SAFETY: the entry lives in this table and the kernel does not know it yet; `sockaddr_storage` is large and
        // aligned enough for both families.
        unsafe {
            let addr = &raw mut (*wire).addr;
            let len = match peer {
                SocketAddr::V4(v4) => {
                    addr.cast::<libc::sockaddr_in>().write(libc::sockaddr_in {
                        sin_family: libc::AF_INET as libc::sa_family_t,
                        sin_port: v4.port().to_be(),
                        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                        sin_zero: [0; 8],
                    });
                    mem::size_of::<libc::sockaddr_in>()
                }
                SocketAddr::V6(v6) => {
                    addr.cast::<libc::sockaddr_in6>().write(libc::sockaddr_in6 {
                        sin6_family: libc::AF_INET6 as libc::sa_family_t,
                        sin6_port: v6.port().to_be(),
                        sin6_flowinfo: v6.flowinfo(),
                        sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                        sin6_scope_id: v6.scope_id(),
                    });
                    mem::size_of::<libc::sockaddr_in6>()
                }
            };
            (addr.cast_const().cast(), len as libc::socklen_t)
        }
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        let entries = core::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.count);
        // SAFETY: made by `Box::leak` in `new` with this length. The ring drops its wires only with no operation in
        // flight; when it cannot get there it forgets them instead.
        drop(unsafe { Box::from_raw(entries) });
    }
}
