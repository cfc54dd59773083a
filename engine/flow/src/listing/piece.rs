//! Memory of a listing.

use core::fmt;
use core::ops::{Deref, Range};
use std::sync::Arc;

/// All of a file.
pub(super) type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Bytes: our own, which may grow, or a part of a file that is mapped, whose memory all processes share.
#[derive(Clone)]
pub(super) enum Piece {
    Own(Vec<u8>),
    Shared(Bytes, Range<usize>),
}

impl Default for Piece {
    fn default() -> Piece {
        Piece::Own(Vec::new())
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Shared(file, range) => &(**file).as_ref()[range.clone()],
        }
    }
}

impl Piece {
    /// Appends bytes to a piece of our own.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        match self {
            Piece::Own(own) => own.extend_from_slice(bytes),
            Piece::Shared(..) => unreachable!("objects are added to chunks of our own"),
        }
    }

    /// The `N` bytes in this place of as many.
    pub(super) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.as_chunks::<N>().0[at]
    }

    pub(super) fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Bytes of memory that this process alone has for it.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Piece::Own(bytes) => bytes.capacity() as u64,
            Piece::Shared(..) => 0,
        }
    }

    /// Frees memory that it does not need.
    pub(super) fn shrink(&mut self) {
        if let Piece::Own(bytes) = self {
            bytes.shrink_to_fit();
        }
    }
}
