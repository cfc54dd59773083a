//! Where a rival puts its bytes: one touched piece of memory, used from its start to its end and round again, as a
//! trainer's batches use theirs.

use std::collections::VecDeque;

use anyhow::{Result, bail};

/// Places start at a cache line.
const LINE_BYTES: usize = 64;
/// What a page holds on every machine this runs on, or a part of it.
const PAGE_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Arena {
    memory: Vec<u8>,
    /// Where the next place starts, unless it has to go round.
    next: usize,
    /// Places not yet free again, oldest first.
    taken: VecDeque<Taken>,
    oldest: u64,
}

#[derive(Debug)]
struct Taken {
    start: usize,
    done: bool,
}

/// A part of the arena that holds one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    number: u64,
    start: usize,
    len: usize,
}

impl Arena {
    /// `bytes` of touched memory, in which objects of up to `largest` bytes land.
    pub(crate) fn new(bytes: usize, largest: usize) -> Result<Arena> {
        if bytes < largest.max(1).next_multiple_of(LINE_BYTES) {
            bail!("an arena of {bytes} bytes does not hold an object of {largest} bytes; give a larger --arena");
        }
        let mut memory = vec![0; bytes];
        // Zeroed memory comes from the kernel untouched: the first pass would pay for its pages.
        memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
        Ok(Arena { memory, next: 0, taken: VecDeque::new(), oldest: 0 })
    }

    pub(crate) fn size(&self) -> usize {
        self.memory.len()
    }

    /// Takes a place for `len` bytes, or none while older objects are in the way.
    pub(crate) fn take(&mut self, len: usize) -> Option<Place> {
        let room = len.max(1).next_multiple_of(LINE_BYTES);
        let end = self.memory.len();
        let start = match self.taken.front() {
            None if end - self.next >= room => self.next,
            None => 0,
            Some(oldest) if self.next > oldest.start && end - self.next >= room => self.next,
            // Going round must not end where the oldest begins: full and empty would look alike.
            Some(oldest) if self.next > oldest.start => (room < oldest.start).then_some(0)?,
            Some(oldest) => (room < oldest.start - self.next).then_some(self.next)?,
        };
        self.next = start + room;
        let number = self.oldest + self.taken.len() as u64;
        self.taken.push_back(Taken { start, done: false });
        Some(Place { number, start, len })
    }

    /// Copies bytes to `at` within a place.
    pub(crate) fn copy(&mut self, place: Place, at: usize, bytes: &[u8]) {
        self.memory[place.start..place.start + place.len][at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn bytes(&self, place: Place) -> &[u8] {
        &self.memory[place.start..place.start + place.len]
    }

    /// Gives a place back. It is free again when all older ones are, too.
    pub(crate) fn give_back(&mut self, place: Place) {
        self.taken[(place.number - self.oldest) as usize].done = true;
        while self.taken.front().is_some_and(|oldest| oldest.done) {
            self.taken.pop_front();
            self.oldest += 1;
        }
    }
}
