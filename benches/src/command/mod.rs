//! The lab's command line, `cargo x bench`: one benchmark per file, each a function from its arguments to an exit code.

mod compare;
mod contestant;
mod cores;
mod findings;
mod importance;
mod line;
mod report;
mod soak;
mod switch;
mod tail;
mod throttle;
mod tiers;
mod venue;

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
    Line(Box<line::LineArgs>),
    Compare(compare::Compare),
    Report(report::Report),
    Cores(Box<cores::Cores>),
    Soak(soak::SoakArgs),
    Switch(Box<switch::SwitchArgs>),
    Importance(Box<importance::ImportanceArgs>),
    Tiers(tiers::TiersArgs),
    Tail(tail::TailArgs),
    Throttle(throttle::ThrottleArgs),
    #[command(hide = true)]
    ThrottleReader(throttle::ThrottleReaderArgs),
    #[command(hide = true)]
    SoakBucket(soak::SoakBucketArgs),
    #[command(hide = true)]
    Contestant(contestant::Contestant),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    fuelrail_cli::run_command_line(|cli: Cli| run(cli.benchmark))
}

fn run(benchmark: Benchmark) -> Outcome {
    match benchmark {
        Benchmark::Line(args) => line::run(&args),
        Benchmark::Compare(args) => compare::run(&args),
        Benchmark::Report(args) => report::run(&args),
        Benchmark::Cores(args) => cores::run(&args),
        Benchmark::Soak(args) => soak::run(&args),
        Benchmark::Switch(args) => switch::run(&args),
        Benchmark::Importance(args) => importance::run(&args),
        Benchmark::Tiers(args) => tiers::run(&args),
        Benchmark::Tail(args) => tail::run(&args),
        Benchmark::Throttle(args) => throttle::run(&args),
        Benchmark::ThrottleReader(args) => throttle::run_reader(&args),
        Benchmark::SoakBucket(args) => soak::run_bucket(&args),
        Benchmark::Contestant(args) => contestant::run(&args),
    }
}
