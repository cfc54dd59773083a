//! The data wait of DELI's loader (IC2E 2021), predicted by a small event model: a cache per node, first in, first out; a sampler that asks
//! for the next samples when its queue falls to a threshold; a service that fetches one request after the other.
//!
//! As published: every fetch lists the bucket (a fixed time) and becomes visible when all of it has landed; samples that are cached are not
//! fetched again; a demand cache keeps what missed, the prefetching one only what was fetched; the order is shuffled over the nodes anew
//! every epoch; the cache of an epoch is where the next one starts; a batch's samples are drawn from the sampler before the first is read.

use std::collections::{BTreeMap, VecDeque};

use fuelrail_base::Result;
use fuelrail_base::prng::Prng;
use serde::Serialize;

use crate::table::{Row, Table};
use crate::usage;

const SAMPLES_MAX: u64 = 20_000_000;
const NODES_MAX: u64 = 1_000;
const EPOCHS_MAX: u64 = 100;
/// Every node has a bit for every sample.
const NODE_SAMPLES_MAX: u64 = 200_000_000;

/// What all settings share. Times are seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Setup {
    /// Samples of an epoch over all nodes, where the table does not say how many each node reads.
    pub samples: u64,
    /// Nodes.
    pub nodes: u64,
    /// Samples a batch.
    pub batch: u64,
    /// Compute between two batches.
    pub compute_s_per_batch: f64,
    /// Read of a sample from the bucket.
    pub bucket_s: f64,
    /// Read of a sample from the cache.
    pub cache_s: f64,
    /// Fetch of no sample: the listing.
    pub fetch_fixed_s: f64,
    /// Each sample of a fetch.
    pub fetch_per_sample_s: f64,
    /// Samples a fetch, where the table prefetches and does not say.
    pub fetch_size: u64,
    /// Of the order.
    pub seed: u64,
}

/// How samples are read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "loader")]
pub enum Setting {
    /// From the bucket.
    Bucket,
    /// From a cache of what was read.
    Demand {
        /// Samples a node; absent: no limit.
        cache: Option<u64>,
    },
    /// From a cache that is filled ahead.
    Prefetch {
        /// Samples a node; absent: no limit.
        cache: Option<u64>,
        /// Samples a fetch.
        fetch: u64,
        /// The queue's length at which more is asked for.
        threshold: u64,
    },
}

/// Data wait and misses of a node and epoch.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Wait {
    /// Seconds inside the loader.
    pub wait_s: f64,
    /// Samples that were read from the bucket by the trainer.
    pub misses: f64,
    /// Misses over accesses.
    pub miss_rate: f64,
}

/// A row of the table, or all rows of a setting and epoch, with what is predicted. Measured is what the table says, where it does.
#[derive(Clone, Debug, Serialize)]
pub struct Predicted {
    /// Line of the file; absent for all rows of a setting.
    pub line: Option<usize>,
    /// How it reads.
    #[serde(flatten)]
    pub setting: Setting,
    /// From 1.
    pub epoch: u64,
    /// The prediction.
    pub predicted: Wait,
    /// Seconds inside the loader, mean of the rows that say it.
    pub measured_wait_s: Option<f64>,
    /// Misses over accesses, mean of the rows that say it.
    pub measured_miss_rate: Option<f64>,
    /// |predicted / measured - 1| of the wait.
    pub wait_error: Option<f64>,
    /// |predicted - measured| of the miss rate, in points.
    pub miss_rate_points: Option<f64>,
}

/// All predictions for a table.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Median of the settings' errors of the wait.
    pub median_wait_error: Option<f64>,
    /// By setting and epoch.
    pub settings: Vec<Predicted>,
    /// By row of the table.
    pub rows: Vec<Predicted>,
}

