//! The sticky order of one epoch: samples in groups for ever, and every stretch of positions holds all groups evenly.
//!
//! Every sample has a **slot**, by a permutation that all epochs share. Slots are dealt into `2^bits` **groups** in turn. The
//! epoch is a table: a row is as many positions as there are groups and holds one sample of each. Two choices are made anew
//! in every epoch: in which row a member of a group comes (a permutation of the group's members), and at which place of its row
//! a group comes. The second is what keeps groups even at every scale: groups come in the order of van der Corput's
//! sequence, bits reversed, with Owen's nested scrambling (1995) of places and of groups: each aligned stretch of 2^k
//! places holds one group out of each of 2^k equal ranges of groups, and beyond that anything may come. So a rank that is given a range of groups finds
//! its part of every step in it, whatever the number of ranks and the size of the batch, to within about one sample.
//!
//! The chunked order is the same table over other groups: a group's samples are neighbours in the listing, and it takes them chunk by chunk
//! (`chunks.rs`).
//!
//! What does not fill a row makes a short one, anywhere in the epoch: its groups are the first of the sequence, so they
//! are even as well, and they are the groups with a member more.
//!
//! Owns keys only. Never knows ranks, steps or batches.

use super::chunks::{ChunkShape, Walk, around};
use super::permutation::Permutation;
use core::ops::Range;
use fuelrail_base::prng::mix64;

/// Sets the order apart from the global one of the same seed.
const STICKY: u64 = 0x5354_4943_4B59;
const CHUNKED: u64 = 0x4348_554E_4B53;
/// Rows at least, where the data set has as many samples: so many samples share a group, and can come in its place.
const ROWS_LEAST: u64 = 8;
/// Groups at most, as bits. More than a thousand ranks want: a rank's border goes through one group.
const GROUP_BITS_MAX: u32 = 16;

/// Which samples are in which group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slots {
    /// Any, by a permutation that all epochs share.
    Drawn(Permutation),
    /// Neighbours, in chunks of so many on average, which come in turn or in a random order.
    Chunks(u64, bool),
}

/// The order of one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sticky {
    /// Bits of a group's number: a full row has `2^bits` places.
    pub(super) bits: u32,
    /// Full rows.
    rows: u64,
    /// Places of the short row.
    rest: u64,
    /// Which row that is: another one in every epoch, else some samples would never come at its end.
    pub(super) short: u64,
    slots: Slots,
    /// Keys of what is chosen anew in this epoch: a group's members, a row's places, a rank's stretch of a step.
    members: u64,
    places: u64,
    groups: u64,
    stretches: u64,
}

impl Sticky {
    /// The order of `epoch`, under a seed that is mixed already.
    pub(super) fn new(samples: u64, seed: u64, epoch: u64) -> Sticky {
        let bits = (samples / ROWS_LEAST).checked_ilog2().unwrap_or(0).min(GROUP_BITS_MAX);
        let seed = mix64(seed ^ STICKY);
        Sticky::over(samples, bits, seed, epoch, Slots::Drawn(Permutation::new(samples, !seed)))
    }

    /// The chunked order of `epoch`, under a seed that is mixed already.
    pub(super) fn chunked(samples: u64, shape: ChunkShape, seed: u64, epoch: u64) -> Sticky {
        let chunk = shape.samples.max(1);
        let groups = shape.window.min(samples / chunk).checked_ilog2();
        let bits = groups.unwrap_or(0).min(GROUP_BITS_MAX);
        Sticky::over(samples, bits, mix64(seed ^ CHUNKED), epoch, Slots::Chunks(chunk, shape.in_turn))
    }

    fn over(samples: u64, bits: u32, seed: u64, epoch: u64, slots: Slots) -> Sticky {
        let base = mix64(seed.wrapping_add(epoch));
        let (rows, rest) = (samples >> bits, samples & mask(bits));
        Sticky {
            bits,
            rows,
            rest,
            // Of few rows; the bias of a remainder is nothing.
            short: mix64(base.wrapping_add(5)) % (rows + 1),
            slots,
            members: mix64(base.wrapping_add(1)),
            places: mix64(base.wrapping_add(2)),
            groups: mix64(base.wrapping_add(3)),
            stretches: mix64(base.wrapping_add(4)),
        }
    }

    pub(super) fn sample_at(&self, position: u64) -> u64 {
        let (row, place) = self.row_and_place(position);
        self.sample_in(row, self.group_at(row, place))
    }

    /// The sample of a group in a row, which has one.
    pub(super) fn sample_in(&self, row: u64, group: u64) -> u64 {
        let row = if !self.is_long(group) && row > self.short { row - 1 } else { row };
        match self.slots {
            Slots::Drawn(slots) => {
                let member = self.members_of(group).at(row);
                slots.at((member << self.bits) | self.low(group, member))
            }
            Slots::Chunks(..) => match self.walk(group).at(row) {
                member if member < self.rows => self.begin_of(group) + member,
                lone => (lone << self.bits) | self.low(group, lone),
            },
        }
    }

