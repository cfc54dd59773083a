//! Time of an epoch and what limits it, in closed form: a worker fetches, decodes and computes at the same time.
//!
//! Samples come from RAM, from the disk and from the bucket at the rate F = 1 / (d / C + (1 - r - d) / S), where r and d are the shares of
//! the data that RAM and disk hold, C is the disk's rate and S the bucket's: least of bandwidth, requests, and connections times block over
//! latency. The first epoch finds nothing held.

use serde::Serialize;

/// What one worker has, and what an epoch asks of it. Rates are bytes a second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Loader {
    /// Bytes of the data set that this worker reads in an epoch.
    pub epoch_bytes: f64,
    /// Bytes a request.
    pub block_bytes: f64,
    /// From request to first byte, seconds.
    pub latency_s: f64,
    /// Requests at a time.
    pub connections: f64,
    /// The bucket's rate.
    pub bucket_rate: f64,
    /// Requests a second that the bucket takes from this worker.
    pub request_rate: f64,
    /// RAM for samples.
    pub ram_bytes: f64,
    /// Disk for samples; 0 without one.
    pub disk_bytes: f64,
    /// The disk's rate; not looked at without one.
    pub disk_rate: f64,
    /// Cores that decode.
    pub cores: f64,
    /// Core seconds to decode a byte.
    pub core_s_per_byte: f64,
    /// Compute of an epoch, seconds.
    pub compute_s: f64,
}

/// What limits an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The device.
    Compute,
    /// Round trips to the bucket: more connections or larger blocks help.
    Latency,
    /// Bytes a second of the bucket or the card.
    Bandwidth,
    /// Requests a second of the bucket.
    Requests,
    /// Memory for samples.
    Ram,
    /// Size or speed of the disk.
    Disk,
    /// Decoding.
    Cores,
}

fuelrail_base::named!(Limit, "a limit": Compute = "compute", Latency = "bucket latency", Bandwidth = "bandwidth", Requests = "requests",
    Ram = "memory", Disk = "disk", Cores = "cores");

/// A sum over so many epochs, of which the first counts so much and each later one so much.
pub fn over(epochs: f64, first: f64, later: f64) -> f64 {
    first * epochs.min(1.0) + later * (epochs - 1.0).max(0.0)
}

impl Loader {
    /// Share of the data that RAM and disk hold after the first epoch: first RAM, then disk.
    pub fn held(&self) -> (f64, f64) {
        let ram = (self.ram_bytes / self.epoch_bytes).clamp(0.0, 1.0);
        (ram, (self.disk_bytes / self.epoch_bytes).clamp(0.0, 1.0 - ram))
    }

    /// Bytes a second of samples, when these shares of them are held.
    pub fn rate(&self, (ram, disk): (f64, f64)) -> f64 {
        let bucket = (self.connections * self.block_bytes / self.latency_s)
            .min(self.bucket_rate)
            .min(self.request_rate * self.block_bytes);
        let slow = |share: f64, rate: f64| if share > 0.0 { share / rate } else { 0.0 };
        let fetch_s = slow(disk, self.disk_rate) + slow(1.0 - ram - disk, bucket);
        1.0 / fetch_s.max(slow(self.core_s_per_byte, self.cores)).max(f64::MIN_POSITIVE)
    }

    /// Seconds of the first epoch, and of each later one.
    pub fn epochs_s(&self) -> (f64, f64) {
        let epoch = |held| (self.epoch_bytes / self.rate(held)).max(self.compute_s);
        (epoch((0.0, 0.0)), epoch(self.held()))
    }

    /// Seconds of a run of so many epochs, not all of them whole.
    pub fn run_s(&self, epochs: f64) -> f64 {
        let (first, later) = self.epochs_s();
        over(epochs, first, later)
    }

    /// What limits a run of so many epochs: that whose doubling shortens it most.
    pub fn limit(&self, epochs: f64) -> Limit {
        let doubled = |limit: &Limit| {
            let mut loader = *self;
            match limit {
                Limit::Compute => loader.compute_s /= 2.0,
                Limit::Latency => loader.latency_s /= 2.0,
                Limit::Bandwidth => loader.bucket_rate *= 2.0,
                Limit::Requests => loader.request_rate *= 2.0,
                Limit::Ram => loader.ram_bytes *= 2.0,
                Limit::Disk => {
                    (loader.disk_rate, loader.disk_bytes) = (loader.disk_rate * 2.0, loader.disk_bytes * 2.0)
                }
                Limit::Cores => loader.cores *= 2.0,
            }
            loader.run_s(epochs)
        };
        // The first of equals: compute, where nothing helps alone.
        Limit::ALL.into_iter().min_by(|a, b| doubled(a).total_cmp(&doubled(b))).unwrap_or(Limit::Compute)
    }
}
