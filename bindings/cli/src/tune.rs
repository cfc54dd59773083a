//! `fuelrail tune`: the settings this machine and this bucket want, found by measuring, as a file the loader reads.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::tuning::{Outcome as Outcomes, Setting, Tried, TuneReport, Tuning, tune};
use clap::Args;
use fuelrail::{Backend, ByteSize, Config, Result, RingChoice, read_duration};
use serde::Serialize;
use serde_json::json;

use crate::failure::{Outcome, file, usage};
use crate::report::chart::{Axis, Bar as Bars, Hue, bars};
use crate::report::{FactsPage, write_page};
use crate::screen::{Bar, JsonTo, Table, note};
use crate::settings::{bytes, given, load};
use crate::whole::WholeFile;

const EXAMPLES: &str = "Examples:
  fuelrail tune http://127.0.0.1:9000/bucket/training/ --batch-size 64
  fuelrail tune http://127.0.0.1:8080/set/ --manifest set.tsv --budget 60s --memory-limit 2GiB --out node.toml
  fuelrail bench read --config fuelrail.toml

Reads the bucket with many settings for about a second each, and writes the best as TOML. A saving of processor time counts a \
fifth of the same gain in speed; more shards, connections or memory are taken only when they bring something. The last run \
measures the setting chosen anew: predicted and achieved stand side by side.";

/// Find the settings this machine and this bucket want, and what limits them
#[derive(Args, Serialize, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tune {
    /// What to read: s3://BUCKET/PREFIX, gs://, az://, http[s]://HOST:PORT/BUCKET/PREFIX, or a folder
    uri: Option<String>,
    /// Time for everything
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "120s")]
    #[serde(skip)]
    budget: Duration,
    /// Samples per batch [default: 64]
    #[arg(long, value_name = "N")]
    batch_size: Option<u32>,
    /// The most memory to try [default: half of the cgroup's limit, at most 2 GiB]
    #[arg(long = "memory-limit", value_name = "SIZE", value_parser = bytes)]
    memory_limit_bytes: Option<u64>,
    /// The objects as key<TAB>size or JSON lines, for servers that cannot list
    #[arg(long, value_name = "FILE")]
    manifest: Option<String>,
    /// A TOML file with the settings to start from
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Where to write what was found; a file that was not written by this command is never replaced
    #[arg(long, value_name = "FILE", default_value = "fuelrail.toml")]
    #[serde(skip)]
    out: PathBuf,
    /// Seed of the search
    #[arg(long, default_value_t = 0)]
    #[serde(skip)]
    seed: u64,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    #[serde(skip)]
    json: Option<String>,
    /// Write the result as a page with charts
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    html: Option<PathBuf>,
}

/// First line of every file this command wrote.
const MARK: &str = "# Written by fuelrail tune";

pub(crate) fn run(args: &Tune) -> Outcome {
    refuse_foreign(&args.out)?;
    let config = load(args.config.as_deref(), &given(args))?;
    let kept = fuelrail::list_as(&config)?;
    kept.notices.iter().for_each(|notice| note(notice));
    let listing = kept.listing.iter().collect();
    let rings = rings(&config);
    let tuning = Tuning { config, listing, budget: args.budget, seed: args.seed, rings };
    let bar = Bar::new(Some(args.budget.as_secs()), "s");
    let report = tune(&tuning, &mut |progress| {
        bar.at(progress.spent.as_secs().min(args.budget.as_secs()), || {
            let speed = progress.gb_per_s.map_or_else(|| "refused".to_owned(), |speed| format!("{speed:.2} GB/s"));
            format!("trial {}: {speed}; best: {}", progress.trials, setting_text(progress.best))
        });
    })?;
    drop(bar);
    WholeFile::of(&args.out, &toml(&report))?;
    JsonTo::asked(args.json.as_deref()).show(&report, || Table::facts(facts(&report)).text())?;
    write_page(args.html.as_deref(), || page(&report))?;
    note(&format!("{} written; use it with --config {}", args.out.display(), args.out.display()));
    Ok(ExitCode::SUCCESS)
}

/// Rings worth comparing: that of the configuration first, then those that need no runtime of their own, as far as they are
/// to be had here.
fn rings(config: &Config) -> Vec<RingChoice> {
    let mut rings = vec![config.ring];
    let uring = fuelrail::internal::probe().io_uring.is_ok();
    let chosen = if config.ring == RingChoice::Auto && uring { Backend::Uring.into() } else { config.ring };
    let known = [Backend::Uring, Backend::Poll].into_iter().filter(|ring| uring || *ring != Backend::Uring);
    rings.extend(known.map(RingChoice::from).filter(|ring| *ring != chosen));
    rings
}

/// A span of time: `120s`, `2m`, `1500ms`, or seconds.
fn span(text: &str) -> Result<Duration> {
    read_duration(text, "s")
}

