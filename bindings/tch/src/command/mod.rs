//! The command: from arguments to a trained model.

mod arguments;
mod model;
mod screen;
mod session;

pub(crate) use arguments::Arguments;

use fuelrail_base::Kind;
use fuelrail_tch::End;
use std::process::ExitCode;

/// Trains, and says how it ended.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match session::train(arguments) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Stopped(_)) => ExitCode::from(4),
        Err(error) => {
            eprintln!("fuelrail-train: {error}");
            ExitCode::from(match error.kind() {
                Kind::Usage | Kind::Budget => 2,
                Kind::Environment => 3,
                _ => 1,
            })
        }
    }
}
