//! The result of a row of the experiment: the shape of `rows` in the report.
//!
//! Owns names and fields, and the sums, means and quantiles behind them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::trainer::RankEpoch;

/// The rows, in the order they are shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowName {
    /// Files on the local disk, one after the other.
    LocalDisk,
    /// The bucket, one `GET` at a time.
    Bucket,
    /// A demand cache for a quarter of the node's samples.
    #[serde(rename = "demand_fifo_25")]
    DemandFifo25,
    /// A demand cache for half of the node's samples.
    #[serde(rename = "demand_fifo_50")]
    DemandFifo50,
    /// A demand cache for three quarters of the node's samples.
    #[serde(rename = "demand_fifo_75")]
    DemandFifo75,
    /// A demand cache that never evicts.
    DemandUnlimited,
    /// DELI with threshold 0 and fetches as large as the cache.
    DeliFullFetch,
    /// DELI with threshold and fetch size of half the cache: the best published setting.
    #[serde(rename = "deli_50_50")]
    Deli5050,
    /// DELI's full fetch with as many connections as Fuelrail has.
    DeliFullFetchWide,
    /// DELI's 50/50 with as many connections as Fuelrail has.
    #[serde(rename = "deli_50_50_wide")]
    Deli5050Wide,
    /// This engine.
    Fuelrail,
}

fuelrail_base::named!(
    RowName,
    "a row":
    LocalDisk = "local_disk",
    Bucket = "bucket",
    DemandFifo25 = "demand_fifo_25",
    DemandFifo50 = "demand_fifo_50",
    DemandFifo75 = "demand_fifo_75",
    DemandUnlimited = "demand_unlimited",
    DeliFullFetch = "deli_full_fetch",
    Deli5050 = "deli_50_50",
    DeliFullFetchWide = "deli_full_fetch_wide",
    Deli5050Wide = "deli_50_50_wide",
    Fuelrail = "fuelrail",
);

impl RowName {
    /// The name for display.
    pub fn title(self) -> &'static str {
        match self {
            RowName::LocalDisk => "Local disk",
            RowName::Bucket => "Bucket, one GET at a time",
            RowName::DemandFifo25 => "Demand cache, 25 %",
            RowName::DemandFifo50 => "Demand cache, 50 %",
            RowName::DemandFifo75 => "Demand cache, 75 %",
            RowName::DemandUnlimited => "Demand cache, unlimited",
            RowName::DeliFullFetch => "DELI, full fetch",
            RowName::Deli5050 => "DELI, 50/50",
            RowName::DeliFullFetchWide => "DELI, full fetch, more connections",
            RowName::Deli5050Wide => "DELI, 50/50, more connections",
            RowName::Fuelrail => "Fuelrail",
        }
    }
}

/// One epoch of a row. Times are means over the ranks, counts are sums over them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Epoch {
    /// Counted from 1, as in the paper.
    pub epoch: u64,
    /// Time inside `next`, s. In epoch 1 it includes opening the source.
    pub data_wait_s: f64,
    /// Relative reduction of the bucket row's data wait in this epoch.
    pub wait_reduction: f64,
    /// From the start of the epoch to the end of its last step, s.
    pub epoch_s: f64,
    /// Time in simulated steps, s.
    pub step_s: f64,
    /// Share of the samples that were not ready when the trainer asked for them.
    pub miss_rate: f64,
    /// 99th percentile of the batch waits of all ranks, ms.
    pub batch_wait_p99_ms: f64,
    /// CPU time of all ranks together, without the bucket's, s.
    pub cpu_s: f64,
    /// Objects read from the bucket.
    pub gets: u64,
    /// Pages of listings read from the bucket.
    pub list_pages: u64,
    /// Samples delivered and compared with the generator.
    pub samples: u64,
    /// Their total bytes.
    pub bytes: u64,
    /// Data wait of every step, ms.
    pub step_wait_ms: Vec<f64>,
}

/// A row of the experiment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name.
    pub name: RowName,
    /// Time inside `next` per epoch, mean over epochs and ranks, s.
    pub data_wait_s: f64,
    /// Relative reduction of the bucket row's data wait.
    pub wait_reduction: f64,
    /// Time per epoch, mean over epochs and ranks, s.
    pub epoch_s: f64,
    /// From the start (before the source is opened) to the first batch, mean over ranks, ms.
    pub first_batch_ms: f64,
    /// Share of the samples that were not ready, in the last epoch.
    pub miss_rate: f64,
    /// 99th percentile of the batch waits of all ranks and epochs, ms.
    pub batch_wait_p99_ms: f64,
    /// CPU time of all ranks and epochs, without the bucket's, s.
    pub cpu_s: f64,
    /// Peak resident memory of the process while the row ran, including the bucket and the reference bytes.
    pub peak_rss_bytes: u64,
    /// Resident memory before the row started.
    pub rss_before_bytes: u64,
    /// Peak memory of the row itself, all ranks: bytes in its caches; for the engine, all memory of its loaders.
    pub held_bytes_max: u64,
    /// Connections that each rank may open.
    pub connections: usize,
    /// Rows that ran at the same time and share `peak_rss_bytes`.
    pub side_by_side: Vec<RowName>,
    /// The single epochs.
    pub epochs: Vec<Epoch>,
}

