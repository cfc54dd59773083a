//! The bucket's faults over time: phases of a few seconds, each a script, drawn from a seed.
//!
//! Every round holds each kind of phase once, in a new order, so that a short soak runs all of them. All faults drawn can
//! be recovered from within the loader's default number of attempts: that is part of the test.

use std::time::Duration;

use fuelrail_base::prng::Prng;
use fuelrail_bucket::FaultKind::{self, Changed, WrongEtag};

/// The kinds of phases: no fault, so that the loader reaches full speed; a few faults of many kinds; 500 and 503 for most
/// requests; stalls in bodies, short, long or for ever; low bandwidth on every connection; connections that end in a body
/// or between responses; wrong entity tags and stale replicas; no listener for a moment.
const KINDS: [&str; 8] = ["calm", "mixed", "burst", "stalls", "trickle", "cuts", "stray", "away"];

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Phase {
    pub(super) kind: &'static str,
    pub(super) script: String,
    /// How long the port has no listener at the phase's start; `None` when it always has one.
    pub(super) away: Option<Duration>,
    pub(super) lasts: Duration,
}

#[derive(Debug)]
pub(super) struct Phases {
    draw: Prng,
    mean: Duration,
    kinds: Vec<&'static str>,
    round: Vec<&'static str>,
    number: u64,
    strays: u64,
}

impl Phases {
    /// Phases of this mean length. `faults`: whether any are injected; `returns`: whether the bucket can go away and return unchanged.
    pub(super) fn new(seed: u64, mean: Duration, faults: bool, returns: bool) -> Phases {
        let can = |kind: &&str| if faults { returns || *kind != "away" } else { *kind == "calm" };
        let kinds = KINDS.into_iter().filter(can).collect();
        Phases { draw: Prng::new(seed ^ 0x50AC), mean, kinds, round: Vec::new(), number: 0, strays: 0 }
    }

    pub(super) fn next_phase(&mut self) -> Phase {
        if self.round.is_empty() {
            self.round.clone_from(&self.kinds);
        }
        let at = self.draw.below(self.round.len() as u64) as usize;
        let kind = self.round.swap_remove(at);
        self.number += 1;
        let faults = self.faults(kind);
        let away = (kind == "away").then(|| Duration::from_millis(20 + self.draw.below(180)));
        let latency = ["", ",latency=uniform:0ms..4ms", ",latency=lognormal:2ms/0.8", ",latency=pareto:1ms/1.5"];
        let latency = latency[self.draw.below(latency.len() as u64) as usize];
        let script = format!("seed={}{faults}{latency}", self.number);
        Phase { kind, script, away, lasts: self.mean.mul_f64(0.5 + self.draw.unit()) }
    }

    /// The kind's settings, each after a comma.
    fn faults(&mut self, kind: &str) -> String {
        let draw = &mut self.draw;
        match kind {
            "mixed" => {
                let mut text = ",per_key_max=2".to_owned();
                for fault in FaultKind::reading().filter(|kind| !matches!(kind, WrongEtag | Changed)) {
                    if draw.chance(0.6) {
                        let lasts = if fault == FaultKind::Stall { "/200ms" } else { "" };
                        text += &format!(",{fault}={:.4}{lasts}", 0.005 + draw.unit() * 0.02);
                    }
                }
                text
            }
            "burst" => ",slowdown=0.1,error=0.5,per_key_max=2".to_owned(),
            "stalls" => format!(",stall=0.02/{}ms,stall=0.001,per_key_max=2", 50 + draw.below(1000)),
            // Bytes keep coming, if slowly: the deadline of a batch may pass, no read times out.
            "trickle" => format!(",bandwidth={}MiB", 1 << draw.below(3)),
            "cuts" => {
                let way = if draw.chance(0.5) { "close_after" } else { "drop_after" };
                format!(",{way}={},reset=0.03,truncate=0.03,per_key_max=2", 3 + draw.below(12))
            }
            "stray" => {
                // A second wrong response to one request would mean that the object did change. With one digit of the
                // key's number per phase, no object gets two within ten rounds, however long a request is retried.
                let digit = self.strays % 10;
                self.strays += 1;
                format!(",wrong_etag=0.3,changed=0.3,per_key_max=1,only=*{digit}.*")
            }
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_bucket::Script;

    fn drawn(seed: u64, count: usize) -> Vec<Phase> {
        let mut phases = Phases::new(seed, Duration::from_secs(4), true, true);
        (0..count).map(|_| phases.next_phase()).collect()
    }

    #[test]
    fn every_script_is_one_and_all_faults_come() {
        let parsed = |phase: Phase| (phase.script.parse::<Script>().unwrap(), phase);
        let all: Vec<(Script, Phase)> = drawn(3, 200).into_iter().map(parsed).collect();
        for kind in FaultKind::reading() {
            assert!(all.iter().any(|(script, _)| script.faults.iter().any(|fault| fault.kind == kind)), "{kind}");
        }
        for (script, phase) in &all {
            // The faults of two adjacent phases, and those of a bucket that is away, stay below the default of ten attempts.
            assert!(script.faults_per_key_max <= 3, "{phase:?}");
            assert!(phase.lasts >= Duration::from_secs(2) && phase.lasts < Duration::from_secs(6), "{phase:?}");
        }
    }

    #[test]
    fn a_round_holds_every_kind_and_a_seed_repeats() {
        for round in drawn(5, 80).chunks(8) {
            let mut names: Vec<&str> = round.iter().map(|phase| phase.kind).collect();
            names.sort_unstable();
            assert_eq!(names, ["away", "burst", "calm", "cuts", "mixed", "stalls", "stray", "trickle"]);
        }
        assert_eq!(drawn(5, 40), drawn(5, 40));
        assert_ne!(drawn(5, 40), drawn(6, 40));
        let mut stays = Phases::new(5, Duration::from_secs(1), true, false);
        assert!((0..40).all(|_| stays.next_phase().away.is_none()));
        let mut calm = Phases::new(5, Duration::from_secs(1), false, true);
        assert!((0..40).all(|_| calm.next_phase().kind == "calm"));
    }
}
