//! The memory shared with the kernel: the area it receives into, and the refill ring through which pieces of the area go
//! back to it. Owns the mapping of both. The only file of zero-copy receive, besides `open`, that has `unsafe`.

use core::sync::atomic::{AtomicU32, Ordering};

use io_uring::types::io_uring_zcrx_rqe as Entry;

use super::chunk::Chunk;
use super::refill::Refill;
use crate::arena::Mapping;

/// Where the kernel says that the parts of the refill ring lie, from the start of the mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    pub(super) head: usize,
    pub(super) tail: usize,
    pub(super) entries: usize,
}

pub(super) struct Area {
    /// The refill ring, then the area.
    mapping: Mapping,
    /// Where the area starts.
    start: usize,
    offsets: Offsets,
    /// What the kernel wants in an entry beside the offset.
    token: u64,
    refill: Refill,
}

impl Area {
    /// Over a mapping whose bytes from `start` on are the area, and those before a refill ring of so many entries.
    ///
    /// # Panics
    /// When a part of the refill ring does not lie before the area, or not where such a part can lie.
    pub(super) fn new(mapping: Mapping, start: usize, offsets: Offsets, entries: u32, token: u64) -> Area {
        let Offsets { head, tail, entries: at } = offsets;
        let inside = |at: usize, len: usize| at.checked_add(len).is_some_and(|end| end <= start);
        assert!(start <= mapping.range().1 && inside(head, 4) && inside(tail, 4), "{offsets:?} and {start}");
        assert!(inside(at, entries as usize * size_of::<Entry>()), "{offsets:?}: {entries} entries before {start}");
        assert!(head % 4 == 0 && tail % 4 == 0 && at % align_of::<Entry>() == 0, "{offsets:?} are not aligned");
        Area { mapping, start, offsets, token, refill: Refill::new(entries) }
    }

    /// The piece the kernel says it has filled.
    ///
    /// # Panics
    /// When it does not lie in the area: then the kernel and we disagree about what memory this is.
    pub(super) fn lent(&self, offset: u64, len: u32) -> Chunk {
        let end = offset.checked_add(u64::from(len));
        assert!(end.is_some_and(|end| end <= self.len() as u64), "{offset}+{len} lies outside of the area");
        Chunk::new(offset as u32, len)
    }

    /// The bytes of a chunk.
    pub(super) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        let range = chunk.range();
        assert!(range.end <= self.len(), "{chunk:?} is of another area");
        // SAFETY: checked to lie inside the mapping, which lives as long as `self`, and initialised (anonymous mappings start
        // as zeroes). The kernel, and the card, do not write these bytes from the completion that made the chunk until the
        // chunk is in the refill ring, and that takes the chunk, which is borrowed here.
        unsafe { core::slice::from_raw_parts(self.mapping.range().0.add(self.start + range.start), range.len()) }
    }

    /// Takes a chunk to be given back with the next [`flush`](Area::flush).
    pub(super) fn give_back(&mut self, chunk: Chunk) {
        self.refill.take(chunk);
    }

    /// Gives back what was taken, as far as the refill ring has room.
    pub(super) fn flush(&mut self) {
        let head = self.word(self.offsets.head).load(Ordering::Acquire);
        let before = self.refill.tail();
        while let Some((place, chunk)) = self.refill.next(head) {
            let (offset, len) = chunk.end();
            let entry = Entry { off: self.token | u64::from(offset), len, __pad: 0 };
            // SAFETY: `place` is below the number of entries, all of which were checked to lie, aligned, in the mapping, which
            // lives as long as `self`. The kernel does not read this entry before the tail has passed it, below.
            unsafe { self.base().add(self.offsets.entries).cast::<Entry>().add(place as usize).write(entry) };
        }
        if self.refill.tail() != before {
            // The kernel may read the entries, and give the pieces to the card, from here on.
            self.word(self.offsets.tail).store(self.refill.tail(), Ordering::Release);
        }
    }

    /// Bytes of the area.
    pub(super) fn len(&self) -> usize {
        self.mapping.range().1 - self.start
    }

    /// The first byte of the area.
    pub(super) fn first(&self) -> *mut u8 {
        self.base().wrapping_add(self.start)
    }

    fn base(&self) -> *mut u8 {
        self.mapping.range().0
    }

    /// Head or tail of the refill ring.
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: both words were checked to lie, aligned, in the mapping, which lives as long as `self`; we and the kernel
        // touch them only as atomic words.
        unsafe { AtomicU32::from_ptr(self.base().add(at).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::anonymous;

    /// What the kernel would read: tail, and the offset and length of the entry at this place.
    fn seen(area: &Area, place: usize) -> (u32, u64, u32) {
        let entries = area.base().wrapping_add(area.offsets.entries).cast::<Entry>();
        // SAFETY: `place` is one of the two entries, in the mapping that `area` keeps until after the read.
        let entry = unsafe { entries.add(place).read() };
        (area.word(area.offsets.tail).load(Ordering::Acquire), entry.off, entry.len)
    }

    #[test]
    fn chunks_are_read_where_they_lie_and_go_back_by_their_offset() {
        let offsets = Offsets { head: 0, tail: 4, entries: 64 };
        let mut area = Area::new(anonymous(3 * 4096, 0).unwrap(), 4096, offsets, 2, 7 << 48);
        assert_eq!(area.len(), 8192);
        // SAFETY: the byte lies in the area, which nobody else writes to in this test.
        unsafe { area.first().add(4100).write(9) };
        let chunk = area.lent(4098, 5);
        assert_eq!(area.bytes(&chunk), [0, 0, 9, 0, 0]);
        area.give_back(chunk);
        assert_eq!(seen(&area, 0).0, 0, "nothing goes back before the flush");
        for offset in [100, 200] {
            let chunk = area.lent(offset, 3);
            area.give_back(chunk);
        }
        area.flush();
        assert_eq!((seen(&area, 0), seen(&area, 1)), ((2, 7 << 48 | 4098, 5), (2, 7 << 48 | 100, 3)));
        area.flush();
        assert_eq!(seen(&area, 0).0, 2, "a full ring takes nothing");
        area.word(0).store(1, Ordering::Release);
        area.flush();
        assert_eq!(seen(&area, 0), (3, 7 << 48 | 200, 3));
    }

    #[test]
    #[should_panic(expected = "outside of the area")]
    fn a_piece_outside_of_the_area_is_not_believed() {
        let offsets = Offsets { head: 0, tail: 4, entries: 64 };
        let area = Area::new(anonymous(2 * 4096, 0).unwrap(), 4096, offsets, 2, 0);
        let _ = area.lent(4000, 97);
    }
}
