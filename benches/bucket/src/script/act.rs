//! A script being played: what happens to each request. Owns the attempt counts per key and the shared rate limits;
//! never touches a socket.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Fault, FaultKind, LATENCY_MAX_US, Latency, Script};
use crate::pace::Pace;
use crate::random::{Draws, mix};

/// Most keys whose attempts are counted; keys first seen beyond it meet no drawn faults.
const TRACKED_KEYS_MAX: usize = 1 << 22;

/// What a request does, as far as scripts care.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Get,
    Head,
    List,
    Put,
    Other,
    Create,
    Part,
    Complete,
    Abort,
    Delete,
}

/// What happens to one request.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) latency: Duration,
    pub(crate) fault: Option<Fault>,
    /// Further draws for this attempt: places, lengths, garbage.
    pub(crate) draws: Draws,
}

#[derive(Clone, Copy, Default, Debug)]
struct Attempts {
    made: u32,
    faults: u32,
}

#[derive(Debug)]
pub(crate) struct Act {
    pub(crate) script: Script,
    attempts: Mutex<HashMap<u64, Attempts>>,
    total: Option<Mutex<Pace>>,
    requests: Option<Mutex<Pace>>,
    /// Whether any draw depends on the attempt; without, attempts need not be counted.
    counts_attempts: bool,
}

impl Act {
    pub(crate) fn new(script: Script) -> Act {
        let counts_attempts =
            !script.faults.is_empty() || !matches!(script.latency, Latency::None | Latency::Fixed { .. });
        Act {
            attempts: Mutex::default(),
            total: script.bandwidth_total_bytes_per_s.map(|rate| Mutex::new(Pace::bytes(rate))),
            requests: script.slowdown_over_requests_per_s.map(|rate| Mutex::new(Pace::requests(rate))),
            counts_attempts,
            script,
        }
    }

    /// Counts the attempt and draws what happens to it. A drawn fault uses up one of the key's `faults_per_key_max`. For a listing,
    /// `key` is the query; for an upload in parts, it is key and query in short.
    pub(crate) fn draw(&self, operation: Operation, key: &str) -> Drawn {
        let identity = xxh3_64_with_seed(key.as_bytes(), mix(self.script.seed) ^ operation as u64);
        let mut all = self.attempts.lock().expect("no holder of attempts panics");
        if !self.counts_attempts || (all.len() >= TRACKED_KEYS_MAX && !all.contains_key(&identity)) {
            let mut draws = Draws::new(identity);
            return Drawn { latency: self.latency(&mut draws), fault: None, draws };
        }
        let attempts = all.entry(identity).or_default();
        let mut draws = Draws::new(mix(identity ^ mix(u64::from(attempts.made))));
        attempts.made = attempts.made.saturating_add(1);
        let latency = self.latency(&mut draws);
        let mut fault = self.fault(operation, key, draws.unit());
        if fault.is_some_and(|fault| fault.kind != FaultKind::Chunked) {
            if attempts.faults < self.script.faults_per_key_max {
                attempts.faults += 1;
            } else {
                fault = None;
            }
        }
        Drawn { latency, fault, draws }
    }

    /// Whether the request comes too soon after the others for the scripted rate.
    pub(crate) fn over_rate(&self, now: Instant) -> bool {
        self.requests.as_ref().is_some_and(|pace| !pace.lock().expect("no pace holder panics").admit(now))
    }

    /// Reserves body bytes of the shared bandwidth; they may be sent at the returned moment.
    pub(crate) fn reserve_total(&self, now: Instant, bytes: u64) -> Instant {
        self.total.as_ref().map_or(now, |pace| pace.lock().expect("no pace holder panics").reserve(now, bytes))
    }

    /// Largest body frame that keeps the pace smooth: five milliseconds' worth.
    pub(crate) fn frame_bytes(&self, largest: usize) -> usize {
        [self.script.bandwidth_connection_bytes_per_s, self.script.bandwidth_total_bytes_per_s]
            .into_iter()
            .flatten()
            .map(|rate| usize::try_from(rate / 200).unwrap_or(usize::MAX).max(1 << 10))
            .fold(largest, usize::min)
    }

    pub(crate) fn is_paced(&self) -> bool {
        self.total.is_some() || self.script.bandwidth_connection_bytes_per_s.is_some()
    }

    fn fault(&self, operation: Operation, key: &str, draw: f64) -> Option<Fault> {
        if !self.script.only_keys.is_empty()
            && (operation == Operation::List || !any_matches(&self.script.only_keys, key))
        {
            return None;
        }
        let mut below = 0.0;
        let fault = self.script.faults.iter().find(|fault| {
            below += fault.probability;
            draw < below
        })?;
        meets(fault.kind, operation).then_some(*fault)
    }

