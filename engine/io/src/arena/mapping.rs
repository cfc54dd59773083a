//! A range of mapped memory and its end. Hands out addresses; never reads or writes what is there.

use core::fmt;
use core::ptr::NonNull;

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
    /// The first byte and the length.
    pub(crate) fn range(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), self.len)
    }

    /// Address of the byte at `offset`, which must have `len` bytes of mapping from there on.
    pub(crate) fn at(&self, offset: u64, len: usize) -> NonNull<u8> {
        let fits = usize::try_from(offset).ok().and_then(|o| o.checked_add(len)).is_some_and(|end| end <= self.len);
        assert!(fits, "{offset}+{len} lies outside the mapping");
        // SAFETY: checked to lie inside the mapping; whoever uses the address holds the mapping through its home.
        unsafe { self.base.add(offset as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `huge` and belongs to this value. Every slot, window and operation holds
        // this mapping through its home, and every ring that registered it holds it too, so nobody can reach it now.
        let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(rc, 0, "the range is our own mapping");
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.len)
    }
}
