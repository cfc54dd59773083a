//! How many connections a shard wants and how many requests it may have in flight, found from what it observes.
//!
//! Four rules. *The window opens when the core idles while work waits*: connections double, once per round (the time a
//! fetch takes), and blindly only up to a bound before anything has landed. *The first landings are the first guess*: twice
//! what lands in the least time to a first byte (Little's law) is kept of what was opened blindly. *Growth must pay*: a doubling that does not
//! raise the landing rate by 5 % is taken back and not tried again for a while, and a halving that costs none stays; where fetches stand in
//! no queue, arithmetic decides that without a try (`level`). *Timeouts shrink* the requests
//! in flight by an eighth, at most once per round, and landings win them back one by one (AIMD: Chiu, Jain 1989). Servers
//! that ask to slow down limit a rate, which the pace finds.
//! Owns these few numbers. Never opens a connection, and never sees a block.

mod level;

use crate::usage;
use fuelrail_base::{Duration, Instant, Result, limits};
use level::{Level, Measure};

/// Least time between doublings, and before the first: what answers within it needs no more connections to be fast.
const DOUBLING_SPACING: Duration = Duration::from_micros(250);
/// Connections wanted at least, and by default, before anything has landed: enough for large blocks, which are not to
/// stand in a queue on a slow link before the first of them is whole. Beyond it, growth needs evidence.
const BLIND_CONNECTIONS_MIN: usize = 8;
/// … and at most, when blocks are so small that all of them together are little.
const BLIND_CONNECTIONS_MAX: usize = 128;
/// What may be requested blindly, bytes: a third of a second of a 100 Mbit/s link.
const BLIND_BYTES: u64 = 4 << 20;
/// A landing weighs its bytes and this many more: what else a request costs server and wire. It keeps the rate of small
/// objects of mixed sizes from being noise.
const REQUEST_WEIGHT_BYTES: u64 = 32 << 10;
/// A round has at least this many landings, and one per connection, or its rate is chance.
const ROUND_LANDINGS_MIN: u64 = 8;
/// A timeout leaves this share of the requests in flight.
const TIMED_OUT_KEEPS: f64 = 0.875;
/// Bytes one connection should have under way: half the default receive buffer of Linux, so that the next response is
/// there when one has been read.
const PIPELINE_BYTES: u64 = 64 << 10;
/// Longest time a request should stand behind others on its connection: servers answer one at a time, and a batch waits
/// for its slowest sample.
const PIPELINE_WAIT: Duration = Duration::from_millis(2);
/// Up to here (half of [`PIPELINE_WAIT`]) even a large block has another request after it.
const PIPELINE_LEAST: usize = 2;

/// Bounds of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowConfig {
    /// Connections wanted at the start.
    pub connections_start: usize,
    /// Fewest ever wanted, unless throttled or started with fewer: where one connection is as fast as many, many cost more
    /// wakes and more unfinished batches.
    pub connections_least: usize,
    /// Most connections ever wanted.
    pub connections_max: usize,
    /// Most requests on one connection.
    pub depth_max: usize,
    /// Most connections wanted before anything has landed: see [`WindowConfig::blind_for`].
    pub connections_blind_max: usize,
}

impl Default for WindowConfig {
    fn default() -> WindowConfig {
        WindowConfig {
            connections_start: 8,
            connections_least: 2,
            connections_max: limits::CONNECTIONS_PER_SHARD_MAX,
            depth_max: limits::PIPELINE_DEPTH_MAX,
            connections_blind_max: BLIND_CONNECTIONS_MIN,
        }
    }
}

