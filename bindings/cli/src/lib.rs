//! The `fuelrail` command: one subcommand per file, each a function from its arguments to an exit code.
//!
//! Owns the argument parser, the one-line form of every error, and the exit codes: 0 done, 1 failed on data or network, 2
//! wrong usage or configuration, 3 refused by the environment, 130 interrupted (143 by SIGTERM). Exits by returning from `main`, but at a
//! second signal.
#![forbid(unsafe_code)]

pub mod bench;
mod cache;
mod cp;
pub mod deli;
mod demo;
mod doctor;
pub mod failure;
mod get;
mod inspect;
mod ls;
pub mod machine;
mod pack;
pub mod plan;
mod put;
mod records;
pub mod report;
pub mod screen;
mod serve;
mod settings;
mod share;
pub mod signals;
pub mod train;
mod tune;
pub mod tuning;
pub mod whole;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::{Shell, generate};

use self::failure::{Failure, Outcome};
use self::screen::{complain, print};
use self::signals::interruptible;

const EXAMPLES: &str = "Examples:
  fuelrail demo
  fuelrail serve digits --port 9000 &
  fuelrail ls http://127.0.0.1:9000/bucket/training/ | head
  fuelrail cp http://127.0.0.1:9000/bucket/training/ ./training/
  fuelrail bench read http://127.0.0.1:9000/bucket/training/ --batch-size 512 --epochs 2
  fuelrail pack ./photos/ s3://bucket/shards/ --format webdataset
  fuelrail train --demo
  fuelrail tune http://127.0.0.1:9000/bucket/training/
  fuelrail doctor

Every command takes --help, and all that report something take --json. Exit codes: 0 done, 1 failed on data or network, 2 \
wrong usage or configuration, 3 refused by the environment, 130 interrupted.";

const COMPLETIONS: &str = "Examples:
  fuelrail completions bash > ~/.local/share/bash-completion/completions/fuelrail
  fuelrail completions zsh > ~/.zfunc/_fuelrail
  fuelrail completions fish > ~/.config/fish/completions/fuelrail.fish";

/// Keeps GPUs fed from cloud buckets: streams objects into batches, measures it, and serves buckets to test against
#[derive(Parser, Debug)]
#[command(name = "fuelrail", version, after_help = EXAMPLES, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::Demo),
    Serve(serve::Serve),
    Ls(ls::Ls),
    Cp(cp::Cp),
    Cat(get::Cat),
    Get(get::Get),
    Put(put::Put),
    Pack(pack::Pack),
    Records(records::Records),
    Bench(bench::Bench),
    Share(Box<share::Share>),
    Cache(cache::Cache),
    Train(train::Train),
    Tune(tune::Tune),
    Plan(plan::Plan),
    Doctor(doctor::Doctor),
    Inspect(inspect::Inspect),
    /// Print the completion script of a shell
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    run_command_line(|cli: Cli| run(cli.command))
}

/// Parses the command line of this process, runs it, prints an error with its hint, and gives the exit code.
pub fn run_command_line<C: Parser>(run: impl FnOnce(C) -> Outcome) -> ExitCode {
    fuelrail::internal::give_back_freed();
    fuelrail::print_warnings();
    let outcome = match C::try_parse() {
        Ok(cli) => run(cli),
        Err(error) => parsed_badly(&error),
    };
    match outcome {
        Ok(code) => code,
        Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(Failure::Error(error)) => {
            complain(&error);
            ExitCode::from(signals::exit_code(&error))
        }
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Cp(args) => interruptible(move |stop| cp::run(&args, stop)),
        Command::Cat(args) => get::run_cat(&args),
        Command::Get(args) => get::run(args),
        Command::Put(args) => interruptible(move |stop| put::run(&args, stop)),
        Command::Pack(args) => interruptible(move |stop| pack::run(&args, stop)),
        Command::Records(args) => records::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Share(args) => share::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            generate(shell, &mut Cli::command(), "fuelrail", &mut script);
            print(&String::from_utf8_lossy(&script))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Help and version are output; all else is a wrong command line, reported in one line.
fn parsed_badly(error: &clap::Error) -> Outcome {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print(&error.render().to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Err(failure::usage("no command is given", "see --help")),
        _ => Err(failure::usage(one_line(&error.render().to_string()), "see --help")),
    }
}

/// The parser's message without its `error:`, its usage lines, its line breaks, and the advice that a misspelt option could
/// be a value.
fn one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let told =
        lines.filter(|line| !line.is_empty() && !line.starts_with("For more") && !line.starts_with("tip: to pass"));
    let line = told.collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).replace(" tip: ", "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_is_sound_and_every_command_has_examples() {
        use clap::CommandFactory;
        let mut cli = Cli::command();
        cli.build();
        cli.clone().debug_assert();
        let mut open = vec![cli];
        while let Some(command) = open.pop() {
            if command.get_name() != "help" {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.starts_with("Examples:\n  fuelrail "), "{}", command.get_name());
                // A paragraph is one line: it is broken where the screen ends, and nowhere else.
                let prose: Vec<bool> = help.lines().map(|line| !line.is_empty() && !line.starts_with(' ')).collect();
                assert!(!prose.windows(2).any(|lines| lines == [true, true]), "{}", command.get_name());
                open.extend(command.get_subcommands().cloned());
            }
        }
    }
}
