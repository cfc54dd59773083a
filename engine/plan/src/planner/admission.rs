//! Admission control: holds requests back for the request rate after a 503 or 429, and while the server is down. It admits one request at
//! a time, and says when to try again.
//!
//! When everything fails, trying block after block only uses up their attempts, and sends a server that is down as many requests
//! as one that is up. So after a row of failures a shard sends single probes at growing intervals (a circuit breaker, half open:
//! Nygard, "Release It!", 2007), until one is served; they do not count as attempts. Only a server that has served before is
//! waited for: a wrong address is an error at once. Owns the pace and the outage. Never sees the queue.

use super::types::{Attempt, PlannerConfig};
use crate::pace::Pace;
use core::fmt;
use fuelrail_base::prng::Prng;
use fuelrail_base::{BlockId, Duration, Instant, Kind, SampleId};

pub(super) struct Admission {
    pace: Pace,
    outage: Outage,
    /// The last request was not admitted: try again then.
    pub(super) again_at: Option<Instant>,
    now: Instant,
}

impl Admission {
    pub(super) fn new(config: &PlannerConfig) -> Admission {
        let limit = Duration::from_micros(config.retry.outage_limit_us);
        Admission {
            pace: Pace::new(config.pace.clone(), config.shards),
            outage: Outage::new(limit, config.seed),
            again_at: None,
            now: Instant::ZERO,
        }
    }

    pub(super) fn falls_behind(&mut self, behind: Duration) {
        self.pace.falls_behind(behind);
    }

    pub(super) fn landed(&mut self, now: Instant, round_trip: Duration) {
        self.pace.served(now, round_trip);
        self.outage.reached();
    }

    /// A fetch failed. True when the server is down, so that it does not count as an attempt of its block.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        block: BlockId,
        kind: Kind,
        attempt: Attempt,
        round_trip: Duration,
    ) -> bool {
        if kind == Kind::Throttled && !self.outage.is_open() {
            self.pace.refused(now, round_trip);
        }
        match attempt {
            Attempt::Barren => self.outage.failed(now, block, kind),
            Attempt::Progress => {
                self.outage.reached();
                false
            }
            Attempt::Excused => {
                self.outage.unsent(now);
                false
            }
        }
    }

    /// The server is down: one request at a time is sent as a probe.
    pub(super) fn is_down(&self) -> bool {
        self.outage.is_open()
    }

    /// Admits one request now, or sets the time to try again.
    pub(super) fn admit(&mut self, now: Instant, round_trip: Duration) -> bool {
        self.now = now;
        self.again_at = if self.outage.is_open() {
            if self.outage.probe(now) { None } else { self.outage.deadline() }
        } else {
            self.pace.take(now, round_trip).err()
        };
        self.again_at.is_none()
    }

    /// The queue waits to be admitted, and for nothing else.
    pub(super) fn holds_back(&self, now: Instant) -> bool {
        self.again_at.is_some_and(|at| at > now)
    }

    /// Forgets the time to try again, before the queue is tried anew.
    pub(super) fn clear(&mut self) {
        self.again_at = None;
    }

    /// How long nothing was served, once that exceeds the limit: everything requested is then given up. Returned once.
    pub(super) fn take_end(&mut self, now: Instant) -> Option<Duration> {
        self.outage.take_end(now)
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.outage.is_open() {
            write!(f, ", nothing served for {:.1} s", self.outage.age(self.now).as_secs_f64())?;
        }
        if self.pace.is_in_force() { write!(f, ", {:.1} requests a second", self.pace.rate()) } else { Ok(()) }
    }
}

/// So many failures in a row to reach the server begin an outage, …
const FAILURES: u32 = 6;
/// … or so many refusals, for so many different objects, of a server that responds and serves nothing.
const REFUSALS: u32 = 24;
const OBJECTS: usize = 8;
/// The time between two probes is the outage so far divided by this, within bounds: about 50 probes in the first minute,
/// and the end of a minute's outage is seen within two seconds. The first ones come sooner: most outages are short.
const PROBE_SHARE: u32 = 30;
const PROBE_SPACING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
const PROBE_SPACING_FIRST: Duration = Duration::from_millis(50);

/// One shard's view of the server.
#[derive(Clone, Debug)]
struct Outage {
    /// After so long everything requested is given up; zero never waits.
    limit: Duration,
    /// The server has served something in this run.
    reached: bool,
    /// Failures to reach the server since it last served.
    failures: u32,
    /// Refusals since it last served.
    refusals: u32,
    /// Objects that failed since, as many as matter.
    objects: Vec<SampleId>,
    /// While there is an outage: since when, less the time in which nothing was requested, and when to probe next.
    open: Option<(Instant, Instant)>,
    random: Prng,
}

