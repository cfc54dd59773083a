//! The sticky order of one epoch: samples in groups for ever, and every stretch of positions holds all groups evenly.
//!
//! Every sample has a **slot**, by a permutation that all epochs share. Slots are dealt into `2^bits` **groups** in turn. The
//! epoch is a table: a row is as many positions as there are groups and holds one sample of each. Two choices are made anew
//! in every epoch: in which row a member of a group comes (a permutation of the group's members), and at which place of its row
//! a group comes. The second is what keeps groups even at every scale: places are taken in the order of van der Corput's
//! sequence, bits reversed, with Owen's nested scrambling (1995): each aligned stretch of 2^k places holds one group out of
//! each of 2^k equal ranges of groups, and beyond that anything may come. So a rank that is given a range of groups finds
//! its part of every step in it, whatever the number of ranks and the size of the batch, to within about one sample.
//!
//! What does not fill a row makes a last, short one: its groups are the first of the sequence, so they are even as well,
//! and they are the groups with a member more.
//!
//! Owns keys only. Never knows ranks, steps or batches.

use super::permutation::Permutation;
use fuelrail_base::prng::mix64;

/// Sets the order apart from the global one of the same seed.
const STICKY: u64 = 0x5354_4943_4B59;
/// Rows at least, where the data set has as many samples: so many samples share a group, and can come in its place.
const ROWS_LEAST: u64 = 16;
/// Groups at most, as bits. More than a thousand ranks want: a rank's border goes through one group.
pub(super) const GROUP_BITS_MAX: u32 = 16;

/// The order of one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sticky {
    /// Bits of a group's number: a full row has `2^bits` places.
    bits: u32,
    /// Full rows.
    rows: u64,
    /// Places of the last row.
    last: u64,
    slots: Permutation,
    /// Keys of what is chosen anew in this epoch: a group's members, a row's places, a rank's stretch of a step.
    members: u64,
    places: u64,
    stretches: u64,
}

impl Sticky {
    /// The order of `epoch`, under a seed that is mixed already.
    pub(super) fn new(samples: u64, seed: u64, epoch: u64) -> Sticky {
        let bits = (samples / ROWS_LEAST).checked_ilog2().unwrap_or(0).min(GROUP_BITS_MAX);
        let seed = mix64(seed ^ STICKY);
        let base = mix64(seed.wrapping_add(epoch));
        Sticky {
            bits,
            rows: samples >> bits,
            last: samples & ((1 << bits) - 1),
            slots: Permutation::new(samples, !seed),
            members: mix64(base.wrapping_add(1)),
            places: mix64(base.wrapping_add(2)),
            stretches: mix64(base.wrapping_add(3)),
        }
    }

    pub(super) fn bits(&self) -> u32 {
        self.bits
    }

    pub(super) fn sample_at(&self, position: u64) -> u64 {
        let (row, place) = self.row_and_place(position);
        let group = self.group_at(row, place);
        let member = self.members_of(group).at(row);
        let slot = if member < self.rows { (member << self.bits) | group } else { self.short_slot(group) };
        self.slots.at(slot)
    }

    pub(super) fn position_of(&self, sample: u64) -> u64 {
        let slot = self.slots.of(sample);
        let member = slot >> self.bits;
        let low = slot & self.mask();
        let group = if member < self.rows { low } else { reversed(low, self.bits) };
        let row = self.members_of(group).of(member);
        (row << self.bits) | self.place_of(row, group)
    }

    pub(super) fn row_and_place(&self, position: u64) -> (u64, u64) {
        (position >> self.bits, position & self.mask())
    }

    /// The group at a place of a row.
    pub(super) fn group_at(&self, row: u64, place: u64) -> u64 {
        reversed(self.scrambled(row, place), self.bits)
    }

    /// The place of a group in a row; at or beyond the row's end when the last row has none of it.
    pub(super) fn place_of(&self, row: u64, group: u64) -> u64 {
        let (turn, length) = (reversed(group, self.bits), self.length(row));
        if turn >= length {
            return turn;
        }
        let key = self.row_key(row);
        let free = (length ^ turn).ilog2();
        let unmixed = |place, level| (place << 1) | (bit(turn, level) ^ self.flip(key, level, place));
        (0..free).rev().fold(turn >> free, unmixed)
    }

