//! What a seed stands for: data set, order, lives, loaders, bucket, faults and consumer.
//!
//! Plain numbers with their units in the names; printed in every report. Decides nothing at run time.

use fuelrail_base::Instant;
use fuelrail_base::prng::{Prng, mix64};
use fuelrail_io::SimFaults;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::policy::PolicyName;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

mod disk;
mod draw;

pub(crate) use disk::SEGMENT_BYTES;
pub use disk::{DiskFailure, DiskShape};

/// Everything one run is made of.
#[derive(Clone, Debug, Serialize)]
pub struct Scenario {
    /// The seed it was drawn from; all later randomness derives from it.
    pub seed: u64,
    /// Length of every object, bytes.
    #[serde(skip)]
    pub sizes: Vec<u64>,
    /// Objects in the data set.
    pub samples: u64,
    /// Sum of their lengths.
    pub total_bytes: u64,
    /// Longest block, bytes.
    pub block_bytes: u64,
    /// Which shuffle.
    #[serde(serialize_with = "as_word")]
    pub order: OrderName,
    /// Whether epochs are shuffled.
    pub shuffle: bool,
    /// Whether a last step that is not full is dropped.
    pub drop_last: bool,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// Samples per batch and rank.
    pub batch_size: u32,
    /// Whether the ranks take their batches step by step together, as gradient exchange makes them do.
    pub lockstep: bool,
    /// One after another: each but the last is killed, the next resumes.
    pub lives: Vec<LifeShape>,
    /// How each rank's loader is configured.
    pub loader: LoaderShape,
    /// How the bucket behaves when nothing is wrong.
    pub bucket: BucketShape,
    /// What goes wrong in it.
    pub faults: FaultShares,
    /// A time in which it serves nothing at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<OutageShape>,
    /// The disk of each machine, where ranks keep blocks; `None`: they keep none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskShape>,
    /// What goes wrong in the rings.
    #[serde(serialize_with = "as_text")]
    pub ring: SimFaults,
    /// How the trainer takes its batches.
    pub consumer: ConsumerShape,
    /// Samples that can never be had, and why.
    pub hopeless: Vec<(u64, Despair)>,
}

/// One life of the job: from a cursor to the end or to a kill.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LifeShape {
    /// Ranks.
    pub world: u32,
    /// Kill all ranks after so many global steps (and a few events more); `None`: run to the end.
    pub kill_after_steps: Option<u64>,
    /// Events more.
    pub kill_after_events: u64,
}

/// One rank's loader.
#[derive(Clone, Debug, Serialize)]
pub struct LoaderShape {
    /// Shards per rank.
    pub shards: u16,
    /// RAM cache of one rank, bytes over all shards.
    pub cache_bytes: u64,
    /// Cache policy, as the configuration writes it.
    #[serde(serialize_with = "as_word")]
    pub policy: PolicyName,
    /// DELI's prefetch, with this fetch size and threshold, samples; `None`: ours.
    pub watermarks: Option<(u64, u64)>,
    /// Epochs in which the next use is looked for.
    pub horizon_epochs: u64,
    /// Room for batches of each shard, bytes.
    pub room_bytes: u64,
    /// Connections of each shard at the start.
    pub connections_start: usize,
    /// Most connections of each shard.
    pub connections_max: usize,
    /// Most pipelined requests.
    pub depth_max: usize,
    /// Operations the simulated ring takes at a time.
    pub ring_entries: u32,
    /// Sockets it has.
    pub ring_sockets: u32,
    /// Batches between a shard and the consumer.
    pub deliver_entries: usize,
    /// Silence after which a connection is given up, ms.
    pub stall_after_ms: u64,
    /// Attempts per block.
    pub attempts_max: u32,
    /// Most requests sent a second time, in per cent of all.
    pub hedge_percent: u32,
    /// None is sent sooner than this, µs.
    pub hedge_delay_us_min: u64,
    /// Spare slots of each shard for them.
    pub spare_slots: usize,
    /// Length of each, bytes.
    pub spare_bytes: usize,
    /// First retry wait, µs.
    pub retry_base_us: u64,
    /// Longest retry wait, µs.
    pub retry_cap_us: u64,
    /// `raise`, `skip` or `quarantine`.
    pub bad_samples: &'static str,
}

