//! Runs the target that `FUELRAIL_FUZZ` names: one program to compile and link instead of one a target.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FUELRAIL_FUZZ").unwrap_or_default();
    let mut targets = fuelrail::fuzz::targets().chain(fuelrail_format::fuzz::TARGETS);
    let found = targets.find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("FUELRAIL_FUZZ is '{name}', which is no target")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));
