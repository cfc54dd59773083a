//! `fuelrail completions`: what a shell needs to complete commands and options.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::failure::Outcome;
use crate::screen::print;

const EXAMPLES: &str = "Examples:
  fuelrail completions bash > ~/.local/share/bash-completion/completions/fuelrail
  fuelrail completions zsh > ~/.zfunc/_fuelrail
  fuelrail completions fish > ~/.config/fish/completions/fuelrail.fish";

/// Print the completion script of a shell
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Completions, command: &mut Command) -> Outcome {
    let mut script = Vec::new();
    generate(args.shell, command, "fuelrail", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
