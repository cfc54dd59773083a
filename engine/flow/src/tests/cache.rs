//! The cache stage against a map of bytes.

use super::memory::{region, window};
use crate::cache::{CacheStage, cached_block_bytes};
use crate::conn::Proof;
use fuelrail_base::prng::Prng;
use fuelrail_base::{BlockId, SampleId};
use fuelrail_plan::policy::PolicyName;
use std::collections::BTreeMap;

fn block(n: u32) -> BlockId {
    BlockId { sample: SampleId(n.into()), index: n % 3 }
}

#[test]
fn what_fits_by_its_bytes_is_kept_and_served_however_scattered_the_room_is() {
    const CAPACITY: usize = 4096;
    for seed in 0..40 {
        let mut prng = Prng::new(seed);
        let mut region = region(1 << 20);
        let mut cache = CacheStage::new(region.alloc(CAPACITY).unwrap());
        let mut model: BTreeMap<u32, (Vec<u8>, Proof)> = BTreeMap::new();
        let (mut copied, mut next, mut brim_full) = (0, 0, 0);
        for _ in 0..600 {
            let used: usize = model.values().map(|(bytes, _)| bytes.len()).sum();
            let held = model.len() as u64;
            match prng.below(3) {
                0 if used < CAPACITY => {
                    // Often all that is left, which a cache of whole pieces could not hold.
                    let room = (CAPACITY - used) as u64;
                    let len = if prng.chance(0.3) { room } else { 1 + prng.below(room.min(500)) };
                    brim_full += u32::from(len == room);
                    let bytes: Vec<u8> = (0..len).map(|_| prng.next() as u8).collect();
                    let proof = Proof { crc32c: Some(next), etag: None };
                    cache.keep(block(next), &bytes, proof);
                    copied += len;
                    model.insert(next, (bytes, proof));
                    next += 1;
                }
                1 if held > 0 => {
                    let (&n, (bytes, proof)) = model.iter().nth(prng.below(held) as usize).unwrap();
                    let mut window = window(&mut region, bytes.len());
                    assert_eq!(cache.serve(block(n), &mut window), *proof);
                    assert_eq!(window.bytes(), bytes, "seed {seed} block {n}");
                    copied += bytes.len() as u64;
                }
                _ if held > 0 => {
                    let &n = model.keys().nth(prng.below(held) as usize).unwrap();
                    cache.evict(block(n));
                    model.remove(&n);
                }
                _ => {}
            }
            let used: usize = model.values().map(|(bytes, _)| bytes.len()).sum();
            let says = format!("cache: {} blocks, {} of {CAPACITY} bytes free", model.len(), CAPACITY - used);
            assert_eq!(cache.describe(), says);
        }
        assert_eq!(cache.copied_bytes, copied);
        assert!(brim_full > 5, "seed {seed}");
    }
}

#[test]
#[should_panic(expected = "kept twice")]
fn a_block_is_kept_once() {
    let mut region = region(1 << 20);
    let mut cache = CacheStage::new(region.alloc(64).unwrap());
    cache.keep(block(1), b"abc", Proof::default());
    cache.keep(block(1), b"abc", Proof::default());
}

#[test]
fn what_is_known_of_a_cached_block_is_counted() {
    for policy in PolicyName::ALL {
        assert!((100..600).contains(&cached_block_bytes(policy)), "{policy}: {}", cached_block_bytes(policy));
    }
}