/// Refuses, before two minutes are spent, to replace a file that this command did not write.
fn refuse_foreign(out: &Path) -> Outcome<()> {
    match std::fs::read_to_string(out) {
        Ok(text) if text.starts_with(MARK) => Ok(()),
        Ok(_) => Err(usage(
            format!("{} exists and was not written by fuelrail tune", out.display()),
            "name another file with --out",
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(file("reading", out, &error)),
    }
}

/// The file the loader reads.
fn toml(report: &TuneReport) -> String {
    let Outcomes { predicted_gb_per_s, achieved_gb_per_s, .. } = report.outcome;
    let mut text = format!("{MARK} on {}: {}\n", report.machine.date, report.machine.line());
    text.push_str(&format!("# Predicted {predicted_gb_per_s:.3} GB/s, achieved {achieved_gb_per_s:.3}.\n"));
    text.push_str(&format!("# Limit: {}\n", report.explanation));
    let (config, best) = (json!(report.config), json!(report.best));
    let own = ["uri", "endpoint", "addressing", "batch_size", "manifest"].map(|name| (name, &config[name]));
    let tuned = best.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value));
    // A JSON string, number or truth is one of TOML.
    for (name, value) in own.into_iter().chain(tuned).filter(|(_, value)| !value.is_null()) {
        text.push_str(&format!("{name} = {value}\n"));
    }
    text
}

fn setting_text(setting: &Setting) -> String {
    let Setting { shards, connections_max, block_bytes, memory_limit_bytes, ring, register } = setting;
    let register = if *register { ", registered" } else { "" };
    let (block, memory) = (ByteSize(*block_bytes), ByteSize(*memory_limit_bytes));
    format!("{shards} shard(s) x {connections_max} connections, blocks {block}, memory {memory}, ring {ring}{register}")
}

/// Settings that the page shows: the best of those that were tried.
const SHOWN: usize = 12;

fn page(report: &TuneReport) -> FactsPage {
    let axis = Axis { log: false, tick: |speed| format!("{speed:.2}") };
    let bar = |name: &str, text: String, value, marks, hue| Bars { name: name.to_owned(), text, value, marks, hue };
    let Outcomes { predicted_gb_per_s: predicted, achieved_gb_per_s: achieved, .. } = report.outcome;
    let range = vec![report.outcome.predicted_low_gb_per_s, report.outcome.predicted_high_gb_per_s];
    let speed = |speed: f64| format!("{speed:.3} GB/s");
    let came = [
        bar("untuned", speed(report.start_gb_per_s), report.start_gb_per_s, Vec::new(), Hue::Plain),
        bar("predicted", speed(predicted), predicted, range, Hue::Disk),
        bar("achieved", speed(achieved), achieved, Vec::new(), Hue::Rail),
    ];
    let mean = |tried: &Tried| tried.gb_per_s.iter().sum::<f64>() / tried.gb_per_s.len().max(1) as f64;
    let mut best: Vec<&Tried> = report.tried.iter().filter(|tried| !tried.gb_per_s.is_empty()).collect();
    best.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let tried = best.iter().take(SHOWN).map(|tried| {
        let Setting { shards, connections_max, block_bytes, memory_limit_bytes, .. } = &tried.setting;
        let (block, memory) = (ByteSize(*block_bytes), ByteSize(*memory_limit_bytes));
        let name = format!("{shards} × {connections_max}, {block}, {memory}");
        let hue = if tried.setting == report.best { Hue::Rail } else { Hue::Plain };
        bar(&name, speed(mean(tried)), mean(tried), tried.gb_per_s.clone(), hue)
    });
    let tried = bars(&tried.collect::<Vec<_>>(), axis);
    let charts = [
        (
            "What it brought, GB/s",
            "The marks are the range in which nineteen of twenty runs should lie.",
            bars(&came, axis),
        ),
        (
            "The best settings tried, GB/s",
            "Shards × connections, block length, memory. A mark is one trial; blue is the one chosen.",
            tried,
        ),
    ];
    FactsPage {
        kicker: "Fuelrail tune",
        headline: format!(
            "{achieved:.2} GB/s, {:.2} times the untuned speed",
            achieved / report.start_gb_per_s.max(1e-9)
        ),
        caption: report.explanation.clone(),
        charts,
        facts: facts(report),
    }
}

fn facts(report: &TuneReport) -> Vec<(String, String)> {
    let Outcomes { predicted_gb_per_s, predicted_low_gb_per_s: low, predicted_high_gb_per_s: high, .. } =
        report.outcome;
    let Outcomes { achieved_gb_per_s, predicted_cpu_s_per_gb, achieved_cpu_s_per_gb, .. } = report.outcome;
    let TuneReport { trials, settings, spent_s, .. } = report;
    let facts = [
        ("best", setting_text(&report.best)),
        ("limit", format!("{}: {}", report.limit, report.explanation)),
        (
            "predicted",
            format!("{predicted_gb_per_s:.3} GB/s ({low:.3} to {high:.3}), {predicted_cpu_s_per_gb:.3} CPU-s/GB"),
        ),
        ("achieved", format!("{achieved_gb_per_s:.3} GB/s, {achieved_cpu_s_per_gb:.3} CPU-s/GB")),
        ("untuned", format!("{:.3} GB/s", report.start_gb_per_s)),
        (
            "search",
            format!(
                "{trials} trials of {settings} settings in {spent_s:.0} s; a single trial scatters by {:.1} %",
                report.noise * 100.0
            ),
        ),
        ("machine", report.machine.line()),
    ];
    facts.map(|(name, text)| (name.to_owned(), text)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.toml");
        assert!(refuse_foreign(&path).is_ok());
        std::fs::write(&path, "seed = 1\n").unwrap();
        assert!(refuse_foreign(&path).is_err());
        std::fs::write(&path, format!("{MARK} on some day\n")).unwrap();
        assert!(refuse_foreign(&path).is_ok());
    }
}
