//! A training command around a model of one's own: arguments, data, ranks, checkpoints, resuming, metrics, exit codes.

mod arguments;
mod forecast;
mod session;

use crate::ffi::{caught, exception_in};
use crate::task::Task;
use crate::trainer::End;
use arguments::Arguments;
pub use arguments::Facts;
use clap::{Args, FromArgMatches, Parser};
use fuelrail::Result;
use std::ffi::OsString;
use std::process::ExitCode;
use tch::nn::VarStore;

/// No options beside those of every training.
#[derive(Args, Clone, Copy, Debug)]
pub struct NoOptions {}

/// Trains the task that `make` makes, as `args` say: those of `std::env::args_os()`, with the options of `fuelrail-train --help` but for the
/// model's. The model's variables are made in the `VarStore`, which lies on the CPU until `make` returns and
/// on [`Facts::device`] afterwards. Prints, writes checkpoints and resumes as that does.
///
/// The exit code is 0 when done, 1 when samples, network or model failed, 2 for wrong usage, 3 where the environment refuses or another rank is lost, 4 when
/// stopped on a notice: with `--checkpoint` start it again to go on, without it nothing is saved.
pub fn run(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    make: impl FnOnce(&VarStore, &Facts<'_>) -> Result<Box<dyn Task>>,
) -> ExitCode {
    run_with::<NoOptions>(args, |variables, facts, _| make(variables, facts))
}

/// The same, with options of one's own: `#[derive(clap::Args)]`.
pub fn run_with<M: Args>(
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    make: impl FnOnce(&VarStore, &Facts<'_>, &M) -> Result<Box<dyn Task>>,
) -> ExitCode {
    fuelrail::print_warnings();
    // What torch says becomes an error: the panic that carries it is not printed.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if exception_in(panic.payload()).is_none() {
            print(panic);
        }
    }));
    let arguments = Options::<M>::parse_from(args);
    let made = |variables: &VarStore, facts: &Facts<'_>| make(variables, facts, &arguments.own);
    match caught(|| arguments.all.check().and_then(|()| session::train(&arguments.all, made))) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Stopped(_)) => ExitCode::from(4),
        Err(error) => {
            eprintln!("error: {error:?}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

/// Those of every training, and those of a program.
#[derive(Parser)]
#[command(version)]
struct Options<M: Args + FromArgMatches> {
    #[command(flatten)]
    all: Arguments,
    #[command(flatten)]
    own: M,
}