/// The bucket's manners.
#[derive(Clone, Debug, Serialize)]
pub struct BucketShape {
    /// Style of response heads.
    pub flavour: Flavour,
    /// Least and most time to the first byte, µs.
    pub latency_us: (u64, u64),
    /// Time to connect, µs.
    pub connect_us: u64,
    /// Bytes per second of one connection.
    pub connection_bytes_per_s: u64,
    /// Bytes per second of all connections together; 0 is no limit.
    pub total_bytes_per_s: u64,
    /// Requests per second of all connections together: those beyond are asked to slow down. 0 is no limit.
    pub requests_per_s: u64,
    /// Bytes that arrive together.
    pub segment_bytes: usize,
    /// Share of responses sent in chunks.
    pub chunked: f64,
    /// Share of responses without length, ended by closing.
    pub until_close: f64,
    /// Close a connection after so many responses; 0 is never.
    pub responses_per_connection: u64,
    /// Whether that end is announced with `Connection: close`.
    pub announces_close: bool,
    /// Share of responses with interim heads in front.
    pub interim: f64,
    /// Whether listing and responses carry entity tags: (listing, responses).
    pub etags: (bool, bool),
    /// Whether whole objects come with their CRC-32C.
    pub crc32c: bool,
    /// Whether parts of objects do, with that of the whole.
    pub crc32c_of_parts: bool,
    /// Addresses the host resolves to; with more than one, the first never responds.
    pub addresses: usize,
}

/// Style of response heads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Flavour {
    /// Many lines of constant length.
    S3,
    /// Few lines.
    Nginx,
    /// The length changes from one to the next.
    Varying,
}

/// Probability of each fault per request; at most one fault per response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FaultShares {
    /// 503, some with Retry-After.
    pub slow_down: f64,
    /// 500.
    pub server_error: f64,
    /// Reset within the response.
    pub reset: f64,
    /// Orderly end within the response.
    pub finish: f64,
    /// Silence within the response.
    pub stall: f64,
    /// Content-Length is not the object's.
    pub wrong_length: f64,
    /// Another entity tag on the right bytes.
    pub wrong_etag: f64,
    /// Another version of the object.
    pub changed: f64,
    /// Not HTTP.
    pub garbage: f64,
    /// Content-Range is not the one requested.
    pub wrong_range: f64,
    /// The whole object instead of the part requested.
    pub ignored_range: f64,
    /// Bytes after the end of the response.
    pub extra_bytes: f64,
    /// One bit of the body flipped, where a checksum tells.
    pub flipped: f64,
    /// The response drips in.
    pub drip: f64,
    /// A connection is refused.
    pub refused: f64,
    /// Most faults on one object in one life.
    pub per_key_max: u32,
}

/// A time in which the bucket serves nothing at all.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct OutageShape {
    /// It begins so long after the life does, ms.
    pub from_ms: u64,
    /// It lasts so long, ms.
    pub for_ms: u64,
    /// What is seen of it.
    pub how: Down,
}

impl OutageShape {
    pub(crate) fn covers(&self, now: Instant) -> bool {
        let ms = u64::try_from(now.since(Instant::ZERO).as_millis()).unwrap_or(u64::MAX);
        (self.from_ms..self.from_ms + self.for_ms).contains(&ms)
    }
}

/// What is seen of a bucket that is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Down {
    /// Connections are refused, and open ones reset.
    Refused,
    /// Connections are accepted, and reset with the first request.
    Reset,
    /// Nothing is answered.
    Silent,
    /// 503, always.
    SlowDown,
    /// 500, always.
    ServerError,
}

/// The trainer.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ConsumerShape {
    /// Mean step, µs.
    pub step_us: u64,
    /// Whether all steps take as long as the mean one.
    pub steady: bool,
    /// Share of steps that take long.
    pub pause: f64,
    /// How long, ms.
    pub pause_ms: u64,
    /// Batches held at once.
    pub leases_max: usize,
    /// How long each is held at most, ms.
    pub lease_ms: u64,
}

/// Why a sample can never be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Despair {
    /// 404 always.
    NotFound,
    /// 403 always.
    Denied,
    /// 500 always.
    ServerError,
}

impl Scenario {
    /// A generator of its own for each part of a run, so that one part's draws do not move another's.
    pub(crate) fn prng(&self, life: usize, part: &str) -> Prng {
        let name = part.bytes().fold(0u64, |hash, byte| mix64(hash ^ u64::from(byte)));
        Prng::new(mix64(self.seed) ^ mix64(name.wrapping_add(life as u64)))
    }