impl Setup {
    /// # Errors
    /// `Usage` for counts of zero or above their limits, and negative times.
    pub fn validate(&self) -> Result<()> {
        let counts = [
            ("samples", self.samples, SAMPLES_MAX),
            ("nodes", self.nodes, NODES_MAX),
            ("batch", self.batch, SAMPLES_MAX),
            ("fetch size", self.fetch_size, SAMPLES_MAX),
        ];
        if let Some((name, value, most)) = counts.into_iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            return usage(format!("{name} is {value}"), format!("give 1 to {most}"));
        }
        let times =
            [self.compute_s_per_batch, self.bucket_s, self.cache_s, self.fetch_fixed_s, self.fetch_per_sample_s];
        match times.into_iter().find(|time| !(time.is_finite() && *time >= 0.0)) {
            Some(wrong) => usage(format!("a time is {wrong} seconds"), "give 0 or more"),
            None => Ok(()),
        }
    }

    /// Data wait of each epoch, mean of the nodes, when each node reads `accesses` samples an epoch.
    ///
    /// # Errors
    /// As [`Setup::validate`]; `Usage` for more than 100 epochs, 20 million samples, or 200 million samples times nodes.
    pub fn predict(&self, setting: Setting, accesses: u64, epochs: u64) -> Result<Vec<Wait>> {
        self.validate()?;
        let samples = accesses.saturating_mul(self.nodes);
        if epochs > EPOCHS_MAX || samples > SAMPLES_MAX || samples * self.nodes > NODE_SAMPLES_MAX {
            return usage(
                format!("{samples} samples an epoch, {epochs} epochs"),
                format!("predict at most {SAMPLES_MAX} samples, {EPOCHS_MAX} epochs, and fewer samples on many nodes"),
            );
        }
        let mut nodes: Vec<Node> = (0..self.nodes).map(|_| Node::new(self, setting, samples as usize)).collect();
        let mut order: Vec<u32> = (0..samples as u32).collect();
        let mut prng = Prng::new(self.seed);
        let mut waits = Vec::new();
        for _ in 0..epochs {
            // Fisher and Yates.
            (1..order.len()).rev().for_each(|last| order.swap(last, prng.below(last as u64 + 1) as usize));
            let mut sum = Wait::default();
            for (node, ids) in nodes.iter_mut().zip(order.chunks(accesses.max(1) as usize)) {
                let (wait_s, misses) = node.epoch(ids);
                sum.wait_s += wait_s / self.nodes as f64;
                sum.misses += misses as f64 / self.nodes as f64;
            }
            waits.push(Wait { miss_rate: sum.misses / accesses.max(1) as f64, ..sum });
        }
        Ok(waits)
    }
}

/// A node in the middle of its run.
struct Node<'s> {
    setup: &'s Setup,
    setting: Setting,
    now_s: f64,
    cached: Vec<bool>,
    /// First in, first out.
    fifo: VecDeque<u32>,
    /// Asked for and not begun: when, and what.
    asked: VecDeque<(f64, Vec<u32>)>,
    /// Being fetched: when all has landed, and what.
    fetching: Option<(f64, Vec<u32>)>,
    /// When the service ended its last fetch.
    free_s: f64,
}

