//! `cargo x`: the project's own commands. Imports nothing of ours: it must compile and complain while the rest does not.
#![forbid(unsafe_code)]

use clap::Parser;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use steps::{cargo_in, run, say};

mod prove;
mod steps;
mod test;
mod tidy;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo x", about = "The project's own commands", disable_help_subcommand = true)]
enum Arguments {
    /// Check what the compiler does not: dependency rules, import cycles, lengths of files, words, promises, links and figures of the documents
    Tidy,
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
    // One above our manifest: cargo says where that is, at run time and when we were built.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let root = here.parent().unwrap_or(&here);
    let outcome = match Arguments::parse() {
        Arguments::Tidy => tidy::tidy(root),
        Arguments::Test => return ExitCode::from(u8::from(!test::test(root))),
        Arguments::Prove(wanted) => return ExitCode::from(u8::from(!prove::prove(root, &wanted))),
        Arguments::Fmt => run(&mut cargo_in(root, ["fmt", "--all"])),
        Arguments::Demo(f) => return forward(root, "fuelrail-cli", &["fuelrail", "--", "demo"], &f),
        Arguments::Bench(f) => return forward(root, "fuelrail-benches", &["fuelrail-bench", "--"], &f),
        Arguments::Sim(f) => return forward(root, "fuelrail-sim", &["fuelrail-sim", "--"], &f),
    };
    outcome.map_or_else(
        |why| {
            say(&why);
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Builds and runs one of our programs where the caller stands; its exit code becomes ours.
fn forward(root: &Path, package: &str, program: &[&str], forwarded: &Forwarded) -> ExitCode {
    let mut command = cargo_in(root, ["run", "--release", "--quiet", "--manifest-path"]);
    command.arg(root.join("Cargo.toml")).args(["--package", package, "--bin"]).args(program).args(&forwarded.arguments);
    let status = command.current_dir(".").status();
    status.map_or(ExitCode::FAILURE, |status| ExitCode::from(status.code().unwrap_or(1).clamp(0, 255) as u8))
}