impl WindowConfig {
    /// Connections that may be opened blindly for blocks of `block_bytes` on average. The first batch of small objects
    /// then takes one round trip to a far server; a slow link is not flooded with large ones.
    pub fn blind_for(block_bytes: u64) -> usize {
        let fit = usize::try_from(BLIND_BYTES / block_bytes.max(1)).unwrap_or(usize::MAX);
        fit.clamp(BLIND_CONNECTIONS_MIN, BLIND_CONNECTIONS_MAX)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Kind::Usage`] when a bound is zero or above its limit, or the start above the maximum.
    pub fn validate(&self) -> Result<()> {
        let &WindowConfig { connections_start, connections_max, depth_max, .. } = self;
        if connections_start == 0 || connections_start > connections_max {
            let cause = format!("connections_start {connections_start} is not in 1..={connections_max}");
            return usage(cause, "start with at least 1 and at most connections_max");
        }
        if connections_max > limits::CONNECTIONS_PER_SHARD_MAX {
            let most = limits::CONNECTIONS_PER_SHARD_MAX;
            let cause = format!("connections_max {connections_max} is above {most} per shard");
            return usage(cause, "use more shards");
        }
        if depth_max == 0 || depth_max > limits::PIPELINE_DEPTH_MAX {
            let cause = format!("pipeline depth_max {depth_max} is not in 1..={}", limits::PIPELINE_DEPTH_MAX);
            return usage(cause, "1 means no pipelining");
        }
        Ok(())
    }
}

/// What happened since the round began.
#[derive(Clone, Copy, Debug)]
struct Round {
    since: Instant,
    weight: u64,
    landings: u64,
    failures: u64,
    first_byte_least: Duration,
    /// The core slept while fetches waited for a connection: the window was what limited.
    hungry: bool,
    /// The core slept with nothing to fetch: the rate says nothing about the window.
    sated: bool,
}

impl Round {
    fn new(since: Instant) -> Round {
        let first_byte_least = Duration::MAX;
        Round { since, weight: 0, landings: 0, failures: 0, first_byte_least, hungry: false, sated: false }
    }
}

/// The window of one shard.
#[derive(Clone, Debug)]
pub struct Window {
    config: WindowConfig,
    level: Level,
    /// Requests in flight allowed after timeouts; infinite until the first.
    limit: f64,
    disturbed_at: Option<Instant>,
    /// When fetches first waited, or connections last doubled, before anything had landed.
    blind_since: Option<Instant>,
    /// The present round; none before the first landing.
    round: Option<Round>,
    /// The first round is over.
    guessed: bool,
    /// Smoothed time from sending a request to its last byte.
    round_trip: Duration,
    /// Least time to the first byte lately: what the server takes when nothing stands before the request.
    first_byte: Duration,
    /// Least time of a whole fetch so far: what one takes that stands in no queue. It never rises: a queue that is always there would come to
    /// be taken for the way.
    fetch_least: Duration,
}

impl Window {
    /// A window at its start.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the configuration is out of range.
    pub fn new(config: WindowConfig) -> Result<Window> {
        config.validate()?;
        Ok(Window {
            config,
            level: Level::new(
                config.connections_start,
                config.connections_least.min(config.connections_start),
                config.connections_max,
            ),
            limit: f64::INFINITY,
            disturbed_at: None,
            blind_since: None,
            round: None,
            guessed: false,
            round_trip: Duration::ZERO,
            first_byte: Duration::ZERO,
            fetch_least: Duration::MAX,
        })
    }

    /// Connections wanted now. Fewer than before means: use fewer; the idle ones may stay open.
    pub fn connections(&self) -> usize {
        self.level.wanted.min(self.in_flight_limit())
    }

    /// Most requests to have on one connection when blocks are of this size: many for small blocks on a near server,
    /// one or two for large ones, one on a far server, where more connections serve better.
    pub fn depth(&self, block_bytes: u64) -> usize {
        if self.first_byte.is_zero() {
            return 1;
        }
        let by_bytes = PIPELINE_BYTES.div_ceil(block_bytes.max(1)).max(PIPELINE_LEAST as u64);
        let by_wait = PIPELINE_WAIT.as_nanos() / self.first_byte.as_nanos().max(1);
        let depth = u128::from(by_bytes).min(by_wait).clamp(1, self.config.depth_max as u128);
        depth as usize
    }

    /// Most requests to have in flight over all connections.
    pub fn in_flight_max(&self) -> usize {
        self.in_flight_limit().min(self.level.wanted * self.config.depth_max)
    }

    /// Smoothed time of a fetch from request to last byte; zero before the first landing.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// The shard is about to sleep, with `in_flight` requests out and `waiting` fetches without a connection to go on.
    /// Call it also when none waits: then the rate is not limited by the window. Returns when to wake and call
    /// again if nothing else happens before.
    pub fn idle(&mut self, now: Instant, in_flight: usize, waiting: usize) -> Option<Instant> {
        let Some(round) = &mut self.round else { return self.idle_blind(now, in_flight, waiting) };
        if waiting > 0 {
            round.hungry = true;
        } else {
            round.sated = true;
        }
        self.close_round(now);
        None
    }

    /// A fetch of `bytes` has landed, `first_byte` and `total` after its request was sent.
    pub fn landed(&mut self, now: Instant, bytes: u64, first_byte: Duration, total: Duration) {
        if self.round_trip.is_zero() {
            self.round_trip = total;
            self.first_byte = first_byte;
        } else {
            // Weight 1/8, as TCP smooths its round-trip time (RFC 6298).
            self.round_trip = (self.round_trip * 7 + total) / 8;
        }
        if self.limit.is_finite() {
            self.limit += 1.0 / self.limit;
            let most = self.level.wanted * self.config.depth_max;
            self.limit = if self.limit < most as f64 { self.limit } else { f64::INFINITY };
        }
        self.fetch_least = self.fetch_least.min(total);
        let round = self.round.get_or_insert_with(|| Round::new(now));
        round.weight += bytes + REQUEST_WEIGHT_BYTES;
        round.landings += 1;
        round.first_byte_least = round.first_byte_least.min(first_byte);
        self.close_round(now);
    }

    /// The server asked to slow down: what is served says nothing of connections now.
    pub fn throttled(&mut self, now: Instant) {
        self.disturbed(now);
    }

    /// A request was not answered in time while `in_flight` were out, this one included. One alone may have met a bad
    /// connection, so it costs little.
    pub fn timed_out(&mut self, now: Instant, in_flight: usize) {
        if self.disturbed(now) {
            self.limit = (self.limit.min(in_flight.max(1) as f64) * TIMED_OUT_KEEPS).max(1.0);
        }
    }

    /// Something else than the number of connections decides what lands. True once a round.
    fn disturbed(&mut self, now: Instant) -> bool {
        let spacing = self.round_trip.max(DOUBLING_SPACING);
        if self.disturbed_at.is_some_and(|at| now.since(at) < spacing) {
            return false;
        }
        self.disturbed_at = Some(now);
        self.level.disturbed(now);
        if let Some(round) = &mut self.round {
            *round = Round::new(now);
        }
        true
    }

    /// A fetch failed otherwise. A round with many failures opens nothing.
    pub fn failed(&mut self, now: Instant) {
        if let Some(round) = &mut self.round {
            round.failures += 1;
        }
        self.close_round(now);
    }

    /// Nothing has landed yet: the longer that takes, the more requests belong on the way.
    fn idle_blind(&mut self, now: Instant, in_flight: usize, waiting: usize) -> Option<Instant> {
        let WindowConfig { connections_max, connections_blind_max, .. } = self.config;
        let enough = self.level.wanted >= connections_blind_max.min(connections_max);
        if waiting == 0 || in_flight == 0 || enough || self.limit.is_finite() {
            return None;
        }
        let mut since = *self.blind_since.get_or_insert(now);
        if now.since(since) >= DOUBLING_SPACING {
            self.level.double();
            since = now;
            self.blind_since = Some(now);
        }
        Some(since.after(DOUBLING_SPACING))
    }

    /// Ends the round once it is as long as a fetch takes and has landings enough.
    fn close_round(&mut self, now: Instant) {
        let Some(round) = self.round else { return };
        let elapsed = now.since(round.since);
        let landings_least = (self.connections() as u64).max(ROUND_LANDINGS_MIN);
        if elapsed < self.round_trip.max(DOUBLING_SPACING) || round.landings < landings_least {
            return;
        }
        self.round = Some(Round::new(now));
        // The least rises slowly, so that one lucky moment does not stand for ever.
        self.first_byte = round.first_byte_least.min(self.first_byte * 9 / 8);
        let first = !core::mem::replace(&mut self.guessed, true);
        if first {
            let needed = round.landings as f64 * self.first_byte.as_secs_f64() / elapsed.as_secs_f64();
            self.level.guess(needed.ceil() as usize, self.config.connections_start);
        }
        let failing = round.failures * 8 > round.landings;
        let limited = self.level.wanted >= self.in_flight_limit();
        self.level.round(&Measure {
            now,
            first,
            elapsed,
            weight: round.weight as f64,
            hungry: round.hungry,
            may_grow: round.hungry && !failing && !limited,
            sated: round.sated,
            round_trip: self.round_trip,
            queueing: self.round_trip.as_secs_f64() / self.fetch_least.as_secs_f64(),
        });
    }

    fn in_flight_limit(&self) -> usize {
        // Saturates: infinity becomes the largest number.
        self.limit as usize
    }
}
