//! The index of blocks on disk: a table of 20 bytes an entry, filled to nine tenths.
//!
//! Open addressing with linear probing; a removal moves the entries after it up, so there are no tombstones. All of its
//! memory is taken at the start, by the number of blocks it may ever hold. Never knows what a segment is.

use fuelrail_base::limits::SAMPLES_MAX;
use fuelrail_base::{BlockId, SampleId};

/// Places are counted in steps of so many bytes.
pub const PLACE_STEP_BYTES: u64 = 16;
/// The farthest place in a segment an entry can name, bytes: 2^40 steps' worth would be 16 TiB, no file needs more.
const PLACE_BYTES_MAX: u64 = (1 << 40) * PLACE_STEP_BYTES;

/// A segment by its number in one shard's ledger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SegmentId(pub u16);

/// Where a block lies on disk, and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The segment.
    pub segment: SegmentId,
    /// Its first byte in the segment: a multiple of [`PLACE_STEP_BYTES`].
    pub place: u64,
    /// CRC-32C of its bytes.
    pub crc32c: u32,
}

/// One entry, in five words: low sample, block index + 1 (zero: empty), CRC, low place; high place, high sample and segment in 8, 8
/// and 16 bits.
type Entry = [u32; 5];
const EMPTY: Entry = [0; 5];

/// Blocks on disk.
pub(super) struct Index {
    /// A power of two is not needed: a hash is mapped to a place by multiplication.
    table: Box<[Entry]>,
    /// Blocks held.
    pub(super) len: usize,
    len_max: usize,
}

impl Index {
    /// An empty index with room for `blocks` of them.
    pub(super) fn new(blocks: usize) -> Index {
        let places = if blocks == 0 { 0 } else { (blocks + blocks / 9).max(blocks + 1) };
        Index { table: vec![EMPTY; places].into_boxed_slice(), len: 0, len_max: blocks }
    }

    /// Whether no further block can be held.
    pub(super) fn is_full(&self) -> bool {
        self.len == self.len_max
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.table.len() * size_of::<Entry>()) as u64
    }

    /// Where a block lies.
    pub(super) fn get(&self, block: BlockId) -> Option<Spot> {
        self.find(block).ok().map(|at| spot(&self.table[at]))
    }

    /// Adds a block, or moves one that is held. False, and nothing happens, when there is no room.
    ///
    /// # Panics
    /// When the place is no multiple of [`PLACE_STEP_BYTES`] or beyond 2^44 bytes, or the block's index is 2^32-1.
    pub(super) fn insert(&mut self, block: BlockId, spot: Spot) -> bool {
        let at = match self.find(block) {
            Ok(at) => at,
            Err(_) if self.is_full() => return false,
            Err(at) => {
                self.len += 1;
                at
            }
        };
        self.table[at] = entry(block, spot);
        true
    }

    /// Takes a block out: where it lay.
    pub(super) fn remove(&mut self, block: BlockId) -> Option<Spot> {
        let at = self.find(block).ok()?;
        let was = spot(&self.table[at]);
        self.clear(at);
        Some(was)
    }

    /// Goes through `count` places of the table from place `from` on and drops every block that `keep` does not want.
    /// Returns where to go on; zero when the end was reached.
    pub(super) fn sweep(&mut self, from: usize, count: usize, mut keep: impl FnMut(BlockId, Spot) -> bool) -> usize {
        let mut at = from;
        let end = (from.saturating_add(count)).min(self.table.len());
        while at < end {
            let held = self.table[at];
            // What moves up into a cleared place comes from further on, or from the other end by way of wrapping: look again.
            if held != EMPTY && !keep(block(&held), spot(&held)) {
                self.clear(at);
            } else {
                at += 1;
            }
        }
        if at >= self.table.len() { 0 } else { at }
    }

    /// Place of a block, or the empty place where it belongs.
    fn find(&self, wanted: BlockId) -> Result<usize, usize> {
        if self.table.is_empty() {
            return Err(0);
        }
        let mut at = self.start(wanted);
        loop {
            match &self.table[at] {
                held if *held == EMPTY => return Err(at),
                held if block(held) == wanted => return Ok(at),
                _ => at = self.after(at),
            }
        }
    }

    fn start(&self, block: BlockId) -> usize {
        let hash = block.hash64();
        // The high half of hash * places (Lemire 2019): no division, no power of two.
        ((u128::from(hash) * self.table.len() as u128) >> 64) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.table.len() { 0 } else { at + 1 }
    }

    /// Empties a place, and moves up what would not be found any more (Knuth 6.4, algorithm R).
    fn clear(&mut self, mut hole: usize) {
        self.len -= 1;
        self.table[hole] = EMPTY;
        let places = self.table.len();
        let mut at = self.after(hole);
        while self.table[at] != EMPTY {
            let from_start = (at + places - self.start(block(&self.table[at]))) % places;
            let from_hole = (at + places - hole) % places;
            if from_start >= from_hole {
                self.table[hole] = self.table[at];
                self.table[at] = EMPTY;
                hole = at;
            }
            at = self.after(at);
        }
    }
}

