//! Reports: the demo's `report.json` with a fixed schema and its `report.html`; the page of benchmark results. Each page
//! is one self-contained file.
//!
//! Owns the schema, the comparison with the paper and the page. Never measures and never writes files.

pub mod chart;
mod html;
pub mod page;
mod published;
mod verdict;

pub use html::html;
pub use published::{Published, published};
pub use verdict::{Verdict, verdicts};

use serde::{Deserialize, Serialize};

use crate::deli::{Findings, Row, RowName, Scale};
use crate::machine::Machine;

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

/// The meaning of the columns.
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
    #[must_use]
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
    #[must_use]
    pub fn row(&self, name: RowName) -> &Row {
        self.rows.iter().find(|row| row.name == name).expect("an experiment has all rows")
    }
}
