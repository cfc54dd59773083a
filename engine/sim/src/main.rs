//! `fuelrail-sim`: plays one seed or a swarm of them. Called through `cargo x sim`.
#![forbid(unsafe_code)]

mod compare;

use clap::{Parser, Subcommand};
use fuelrail_sim::{Canary, Scenario, SimReport, run, run_with_canary};
use std::io::Write as _;
use std::process::ExitCode;

/// Plays Fuelrail in virtual time and checks every batch.
///
/// Exit codes: 0 every check passed (with --canary: the canary was caught), 1 a check failed (with --canary: it was
/// missed), 2 wrong usage.
#[derive(Parser)]
#[command(name = "fuelrail-sim", version, args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  cargo x sim -- --seed 42\n  cargo x sim -- --seeds 200 --from 1000\n  \
                        cargo x sim -- --seed 1 --canary lost-completion\n  \
                        cargo x sim -- orders --world 3")]
struct Arguments {
    #[command(subcommand)]
    question: Option<Question>,
    /// Play this seed and print its report
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Play so many seeds, each with its own mix of faults
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    seeds: u64,
    /// First seed of the swarm
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Plant this bug; the checks must catch it
    #[arg(long, value_name = "NAME")]
    canary: Option<Canary>,
    /// Print reports as JSON, one a line
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Question {
    Orders(compare::Orders),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Question::Orders(orders)) = &arguments.question {
        return compare::run(orders);
    }
    let seeds = match arguments.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => arguments.from..arguments.from.saturating_add(arguments.seeds),
    };
    let count = seeds.end - seeds.start;
    let mut failed = 0u64;
    let (mut virtual_s, mut samples) = (0.0, 0);
    for seed in seeds {
        let report = play(seed, arguments.canary);
        virtual_s += report.virtual_s;
        samples += report.samples;
        let good = report.is_sound() != arguments.canary.is_some();
        failed += u64::from(!good);
        let told = tell(&report, &arguments, good, count == 1);
        if told.is_err() {
            // Standard output is closed.
            return ExitCode::FAILURE;
        }
    }
    if count > 1 {
        eprintln!("{count} seeds, {failed} failed; {samples} samples checked in {virtual_s:.0} virtual seconds");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play(seed: u64, canary: Option<Canary>) -> SimReport {
    let scenario = Scenario::draw(seed);
    canary.map_or_else(|| run(&scenario), |canary| run_with_canary(&scenario, canary))
}

fn tell(report: &SimReport, arguments: &Arguments, good: bool, alone: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else if alone || !good {
        writeln!(out, "{report}")?;
        writeln!(out, "  replay: {}", report.replay_command())?;
    } else {
        writeln!(out, "seed {} {} {} events", report.seed, report.content_hash, report.events)?;
    }
    if arguments.canary.is_some() && !arguments.json {
        writeln!(out, "  canary {}", if good { "caught" } else { "MISSED" })?;
    }
    out.flush()
}
