//! `fuelrail doctor`: what this machine allows, and the cure for what it does not.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::machine::Machine;
use clap::Args;
use fuelrail::Kind;
use fuelrail::internal::{Finding, Grade, IMDS_ADDRESS, ProbeConfig, ask_imds};
use serde_json::{Value, json};

use crate::failure::Outcome;
use crate::screen::JsonTo;

const EXAMPLES: &str = "Examples:
  fuelrail doctor
  fuelrail doctor --disk /mnt/nvme --json | jq '.findings[] | select(.grade != \"good\")'
  fuelrail doctor --imds

Exit codes: 0 when the engine can use io_uring here, whatever else could be better, 3 when io_uring is refused. Nothing is asked over the network unless --imds \
is given.";

/// Say what this machine allows: io_uring, memory, cores, network cards, disk, GPU; with cures
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// The folder whose disk is looked at: where a spill cache would be [default: the folder of temporary files]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Ask the instance metadata service of EC2 whether it answers from here
    #[arg(long)]
    imds: bool,
    /// Look at the machine whose /proc, /sys and /dev are below this folder
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The service is a hop away: silence this long is an answer.
const IMDS_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &Doctor) -> Outcome {
    let defaults = ProbeConfig::default();
    let folder = args.disk.clone().unwrap_or(defaults.folder);
    let probe = fuelrail::internal::probe_under(&ProbeConfig { root: args.root.clone(), folder });
    let mut findings = probe.findings();
    if args.imds {
        findings.retain(|finding| finding.name != "instance metadata");
        findings.push(ask_imds(IMDS_ADDRESS, IMDS_PATIENCE));
    }
    // Whether the engine can run here at its best, on io_uring.
    let (runs, machine) = (probe.io_uring.is_ok(), Machine::here());
    let lines = findings.iter().map(|finding| {
        let mut line = json!({ "name": finding.name, "value": finding.value, "grade": mark(finding.grade).1 });
        if let Some(cure) = &finding.cure {
            line["cure"] = json!(cure);
        }
        line
    });
    let findings_shown: Vec<Value> = lines.collect();
    let document = json!({ "schema": 1, "runs": runs, "findings": findings_shown, "machine": machine });
    JsonTo::output(args.json).show(&document, || text(&machine, &findings, runs))?;
    Ok(if runs { ExitCode::SUCCESS } else { ExitCode::from(Kind::Environment.exit_code()) })
}

/// A sign for the eye, and the word that says the same.
fn mark(grade: Grade) -> (char, &'static str) {
    match grade {
        Grade::Good => ('✓', "good"),
        Grade::Degraded => ('!', "degraded"),
        Grade::Refused => ('✗', "refused"),
    }
}

fn text(machine: &Machine, findings: &[Finding], runs: bool) -> String {
    let width = findings.iter().map(|f| f.name.chars().count()).max().unwrap_or(0);
    let mut text = format!("{}\n\n", machine.line());
    for finding in findings {
        let (sign, word) = mark(finding.grade);
        text.push_str(&format!("{sign} {word:8}  {:width$}  {}\n", finding.name, finding.value));
        if let Some(cure) = finding.cure.as_deref() {
            text.push_str(&format!("              cure: {cure}\n"));
        }
    }
    let degraded = findings.iter().filter(|f| f.grade != Grade::Good).count();
    let verdict = match (runs, degraded) {
        (false, _) => "io_uring is refused: the engine runs here on epoll (--ring poll), at a higher cost per byte",
        (true, 0) => "the engine runs here at full performance",
        (true, _) => "the engine runs here with reduced performance or features",
    };
    text.push_str(&format!("\n{verdict}\n"));
    text
}
