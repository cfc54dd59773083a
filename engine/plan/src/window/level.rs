//! The number of connections wanted: found by doubling, and by checking the effect.
//!
//! Opening: doubles every round, judging each doubling two rounds later, until one did not pay. Cruising: once in a
//! while tries double or half and measures over many rounds, or over two when they land a quarter less; of two levels, the larger stays
//! only when it lands 5 % more. No try is needed where fetches stand in no queue: then the level is what limits, and twice as many land
//! twice as much (Little's law). A try could be misled: where ranks share a link, what one lands depends on what the others fetch just then.
//! A level without evidence (the start, and what was opened blindly) is tried against its half as soon as it is reached.
//! Owns the level. Never sees requests: rounds come summed up.

use fuelrail_base::{Duration, Instant};

/// The larger of two levels must land this much more to stay.
const PAYS: f64 = 1.05;
/// Rounds whose sum decides while cruising: one alone is off by several percent too often.
const PROBE_ROUNDS: u32 = 8;
/// A try whose first rounds land less than this share of what came before is over: so much is not chance, and the rest would be paid
/// for in full, half a second of it on a far bucket.
const HOPELESS: f64 = 0.75;
const HOPELESS_ROUNDS: u32 = 2;
/// Fetches that take less than so many times the least stand in no queue.
const QUEUED: f64 = 1.25;
/// Rounds after a change that still show the level before.
const SETTLING_ROUNDS: u32 = 2;
/// Time between two tries while cruising is at least this and [`HOLD_ROUNDS`]; it doubles with every try without effect …
const HOLD: Duration = Duration::from_secs(1);
const HOLD_ROUNDS: u32 = 32;
/// … this many times at most.
const HOLD_DOUBLINGS_MAX: u32 = 6;

/// A finished round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    pub(super) now: Instant,
    /// It began with the first landing of all: what was sent with that landed with it, and its rate is too high.
    pub(super) first: bool,
    pub(super) elapsed: Duration,
    /// What landed, in bytes with a constant per request.
    pub(super) weight: f64,
    /// The core slept while fetches waited for connections.
    pub(super) hungry: bool,
    /// So it was, and nothing argues against more of them.
    pub(super) may_grow: bool,
    /// There was nothing to fetch for a while: the rate says nothing.
    pub(super) sated: bool,
    /// Smoothed time of a fetch.
    pub(super) round_trip: Duration,
    /// The same as a multiple of the least time of a fetch so far: near 1, nothing stands in a queue.
    pub(super) queueing: f64,
}

impl Measure {
    fn rate(&self) -> f64 {
        self.weight / self.elapsed.as_secs_f64()
    }
}

/// A doubling of the opening whose effect is not known yet.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: usize,
    /// The rate before it was not known when it came: another one's effect was to be seen yet, or nothing had landed before.
    follows: bool,
    /// Rate of the last round without its effect.
    rate: f64,
    /// Rounds since.
    rounds: u32,
}

/// A level tried while cruising.
#[derive(Clone, Copy, Debug)]
struct Probe {
    from: usize,
    /// Mean rate before.
    rate: f64,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Doublings not judged yet, the older one first. Two, because effects show only after two rounds, and a window that
    /// waited for each would open at half the speed.
    Opening {
        trials: [Option<Trial>; 2],
        /// Rounds without a pause of the core, in a row: after a few of them the core is the limit, and no doubling comes.
        busy_rounds: u32,
    },
    Cruising {
        probe: Option<Probe>,
        upward: bool,
        hold_until: Instant,
        vain: u32,
        sum: Sum,
    },
}

/// Rounds at the present level.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    rounds: u32,
    weight: f64,
    seconds: f64,
}

impl Sum {
    /// Adds a round. Old rounds fade, so that it stands for the last few times [`PROBE_ROUNDS`].
    fn add(&mut self, measure: &Measure) {
        self.rounds += 1;
        if self.rounds > SETTLING_ROUNDS {
            let keep = if self.rounds > SETTLING_ROUNDS + PROBE_ROUNDS { 0.9 } else { 1.0 };
            self.weight = self.weight * keep + measure.weight;
            self.seconds = self.seconds * keep + measure.elapsed.as_secs_f64();
        }
    }

    /// Their rate, once there are so many after those that settle.
    fn rate(&self, rounds: u32) -> Option<f64> {
        (self.rounds >= SETTLING_ROUNDS + rounds).then(|| self.weight / self.seconds)
    }
}

/// The number of connections wanted.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) wanted: usize,
    least: usize,
    most: usize,
    /// A doubling was seen to pay: this many are not just a guess.
    proved: bool,
    phase: Phase,
}

impl Level {
    /// Wants `start` to begin with, and never fewer than `least` or more than `most`.
    pub(super) fn new(start: usize, least: usize, most: usize) -> Level {
        Level { wanted: start, least, most, proved: false, phase: Phase::Opening { trials: [None; 2], busy_rounds: 0 } }
    }

    /// The first evidence: so many are needed while nothing stands before a request. As many are no guess any more; of what was
    /// opened blindly beyond twice as many nothing is kept, down to `least`.
    pub(super) fn guess(&mut self, needed: usize, least: usize) {
        self.proved = needed >= self.wanted;
        self.wanted = self.wanted.min((2 * needed).next_power_of_two().max(least));
    }

    /// Doubles without any evidence.
    pub(super) fn double(&mut self) {
        self.wanted = (self.wanted * 2).min(self.most);
    }

