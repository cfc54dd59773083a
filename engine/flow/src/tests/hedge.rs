//! Second requests in a whole shard, in virtual time: what a heavy tail costs with and without them, and that no trouble makes
//! them lose, repeat or mix up a byte.

use super::memory::{region, window};
use super::world::{self, Bucket, Heard, content, objects, run, stand_still};
use crate::assemble::Assembled;
use crate::channels::channels;
use crate::conn::{Asked, Exchange, Fault, Outcome, Proof};
use crate::deliver::{Consumer, Outlet};
use crate::hedge::{Hedges, Race, Spares, Verdict};
use crate::setup::{ShardConfig, ShardEnds};
use crate::shard::Shard;
use crate::status::{ShardStatus, Snapshot};
use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Instant};
use fuelrail_io::{Arena, ArenaConfig, HugePages, Ring, SimFaults, SimRing, SimWorld, channel};
use fuelrail_plan::window::WindowConfig;
use std::sync::Arc;

const MS: Duration = Duration::from_millis(1);

/// How a life goes.
struct Shape {
    sizes: Vec<u64>,
    block_bytes: u64,
    batch_size: u32,
    epochs: u64,
    /// Per cent of requests that may be sent twice.
    percent: u32,
    spares: Spares,
    connections: usize,
    faults: SimFaults,
    seed: u64,
    /// How long the consumer takes for each batch.
    step: Duration,
    /// For so long the shard's thread does not run, behind every 2 000th request.
    stops: Duration,
    /// Everything ends here.
    stop_after_iterations: Option<u64>,
}

impl Shape {
    fn new(percent: u32) -> Shape {
        Shape {
            sizes: (0..3_000).map(|n| 2_000 + n % 1_000).collect(),
            block_bytes: 1 << 20,
            batch_size: 30,
            epochs: 4,
            percent,
            spares: Spares { slots: 8, slot_bytes: 4096 },
            connections: 24,
            faults: SimFaults::default(),
            seed: 1,
            step: MS * 22,
            stops: Duration::ZERO,
            stop_after_iterations: None,
        }
    }

    fn config(&self) -> ShardConfig {
        let window = WindowConfig {
            connections_start: self.connections,
            connections_max: self.connections,
            depth_max: 4,
            ..WindowConfig::default()
        };
        let mut config = world::config(2 << 20, window);
        config.planner.retry.attempts_max = 100;
        config.planner.hedge.percent = self.percent;
        config.planner.seed = self.seed;
        config.connections_max += self.spares.slots;
        config.spares = self.spares;
        config
    }

    /// How many samples a batch has, all of which are right.
    fn right(&self, batch: &Assembled) -> u64 {
        for placed in batch.samples.iter() {
            let bytes = &batch.slot[placed.offset..placed.offset + placed.len];
            assert_eq!(bytes, content(placed.id, self.sizes[placed.id.0 as usize]), "{:?}", placed.id);
        }
        batch.samples.len() as u64
    }

    /// Until when the thread does not run now: see [`Shape::stops`].
    fn stop(&self, world: &SimWorld, requests: &Heard, stops: &mut usize) -> Instant {
        if self.stops.is_zero() || requests.borrow().len() / 2_000 == *stops {
            return Instant::ZERO;
        }
        *stops += 1;
        world.now().after(self.stops)
    }
}

/// What became of it.
struct Life {
    /// Time inside each `next_batch`.
    waits: Vec<Duration>,
    elapsed: Duration,
    snapshot: Snapshot,
    heard: u64,
    samples: u64,
}

impl Life {
    fn wait(&self, share: f64) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits[(waits.len() as f64 * share) as usize]
    }
}