    pub(super) fn position_of(&self, sample: u64) -> u64 {
        let (group, member) = self.group_and_member(sample);
        let row = match self.slots {
            Slots::Drawn(_) => self.members_of(group).of(member),
            Slots::Chunks(..) => self.walk(group).of(member),
        };
        let row = self.row_of(group, row);
        self.start_of(row) + self.place_of(row, group)
    }

    /// The chunk that a sample is read with, as samples; `None` where it is read alone.
    pub(super) fn chunk_of(&self, sample: u64) -> Option<Range<u64>> {
        let (group, member) = self.group_and_member(sample);
        let each = self.each(group).filter(|_| member < self.rows)?;
        let (chunk, first) = (around(member, each, self.rows), self.begin_of(group));
        Some(first + chunk.start..first + chunk.end)
    }

    /// The first of a group's neighbours. Bits are reversed, so that a range of groups, which a rank is dealt, has its samples evenly from
    /// all of the listing, which may be sorted by class.
    fn begin_of(&self, group: u64) -> u64 {
        reversed(group, self.bits) * self.rows
    }

    fn group_and_member(&self, sample: u64) -> (u64, u64) {
        let slot = match self.slots {
            Slots::Drawn(slots) => slots.of(sample),
            Slots::Chunks(..) if sample < self.rows << self.bits => {
                return (reversed(sample / self.rows, self.bits), sample % self.rows);
            }
            Slots::Chunks(..) => sample,
        };
        let (member, low) = (slot >> self.bits, slot & mask(self.bits));
        (if member < self.rows { low } else { reversed(low, self.bits) }, member)
    }

    /// Which of so many ranks takes this sample in nearly every epoch: each takes an equal range of groups.
    pub(super) fn home(&self, sample: u64, ranks: u16) -> Option<u16> {
        let (group, groups) = (self.group_and_member(sample).0, 1u64 << self.bits);
        (groups >= u64::from(ranks)).then_some(((group * u64::from(ranks)) >> self.bits) as u16)
    }

    /// The lower bits of a member's slot: those of the groups with a member more are the first of the sequence.
    fn low(&self, group: u64, member: u64) -> u64 {
        if member < self.rows { group } else { reversed(group, self.bits) }
    }

    /// The row of the table that a group's own row is: the short one may have none of it.
    fn row_of(&self, group: u64, row: u64) -> u64 {
        row + u64::from(!self.is_long(group) && row >= self.short)
    }

    /// Samples of a chunk of this group: from three quarters to five quarters of the mean.
    fn each(&self, group: u64) -> Option<u64> {
        match self.slots {
            Slots::Drawn(_) => None,
            Slots::Chunks(mean, _) => {
                let more = (u128::from(mean) * u128::from(group)) >> (self.bits + 1);
                Some((mean - mean / 4 + more as u64).max(1))
            }
        }
    }

    fn walk(&self, group: u64) -> Walk {
        let each = self.each(group).expect("only the chunked order has chunks");
        let in_turn = matches!(self.slots, Slots::Chunks(_, true));
        Walk::new(self.rows, (each, in_turn), self.is_long(group), mix64(self.members ^ group))
    }

    /// The row of a position, and the place in it. What is past the end is a row with no places.
    pub(super) fn row_and_place(&self, position: u64) -> (u64, u64) {
        let full = self.short << self.bits;
        if position < full {
            (position >> self.bits, position & mask(self.bits))
        } else if position < full + self.rest {
            (self.short, position - full)
        } else {
            // As if the short row were full.
            let position = position - self.rest + (1 << self.bits);
            (position >> self.bits, position & mask(self.bits))
        }
    }

    fn start_of(&self, row: u64) -> u64 {
        let lacking = if row > self.short { (1 << self.bits) - self.rest } else { 0 };
        (row << self.bits) - lacking
    }

    /// Whether a group has a member more, and is in the short row.
    pub(super) fn is_long(&self, group: u64) -> bool {
        reversed(group, self.bits) < self.rest
    }

    pub(super) fn group_at(&self, row: u64, place: u64) -> u64 {
        let (length, key) = (self.length(row), self.place_key(row));
        // A row is made of blocks, one for each bit of its length; of the place's own block, that is the highest bit in
        // which the two differ.
        let free = (length ^ place).ilog2();
        let mixed = |turn, level| (turn << 1) | (bit(place, level) ^ self.flip(key, level, place >> (level + 1)));
        let turn = (0..free).rev().fold(place >> free, mixed);
        let (drawn, key, fixed) = (reversed(turn, self.bits), self.group_key(row), self.bits - free);
        let mixed = |group, level| (group << 1) | (bit(drawn, level) ^ self.flip(key, level, group));
        let upper = (fixed..self.bits).rev().fold(0, mixed);
        (upper << fixed) | (drawn & mask(fixed))
    }

