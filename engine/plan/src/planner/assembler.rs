//! The assembler role: decides when this shard's next batch is opened.

use super::types::{Command, PlannerConfig};
use crate::catalog::Catalog;
use crate::importance::Known;
use crate::prefetch::{Strategy, View};
use crate::run::Run;
use core::fmt;
use fuelrail_base::limits::OPEN_BATCHES_MAX;
use fuelrail_base::{BatchSeq, Duration, Instant, ReorderWindow};
use std::collections::VecDeque;
use std::sync::Arc;

/// Look-ahead state of one assembling shard. Batches are opened strictly in order, so the next one to be delivered always has
/// its room before any later one: a full arena can delay, never deadlock.
pub(super) struct Assembler {
    run: Run,
    catalog: Arc<Catalog>,
    prefetch: Strategy,
    room_bytes: u64,
    next: u64,
    end: u64,
    stride: u64,
    /// Samples and bytes of the batch that an `Open` command is out for.
    opening: Option<(u64, u64)>,
    /// Samples and bytes of batch `next`, once computed.
    measured: Option<(u64, u64)>,
    pub(super) blocked: bool,
    credit: u64,
    /// Samples and bytes of every opened batch that is not taken, oldest first.
    open: VecDeque<(u64, u64)>,
    open_samples: u64,
    open_bytes: u64,
    opened_samples: u64,
    /// Batches that are filling, with the moment they were opened.
    unready: ReorderWindow<Instant>,
    taken: u64,
    waits: bool,
    /// When the consumer last took a batch, since when it waits now, and how long it has waited between the two.
    taken_at: Option<Instant>,
    waits_since: Option<Instant>,
    waited: Duration,
    step_time: Duration,
    fill_time: Duration,
    /// The batch to be opened when the bucket last sent a block.
    fetched_at: Option<u64>,
}

/// A fetch was needed lately when it was within so many batches. Of rarer ones each may be waited for: a wait of ten steps is a hundredth
/// of the time then.
const LATELY: u64 = 1024;

impl Assembler {
    pub(super) fn new(config: &PlannerConfig, run: Run, catalog: Arc<Catalog>) -> Assembler {
        Assembler {
            end: run.batches(),
            run,
            catalog,
            prefetch: config.prefetch.clone(),
            room_bytes: config.batch_room_bytes,
            next: u64::from(config.shard.0),
            stride: u64::from(config.shards),
            opening: None,
            measured: None,
            blocked: false,
            credit: 0,
            open: VecDeque::with_capacity(OPEN_BATCHES_MAX),
            open_samples: 0,
            open_bytes: 0,
            opened_samples: 0,
            unready: ReorderWindow::with_capacity(OPEN_BATCHES_MAX),
            taken: 0,
            waits: false,
            taken_at: None,
            waits_since: None,
            waited: Duration::ZERO,
            step_time: Duration::ZERO,
            fill_time: Duration::ZERO,
            fetched_at: None,
        }
    }

    pub(super) fn learn(&mut self, known: &Known) {
        self.run.learn(known);
    }

    pub(super) fn opened(&mut self, now: Instant, seq: BatchSeq) {
        let (samples, bytes) = self.opening.take().expect("a batch is opened only by command");
        assert_eq!(seq.0, self.next, "batches are opened in order");
        self.next += self.stride;
        self.measured = None;
        self.credit = self.credit.saturating_sub(samples);
        self.open.push_back((samples, bytes));
        self.open_samples += samples;
        self.open_bytes += bytes;
        self.opened_samples += samples;
        self.unready.insert(seq.0, now);
    }

    pub(super) fn no_room(&mut self, seq: BatchSeq) {
        assert_eq!(seq.0, self.next, "batches are opened in order");
        self.opening = None;
        self.blocked = true;
    }

    pub(super) fn room(&mut self) {
        self.blocked = false;
    }

    pub(super) fn ready(&mut self, now: Instant, seq: BatchSeq) {
        let opened = self.unready.remove(seq.0).expect("a batch becomes ready once, after it was opened");
        self.fill_time = smoothed(self.fill_time, now.since(opened));
    }

    /// The bucket has sent a block.
    pub(super) fn fetched(&mut self) {
        self.fetched_at = Some(self.next);
    }