    fn latency(&self, draws: &mut Draws) -> Duration {
        let us = match self.script.latency {
            Latency::None => return Duration::ZERO,
            Latency::Fixed { us } => us,
            Latency::Uniform { min_us, max_us } => min_us + draws.below(max_us - min_us + 1),
            Latency::LogNormal { median_us, sigma } => (median_us as f64 * (sigma * draws.normal()).exp()) as u64,
            Latency::Pareto { min_us, alpha } => (min_us as f64 / (1.0 - draws.unit()).powf(1.0 / alpha)) as u64,
        };
        Duration::from_micros(us.min(LATENCY_MAX_US))
    }
}

/// Whether a fault of this kind can happen to such a request.
fn meets(kind: FaultKind, operation: Operation) -> bool {
    use Operation::{Abort, Complete, Create, Delete, Get, Part, Put};
    match kind {
        FaultKind::Slowdown | FaultKind::Error => true,
        FaultKind::Reset => matches!(operation, Get | Put | Part),
        FaultKind::Corrupt => matches!(operation, Put | Part),
        FaultKind::Lost => matches!(operation, Put | Create | Part | Complete | Abort | Delete),
        FaultKind::HiddenError => operation == Complete,
        _ => operation == Get,
    }
}

/// Whether the whole of `key` matches `pattern`: `*` stands for any run of characters, slashes included, `?` for one character.
fn matches(pattern: &str, key: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => key.is_empty(),
        Some('*') => {
            let mut ends = key.char_indices().map(|(at, _)| at).chain([key.len()]);
            ends.any(|at| matches(rest.as_str(), &key[at..]))
        }
        Some(wanted) => {
            let mut others = key.chars();
            others.next().is_some_and(|c| wanted == '?' || wanted == c) && matches(rest.as_str(), others.as_str())
        }
    }
}

pub(crate) fn any_matches(patterns: &[String], key: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, key) in [
            ("*", ""),
            ("*", "a/b"),
            ("a*", "a"),
            ("*.png", "t/1.png"),
            ("t/*/?.png", "t/a/b/1.png"),
            ("a*b*c", "aXbYbZc"),
            ("ä?", "äö"),
        ] {
            assert!(matches(pattern, key), "{pattern} {key}");
        }
        for (pattern, key) in [("", "a"), ("?", ""), ("a*b", "ac"), ("*.png", "1.jpg"), ("abc", "abcd"), ("a?", "a")] {
            assert!(!matches(pattern, key), "{pattern} {key}");
        }
    }

    fn kinds(act: &Act, key: &str, attempts: usize) -> Vec<Option<FaultKind>> {
        (0..attempts).map(|_| act.draw(Operation::Get, key).fault.map(|fault| fault.kind)).collect()
    }

    #[test]
    fn a_key_meets_at_most_its_faults_and_listings_meet_no_body_faults() {
        let act = Act::new("reset=1.0,per_key_max=2".parse().unwrap());
        assert_eq!(kinds(&act, "a", 9).iter().flatten().count(), 2);
        assert!((0..9).all(|_| act.draw(Operation::List, "").fault.is_none()));
    }

    #[test]
    fn probabilities_hold() {
        let act = Act::new("reset=0.25,error=0.5".parse().unwrap());
        let drawn: Vec<_> = (0..20_000).flat_map(|key| kinds(&act, &key.to_string(), 1)).flatten().collect();
        let resets = drawn.iter().filter(|kind| **kind == FaultKind::Reset).count();
        assert!(
            (4_600..5_400).contains(&resets) && (14_500..15_500).contains(&drawn.len()),
            "{resets} {}",
            drawn.len()
        );
    }

    #[test]
    fn latencies_follow_their_distribution() {
        let sorted = |text: &str| {
            let act = Act::new(text.parse().unwrap());
            let draw = |key: u32| act.draw(Operation::Get, &key.to_string()).latency;
            let mut all: Vec<u64> = (0..10_001).map(|key| draw(key).as_micros() as u64).collect();
            all.sort_unstable();
            all
        };
        assert!(sorted("latency=fixed:55ms").iter().all(|&us| us == 55_000));
        let uniform = sorted("latency=uniform:10ms..20ms");
        assert!(uniform[0] >= 10_000 && uniform[10_000] <= 20_000 && uniform[5_000].abs_diff(15_000) < 300);
        let lognormal = sorted("latency=lognormal:50ms/0.5");
        assert!(lognormal[5_000].abs_diff(50_000) < 1_500 && lognormal[8_413].abs_diff(82_436) < 4_000);
        let pareto = sorted("latency=pareto:20ms/1.5");
        assert!(pareto[0] >= 20_000 && pareto[5_000].abs_diff(31_748) < 1_000 && pareto[10_000] > 1_000_000);
    }
}
