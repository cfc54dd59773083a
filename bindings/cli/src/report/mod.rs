//! Reports: the demo's `report.json` with a fixed schema and its `report.html`; the page of benchmark results. Each page
//! is one self-contained file.
//!
//! Owns the schema, the comparison with the paper and the page. Never measures and never writes files.

pub mod chart;
mod html;

use fuelrail_base::ByteSize;
use minijinja::value::Serde;
use minijinja::{Environment, Value};
use serde::{Deserialize, Serialize};

pub use self::html::html;
use std::path::Path;

use crate::deli::{Findings, Row, RowName, Scale};
use crate::failure::Outcome;
use crate::machine::Machine;
use crate::screen::note;
use crate::whole::WholeFile;

/// Version of the report's schema.
pub const SCHEMA: u32 = 1;

/// What is simulated, listed in every report.
const SIMULATED: [&str; 6] = [
    "The trainer's step is a wait: no model is trained, as in the paper's own analysis. It takes the paper's 0.68 s per batch \
     of 512, scaled as the bucket's latency is.",
    "The bucket is a server in this process that waits a fixed time before every answer. HTTP, sockets, listings and bytes \
     are real, over loopback.",
    "The three nodes are three threads of this process: each with its own share of every epoch, its own connections and cache.",
    "Every row is given the keys and sizes at its start, as from a data set's index: no first batch includes a listing. Only \
     DELI's prefetch service lists the bucket, again for every fetch, as published.",
    "The local disk is read from the page cache: faster than any disk, and so the hardest row to equal.",
    "DELI is written anew from its paper, flaws kept. Its listing and threads are cheaper here than in Python, so it does \
     somewhat better than published. Samples are not decoded in any row.",
];

const COLUMNS: [(&str, &str); 9] = [
    ("data_wait_s", "time inside next() per epoch, mean over ranks and epochs; opening the source is in it"),
    ("wait_reduction", "share of the bucket row's data wait that is gone"),
    ("first_batch_ms", "from before the source is opened to the first batch, mean over ranks"),
    (
        "miss_rate",
        "samples that were not at hand when asked for, in the last epoch; for fuelrail all samples of every batch that was \
         not ready",
    ),
    ("batch_wait_p99_ms", "99th percentile over all batches of all ranks and epochs"),
    (
        "cpu_s",
        "user and system time of all ranks and epochs without the bucket's threads; rows run side by side count their own \
         threads",
    ),
    (
        "connections",
        "that a rank may have open: one to read samples with; DELI's 16 of a fetch, and one that lists, as its published times \
         imply; fuelrail's own choice, as many as its memory leaves room for; in the rows with more connections DELI fetches with \
         fuelrail's number",
    ),
    (
        "held_bytes_max",
        "memory of all ranks: samples in DELI's caches; for fuelrail all that its loaders take, with buffers of connections and tables",
    ),
    (
        "peak_rss_bytes",
        "peak of the whole process while the row ran, reference bytes of the check and the bucket included; shared by rows \
         run side by side",
    ),
];

/// The demo's result, with all that is needed to judge it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine it was measured on.
    pub machine: Machine,
    /// The configuration that was measured.
    pub config: ReportConfig,
    /// Whether every delivered byte was compared with the generator and was equal.
    pub verified_bytes: bool,
    /// The rows, in the order of [`RowName::ALL`].
    pub rows: Vec<Row>,
    /// The paper's rows.
    pub published: Vec<Published>,
    /// The claims and whether they hold; empty after a quick run, whose times are meaningless.
    pub verdicts: Vec<Verdict>,
    /// What is simulated.
    pub simulated: Vec<String>,
    /// The meaning of the columns, by name.
    pub columns: std::collections::BTreeMap<String, String>,
    /// The engine's notices.
    pub notices: Vec<String>,
    /// Duration of the whole demo, s.
    pub wall_s: f64,
}

/// The demo's effective configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportConfig {
    /// `short`, `full` or `quick`.
    pub mode: String,
    /// Sizes and times.
    pub scale: Scale,
    /// Objects in the bucket.
    pub objects: u64,
    /// Their total bytes.
    pub object_bytes: u64,
    /// Payload memory of each rank of DELI and of Fuelrail, bytes: the cache, and for Fuelrail the look-ahead as well.
    pub cache_bytes_per_rank: u64,
}

