//! The tuner against synthetic worlds whose best settings are known, with the noise of real measurements.

use fuelrail_base::prng::Prng;
use fuelrail_plan::tune::{Axis, Limit, Measured, Point, Range, Search, Space, limit};

/// A machine and a bucket as arithmetic.
#[derive(Clone, Copy)]
struct World {
    cores: f64,
    cpu_s_per_byte: f64,
    cpu_s_per_request: f64,
    latency_s: f64,
    connection_bytes_per_s: f64,
    bucket_bytes_per_s: f64,
    /// Bytes ahead beyond which memory goes cold: costs half as much again per byte.
    cache_bytes: f64,
    /// What registered memory saves of the cost per byte.
    registered_saves: f64,
    object_bytes: f64,
}

const NEAR: World = World {
    cores: 8.0,
    cpu_s_per_byte: 0.2e-9,
    cpu_s_per_request: 10e-6,
    latency_s: 200e-6,
    connection_bytes_per_s: 5e9,
    bucket_bytes_per_s: 1e12,
    cache_bytes: (64u64 << 20) as f64,
    registered_saves: 0.1,
    object_bytes: 64e6,
};
/// Far away, slow connections: many are needed, cores idle.
const FAR: World = World { latency_s: 0.03, connection_bytes_per_s: 80e6, bucket_bytes_per_s: 3e9, ..NEAR };
/// A slow bucket: nothing helps but thrift.
const SLOW: World = World { bucket_bytes_per_s: 0.3e9, ..NEAR };
/// Small objects.
const SMALL: World = World { object_bytes: 100e3, latency_s: 2e-3, bucket_bytes_per_s: 50e9, ..NEAR };

fn space(world: &World) -> Space {
    let powers = |from: u32, to: u32| (from..=to).map(|n| 1u64 << n).collect::<Vec<_>>();
    let shards: Vec<u64> = powers(0, 3).into_iter().filter(|n| *n as f64 <= world.cores).collect();
    Space::new(vec![
        Range { axis: Axis::Shards, start: shards.len() - 1, values: shards },
        Range { axis: Axis::Connections, values: powers(0, 8), start: 5 },
        Range { axis: Axis::BlockBytes, values: powers(16, 24), start: 7 },
        Range { axis: Axis::MemoryBytes, values: powers(26, 30), start: 3 },
        Range { axis: Axis::Ring, values: vec![0, 1], start: 0 },
        Range { axis: Axis::Register, values: vec![0, 1], start: 0 },
    ])
    .unwrap()
}

impl World {
    fn truth(&self, space: &Space, point: &Point) -> Measured {
        let of = |axis| space.value(point, axis).unwrap() as f64;
        let (shards, connections, memory) = (of(Axis::Shards), of(Axis::Connections), of(Axis::MemoryBytes));
        let request_bytes = of(Axis::BlockBytes).min(self.object_bytes);
        let cold = if memory > self.cache_bytes { 1.3 } else { 1.0 };
        let ring = if of(Axis::Ring) == 1.0 { 1.15 } else { 1.0 };
        let saved = if of(Axis::Register) == 1.0 { 1.0 - self.registered_saves } else { 1.0 };
        let cpu_s_per_byte = self.cpu_s_per_byte * cold * ring * saved + self.cpu_s_per_request / request_bytes;
        // What looks ahead is bounded by memory.
        let in_flight = (shards * connections).min(memory / request_bytes).max(1.0);
        let answer_s = self.latency_s + request_bytes / self.connection_bytes_per_s;
        let offered = (in_flight * request_bytes / answer_s).min(self.bucket_bytes_per_s);
        let able = shards / cpu_s_per_byte;
        // Queues soften the corner between the two.
        let bytes_per_s = (offered.powi(-6) + able.powi(-6)).powf(-1.0 / 6.0);
        Measured {
            bytes_per_s,
            cpu_s_per_byte,
            busy: bytes_per_s * cpu_s_per_byte / shards,
            latency_s: answer_s,
            requests_in_flight: in_flight,
            throttled: 0,
        }
    }

    fn noisy(&self, space: &Space, point: &Point, noise: f64, prng: &mut Prng) -> Measured {
        let truth = self.truth(space, point);
        // Close to normal: twelve uniforms.
        let mut error = || noise * ((0..12).map(|_| prng.unit()).sum::<f64>() - 6.0);
        Measured {
            bytes_per_s: truth.bytes_per_s * error().exp(),
            cpu_s_per_byte: truth.cpu_s_per_byte * error().exp(),
            ..truth
        }
    }
}

/// Every point of a space.
fn all_points(space: &Space) -> Vec<Point> {
    let mut points = vec![space.start()];
    for range in space.ranges() {
        let len = range.values.len() as isize;
        let spread =
            |point: &Point| (-len..=len).filter_map(|by| space.step(point, range.axis, by)).collect::<Vec<_>>();
        points = points.iter().flat_map(spread).collect();
    }
    points
}