impl<'s> Node<'s> {
    fn new(setup: &'s Setup, setting: Setting, samples: usize) -> Node<'s> {
        let cached = vec![false; samples];
        let (fifo, asked) = Default::default();
        Node { setup, setting, now_s: 0.0, cached, fifo, asked, fetching: None, free_s: 0.0 }
    }

    /// Reads an epoch's samples in order, and returns the data wait in seconds and the misses.
    fn epoch(&mut self, ids: &[u32]) -> (f64, u64) {
        let (mut wait_s, mut misses) = (0.0, 0);
        let (mut drawn, mut asked) = (0, 0);
        for batch in ids.chunks(self.setup.batch as usize) {
            if let Setting::Prefetch { fetch, threshold, .. } = self.setting {
                for _ in batch {
                    // The queue is looked at before a sample is drawn from it.
                    if asked < ids.len() && asked - drawn <= threshold as usize {
                        let end = ids.len().min(asked.saturating_add(fetch.max(1) as usize));
                        self.asked.push_back((self.now_s, ids[asked..end].to_vec()));
                        asked = end;
                    }
                    drawn += 1;
                }
            }
            for id in batch {
                let (read_s, missed) = self.read(*id);
                self.now_s += read_s;
                wait_s += read_s;
                misses += u64::from(missed);
            }
            self.now_s += self.setup.compute_s_per_batch;
        }
        (wait_s, misses)
    }

    /// Seconds to read a sample, and whether it missed.
    fn read(&mut self, id: u32) -> (f64, bool) {
        let Setup { bucket_s, cache_s, .. } = *self.setup;
        match self.setting {
            Setting::Bucket => (bucket_s, true),
            Setting::Demand { cache } => {
                if self.cached[id as usize] {
                    return (cache_s, false);
                }
                self.keep(id, cache);
                (bucket_s + cache_s, true)
            }
            Setting::Prefetch { cache, .. } => {
                self.land(cache);
                if self.cached[id as usize] { (cache_s, false) } else { (bucket_s, true) }
            }
        }
    }

    /// Moves the service up to now.
    fn land(&mut self, cache: Option<u64>) {
        loop {
            match self.fetching.take() {
                Some((landed_s, ids)) if landed_s <= self.now_s => {
                    ids.into_iter().for_each(|id| self.keep(id, cache));
                    self.free_s = landed_s;
                }
                Some(fetching) => {
                    self.fetching = Some(fetching);
                    return;
                }
                None => {
                    let Some((asked_s, ids)) = self.asked.pop_front() else { return };
                    let missing = ids.iter().filter(|id| !self.cached[**id as usize]).count();
                    let takes_s = self.setup.fetch_fixed_s + self.setup.fetch_per_sample_s * missing as f64;
                    self.fetching = Some((self.free_s.max(asked_s) + takes_s, ids));
                }
            }
        }
    }

    fn keep(&mut self, id: u32, cache: Option<u64>) {
        if self.cached[id as usize] || cache == Some(0) {
            return;
        }
        if cache.is_some_and(|most| self.fifo.len() as u64 >= most)
            && let Some(oldest) = self.fifo.pop_front()
        {
            self.cached[oldest as usize] = false;
        }
        self.fifo.push_back(id);
        self.cached[id as usize] = true;
    }
}

/// Predicts every row of a table of published settings. Columns as published: `Epoch`, and of `Cache Size`, `Fetch Size`,
/// `Minimum Queue Size`, `Number of Accesses`, `Data Loading Time (s)` and `Miss Rate` those that there are. Sizes that are `N/A` or empty
/// have no limit. A table without cache and fetch columns reads from the bucket.
///
/// # Errors
/// As [`Setup::predict`]; `Usage` for a cell that is no count (with its line), and for the table of the local disk, which is measured and
/// not predicted.
pub fn predict(setup: &Setup, table: &Table) -> Result<Report> {
    if !table.has(&["Epoch"]) || table.has(&["Disk Loading Time (s)"]) {
        return usage(
            format!("nothing is predicted for a table with the columns {}", table.columns()),
            "give rows that read from the bucket, a demand cache or a prefetching one, with the column Epoch",
        );
    }
    let mut cases = Vec::new();
    let mut epochs: BTreeMap<(Setting, u64), u64> = BTreeMap::new();
    for row in table.rows() {
        let (setting, epoch) = (setting(setup, table, &row)?, count(&row, "Epoch", 1.0)?.unwrap_or(1));
        let accesses = count(&row, "Number of Accesses", 1.0)?.unwrap_or(setup.samples.div_ceil(setup.nodes.max(1)));
        let last = epochs.entry((setting, accesses)).or_default();
        *last = epoch.max(*last);
        cases.push((row, setting, accesses, epoch));
    }
    let predict = |((setting, accesses), epochs)| Ok(((setting, accesses), setup.predict(setting, accesses, epochs)?));
    let waits = epochs.into_iter().map(predict).collect::<Result<BTreeMap<_, _>>>()?;
    let predicted = |(row, setting, accesses, epoch): (Row<'_>, Setting, u64, u64)| {
        let predicted = waits[&(setting, accesses)][epoch as usize - 1];
        let measured = [number(&row, "Data Loading Time (s)")?, number(&row, "Miss Rate")?];
        Ok(Predicted::new(Some(row.line()), (setting, epoch), predicted, measured))
    };
    let rows = cases.into_iter().map(predicted).collect::<Result<Vec<_>>>()?;
    let settings = summaries(&rows);
    let mut errors: Vec<f64> = settings.iter().filter_map(|setting| setting.wait_error).collect();
    errors.sort_by(f64::total_cmp);
    let middle = |at: usize| errors.get(at).copied();
    let high = middle(errors.len() / 2);
    let median = middle(errors.len().saturating_sub(1) / 2).zip(high).map(|(low, high)| f64::midpoint(low, high));
    Ok(Report { median_wait_error: median, settings, rows })
}

/// A number, or nothing where there is no such column, no cell or `N/A`.
fn number(row: &Row<'_>, column: &str) -> Result<Option<f64>> {
    match row.text(column) {
        None | Some("" | "N/A") => Ok(None),
        Some(text) => match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
            _ => usage(format!("line {}: {column} is '{text}'", row.line()), "give a number, 0 or more, or N/A"),
        },
    }
}

