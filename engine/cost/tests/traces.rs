//! Eight families of availability traces with their seeds, written before the policy that is tried on them. A tick is 10 minutes and a
//! trace four weeks long.

use fuelrail_base::prng::Prng;

/// Seconds a tick.
pub(crate) const GAP_SECONDS: f64 = 600.0;
const TICKS: usize = 4 * 7 * 24 * 6;
const TICKS_PER_HOUR: f64 = 6.0;

/// A name, a seed, and a generator of machines to be had at each tick.
type Family = (&'static str, u64, fn(&mut Prng) -> Vec<u32>);

pub(crate) const FAMILIES: [Family; 8] = [
    // Up for 4 hours and down for 2 in the mean.
    ("memoryless", 101, |prng| alternate(prng, |prng, up| exponential(prng, if up { 4.0 } else { 2.0 }))),
    ("long outages", 102, |prng| alternate(prng, |prng, up| exponential(prng, if up { 20.0 } else { 12.0 }))),
    ("diurnal", 103, diurnal),
    ("bursty", 104, bursty),
    ("rare", 105, |prng| alternate(prng, |prng, up| exponential(prng, if up { 1.5 } else { 8.0 }))),
    ("plentiful", 106, |prng| alternate(prng, |prng, up| exponential(prng, if up { 30.0 } else { 1.0 }))),
    ("drifting", 107, drifting),
    // Pareto with exponent 1.3, in the mean 3.25 hours up and 2.2 down.
    ("heavy-tailed", 108, |prng| {
        alternate(prng, |prng, up| (if up { 0.75 } else { 0.5 }) * (1.0 - prng.unit()).powf(-1.0 / 1.3))
    }),
];

/// The trace of a family.
pub(crate) fn trace(family: usize) -> Vec<u32> {
    let (_, seed, generate) = FAMILIES[family];
    generate(&mut Prng::new(seed))
}

fn exponential(prng: &mut Prng, mean: f64) -> f64 {
    -mean * (1.0 - prng.unit()).ln()
}

/// Spells of hours, up and down in turn.
fn alternate(prng: &mut Prng, mut hours: impl FnMut(&mut Prng, bool) -> f64) -> Vec<u32> {
    let (mut ticks, mut up) = (Vec::new(), prng.chance(0.5));
    while ticks.len() < TICKS {
        let spell = (hours(prng, up) * TICKS_PER_HOUR).round().clamp(1.0, TICKS as f64) as usize;
        ticks.extend(std::iter::repeat_n(u32::from(up), spell));
        up = !up;
    }
    ticks.truncate(TICKS);
    ticks
}

/// A chain that changes state with these probabilities a tick: to be lost, and to be found.
fn chain(prng: &mut Prng, mut probabilities: impl FnMut(&mut Prng, usize) -> (f64, f64)) -> Vec<u32> {
    let mut up = true;
    (0..TICKS)
        .map(|tick| {
            let (lost, found) = probabilities(prng, tick);
            up = if up { !prng.chance(lost) } else { prng.chance(found) };
            u32::from(up)
        })
        .collect()
}

/// Scarce by day, plentiful by night.
fn diurnal(prng: &mut Prng) -> Vec<u32> {
    chain(prng, |_, tick| {
        let day = (tick as f64 / TICKS_PER_HOUR / 24.0 * std::f64::consts::TAU).sin();
        (0.06 * (1.0 + 0.95 * day), 0.06 * (1.0 - 0.95 * day))
    })
}

/// Calm spells, and storms in which machines come and go every half hour.
fn bursty(prng: &mut Prng) -> Vec<u32> {
    let mut storm = false;
    chain(prng, |prng, _| {
        storm = if storm { !prng.chance(1.0 / 36.0) } else { prng.chance(1.0 / 60.0) };
        if storm { (0.4, 0.25) } else { (0.01, 0.3) }
    })
}

/// From plentiful to scarce over the four weeks.
fn drifting(prng: &mut Prng) -> Vec<u32> {
    chain(prng, |_, tick| {
        let share = tick as f64 / TICKS as f64;
        (0.01 + 0.07 * share, 0.12 - 0.1 * share)
    })
}

#[test]
fn the_families_differ_in_how_much_there_is() {
    let shares: Vec<f64> =
        (0..FAMILIES.len()).map(|family| trace(family).iter().sum::<u32>() as f64 / TICKS as f64).collect();
    let [.., rare, plentiful, _, _] = shares[..] else { panic!("eight families") };
    assert!(rare < 0.3 && plentiful > 0.9 && shares.iter().all(|share| (0.1..1.0).contains(share)), "{shares:?}");
}