    /// Rates change for another reason than the level: what is being tried is taken back.
    pub(super) fn disturbed(&mut self, now: Instant) {
        match self.phase {
            Phase::Opening { trials: [oldest, _], .. } => self.wanted = oldest.map_or(self.wanted, |trial| trial.from),
            Phase::Cruising { probe, .. } => self.wanted = probe.map_or(self.wanted, |probe| probe.from),
        }
        self.cruise(now.after(HOLD), true, 0);
    }

    /// Takes in a round, and moves on.
    pub(super) fn round(&mut self, measure: &Measure) {
        match self.phase {
            Phase::Opening { trials, busy_rounds } => {
                let busy = !measure.hungry && !measure.sated;
                self.open(trials, if busy { busy_rounds + 1 } else { 0 }, measure);
            }
            Phase::Cruising { probe, upward, hold_until, vain, mut sum } => {
                if measure.sated {
                    // Not even this level is needed just now.
                    self.wanted = probe.map_or(self.wanted, |probe| probe.from);
                    sum = if probe.is_some() { Sum::default() } else { sum };
                    self.phase = Phase::Cruising { probe: None, upward, hold_until, vain, sum };
                    return;
                }
                if measure.queueing < QUEUED && measure.may_grow && self.wanted < self.most {
                    self.double();
                    return self.cruise(measure.now.after(HOLD), true, 0);
                }
                sum.add(measure);
                self.phase = Phase::Cruising { probe, upward, hold_until, vain, sum };
                let hopeless = |rate: &f64| probe.is_some_and(|probe| *rate < probe.rate * HOPELESS);
                let early = || sum.rate(HOPELESS_ROUNDS).filter(hopeless);
                let Some(rate) = sum.rate(PROBE_ROUNDS).or_else(early) else { return };
                match probe {
                    Some(probe) => self.judge_probe(probe, rate, upward, vain, measure),
                    None if measure.now >= hold_until => self.probe(rate, upward, vain, measure),
                    None => {}
                }
            }
        }
    }

    fn open(&mut self, mut trials: [Option<Trial>; 2], busy_rounds: u32, measure: &Measure) {
        for trial in trials.iter_mut().flatten() {
            // Then the round after a doubling is the one to compare with: it shows the effect of the doubling before, and not
            // yet of this one; unless it was so long that what this one sent has landed in it, or says nothing.
            if trial.follows && trial.rounds == 0 && !measure.sated && measure.elapsed < measure.round_trip * 2 {
                trial.rate = measure.rate();
            }
            // A sated round lets time pass, but an effect cannot be seen in it.
            trial.rounds = if measure.sated { trial.rounds.max(1) } else { trial.rounds + 1 };
        }
        if let Some(oldest) = trials[0].filter(|trial| trial.rounds >= 2) {
            if measure.rate() <= oldest.rate * PAYS {
                // The newer doubling goes as well: it built on one that did nothing.
                self.wanted = oldest.from;
                return self.settle(measure);
            }
            self.proved = true;
            trials = [trials[1], None];
        }
        if measure.may_grow && !measure.sated && self.wanted < self.most && trials[1].is_none() {
            let place = usize::from(trials[0].is_some());
            let follows = place == 1 || measure.first;
            trials[place] = Some(Trial { from: self.wanted, follows, rate: measure.rate(), rounds: 0 });
            self.double();
        }
        self.phase = Phase::Opening { trials, busy_rounds };
        if trials[0].is_none() && (self.wanted == self.most || busy_rounds >= PROBE_ROUNDS) {
            self.settle(measure);
        }
    }

    /// The opening is over.
    fn settle(&mut self, measure: &Measure) {
        let hold_until = if self.proved { hold_until(measure, 0) } else { measure.now };
        self.cruise(hold_until, false, 0);
    }

    fn probe(&mut self, rate: f64, upward: bool, vain: u32, measure: &Measure) {
        let from = self.wanted;
        // Half as many would stand in no queue, and land less.
        let all_needed = measure.queueing * PAYS < 2.0;
        let upward = from < self.most && (upward || all_needed || from == self.least);
        if !upward && !all_needed && from > self.least {
            self.wanted = (from / 2).max(self.least);
        } else if upward && measure.may_grow {
            self.double();
        } else {
            return;
        }
        let probe = Some(Probe { from, rate });
        self.phase = Phase::Cruising { probe, upward, hold_until: measure.now, vain, sum: Sum::default() };
    }

    fn judge_probe(&mut self, probe: Probe, rate: f64, upward: bool, vain: u32, measure: &Measure) {
        let (smaller, larger) = if upward { (probe.rate, rate) } else { (rate, probe.rate) };
        let larger_pays = larger > smaller * PAYS;
        if larger_pays == upward {
            // It stays, and the next one is tried soon.
            self.cruise(measure.now, upward, 0);
        } else {
            self.wanted = probe.from;
            self.cruise(hold_until(measure, vain + 1), !upward, (vain + 1).min(HOLD_DOUBLINGS_MAX));
        }
    }

    fn cruise(&mut self, hold_until: Instant, upward: bool, vain: u32) {
        self.phase = Phase::Cruising { probe: None, upward, hold_until, vain, sum: Sum::default() };
    }
}

fn hold_until(measure: &Measure, vain: u32) -> Instant {
    let hold = HOLD.max(measure.round_trip * HOLD_ROUNDS);
    measure.now.after(hold * (1 << vain.min(HOLD_DOUBLINGS_MAX)))
}