impl Report {
    /// Builds the report of an experiment; `mode` is `short`, `full` or `quick`.
    pub fn new(findings: Findings, machine: Machine, mode: &str, wall_s: f64) -> Report {
        let published = published();
        // A run of a few seconds is too short to judge the claims.
        let verdicts = if mode == "quick" { Vec::new() } else { verdicts(&findings, &published) };
        let Findings { scale, objects, object_bytes, cache_bytes_per_rank, rows, notices } = findings;
        Report {
            schema: SCHEMA,
            machine,
            config: ReportConfig { mode: mode.to_owned(), scale, objects, object_bytes, cache_bytes_per_rank },
            verified_bytes: true,
            rows,
            published,
            verdicts,
            simulated: SIMULATED.map(str::to_owned).to_vec(),
            columns: COLUMNS.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
            notices,
            wall_s,
        }
    }

    /// Returns a row by name.
    ///
    /// # Panics
    /// Panics when the row is missing; every experiment has all rows.
    pub fn row(&self, name: RowName) -> &Row {
        self.rows.iter().find(|row| row.name == name).expect("an experiment has all rows")
    }
}

/// One row of the paper. Arrays hold epoch 1 and epoch 2.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The row's name in this report.
    pub name: RowName,
    /// Time inside `next` per node, s.
    pub data_wait_s: [f64; 2],
    /// Time of the epoch, s.
    pub epoch_s: [f64; 2],
    /// Miss rate in epoch 2, for rows with a cache.
    pub miss_rate: Option<f64>,
    /// Relative reduction of the bucket's data wait, over both epochs.
    pub wait_reduction: f64,
}

/// Name, data wait and epoch time of both epochs in s, and miss rate in epoch 2.
type Measured = (RowName, [f64; 2], [f64; 2], Option<f64>);

const MEASURED: [Measured; 8] = [
    (RowName::LocalDisk, [117.3, 82.2], [129.9, 94.0], None),
    (RowName::Bucket, [781.6, 763.2], [800.6, 780.8], None),
    (RowName::DemandFifo25, [810.3, 809.9], [834.2, 844.1], Some(0.989)),
    (RowName::DemandFifo50, [786.6, 743.1], [808.4, 771.7], Some(0.953)),
    (RowName::DemandFifo75, [765.3, 685.4], [787.1, 707.4], Some(0.888)),
    (RowName::DemandUnlimited, [738.7, 489.5], [753.9, 510.6], Some(0.667)),
    (RowName::DeliFullFetch, [123.3, 129.6], [129.9, 137.2], Some(0.148)),
    (RowName::Deli5050, [109.3, 107.9], [122.7, 122.5], Some(0.150)),
];

/// Returns the paper's rows, in the order of [`RowName::ALL`].
pub fn published() -> Vec<Published> {
    let bucket: f64 = MEASURED[1].1.iter().sum();
    let row = |&(name, data_wait_s, epoch_s, miss_rate): &Measured| {
        let wait_reduction = 1.0 - data_wait_s.iter().sum::<f64>() / bucket;
        Published { name, data_wait_s, epoch_s, miss_rate, wait_reduction }
    };
    MEASURED.iter().map(row).collect()
}

/// Largest difference of a miss rate from the published one.
const MISS_RATE_TOLERANCE: f64 = 0.01;
/// Least reduction by DELI's best setting that counts as reproduced.
const DELI_REDUCTION_MIN: f64 = 0.85;
/// Least reduction that Fuelrail promises.
const FUELRAIL_REDUCTION_MIN: f64 = 0.99;
/// Largest ratio of the epoch time on Fuelrail to that on local disk.
const EPOCH_RATIO_MAX: f64 = 1.02;

/// One claim and whether it holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// A short name, for programs.
    pub claim: String,
    /// The measured value; the worst where there are several.
    pub measured: f64,
    /// The bound it is compared with.
    pub bound: f64,
    /// The paper's value, if it has one.
    pub published: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
    /// One sentence for readers.
    pub text: String,
}

