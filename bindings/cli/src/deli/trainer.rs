//! One rank's training loop: ask for a batch, compute on it, again. The only place that measures data wait.
//!
//! Owns nothing. The step is simulated by waiting for its end; inside it every sample is compared with the generator, as a
//! trainer would be busy with it, so checking costs no row data wait and all rows the same.

use std::time::{Duration, Instant};

use fuelrail::thread_cpu;
use fuelrail_base::{Error, Kind, Result};

use super::feed::{Counts, Course, Feed};
use super::line::StartLine;
use super::originals::Originals;
use super::scale::Scale;

/// One epoch of one rank.
#[derive(Clone, Debug, Default)]
pub(super) struct RankEpoch {
    /// Data wait of every step.
    pub(super) waits: Vec<Duration>,
    /// From the start of the epoch to the end of the last step.
    pub(super) whole: Duration,
    /// Time in simulated steps.
    pub(super) steps: Duration,
    /// Processor time of the trainer's own thread.
    pub(super) own_cpu: Duration,
    /// What the feed counted.
    pub(super) counts: Counts,
    /// Samples delivered and found right.
    pub(super) samples: u64,
    /// Their bytes.
    pub(super) bytes: u64,
}

/// Everything one rank did.
#[derive(Clone, Debug, Default)]
pub(super) struct RankRun {
    pub(super) epochs: Vec<RankEpoch>,
    /// From before the feed was opened to the first batch.
    pub(super) first_batch: Duration,
    /// Most payload bytes the feed kept.
    pub(super) held_bytes_max: u64,
}

/// What a rank trains on and with whom.
pub(super) struct Seat<'a> {
    pub(super) scale: &'a Scale,
    pub(super) rank: u32,
    pub(super) originals: &'a Originals,
    pub(super) line: &'a StartLine,
    /// Run by the last rank at the line, before every epoch and after the last.
    pub(super) at_line: &'a (dyn Fn() + Sync),
    /// Called after every batch.
    pub(super) on_batch: &'a (dyn Fn() + Sync),
}

/// Trains over all epochs on what `open` gives.
///
/// # Errors
/// What the feed fails with, a sample that is not what the generator says, or `Cancelled` when another rank failed.
pub(super) fn train<'f>(seat: &Seat<'_>, open: impl FnOnce() -> Result<Box<dyn Feed + 'f>>) -> Result<RankRun> {
    let outcome = drive(seat, open);
    if outcome.is_err() {
        seat.line.abandon();
    }
    outcome
}

fn drive<'f>(seat: &Seat<'_>, open: impl FnOnce() -> Result<Box<dyn Feed + 'f>>) -> Result<RankRun> {
    let course = Course::new(seat.scale, seat.rank);
    let mut run = RankRun::default();
    seat.line.wait(seat.at_line)?;
    let started = Instant::now();
    let mut feed = open()?;
    let mut before = Counts::default();
    for epoch in 0..seat.scale.epochs {
        let begun = if epoch == 0 { started } else { Instant::now() };
        let mut ran = train_epoch(seat, &course, feed.as_mut(), epoch, begun)?;
        if epoch == 0 {
            run.first_batch = ran.waits.first().copied().unwrap_or_default();
        }
        let counts = feed.counts();
        ran.counts = Counts {
            misses: counts.misses - before.misses,
            gets: counts.gets - before.gets,
            list_pages: counts.list_pages - before.list_pages,
        };
        before = counts;
        run.epochs.push(ran);
        seat.line.wait(seat.at_line)?;
    }
    run.held_bytes_max = feed.held_bytes_max();
    Ok(run)
}

fn train_epoch(seat: &Seat<'_>, course: &Course, feed: &mut dyn Feed, epoch: u64, begun: Instant) -> Result<RankEpoch> {
    let own_cpu = || {
        let (user, system) = thread_cpu();
        user + system
    };
    let (mut ran, cpu_before, mut asked_at) = (RankEpoch::default(), own_cpu(), begun);
    feed.begin_epoch(epoch)?;
    for step in 0..course.steps() {
        feed.next(epoch, step)?;
        let there_at = Instant::now();
        ran.waits.push(there_at - asked_at);
        let (samples, bytes) = check(seat.originals, course, feed, epoch, step)?;
        ran.samples += samples;
        ran.bytes += bytes;
        let end = there_at + seat.scale.step_of(samples as usize);
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        asked_at = Instant::now();
        ran.steps += asked_at - there_at;
        (seat.on_batch)();
    }
    ran.whole = asked_at - begun;
    ran.own_cpu = own_cpu() - cpu_before;
    Ok(ran)
}

