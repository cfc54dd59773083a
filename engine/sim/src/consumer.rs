//! The virtual trainer of one rank: takes batches, computes for a while, holds leases, sometimes pauses.

use crate::canary::Canary;
use crate::check::Entry;
use crate::check::Step;
use crate::check::{Checked, Checker, Inspector, Violation};
use crate::scenario::ConsumerShape;
use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Error, Instant};
use fuelrail_flow::{Assembled, Finished, Outlet};
use fuelrail_io::{Ring as _, SimRing};
use std::collections::VecDeque;

/// Which batch the planted bugs are about.
const PLANTED_AT: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Computes until then.
    Computes(Instant),
    /// Has requested the next batch, since then.
    Waits(Instant),
    /// Waits for the other ranks to finish their step.
    Gathers,
    Done,
}

struct Lease {
    seq: u64,
    due: Instant,
    batch: Assembled,
}

/// One rank's trainer.
pub(crate) struct Trainer {
    rank: usize,
    shape: ConsumerShape,
    lockstep: bool,
    prng: Prng,
    /// Only its timer is used: virtual time must not jump over this trainer's next act.
    timer: SimRing,
    state: State,
    leases: VecDeque<Lease>,
    /// What it got, by step.
    pub(crate) taken: Vec<Vec<Entry>>,
    /// A batch that failed as it had to.
    pub(crate) raised: Option<String>,
    /// A failure of the run has woken it.
    woken: bool,
    /// Why the run failed, once it knows.
    pub(crate) failed: Option<Error>,
    pub(crate) longest_wait: Duration,
    /// When the last step of each epoch was done.
    pub(crate) epoch_ends: Vec<Instant>,
    /// Longest wait that ended since this was last read.
    ended_wait: Duration,
    canary: Option<Canary>,
}

