//! The assemble stage: batches being filled, sample by sample, each in its final place.
//!
//! Owns the slots of open batches. A sample's place is known before its request is sent; when its blocks have arrived it is
//! checked (one ETag over all its blocks, CRC-32C when the server offers it) and counted. Never fetches, never orders.

use crate::channels::{BlockReply, BlockRequest, SpanId};
use crate::conn::Proof;
use crate::objects::Objects;
use crate::spans::{FreeLists, SampleSpan, SampleSpans};
use core::ops::Range;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::limits::{OPEN_BATCHES_MAX, SAMPLE_ALIGN};
use fuelrail_base::{BatchSeq, BlockId, Error, Kind, SampleId, ShardId};
use fuelrail_io::{Filling, Slot, Window};
use fuelrail_plan::importance::Known;
use fuelrail_plan::run::{BatchSpec, Run};
use fuelrail_plan::schedule::Schedule;
use slab::Slab;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// What happens when a sample cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BadSamples {
    /// The batch fails with the sample's error and the run ends.
    #[default]
    Raise,
    /// The batch comes without the sample, which is counted.
    Skip,
    /// As `Skip`, and the sample is left out of all later batches without another attempt.
    Quarantine,
}

fuelrail_base::named!(
    BadSamples,
    "a policy for bad_samples":
    Raise = "raise",
    Skip = "skip",
    Quarantine = "quarantine",
);

/// A batch whose samples are all in place.
#[derive(Debug)]
pub struct Assembled {
    /// Epoch, step and positions.
    pub spec: BatchSpec,
    /// The memory.
    pub slot: Slot,
    /// The samples, in order of position.
    pub samples: SampleSpans,
    /// Samples left out under `Skip` or `Quarantine`, with the reason.
    pub left_out: Vec<(SampleId, Error)>,
}

/// A batch on its way to the consumer: complete, or failed under `Raise`.
#[derive(Debug)]
pub struct Finished {
    /// Which batch.
    pub seq: BatchSeq,
    /// Its samples, or why there are none.
    pub result: Result<Assembled, Error>,
}

struct Sample {
    placed: SampleSpan,
    /// Blocks that have not arrived yet.
    missing: u32,
    /// The indexes of its blocks' windows.
    parts: Range<usize>,
    proof: Proof,
    changed: bool,
    rechecks: u32,
    bad: Option<Error>,
}

struct Open {
    spec: BatchSpec,
    filling: Filling,
    lists: Lists,
    missing: usize,
}

/// The lists of an open batch. Emptied when it is finished, and used again by another.
#[derive(Default)]
struct Lists {
    samples: Vec<Sample>,
    /// Windows of the blocks that have arrived, sample by sample: kept until the sample is verified.
    windows: Vec<Option<Window>>,
}

impl Lists {
    fn with_capacity(samples: usize) -> Lists {
        Lists { samples: Vec::with_capacity(samples), windows: Vec::with_capacity(samples) }
    }
}

/// Lists made at the start, of each kind: as many batches as are usually open. Memory that was never written to costs nothing.
const LISTS_AT_START: usize = 64;

/// How often a sample whose proof fails is fetched anew.
const RECHECKS_MAX: u32 = 2;

/// The assemble stage of one shard.
pub(crate) struct AssembleStage {
    shard: ShardId,
    objects: Arc<Objects>,
    run: Run,
    schedule: Schedule,
    bad_samples: BadSamples,
    open: Slab<Open>,
    spare: Vec<Lists>,
    /// Lists of batches that the consumer has dropped.
    free_lists: FreeLists,
    quarantine: HashMap<SampleId, Error>,
    finished: Vec<Finished>,
    /// Samples to be requested anew once no byte of their batch is pinned by the disk.
    postponed: Vec<(usize, u32)>,
    /// Samples whose bytes did not match their checksum or whose blocks were of two versions.
    pub unproved: u64,
}

impl AssembleStage {
    pub(crate) fn new(shard: ShardId, objects: Arc<Objects>, run: Run, bad_samples: BadSamples) -> AssembleStage {
        // No batch has more than there are.
        let samples = u64::from(run.config().batch_size).min(run.config().samples) as usize;
        AssembleStage {
            shard,
            objects,
            schedule: Schedule::new(&run, 1),
            run,
            bad_samples,
            open: Slab::with_capacity(64),
            spare: (0..LISTS_AT_START).map(|_| Lists::with_capacity(samples)).collect(),
            free_lists: FreeLists::new(OPEN_BATCHES_MAX, LISTS_AT_START, samples),
            quarantine: HashMap::new(),
            finished: Vec::with_capacity(64),
            postponed: Vec::new(),
            unproved: 0,
        }
    }