/// A whole number, as [`number`].
fn count(row: &Row<'_>, column: &str, least: f64) -> Result<Option<u64>> {
    match number(row, column)? {
        Some(count) if count.fract() != 0.0 || count < least => usage(
            format!("line {}: {column} is '{count}'", row.line()),
            format!("give a whole number, {least} or more, or N/A"),
        ),
        count => Ok(count.map(|count| count as u64)),
    }
}

fn setting(setup: &Setup, table: &Table, row: &Row<'_>) -> Result<Setting> {
    let cache = count(row, "Cache Size", 1.0)?;
    Ok(if table.has(&["Fetch Size"]) || table.has(&["Minimum Queue Size"]) {
        let fetch = count(row, "Fetch Size", 1.0)?.unwrap_or(setup.fetch_size);
        Setting::Prefetch { cache, fetch, threshold: count(row, "Minimum Queue Size", 0.0)?.unwrap_or(0) }
    } else if table.has(&["Cache Size"]) {
        Setting::Demand { cache }
    } else {
        Setting::Bucket
    })
}

fn summaries(rows: &[Predicted]) -> Vec<Predicted> {
    let mut groups: BTreeMap<(Setting, u64), Vec<&Predicted>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.setting, row.epoch)).or_default().push(row);
    }
    // Rows of a setting may differ in how much they read.
    let mean = |of: fn(&Predicted) -> Option<f64>, rows: &[&Predicted]| {
        let values: Vec<f64> = rows.iter().filter_map(|row| of(row)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let summary = |(case, rows): ((Setting, u64), Vec<&Predicted>)| {
        let measured = [mean(|row| row.measured_wait_s, &rows), mean(|row| row.measured_miss_rate, &rows)];
        let predicted = |of: fn(&Predicted) -> Option<f64>| mean(of, &rows).unwrap_or(0.0);
        let predicted = Wait {
            wait_s: predicted(|row| Some(row.predicted.wait_s)),
            misses: predicted(|row| Some(row.predicted.misses)),
            miss_rate: predicted(|row| Some(row.predicted.miss_rate)),
        };
        Predicted::new(None, case, predicted, measured)
    };
    groups.into_iter().map(summary).collect()
}

impl Predicted {
    fn new(
        line: Option<usize>,
        (setting, epoch): (Setting, u64),
        predicted: Wait,
        [measured_wait_s, measured_miss_rate]: [Option<f64>; 2],
    ) -> Predicted {
        let wait_error = measured_wait_s
            .filter(|measured| *measured > 0.0)
            .map(|measured| (predicted.wait_s / measured - 1.0).abs());
        let miss_rate_points = measured_miss_rate.map(|measured| (predicted.miss_rate - measured).abs() * 100.0);
        Predicted { line, setting, epoch, predicted, measured_wait_s, measured_miss_rate, wait_error, miss_rate_points }
    }
}