/// Judges all claims.
pub fn verdicts(findings: &Findings, published: &[Published]) -> Vec<Verdict> {
    const DEMAND: [RowName; 4] =
        [RowName::DemandFifo25, RowName::DemandFifo50, RowName::DemandFifo75, RowName::DemandUnlimited];
    let row = |name| findings.rows.iter().find(|row| row.name == name);
    let paper = |name| published.iter().find(|row| row.name == name);
    let mut all = Vec::new();
    let mut judge = |claim: &str, measured, bound, holds, published, text| {
        all.push(Verdict { claim: claim.to_owned(), measured, bound, published, holds, text });
    };
    // In epoch 2, here and in the paper.
    let misses = |names: &[RowName]| -> (Vec<f64>, Vec<f64>) {
        let pair = |&name: &RowName| Some((row(name)?.epochs.get(1)?.miss_rate, paper(name)?.miss_rate?));
        names.iter().filter_map(pair).unzip()
    };
    let (ours, theirs) = misses(&DEMAND);
    let list = |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.3}")).collect::<Vec<_>>().join("/");
    if let Some(off) = ours.iter().zip(&theirs).map(|(ours, theirs)| (ours - theirs).abs()).reduce(f64::max) {
        let text = format!(
            "Demand caches miss in epoch 2 as published: {} here, {} in the paper; at most {off:.4} apart (asked: {MISS_RATE_TOLERANCE}).",
            list(&ours),
            list(&theirs),
        );
        let holds = off <= MISS_RATE_TOLERANCE;
        judge("demand_miss_rates", off, MISS_RATE_TOLERANCE, holds, Some(0.0), text);
    }
    if let (Some(deli), Some(paper)) = (row(RowName::Deli5050), paper(RowName::Deli5050)) {
        let (cut, theirs) = (deli.wait_reduction, paper.wait_reduction);
        let text = format!(
            "DELI's 50/50, its best setting in the paper, cuts data wait by {:.1} % (asked: {:.0} %); the paper has {:.1} %.",
            cut * 100.0,
            DELI_REDUCTION_MIN * 100.0,
            theirs * 100.0
        );
        let holds = cut >= DELI_REDUCTION_MIN;
        judge("deli_50_50_wait_reduction", cut, DELI_REDUCTION_MIN, holds, Some(theirs), text);
    }
    let (ours, theirs) = misses(&[RowName::DeliFullFetch, RowName::Deli5050]);
    if let Some(more) = ours.iter().zip(&theirs).map(|(ours, theirs)| ours - theirs).reduce(f64::max) {
        let text = format!(
            "DELI's prefetch misses no more than published: {} here, {} in the paper (asked: at most {MISS_RATE_TOLERANCE} more). Its \
             threads and listing are faster here.",
            list(&ours),
            list(&theirs),
        );
        let holds = more <= MISS_RATE_TOLERANCE;
        judge("deli_miss_rates", more, MISS_RATE_TOLERANCE, holds, Some(0.0), text);
    }
    if let (Some(fuelrail), Some(disk)) = (row(RowName::Fuelrail), row(RowName::LocalDisk)) {
        let (cut, cache) = (fuelrail.wait_reduction, fuelrail_base::ByteSize(findings.cache_bytes_per_rank));
        let text = format!(
            "Fuelrail cuts it by {:.2} % (asked: {:.1} %) with DELI's cache bytes ({cache} a rank) for look-ahead and cache together, \
             and {} a rank in all.",
            cut * 100.0,
            FUELRAIL_REDUCTION_MIN * 100.0,
            fuelrail_base::ByteSize(fuelrail.held_bytes_max / u64::from(findings.scale.ranks))
        );
        judge("fuelrail_wait_reduction", cut, FUELRAIL_REDUCTION_MIN, cut >= FUELRAIL_REDUCTION_MIN, None, text);
        let ratio = fuelrail.epoch_s / disk.epoch_s;
        let apart = (ratio - 1.0) * 100.0;
        let side = if apart > 0.0 { "longer" } else { "shorter" };
        let text = format!(
            "Its epoch is {:.1} % {side} than on local disk, first batch included (asked: at most {:.0} % longer).",
            apart.abs(),
            (EPOCH_RATIO_MAX - 1.0) * 100.0
        );
        judge("fuelrail_epoch_over_local_disk", ratio, EPOCH_RATIO_MAX, ratio <= EPOCH_RATIO_MAX, None, text);
    }
    all
}