impl Outage {
    pub(crate) fn new(limit: Duration, seed: u64) -> Outage {
        let random = Prng::new(seed ^ 0x6F75_7461_6765);
        Outage {
            limit,
            reached: false,
            failures: 0,
            refusals: 0,
            objects: Vec::with_capacity(OBJECTS),
            open: None,
            random,
        }
    }

    /// The server did something that shows it is up.
    fn reached(&mut self) {
        self.reached = true;
        (self.failures, self.refusals) = (0, 0);
        self.objects.clear();
        self.open = None;
    }

    /// A fetch of this block failed. True when that is the server's fault, and no attempt of the block.
    pub(crate) fn failed(&mut self, now: Instant, block: BlockId, kind: Kind) -> bool {
        if !self.reached || self.limit.is_zero() {
            return false;
        }
        match kind {
            Kind::Network | Kind::Stalled => self.failures += 1,
            // It can be reached, at least.
            Kind::Throttled | Kind::Server => (self.failures, self.refusals) = (0, self.refusals + 1),
            // It says something of the object, but it does say it.
            Kind::NotFound | Kind::Denied | Kind::Changed => {
                self.reached();
                return false;
            }
            _ => return false,
        }
        let sample = block.sample;
        if self.objects.len() < OBJECTS && !self.objects.contains(&sample) {
            self.objects.push(sample);
        }
        let refuses = self.refusals >= REFUSALS && self.objects.len() == OBJECTS;
        match &mut self.open {
            // The time in which a request hung was not idle.
            Some((_, probe_at)) => *probe_at = now.max(*probe_at),
            None if self.failures >= FAILURES || refuses => self.open = Some((now, now)),
            None => {}
        }
        self.open.is_some()
    }

    fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether a probe may be sent now; sets the time of the next.
    pub(crate) fn probe(&mut self, now: Instant) -> bool {
        let Some((since, at)) = self.open else { return true };
        if now < at {
            return false;
        }
        // A validation pause or minutes of cache hits do not count: a probe was due, and nothing was requested.
        let since = since.after(now.since(at));
        let lasted = now.since(since);
        let most = (lasted / PROBE_SHARE).clamp(PROBE_SPACING.0, PROBE_SPACING.1);
        let spacing = lasted.clamp(PROBE_SPACING_FIRST, most);
        // Shards probe at different moments.
        let next = now.after(spacing.mul_f64(0.8 + 0.2 * self.random.unit()));
        self.open = Some((since, next.min(since.after(self.limit))));
        true
    }

    /// A probe met an idle connection that the server had closed: it was not sent, so the next one need not wait.
    fn unsent(&mut self, now: Instant) {
        if let Some((_, at)) = &mut self.open {
            *at = now.min(*at);
        }
    }

    /// How long the outage has lasted, once that exceeds the limit. Returned once: the limit then starts anew.
    pub(crate) fn take_end(&mut self, now: Instant) -> Option<Duration> {
        let age = self.age(now);
        if !self.is_open() || age < self.limit {
            return None;
        }
        self.reached();
        Some(age)
    }

