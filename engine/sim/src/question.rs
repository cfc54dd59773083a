//! `fuelrail-sim what-if`: which limit comes first on another node, from costs measured on this one.

use clap::Args;
use fuelrail_base::{ByteSize, Error, Kind, Result};
use fuelrail_sim::what_if::{Costs, Forecast, LogicRun, Node, Validation, forecast, logic_share, picture};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Say which limit comes first on another node: cores, network card, memory, connections, requests, or our own logic
#[derive(Args)]
#[command(
    after_help = "Examples:\n  cargo x sim -- what-if --measured cores.json --cores 32 --nic 100gbit --nic 400gbit \
                        --memory-bandwidth 300GB --svg limits.svg"
)]
pub(crate) struct WhatIf {
    /// The JSON of `fuelrail bench cores` (with its scaling) or `fuelrail bench read`
    #[arg(long, value_name = "FILE")]
    measured: PathBuf,
    /// Cores given to shards
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
    cores: u32,
    /// Network cards to ask about, such as 100gbit
    #[arg(long, value_name = "RATE", value_parser = rate, default_values = ["100gbit", "400gbit"])]
    nic: Vec<f64>,
    /// Bytes of a packet
    #[arg(long, value_name = "BYTES", default_value_t = 9001, value_parser = clap::value_parser!(u32).range(576..=65_535))]
    mtu: u32,
    /// Memory bandwidth of the node, per second
    #[arg(long, value_name = "SIZE", default_value = "300GB")]
    memory_bandwidth: ByteSize,
    /// What one connection brings, per second
    #[arg(long, value_name = "SIZE", default_value = "100MB")]
    connection_bandwidth: ByteSize,
    /// Connections of each shard
    #[arg(long, value_name = "N", default_value_t = 128)]
    connections: u32,
    /// Time to the first byte of an answer
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    latency_ms: f64,
    /// Requests per second the bucket takes [default: any]
    #[arg(long, value_name = "N")]
    requests_per_s: Option<f64>,
    /// Leave the virtual time out: arithmetic only
    #[arg(long)]
    no_logic: bool,
    /// Draw the limits
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The whole answer.
#[derive(Serialize)]
struct Answer {
    schema: u32,
    costs: Costs,
    validation: Vec<Validation>,
    forecasts: Vec<Forecast>,
}

/// Headers of IP and TCP with timestamps, and what Ethernet adds on the wire: header, checksum, preamble, gap.
const PACKET_HEADERS: u32 = 52;
const WIRE_BYTES: u32 = 38;
/// A payload byte is written by the card, read and written by the kernel's copy; a copy that stays in cache saves one.
const MEMORY_CROSSINGS: (f64, f64) = (2.0, 3.0);

pub(crate) fn run(args: &WhatIf) -> ExitCode {
    match answer(args).and_then(|answer| show(args, &answer)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuelrail-sim: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn answer(args: &WhatIf) -> Result<Answer> {
    let text = std::fs::read_to_string(&args.measured).map_err(|error| file("reading", &args.measured, &error))?;
    let costs = Costs::of_result(&text)?;
    let nodes = args.nic.iter().map(|nic| Node {
        cores: args.cores,
        nic_bits_per_s: *nic,
        packet_bytes: (f64::from(args.mtu - PACKET_HEADERS), f64::from(args.mtu + WIRE_BYTES)),
        memory_bytes_per_s: args.memory_bandwidth.0 as f64,
        memory_crossings: MEMORY_CROSSINGS,
        connection_bytes_per_s: (args.connection_bandwidth.0 as f64).max(1.0),
        connections: args.connections,
        latency_s: args.latency_ms.max(0.0) / 1e3,
        requests_per_s: args.requests_per_s,
    });
    let forecasts = nodes.map(|node| {
        let share = if args.no_logic { None } else { Some(logic_share(&played(&costs, &node))?) };
        Ok(forecast(&costs, &node, share))
    });
    Ok(Answer { schema: 1, validation: costs.validation(), forecasts: forecasts.collect::<Result<_>>()?, costs })
}

/// The life to play for a node: as many objects on their way as its card carries in one latency.
fn played(costs: &Costs, node: &Node) -> LogicRun {
    let per_latency = node.nic_bits_per_s / 8.0 * node.latency_s / costs.object_bytes;
    LogicRun {
        shards: u16::try_from(node.cores).unwrap_or(u16::MAX),
        latency_us: ((node.latency_s * 1e6) as u64).max(1),
        objects_per_latency: (per_latency as u64).max(1),
    }
}

fn show(args: &WhatIf, answer: &Answer) -> Result<()> {
    if let Some(path) = &args.svg {
        std::fs::write(path, picture(&answer.forecasts)).map_err(|error| file("writing", path, &error))?;
    }
    let text =
        if args.json { serde_json::to_string_pretty(answer).expect("a plain structure") + "\n" } else { table(answer) };
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| Error::new(Kind::File, format!("writing to standard output: {error}")))
}

fn table(answer: &Answer) -> String {
    let mut text = String::new();
    let costs = &answer.costs;
    let _ = writeln!(
        text,
        "measured: {:.2} GB/s per core, objects of {:.0} bytes",
        costs.gb_per_core_s, costs.object_bytes
    );
    for check in &answer.validation {
        let Validation { shards, predicted, measured_wall, measured_work } = check;
        let _ = writeln!(
            text,
            "{shards} shard(s): predicted {predicted:.2} x one, measured {measured_wall:.2} on the wall clock, {measured_work:.2} of work"
        );
    }
    for Forecast { node, ceilings } in &answer.forecasts {
        let _ = writeln!(text, "\n{} cores, {} Gbit/s:", node.cores, node.nic_bits_per_s / 1e9);
        for (place, ceiling) in ceilings.iter().enumerate() {
            let mark = if place == 0 { "<- first" } else { "" };
            let rate = ceiling.bytes_per_s / 1e9;
            let _ = writeln!(text, "  {:<13} {rate:>8.1} GB/s  {}  {mark}", ceiling.name, ceiling.because);
        }
    }
    text
}

fn file(doing: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(Kind::File, format!("{doing} {}: {error}", path.display()))
}

/// Bits per second: `100gbit`, `2500mbit`.
fn rate(text: &str) -> core::result::Result<f64, String> {
    let units = [("gbit", 1e9), ("mbit", 1e6)];
    let lower = text.to_ascii_lowercase();
    let found =
        units.iter().find_map(|(unit, scale)| Some(lower.strip_suffix(unit)?.trim().parse::<f64>().ok()? * scale));
    found.filter(|rate| rate.is_finite() && *rate > 0.0).ok_or_else(|| "write a rate as 100gbit or 2500mbit".to_owned())
}
