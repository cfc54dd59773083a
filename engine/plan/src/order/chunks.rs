//! Chunks: neighbouring samples that one request reads, and the order in which a group of the chunked order takes them.
//!
//! A group's samples are neighbours in the listing, cut into chunks of nearly one length. In an epoch the group takes its chunks in a
//! random order, and the samples of each in a random order, before it begins the next: so no more chunks are in use at a time than there
//! are groups. Lengths differ from group to group, so that not all groups begin a chunk at the same moment. How chunks are cut is a
//! function of counts, the same in every epoch: what is kept of one serves the next.

use super::permutation::Permutation;
use core::ops::Range;
use fuelrail_base::prng::mix64;

/// How samples are cut into chunks, and how many chunks are mixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkShape {
    /// Samples of a chunk, on average; at least 1.
    pub samples: u64,
    /// Chunks that are in use at a time, over all ranks: rounded down to a power of two, and to what the data set has.
    pub window: u64,
    /// Whether a group takes its chunks as they are listed, from a random one on and round, so that what lies across two of them is read
    /// once; else in a random order.
    pub in_turn: bool,
}

impl Default for ChunkShape {
    fn default() -> ChunkShape {
        ChunkShape { samples: 64, window: 128, in_turn: false }
    }
}

/// The samples of one group in one epoch, by row.
pub(super) struct Walk {
    /// Neighbours, and how many of them a chunk has; the last one may have fewer.
    neighbours: u64,
    each: u64,
    order: Permutation,
    /// The chunk that comes first where they come in turn.
    turn: u64,
    /// Where in the order the last chunk comes, and its length.
    last: (u64, u64),
    /// The row of a sample that is no neighbour of the others.
    lone: Option<u64>,
    key: u64,
}

impl Walk {
    /// Of a group with so many neighbours, cut into chunks of `each`, and perhaps a lone sample.
    pub(super) fn new(neighbours: u64, (each, in_turn): (u64, bool), has_lone: bool, key: u64) -> Walk {
        let chunks = neighbours.div_ceil(each);
        let order = if in_turn { Permutation::identity(chunks) } else { Permutation::new(chunks, key) };
        let turn = if in_turn { mix64(key ^ TURN) % chunks.max(1) } else { 0 };
        let lone = has_lone.then(|| mix64(key ^ LONE) % (neighbours + 1));
        let mut walk = Walk { neighbours, each, order, turn, last: (0, 0), lone, key };
        if let Some(last) = chunks.checked_sub(1) {
            walk.last = (walk.place_of_chunk(last), neighbours - last * each);
        }
        walk
    }

    fn chunk_at(&self, place: u64) -> u64 {
        let (chunk, chunks) = (self.order.at(place) + self.turn, self.neighbours.div_ceil(self.each));
        if chunk < chunks { chunk } else { chunk - chunks }
    }

    fn place_of_chunk(&self, chunk: u64) -> u64 {
        let chunks = self.neighbours.div_ceil(self.each);
        self.order.of(if chunk < self.turn { chunk + chunks - self.turn } else { chunk - self.turn })
    }

    /// The member that comes in a row.
    pub(super) fn at(&self, row: u64) -> u64 {
        let turn = match self.lone {
            Some(lone) if row == lone => return self.neighbours,
            Some(lone) if row > lone => row - 1,
            _ => row,
        };
        let (place, within) = self.place_of(turn);
        let chunk = self.chunk_at(place);
        chunk * self.each + self.inner(chunk).at(within)
    }

    /// The row of a member.
    pub(super) fn of(&self, member: u64) -> u64 {
        if member == self.neighbours {
            return self.lone.expect("only a lone sample comes after the neighbours");
        }
        let chunk = member / self.each;
        let turn = self.begin_of(self.place_of_chunk(chunk)) + self.inner(chunk).of(member % self.each);
        turn + u64::from(self.lone.is_some_and(|lone| turn >= lone))
    }

    /// Which chunk of the order a turn falls into, and how far.
    fn place_of(&self, turn: u64) -> (u64, u64) {
        let (at, length) = self.last;
        match turn.checked_sub(at * self.each) {
            Some(within) if within < length => (at, within),
            Some(behind) => (at + 1 + (behind - length) / self.each, (behind - length) % self.each),
            None => (turn / self.each, turn % self.each),
        }
    }

    /// The first turn of a chunk of the order.
    fn begin_of(&self, place: u64) -> u64 {
        let (at, length) = self.last;
        if place > at { (place - 1) * self.each + length } else { place * self.each }
    }

    fn length(&self, chunk: u64) -> u64 {
        self.each.min(self.neighbours - chunk * self.each)
    }

    fn inner(&self, chunk: u64) -> Permutation {
        Permutation::new(self.length(chunk), mix64(self.key ^ mix64(chunk)))
    }
}

/// Separates the draw of a lone sample's row from the permutations of the same key.
const LONE: u64 = 0x4C4F_4E45;
/// … and that of the chunk that comes first.
const TURN: u64 = 0x5455_524E;

/// The chunk around a member of a group's neighbours, as members.
pub(super) fn around(member: u64, each: u64, neighbours: u64) -> Range<u64> {
    let first = member / each * each;
    first..neighbours.min(first + each)
}
