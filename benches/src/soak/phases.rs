//! How a bucket misbehaves over time: phases of a few seconds, each a script, drawn from a seed.
//!
//! Owns the draw. Every round holds each kind of phase once, in another order, so that a short soak meets all of them. What is
//! drawn can always be recovered from within the loader's default number of attempts: that is part of the question.

use std::time::Duration;

use fuelrail_base::prng::Prng;

/// What a phase is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// No fault: the loader shall come up to full speed.
    Calm,
    /// A little of many kinds.
    Mixed,
    /// 500 and 503 for most requests.
    Burst,
    /// Silence in the middle of bodies, short, long or for ever.
    Stalls,
    /// A slow trickle on every connection.
    Trickle,
    /// Connections that end: in a body, between answers, politely or not.
    Cuts,
    /// Wrong entity tags and stale replicas.
    Stray,
    /// Nobody listens for a moment; all connections are cut.
    Away,
}

const ROUND: [Kind; 8] =
    [Kind::Calm, Kind::Mixed, Kind::Burst, Kind::Stalls, Kind::Trickle, Kind::Cuts, Kind::Stray, Kind::Away];

/// Kinds of faults that a mixture is drawn from, as scripts name them.
const MIXED: [&str; 11] = [
    "slowdown",
    "error",
    "reset",
    "truncate",
    "length_long",
    "length_short",
    "garbage",
    "overlong_head",
    "bad_status",
    "chunked",
    "stall",
];

/// One phase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Phase {
    /// Its kind as a word.
    pub(super) name: &'static str,
    /// What the bucket plays.
    pub(super) script: String,
    /// For how long nobody listens at its start, if so.
    pub(super) away: Option<Duration>,
    /// How long it lasts.
    pub(super) lasts: Duration,
}

/// The draw of phases without end.
#[derive(Debug)]
pub(super) struct Phases {
    draw: Prng,
    mean: Duration,
    /// The kinds that a round holds.
    kinds: Vec<Kind>,
    round: Vec<Kind>,
    number: u64,
    strays: u64,
}

impl Phases {
    /// Phases of this length on average; `returns` says that the bucket can go away and come back as the same.
    pub(super) fn new(seed: u64, mean: Duration, returns: bool) -> Phases {
        let kinds = ROUND.into_iter().filter(|kind| returns || *kind != Kind::Away).collect();
        Phases::of(seed, mean, kinds)
    }

    /// The same without any fault: for canaries, which need no weather.
    pub(super) fn calm(seed: u64, mean: Duration) -> Phases {
        Phases::of(seed, mean, vec![Kind::Calm])
    }

    fn of(seed: u64, mean: Duration, kinds: Vec<Kind>) -> Phases {
        Phases { draw: Prng::new(seed ^ 0x50AC), mean, kinds, round: Vec::new(), number: 0, strays: 0 }
    }

    pub(super) fn next_phase(&mut self) -> Phase {
        let kind = self.next_kind();
        self.number += 1;
        let (name, faults) = self.faults(kind);
        let away = (kind == Kind::Away).then(|| Duration::from_millis(20 + self.draw.below(180)));
        let latency = ["", ",latency=uniform:0ms..4ms", ",latency=lognormal:2ms/0.8", ",latency=pareto:1ms/1.5"];
        let latency = latency[self.draw.below(latency.len() as u64) as usize];
        let script = format!("seed={}{faults}{latency}", self.number);
        Phase { name, script, away, lasts: self.mean.mul_f64(0.5 + self.draw.unit()) }
    }

    fn next_kind(&mut self) -> Kind {
        if self.round.is_empty() {
            self.round.clone_from(&self.kinds);
        }
        let at = self.draw.below(self.round.len() as u64) as usize;
        self.round.swap_remove(at)
    }

    /// The kind's name and its settings, each behind a comma.
    fn faults(&mut self, kind: Kind) -> (&'static str, String) {
        let draw = &mut self.draw;
        match kind {
            Kind::Calm => ("calm", String::new()),
            Kind::Away => ("away", String::new()),
            Kind::Mixed => {
                let mut text = ",per_key_max=2".to_owned();
                for fault in MIXED {
                    if draw.chance(0.6) {
                        let lasts = if fault == "stall" { "/200ms" } else { "" };
                        text += &format!(",{fault}={:.4}{lasts}", 0.005 + draw.unit() * 0.02);
                    }
                }
                ("mixed", text)
            }
            Kind::Burst => ("burst", ",slowdown=0.1,error=0.5,per_key_max=2".to_owned()),
            Kind::Stalls => {
                let ms = 50 + draw.below(1000);
                ("stalls", format!(",stall=0.02/{ms}ms,stall=0.001,per_key_max=2"))
            }
            // Never silent for long, so that only the deadline of a batch suffers.
            Kind::Trickle => ("trickle", format!(",bandwidth={}MiB", 1 << draw.below(3))),
            Kind::Cuts => {
                let way = if draw.chance(0.5) { "close_after" } else { "drop_after" };
                let every = 3 + draw.below(12);
                ("cuts", format!(",{way}={every},reset=0.03,truncate=0.03,per_key_max=2"))
            }
            Kind::Stray => {
                // A second stray answer to one request means that the object did change. With a digit of the key's number per
                // phase, no object meets two within ten rounds, however long a request is tried again.
                let digit = self.strays % 10;
                self.strays += 1;
                ("stray", format!(",wrong_etag=0.3,changed=0.3,per_key_max=1,only=*{digit}.*"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_bucket::{FaultKind, Script};

    fn drawn(seed: u64, count: usize) -> Vec<Phase> {
        let mut phases = Phases::new(seed, Duration::from_secs(4), true);
        (0..count).map(|_| phases.next_phase()).collect()
    }

    #[test]
    fn every_script_is_one_and_all_faults_come() {
        let all: Vec<(Phase, Script)> = drawn(3, 200)
            .into_iter()
            .map(|phase| {
                let script = phase.script.parse().unwrap_or_else(|error| panic!("{}: {error}", phase.script));
                (phase, script)
            })
            .collect();
        for kind in FaultKind::reading() {
            assert!(all.iter().any(|(_, script)| script.faults.iter().any(|fault| fault.kind == kind)), "{kind}");
        }
        for (phase, script) in &all {
            // Failures of two neighbouring phases, and those of a bucket that is away, stay below the default of ten attempts.
            assert!(script.faults_per_key_max <= 3, "{phase:?}");
            assert!(phase.lasts >= Duration::from_secs(2) && phase.lasts < Duration::from_secs(6), "{phase:?}");
        }
    }

    #[test]
    fn a_round_holds_every_kind_and_a_seed_repeats() {
        for round in drawn(5, 80).chunks(8) {
            let mut names: Vec<&str> = round.iter().map(|phase| phase.name).collect();
            names.sort_unstable();
            assert_eq!(names, ["away", "burst", "calm", "cuts", "mixed", "stalls", "stray", "trickle"]);
        }
        assert_eq!(drawn(5, 40), drawn(5, 40));
        assert_ne!(drawn(5, 40), drawn(6, 40));
        let mut stays = Phases::new(5, Duration::from_secs(1), false);
        assert!((0..40).all(|_| stays.next_phase().away.is_none()));
        let mut calm = Phases::calm(5, Duration::from_secs(1));
        assert!((0..40).all(|_| calm.next_phase().name == "calm"));
    }
}
