//! Bytes lent to be read: what a write to a file takes along while their window travels on, is delivered or dropped.
//!
//! Owns a claim on the slot's memory, and no right to write. While a slot has loans, nobody writes to it: see
//! [`Slot::is_lent`](crate::Slot::is_lent).

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;

use crate::home::Loan;

/// A read-only claim on bytes of a slot, which does not go home before it is dropped, on whatever thread that happens.
pub struct Lent {
    /// Keeps the memory.
    _loan: Loan,
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the loan keeps the mapping alive until it is dropped, on whatever thread that happens, and its count is atomic;
// the bytes are only read.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// `ptr..ptr+len` lies in the loan's slot and is initialised.
    pub(crate) fn new(loan: Loan, ptr: NonNull<u8>, len: usize) -> Lent {
        Lent { _loan: loan, ptr, len }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes lie in the mapping, which the loan keeps alive; they are initialised, and nobody writes them
        // while there is a loan of their slot: every way to do so asks first.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes)", self.len)
    }
}
