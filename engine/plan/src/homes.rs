//! Which rank keeps which block, where the ranks of a job keep blocks for each other.
//!
//! Every block has one home: where its group sits under the sticky order, else by rendezvous hashing (Thaler and Ravishankar, 1998), so that
//! another number of ranks moves only the blocks it must. Owns a table of the hash. Never knows what is kept.

use crate::order::{Order, OrderName};
use fuelrail_base::BlockId;
use fuelrail_base::prng::mix64;
use std::sync::Arc;

/// Entries of the table of homes, as bits: with 64 ranks each gets its share to within a few per cent.
const TABLE_BITS: u32 = 16;

/// Which rank keeps a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Homes {
    rank: u16,
    ranks: u16,
    order: Order,
    /// By the first bits of a block's hash; all shards read the same.
    table: Arc<[u16]>,
}

impl Homes {
    /// The homes of blocks among so many ranks, as rank `rank` sees them.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn new((rank, ranks): (u16, u16), order: &Order) -> Homes {
        assert!(rank < ranks, "rank {rank} of {ranks}");
        let home = |entry| {
            let hash = mix64(entry);
            let weight = |rank: &u16| mix64(hash ^ u64::from(*rank).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            (0..ranks).max_by_key(weight).expect("there is a rank")
        };
        Homes { rank, ranks, order: *order, table: (0..1u64 << TABLE_BITS).map(home).collect() }
    }

    /// The rank that keeps a block.
    #[must_use]
    pub fn of(&self, block: BlockId) -> u16 {
        let grouped =
            if self.order.name() == OrderName::Sticky { self.order.home(block.sample, self.ranks) } else { None };
        // The owner among a rank's shards is chosen by the last bits.
        grouped.unwrap_or_else(|| self.table[(mix64(block.hash64()) >> (64 - TABLE_BITS)) as usize])
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> u16 {
        self.ranks
    }

    /// Whose view this is.
    #[must_use]
    pub fn rank(&self) -> u16 {
        self.rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::SampleId;

    fn block(sample: u64) -> BlockId {
        BlockId { sample: SampleId(sample), index: (sample % 3) as u32 }
    }

    #[test]
    fn every_rank_sees_the_same_homes_which_are_even_and_move_as_little_as_they_must() {
        let order = Order::new(30_000, 1, true);
        let homes = |ranks| Homes::new((0, ranks), &order);
        let (four, five) = (homes(4), homes(5));
        assert_eq!(Homes::new((3, 4), &order).table, four.table);
        let mut counts = [0u32; 4];
        let mut moved = 0;
        for sample in 0..30_000 {
            let (before, after) = (four.of(block(sample)), five.of(block(sample)));
            counts[usize::from(before)] += 1;
            moved += u32::from(before != after);
            assert!(before == after || after == 4, "what moves goes to the new rank");
        }
        assert!(counts.iter().all(|count| (7_200..7_800).contains(count)), "{counts:?}");
        assert!((5_600..6_400).contains(&moved), "{moved} of 30 000 moved, a fifth must");
    }

    #[test]
    fn homes_and_owners_within_a_rank_are_independent() {
        let homes = Homes::new((0, 2), &Order::new(1, 1, true));
        let mut counts = [[0u32; 2]; 2];
        for sample in 0..10_000 {
            let block = block(sample);
            counts[usize::from(homes.of(block))][usize::from(block.owner(2).0)] += 1;
        }
        assert!(counts.as_flattened().iter().all(|count| (2_300..2_700).contains(count)), "{counts:?}");
    }
}
