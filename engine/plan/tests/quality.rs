//! How well the orders shuffle, measured; and that the measure tells bad shuffles from good ones.

use fuelrail_base::prng::Prng;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::order::quality::{Quality, measure, windowed};
use fuelrail_plan::run::{Cursor, Run, RunConfig};

const SAMPLES: u32 = 20_000;
const EPOCHS: u64 = 10;

fn delivered(order: OrderName, seed: u64, world: u32, batch_size: u32) -> Vec<Vec<u32>> {
    let (samples, start) = (u64::from(SAMPLES), Cursor::default());
    let (shuffle, rank, drop_last, epochs) = (true, 0, false, EPOCHS);
    let config = RunConfig { samples, seed, order, shuffle, world, rank, batch_size, drop_last, epochs, start };
    let run = Run::new(config).unwrap();
    (0..epochs).map(|epoch| (0..samples).map(|at| run.sample_at(epoch, at).0 as u32).collect()).collect()
}

fn judged(epochs: &[Vec<u32>], world: u32, batch_size: u32) -> Quality {
    measure(epochs, world as usize, batch_size as usize)
}

/// What of `pool` samples one meets in batches of `batch_size`, against what it would of all samples.
fn mates_in_theory(pool: u32, batch_size: u32) -> f64 {
    let met = |others: f64| others * (1.0 - (1.0 - f64::from(batch_size - 1) / others).powi(EPOCHS as i32));
    met(f64::from(pool - 1)) / met(f64::from(SAMPLES - 1))
}

#[test]
fn both_orders_shuffle_as_chance_does() {
    for name in [OrderName::Global, OrderName::Sticky] {
        for (seed, world, batch_size) in [(1, 3, 64), (2, 3, 64), (3, 1, 64), (4, 8, 32), (5, 4, 25), (6, 2, 512)] {
            let is = judged(&delivered(name, seed, world, batch_size), world, batch_size);
            let at = format!("{name} seed {seed}: {is:?}");
            // The largest of nine; four and a half has a chance of one in sixteen thousand.
            assert!(is.serial_sigmas.abs() < 4.5, "{at}");
            assert!((is.neighbours - 1.0).abs() < 0.01, "{at}");
            assert!(is.step_sigmas.abs() < 4.0 && is.batch_sigmas.abs() < 4.0, "{at}");
            assert!((is.step_mates - 1.0).abs() < 0.005, "{at}");
            let (pool, kept) = match name {
                OrderName::Global => (SAMPLES, (1.0 / f64::from(world) - 0.01, 1.0 / f64::from(world) + 0.01)),
                _ => (SAMPLES / world, (0.97, 1.0)),
            };
            assert!((is.batch_mates - mates_in_theory(pool, batch_size)).abs() < 0.005, "{at}");
            assert!((kept.0..=kept.1).contains(&is.kept) || world == 1 && is.kept == 1.0, "{at}");
        }
    }
}

/// The canary: every number but the one of ranks must tell a shuffle through a window from a good one.
#[test]
fn a_windowed_shuffle_is_found_out() {
    for (window, neighbours, mates) in [(100, 0.05, 0.4), (1_000, 0.25, 0.9)] {
        let epochs: Vec<_> = (0..EPOCHS).map(|epoch| windowed(SAMPLES, window, 1, epoch)).collect();
        let is = judged(&epochs, 3, 64);
        assert!(is.serial_sigmas > 100.0 && is.neighbours < neighbours, "{is:?}");
        assert!(is.step_sigmas > 1_000.0 && is.batch_sigmas > 1_000.0 && is.step_mates < mates, "{is:?}");
    }
}

/// Batches that stay together and only change places, and classes dealt out too evenly: each of the numbers has its own.
#[test]
fn fixed_batches_and_even_classes_are_found_out() {
    let mut random = Prng::new(3);
    let mut shuffle = |mut of: Vec<u32>| {
        (1..of.len()).rev().for_each(|at| of.swap(at, random.below(at as u64 + 1) as usize));
        of
    };
    let batches = shuffle((0..19_968).collect());
    let together: Vec<Vec<u32>> = (0..EPOCHS)
        .map(|_| {
            shuffle((0..312).collect())
                .iter()
                .flat_map(|&at| shuffle(batches.chunks(64).nth(at as usize).unwrap().to_vec()))
                .collect()
        })
        .collect();
    let is = judged(&together, 1, 64);
    assert!(is.step_mates < 0.15 && is.step_sigmas.abs() < 4.0 && is.serial_sigmas.abs() < 20.0, "{is:?}");
    let even: Vec<Vec<u32>> = (0..EPOCHS)
        .map(|_| {
            let classes: Vec<_> =
                (0..10).map(|class| shuffle((class * 2_000..(class + 1) * 2_000).collect())).collect();
            (0..2_000).flat_map(|at| classes.iter().map(move |class| class[at])).collect()
        })
        .collect();
    let is = judged(&even, 1, 50);
    assert!(is.step_sigmas < -50.0 && is.serial_sigmas.abs() < 4.5 && (is.neighbours - 1.0).abs() < 0.02, "{is:?}");
}