    /// The place of a group in a row; at or beyond the row's end when the short row has none of it.
    pub(super) fn place_of(&self, row: u64, group: u64) -> u64 {
        let length = self.length(row);
        let turn = reversed(group, self.bits);
        if turn >= length {
            return turn;
        }
        let free = (length ^ turn).ilog2();
        let flips = self.flips(self.group_key(row), group) & !mask(self.bits - free);
        let (turn, key) = (reversed(group ^ flips, self.bits), self.place_key(row));
        let unmixed = |place, level| (place << 1) | (bit(turn, level) ^ self.flip(key, level, place));
        (0..free).rev().fold(turn >> free, unmixed)
    }

    /// The permutation of a rank's stretch of a step.
    pub(super) fn stretch(&self, start: u64, length: u64) -> Permutation {
        Permutation::new(length, mix64(self.stretches ^ start))
    }

    /// The first `places` places of a row, as blocks of which each holds one of every so many groups.
    pub(super) fn blocks(&self, row: u64, places: u64) -> Blocks {
        let mut blocks = Blocks::default();
        let (length, key) = (self.length(row), self.place_key(row));
        for free in (0..=self.bits).rev().filter(|level| bit(length, *level) == 1) {
            let start = (length >> (free + 1)) << (free + 1);
            let within = places.saturating_sub(start).min(1 << free);
            let mut push = |level, turn| blocks.push(Block::new(self.bits, level, free, turn));
            if within >> free == 1 {
                push(free, start >> free);
                continue;
            }
            let mut turn = start >> free;
            for level in (0..free).rev() {
                let flip = self.flip(key, level, (start + within) >> (level + 1));
                if bit(within, level) == 1 {
                    push(level, (turn << 1) | flip);
                }
                turn = (turn << 1) | (bit(within, level) ^ flip);
            }
            break;
        }
        blocks
    }

    /// All the bits that are turned round on the way to a group.
    pub(super) fn flips(&self, key: u64, group: u64) -> u64 {
        (0..self.bits).fold(0, |flips, level| flips | (self.flip(key, level, group >> (level + 1)) << level))
    }

    /// Whether a bit is turned round, by the bits above it: so that whole blocks change places.
    pub(super) fn flip(&self, key: u64, level: u32, above: u64) -> u64 {
        mix64(key ^ (above | (1 << (self.bits - level)))) >> 63
    }

    fn place_key(&self, row: u64) -> u64 {
        mix64(self.places ^ row)
    }

    pub(super) fn group_key(&self, row: u64) -> u64 {
        mix64(self.groups ^ row)
    }

    /// Members of a group by row.
    fn members_of(&self, group: u64) -> Permutation {
        Permutation::new(self.rows + u64::from(self.is_long(group)), mix64(self.members ^ group))
    }

    fn length(&self, row: u64) -> u64 {
        if row == self.short { self.rest } else { 1 << self.bits }
    }
}

/// An aligned stretch of 2^k places: of each of the 2^k ranges of groups that share their upper k bits, it holds one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Block {
    /// What the groups' lower bits are made from.
    drawn: u32,
    /// How many bits that are.
    lower: u8,
    /// The lowest of them, which are never turned round.
    fixed: u8,
}

impl Block {
    /// The block of 2^level places that share the upper bits of their turns, within one of 2^free.
    fn new(bits: u32, level: u32, free: u32, turn: u64) -> Block {
        let lower = bits - level;
        Block { drawn: reversed(turn, lower) as u32, lower: lower as u8, fixed: (bits - free) as u8 }
    }

    /// Places whose group is below this one, whose flips these are. All ranges below that of `group` count. In its own range
    /// the block's one group is found on the way to `group` itself: as far as both go together, the same bits are turned
    /// round, and the first bit in which they part decides.
    fn below(&self, group: u64, flips: u64) -> u64 {
        let lower = mask(u32::from(self.lower));
        let its = (u64::from(self.drawn) ^ (flips & !mask(u32::from(self.fixed)))) & lower;
        (group >> self.lower) + u64::from(its < group & lower)
    }
}

/// The first places of a row, in blocks of shrinking size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Blocks {
    blocks: [Block; GROUP_BITS_MAX as usize + 1],
    count: usize,
}

impl Blocks {
    fn push(&mut self, block: Block) {
        self.blocks[self.count] = block;
        self.count += 1;
    }

    /// Leaves out the blocks that both begin with, where only the difference is wanted.
    pub(super) fn part(&mut self, other: &mut Blocks) {
        let same = self.held().iter().zip(other.held()).take_while(|(a, b)| a == b).count();
        for blocks in [self, other] {
            blocks.blocks.copy_within(same..blocks.count, 0);
            blocks.count -= same;
        }
    }

    /// Places whose group is below this one; flips are those of the row and of `group`, as far down as it has bits.
    pub(super) fn below(&self, group: u64, flips: u64) -> u64 {
        self.held().iter().map(|block| block.below(group, flips)).sum()
    }

    fn held(&self) -> &[Block] {
        &self.blocks[..self.count]
    }
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

fn bit(word: u64, level: u32) -> u64 {
    (word >> level) & 1
}

/// The lowest `bits` bits of a word, in the opposite order.
fn reversed(word: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { word.reverse_bits() >> (u64::BITS - bits) }
}