    /// The permutation of a rank's stretch of a step.
    pub(super) fn stretch(&self, start: u64, length: u64) -> Permutation {
        Permutation::new(length, mix64(self.stretches ^ start))
    }

    /// The first `places` places of a row, as blocks whose groups are evenly spread.
    pub(super) fn blocks(&self, row: u64, places: u64) -> Blocks {
        let mut blocks = Blocks::default();
        let (length, key) = (self.length(row), self.row_key(row));
        // The row itself is made of blocks, one for each bit of its length; places are mixed within them.
        for block in (0..=self.bits).rev().filter(|level| bit(length, *level) == 1) {
            let start = (length >> (block + 1)) << (block + 1);
            let within = places.saturating_sub(start).min(1 << block);
            if within >> block == 1 {
                blocks.push(self.bits, block, start >> block);
                continue;
            }
            let mut turn = start >> block;
            for level in (0..block).rev() {
                let flip = self.flip(key, level, (start + within) >> (level + 1));
                if bit(within, level) == 1 {
                    blocks.push(self.bits, level, (turn << 1) | flip);
                }
                turn = (turn << 1) | (bit(within, level) ^ flip);
            }
            break;
        }
        blocks
    }

    /// Where a place's turn in the sequence is: a permutation within each block of the row's length.
    fn scrambled(&self, row: u64, place: u64) -> u64 {
        let length = self.length(row);
        // A block is a bit of the length; of the place's own block, that is the highest bit the two differ in.
        let free = (length ^ place).ilog2();
        let key = self.row_key(row);
        let mixed = |turn, level| (turn << 1) | (bit(place, level) ^ self.flip(key, level, place >> (level + 1)));
        (0..free).rev().fold(place >> free, mixed)
    }

    /// Whether the bit of a place at `level` is turned round: by the bits above it, so that whole blocks change places.
    fn flip(&self, key: u64, level: u32, above: u64) -> u64 {
        mix64(key ^ (above | (1 << (self.bits - level)))) >> 63
    }

    fn row_key(&self, row: u64) -> u64 {
        mix64(self.places ^ row)
    }

    /// Members of a group by row.
    fn members_of(&self, group: u64) -> Permutation {
        let long = reversed(group, self.bits) < self.last;
        Permutation::new(self.rows + u64::from(long), mix64(self.members ^ group))
    }

    /// The slot of a group's member too many.
    fn short_slot(&self, group: u64) -> u64 {
        (self.rows << self.bits) | reversed(group, self.bits)
    }

    fn length(&self, row: u64) -> u64 {
        if row < self.rows { 1 << self.bits } else { self.last }
    }

    fn mask(&self) -> u64 {
        (1 << self.bits) - 1
    }
}

/// The first places of a row as blocks of 2^k places: their groups are every `2^(bits - k)`-th one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Blocks {
    /// The first group and log2 of the distance, one block for each size.
    blocks: [(u32, u8); GROUP_BITS_MAX as usize + 1],
    count: usize,
}

impl Blocks {
    fn push(&mut self, bits: u32, level: u32, turn: u64) {
        let apart = bits - level;
        // The turns of a block share their upper bits, so its groups share their lower ones.
        self.blocks[self.count] = (reversed(turn, apart) as u32, apart as u8);
        self.count += 1;
    }

    /// Places whose group is below this one.
    pub(super) fn below(&self, group: u64) -> u64 {
        let count = |&(first, apart): &(u32, u8)| (group + (1 << apart) - 1 - u64::from(first)) >> apart;
        self.blocks[..self.count].iter().map(count).sum()
    }
}

fn bit(word: u64, level: u32) -> u64 {
    (word >> level) & 1
}

/// The lowest `bits` bits of a word, in the opposite order.
fn reversed(word: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { word.reverse_bits() >> (u64::BITS - bits) }
}
