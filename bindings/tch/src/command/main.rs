//! `fuelrail-train`: trains a model from a bucket, alone or as one rank of many. `fuelrail train` runs this.
//!
//! Exit codes: 0 done, 1 failed on samples, network or another rank, 2 wrong usage, 3 refused by the environment, 4 stopped on a notice with a
//! checkpoint written: start it again to go on.

#![forbid(unsafe_code)]

mod arguments;
mod session;

use arguments::Arguments;
use clap::Parser;
use fuelrail_tch::End;
use std::process::ExitCode;

fn main() -> ExitCode {
    fuelrail::print_warnings();
    match session::train(&Arguments::parse()) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Stopped(_)) => ExitCode::from(4),
        Err(error) => {
            eprintln!("error: {error:?}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}
