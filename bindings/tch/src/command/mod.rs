//! The command: from arguments to a trained model.

mod arguments;
mod model;
mod screen;
mod session;

pub(crate) use arguments::Arguments;

use fuelrail_tch::End;
use std::process::ExitCode;

/// Trains, and says how it ended.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match session::train(arguments) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Stopped(_)) => ExitCode::from(4),
        Err(error) => {
            eprintln!("fuelrail-train: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}
