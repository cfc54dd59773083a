//! The objects of a soak, and the ledger, which checks that samples come once, in order and with the right bytes.
//!
//! The ledger continues over every reopened loader. The order comes from the plan's permutation; a mark per sample checks
//! exactly-once delivery independently of the plan. It never asks a loader what was delivered.

use std::fs;
use std::path::{Path, PathBuf};

use fuelrail::{Batch, Config, Error, Kind, Result, Sample};
use fuelrail_base::BatchSeq;
use fuelrail_bucket::DataSet;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

/// Objects of each kind at scale 1, and the minimum at any scale: about 280 MiB in all.
const DIGITS: (f64, u64) = (2000.0, 40);
const PHOTOS: (f64, u64) = (1000.0, 12);
const VOLUMES: (f64, u64) = (40.0, 4);
/// Volumes have 140 MiB on average as published; these have 4 MiB, and some are longer than a block.
const VOLUME_SCALE: f64 = 0.03;
/// Differences reported as text; further ones are only counted.
const NOTICES_MAX: usize = 12;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Object {
    key: String,
    pub(super) size: u64,
    pub(super) hash: u64,
}

/// The objects, in key order (the order of sample ids), and the temporary folder that holds their files.
#[derive(Debug)]
pub(super) struct Objects {
    folder: TempDir,
    pub(super) all: Vec<Object>,
}

impl Objects {
    /// Writes the objects below `within`, or below the system's temporary folder.
    pub(super) fn write(within: Option<&Path>, scale: f64, seed: u64) -> Result<Objects> {
        let failed = |why: String| {
            Error::new(Kind::File, format!("the soak's objects: {why}")).with_hint("give another folder with --dir")
        };
        let mut name = tempfile::Builder::new();
        name.prefix("fuelrail-soak-");
        let made = within.map_or_else(|| name.tempdir(), |within| name.tempdir_in(within));
        let folder = made.map_err(|error| failed(format!("making a folder: {error}")))?;
        let mut objects = Objects { folder, all: Vec::new() };
        let count = |(full, least): (f64, u64)| ((full * scale) as u64).max(least);
        for (name, set) in [
            ("digits", DataSet::digits(count(DIGITS), seed)),
            ("photos", DataSet::photos(count(PHOTOS), seed)),
            ("volumes", DataSet::volumes(count(VOLUMES), seed, VOLUME_SCALE * scale.min(1.0))),
        ] {
            let below = objects.served().join(name);
            set.write_to(&below, |_| {}).map_err(|error| failed(error.to_string()))?;
            for key in (0..set.len()).map(|index| set.key(index)) {
                let bytes = fs::read(below.join(&key)).map_err(|error| failed(format!("{key}: {error}")))?;
                let (size, hash) = (bytes.len() as u64, xxh3_64(&bytes));
                objects.all.push(Object { key: format!("{name}/{key}"), size, hash });
            }
        }
        objects.all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    pub(super) fn served(&self) -> PathBuf {
        self.folder.path().join("served")
    }

    /// The folder for the loader's disk tier.
    pub(super) fn spilled(&self) -> PathBuf {
        self.folder.path().join("spilled")
    }
}

#[derive(Debug)]
pub(super) struct Ledger<'a> {
    pub(super) objects: &'a [Object],
    /// The run of the current loader, from the ledger's position when it was opened.
    run: Run,
    next: u64,
    /// The ledger's epoch and position.
    pub(super) cursor: Cursor,
    marks: Vec<bool>,
    pub(super) samples: u64,
    pub(super) bytes: u64,
    pub(super) wrong: u64,
    pub(super) notices: Vec<String>,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(objects: &'a [Object], config: &Config) -> Result<Ledger<'a>> {
        let run = Run::new(RunConfig {
            samples: objects.len() as u64,
            seed: config.order.seed,
            order: config.order.name,
            shuffle: config.order.shuffle,
            world: config.world,
            rank: config.rank,
            batch_size: config.batch_size,
            drop_last: config.order.drop_last,
            epochs: config.epochs,
            start: Cursor::default(),
        })?;
        let (marks, cursor) = (vec![false; objects.len()], Cursor::default());
        Ok(Ledger { objects, run, next: 0, cursor, marks, samples: 0, bytes: 0, wrong: 0, notices: Vec::new() })
    }

    /// Continues at the ledger's position with a newly opened loader.
    pub(super) fn reopened(&mut self) -> Result<()> {
        self.run = Run::new(RunConfig { start: self.cursor, ..*self.run.config() })?;
        self.next = 0;
        Ok(())
    }

    pub(super) fn take(&mut self, batch: &Batch) {
        let Some(spec) = self.run.batch(BatchSeq(self.next)) else {
            return self.tell(format!("batch {} is beyond the end of the run", self.next));
        };
        let due = format!("epoch {}, positions {:?}", spec.epoch, spec.positions);
        if (batch.epoch(), batch.positions()) != (spec.epoch, spec.positions.clone()) {
            self.tell(format!("epoch {}, positions {:?} came where {due} was due", batch.epoch(), batch.positions()));
        }
        if !batch.ids().iter().copied().eq(self.run.samples(&spec)) {
            self.tell(format!("{due}: not the samples in their order"));
        }
        for (id, error) in batch.left_out() {
            self.tell(format!("sample {} was skipped: {error}", id.0));
        }
        self.check_bytes(batch);
        for id in batch.ids() {
            if self.marks.get_mut(id.0 as usize).is_some_and(|mark| std::mem::replace(mark, true)) {
                self.tell(format!("sample {} was delivered twice in epoch {}", id.0, batch.epoch()));
            }
        }
        self.samples += batch.len() as u64;
        self.bytes += batch.payload_bytes();
        let after = self.run.cursor_after(spec.seq);
        if after.epoch > self.cursor.epoch {
            let missing = self.marks.iter().filter(|mark| !**mark).count();
            if missing > 0 {
                self.tell(format!("{missing} samples of epoch {} were not delivered", self.cursor.epoch));
            }
            self.marks.fill(false);
        }
        self.cursor = after;
        self.next += 1;
    }

    /// Checks that every sample of a batch has its object's bytes.
    pub(super) fn check_bytes(&mut self, batch: &Batch) {
        for Sample { id, bytes, .. } in batch.samples() {
            match self.objects.get(id.0 as usize) {
                Some(object) if bytes.len() as u64 == object.size && xxh3_64(bytes) == object.hash => {}
                Some(Object { key, .. }) => {
                    self.tell(format!("{key}: {} bytes that are not the object's", bytes.len()));
                }
                None => self.tell(format!("sample {} does not exist", id.0)),
            }
        }
    }

    fn tell(&mut self, text: String) {
        self.wrong += 1;
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(text);
        }
    }
}
