//! What limits throughput: inferred from the best point's neighbours and from the machine's facts.

use core::fmt;

use super::search::Search;
use super::{Axis, Measured, Point};

/// The first thing that would have to change for more speed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    /// The network card is full.
    Link {
        /// Share of its speed that is used.
        share: f64,
    },
    /// The server asks to slow down.
    Throttled,
    /// The shards' cores are busy and there are no more of them.
    Cpu {
        /// Shards, each with a core.
        shards: u64,
        /// Share of the time the busiest one works.
        busy: f64,
    },
    /// Every connection waits for answers, and the most that were tried still brought more.
    Latency {
        /// Requests under way.
        in_flight: f64,
        /// Median time to an answer's last byte, s.
        latency_s: f64,
    },
    /// More memory to look ahead in still brought more.
    Memory {
        /// The most that was tried, bytes.
        bytes: u64,
    },
    /// None of these: the bucket, or the network path to it, gives no more under any setting.
    Bucket {
        /// Share of the time the busiest shard works.
        busy: f64,
    },
}

const LINK_FULL: f64 = 0.85;
const CORE_FULL: f64 = 0.85;
/// A step that brought less than this share more was not worth it.
const GAIN_MIN: f64 = 0.05;

/// What limits the best point of a search, over a network card that carries so many bytes per second, where that is known; `None` while
/// the point was not tried.
pub fn limit(search: &Search, link_bytes_per_s: Option<f64>) -> Option<Limit> {
    let (space, best) = (search.space(), search.best());
    let mean = |point: &Point, what: fn(&Measured) -> f64| {
        let trials = search.trials().get(point).filter(|trials| !trials.told.is_empty())?;
        Some(trials.mean_of(what))
    };
    let speed = mean(best, |m| m.bytes_per_s)?;
    let busy = mean(best, |m| m.busy)?;
    let is_last = |axis| space.step(best, axis, 1).is_none();
    // Whether the last step up to the best brought something.
    let gained = |axis| {
        let before = space.step(best, axis, -1).and_then(|point| mean(&point, |m| m.bytes_per_s));
        before.is_some_and(|before| speed > before * (1.0 + GAIN_MIN))
    };
    if let Some(share) = link_bytes_per_s.map(|link| speed / link).filter(|share| *share >= LINK_FULL) {
        return Some(Limit::Link { share });
    }
    if mean(best, |m| m.throttled as f64)? > 0.0 {
        return Some(Limit::Throttled);
    }
    if busy >= CORE_FULL && is_last(Axis::Shards) {
        return Some(Limit::Cpu { shards: space.value(best, Axis::Shards).unwrap_or(1), busy });
    }
    if is_last(Axis::Connections) && gained(Axis::Connections) {
        let in_flight = mean(best, |m| m.requests_in_flight)?;
        return Some(Limit::Latency { in_flight, latency_s: mean(best, |m| m.latency_s)? });
    }
    if let Some(bytes) =
        space.value(best, Axis::MemoryBytes).filter(|_| is_last(Axis::MemoryBytes) && gained(Axis::MemoryBytes))
    {
        return Some(Limit::Memory { bytes });
    }
    Some(Limit::Bucket { busy })
}

impl Limit {
    /// One word.
    pub fn name(&self) -> &'static str {
        match self {
            Limit::Link { .. } => "link",
            Limit::Throttled => "throttled",
            Limit::Cpu { .. } => "cpu",
            Limit::Latency { .. } => "latency",
            Limit::Memory { .. } => "memory",
            Limit::Bucket { .. } => "bucket",
        }
    }
}

/// A sentence with what would help.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Link { share } => {
                write!(f, "the network card carries {:.0} % of what it can: only a faster one brings more", share * 100.0)
            }
            Limit::Throttled => f.write_str(
                "the server asks to slow down: spread the keys over more prefixes, or ask the provider for a higher rate",
            ),
            Limit::Cpu { shards, busy } => write!(
                f,
                "the cores are full: {shards} shard(s), the busiest at work {:.0} % of the time; more cores bring more",
                busy * 100.0
            ),
            Limit::Latency { in_flight, latency_s } => write!(
                f,
                "latency: {in_flight:.0} requests under way at {:.1} ms each, and more connections still brought more; \
                 raise connections_max further or move closer to the bucket",
                latency_s * 1e3
            ),
            Limit::Memory { bytes } => write!(
                f,
                "memory to look ahead in: {} was the most that was allowed, and it still brought more; raise memory_limit",
                fuelrail_base::ByteSize(*bytes)
            ),
            Limit::Bucket { busy } => write!(
                f,
                "the bucket or the way to it: the cores are at work {:.0} % of the time, and nothing that was tried of \
                 connections, shards and memory brought more",
                busy * 100.0
            ),
        }
    }
}
