//! `cargo x bench canned`: the server of canned answers in a process of its own. Hidden: other questions start it.

use std::io::Read;
use std::process::ExitCode;

use crate::canned::Canned;
use clap::Args;

use fuelrail_cli::failure::Outcome;
use fuelrail_cli::screen::print;

const EXAMPLES: &str = "Examples:
  cargo x bench canned --object-bytes 112640

It prints its address and serves until its input ends: a process that started it need not end it.";

/// Serve canned answers (started by other questions)
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CannedArgs {
    /// Length of every object
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    object_bytes: u64,
}

pub(crate) fn run(args: &CannedArgs) -> Outcome {
    let server = Canned::start(args.object_bytes)?;
    print(&format!("{}\n", server.address()))?;
    // Whatever is said is not for us: only the end matters, and an error is one, too.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(ExitCode::SUCCESS)
}