/// Compares the batch with the generator: which samples, in which order, and every byte. Samples and bytes of it.
fn check(originals: &Originals, course: &Course, feed: &dyn Feed, epoch: u64, step: u64) -> Result<(u64, u64)> {
    let mut due = course.batch(epoch, step);
    let (mut samples, mut bytes) = (0, 0);
    feed.visit(&mut |id, delivered| {
        if due.next() != Some(id) {
            return Err(Error::new(Kind::Mismatch, format!("sample {} is not due in epoch {epoch} step {step}", id.0)));
        }
        samples += 1;
        bytes += delivered.len() as u64;
        originals.check(id, delivered)
    })?;
    match due.next() {
        None => Ok((samples, bytes)),
        Some(id) => Err(Error::new(Kind::Mismatch, format!("sample {} is missing in epoch {epoch} step {step}", id.0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::SampleId;
    use fuelrail_bucket::DataSet;

    type Samples = Vec<(SampleId, Vec<u8>)>;

    /// Brings what is due, except at one step, where it does `wrong` to it.
    struct Script<'a> {
        course: Course,
        originals: &'a Originals,
        wrong: fn(&mut Samples),
        batch: Samples,
    }

    impl Feed for Script<'_> {
        fn begin_epoch(&mut self, _: u64) -> Result<()> {
            Ok(())
        }

        fn next(&mut self, epoch: u64, step: u64) -> Result<()> {
            self.batch = self.course.batch(epoch, step).map(|id| (id, self.originals.of(id).to_vec())).collect();
            if (epoch, step) == (1, 20) {
                (self.wrong)(&mut self.batch);
            }
            Ok(())
        }

        fn visit(&self, see: &mut dyn FnMut(SampleId, &[u8]) -> Result<()>) -> Result<()> {
            self.batch.iter().try_for_each(|(id, bytes)| see(*id, bytes))
        }

        fn counts(&self) -> Counts {
            Counts::default()
        }

        fn held_bytes_max(&self) -> u64 {
            77
        }
    }

    fn trained(wrong: fn(&mut Samples)) -> Result<RankRun> {
        let scale = Scale { step_us: 10, ranks: 1, ..Scale::quick(1) };
        let originals = Originals::new(DataSet::digits(scale.samples(), 1));
        let line = StartLine::new(1);
        let seat =
            Seat { scale: &scale, rank: 0, originals: &originals, line: &line, at_line: &|| {}, on_batch: &|| {} };
        let course = Course::new(&scale, 0);
        train(&seat, || Ok(Box::new(Script { course, originals: &originals, wrong, batch: Vec::new() })))
    }

    #[test]
    fn counts_what_was_delivered() {
        let run = trained(|_| {}).unwrap();
        assert_eq!(run.epochs.len(), 2);
        for epoch in &run.epochs {
            assert_eq!((epoch.samples, epoch.waits.len()), (437, 28));
            assert!(epoch.whole >= epoch.steps && epoch.bytes > 437 * 900, "{epoch:?}");
        }
        assert_eq!(run.held_bytes_max, 77);
    }

    #[test]
    fn anything_wrong_ends_the_run() {
        let wrongs: [fn(&mut Samples); 5] = [
            |batch| batch[3].1[40] ^= 1,
            |batch| batch.swap(0, 1),
            |batch| batch.truncate(2),
            |batch| batch.push((SampleId(0), Vec::new())),
            |batch| batch[5].1.truncate(800),
        ];
        for (number, wrong) in wrongs.into_iter().enumerate() {
            assert_eq!(trained(wrong).unwrap_err().kind(), Kind::Mismatch, "wrong {number}");
        }
    }
}
