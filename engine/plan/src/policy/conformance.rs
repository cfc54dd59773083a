//! What every policy promises. Panics, with the step that broke the promise. Seeded: a failure repeats.

use super::{BlockMap, PolicyName, build};
use crate::schedule::UseTime;
use fuelrail_base::{BlockId, SampleId, prng::Prng};

/// Random walks beside a plain map: membership, bytes, capacity and evictions agree after every step, from an empty policy on,
/// also under a capacity of zero. What fits is taken when it is used again; nothing is evicted for what cannot fit.
pub fn all(name: PolicyName) {
    for seed in 0..200 {
        agrees_with_a_model(name, seed, 2_000);
    }
}

fn agrees_with_a_model(name: PolicyName, seed: u64, steps: u64) {
    let mut random = Prng::new(seed);
    let capacity = if seed == 0 { 0 } else { random.below(400) };
    let mut policy = build(name, capacity);
    assert_eq!((policy.capacity_bytes(), policy.used_bytes()), (capacity, 0), "seed {seed}: it begins empty");
    let mut model: BlockMap<u64> = BlockMap::default();
    let mut evicted = Vec::new();
    for step in 0..steps {
        let at = format!("seed {seed} step {step}");
        let id = BlockId { sample: SampleId(random.below(40)), index: random.below(2) as u32 };
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
                let bytes = if random.below(50) == 0 { u64::MAX } else { random.below(60) };
                let fits = bytes <= capacity - policy.used_bytes();
                let taken = policy.offer(id, bytes, next_use, &mut evicted);
                assert_eq!(taken, policy.contains(&id), "{at}: the answer says what is held");
                assert!(taken || held || evicted.is_empty(), "{at}: a refusal evicts nothing");
                assert!(taken || held || !fits || next_use.is_none(), "{at}: what fits is taken");
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
        assert_eq!((policy.len(), policy.is_empty()), (model.len(), model.is_empty()), "{at}: blocks");
        assert!(policy.used_bytes() <= capacity, "{at}: above the capacity");
    }
    assert!(model.keys().all(|id| policy.contains(id)), "seed {seed}: the model's blocks are held");
}
