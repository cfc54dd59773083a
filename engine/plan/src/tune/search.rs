//! Which point to try next: a scattered start, sweeps along one axis at a time from the best so far (every second value, both
//! ends included: a plateau may hide a cliff), then its neighbours, repeats where the noise could hide the answer, and a
//! run-off between the best at the end.
//!
//! Owns all trials so far. Every answer is noisy, so a point is judged by its mean less the doubt that is left of it, and no
//! point wins by one lucky trial. Never measures.

use std::collections::BTreeMap;

use fuelrail_base::prng::Prng;

use super::{Axis, Measured, Point, Space, Trials};

/// The scatter of scores assumed until repeats measure it.
const NOISE_PRIOR: f64 = 0.05;
/// Trials that belief is worth.
const NOISE_PRIOR_TRIALS: f64 = 4.0;
/// Points tried far from the start, at most.
const SCATTER_MAX: u32 = 6;
/// Repeats that settle a doubt, at most.
const REPEATS_MAX: usize = 3;
/// A round of sweeps that brought less than this is the last.
const ROUND_GAIN_MIN: f64 = 0.02;
/// What cannot bring more than this is not worth another trial.
const GAIN_MIN: f64 = 0.005;
/// What one more step of shards, connections or memory must bring to be taken.
const THRIFT: f64 = 0.003;
/// Times the search looks elsewhere when no axis alone leads further.
const RESTARTS_MAX: u32 = 2;
/// How many of the best meet again at the end, and how many trials that takes.
const FINALISTS: usize = 3;
const RUN_OFF_TRIALS: u32 = 6;

/// The search.
#[derive(Clone, Debug)]
pub struct Search {
    space: Space,
    trials: BTreeMap<Point, Trials>,
    scatter: Vec<Point>,
    best: Point,
    /// Axes in the order they are swept, and how many of them this round has.
    axes: Vec<Axis>,
    swept: usize,
    /// Score of the best when the round began.
    round_from: f64,
    restarts: u32,
    noise: f64,
    prng: Prng,
    converged: bool,
}

/// What the best point will deliver when it is measured again.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Forecast {
    /// Expected speed.
    pub bytes_per_s: f64,
    /// Nineteen of twenty runs lie between this …
    pub bytes_per_s_low: f64,
    /// … and this.
    pub bytes_per_s_high: f64,
    /// Expected processor time of the shards per byte.
    pub cpu_s_per_byte: f64,
}

impl Search {
    /// A search over `space` with about `trials` trials to spend.
    pub fn new(space: Space, seed: u64, trials: u32) -> Search {
        let mut prng = Prng::new(seed);
        let mut axes: Vec<Axis> =
            space.ranges().iter().filter(|range| range.values.len() > 1).map(|r| r.axis).collect();
        shuffle(&mut axes, &mut prng);
        let mut scatter = latin(&space, SCATTER_MAX.min(trials / 8), &mut prng);
        scatter.push(space.start());
        let best = space.start();
        let round_from = f64::NEG_INFINITY;
        Search {
            space,
            trials: BTreeMap::new(),
            scatter,
            best,
            axes,
            swept: 0,
            round_from,
            restarts: 0,
            noise: NOISE_PRIOR,
            prng,
            converged: false,
        }
    }

    /// The point to try next, when `left` trials can still be afforded, this one included; `None` when that is zero or
    /// nothing promises to be better.
    pub fn next(&mut self, left: u32) -> Option<Point> {
        if left == 0 {
            return None;
        }
        if left > RUN_OFF_TRIALS && !self.converged {
            if let Some(point) = self.scatter.pop() {
                return Some(point);
            }
            if let Some(point) = self.climb() {
                return Some(point);
            }
            self.converged = true;
        }
        self.run_off()
    }

    /// What a trial of `point` brought.
    pub fn tell(&mut self, point: &Point, measured: Measured) {
        self.trials.entry(point.clone()).or_default().add(measured);
        self.look();
    }

    /// `point` cannot be tried here: it will not be proposed again.
    pub fn refuse(&mut self, point: &Point) {
        self.trials.entry(point.clone()).or_default().refused = true;
        self.look();
    }

    /// The best point so far; the start before the first measurement.
    pub fn best(&self) -> &Point {
        &self.best
    }

    /// All measurements, by point.
    pub fn trials(&self) -> &BTreeMap<Point, Trials> {
        &self.trials
    }

