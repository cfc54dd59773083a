//! The books of a soak: what must come next, what came, and whether it came once, in order and with its bytes.
//!
//! Owns the expectation, which goes on over every loader that is opened anew: the order from the plan's permutation, exactly
//! once from a mark for every sample, whatever the plan says. Never asks a loader what it thinks it delivered.

use fuelrail::{Batch, Result, Sample};
use fuelrail_base::BatchSeq;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use xxhash_rust::xxh3::xxh3_64;

use super::objects::Object;

/// Differences told in words; more are only counted.
const TOLD_MAX: usize = 12;

/// The books.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    objects: &'a [Object],
    /// The run of the loader at hand, from where the books stood when it was opened.
    run: Run,
    /// The next batch of that run.
    next: u64,
    cursor: Cursor,
    marks: Vec<bool>,
    pub(super) samples: u64,
    pub(super) bytes: u64,
    pub(super) wrong: u64,
    pub(super) told: Vec<String>,
}

impl<'a> Ledger<'a> {
    /// Books of a run from its beginning.
    ///
    /// # Errors
    /// `Usage` when there can be no such run.
    pub(super) fn new(objects: &'a [Object], config: RunConfig) -> Result<Ledger<'a>> {
        let run = Run::new(config)?;
        let marks = vec![false; objects.len()];
        let cursor = config.start;
        Ok(Ledger { objects, run, next: 0, cursor, marks, samples: 0, bytes: 0, wrong: 0, told: Vec::new() })
    }

    /// A loader was opened that shall go on where the books stand.
    ///
    /// # Errors
    /// As [`Ledger::new`].
    pub(super) fn reopened(&mut self) -> Result<()> {
        self.run = Run::new(RunConfig { start: self.cursor, ..*self.run.config() })?;
        self.next = 0;
        Ok(())
    }

    /// Where the books stand: epoch and position.
    pub(super) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Books a batch.
    pub(super) fn take(&mut self, batch: &Batch) {
        let Some(spec) = self.run.batch(BatchSeq(self.next)) else {
            return self.tell(format!("batch {} is beyond the end of the run", self.next));
        };
        if (batch.epoch(), batch.positions()) != (spec.epoch, spec.positions.clone()) {
            let got = format!("epoch {}, positions {:?}", batch.epoch(), batch.positions());
            self.tell(format!("{got} came where epoch {}, positions {:?} was due", spec.epoch, spec.positions));
        }
        if !batch.ids().iter().copied().eq(self.run.samples(&spec)) {
            self.tell(format!("epoch {}, positions {:?}: not the samples in their order", spec.epoch, spec.positions));
        }
        for (id, error) in batch.left_out() {
            self.tell(format!("sample {} was left out: {error}", id.0));
        }
        self.check_bytes(batch);
        for id in batch.ids() {
            self.mark(id.0 as usize, batch.epoch());
        }
        self.samples += batch.len() as u64;
        self.bytes += batch.payload_bytes();
        let after = self.run.cursor_after(spec.seq);
        if after.epoch > self.cursor.epoch {
            self.close_epoch();
        }
        self.cursor = after;
        self.next += 1;
    }

    /// Whether every sample of a batch holds its object.
    pub(super) fn check_bytes(&mut self, batch: &Batch) {
        for Sample { id, bytes, .. } in batch.samples() {
            let Some(object) = self.objects.get(id.0 as usize) else {
                self.tell(format!("sample {} does not exist", id.0));
                continue;
            };
            if bytes.len() as u64 != object.size || xxh3_64(bytes) != object.hash {
                let text = format!("{}: {} bytes that are not the object's", object.key, bytes.len());
                self.tell(text);
            }
        }
    }

    fn mark(&mut self, id: usize, epoch: u64) {
        match self.marks.get_mut(id) {
            Some(mark) if !*mark => *mark = true,
            Some(_) => self.tell(format!("sample {id} came twice in epoch {epoch}")),
            None => {}
        }
    }

    fn close_epoch(&mut self) {
        let missing = self.marks.iter().filter(|mark| !**mark).count();
        if missing > 0 {
            self.tell(format!("{missing} samples of epoch {} never came", self.cursor.epoch));
        }
        self.marks.fill(false);
    }

    fn tell(&mut self, text: String) {
        self.wrong += 1;
        if self.told.len() < TOLD_MAX {
            self.told.push(text);
        }
    }
}
