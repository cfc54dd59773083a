//! Which rank keeps which block, where the ranks of a job keep blocks for each other.
//!
//! Every block has one home: where its group sits under the sticky order, else by rendezvous hashing (Thaler and Ravishankar, 1998) over the
//! ranks' names, so that ranks that come, go or change their numbers move only the blocks they must. Owns a table of the hash. Never knows
//! what is kept.

use crate::health::Health;
use crate::order::{Order, OrderName};
use fuelrail_base::BlockId;
use fuelrail_base::prng::mix64;
use std::sync::Arc;

/// Entries of the table of homes, as bits: a MiB, in which 1 024 ranks get their shares to within 6 % (one deviation), and fewer ranks
/// more evenly. The same for any number of ranks, or all blocks would move where it changes.
const TABLE_BITS: u32 = 18;

/// Which rank keeps a block.
#[derive(Clone, Debug)]
pub struct Homes {
    rank: u16,
    ranks: u16,
    order: Order,
    /// Ranks that are about to leave.
    leaving: Vec<u16>,
    /// By the first bits of a block's hash, the home and the one it would be without it; all shards read the same.
    table: Arc<[[u16; 2]]>,
    health: Arc<Health>,
}

impl Homes {
    /// The homes of blocks among ranks of these names, fewer than 65 535, as rank `rank` sees them. Names are hashes, and all different.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn new(rank: u16, names: &[u64], order: &Order) -> Homes {
        let ranks = u16::try_from(names.len()).expect("fewer than 65 535 ranks");
        assert!(rank < ranks, "rank {rank} of {ranks}");
        let homes = |entry| {
            let hash = mix64(entry);
            let (mut first, mut second) = ((0, 0), (0, 0));
            for (rank, name) in (0..).zip(names) {
                let weighed = (mix64(hash ^ name), rank);
                if weighed > first {
                    (first, second) = (weighed, first);
                } else if weighed > second {
                    second = weighed;
                }
            }
            [first.1, if ranks > 1 { second.1 } else { first.1 }]
        };
        let table = (0..1u64 << TABLE_BITS).map(homes).collect();
        Homes { rank, ranks, order: *order, leaving: Vec::new(), table, health: Arc::new(Health::new(ranks)) }
    }

    /// The same homes as another rank sees them, to which all ranks are up.
    pub fn seen_by(&self, rank: u16) -> Homes {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        Homes { rank, health: Arc::new(Health::new(self.ranks)), ..self.clone() }
    }

    /// The rank that keeps a block.
    pub fn of(&self, block: BlockId) -> u16 {
        self.of_group(block).unwrap_or_else(|| self.entry(block)[0])
    }

    /// The rank that would keep a block if its home were not there, and did before that came. `None` where there is no other, and where groups
    /// have homes: their ranges move as a whole.
    pub fn second(&self, block: BlockId) -> Option<u16> {
        let [home, second] = self.entry(block);
        (self.of_group(block).is_none() && second != home).then_some(second)
    }

    /// Where the block's group sits, under the sticky order.
    fn of_group(&self, block: BlockId) -> Option<u16> {
        if self.order.name() == OrderName::Sticky { self.order.home(block.sample, self.ranks) } else { None }
    }

    /// A rank is about to leave: what it keeps goes to where it would be without it.
    pub fn leaves(&mut self, rank: u16) {
        if !self.leaving.contains(&rank) {
            self.leaving.push(rank);
        }
    }

    fn entry(&self, block: BlockId) -> [u16; 2] {
        // The owner among a rank's shards is chosen by the last bits.
        let [home, second] = self.table[(mix64(block.hash64()) >> (64 - TABLE_BITS)) as usize];
        if self.leaving.contains(&home) { [second, home] } else { [home, second] }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u16 {
        self.ranks
    }

    /// Which ranks answer, as all clones of this know it.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Whose view this is.
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
        let names = [11, 22, 33, 44, 55];
        let (four, five) = (Homes::new(0, &names[..4], &order), Homes::new(0, &names, &order));
        assert_eq!(Homes::new(3, &names[..4], &order).table, four.table);
        let mut left = five.clone();
        left.leaves(4);
        left.leaves(4);
        let backwards = Homes::new(0, &[55, 44, 33, 22, 11], &order);
        let mut counts = [0u32; 4];
        let mut moved = 0;
        for sample in 0..30_000 {
            let (before, after) = (four.of(block(sample)), five.of(block(sample)));
            counts[usize::from(before)] += 1;
            moved += u32::from(before != after);
            assert!(before == after || after == 4, "what moves goes to the new rank");
            let second = five.second(block(sample)).unwrap();
            assert!(after != 4 || second == before, "and that asks where it was");
            assert_eq!(backwards.of(block(sample)), 4 - after, "numbers do not matter");
            let without = left.of(block(sample));
            assert_eq!(
                (without, left.second(block(sample))),
                if after == 4 { (before, Some(4)) } else { (after, five.second(block(sample))) }
            );
        }
        assert!(counts.iter().all(|count| (7_200..7_800).contains(count)), "{counts:?}");
        assert!((5_600..6_400).contains(&moved), "{moved} of 30 000 moved, a fifth must");
    }

    #[test]
    fn homes_and_owners_within_a_rank_are_independent() {
        let homes = Homes::new(0, &[1, 2], &Order::new(1, 1, true));
        let mut counts = [[0u32; 2]; 2];
        for sample in 0..10_000 {
            let block = block(sample);
            counts[usize::from(homes.of(block))][usize::from(block.owner(2).0)] += 1;
        }
        assert!(counts.as_flattened().iter().all(|count| (2_300..2_700).contains(count)), "{counts:?}");
    }
}
