//! A range of mapped memory, unmapped when dropped. Hands out addresses; never reads or writes the bytes.

use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use fuelrail_base::{Error, Kind, Result};

/// The mapping itself. Unmapped on drop.
pub(crate) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
}

// SAFETY: a mapping is an address range; it hands out raw addresses only, whose use is governed by slots and windows.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method touches the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new mapping anywhere, to be read and written, of so many bytes of the file or else of zeroes. Populated when touched.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(len: usize, flags: libc::c_int, file: Option<&File>) -> io::Result<Mapping> {
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.map_or(-1, AsRawFd::as_raw_fd));
        // SAFETY: asks for a new range anywhere; no existing memory is affected.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), len, access, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { base: NonNull::new(base.cast()).expect("a mapping is nowhere near zero"), len })
    }

    /// An empty mapping, for tests that only count.
    #[cfg(all(test, loom))]
    pub(crate) fn none() -> std::sync::Arc<Mapping> {
        std::sync::Arc::new(Mapping { base: NonNull::dangling(), len: 0 })
    }

    /// The first byte and the length.
    pub(crate) fn range(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), self.len)
    }

    /// Address of the byte at `offset`, which must have `len` bytes of mapping from there on.
    pub(crate) fn at(&self, offset: u64, len: usize) -> NonNull<u8> {
        let fits = usize::try_from(offset).ok().and_then(|o| o.checked_add(len)).is_some_and(|end| end <= self.len);
        assert!(fits, "{offset}+{len} lies outside the mapping");
        // SAFETY: checked to lie inside the mapping; every user of the address holds the mapping through its remote free list.
        unsafe { self.base.add(offset as usize) }
    }

    /// Requests the pages of a range from a NUMA node, while it has any: before they are touched. Other nodes serve the rest when it is
    /// full, so nothing fails for lack of memory on one node.
    ///
    /// # Errors
    /// `Environment` when the kernel refuses: no such node, or a seccomp profile without `mbind`.
    pub(super) fn prefer_node(&self, range: &Range<u64>, node: usize) -> Result<()> {
        const PREFERRED: libc::c_int = 1;
        const NODES_MAX: usize = 1024;
        let refused = |errno: i32| {
            let doing = format!("taking memory from NUMA node {node}");
            Error::from_errno(Kind::Environment, &doing, errno).with_hint(
                "allow mbind in the seccomp profile (CAP_SYS_NICE in Docker's), or run on one node (numactl -N 0)",
            )
        };
        if node >= NODES_MAX {
            return Err(refused(libc::EINVAL));
        }
        let mut mask = [0 as libc::c_ulong; NODES_MAX / libc::c_ulong::BITS as usize];
        mask[node / libc::c_ulong::BITS as usize] |= 1 << (node % libc::c_ulong::BITS as usize);
        let len = (range.end - range.start) as usize;
        let base = self.at(range.start, len);
        // SAFETY: sets a policy on a range inside this mapping; it changes which pages will back it, never what they hold. The kernel
        // reads `mask`, as long as it says, during the call only.
        let rc = unsafe {
            // The kernel uses one bit less than the given length.
            libc::syscall(libc::SYS_mbind, base.as_ptr(), len, PREFERRED, mask.as_ptr(), NODES_MAX + 1, 0)
        };
        if rc == 0 { Ok(()) } else { Err(refused(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))) }
    }

    /// Populates a range with pages: afterwards no access to it can fail.
    ///
    /// # Errors
    /// The kernel's, where an access would have been a SIGBUS, and `EINVAL` of kernels before 5.14, which cannot tell.
    pub(super) fn populate(&self, range: &Range<u64>) -> io::Result<()> {
        let len = (range.end - range.start) as usize;
        // SAFETY: touches pages of our own mapping; what they hold stays.
        let rc = unsafe { libc::madvise(self.at(range.start, len).as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(all(test, loom))]
        if self.len == 0 {
            return;
        }
        // SAFETY: the range was mapped and belongs to this value. Every slot, window and operation holds
        // this mapping through its remote free list, and every ring that registered it holds it too: no pointer into it is left.
        let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(rc, 0, "the range is our own mapping");
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.len)
    }
}