/// Lives it to its end, or until it is stopped; checks every byte, and that all memory is returned.
fn live(shape: &Shape, takes: impl FnMut(u64) -> Option<Duration> + 'static) -> Life {
    let mut bucket = Bucket::new(&shape.sizes);
    bucket.takes = Box::new(takes);
    let requests = Heard::clone(&bucket.heard);
    let world = SimWorld::new(shape.seed, shape.faults, Box::new(bucket));
    let ring = SimRing::with_capacity(&world, 256, 64);
    let mut trainer = SimRing::with_capacity(&world, 4, 1);
    let run = run(shape.sizes.len() as u64, shape.batch_size, shape.epochs);
    let consumer = Arc::new(Consumer::default());
    let (deliver, lane) = channel(16);
    let mut outlet = Outlet::new(vec![lane], vec![ring.waker()], Arc::clone(&consumer), run.batches());
    let ends = ShardEnds {
        channels: channels(1, true).remove(0),
        deliver,
        consumer,
        status: Arc::new(ShardStatus::default()),
        spill: None,
        peers: None,
    };
    let memory = ArenaConfig {
        bytes: 4 << 20,
        regions: 1,
        huge_pages: HugePages::Off,
        slots_per_region: 1024,
        ..ArenaConfig::default()
    };
    let (arena, mut regions) = Arena::new(&memory).unwrap();
    let objects = objects(&shape.sizes, shape.block_bytes);
    let mut shard = Shard::new(ring, regions.remove(0), objects, &run, &shape.config(), ends).unwrap();

    let mut life =
        Life { waits: Vec::new(), elapsed: Duration::ZERO, snapshot: Snapshot::default(), heard: 0, samples: 0 };
    let (mut free_at, mut asked_at, mut iterations, mut stops) = (Instant::ZERO, None, 0u64, 0);
    while !outlet.is_finished() && shape.stop_after_iterations.is_none_or(|stop| iterations < stop) {
        assert!(shard.iterate());
        let now = shard.ring().now();
        if now >= free_at {
            let since = *asked_at.get_or_insert(now);
            if let Some(batch) = outlet.try_take() {
                outlet.set_waiting(false);
                life.samples += shape.right(&batch.result.unwrap());
                life.waits.push(now.since(since));
                (free_at, asked_at) = (now.after(shape.step), None);
            } else {
                outlet.set_waiting(true);
            }
        }
        if now < free_at {
            trainer.wait(Some(free_at)).unwrap();
        }
        let before = shard.ring().facts().counts.sleeps;
        let until = shape.stop(&world, &requests, &mut stops);
        // Every other time it is stopped in its sleep.
        if stops % 2 == 0 {
            stand_still(&world, &mut trainer, until);
        }
        shard.sleep().unwrap();
        stand_still(&world, &mut trainer, until);
        if shard.ring().facts().counts.sleeps > before {
            world.advance();
        }
        iterations += 1;
        assert!(iterations < 2_000_000, "stuck: {}", shard.snapshot().text);
    }
    life.elapsed = shard.ring().now().since(Instant::ZERO);
    life.snapshot = shard.snapshot();
    life.heard = requests.borrow().len() as u64;
    drop((shard, outlet));
    assert_eq!(arena.outstanding(), 0, "all memory is home");
    life
}

/// A bucket of 20 ms where so many of a thousand requests are 50 times slower, and so many are never answered.
fn tail(slow: u64, stuck: u64) -> impl FnMut(u64) -> Option<Duration> + 'static {
    let mut prng = Prng::new(5);
    move |_| match prng.below(1000) {
        n if n < stuck => None,
        n if n < stuck + slow => Some(MS * 1000),
        _ => Some(MS * 15 + Duration::from_micros(prng.below(10_000))),
    }
}

fn extra(life: &Life, shape: &Shape) -> u64 {
    life.heard - shape.sizes.len() as u64 * shape.epochs
}

#[test]
fn a_heavy_tail_with_and_without_hedging() {
    let (on, off) = (Shape::new(2), Shape::new(0));
    let calm = live(&on, tail(0, 0));
    let without = live(&off, tail(10, 1));
    let with = live(&on, tail(10, 1));
    let requests = on.sizes.len() as u64 * on.epochs;
    assert_eq!((calm.samples, without.samples, with.samples), (requests, requests, requests));
    assert!(extra(&with, &on) <= requests * 2 / 100, "{} extra requests of {requests}", extra(&with, &on));
    assert_eq!(extra(&calm, &on), calm.snapshot.planner.hedges);
    let planner = &with.snapshot.planner;
    assert!(planner.hedges_won > 60 && planner.hedges_won <= planner.hedges, "{planner:?}");
    assert!(with.elapsed <= calm.elapsed.mul_f64(1.05), "{:?} for {:?}", with.elapsed, calm.elapsed);
    assert!(without.elapsed > calm.elapsed.mul_f64(1.3), "the tail is felt: {:?}", without.elapsed);
    assert!(with.wait(0.999) * 10 < without.wait(0.999), "{:?} {:?}", with.wait(0.999), without.wait(0.999));
}

