//! What the books of a bucket tell, tick by tick, and the figures made of it.

use std::time::Duration;

use serde::Serialize;

/// How often the books are read.
pub(super) const TICK: Duration = Duration::from_millis(100);
const TICKS_PER_S: u64 = 10;
/// Ticks of the means that convergence is told by: two seconds.
const MEAN_TICKS: usize = 20;
/// Ticks that a recovery has to last.
const BACK_TICKS: usize = 5;
/// When convergence is to be over, s.
const SETTLED_S: u64 = 10;
/// How far from the limit a mean may lie.
const NEAR: f64 = 0.1;

/// One way of reading from a bucket that allows a rate.
#[derive(Clone, Debug, Serialize)]
pub struct ThrottleRun {
    /// Processes.
    pub processes: usize,
    /// Whether they had a directory in common.
    pub shared: bool,
    /// From the first request until every mean over two seconds lay within a tenth of the limit, s; absent when never.
    pub converged_s: Option<f64>,
    /// Served a second over the limit, from ten seconds on.
    pub held: f64,
    /// The least of all means over two seconds since then, over the limit.
    pub least: f64,
    /// Refused requests over served ones since then.
    pub refused: f64,
    /// Refused requests before that.
    pub refused_before: u64,
    /// Requests of each process that were served since then, over an even share.
    pub shares: Vec<f64>,
    /// From the lifting until twice the limit was served for half a second, s; absent when never.
    pub recovered_s: Option<f64>,
    /// Requests served in every tenth of a second.
    pub served: Vec<u64>,
}

/// One outage in the middle of an epoch.
#[derive(Clone, Debug, Serialize)]
pub struct OutageRun {
    /// What the bucket answered.
    pub answers: String,
    /// How long, s.
    pub outage_s: u64,
    /// Requests a second before.
    pub before_per_s: f64,
    /// Requests in the outage.
    pub requests: u64,
    /// From its end until half the rate of before was served again for half a second, s; absent when never.
    pub recovered_s: Option<f64>,
    /// The reader went on without an error.
    pub went_on: bool,
}

/// The sums at one tick.
#[derive(Clone, Debug, Default)]
pub(super) struct Tick {
    pub(super) served: u64,
    pub(super) refused: u64,
    pub(super) per_reader: Vec<u64>,
}

/// All ticks of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    pub(super) ticks: Vec<Tick>,
}

pub(super) fn ticks(seconds: u64) -> usize {
    (seconds * TICKS_PER_S) as usize
}

fn seconds(ticks: usize) -> f64 {
    ticks as f64 / TICKS_PER_S as f64
}

impl Books {
    /// Requests served a second between two ticks.
    fn rate(&self, from: usize, to: usize) -> f64 {
        (self.ticks[to].served - self.ticks[from].served) as f64 / seconds(to - from)
    }

    /// Time from tick `from` until this rate was served for half a second.
    fn back(&self, from: usize, rate: f64) -> Option<f64> {
        let at = (from + BACK_TICKS..self.ticks.len()).find(|&at| self.rate(at - BACK_TICKS, at) >= rate)?;
        Some(seconds(at - from))
    }
}

/// A run whose limit was lifted at tick `lifted`.
pub(super) fn limited(books: &Books, limit: f64, lifted: usize, shared: bool) -> ThrottleRun {
    let settled = ticks(SETTLED_S).min(lifted - MEAN_TICKS);
    let mean = |at: usize| books.rate(at, at + MEAN_TICKS) / limit;
    let off = (0..=lifted - MEAN_TICKS).rev().find(|&at| (mean(at) - 1.0).abs() > NEAR);
    let converged = off.map_or(0, |at| at + 1);
    let (then, end) = (&books.ticks[settled], &books.ticks[lifted]);
    let processes = end.per_reader.len();
    let even = limit * seconds(lifted - settled) / processes as f64;
    ThrottleRun {
        processes,
        shared,
        converged_s: (converged + MEAN_TICKS <= lifted).then_some(seconds(converged)),
        held: books.rate(settled, lifted) / limit,
        least: (settled..=lifted - MEAN_TICKS).map(mean).fold(f64::INFINITY, f64::min),
        refused: (end.refused - then.refused) as f64 / ((end.served - then.served) as f64).max(1.0),
        refused_before: then.refused,
        shares: (0..processes).map(|who| (end.per_reader[who] - then.per_reader[who]) as f64 / even).collect(),
        recovered_s: books.back(lifted, 2.0 * limit),
        served: books.ticks.windows(2).map(|pair| pair[1].served - pair[0].served).collect(),
    }
}

/// A run whose bucket served nothing from one tick to another.
pub(super) fn outage(
    books: &Books,
    (down, up): (usize, usize),
    answers: &str,
    outage_s: u64,
    went_on: bool,
) -> OutageRun {
    let before_per_s = books.rate(down.saturating_sub(MEAN_TICKS), down);
    OutageRun {
        answers: answers.into(),
        outage_s,
        before_per_s,
        requests: books.ticks[up].refused - books.ticks[down].refused,
        recovered_s: books.back(up, before_per_s / 2.0),
        went_on,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums over ticks of what comes in each.
    fn books(ticks: usize, served: impl Fn(usize) -> u64, refused: impl Fn(usize) -> u64) -> Books {
        let mut sum = Tick { per_reader: vec![0; 2], ..Tick::default() };
        let mut books = Books { ticks: vec![sum.clone()] };
        for tick in 1..=ticks {
            sum.served += served(tick);
            sum.refused += refused(tick);
            sum.per_reader = vec![sum.served / 4, sum.served - sum.served / 4];
            books.ticks.push(sum.clone());
        }
        books
    }

    #[test]
    fn a_limit_that_is_found_after_two_seconds_and_left_one_second_late() {
        let served = |tick| match tick {
            ..=20 => 0,
            21..=210 => 10,
            _ => 40,
        };
        let run = limited(&books(250, served, |tick| u64::from(tick > 100)), 100.0, 200, false);
        assert_eq!(run.converged_s, Some(1.8), "a tenth of two seconds may still be missing");
        assert_eq!((run.held, run.least, run.refused, run.refused_before), (1.0, 1.0, 0.1, 0));
        assert_eq!(run.shares, [0.5, 1.5]);
        assert_eq!(run.recovered_s, Some(1.2), "two ticks of 40 and three of 10 are not yet twice the limit");
    }

    #[test]
    fn a_rate_never_found_is_said_so() {
        let run = limited(&books(200, |tick| (tick % 40) as u64 / 2, |_| 1), 100.0, 200, true);
        assert_eq!((run.converged_s, run.recovered_s), (None, None));
        assert!(run.least < 0.9, "{run:?}");
    }

    #[test]
    fn an_outage_counts_what_was_asked_in_it() {
        let served = |tick| if (50..150).contains(&(tick - 1)) { 0 } else { 20 };
        let refused = |tick| u64::from((50..150).contains(&(tick - 1)) && tick % 10 == 0);
        let run = outage(&books(200, served, refused), (50, 150), "no", 10, true);
        assert_eq!((run.before_per_s, run.requests, run.recovered_s), (200.0, 10, Some(0.5)));
    }
}