impl Trainer {
    pub(crate) fn new(
        rank: usize,
        shape: ConsumerShape,
        lockstep: bool,
        prng: Prng,
        timer: SimRing,
        canary: Option<Canary>,
    ) -> Trainer {
        Trainer {
            rank,
            shape,
            lockstep,
            prng,
            timer,
            state: State::Gathers,
            leases: VecDeque::new(),
            taken: Vec::new(),
            raised: None,
            woken: false,
            failed: None,
            longest_wait: Duration::ZERO,
            epoch_ends: Vec::new(),
            ended_wait: Duration::ZERO,
            canary: canary.filter(|_| rank == 0),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done && self.leases.is_empty()
    }

    /// How long it has been waiting for a batch.
    pub(crate) fn waiting(&self, now: Instant) -> Duration {
        match self.state {
            State::Waits(since) => now.since(since),
            _ => Duration::ZERO,
        }
    }

    /// The longest wait since the last call, ended or not.
    pub(crate) fn waited(&mut self, now: Instant) -> Duration {
        self.waiting(now).max(core::mem::take(&mut self.ended_wait))
    }

    /// Drops all leases, as the end of its process does.
    pub(crate) fn let_go(&mut self) {
        self.leases.clear();
    }

    /// Does what is due. `slowest` is the number of steps the slowest rank has taken. True when anything happened.
    pub(crate) fn act(
        &mut self,
        outlet: &mut Outlet,
        steps: &[Step],
        slowest: usize,
        inspector: &Inspector<'_>,
    ) -> Checked<bool> {
        let now = self.timer.now();
        let mut moved = self.give_back(now, inspector)?;
        if self.timer.waker().is_notified() {
            self.timer.waker().disarm();
            self.woken = true;
        }
        if let State::Computes(until) = self.state
            && until <= now
        {
            self.state = State::Gathers;
            moved = true;
        }
        if self.state == State::Gathers && (!self.lockstep || slowest >= self.taken.len()) {
            let over = self.taken.len() == steps.len() || self.raised.is_some();
            self.state = if over { State::Done } else { State::Waits(now) };
            moved = true;
        }
        if let State::Waits(since) = self.state {
            if let Some(finished) = outlet.try_take() {
                outlet.set_waiting(false);
                self.ended_wait = self.ended_wait.max(now.since(since));
                self.longest_wait = self.longest_wait.max(self.ended_wait);
                self.take(now, finished, steps, inspector)?;
                moved = true;
            } else if let Some(cause) = outlet.consumer().failure.cause() {
                if !self.woken {
                    return Err(Violation::new(Checker::Liveness, format!("the consumer was not woken for: {cause}")));
                }
                moved = self.failed.is_none();
                self.failed = Some(cause.clone());
            } else {
                outlet.set_waiting(true);
            }
        }
        self.set_timer();
        Ok(moved)
    }

    fn take(&mut self, now: Instant, mut finished: Finished, steps: &[Step], inspector: &Inspector<'_>) -> Checked<()> {
        let seq = self.taken.len() as u64;
        self.plant(&mut finished);
        let step = &steps[self.taken.len()];
        let Some(entries) = inspector.batch(seq, step.epoch, &step.shares[self.rank], &finished)? else {
            self.raised = finished.result.err().map(|error| error.to_string());
            self.state = State::Gathers;
            return Ok(());
        };
        self.taken.push(entries);
        if let Ok(batch) = finished.result {
            let held = Duration::from_millis(self.prng.below(self.shape.lease_ms + 1));
            self.leases.push_back(Lease { seq, due: now.after(held), batch });
        }
        while self.leases.len() > self.shape.leases_max {
            let lease = self.leases.pop_front();
            self.end_lease(lease, inspector)?;
        }
        self.plant_in_leases(seq);
        let until = now.after(self.step_time());
        self.epoch_ends.resize(step.epoch as usize + 1, until);
        self.epoch_ends[step.epoch as usize] = until;
        self.state = State::Computes(until);
        Ok(())
    }

    fn step_time(&mut self) -> Duration {
        if self.prng.chance(self.shape.pause) {
            return Duration::from_millis(self.shape.pause_ms);
        }
        if self.shape.steady {
            return Duration::from_micros(self.shape.step_us);
        }
        // Exponential: most steps are short, a few are long.
        let stretch = -(1.0 - self.prng.unit()).ln();
        Duration::from_micros((self.shape.step_us as f64 * stretch) as u64)
    }

    fn give_back(&mut self, now: Instant, inspector: &Inspector<'_>) -> Checked<bool> {
        let mut any = false;
        while let Some(at) = self.leases.iter().position(|lease| lease.due <= now) {
            let lease = self.leases.remove(at);
            self.end_lease(lease, inspector)?;
            any = true;
        }
        Ok(any)
    }

    fn end_lease(&self, lease: Option<Lease>, inspector: &Inspector<'_>) -> Checked<()> {
        let Some(Lease { seq, batch, .. }) = lease else { return Ok(()) };
        inspector.unchanged(seq, &batch)?;
        if self.canary == Some(Canary::LeakedSlot) && seq == PLANTED_AT {
            core::mem::forget(batch);
        }
        Ok(())
    }

    fn set_timer(&mut self) {
        let compute = match self.state {
            State::Computes(until) => Some(until),
            _ => None,
        };
        let next = self.leases.iter().map(|lease| lease.due).chain(compute).min();
        // A simulated ring without operations only notes when to wake.
        let waited = self.timer.wait(next);
        debug_assert!(waited.is_ok(), "a simulated ring never refuses to wait");
    }

    fn plant(&mut self, finished: &mut Finished) {
        let Ok(batch) = &mut finished.result else { return };
        match self.canary {
            Some(Canary::BatchTwice) if finished.seq.0 == PLANTED_AT => finished.seq.0 -= 1,
            Some(Canary::SwappedSamples) if finished.seq.0 == PLANTED_AT && batch.samples.len() > 1 => {
                batch.samples.swap(0, 1);
            }
            _ => {}
        }
    }

    fn plant_in_leases(&mut self, seq: u64) {
        if self.canary == Some(Canary::EarlySlot)
            && seq == PLANTED_AT
            && let Some(byte) = self.leases.back_mut().and_then(|lease| lease.batch.slot.first_mut())
        {
            *byte = !*byte;
        }
    }
}