#[test]
fn without_spare_memory_slow_requests_are_given_up_and_sent_elsewhere() {
    let shape = Shape { spares: Spares::default(), ..Shape::new(2) };
    let life = live(&shape, tail(10, 1));
    let requests = shape.sizes.len() as u64 * shape.epochs;
    assert_eq!(life.samples, requests);
    assert!(extra(&life, &shape) <= requests * 2 / 100, "{} extra requests of {requests}", extra(&life, &shape));
    let Snapshot { planner, fetch, .. } = &life.snapshot;
    assert!(planner.hedges > 60 && planner.hedges_won == 0 && planner.retries < 5, "{planner:?}");
    assert!(fetch.connections_failed < 5, "a connection given up has not failed: {fetch:?}");
}

#[test]
fn a_bucket_that_is_slow_as_a_whole_is_not_asked_twice() {
    let shape = Shape::new(2);
    let life = live(&shape, |n| Some(if (n / 1_000).is_multiple_of(2) { MS * 20 } else { MS * 400 }));
    let requests = shape.sizes.len() as u64 * shape.epochs;
    assert_eq!(life.samples, requests);
    assert!(extra(&life, &shape) <= requests * 2 / 100, "{} extra requests of {requests}", extra(&life, &shape));
}

/// The thread is stopped by a signal or the scheduler ("stopped": responses arrive meanwhile), or the whole machine is paused ("moved": they
/// arrive after it).
#[test]
fn a_thread_that_is_stopped_sends_nothing_twice_and_gives_no_connection_up() {
    const STOPS: Duration = Duration::from_secs(12);
    let shape = Shape { stops: STOPS, ..Shape::new(2) };
    let stands_still = |n: u64| Some(if n % 2_000 < 1_998 { MS * 20 } else { STOPS + MS * 20 });
    for (what, life) in [("stopped", live(&shape, tail(0, 0))), ("moved", live(&shape, stands_still))] {
        let Snapshot { planner, fetch, .. } = &life.snapshot;
        assert_eq!(life.samples, shape.sizes.len() as u64 * shape.epochs);
        assert!(life.elapsed > STOPS * 5, "{what}: it was stopped six times: {:?}", life.elapsed);
        assert_eq!((extra(&life, &shape), planner.hedges, planner.retries), (0, 0, 0), "{what}");
        assert_eq!((fetch.connections, fetch.connections_failed), (24, 0), "{what}");
    }
}

