//! Which rank keeps which block, where the ranks of a job keep blocks for each other.
//!
//! Every block has one home: where its group sits under the sticky order, else by rendezvous hashing (Thaler and Ravishankar, 1998) over the
//! ranks' names, so that ranks that come, go or change their numbers move only the blocks they must. Under the sticky order they move about
//! half of them, and what is remembered of the runs before says where those were. Owns a table of the hash. Never knows what is kept.

use crate::health::Health;
use crate::order::{Order, OrderName};
use fuelrail_base::BlockId;
use fuelrail_base::prng::mix64;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Entries of the table of homes, as bits: a MiB, in which 1 024 ranks get their shares to within 6 % (one deviation), and fewer ranks
/// more evenly. The same for any number of ranks, or all blocks would move where it changes.
const TABLE_BITS: u32 = 18;

/// Which rank keeps a block.
#[derive(Clone, Debug)]
pub struct Homes {
    rank: u16,
    ranks: u16,
    names: Arc<[u64]>,
    order: Order,
    /// Ranks that are about to leave.
    leaving: Vec<u16>,
    /// Runs before this one, the last one first; all shards read the same.
    former: Arc<OnceLock<Vec<Former>>>,
    /// By the first bits of a block's hash, the home and the one it would be without it; all shards read the same.
    table: Arc<[[u16; 2]]>,
    health: Arc<Health>,
}

/// The homes of a run before this one, under the sticky order.
#[derive(Debug)]
struct Former {
    order: Order,
    /// What rank of this run each of its ranks is, if it is one, in their order then.
    ranks: Vec<Option<u16>>,
}

