//! Drawing a scenario from a seed.
//!
//! Each kind of trouble is off in many seeds, so that faults are seen alone as well as mixed.

use super::{BucketShape, ConsumerShape, Despair, FaultShares, Flavour, LifeShape, LoaderShape, Scenario};
use fuelrail_base::prng::{Prng, mix64};
use fuelrail_io::SimFaults;
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::policy::PolicyName;
use std::time::Duration;

/// Bytes of the largest data set drawn: keeps a run in fractions of a second.
pub(super) const DATA_BYTES_MAX: u64 = 1 << 20;

impl Scenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64) -> Scenario {
        let mut p = Prng::new(mix64(seed ^ 0x5CE4_A210));
        let calm = p.chance(0.2);
        let sizes = sizes(&mut p);
        let samples = sizes.len() as u64;
        let total: u64 = sizes.iter().sum();
        // The first makes more blocks than the lanes between shards hold asks.
        let block_bytes =
            *pick(&mut p, &[(total / 4000).max(1), 777, 4096, 4096, 16 << 10, 64 << 10, 1 << 20, 1 << 20]);
        let batch_size = within(&mut p, 1, 32) as u32;
        let lives = lives(&mut p, samples, batch_size);
        let world_max = lives.iter().map(|life| u64::from(life.world)).max().unwrap_or(1);
        let drop_last = p.chance(0.3) && samples >= world_max * u64::from(batch_size);
        let bucket = bucket(&mut p);
        let mut loader = loader(&mut p, &sizes, block_bytes, batch_size);
        let (faults, ring) = if calm {
            (FaultShares::default(), if p.chance(0.5) { SimFaults::default() } else { gentle(ring(&mut p)) })
        } else {
            (faults(&mut p), if p.chance(0.4) { SimFaults::default() } else { ring(&mut p) })
        };
        let hopeless = if calm { Vec::new() } else { hopeless(&mut p, samples, &mut loader) };
        if bucket.responses_per_connection > 0 && !bucket.announces_close {
            // Each such end costs the request that meets it an attempt, and the same block may meet many in a row.
            loader.attempts_max = 400;
        }
        Scenario {
            seed,
            samples,
            total_bytes: total,
            sizes,
            // Every block of a hopeless object is tried as often as any other.
            block_bytes: if hopeless.is_empty() { block_bytes } else { block_bytes.max(4096) },
            // Not drawn: what else a seed stands for stays as it was.
            order: OrderName::ALL[usize::from(mix64(seed).is_multiple_of(3))],
            shuffle: p.chance(0.8),
            drop_last,
            epochs: within(&mut p, 1, 3),
            batch_size,
            lockstep: p.chance(0.7),
            lives,
            loader,
            bucket: if calm { BucketShape { addresses: 1, announces_close: true, ..bucket } } else { bucket },
            faults,
            outage: None,
            disk: None,
            ring,
            consumer: consumer(&mut p),
            hopeless,
        }
        .with_disk()
    }
}

impl Scenario {
    /// Nothing goes wrong, and work takes no time: one rank, one epoch, objects of one size, loaders as the engine makes
    /// them. For questions about the logic; what they ask about is set afterwards.
    pub(crate) fn quiet(seed: u64, objects: u64, object_bytes: u64, batch_size: u32) -> Scenario {
        let mut scenario = Scenario::draw(seed);
        scenario.sizes = vec![object_bytes; objects as usize];
        (scenario.samples, scenario.total_bytes) = (objects, objects * object_bytes);
        (scenario.block_bytes, scenario.batch_size) = (1 << 20, batch_size);
        (scenario.order, scenario.shuffle, scenario.drop_last) = (OrderName::Global, true, false);
        (scenario.epochs, scenario.lockstep, scenario.disk) = (1, false, None);
        scenario.lives = vec![LifeShape { world: 1, kill_after_steps: None, kill_after_events: 0 }];
        (scenario.faults, scenario.ring, scenario.hopeless) =
            (FaultShares::default(), SimFaults::default(), Vec::new());
        let bucket = &mut scenario.bucket;
        (bucket.chunked, bucket.until_close, bucket.interim) = (0.0, 0.0, 0.0);
        (bucket.responses_per_connection, bucket.addresses, bucket.segment_bytes) = (0, 1, 64 << 10);
        let loader = &mut scenario.loader;
        (loader.shards, loader.cache_bytes, loader.watermarks) = (1, 0, None);
        // As the loader has them: room for four batches and 128 connections each.
        loader.room_bytes = 4 * u64::from(batch_size) * (object_bytes + 64);
        (loader.connections_start, loader.connections_max, loader.depth_max) = (4, 128, 4);
        (loader.ring_entries, loader.ring_sockets, loader.deliver_entries) = (512, 256, 64);
        (loader.stall_after_ms, loader.attempts_max) = (10_000, 10);
        (loader.hedge_percent, loader.spare_slots) = (0, 0);
        scenario.consumer =
            ConsumerShape { step_us: 0, steady: false, pause: 0.0, pause_ms: 0, leases_max: 1, lease_ms: 0 };
        scenario
    }
}

