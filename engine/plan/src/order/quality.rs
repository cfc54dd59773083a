//! How well an order shuffles, in numbers: what one epoch says about the next, and what a batch is made of.
//!
//! Works on epochs written out, as the trainer sees them, so that any loader's order can be judged; a windowed shuffle is
//! here as the bad one that must be told from a good one. Owns nothing, and never decides what is good enough.

use fuelrail_base::prng::{Prng, mix64};
use std::collections::BTreeSet;

/// Classes that the listing is cut into to see what batches are made of: a listing sorted by class is where a weak
/// shuffle does the most harm.
const CLASSES: usize = 10;
/// Samples whose batch-mates are counted.
const PROBES: u64 = 200;

/// What was measured. Every number but the shares is near zero, or near one where that is said, when nothing but
/// chance is at work.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Quality {
    /// Correlation between a sample's positions in one epoch and in the next, in standard deviations of chance; of all
    /// pairs of epochs the one farthest from zero. Ten thousand samples kept in order make a hundred.
    pub serial_sigmas: f64,
    /// Distance in the next epoch of two that are neighbours in this one, as a share of what chance gives: about 1.
    pub neighbours: f64,
    /// Chi-square of classes over global steps, in standard deviations from its expectation when steps are drawn without
    /// replacement: above zero steps are less even than that, below more.
    pub step_sigmas: f64,
    /// The same over the batches of ranks.
    pub batch_sigmas: f64,
    /// Different samples that a sample meets in its global step over all epochs, as a share of what chance gives.
    pub step_mates: f64,
    /// The same in the batch of its rank. The sticky order cannot reach 1: a rank's samples are its own.
    pub batch_mates: f64,
    /// Share of samples that the same rank has again in the next epoch: one in `world` by chance.
    pub kept: f64,
}

/// Measures at least two epochs of the same samples, as delivered: in each, sample ids by position. Positions are cut into steps of
/// `world * batch_size`, and those into the batches of ranks.
///
/// # Panics
/// When there are fewer than two epochs, they are not permutations of one length, or no step is full.
pub fn measure(epochs: &[Vec<u32>], world: usize, batch_size: usize) -> Quality {
    assert!(epochs.len() >= 2 && epochs[0].len() >= world * batch_size, "two epochs of a full step at least");
    let places: Vec<Vec<u32>> = epochs.iter().map(|epoch| inverse(epoch)).collect();
    let pairs = || places.windows(2).map(|pair| (&pair[0], &pair[1]));
    let serial = pairs().map(|(now, next)| serial_sigmas(now, next));
    let neighbours: f64 = epochs.iter().zip(&places[1..]).map(|(now, next)| neighbours(now, next)).sum();
    let kept: f64 = pairs().map(|(now, next)| kept(now, next, world, batch_size)).sum();
    let count = (epochs.len() - 1) as f64;
    let sigmas =
        |size| epochs.iter().map(|epoch| composition_sigmas(epoch, size)).sum::<f64>() / (epochs.len() as f64).sqrt();
    Quality {
        serial_sigmas: serial.fold(0.0, |most: f64, sigmas| if sigmas.abs() > most.abs() { sigmas } else { most }),
        neighbours: neighbours / count,
        step_sigmas: sigmas(world * batch_size),
        batch_sigmas: sigmas(batch_size),
        step_mates: mates(epochs, &places, world * batch_size),
        batch_mates: mates(epochs, &places, batch_size),
        kept: kept / count,
    }
}

/// One epoch of a shuffle through a window: a buffer of so many samples is filled from the listing, and a random one of them
/// is delivered and replaced. Common where data is streamed, and weak.
pub fn windowed(samples: u32, window: usize, seed: u64, epoch: u64) -> Vec<u32> {
    let mut random = Prng::new(mix64(seed).wrapping_add(epoch));
    let mut listing = 0..samples;
    let mut held: Vec<u32> = listing.by_ref().take(window).collect();
    let mut out = Vec::with_capacity(samples as usize);
    while !held.is_empty() {
        let at = random.below(held.len() as u64) as usize;
        out.push(match listing.next() {
            Some(next) => core::mem::replace(&mut held[at], next),
            None => held.swap_remove(at),
        });
    }
    out
}