impl Former {
    fn home(&self, block: BlockId) -> Option<u16> {
        let home = self.order.home(block.sample, self.ranks.len() as u16)?;
        self.ranks[usize::from(home)]
    }
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
        let health = Arc::new(Health::new(ranks));
        Homes {
            rank,
            ranks,
            names: names.into(),
            order: *order,
            leaving: Vec::new(),
            former: Arc::default(),
            table,
            health,
        }
    }

    /// Says to all clones where blocks were in the runs before this one, the last one first: by the seed of each, and its ranks' names in their
    /// order. It is a hint: where it is wrong, requests find nothing. What was said first stays; nothing is said by an empty list.
    pub fn remember(&self, runs: &[(u64, Vec<u64>)]) {
        let present: BTreeMap<u64, u16> = self.names.iter().copied().zip(0..).collect();
        let former = |(seed, names): &(u64, Vec<u64>)| Former {
            order: Order::named(self.order.name(), self.order.samples(), *seed, true),
            ranks: names.iter().map(|name| present.get(name).copied()).collect(),
        };
        let fits = |run: &&(u64, Vec<u64>)| (1..=usize::from(u16::MAX)).contains(&run.1.len());
        let former: Vec<Former> = runs.iter().filter(fits).map(former).collect();
        if !former.is_empty() {
            let _ = self.former.set(former);
        }
    }

    /// The same homes as another rank sees them, to which all ranks are up.
    pub fn seen_by(&self, rank: u16) -> Homes {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        Homes { rank, health: Arc::new(Health::new(self.ranks)), ..self.clone() }
    }

    /// The rank that keeps a block.
    pub fn of(&self, block: BlockId) -> u16 {
        self.of_group(block).map_or_else(|| self.entry(block)[0], |group| self.left_by(group, block))
    }

    /// The rank that may have a block which its home lacks: the one that leaves it to that; or that was its home in a run before, under the
    /// sticky order as far as that is remembered, else in any without the home. `None` where there is no other.
    pub fn second(&self, block: BlockId) -> Option<u16> {
        let Some(group) = self.of_group(block) else {
            let [home, second] = self.entry(block);
            return (second != home).then_some(second);
        };
        let home = self.left_by(group, block);
        if home != group {
            return Some(group);
        }
        self.former.get()?.iter().find_map(|run| run.home(block).filter(|rank| *rank != home))
    }

    /// The home of a block whose group sits at this rank, which may be about to leave.
    fn left_by(&self, group: u16, block: BlockId) -> u16 {
        if self.leaving.contains(&group) { self.among_the_others(block).unwrap_or(group) } else { group }
    }

    /// Where the block's group sits, under the sticky order.
    fn of_group(&self, block: BlockId) -> Option<u16> {
        if self.order.name() == OrderName::Sticky { self.order.home(block.sample, self.ranks) } else { None }
    }

    /// Where it sits when those that are about to leave have left, and nobody else has come or gone.
    fn among_the_others(&self, block: BlockId) -> Option<u16> {
        let others = self.ranks - self.leaving.len() as u16;
        let place = (others > 0).then(|| self.order.home(block.sample, others)).flatten()?;
        (0..self.ranks).filter(|rank| !self.leaving.contains(rank)).nth(place.into())
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

    fn sticky(seed: u64) -> Order {
        Order::named(OrderName::Sticky, 30_000, seed, true)
    }

    #[test]
    fn under_the_sticky_order_a_block_is_asked_of_the_rank_that_was_its_home_in_the_run_before() {
        // How many of a hundred blocks are on their home's disk, are where they are asked for, and were on nodes that have gone.
        let four = &[1, 2, 3, 4][..];
        for (seed, now, golden) in [
            (1, &[1, 2, 3, 4, 5][..], [50, 50, 0]),
            (1, &[1, 3, 4][..], [67, 8, 25]),
            (1, &[3, 1, 4, 2][..], [0, 100, 0]),
            (2, four, [25, 75, 0]),
        ] {
            let (before, homes) = (Homes::new(0, four, &sticky(seed)), Homes::new(0, now, &sticky(1)));
            homes.remember(&[]);
            assert_eq!(homes.second(block(7)), None, "nothing is remembered yet");
            homes.seen_by(1).remember(&[(seed, four.to_vec())]);
            homes.remember(&[(seed + 1, four.to_vec())]);
            let mut counts = [0u32; 3];
            for sample in 0..30_000 {
                let was = four[usize::from(before.of(block(sample)))];
                let rank = (0..).zip(now).find(|(_, name)| **name == was).map(|(rank, _)| rank);
                let home = homes.of(block(sample));
                assert_eq!(homes.second(block(sample)), rank.filter(|rank| *rank != home));
                counts[if rank == Some(home) { 0 } else { 1 + usize::from(rank.is_none()) }] += 1;
            }
            let close = counts.iter().zip(golden).all(|(count, share): (&u32, u32)| count.abs_diff(share * 300) <= 450);
            assert!(close, "{counts:?} of {now:?}, and not {golden:?} %");
        }
    }

    #[test]
    fn under_the_sticky_order_the_run_before_the_last_counts_where_that_kept_a_block_here_or_on_a_node_that_is_gone() {
        let homes = Homes::new(0, &[1, 2], &sticky(1));
        homes.remember(&[(1, vec![]), (1, vec![1, 9]), (1, vec![2, 1])]);
        for sample in 0..1_000 {
            assert_eq!(homes.second(block(sample)), Some(1 - homes.of(block(sample))), "by the last of the three");
        }
    }

    #[test]
    fn under_the_sticky_order_what_a_rank_leaves_goes_to_its_homes_without_that_rank() {
        let (four, three) = (Homes::new(0, &[1, 2, 3, 4], &sticky(1)), Homes::new(0, &[1, 3, 4], &sticky(1)));
        let (mut left, mut all) = (four.clone(), four.clone());
        left.leaves(1);
        (0..4).for_each(|rank| all.leaves(rank));
        for sample in 0..30_000 {
            let (home, after) = (four.of(block(sample)), left.of(block(sample)));
            let next = [0, 2, 3][usize::from(three.of(block(sample)))];
            let wanted = if home == 1 { (next, Some(1)) } else { (home, None) };
            assert_eq!((after, left.second(block(sample))), wanted);
            assert_eq!(all.of(block(sample)), home, "nobody is left");
        }
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