    /// More epochs are drawn.
    pub(crate) fn learn(&mut self, known: &Known) {
        self.run.learn(known);
    }

    /// Opens a batch in `slot` and appends a request for every block of it.
    pub(crate) fn open(&mut self, seq: BatchSeq, slot: Slot, requests: &mut Vec<BlockRequest>) {
        let spec = self.run.batch(seq).expect("only batches of the run are opened");
        let mut filling = slot.fill();
        let mut lists = self.spare.pop().unwrap_or_default();
        debug_assert!(lists.samples.is_empty() && lists.windows.is_empty(), "lists come back empty");
        let batch = self.open.vacant_key();
        let catalog = self.objects.catalog();
        for (position, id) in spec.positions.clone().zip(self.run.samples(&spec)) {
            let (sample, at) = (lists.samples.len() as u32, self.schedule.time(spec.epoch, position));
            let unit = catalog.direct_unit(id).map_or(1, |unit| unit as usize);
            assert!(filling.align(unit), "the slot has the batch's room");
            let askew = if canary::on(Mistake::AssembleMisplaces) && sample == 1 { SAMPLE_ALIGN } else { 0 };
            let (offset, len) = (filling.at() - askew, catalog.size(id) as usize);
            let placed = SampleSpan { id, offset, len, label: None };
            let bad = self.quarantine.get(&id).cloned();
            let missing = if bad.is_some() { 0 } else { catalog.blocks(id) };
            for index in 0..missing {
                let block = BlockId { sample: id, index };
                let len = catalog.block_len(block) as usize;
                let window = filling.carve_padded(len, len.next_multiple_of(unit));
                let window = window.expect("the slot has the batch's room");
                let span = SpanId { batch: batch as u32, sample, index };
                requests.push(BlockRequest { assembler: self.shard, span, block, at, window, fresh: false });
            }
            let first = lists.windows.len();
            lists.windows.resize_with(first + missing as usize, || None);
            let (parts, proof) = (first..lists.windows.len(), Proof::default());
            lists.samples.push(Sample { placed, missing, parts, proof, changed: false, rechecks: 0, bad });
            filling.skip(filling.at().next_multiple_of(SAMPLE_ALIGN) - filling.at());
        }
        let missing = lists.samples.iter().filter(|s| s.missing > 0).count();
        self.open.insert(Open { spec, filling, lists, missing });
        if missing == 0 {
            self.finish(batch);
        }
    }

    /// Takes the owner's reply to a request. Appends requests when a sample has to be fetched anew.
    pub(crate) fn reply(&mut self, reply: BlockReply, requests: &mut Vec<BlockRequest>) {
        let SpanId { batch, sample: at, index } = reply.span;
        let batch = batch as usize;
        let open = &mut self.open[batch];
        let Lists { samples, windows } = &mut open.lists;
        let sample = &mut samples[at as usize];
        let windows = &mut windows[sample.parts.clone()];
        sample.missing -= 1;
        match reply.result {
            Err(error) => {
                // It may be the last window out, and the batch is sealed below.
                drop(reply.window);
                sample.bad.get_or_insert(error);
            }
            Ok((proof, _)) => {
                sample.changed |= matches!((sample.proof.etag, proof.etag), (Some(a), Some(b)) if a != b);
                sample.proof.etag = sample.proof.etag.or(proof.etag);
                sample.proof.crc32c = sample.proof.crc32c.or(proof.crc32c);
                windows[index as usize] = Some(reply.window);
            }
        }
        if sample.missing > 0 {
            return;
        }
        let fault = if sample.bad.is_none() { prove(sample, windows) } else { None };
        if let Some(fault) = fault {
            self.unproved += 1;
            if sample.rechecks < RECHECKS_MAX {
                self.request_again(batch, at, requests);
                return;
            }
            sample.bad = Some(fault);
        }
        windows.fill_with(|| None);
        if let Some(error) = &mut sample.bad {
            *error = error.clone().with_object(&*self.objects.name(sample.placed.id));
            if self.bad_samples == BadSamples::Quarantine {
                self.quarantine.insert(sample.placed.id, error.clone());
            }
        }
        open.missing -= 1;
        if open.missing == 0 {
            self.finish(batch);
        }
    }