/// Position by sample.
fn inverse(epoch: &[u32]) -> Vec<u32> {
    let mut places = vec![u32::MAX; epoch.len()];
    for (position, sample) in epoch.iter().enumerate() {
        places[*sample as usize] = position as u32;
    }
    assert!(!places.contains(&u32::MAX), "an epoch has every sample once");
    places
}

/// Pearson's correlation times the root of the number of samples: its standard deviation by chance is one.
fn serial_sigmas(now: &[u32], next: &[u32]) -> f64 {
    let count = now.len() as f64;
    let mean = (count - 1.0) / 2.0;
    let covariance: f64 = now.iter().zip(next).map(|(&a, &b)| (f64::from(a) - mean) * (f64::from(b) - mean)).sum();
    covariance / ((count * count - 1.0) / 12.0) / count.sqrt()
}

/// Two random places are a third of the length apart on average.
fn neighbours(now: &[u32], next: &[u32]) -> f64 {
    let apart = |pair: &[u32]| f64::from(next[pair[0] as usize].abs_diff(next[pair[1] as usize]));
    let sum: f64 = now.windows(2).map(apart).sum();
    sum / (now.len() - 1) as f64 / ((now.len() + 1) as f64 / 3.0)
}

/// Pearson's chi-square of the table of full groups by class. Drawn without replacement, its margins are fixed: it has
/// `(groups - 1) * (classes - 1)` degrees of freedom, and N / (N - 1) of that as its mean.
fn composition_sigmas(epoch: &[u32], size: usize) -> f64 {
    let total = epoch.len();
    let class = |sample: u32| sample as usize * CLASSES / total;
    let mut chi = 0.0;
    let groups = epoch.chunks_exact(size);
    // What does not fill a group is one cell more of the table.
    for group in groups.clone().chain([groups.remainder()]).filter(|group| !group.is_empty()) {
        let mut counts = [0usize; CLASSES];
        group.iter().for_each(|sample| counts[class(*sample)] += 1);
        for (at, count) in counts.iter().enumerate() {
            let members = ((at + 1) * total).div_ceil(CLASSES) - (at * total).div_ceil(CLASSES);
            let expected = (group.len() * members) as f64 / total as f64;
            chi += (*count as f64 - expected).powi(2) / expected;
        }
    }
    let freedom = ((total.div_ceil(size) - 1) * (CLASSES - 1)) as f64;
    (chi - freedom * total as f64 / (total - 1) as f64) / (2.0 * freedom).sqrt()
}

/// Different samples met over all epochs, against `(N - 1) (1 - (1 - (g - 1) / (N - 1))^epochs)` for groups of `g`.
fn mates(epochs: &[Vec<u32>], places: &[Vec<u32>], size: usize) -> f64 {
    let total = epochs[0].len() as u64;
    let probes = (0..PROBES).map(|probe| (mix64(probe) % total) as usize);
    let met = |sample: usize| {
        let mut met: BTreeSet<u32> = BTreeSet::new();
        for (epoch, places) in epochs.iter().zip(places) {
            let start = places[sample] as usize / size * size;
            met.extend(&epoch[start..epoch.len().min(start + size)]);
        }
        (met.len() - 1) as f64
    };
    let mean = probes.map(met).sum::<f64>() / PROBES as f64;
    let others = (total - 1) as f64;
    // The last group may be short: what a sample meets once, on average.
    let (full, rest) = ((total as usize / size) as f64, (total as usize % size) as f64);
    let once = (full * (size * (size - 1)) as f64 + rest * (rest - 1.0)) / total as f64;
    mean / (others * (1.0 - (1.0 - once / others).powi(epochs.len() as i32)))
}

/// Share of samples that one rank has twice running.
fn kept(now: &[u32], next: &[u32], world: usize, batch_size: usize) -> f64 {
    let total = now.len();
    let rank = |position: u32| {
        let step = position as usize / (world * batch_size) * (world * batch_size);
        let global = (total - step).min(world * batch_size);
        let (share, longer, at) = (global / world, global % world, position as usize - step);
        let long_ones = longer * (share + 1);
        if at < long_ones { at / (share + 1) } else { longer + (at - long_ones) / share }
    };
    let same = now.iter().zip(next).filter(|&(&a, &b)| rank(a) == rank(b)).count();
    same as f64 / total as f64
}
