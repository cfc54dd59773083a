//! `cargo x`: the project's commands. Reads the command line and runs what `lib.rs` holds; owns the exit code.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xtask::house::House;
use xtask::prove;
use xtask::steps::{Outcome, cargo, cargo_in, run, say};
use xtask::test;
use xtask::tidy;
use xtask::tree::Tree;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo x", about = "The project's own commands", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Subject,
}

#[derive(Subcommand)]
enum Subject {
    /// Check the house: import table, knots, sizes, words, unsafe, promises, top level
    Tidy {
        /// Lower the ratchet's entries to the present sizes and drop those no longer needed
        #[arg(long)]
        tighten: bool,
    },
    /// Format, tidy, dependencies, lints, examples, tests: what must pass before a change goes in
    Test,
    /// Run the checks that take longer: which, and how they ended, is kept in benches/results/proof.json
    Prove(prove::Wanted),
    /// Format all sources
    Fmt,
    /// Run the demo: `fuelrail demo`, built for release
    Demo(Forwarded),
    /// Run a benchmark of the lab, built for release
    Bench(Forwarded),
    /// Run the simulator: one seed (`--seed N`) or a swarm (`--seeds 200`)
    Sim(Forwarded),
}

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct Forwarded {
    /// Handed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

fn main() -> ExitCode {
    let root = root();
    match Arguments::parse().command {
        Subject::Tidy { tighten } => finish(tidy_step(&root, tighten)),
        Subject::Test => test::run_steps(&root, || tidy_step(&root, false)),
        Subject::Prove(wanted) => prove::prove(&root, &wanted),
        Subject::Fmt => finish(run(cargo_in(&root, ["fmt", "--all"]))),
        Subject::Demo(f) => forward("fuelrail-cli", "fuelrail", Some("demo"), f.arguments),
        Subject::Bench(f) => forward("fuelrail-benches", "fuelrail-bench", None, f.arguments),
        Subject::Sim(f) => forward("fuelrail-sim", "fuelrail-sim", None, f.arguments),
    }
}

/// The root of the workspace, one above our manifest: cargo says where that is, at run time and when we were built.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_owned)
}

fn tidy_step(root: &Path, tighten: bool) -> Outcome {
    let read = || Tree::read(root).map_err(|e| format!("cannot read the tree below {}: {e}", root.display()));
    let outcome = read().and_then(|tree| {
        if tighten {
            let (house, _) = House::read(tree);
            std::fs::write(root.join(tidy::RATCHET), tidy::tightened(&house)).map_err(|e| e.to_string())?;
            return read().map(tidy::check);
        }
        Ok(tidy::check(tree))
    });
    match outcome {
        Err(why) => Outcome::Failed(why),
        Ok((house, problems)) => {
            for problem in &problems {
                say(&problem.to_string());
            }
            let functions: usize = house.sources.values().map(|s| s.functions.len()).sum();
            let (crates, files) = (house.crates.len(), house.sources.len());
            if problems.is_empty() {
                say(&format!("tidy: {crates} crates, {files} Rust files, {functions} functions, no problems"));
                return Outcome::Passed;
            }
            Outcome::Failed(format!("tidy: {} problems in {crates} crates, {files} Rust files", problems.len()))
        }
    }
}

/// Builds and runs one of our programs where the caller stands; its exit code becomes ours.
fn forward(package: &str, program: &str, subject: Option<&str>, arguments: Vec<OsString>) -> ExitCode {
    let manifest = root().join("Cargo.toml");
    let mut command = cargo(["run", "--release", "--quiet", "--manifest-path"]);
    command.arg(manifest).args(["--package", package, "--bin", program, "--"]).args(subject).args(arguments);
    match command.status() {
        Ok(status) => status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code.clamp(0, 255) as u8)),
        Err(error) => finish(Outcome::Failed(format!("cargo could not be started: {error}"))),
    }
}

fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Passed | Outcome::Skipped(_) => ExitCode::SUCCESS,
        Outcome::Failed(why) => {
            say(&why);
            ExitCode::FAILURE
        }
    }
}