/// The same without anything that makes an attempt fail.
fn gentle(ring: SimFaults) -> SimFaults {
    SimFaults { transient_errno: 0.0, fatal_errno: 0.0, ..ring }
}

fn pick<'a, T>(p: &mut Prng, list: &'a [T]) -> &'a T {
    &list[p.below(list.len() as u64) as usize]
}

/// Uniform in `least..=most`.
fn within(p: &mut Prng, least: u64, most: u64) -> u64 {
    least + p.below(most - least + 1)
}

/// Log-uniform in `least..=most`: as many tenths as tens.
fn spread(p: &mut Prng, least: u64, most: u64) -> u64 {
    let (low, high) = ((least.max(1) as f64).ln(), (most as f64).ln());
    ((low + p.unit() * (high - low)).exp().round() as u64).clamp(least, most)
}

/// Zero in about half of the draws.
fn share(p: &mut Prng, most: f64) -> f64 {
    if p.chance(0.5) { 0.0 } else { p.unit() * most }
}

fn sizes(p: &mut Prng) -> Vec<u64> {
    let count = spread(p, 1, 240);
    let largest = spread(p, 1, 128 << 10);
    let mut sizes: Vec<u64> = (0..count)
        .map(|_| match p.below(10) {
            0 => 0,
            1 => within(p, 1, 64),
            2..=7 => spread(p, 1, largest),
            _ => largest,
        })
        .collect();
    let total: u64 = sizes.iter().sum();
    if total > DATA_BYTES_MAX {
        sizes.iter_mut().for_each(|size| *size = (*size * DATA_BYTES_MAX).div_ceil(total));
    }
    sizes
}

fn lives(p: &mut Prng, samples: u64, batch_size: u32) -> Vec<LifeShape> {
    let count = 1 + usize::from(p.chance(0.4)) + usize::from(p.chance(0.3));
    let steps = samples.div_ceil(u64::from(batch_size));
    (0..count)
        .map(|at| LifeShape {
            world: within(p, 1, 4) as u32,
            kill_after_steps: (at + 1 < count).then(|| p.below(steps + 1)),
            kill_after_events: p.below(100),
        })
        .collect()
}

fn loader(p: &mut Prng, sizes: &[u64], block_bytes: u64, batch_size: u32) -> LoaderShape {
    let total: u64 = sizes.iter().sum();
    let largest = Catalog::new(sizes.to_vec(), block_bytes).map_or(0, |c| c.batch_room_max(u64::from(batch_size)));
    let connections_max = spread(p, 1, 16) as usize;
    let cache_samples = within(p, 2, 64);
    // Of its own, so that older draws stay what they were.
    let mut hedging = Prng::new(total ^ u64::from(batch_size));
    LoaderShape {
        shards: within(p, 1, 4) as u16,
        cache_bytes: if p.chance(0.3) { 0 } else { (total as f64 * p.unit() * 1.2) as u64 },
        policy: *pick(p, &PolicyName::ALL),
        watermarks: (p.below(3) == 0).then(|| (cache_samples, p.below(cache_samples))),
        horizon_epochs: within(p, 1, 4),
        room_bytes: (largest as f64 * (1.0 + share(p, 4.0))) as u64,
        connections_start: within(p, 1, connections_max.min(8) as u64) as usize,
        connections_max,
        depth_max: spread(p, 1, 32) as usize,
        ring_entries: *pick(p, &[4, 16, 512, 512]),
        ring_sockets: *pick(p, &[1, 3, 512, 512, 512, 512]),
        deliver_entries: spread(p, 1, 64) as usize,
        stall_after_ms: within(p, 500, 5_000),
        attempts_max: 40,
        hedge_percent: *pick(&mut hedging, &[0, 2, 20]),
        hedge_delay_us_min: spread(&mut hedging, 500, 20_000),
        spare_slots: hedging.below(4) as usize,
        spare_bytes: sizes.iter().max().copied().unwrap_or(0).min(block_bytes).max(1) as usize,
        retry_base_us: within(p, 1_000, 50_000),
        retry_cap_us: within(p, 100_000, 2_000_000),
        bad_samples: "raise",
    }
}

