//! Seeds of the swarms: the same ones every time, so that what a change is judged by is the change. Fresh ones are played on demand.
//!
//! `FUELRAIL_SEED=N` plays fresh ones from N on, and no others; with `FUELRAIL_PROVE=1` (`cargo x prove worlds`) ten times as many of
//! both.

use core::ops::Range;

/// The seeds of a test: the `fixed` ones, or as many as `fresh` from the one that is asked for.
pub(crate) fn seeds(fixed: Range<u64>, fresh: u64) -> Vec<u64> {
    let given = std::env::var("FUELRAIL_SEED").ok().map(|seed| seed.parse().expect("FUELRAIL_SEED is a number"));
    let times = if proves() { 10 } else { 1 };
    let fresh = given.map_or(0..0, |first: u64| first..first + fresh * times);
    let fixed =
        if given.is_some() && !proves() { 0..0 } else { fixed.start..fixed.start + (fixed.end - fixed.start) * times };
    fixed.chain(fresh).collect()
}

/// Whether this is a run that proves more than every submission needs.
pub(crate) fn proves() -> bool {
    std::env::var_os("FUELRAIL_PROVE").is_some_and(|value| value == "1")
}