fn block(entry: &Entry) -> BlockId {
    BlockId { sample: SampleId(u64::from(entry[0]) | u64::from(entry[4] >> 8 & 0xFF) << 32), index: entry[1] - 1 }
}

fn spot(entry: &Entry) -> Spot {
    let steps = u64::from(entry[3]) | u64::from(entry[4] & 0xFF) << 32;
    Spot { segment: SegmentId((entry[4] >> 16) as u16), place: steps * PLACE_STEP_BYTES, crc32c: entry[2] }
}

fn entry(block: BlockId, spot: Spot) -> Entry {
    assert!(spot.place.is_multiple_of(PLACE_STEP_BYTES) && spot.place < PLACE_BYTES_MAX, "{spot:?}");
    let steps = spot.place / PLACE_STEP_BYTES;
    let number = block.index.checked_add(1).expect("no object has 2^32 blocks");
    assert!(block.sample.0 <= SAMPLES_MAX, "{block:?}");
    [
        block.sample.0 as u32,
        number,
        spot.crc32c,
        (steps & u64::from(u32::MAX)) as u32,
        (steps >> 32) as u32 | (block.sample.0 >> 32 << 8) as u32 | u32::from(spot.segment.0) << 16,
    ]
}

const _: () = assert!(size_of::<Entry>() * 10 <= 24 * 9, "at nine tenths full a block costs at most 24 bytes");

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::prng::Prng;
    use std::collections::HashMap;

    fn draw(prng: &mut Prng) -> (BlockId, Spot) {
        let block = BlockId { sample: SampleId(prng.below(300) << (prng.below(2) * 30)), index: prng.below(3) as u32 };
        let place = prng.below(PLACE_BYTES_MAX / PLACE_STEP_BYTES) * PLACE_STEP_BYTES;
        let segment = SegmentId(prng.below(1 << 16) as u16);
        (block, Spot { segment, place, crc32c: prng.next() as u32 })
    }

    #[test]
    fn holds_what_a_map_holds() {
        for seed in 0..20 {
            let mut prng = Prng::new(seed);
            let room = if seed == 0 { 0 } else { prng.below(700) as usize };
            let (mut index, mut map) = (Index::new(room), HashMap::new());
            for _ in 0..20_000 {
                let (block, spot) = draw(&mut prng);
                match prng.below(3) {
                    0 => assert_eq!(index.remove(block), map.remove(&block)),
                    1 => {
                        let fits = map.contains_key(&block) || map.len() < room;
                        assert_eq!(index.insert(block, spot), fits);
                        if fits {
                            map.insert(block, spot);
                        }
                    }
                    _ => assert_eq!(index.get(block), map.get(&block).copied()),
                }
                assert_eq!((index.len, index.is_full()), (map.len(), map.len() == room));
            }
            assert!(map.iter().all(|(&block, &spot)| index.get(block) == Some(spot)), "seed {seed}");
        }
    }

    #[test]
    fn a_sweep_in_parts_shows_all_and_drops_what_it_is_told_to() {
        for seed in 0..50 {
            let mut prng = Prng::new(seed);
            let mut index = Index::new(400);
            let mut map = HashMap::new();
            while map.len() < 400 {
                let (block, spot) = draw(&mut prng);
                index.insert(block, spot);
                map.insert(block, spot);
            }
            let unwanted = |block: BlockId| block.hash64().is_multiple_of(3);
            let (mut from, mut seen) = (0, Vec::new());
            loop {
                from = index.sweep(from, 7, |block, _| {
                    seen.push(block);
                    !unwanted(block)
                });
                if from == 0 {
                    break;
                }
            }
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), 400, "every block is shown at least once");
            // A second sweep finds what wrapped over the end while the first one cleared places.
            index.sweep(0, usize::MAX, |block, _| !unwanted(block));
            map.retain(|&block, _| !unwanted(block));
            assert_eq!(index.len, map.len());
            assert!(map.iter().all(|(&block, &spot)| index.get(block) == Some(spot)));
        }
    }
}
