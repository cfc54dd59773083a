//! `fuelrail inspect`: recognises a file that fuelrail wrote, checks it, and prints a summary.
//!
//! Owns the recognition. The formats belong to the crates that write them, whose readers do the checking.

mod shards;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use fuelrail::{Audit, AuditVerdict, ByteSize, Error, Kind, Listed, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::{self, ReadReport};
use crate::deli::Row;
use crate::demo::rows_text;
use crate::failure::{Outcome, file};
use crate::machine::Machine;
use crate::report::SCHEMA;
use crate::screen::{JsonTo, Table};
use crate::settings::Trust;

const EXAMPLES: &str = "Examples:
  fuelrail inspect run.state
  fuelrail inspect report.json
  fuelrail inspect train.tsv --json | jq .files[0].bytes
  fuelrail inspect run-1.log run-2.log run-3.log
  fuelrail inspect shard-000000.tar s3://bucket/train-000000.tfrecord /data/mds/index.json

Audit logs given together are joined: the logs of all ranks of all runs that continued each other. Exit codes: 0 when all \
files are sound and joined logs prove exactly-once delivery, 1 when not.";

/// Recognise, check and show a state, a result, a manifest, audit logs or shards
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Inspect {
    /// The files to look at; of shards also URIs
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    trust: Trust,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    files: &'a [Found],
    /// The verdict over all audit logs among the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<&'a AuditVerdict>,
}

/// What a file turned out to be.
#[derive(Serialize)]
struct Found {
    file: String,
    kind: &'static str,
    #[serde(flatten)]
    content: Content,
    /// The same for people.
    #[serde(skip)]
    text: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content {
    State { state: State },
    Read { report: Box<ReadReport> },
    Demo { report: Value },
    Manifest { objects: usize, bytes: u64, with_etag: usize, largest_bytes: u64 },
    Audit { start: State, last: State },
    Shards { shards: shards::Shards },
}

pub(crate) fn run(args: &Inspect) -> Outcome {
    let (mut files, mut of_logs, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    for path in &args.files {
        if let Some((name, format)) = path.to_str().and_then(|name| Some((name, shards::format_of(name)?))) {
            let (shards, text) = shards::inspect(name, format, &args.trust)?;
            files.push(found(path, ("shards", Content::Shards { shards }, text)));
            continue;
        }
        let text = fs::read(path).map_err(|error| file("reading", path, &error))?;
        let text = String::from_utf8(text).map_err(|_| unknown(path))?;
        if text.starts_with("{\"fuelrail_audit\"") {
            let log = Audit::read(path)?;
            of_logs.push(found(path, audit_log(&log)));
            logs.push(log);
        } else {
            files.push(found(path, recognise(path, &text)?));
        }
    }
    let verdict = if logs.is_empty() { None } else { Some(Audit::join(&logs)?) };
    let mut texts: Vec<String> = files.iter().map(|found| found.text.clone()).collect();
    texts.extend(verdict.as_ref().map(|verdict| {
        let logs: String = of_logs.iter().map(|found| found.text.as_str()).collect();
        format!("{logs}{}", verdict_text(verdict))
    }));
    files.extend(of_logs);
    let document = Document { schema: 1, files: &files, audit: verdict.as_ref() };
    JsonTo::output(args.json).show(&document, || texts.join("\n"))?;
    let proved = verdict.is_none_or(|verdict| verdict.exactly_once);
    Ok(if proved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn found(path: &Path, (kind, content, text): Recognised) -> Found {
    let file = path.display().to_string();
    Found { text: format!("{file}: {text}"), file, kind, content }
}

/// Kind, content for programs, and text for people.
type Recognised = (&'static str, Content, String);

fn recognise(path: &Path, text: &str) -> Outcome<Recognised> {
    let within = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
    if let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(text) {
        if fields.contains_key("position") && fields.contains_key("epoch") {
            let state = State::from_json(text).map_err(within)?;
            let text = format!("the state of a loader\n{}", state_text(&state));
            return Ok(("state", Content::State { state }, text));
        }
        if fields.contains_key("batch_wait_us") {
            let report = Box::new(read_report(text).map_err(within)?);
            let text = format!("a result of bench read, {}\n{}", report.machine.date, bench::read_text(&report));
            return Ok(("bench read", Content::Read { report }, text));
        }
        if fields.contains_key("rows") {
            let shown = demo_text(text, fields.get("schema")).map_err(within)?;
            return Ok(("demo", Content::Demo { report: Value::Object(fields) }, shown));
        }
        if !fields.contains_key("key") {
            return Err(unknown(path).into());
        }
    }
    let first = text.trim_start_matches('\u{FEFF}').lines().find(|line| !line.trim().is_empty());
    if first.is_none_or(|line| !line.starts_with('{') && !line.contains('\t')) {
        return Err(unknown(path).into());
    }
    Ok(manifest(&fuelrail::read_manifest(path)?))
}

fn manifest(listed: &[Listed]) -> Recognised {
    let (objects, bytes) = (listed.len(), listed.iter().map(|o| o.size).sum());
    let with_etag = listed.iter().filter(|o| o.etag.is_some()).count();
    let largest_bytes = listed.iter().map(|o| o.size).max().unwrap_or(0);
    let largest = if objects > 0 { format!(", the largest {}", ByteSize(largest_bytes)) } else { String::new() };
    let text = format!("a manifest\n{objects} objects, {}{largest}, {with_etag} with an entity tag\n", ByteSize(bytes));
    ("manifest", Content::Manifest { objects, bytes, with_etag, largest_bytes }, text)
}

fn audit_log(log: &Audit) -> Recognised {
    let (start, last) = (log.start().clone(), log.last_state());
    let places = [start.epoch, start.position, last.epoch, last.position];
    let [from, from_position, to, to_position] = places;
    let text =
        format!("an audit log, from epoch {from} position {from_position} to epoch {to} position {to_position}\n");
    ("audit log", Content::Audit { start, last }, text)
}

fn unknown(path: &Path) -> Error {
    let cause = format!("{}: unrecognised file type", path.display());
    Error::new(Kind::File, cause)
        .with_hint("give a loader's state, a JSON result of bench or demo, a manifest, an audit log or shards")
}

fn unsound(cause: String) -> Error {
    Error::new(Kind::File, cause).with_hint("write it again with this version of fuelrail")
}

fn read_report(text: &str) -> Result<ReadReport, Error> {
    let report: ReadReport =
        serde_json::from_str(text).map_err(|error| unsound(format!("not a valid result of bench read: {error}")))?;
    // Schema 1 had no shards, gates and system calls; what is there means the same.
    if !(1..=crate::bench::READ_SCHEMA).contains(&report.schema) {
        let newest = crate::bench::READ_SCHEMA;
        return Err(unsound(format!("a result of schema {}, this build reads 1 to {newest}", report.schema)));
    }
    Ok(report)
}

/// What every build's report of the demo holds; it may hold more.
#[derive(Deserialize)]
struct DemoReport {
    machine: Machine,
    config: Value,
    verified_bytes: bool,
    rows: Vec<Row>,
}

fn demo_text(text: &str, schema: Option<&Value>) -> Result<String, Error> {
    let wrong = |what: String| unsound(format!("not a valid report of the demo: {what}"));
    let schema = schema.unwrap_or(&Value::Null);
    if *schema != SCHEMA {
        return Err(wrong(format!("its schema is {schema}, this build reads {SCHEMA}")));
    }
    let report: DemoReport = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if report.rows.is_empty() {
        return Err(wrong("there are no rows".to_owned()));
    }
    let verified = if report.verified_bytes { "every byte verified" } else { "bytes not verified" };
    let (mode, date) = (&report.config["mode"], report.machine.date);
    Ok(format!("a report of the demo, scale {mode}, {date}\n{}{verified}\n", rows_text(&report.rows)))
}

fn state_text(state: &State) -> String {
    let mut table = Table::new(&[]);
    let order = if state.shuffle {
        format!("shuffled by seed {}, {}", state.seed, state.order)
    } else {
        "in key order".to_owned()
    };
    let share = state.position as f64 / state.samples.max(1) as f64 * 100.0;
    table.row(["order".to_owned(), order]);
    table.row(["data set".to_owned(), format!("{} samples, listing {}", state.samples, state.listing)]);
    table.row(["goes on at".to_owned(), format!("epoch {}, position {} ({share:.1} %)", state.epoch, state.position)]);
    table.text()
}

fn verdict_text(verdict: &AuditVerdict) -> String {
    let mut table = Table::new(&[0, 1, 2, 3, 4]);
    table.row(["epoch", "once", "repeated", "missing", "skipped"]);
    for epoch in &verdict.epochs {
        let counts = [epoch.epoch, epoch.once, epoch.repeated, epoch.missing, epoch.left_out];
        table.row(counts.map(|count| count.to_string()));
    }
    let proved = match verdict.exactly_once {
        true => "exactly once: yes, every sample of every epoch above",
        false if verdict.epochs.is_empty() => "exactly once: not proved, the logs hold no batch",
        false => "exactly once: no; an unfinished epoch or a log not given shows as missing",
    };
    let alone: Vec<String> = verdict.alone.iter().map(u32::to_string).collect();
    let alone = match alone.is_empty() {
        true => String::new(),
        false => format!(
            "rank {} went on from a state, and others did not: if all were started again, give all of their logs\n",
            alone.join(", ")
        ),
    };
    format!("{}{proved}\n{alone}", table.text())
}