    pub(super) fn consumer(&mut self, now: Instant, taken: u64, waits: bool) {
        let takes = taken > self.taken;
        if takes || !waits {
            // A wait ends when the consumer takes a batch or gives up waiting.
            self.waited += self.waits_since.take().map_or(Duration::ZERO, |since| now.since(since));
        }
        if takes {
            let waited = core::mem::take(&mut self.waited);
            if let Some(before) = self.taken_at {
                // Time spent waiting is not part of the consumer's step.
                let steps = u32::try_from(taken - self.taken).unwrap_or(u32::MAX);
                self.step_time = smoothed(self.step_time, now.since(before).saturating_sub(waited) / steps);
            }
            self.taken_at = Some(now);
        }
        while self.taken < taken {
            let (samples, bytes) = self.open.pop_front().expect("only opened batches can be taken");
            self.open_samples -= samples;
            self.open_bytes -= bytes;
            self.taken += 1;
            self.blocked = false;
        }
        if waits {
            self.waits_since.get_or_insert(now);
        }
        self.waits = waits;
    }

    /// Beside a bucket whose fetches take `fetch_time`.
    pub(super) fn open_next<W>(
        &mut self,
        now: Instant,
        queued_fetches: u64,
        fetch_time: Duration,
        out: &mut VecDeque<Command<W>>,
    ) -> bool {
        if self.opening.is_some() || self.blocked || self.next >= self.end {
            return false;
        }
        let Some((samples, bytes)) = self.measure_next() else { return false };
        if self.credit == 0 {
            let ready = self.open.len().saturating_sub(self.unready.len()) as u64;
            let lately = self.fetched_at.is_some_and(|at| self.next - at < LATELY * self.stride);
            self.credit = self.prefetch.credit(&View {
                opened_samples: self.opened_samples,
                queued_samples: self.open_samples,
                open_batches: self.open.len() as u64,
                next_batch_samples: samples,
                next_batch_bytes: bytes,
                open_bytes: self.open_bytes,
                budget_bytes: self.room_bytes,
                ready_batches: ready,
                consumer_waits: self.waits && ready == 0,
                taken_batches: self.taken,
                queued_fetches,
                step_time: self.step_time,
                fill_time: self.fill_time,
                fetch_time: if lately { fetch_time } else { Duration::ZERO },
                now,
            });
        }
        if self.credit == 0 && samples > 0 {
            let (next, room) = (self.next, self.room_bytes);
            // Nothing that comes back would make room.
            assert!(!self.open.is_empty() || bytes <= room, "batch {next} takes {bytes} bytes, and there are {room}");
            return false;
        }
        self.opening = Some((samples, bytes));
        out.push_back(Command::Open { seq: BatchSeq(self.next), bytes });
        true
    }

    /// Samples and room of the next batch; summed once per batch. `None` while its epoch is not drawn.
    fn measure_next(&mut self) -> Option<(u64, u64)> {
        if self.measured.is_some() {
            return self.measured;
        }
        let spec = self.run.batch(BatchSeq(self.next)).expect("next is below the run's end");
        if !self.run.is_settled(spec.epoch) {
            return None;
        }
        let bytes: u64 = self.run.samples(&spec).map(|sample| self.catalog.room(sample)).sum();
        let bytes = if bytes == 0 { 0 } else { bytes + self.catalog.batch_slack() };
        self.measured = Some((spec.positions.end - spec.positions.start, bytes));
        self.measured
    }

    /// The next batch waits for its epoch to be drawn.
    fn is_undrawn(&self) -> bool {
        self.run.batch(BatchSeq(self.next)).is_some_and(|spec| !self.run.is_settled(spec.epoch))
    }

    /// A batch has become ready.
    pub(super) fn has_filled(&self) -> bool {
        !self.fill_time.is_zero()
    }

    pub(super) fn all_opened(&self) -> bool {
        self.next >= self.end
    }
}

impl fmt::Display for Assembler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "assembler: next batch {} of {}, {} open ({} bytes of {}), {} incomplete, {} taken{}{}{}",
            self.next,
            self.end,
            self.open.len(),
            self.open_bytes,
            self.room_bytes,
            self.unready.len(),
            self.taken,
            if self.blocked { ", blocked for room" } else { "" },
            if self.is_undrawn() { ", the next epoch is not drawn yet" } else { "" },
            if self.waits { ", consumer waits" } else { "" },
        )
    }
}

/// Exponentially smoothed with weight 1/8, as TCP smooths its round-trip time (RFC 6298). The first value stands alone.
fn smoothed(mean: Duration, value: Duration) -> Duration {
    if mean.is_zero() { value } else { (mean * 7 + value) / 8 }
}
