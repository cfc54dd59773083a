//! What a row of the experiment came to: the shape of `rows` in the report.
//!
//! Owns names and fields. Never computes more than sums and means.

use core::fmt;

use serde::{Deserialize, Serialize};

/// The rows, in the order they are shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowName {
    /// Files on the local disk, one after the other.
    LocalDisk,
    /// The bucket, one `GET` at a time.
    Bucket,
    /// A demand cache of a quarter of the node's samples.
    #[serde(rename = "demand_fifo_25")]
    DemandFifo25,
    /// … of half.
    #[serde(rename = "demand_fifo_50")]
    DemandFifo50,
    /// … of three quarters.
    #[serde(rename = "demand_fifo_75")]
    DemandFifo75,
    /// A demand cache that never drops anything.
    DemandUnlimited,
    /// DELI with threshold 0 and fetches as large as the cache.
    DeliFullFetch,
    /// DELI with threshold and fetches of half the cache: the best setting published.
    #[serde(rename = "deli_50_50")]
    Deli5050,
    /// This engine.
    Fuelrail,
}

impl RowName {
    /// All of them.
    pub const ALL: [RowName; 9] = [
        RowName::LocalDisk,
        RowName::Bucket,
        RowName::DemandFifo25,
        RowName::DemandFifo50,
        RowName::DemandFifo75,
        RowName::DemandUnlimited,
        RowName::DeliFullFetch,
        RowName::Deli5050,
        RowName::Fuelrail,
    ];

    /// The name in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            RowName::LocalDisk => "local_disk",
            RowName::Bucket => "bucket",
            RowName::DemandFifo25 => "demand_fifo_25",
            RowName::DemandFifo50 => "demand_fifo_50",
            RowName::DemandFifo75 => "demand_fifo_75",
            RowName::DemandUnlimited => "demand_unlimited",
            RowName::DeliFullFetch => "deli_full_fetch",
            RowName::Deli5050 => "deli_50_50",
            RowName::Fuelrail => "fuelrail",
        }
    }

    /// The name for people.
    #[must_use]
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
            RowName::Fuelrail => "Fuelrail",
        }
    }
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// One epoch of a row. Times are means over the ranks, counts are sums over them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Epoch {
    /// Counted from 1, as in the paper.
    pub epoch: u64,
    /// Time inside `next`, s. In epoch 1 opening the source is in it.
    pub data_wait_s: f64,
    /// Share of the bucket row's data wait in this epoch that is gone.
    pub wait_reduction: f64,
    /// From the start of the epoch to the end of its last step, s.
    pub epoch_s: f64,
    /// Time in simulated steps, s.
    pub step_s: f64,
    /// Share of the samples that were not at hand when the trainer asked.
    pub miss_rate: f64,
    /// 99th percentile of the batch waits of all ranks, ms.
    pub batch_wait_p99_ms: f64,
    /// Processor time of all ranks together, without the bucket's, s.
    pub cpu_s: f64,
    /// Objects read from the bucket.
    pub gets: u64,
    /// Pages of listings read from the bucket.
    pub list_pages: u64,
    /// Samples delivered, and compared with the generator.
    pub samples: u64,
    /// Their bytes.
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
    /// Share of the bucket row's data wait that is gone.
    pub wait_reduction: f64,
    /// Time per epoch, mean over epochs and ranks, s.
    pub epoch_s: f64,
    /// From the start (before the source is opened) to the first batch, mean over ranks, ms.
    pub first_batch_ms: f64,
    /// Share of the samples not at hand, in the last epoch.
    pub miss_rate: f64,
    /// 99th percentile of the batch waits of all ranks and epochs, ms.
    pub batch_wait_p99_ms: f64,
    /// Processor time of all ranks and epochs, without the bucket's, s.
    pub cpu_s: f64,
    /// Most memory the process had resident while the row ran, bucket and reference bytes included.
    pub peak_rss_bytes: u64,
    /// What it had resident before.
    pub rss_before_bytes: u64,
    /// Payload memory of the row itself, all ranks: most bytes in its caches, or the engine's budget.
    pub held_bytes_max: u64,
    /// Rows that ran at the same time and share `peak_rss_bytes`.
    pub side_by_side: Vec<RowName>,
    /// The epochs apart.
    pub epochs: Vec<Epoch>,
}

/// Share of `of` that `is` leaves out: 0 when nothing is gained, negative when it got worse.
pub(super) fn reduction(is: f64, of: f64) -> f64 {
    if of > 0.0 { 1.0 - is / of } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_json_are_those_others_rely_on() {
        for name in RowName::ALL {
            assert_eq!(serde_json::to_string(&name).unwrap(), format!("\"{}\"", name.word()));
        }
    }
}