    /// When the next probe is due, or the limit is reached.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.open.map(|(_, probe_at)| probe_at)
    }

    /// How long the outage has lasted, up to a due probe for which there is no request.
    fn age(&self, now: Instant) -> Duration {
        self.open.map_or(Duration::ZERO, |(since, probe_at)| now.min(probe_at).since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn block(n: u32) -> BlockId {
        BlockId { sample: SampleId(n.into()), index: 0 }
    }

    fn reached() -> Outage {
        let mut outage = Outage::new(LIMIT, 1);
        outage.reached();
        outage
    }

    #[test]
    fn a_row_of_failures_to_reach_the_server_is_an_outage_and_one_answer_its_end() {
        for kind in [Kind::Network, Kind::Stalled] {
            let mut outage = reached();
            assert!((0..5).all(|_| !outage.failed(at(1), block(1), kind)));
            assert!(outage.failed(at(1), block(1), kind) && outage.is_open());
            assert!(outage.probe(at(1)) && !outage.probe(at(1)));
            outage.reached();
            assert!(!outage.is_open() && outage.deadline().is_none() && outage.probe(at(2)));
            assert!(!outage.failed(at(3), block(1), kind), "counting begins anew");
        }
    }

    #[test]
    fn answers_that_serve_nothing_must_be_many_and_of_many_objects() {
        for kind in [Kind::Throttled, Kind::Server] {
            let mut outage = reached();
            assert!((0..100).all(|n| !outage.failed(at(10_000), block(n % 7), kind)), "a few objects may be bad");
            let mut outage = reached();
            assert!((0..23).all(|n| !outage.failed(at(1), block(n), kind)), "a rate limit refuses for a moment");
            assert!(outage.failed(at(1), block(0), kind));
        }
    }

    #[test]
    fn what_a_server_that_is_up_says_is_no_outage() {
        let mut outage = reached();
        for n in 0..100 {
            let kind = [Kind::Network, Kind::NotFound, Kind::Network, Kind::Changed, Kind::Protocol][n as usize % 5];
            assert!(!outage.failed(at(u64::from(n) * 100), block(n), kind));
        }
        let mut bad = reached();
        for n in 0..1_000 {
            let kind = if n % 5 == 4 { Kind::Server } else { Kind::Network };
            assert!(!bad.failed(at(n), block(n as u32 % 7), kind), "a bad object on connections that end");
        }
        let mut never = Outage::new(LIMIT, 1);
        assert!(
            (0..100).all(|n| !never.failed(at(n), block(n as u32), Kind::Network)),
            "never reached: a wrong address"
        );
        let mut off = Outage::new(Duration::ZERO, 1);
        off.reached();
        assert!((0..100).all(|n| !off.failed(at(n), block(n as u32), Kind::Network)));
    }

    /// Opens at `from`, and is asked for a probe every 20 ms for so long; each fails at once.
    fn down(outage: &mut Outage, from: u64, for_ms: u64) -> Option<u64> {
        while !outage.is_open() {
            outage.failed(at(from), block(1), Kind::Network);
        }
        (from..=from + for_ms).step_by(20).find(|ms| {
            let ended = outage.take_end(at(*ms)).is_some();
            if !ended && outage.probe(at(*ms)) {
                outage.failed(at(*ms), block(1), Kind::Network);
            }
            ended
        })
    }

    #[test]
    fn time_in_which_nothing_was_asked_for_is_no_part_of_an_outage() {
        let mut outage = reached();
        // Ten minutes of cache hits, and then the bucket restarts in a second.
        assert_eq!(down(&mut outage, 600_000, 1_000), None);
        assert!(outage.age(at(601_000)) <= Duration::from_secs(1));
        // In the middle of an outage the trainer validates for ten minutes.
        assert_eq!(down(&mut outage, 1_201_000, 1_000), None);
        assert!(outage.is_open(), "still the same one");
        // Down for good: the limit is of seconds in which somebody waited.
        let end = down(&mut outage, 1_300_000, 400_000).unwrap();
        assert!((1_594_000..1_600_000).contains(&end), "{end}");
    }

    #[test]
    fn a_server_that_swallows_requests_is_given_up_at_the_limit() {
        let mut outage = reached();
        (0..6).for_each(|n| assert_eq!(outage.failed(at(0), block(n), Kind::Stalled), n == 5));
        let mut now = 0;
        while outage.take_end(at(now)).is_none() {
            assert!(outage.probe(at(now)), "at {now}");
            now += 30_000;
            outage.failed(at(now), block(1), Kind::Stalled);
        }
        assert_eq!(now, 300_000, "every probe hung for half a minute, and all of it counts");
    }

    #[test]
    fn probes_are_few_and_the_end_is_seen_soon() {
        let mut outage = reached();
        assert_eq!((0..6).filter(|_| outage.failed(at(0), block(1), Kind::Network)).count(), 1);
        let mut probes = Vec::new();
        let mut now = at(0);
        while outage.take_end(now).is_none() {
            now = outage.deadline().unwrap();
            if outage.probe(now) {
                probes.push(now);
            }
        }
        assert_eq!(now, at(300_000));
        let minute = probes.iter().filter(|probe| **probe < at(60_000)).count();
        assert!((40..70).contains(&minute) && probes.len() < 130, "{minute}, {}", probes.len());
        for pair in probes.windows(2).filter(|pair| pair[0] < at(60_000)) {
            assert!(pair[1].since(pair[0]) <= Duration::from_secs(2), "{pair:?}");
        }
        assert!(!outage.is_open(), "and then it begins anew");
    }
}
