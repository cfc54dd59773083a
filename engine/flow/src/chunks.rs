//! The chunk stage: neighbouring samples that one request reads, kept until all of them have been copied into their batches.
//!
//! Owns slots of the arena, of the longest chunk's length, taken at start. A chunk is fetched into one as any block is, for a waiter of the
//! stage's own; the samples that wait for it are copied out when it has landed, and those that are asked for later at once. A slot is used
//! again when all samples of its chunk that this rank takes in the epoch were asked for. A chunk waits for a slot only where one comes back
//! whatever else happens; else, and where a chunk could not be fetched, its samples are fetched one by one: nothing waits for memory that
//! might not come.

use crate::channels::{BlockRequest, SpanId};
use crate::conn::Proof;
use crate::objects::Objects;
use core::ops::Range;
use fuelrail_base::{Result, SampleId};
use fuelrail_io::{Filling, Slot, Window};
use fuelrail_plan::run::Run;
use fuelrail_plan::schedule::Schedule;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
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
    /// It is fetched by itself.
    Alone(BlockRequest),
}

/// A chunk in use.
struct Held {
    first: SampleId,
    /// Its first byte in its slot.
    begin: usize,
    state: State,
    /// Samples of it that are still to be asked for, in the epochs up to this one.
    left: u64,
    epoch: u64,
}

enum State {
    /// Waits for a slot: a free one, or that of a chunk that all samples were asked of, and that has not landed yet.
    Queued(Vec<BlockRequest>),
    Fetching(Filling, Vec<BlockRequest>),
    Here(Slot, Proof),
    /// Its samples are fetched one by one: there was no slot, or it could not be had.
    Apart,
}

/// The chunks of one shard.
pub(crate) struct ChunkStage {
    objects: Arc<Objects>,
    schedule: Schedule,
    spare: Vec<Slot>,
    held: Slab<Held>,
    places: HashMap<SampleId, usize>,
    queue: VecDeque<usize>,
    /// Requests that wait for a chunk, and how many samples a batch has.
    waiting: usize,
    batch_size: usize,
    /// Payload bytes copied into batches.
    pub copied_bytes: u64,
}

impl ChunkStage {
    pub(crate) fn new(objects: Arc<Objects>, run: &Run, slots: Vec<Slot>) -> ChunkStage {
        let (held, places) = (Slab::with_capacity(slots.len()), HashMap::with_capacity(2 * slots.len()));
        ChunkStage {
            objects,
            schedule: Schedule::new(run, 1),
            spare: slots,
            held,
            places,
            queue: VecDeque::new(),
            waiting: 0,
            batch_size: run.config().batch_size as usize,
            copied_bytes: 0,
        }
    }

    /// A batch's worth of samples wait for chunks under way: further batches would wait for the same ones, and bring few requests.
    pub(crate) fn holds_back(&self) -> bool {
        self.waiting >= self.batch_size
    }

    /// Takes a request for a sample. One that is asked for anew is fetched by itself.
    pub(crate) fn ask(&mut self, mut request: BlockRequest) -> Found {
        let objects = Arc::clone(&self.objects);
        let chunk = match objects.catalog().chunk_of(request.block.sample) {
            Some(chunk) if !request.fresh => chunk,
            _ => return Found::Alone(request),
        };
        let epoch = self.schedule.cursor(request.at).epoch;
        let samples = chunk.first.0..chunk.first.0 + u64::from(chunk.samples);
        // One of an epoch before that only has to land is not counted on for another epoch: its slot may be waited for.
        let held = |place: &&usize| self.held[**place].epoch >= epoch || self.held[**place].left > 0;
        let place = match self.places.get(&chunk.first).filter(held) {
            Some(place) => *place,
            None => {
                let left = self.schedule.taken(epoch, samples.clone());
                let held = Held { first: chunk.first, begin: 0, state: State::Apart, left, epoch };
                let place = self.held.insert(held);
                self.places.insert(chunk.first, place);
                // Of the last one a chunk would bring nothing more.
                if left > 1 && self.slots_to_come(epoch) > self.queue.len() {
                    self.held[place].state = State::Queued(Vec::new());
                    self.queue.push_back(place);
                }
                place
            }
        };
        let held = &mut self.held[place];
        if epoch > held.epoch {
            (held.left, held.epoch) = (held.left + self.schedule.taken(epoch, samples), epoch);
        }
        held.left = held.left.saturating_sub(1);
        let found = match &mut held.state {
            State::Queued(waiting) | State::Fetching(_, waiting) => {
                waiting.push(request);
                self.waiting += 1;
                return Found::Waits;
            }
            State::Here(slot, proof) => {
                let part = part(&objects, (held.first, held.begin), request.block.sample);
                self.copied_bytes += request.window.put(&slot[part]) as u64;
                Found::Served(request, *proof)
            }
            State::Apart => Found::Alone(request),
        };
        self.let_go(place);
        found
    }

