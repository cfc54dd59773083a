//! How well the orders shuffle, measured; and that the measure tells a bad shuffle from a good one.

use fuelrail_plan::order::OrderName;
use fuelrail_plan::order::quality::{Delivered, Quality, measure, windowed};
use fuelrail_plan::run::{Cursor, Run, RunConfig};

const SAMPLES: u32 = 20_000;
const EPOCHS: u64 = 10;

fn delivered(order: OrderName, seed: u64, world: u32, batch_size: u32) -> Vec<Vec<u32>> {
    let start = Cursor::default();
    let samples = u64::from(SAMPLES);
    let (shuffle, rank, drop_last, epochs) = (true, 0, false, EPOCHS);
    let config = RunConfig { samples, seed, order, shuffle, world, rank, batch_size, drop_last, epochs, start };
    let run = Run::new(config).unwrap();
    (0..epochs).map(|epoch| (0..samples).map(|at| run.sample_at(epoch, at).0).collect()).collect()
}

fn judged(epochs: &[Vec<u32>], world: usize, batch_size: usize) -> Quality {
    measure(&Delivered { epochs, world, batch_size })
}

#[test]
fn both_orders_shuffle_as_chance_does() {
    for name in OrderName::ALL {
        for (seed, world, batch_size) in [(1, 3, 64), (2, 3, 64), (3, 1, 64), (4, 8, 32), (5, 4, 25)] {
            let quality = judged(&delivered(name, seed, world, batch_size), world as usize, batch_size as usize);
            println!("{name} seed {seed} {world} x {batch_size}: {quality:?}");
        }
    }
    for window in [100, 1_000] {
        let epochs: Vec<_> = (0..EPOCHS).map(|epoch| windowed(SAMPLES, window, 1, epoch)).collect();
        println!("window {window}: {:?}", judged(&epochs, 3, 64));
    }
}