fn searched(world: &World, noise: f64, seed: u64, trials: u32) -> Search {
    let mut search = Search::new(space(world), seed, trials);
    let mut prng = Prng::new(!seed);
    for left in (1..=trials).rev() {
        let Some(point) = search.next(left) else { break };
        let measured = world.noisy(search.space(), &point, noise, &mut prng);
        search.tell(&point, measured);
    }
    search
}

#[test]
fn the_known_optimum_is_found_through_noise() {
    for (name, world) in [("near", NEAR), ("far", FAR), ("slow", SLOW), ("small", SMALL)] {
        let space = space(&world);
        let points = all_points(&space);
        assert_eq!(points.len() as u64, space.points());
        let optimum = points.iter().map(|p| world.truth(&space, p).score()).fold(f64::NEG_INFINITY, f64::max);
        for (noise, half_lose_max, tenth_lose_max) in [(0.0, 0.01, 0.10), (0.03, 0.02, 0.10), (0.10, 0.06, 0.30)] {
            let mut lost: Vec<f64> = (0..24u64)
                .map(|seed| {
                    let search = searched(&world, noise, seed, 80);
                    optimum - world.truth(&space, search.best()).score()
                })
                .collect();
            lost.sort_by(f64::total_cmp);
            let at = |share: f64| lost[(share * (lost.len() - 1) as f64) as usize];
            assert!(at(0.5) <= half_lose_max, "{name}, noise {noise}: half of the searches lose {:.3}", at(0.5));
            assert!(at(0.9) <= tenth_lose_max, "{name}, noise {noise}: one search in ten loses {:.3}", at(0.9));
        }
    }
}

#[test]
fn the_same_seed_asks_the_same_questions_and_never_more_than_it_may() {
    let asked = |seed| {
        let mut search = Search::new(space(&FAR), seed, 40);
        let mut prng = Prng::new(1);
        let mut points = Vec::new();
        for left in (1..=40).rev() {
            let Some(point) = search.next(left) else { break };
            let measured = FAR.noisy(search.space(), &point, 0.05, &mut prng);
            search.tell(&point, measured);
            points.push(point);
        }
        assert_eq!(search.next(0), None);
        points
    };
    assert_eq!(asked(3), asked(3));
    assert_ne!(asked(3), asked(4));
    assert!(asked(3).len() <= 40);
}

#[test]
fn what_is_refused_is_not_asked_for_again_and_never_wins() {
    let mut search = Search::new(space(&NEAR), 5, 80);
    let mut refused = Vec::new();
    for left in (1..=80).rev() {
        let Some(point) = search.next(left) else { break };
        assert!(!refused.contains(&point), "asked again for {point:?}");
        if search.space().value(&point, Axis::Register) == Some(1) {
            search.refuse(&point);
            refused.push(point);
        } else {
            let truth = NEAR.truth(search.space(), &point);
            search.tell(&point, truth);
        }
    }
    assert!(!refused.is_empty());
    assert_eq!(search.space().value(search.best(), Axis::Register), Some(0));
}

#[test]
fn the_forecast_holds_for_the_next_run() {
    let mut inside = 0;
    for seed in 0..100 {
        let search = searched(&NEAR, 0.05, seed, 60);
        let forecast = search.forecast().unwrap();
        let next = NEAR.noisy(search.space(), search.best(), 0.05, &mut Prng::new(1_000 + seed)).bytes_per_s;
        inside += u32::from((forecast.bytes_per_s_low..=forecast.bytes_per_s_high).contains(&next));
        assert!((forecast.bytes_per_s_low..=forecast.bytes_per_s_high).contains(&forecast.bytes_per_s));
    }
    assert!((85..=100).contains(&inside), "{inside} of 100 runs lie where nineteen of twenty should");
    assert_eq!(Search::new(space(&NEAR), 0, 10).forecast(), None);
}

#[test]
fn what_limits_is_named() {
    let limited = |world: &World, link: Option<f64>| limit(&searched(world, 0.01, 2, 80), link).unwrap();
    assert!(matches!(limited(&NEAR, None), Limit::Cpu { shards: 8, .. }), "{:?}", limited(&NEAR, None));
    assert!(matches!(limited(&SLOW, None), Limit::Bucket { .. }), "{:?}", limited(&SLOW, None));
    assert!(matches!(limited(&SLOW, Some(0.31e9)), Limit::Link { share } if share > 0.9));
    // Cores and bucket to spare, and an answer takes a second: no number of connections tried is enough.
    let distant = World { latency_s: 1.0, bucket_bytes_per_s: 1e12, object_bytes: 1e6, ..NEAR };
    let told = limited(&distant, None);
    assert!(matches!(told, Limit::Latency { .. } | Limit::Memory { .. }), "{told:?}");
    assert!(told.to_string().contains("raise"), "{told}");
    assert_eq!(limit(&Search::new(space(&NEAR), 0, 10), None), None);
}