    /// What is chosen from.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// What to expect of the best point; `None` while it was not tried.
    pub fn forecast(&self) -> Option<Forecast> {
        let trials = self.trials.get(&self.best).filter(|trials| !trials.told.is_empty())?;
        let bytes_per_s = trials.mean_of(|measured| measured.bytes_per_s);
        let spread = 2.0 * self.noise * (1.0 + 1.0 / trials.told.len() as f64).sqrt();
        Some(Forecast {
            bytes_per_s,
            bytes_per_s_low: bytes_per_s * (-spread).exp(),
            bytes_per_s_high: bytes_per_s * spread.exp(),
            cpu_s_per_byte: trials.mean_of(|measured| measured.cpu_s_per_byte),
        })
    }

    /// Standard deviation of a single trial's score, from all repeats so far.
    pub fn noise(&self) -> f64 {
        self.noise
    }

    fn pooled_noise(&self) -> f64 {
        let squares: f64 = self.trials.values().map(Trials::squares).filter(|squares| squares.is_finite()).sum();
        let freedom: usize = self.trials.values().map(|trials| trials.told.len().saturating_sub(1)).sum();
        ((squares + NOISE_PRIOR.powi(2) * NOISE_PRIOR_TRIALS) / (freedom as f64 + NOISE_PRIOR_TRIALS)).sqrt()
    }

    /// Doubt about the mean score of so many trials.
    fn doubt(&self, trials: &Trials) -> f64 {
        self.noise / (trials.told.len().max(1) as f64).sqrt()
    }

    /// Finds the best anew.
    fn look(&mut self) {
        self.noise = self.pooled_noise();
        let cautious = |(point, trials): (&Point, &Trials)| self.worth(point, trials) - self.doubt(trials);
        let best = self.trials.iter().max_by(|a, b| cautious(*a).total_cmp(&cautious(*b)));
        self.best = best.map_or_else(|| self.space.start(), |(point, _)| point.clone());
    }

    /// The score less what a point takes of things others could use.
    fn worth(&self, point: &Point, trials: &Trials) -> f64 {
        let scarce = |axis| matches!(axis, Axis::Shards | Axis::Connections | Axis::MemoryBytes);
        let steps = self.space.ranges().iter().zip(&point.0).filter(|(range, _)| scarce(range.axis));
        trials.score() - THRIFT * steps.map(|(_, at)| *at as f64).sum::<f64>()
    }

    fn climb(&mut self) -> Option<Point> {
        let told = |search: &Search, point: &Point| search.trials.get(point).map_or(0, |trials| trials.told.len());
        // The best counts only when it was measured good twice.
        if told(self, &self.best) == 1 {
            return Some(self.best.clone());
        }
        let score = self.trials.get(&self.best).map_or(f64::NEG_INFINITY, Trials::score);
        if score > self.round_from + ROUND_GAIN_MIN.max(self.noise) {
            (self.round_from, self.swept) = (score, 0);
        }
        while let Some(axis) = self.axes.get(self.swept) {
            if let Some(point) = self.sweep(*axis).find(|point| !self.trials.contains_key(point)) {
                return Some(point);
            }
            self.swept += 1;
        }
        // No axis alone leads further. Somewhere else may, with what was compared like with like left as it is.
        if self.restarts < RESTARTS_MAX {
            self.restarts += 1;
            self.scatter = self.elsewhere();
            if let Some(point) = self.scatter.pop() {
                return Some(point);
            }
        }
        let near: Vec<Point> = self.axes.iter().flat_map(|axis| self.neighbours(*axis)).collect();
        if let Some(point) = near.iter().find(|point| !self.trials.contains_key(point)) {
            return Some(point.clone());
        }
        let rivals =
            self.trials.iter().filter(|(point, trials)| trials.told.len() < REPEATS_MAX && self.rivals_best(point));
        let hope = |(point, trials): &(&Point, &Trials)| self.worth(point, trials) + self.doubt(trials);
        if let Some((point, _)) = rivals.max_by(|a, b| hope(a).total_cmp(&hope(b))) {
            return Some(point.clone());
        }
        self.further().find(|point| !self.trials.contains_key(point))
    }

    /// Untried points all over the space, but with the best's shards and ring.
    fn elsewhere(&mut self) -> Vec<Point> {
        let mut points = latin(&self.space, SCATTER_MAX, &mut self.prng);
        for (place, range) in self.space.ranges().iter().enumerate() {
            if matches!(range.axis, Axis::Shards | Axis::Ring | Axis::Register) {
                points.iter_mut().for_each(|point| point.0[place] = self.best.0[place]);
            }
        }
        points.retain(|point| !self.trials.contains_key(point));
        points
    }