    /// Whether samples wait until the disk is done with their batch's memory.
    pub(crate) fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    /// Requests the postponed samples whose batch is no longer pinned.
    pub(crate) fn resume(&mut self, requests: &mut Vec<BlockRequest>) {
        for (batch, at) in core::mem::take(&mut self.postponed) {
            self.request_again(batch, at, requests);
        }
    }

    /// Requests all blocks of a sample again, past the caches.
    fn request_again(&mut self, batch: usize, at: u32, requests: &mut Vec<BlockRequest>) {
        let open = &mut self.open[batch];
        let parts = &mut open.lists.windows[open.lists.samples[at as usize].parts.clone()];
        // From now on, pins of other samples' blocks must not keep these windows from being written.
        if !parts.iter_mut().flatten().all(Window::try_unpin) {
            return self.postponed.push((batch, at));
        }
        let due = self.schedule.time(open.spec.epoch, open.spec.positions.start + u64::from(at));
        let Lists { samples, windows } = &mut open.lists;
        let sample = &mut samples[at as usize];
        sample.rechecks += 1;
        sample.changed = false;
        sample.proof = Proof::default();
        sample.missing = sample.parts.len() as u32;
        let id = sample.placed.id;
        for (index, part) in windows[sample.parts.clone()].iter_mut().enumerate() {
            let mut window = part.take().expect("all parts have arrived");
            window.rewind(0);
            let block = BlockId { sample: id, index: index as u32 };
            let span = SpanId { batch: batch as u32, sample: at, index: index as u32 };
            requests.push(BlockRequest { assembler: self.shard, span, block, at: due, window, fresh: true });
        }
    }

    fn finish(&mut self, batch: usize) {
        let Open { spec, filling, mut lists, .. } = self.open.remove(batch);
        lists.windows.clear();
        let seq = spec.seq;
        let slot =
            filling.seal().unwrap_or_else(|_| unreachable!("all windows of a finished batch have been returned"));
        let mut placed = self.free_lists.list();
        let mut left_out = Vec::new();
        for sample in lists.samples.drain(..) {
            match sample.bad {
                None => placed.push(sample.placed),
                Some(error) => left_out.push((sample.placed.id, error)),
            }
        }
        let result = match left_out.first() {
            Some((_, error)) if self.bad_samples == BadSamples::Raise => Err(error.clone()),
            _ => Ok(Assembled { spec, slot, samples: placed, left_out }),
        };
        self.spare.push(lists);
        self.finished.push(Finished { seq, result });
    }

    /// Batches finished since the last call.
    pub(crate) fn finished(&mut self) -> std::vec::Drain<'_, Finished> {
        self.finished.drain(..)
    }

    /// No batch is being filled.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let oldest = self.open.iter().min_by_key(|(_, o)| o.spec.seq).map_or(String::new(), |(_, o)| {
            let stuck = o.lists.samples.iter().find(|s| s.missing > 0);
            let key = stuck.map_or(Cow::default(), |s| self.objects.name(s.placed.id));
            format!(", oldest {} lacks {} samples, first '{}'", o.spec.seq.0, o.missing, key.escape_debug())
        });
        let awaited: u32 = self.open.iter().flat_map(|(_, o)| &o.lists.samples).map(|sample| sample.missing).sum();
        format!("assemble: {} batches open, {awaited} blocks awaited{oldest}", self.open.len())
    }
}

/// Checks a sample whose blocks are all in `windows`. `None` when it is good.
fn prove(sample: &Sample, windows: &[Option<Window>]) -> Option<Error> {
    if sample.changed {
        return Some(
            Error::new(Kind::Changed, "its parts come from two versions of the object")
                .with_hint("the object changes while it is read: keep the data set immutable"),
        );
    }
    let promised = sample.proof.crc32c?;
    let parts = windows.iter().map(|w| w.as_ref().expect("all parts have arrived").bytes());
    let actual = parts.fold(0, crc32c::crc32c_append);
    (actual != promised && !canary::on(Mistake::AssembleTrusts)).then(|| {
        Error::new(Kind::Mismatch, format!("its CRC-32C is {actual:08x}, the server promised {promised:08x}"))
            .with_hint("the bytes were corrupted on the server or in transit")
    })
}