fn bucket(p: &mut Prng) -> BucketShape {
    let least = spread(p, 10, 50_000);
    let listed = p.chance(0.6);
    BucketShape {
        flavour: *pick(p, &[Flavour::S3, Flavour::Nginx, Flavour::Varying]),
        latency_us: (least, least + spread(p, 1, 50_000)),
        connect_us: spread(p, 10, 50_000),
        connection_bytes_per_s: spread(p, 1 << 20, 10 << 30),
        total_bytes_per_s: if p.chance(0.6) { 0 } else { spread(p, 16 << 20, 10 << 30) },
        requests_per_s: 0,
        segment_bytes: spread(p, 100, 64 << 10) as usize,
        chunked: *pick(p, &[0.0, 0.0, 0.2, 1.0]),
        until_close: *pick(p, &[0.0, 0.0, 0.05]),
        responses_per_connection: if p.chance(0.7) { 0 } else { spread(p, 1, 100) },
        announces_close: p.chance(0.5),
        interim: share(p, 0.2),
        etags: (listed, listed || p.chance(0.5)),
        crc32c: p.chance(0.5),
        crc32c_of_parts: false,
        addresses: if p.chance(0.15) { 2 } else { 1 },
    }
}

fn faults(p: &mut Prng) -> FaultShares {
    FaultShares {
        slow_down: share(p, 0.1),
        server_error: share(p, 0.1),
        reset: share(p, 0.1),
        finish: share(p, 0.1),
        stall: share(p, 0.02),
        wrong_length: share(p, 0.05),
        wrong_etag: share(p, 0.05),
        changed: share(p, 0.05),
        garbage: share(p, 0.05),
        wrong_range: share(p, 0.05),
        ignored_range: share(p, 0.05),
        extra_bytes: share(p, 0.05),
        flipped: share(p, 0.05),
        drip: share(p, 0.05),
        refused: share(p, 0.1),
        per_key_max: within(p, 1, 6) as u32,
    }
}

fn ring(p: &mut Prng) -> SimFaults {
    SimFaults {
        short_receive: share(p, 0.9),
        short_send: share(p, 0.9),
        reorder: share(p, 1.0),
        transient_errno: share(p, 0.05),
        fatal_errno: share(p, 0.01),
        delay: share(p, 0.5),
        delay_max: Duration::from_micros(within(p, 1, 20_000)),
        ..SimFaults::default()
    }
}

/// Some seeds have samples that can never be had; the policy for them is drawn along.
fn hopeless(p: &mut Prng, samples: u64, loader: &mut LoaderShape) -> Vec<(u64, Despair)> {
    if !p.chance(0.2) {
        return Vec::new();
    }
    loader.bad_samples = *pick::<&'static str>(p, &["raise", "skip", "skip", "quarantine", "quarantine"]);
    let mut list: Vec<(u64, Despair)> = (0..within(p, 1, 3))
        .map(|_| (p.below(samples), *pick(p, &[Despair::NotFound, Despair::Denied, Despair::ServerError])))
        .collect();
    list.sort_by_key(|(sample, _)| *sample);
    list.dedup_by_key(|(sample, _)| *sample);
    list
}

fn consumer(p: &mut Prng) -> ConsumerShape {
    ConsumerShape {
        step_us: *pick(p, &[0, 100, 5_000, 100_000]),
        steady: false,
        pause: share(p, 0.05),
        pause_ms: within(p, 100, 8_000),
        leases_max: within(p, 1, 4) as usize,
        lease_ms: within(p, 1, 1_000),
    }
}
