//! What every policy promises, as functions any implementation can be run through.
//!
//! Each takes a maker (capacity in bytes to policy) and panics, with the step that broke the promise. Seeded: a failure
//! repeats.

use super::contract::Policy;
use super::index::BlockMap;
use crate::schedule::UseTime;
use fuelrail_base::{BlockId, SampleId, prng::Prng};

/// Makes an empty policy of a capacity in bytes.
pub type Make<'a> = &'a dyn Fn(u64) -> Box<dyn Policy>;

/// Runs all of the suite.
pub fn all(make: Make<'_>) {
    starts_empty(make);
    zero_capacity_holds_nothing(make);
    refuses_what_is_larger_than_the_cache(make);
    takes_what_fits_exactly(make);
    offering_again_changes_no_size(make);
    removed_blocks_give_their_room_back(make);
    for seed in 0..200 {
        agrees_with_a_model(make, seed, 2_000);
    }
}

fn block(sample: u64, index: u32) -> BlockId {
    BlockId { sample: SampleId(sample), index }
}

/// A new policy holds nothing and says so.
pub fn starts_empty(make: Make<'_>) {
    let mut policy = make(100);
    let mut evicted = Vec::new();
    assert_eq!((policy.capacity_bytes(), policy.used_bytes(), policy.len()), (100, 0, 0));
    assert!(policy.is_empty() && !policy.contains(&block(0, 0)));
    assert!(!policy.hit(block(0, 0), Some(UseTime(1)), &mut evicted), "nothing to hit");
    assert!(!policy.remove(block(0, 0)), "nothing to remove");
    assert!(evicted.is_empty());
}

/// A capacity of zero is a cache that never holds a byte.
pub fn zero_capacity_holds_nothing(make: Make<'_>) {
    let mut policy = make(0);
    let mut evicted = Vec::new();
    for sample in 0..10 {
        assert!(!policy.offer(block(sample, 0), 1, Some(UseTime(10)), &mut evicted));
    }
    assert!(policy.is_empty() && policy.used_bytes() == 0 && evicted.is_empty());
}

/// Nothing is evicted for a block that cannot fit anyway.
pub fn refuses_what_is_larger_than_the_cache(make: Make<'_>) {
    let mut policy = make(100);
    let mut evicted = Vec::new();
    assert!(policy.offer(block(0, 0), 60, Some(UseTime(50)), &mut evicted));
    assert!(!policy.offer(block(1, 0), 101, Some(UseTime(1)), &mut evicted), "101 bytes into 100");
    assert!(!policy.offer(block(1, 0), u64::MAX, Some(UseTime(1)), &mut evicted), "no overflow");
    assert!(policy.contains(&block(0, 0)) && evicted.is_empty());
}

/// The last byte of the capacity is usable.
pub fn takes_what_fits_exactly(make: Make<'_>) {
    let mut policy = make(100);
    let mut evicted = Vec::new();
    assert!(policy.offer(block(0, 0), 40, Some(UseTime(9)), &mut evicted));
    assert!(policy.offer(block(0, 1), 60, Some(UseTime(9)), &mut evicted));
    assert!(policy.offer(block(1, 0), 0, Some(UseTime(8)), &mut evicted), "an empty object needs no room");
    assert_eq!((policy.used_bytes(), policy.len(), evicted.len()), (100, 3, 0));
}

/// Two offers of one block are one block.
pub fn offering_again_changes_no_size(make: Make<'_>) {
    let mut policy = make(100);
    let mut evicted = Vec::new();
    assert!(policy.offer(block(0, 0), 40, Some(UseTime(9)), &mut evicted));
    assert!(policy.offer(block(0, 0), 90, Some(UseTime(12)), &mut evicted));
    assert_eq!((policy.used_bytes(), policy.len(), evicted.len()), (40, 1, 0));
}

/// `remove` takes exactly the block named.
pub fn removed_blocks_give_their_room_back(make: Make<'_>) {
    let mut policy = make(100);
    let mut evicted = Vec::new();
    for sample in 0..10 {
        assert!(policy.offer(block(sample, 0), 10, Some(UseTime(100 - sample)), &mut evicted));
    }
    for sample in [3, 9, 0] {
        assert!(policy.remove(block(sample, 0)));
        assert!(!policy.remove(block(sample, 0)), "gone once");
        assert!(!policy.contains(&block(sample, 0)));
    }
    assert_eq!((policy.used_bytes(), policy.len(), evicted.len()), (70, 7, 0));
    assert!(policy.offer(block(20, 0), 30, Some(UseTime(1)), &mut evicted), "the room is back");
    assert!(evicted.is_empty());
}

/// A random walk beside a plain map: membership, bytes, capacity and evictions agree after every step.
pub fn agrees_with_a_model(make: Make<'_>, seed: u64, steps: u64) {
    let mut random = Prng::new(seed);
    let capacity = random.below(400);
    let mut policy = make(capacity);
    let mut model: BlockMap<u64> = BlockMap::default();
    let mut evicted = Vec::new();
    for step in 0..steps {
        let at = format!("seed {seed} step {step}");
        let id = block(random.below(40), random.below(2) as u32);
        let next_use = random.chance(0.9).then(|| UseTime(step + 1 + random.below(100)));
        let held = model.contains_key(&id);
        assert_eq!(policy.contains(&id), held, "{at}: contains");
        evicted.clear();
        match random.below(8) {
            0 => {
                assert_eq!(policy.remove(id), held, "{at}: remove");
                model.remove(&id);
            }
            1..=3 => assert_eq!(policy.hit(id, next_use, &mut evicted), held, "{at}: hit"),
            _ => {
                let bytes = random.below(60);
                let taken = policy.offer(id, bytes, next_use, &mut evicted);
                assert_eq!(taken, policy.contains(&id), "{at}: the answer says what is held");
                assert!(taken || held || evicted.is_empty(), "{at}: a refusal evicts nothing");
                assert!(!taken || !evicted.contains(&id), "{at}: held and evicted");
                if taken && !held {
                    model.insert(id, bytes);
                }
            }
        }
        for gone in &evicted {
            assert!(model.remove(gone).is_some(), "{at}: {gone:?} evicted twice or never held");
            assert!(!policy.contains(gone), "{at}: {gone:?} evicted and held");
        }
        assert_eq!(policy.used_bytes(), model.values().sum::<u64>(), "{at}: bytes");
        assert_eq!(policy.len(), model.len(), "{at}: blocks");
        assert!(policy.used_bytes() <= capacity, "{at}: above the capacity");
    }
    assert!(model.keys().all(|id| policy.contains(id)), "seed {seed}: the model's blocks are held");
}
