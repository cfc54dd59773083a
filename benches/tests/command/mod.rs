//! The lab's command end to end: the real program, against an embedded bucket on loopback.
mod benchmarks;
#[path = "../../../bindings/cli/tests/cli/program.rs"]
mod program;
mod rings;
mod rivals;
mod scenario;
mod soak;
mod training;

use program::{Ended, fuelrail, utf8};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fuelrail-bench");
