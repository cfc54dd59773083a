//! A piece of the area that the kernel filled and lent out. Not `Clone`: whoever has it may read it, and must give it back.

use core::ops::Range;

/// Bytes `offset..offset + len` of the area.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the kernel never fills a piece again that is not given back"]
pub(super) struct Chunk {
    offset: u32,
    len: u32,
}

impl Chunk {
    pub(super) fn new(offset: u32, len: u32) -> Chunk {
        Chunk { offset, len }
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.offset as usize..self.offset as usize + self.len as usize
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Where it began and its length, for the one who gives it back.
    pub(super) fn end(self) -> (u32, u32) {
        (self.offset, self.len)
    }
}
