//! The lab's command line, `cargo x bench`: one benchmark per file, each a function from its arguments to an exit code.

mod contestant;
mod cores;
mod line;
mod results;
mod scenario;
mod soak;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fuelrail_cli::failure::Outcome;

/// Measures the loader beside floors and rivals, and in scenarios
#[derive(Parser, Debug)]
#[command(name = "fuelrail-bench", bin_name = "cargo x bench", version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand, Debug)]
enum Benchmark {
    Line(Box<crate::line::LineArgs>),
    Compare(results::Compare),
    Report(results::Report),
    Cores(Box<crate::cores::Coring>),
    Soak(Box<crate::soak::Soaking>),
    Scenario(scenario::ScenarioArgs),
    #[command(hide = true)]
    ScenarioReader(scenario::ReaderArgs),
    #[command(hide = true)]
    SoakBucket(soak::SoakBucketArgs),
    #[command(hide = true)]
    Contestant(contestant::Contestant),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    fuelrail_cli::run_command_line(|cli: Cli| run(cli.benchmark))
}

fn run(benchmark: Benchmark) -> Outcome {
    match benchmark {
        Benchmark::Line(args) => line::run(&args),
        Benchmark::Compare(args) => results::compare_results(&args),
        Benchmark::Report(args) => results::draw(&args),
        Benchmark::Cores(args) => cores::run(&args),
        Benchmark::Soak(args) => soak::run(*args),
        Benchmark::Scenario(args) => scenario::run(&args),
        Benchmark::ScenarioReader(args) => scenario::run_reader(&args),
        Benchmark::SoakBucket(args) => soak::run_bucket(&args),
        Benchmark::Contestant(args) => contestant::run(&args),
    }
}