/// Chance that an operation of the ring fails, comes late, or is short; a bucket with a tail; few or no spare slots; long and
/// short blocks; one connection and many; cut off at any iteration.
#[test]
fn whatever_breaks_every_byte_is_right_and_every_sample_comes_once() {
    let (mut won, mut hedges, mut stopped, mut failed) = (0, 0, 0, 0);
    for seed in 0..150 {
        let mut prng = Prng::new(seed);
        let trouble = [0.0, 0.002, 0.01][prng.below(3) as usize];
        let faults = SimFaults {
            short_receive: 0.2,
            fatal_errno: trouble,
            transient_errno: trouble * 3.0,
            reorder: 0.3,
            delay: 0.02,
            delay_max: MS * 3,
            ..SimFaults::default()
        };
        let shape = Shape {
            sizes: (0..300).map(|_| prng.below(9_000)).collect(),
            block_bytes: [4096, 1 << 20][prng.below(2) as usize],
            batch_size: 1 + prng.below(20) as u32,
            epochs: 3,
            percent: 20,
            spares: Spares { slots: prng.below(4) as usize, slot_bytes: 6_000 },
            connections: 1 + prng.below(12) as usize,
            faults,
            seed,
            step: MS * (prng.below(5) as u32),
            stops: Duration::ZERO,
            stop_after_iterations: prng.chance(0.3).then(|| 200 + prng.below(2_000)),
        };
        let (usual, slow) = ([MS / 5, MS * 4][prng.below(2) as usize], 0.05 * prng.unit());
        let mut draws = Prng::new(seed ^ 99);
        let life = live(&shape, move |_| match draws.unit() {
            x if x < slow / 10.0 => None,
            x if x < slow => Some(MS * 300),
            _ => Some(usual + Duration::from_micros(draws.below(1_000))),
        });
        let all = shape.sizes.len() as u64 * shape.epochs;
        assert!(life.samples == all || shape.stop_after_iterations.is_some(), "seed {seed}: {} of {all}", life.samples);
        let planner = &life.snapshot.planner;
        assert!(planner.hedges <= life.heard * 20 / 100, "seed {seed}: {planner:?}");
        won += planner.hedges_won;
        hedges += planner.hedges;
        failed += life.snapshot.fetch.connections_failed;
        stopped += u64::from(life.samples < all);
    }
    assert!(won > 500 && hedges > won + 100 && failed > 500 && stopped > 10, "{hedges} {won} {failed} {stopped}");
}

/// Two second requests of one fetch, each with what its window is carved from, and the fetch's first.
fn three_requests() -> (Hedges, Option<Box<Race>>, [Exchange; 3]) {
    let mut region = region(1 << 16);
    let asked = |second| Asked {
        fetch: fuelrail_plan::planner::FetchId { place: 0, serial: 0 },
        sample: fuelrail_base::SampleId(0),
        first: 0,
        len: 10,
        object_len: 10,
        whole: true,
        etag: None,
        second,
        rank: None,
    };
    let first = Exchange::new(asked(false), window(&mut region, 10), Instant::ZERO);
    let mut hedges = Hedges::new((0..2).map(|_| region.alloc(16).unwrap()).collect());
    let mut race = None;
    let seconds = [(); 2].map(|()| {
        let (spare, window) = hedges.begin(&mut race, Instant::ZERO, 10);
        Exchange { spare: Some(spare), ..Exchange::new(asked(true), window, Instant::ZERO) }
    });
    let [second, third] = seconds;
    (hedges, race, [first, second, third])
}

fn failed(exchange: Exchange) -> Outcome {
    Outcome::failed(exchange, Fault::new(fuelrail_base::Error::new(fuelrail_base::Kind::Network, "reset")))
}

fn landed(exchange: Exchange) -> Outcome {
    Outcome::landed(exchange, Proof::default(), Instant::ZERO)
}

#[test]
fn a_race_lasts_until_its_last_request_ends() {
    let now = Instant::ZERO;
    // Both seconds fail: the race is over, the first goes on alone.
    let (mut hedges, mut race, [first, second, third]) = three_requests();
    assert!(matches!(hedges.judge(&mut race, failed(second), now), Verdict::Halved { second: true, .. }));
    assert!(race.is_some(), "the third runs");
    assert!(matches!(hedges.judge(&mut race, failed(third), now), Verdict::Halved { second: true, .. }));
    assert!(race.is_none());
    assert!(matches!(hedges.judge(&mut race, failed(first), now), Verdict::Over(_)));
    // One second brings the block, the other fails before the first's window is returned.
    let (mut hedges, mut race, [first, mut second, third]) = three_requests();
    second.window_mut().put(b"0123456789");
    assert!(matches!(hedges.judge(&mut race, landed(second), now), Verdict::GiveUp));
    assert!(matches!(hedges.judge(&mut race, failed(third), now), Verdict::Halved { second: true, .. }));
    assert!(race.is_some(), "what landed is kept");
    match hedges.judge(&mut race, failed(first), now) {
        Verdict::Outrun { window, .. } => assert_eq!(window.bytes(), b"0123456789"),
        _ => panic!("the second was whole"),
    }
    assert!(race.is_none() && hedges.has_room(10));
}