    /// Whether nothing at all goes wrong, in bucket and rings.
    pub fn is_calm(&self) -> bool {
        self.faults
            == FaultShares { per_key_max: self.faults.per_key_max, drip: self.faults.drip, ..Default::default() }
            && !self.rings_break()
            && self.outage.is_none()
            && self.bucket.addresses == 1
            && self.bucket.requests_per_s == 0
            && self.hopeless.is_empty()
            && (self.bucket.responses_per_connection == 0 || self.bucket.announces_close)
    }

    /// Longest a batch may be waited for when nothing goes wrong: every rank's whole data set over one slow connection,
    /// and what the consumer itself holds up.
    pub(crate) fn calm_wait(&self, world: u32) -> Duration {
        let blocks: u64 = self.sizes.iter().map(|size| size.div_ceil(self.block_bytes)).sum();
        let (ranks, b) = (u64::from(world), &self.bucket);
        let transfer = Duration::from_secs_f64((ranks * self.total_bytes) as f64 / self.slowest_bytes_per_s());
        let requests = Duration::from_micros(b.latency_us.1 + b.connect_us) * u32::try_from(blocks).unwrap_or(u32::MAX);
        let disk = self.disk.as_ref().map_or(Duration::ZERO, |disk| disk.cost(blocks));
        transfer + requests + disk + Duration::from_millis(self.consumer.lease_ms) + Duration::from_secs(1)
    }

    /// Longest a silent connection is kept.
    pub(crate) fn stall_cost(&self) -> Duration {
        // The sweep looks four times in this time, and may just have looked.
        Duration::from_millis(self.loader.stall_after_ms) * 3 / 2
    }

    /// Longest a failed fetch keeps a connection.
    pub(crate) fn attempt_cost(&self) -> Duration {
        let largest = self.sizes.iter().max().copied().unwrap_or(0).min(self.block_bytes) + 4096;
        let b = &self.bucket;
        Duration::from_secs_f64(largest as f64 / self.slowest_bytes_per_s())
            + Duration::from_micros(b.latency_us.1 + b.connect_us)
            + self.ring.delay_max
    }

    /// Longest pause before an attempt.
    pub(crate) fn retry_cost(&self) -> Duration {
        let asked_for = if self.faults.slow_down > 0.0 { RETRY_AFTER_S_MAX } else { 0 };
        Duration::from_micros(self.loader.retry_cap_us) + Duration::from_secs(asked_for)
    }

    /// Longest that a time without service may be felt: it ends unseen for a while.
    pub(crate) fn outage_cost(&self) -> Duration {
        self.outage.map_or(Duration::ZERO, |outage| Duration::from_millis(outage.for_ms) + Duration::from_secs(2))
    }

    fn slowest_bytes_per_s(&self) -> f64 {
        let b = &self.bucket;
        let total = if b.total_bytes_per_s == 0 { u64::MAX } else { b.total_bytes_per_s };
        b.connection_bytes_per_s.min(total) as f64
    }

    /// Whether the rings make attempts fail.
    fn rings_break(&self) -> bool {
        self.ring.fatal_errno > 0.0 || self.ring.transient_errno > 0.0 || self.ring.no_memory > 0.0
    }

    /// Whether the rings let every operation on a file end well.
    pub(crate) fn rings_keep_files(&self) -> bool {
        self.ring.no_memory == 0.0 && self.ring.no_descriptor == 0.0 && self.ring.disk_errno == 0.0
    }

    /// Whether the rings hide no failure of the bucket from the client.
    pub(crate) fn rings_are_quiet(&self) -> bool {
        let SimFaults { short_receive, short_send, reorder, delay, no_descriptor, overflow, .. } = self.ring;
        !self.rings_break()
            && [short_receive, short_send, reorder, delay, no_descriptor, overflow].iter().all(|&part| part == 0.0)
    }
}

/// Longest Retry-After the bucket sends, seconds.
pub(crate) const RETRY_AFTER_S_MAX: u64 = 3;

fn as_text<T: fmt::Debug, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:?}"))
}

fn as_word<N: fmt::Display, S: serde::Serializer>(name: &N, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&name.to_string())
}