/// A result as a page: what came out, in a sentence and in charts, and all facts.
#[derive(Serialize, Debug)]
pub(crate) struct FactsPage {
    /// The command.
    pub kicker: &'static str,
    /// The result in one sentence.
    pub headline: String,
    /// What was done.
    pub caption: String,
    /// Title, caption and SVG of each.
    pub charts: [(&'static str, &'static str, String); 2],
    /// What the command prints.
    pub facts: Vec<(String, String)>,
}

/// Writes the page of a result, where a file is named.
pub(crate) fn write_page(path: Option<&Path>, made: impl FnOnce() -> FactsPage) -> Outcome<()> {
    let Some(path) = path else { return Ok(()) };
    WholeFile::of(path, &page(include_str!("facts.html"), made()))?;
    note(&format!("{} written: open it in a browser", path.display()));
    Ok(())
}

/// Renders a template that extends `page.html`. Adds the filters `seconds`, `percent`, `bytes` and `thousands` to the
/// built-in ones; all text is escaped unless it is marked `safe`.
///
/// # Panics
/// When the template is invalid: templates are constants of this program.
pub fn page(template: &str, shown: impl Serialize) -> String {
    let mut pages = Environment::new();
    pages.add_filter("seconds", seconds);
    pages.add_filter("percent", percent);
    pages.add_filter("thousands", thousands);
    pages.add_filter("bytes", |bytes: u64| ByteSize(bytes).to_string());
    let rendered = pages
        .add_template("style.css", include_str!("style.css"))
        .and_then(|()| pages.add_template("charts.html", include_str!("charts.html")))
        .and_then(|()| pages.add_template("page.html", include_str!("page.html")))
        .and_then(|()| pages.add_template("body.html", template))
        .and_then(|()| pages.get_template("body.html")?.render(Value::from(Serde(shown))));
    rendered.unwrap_or_else(|error| panic!("the page's template: {error:#}"))
}

/// Formats seconds in a readable unit.
pub fn seconds(s: f64) -> String {
    match s {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s if s > 0.0 => format!("{:.0} µs", s * 1e6),
        _ => "0".to_owned(),
    }
}

/// Formats a share as a percentage, with more digits the nearer it is to 100 %.
fn percent(share: f64) -> String {
    let share = share * 100.0;
    if share > 99.0 && share < 100.0 { format!("{share:.2} %") } else { format!("{share:.1} %") }
}

/// Formats a count with thin spaces between thousands.
fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).expect("digits are ASCII")).collect();
    groups.join("\u{202f}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headline_is_in_the_numbers() {
        let rows = published();
        let of = |name| rows.iter().find(|row| row.name == name).copied().unwrap();
        assert_eq!(of(RowName::Bucket).wait_reduction, 0.0);
        assert!((of(RowName::Deli5050).wait_reduction - 0.86).abs() < 0.005);
        assert!(rows.iter().map(|row| row.name).eq(RowName::ALL.into_iter().take(8)));
    }

    #[test]
    fn figures_carry_their_unit() {
        let words: Vec<_> = [800.0, 41.23, 1.5, 0.25, 0.0042, 0.000_042, 0.0].into_iter().map(seconds).collect();
        assert_eq!(words, ["800 s", "41.2 s", "1.50 s", "250 ms", "4.2 ms", "42 µs", "0"]);
        assert_eq!((percent(0.9942), percent(0.86), percent(0.0)), ("99.42 %".into(), "86.0 %".into(), "0.0 %".into()));
        assert_eq!((thousands(42), thousands(1_234_567)), ("42".into(), "1\u{202f}234\u{202f}567".into()));
    }
}