impl Epoch {
    /// Summarises an epoch of these ranks, which used `cpu` together; not yet compared with the bucket's row.
    pub(super) fn of(epoch: u64, ranks: &[RankEpoch], cpu: Duration) -> Epoch {
        let mean =
            |of: fn(&RankEpoch) -> Duration| ranks.iter().map(of).sum::<Duration>().as_secs_f64() / ranks.len() as f64;
        let sum = |of: fn(&RankEpoch) -> u64| ranks.iter().map(of).sum::<u64>();
        let steps = ranks.iter().map(|rank| rank.waits.len()).max().unwrap_or(0);
        let step_wait_ms = |step: usize| {
            let waits = ranks.iter().filter_map(|rank| rank.waits.get(step));
            // Whole microseconds, so that reports are free of insignificant digits.
            (waits.sum::<Duration>().as_secs_f64() / ranks.len() as f64 * 1e6).round() / 1e3
        };
        let samples = sum(|rank| rank.samples);
        Epoch {
            epoch,
            data_wait_s: mean(|rank| rank.waits.iter().sum()),
            wait_reduction: 0.0,
            epoch_s: mean(|rank| rank.whole),
            step_s: mean(|rank| rank.steps),
            miss_rate: sum(|rank| rank.counts.misses) as f64 / samples.max(1) as f64,
            batch_wait_p99_ms: p99_ms(ranks.iter().flat_map(|rank| &rank.waits).copied().collect()),
            cpu_s: cpu.as_secs_f64(),
            gets: sum(|rank| rank.counts.gets),
            list_pages: sum(|rank| rank.counts.list_pages),
            samples,
            bytes: sum(|rank| rank.bytes),
            step_wait_ms: (0..steps).map(step_wait_ms).collect(),
        }
    }
}

impl Row {
    /// Summarises a row: the results of each epoch's ranks, and their CPU time. Memory, connections and the comparison
    /// with the bucket's row are filled in later.
    pub(super) fn of(name: RowName, epochs: &[(Vec<RankEpoch>, Duration)]) -> Row {
        let ranks = || epochs.iter().flat_map(|(ranks, _)| ranks);
        let first_waits: Vec<Duration> =
            epochs.iter().take(1).flat_map(|(ranks, _)| ranks).filter_map(|rank| rank.waits.first().copied()).collect();
        let cpu_s = epochs.iter().map(|(_, cpu)| cpu).sum::<Duration>().as_secs_f64();
        let epochs: Vec<Epoch> =
            (1..).zip(epochs).map(|(number, (ranks, cpu))| Epoch::of(number, ranks, *cpu)).collect();
        let mean = |of: fn(&Epoch) -> f64| epochs.iter().map(of).sum::<f64>() / epochs.len() as f64;
        Row {
            name,
            data_wait_s: mean(|epoch| epoch.data_wait_s),
            wait_reduction: 0.0,
            epoch_s: mean(|epoch| epoch.epoch_s),
            first_batch_ms: ms(first_waits.iter().sum()) / first_waits.len() as f64,
            miss_rate: epochs.last().map_or(0.0, |epoch| epoch.miss_rate),
            batch_wait_p99_ms: p99_ms(ranks().flat_map(|rank| &rank.waits).copied().collect()),
            cpu_s,
            peak_rss_bytes: 0,
            rss_before_bytes: 0,
            held_bytes_max: 0,
            connections: 0,
            side_by_side: Vec::new(),
            epochs,
        }
    }

    /// Fills in the reduction of the bucket row's data wait: 0 when unchanged, negative when it grew.
    pub(super) fn compare(&mut self, bucket: &Row) {
        let reduction = |is: f64, of: f64| if of > 0.0 { 1.0 - is / of } else { 0.0 };
        self.wait_reduction = reduction(self.data_wait_s, bucket.data_wait_s);
        for (epoch, of) in self.epochs.iter_mut().zip(&bucket.epochs) {
            epoch.wait_reduction = reduction(epoch.data_wait_s, of.data_wait_s);
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Returns the smallest wait that at least 99 % of the waits do not exceed, ms.
fn p99_ms(mut waits: Vec<Duration>) -> f64 {
    waits.sort_unstable();
    let rank = (waits.len() * 99).div_ceil(100);
    waits.get(rank.saturating_sub(1)).map_or(0.0, |wait| ms(*wait))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deli::feed::Counts;

    #[test]
    fn quantiles_are_of_what_happened() {
        let waits = |count: u64| (1..=count).map(Duration::from_millis).collect();
        assert_eq!((p99_ms(waits(100)), p99_ms(waits(1)), p99_ms(waits(1000))), (99.0, 1.0, 990.0));
        assert_eq!(p99_ms(Vec::new()), 0.0);
    }

    #[test]
    fn ranks_are_averaged_and_counts_summed() {
        let rank = |wait_ms: u64, misses: u64| RankEpoch {
            waits: vec![Duration::from_millis(wait_ms); 2],
            whole: Duration::from_secs(1),
            counts: Counts { misses, gets: 5, list_pages: 1 },
            samples: 10,
            ..RankEpoch::default()
        };
        let mut row = Row::of(RowName::Bucket, &[(vec![rank(10, 10), rank(30, 0)], Duration::from_secs(3))]);
        let epoch = &row.epochs[0];
        assert!((epoch.data_wait_s - 0.04).abs() < 1e-9 && epoch.step_wait_ms == [20.0, 20.0], "{epoch:?}");
        assert_eq!((epoch.miss_rate, epoch.gets, epoch.list_pages, epoch.samples), (0.5, 10, 2, 20));
        assert_eq!((row.first_batch_ms, row.cpu_s), (20.0, 3.0));
        let bucket = Row { data_wait_s: 0.4, ..row.clone() };
        row.compare(&bucket);
        assert!((row.wait_reduction - 0.9).abs() < 1e-9);
    }
}
