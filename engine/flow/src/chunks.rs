//! The chunk stage: neighbouring samples that one request reads, kept until all of them have been copied into their batches.
//!
//! Owns slots of the arena, of the longest chunk's length, taken at start. A chunk is fetched into one as any block is, for a waiter of the
//! stage's own; the samples that wait for it are copied out when it has landed, and those that are asked for later at once. A slot is used
//! again when the order has no more samples of its chunk. Where no slot is free, and where a chunk could not be fetched, samples are fetched
//! one by one: nothing waits for a slot.

use crate::channels::{BlockRequest, SpanId};
use crate::conn::Proof;
use crate::objects::Objects;
use core::ops::Range;
use fuelrail_base::{BlockId, Result, SampleId};
use fuelrail_io::{Filling, Slot, Window};
use fuelrail_plan::catalog::Chunk;
use fuelrail_plan::schedule::{Schedule, UseTime};
use slab::Slab;
use std::collections::HashMap;
use std::sync::Arc;

/// The batch of a span that is no batch's, but a chunk's.
const NO_BATCH: u32 = u32::MAX;

impl SpanId {
    /// The chunk that is fetched, where it is one.
    pub(crate) fn chunk(self) -> Option<usize> {
        (self.batch == NO_BATCH).then_some(self.sample as usize)
    }
}

/// What becomes of a request for a sample.
pub(crate) enum Found {
    /// Its window is filled.
    Served(BlockRequest, Proof),
    /// It waits for its chunk.
    Waits,
    /// It waits for its chunk, which is to be fetched into this window, for the moment of the request.
    Fetch { span: SpanId, block: BlockId, at: UseTime, window: Window },
    /// It is fetched by itself.
    Alone(BlockRequest),
}

struct Held {
    first: SampleId,
    /// From when on no sample of it is asked for.
    over: UseTime,
    /// Its first byte in its slot.
    begin: usize,
    state: State,
}

enum State {
    Fetching(Filling, Vec<BlockRequest>),
    Here(Slot, Proof),
    Failed,
}

/// The chunks of one shard.
pub(crate) struct ChunkStage {
    objects: Arc<Objects>,
    schedule: Schedule,
    spare: Vec<Slot>,
    held: Slab<Held>,
    places: HashMap<SampleId, usize>,
    /// The latest moment asked for.
    newest: UseTime,
    /// Payload bytes copied into batches.
    pub copied_bytes: u64,
}

impl ChunkStage {
    pub(crate) fn new(objects: Arc<Objects>, schedule: Schedule, slots: Vec<Slot>) -> ChunkStage {
        let (held, places) = (Slab::with_capacity(slots.len()), HashMap::with_capacity(2 * slots.len()));
        ChunkStage { objects, schedule, spare: slots, held, places, newest: UseTime(0), copied_bytes: 0 }
    }

    /// Takes a request for a sample.
    pub(crate) fn ask(&mut self, mut request: BlockRequest) -> Found {
        let objects = Arc::clone(&self.objects);
        let chunk = match objects.catalog().chunk_of(request.block.sample) {
            Some(chunk) if !request.fresh => chunk,
            _ => return Found::Alone(request),
        };
        self.newest = self.newest.max(request.at);
        let Some(&place) = self.places.get(&chunk.first) else { return self.begin(chunk, request) };
        let held = &mut self.held[place];
        match &mut held.state {
            State::Fetching(_, waiting) => {
                waiting.push(request);
                Found::Waits
            }
            State::Here(slot, proof) => {
                let part = part(&objects, (held.first, held.begin), request.block.sample);
                self.copied_bytes += request.window.put(&slot[part]) as u64;
                Found::Served(request, *proof)
            }
            State::Failed => Found::Alone(request),
        }
    }

    /// Begins to fetch a chunk, if there is room for it.
    fn begin(&mut self, chunk: &Chunk, request: BlockRequest) -> Found {
        let over = self.schedule.chunk_over(request.block.sample, request.at);
        // Another shard may be behind with its batches: for its few last samples a chunk is not read again.
        let slot = if over <= self.newest { None } else { self.spare.pop().or_else(|| self.used_up()) };
        let Some(slot) = slot else { return Found::Alone(request) };
        let mut filling = slot.fill();
        let (unit, bytes) = (self.objects.catalog().batch_slack().max(1) as usize, chunk.bytes as usize);
        assert!(filling.align(unit), "a slot has room for the longest chunk");
        let begin = filling.at();
        let window = filling.carve_padded(bytes, bytes.next_multiple_of(unit));
        let window = window.expect("a slot has room for the longest chunk");
        let (block, at, first) = (chunk.block(), request.at, chunk.first);
        let place = self.held.insert(Held { first, over, begin, state: State::Fetching(filling, vec![request]) });
        self.places.insert(first, place);
        let span = SpanId { batch: NO_BATCH, sample: place as u32, index: 0 };
        Found::Fetch { span, block, at, window }
    }

    /// The slot of a chunk that nobody asks for any more.
    fn used_up(&mut self) -> Option<Slot> {
        let newest = self.newest;
        let is_over = |held: &Held| match &held.state {
            State::Fetching(..) => false,
            State::Here(slot, _) => held.over <= newest && !slot.is_read_pinned(),
            State::Failed => held.over <= newest,
        };
        loop {
            let over = self.held.iter().filter(|(_, held)| is_over(held)).min_by_key(|(_, held)| held.over);
            let (place, _) = over?;
            let held = self.held.remove(place);
            self.places.remove(&held.first);
            if let State::Here(slot, _) = held.state {
                return Some(slot);
            }
        }
    }

    /// A chunk has landed in the window it was given, or could not be had. Returns the requests that waited for it: with windows that are
    /// filled, and the proof of their bytes, or to be fetched one by one.
    pub(crate) fn landed(
        &mut self,
        place: usize,
        window: Window,
        result: Result<Proof>,
    ) -> (Vec<BlockRequest>, Option<Proof>) {
        drop(window);
        let held = &mut self.held[place];
        let State::Fetching(filling, mut waiting) = core::mem::replace(&mut held.state, State::Failed) else {
            unreachable!("a chunk lands once")
        };
        let slot = filling.seal().unwrap_or_else(|_| unreachable!("its only window is back"));
        match result {
            Ok(proof) => {
                // What a server says of a whole object does not hold for a part.
                let proof = Proof { crc32c: None, ..proof };
                for request in &mut waiting {
                    let part = part(&self.objects, (held.first, held.begin), request.block.sample);
                    self.copied_bytes += request.window.put(&slot[part]) as u64;
                }
                held.state = State::Here(slot, proof);
                (waiting, Some(proof))
            }
            Err(_) => {
                self.spare.push(slot);
                (waiting, None)
            }
        }
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let fetching = self.held.iter().filter(|(_, held)| matches!(held.state, State::Fetching(..))).count();
        format!("chunks: {} held, {fetching} of them being fetched, {} slots free", self.held.len(), self.spare.len())
    }
}

/// Where a sample's bytes are in the slot of the chunk with this first sample and place in it.
fn part(objects: &Objects, (first, begin): (SampleId, usize), sample: SampleId) -> Range<usize> {
    let from = begin + (objects.first(sample) - objects.first(first)) as usize;
    from..from + objects.catalog().size(sample) as usize
}
