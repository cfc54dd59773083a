//! Seeds of the swarms: the same ones every time, and as many fresh ones beside them as a test asks for.
//!
//! `FUELRAIL_SEED=N` plays the fresh ones from N on, and no others; `FUELRAIL_PROVE=1` plays ten times as many of both, with
//! `FUELRAIL_SEED`, too.

use core::ops::Range;
use std::hash::{BuildHasher as _, RandomState};

/// The seeds of a test. Which fresh ones there are is printed, so that they can be played again.
#[expect(clippy::print_stdout, reason = "the test harness shows it where a test fails")]
pub(crate) fn seeds(test: &str, fixed: Range<u64>, fresh: u64) -> Vec<u64> {
    let times = if proves() { 10 } else { 1 };
    let given = std::env::var("FUELRAIL_SEED").ok().map(|seed| seed.parse().expect("FUELRAIL_SEED is a number"));
    let first = given.unwrap_or_else(|| RandomState::new().hash_one(test) >> 24);
    println!("{test}: fresh seeds; again with FUELRAIL_SEED={first}");
    let fixed = if given.is_some() && !proves() { 0..0 } else { fixed };
    let fixed = fixed.start..fixed.start + (fixed.end - fixed.start) * times;
    fixed.chain(first..first + fresh * times).collect()
}

/// Whether this is a run that proves more than every submission needs.
pub(crate) fn proves() -> bool {
    std::env::var_os("FUELRAIL_PROVE").is_some_and(|value| value == "1")
}