    /// The next chunk to be fetched, if one waits and there is a slot: into this window, as this block, for the moment of its first request.
    pub(crate) fn next(&mut self) -> Option<BlockRequest> {
        let place = *self.queue.front()?;
        let free = self.spare.iter().position(|slot| !slot.is_read_pinned())?;
        self.queue.pop_front();
        let catalog = self.objects.catalog();
        let held = &mut self.held[place];
        let chunk = catalog.chunk_of(held.first).expect("it is a chunk's first sample");
        let State::Queued(waiting) = core::mem::replace(&mut held.state, State::Apart) else {
            unreachable!("only what waits is in the queue")
        };
        let mut filling = self.spare.swap_remove(free).fill();
        let (unit, bytes) = (catalog.batch_slack().max(1) as usize, chunk.bytes as usize);
        assert!(filling.align(unit), "a slot has room for the longest chunk");
        held.begin = filling.at();
        let window = filling.carve_padded(bytes, bytes.next_multiple_of(unit));
        let window = window.expect("a slot has room for the longest chunk");
        let BlockRequest { assembler, at, .. } = waiting[0];
        held.state = State::Fetching(filling, waiting);
        let span = SpanId { batch: NO_BATCH, sample: place as u32, index: 0 };
        Some(BlockRequest { assembler, span, block: chunk.block(), at, window, fresh: false })
    }

    /// Slots that are free, and those that come back when what waits and what is under way has landed, whatever else happens: of chunks that
    /// all samples were asked of. Where none is free, that of a chunk of an epoch before, of which a sample was left out, is.
    fn slots_to_come(&mut self, epoch: u64) -> usize {
        let is_left = |held: &Held| matches!(held.state, State::Here(..)) && held.epoch < epoch;
        let found = self.held.iter().find(|(_, held)| self.spare.is_empty() && is_left(held)).map(|(place, _)| place);
        if let Some(place) = found {
            self.held[place].left = 0;
            self.let_go(place);
        }
        let lands = |held: &Held| held.left == 0 && matches!(held.state, State::Queued(_) | State::Fetching(..));
        self.spare.len() + self.held.iter().filter(|(_, held)| lands(held)).count()
    }

    /// Forgets a chunk of which nothing is asked for any more.
    fn let_go(&mut self, place: usize) {
        let Held { first, left: 0, state: State::Here(..) | State::Apart, .. } = self.held[place] else { return };
        if self.places.get(&first) == Some(&place) {
            self.places.remove(&first);
        }
        if let State::Here(slot, _) = self.held.remove(place).state {
            self.spare.push(slot);
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
        let State::Fetching(filling, mut waiting) = core::mem::replace(&mut held.state, State::Apart) else {
            unreachable!("a chunk lands once")
        };
        self.waiting -= waiting.len();
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
                self.let_go(place);
                (waiting, Some(proof))
            }
            Err(_) => {
                self.spare.push(slot);
                // They come once more.
                held.left += waiting.len() as u64;
                (waiting, None)
            }
        }
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self) -> String {
        let fetching = self.held.iter().filter(|(_, held)| matches!(held.state, State::Fetching(..))).count();
        let (held, queued, free) = (self.held.len(), self.queue.len(), self.spare.len());
        format!(
            "chunks: {held} in use, {fetching} of them being fetched, {queued} waiting for a slot, {free} slots free"
        )
    }
}

/// Where a sample's bytes are in the slot of the chunk with this first sample and place in it.
fn part(objects: &Objects, (first, begin): (SampleId, usize), sample: SampleId) -> Range<usize> {
    let from = begin + (objects.first(sample) - objects.first(first)) as usize;
    from..from + objects.catalog().size(sample) as usize
}