    /// Every second value of an axis, and both its ends, from the best: the far ones first.
    fn sweep(&self, axis: Axis) -> impl Iterator<Item = Point> + '_ {
        let len =
            self.space.ranges().iter().find(|range| range.axis == axis).map_or(0, |range| range.values.len()) as isize;
        let steps = (-len..=len).filter_map(move |by| Some((by, self.space.step(&self.best, axis, by)?)));
        let ends = [self.space.step(&self.best, axis, 1).is_none(), self.space.step(&self.best, axis, -1).is_none()];
        let [at_last, at_first] = ends;
        let coarse = steps.filter(move |(by, point)| {
            let is_end = !at_last && self.space.step(point, axis, 1).is_none()
                || !at_first && self.space.step(point, axis, -1).is_none();
            !axis.is_ordered() || by % 2 == 0 || is_end
        });
        coarse.map(|(_, point)| point)
    }

    /// Points one value away on an ordered axis, and all others on one without order.
    fn neighbours(&self, axis: Axis) -> Vec<Point> {
        let reach = if axis.is_ordered() { 1 } else { self.space.ranges().len().max(8) as isize };
        let steps = (1..=reach).flat_map(|by| [by, -by]);
        steps.filter_map(|by| self.space.step(&self.best, axis, by)).collect()
    }

    /// Two values away on one axis, or one on each of two: where the climb would miss a ridge or a dip.
    fn further(&self) -> impl Iterator<Item = Point> + '_ {
        let ordered = || self.axes.iter().copied().filter(|axis| axis.is_ordered());
        let jumps = ordered().flat_map(|axis| [2, -2].map(|by| (axis, by)));
        let far = jumps.filter_map(|(axis, by)| self.space.step(&self.best, axis, by));
        let pairs = ordered().flat_map(move |a| ordered().filter(move |b| a < *b).map(move |b| (a, b)));
        let corners = pairs.flat_map(|(a, b)| [(1, -1), (-1, 1), (1, 1), (-1, -1)].map(|(i, j)| (a, i, b, j)));
        let across = corners.filter_map(|(a, i, b, j)| self.space.step(&self.space.step(&self.best, a, i)?, b, j));
        far.chain(across)
    }

    /// Whether what is known leaves room for this point to be better than the best by what would be worth a trial.
    fn rivals_best(&self, point: &Point) -> bool {
        let (Some(one), Some(best)) = (self.trials.get(point), self.trials.get(&self.best)) else { return false };
        let doubt = self.doubt(one).hypot(self.doubt(best));
        !one.refused && self.worth(point, one) + doubt > self.worth(&self.best, best) + GAIN_MIN
    }

    /// The best meet again, those tried least first, until each was tried as often as settles a doubt.
    fn run_off(&self) -> Option<Point> {
        let mut ranked: Vec<(&Point, &Trials)> =
            self.trials.iter().filter(|(_, trials)| !trials.told.is_empty()).collect();
        ranked.sort_by(|(p, a), (q, b)| self.worth(q, b).total_cmp(&self.worth(p, a)));
        let stays = |point: &Point| *point == self.best || self.rivals_best(point);
        let finalists = ranked.into_iter().take(FINALISTS).filter(|(point, _)| stays(point));
        let least = finalists.min_by_key(|(_, trials)| trials.told.len())?;
        (least.1.told.len() < 2 * REPEATS_MAX).then(|| least.0.clone())
    }
}

fn shuffle<T>(items: &mut [T], prng: &mut Prng) {
    for last in (1..items.len()).rev() {
        items.swap(last, prng.below(last as u64 + 1) as usize);
    }
}

/// Points spread over the space so that each axis is covered evenly: a Latin hypercube.
fn latin(space: &Space, count: u32, prng: &mut Prng) -> Vec<Point> {
    let count = count as usize;
    let mut points = vec![Vec::with_capacity(space.ranges().len()); count];
    for range in space.ranges() {
        let mut strata: Vec<usize> = (0..count).collect();
        shuffle(&mut strata, prng);
        for (point, stratum) in points.iter_mut().zip(strata) {
            let at = (stratum as f64 + prng.unit()) / count as f64 * range.values.len() as f64;
            point.push((at as usize).min(range.values.len() - 1));
        }
    }
    points.into_iter().map(Point).collect()
}
