//! One pass over the data set as the native clients share it: which piece is asked for next, where its bytes go, when
//! the first batch is whole, and what came in all.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_128;

use crate::Passed;
use crate::bucket::{Object, order};

/// What a native client is asked to do with the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Placing {
    /// Copied into the arena, as a trainer needs them.
    Arena,
    /// Counted and dropped.
    Drop,
}

/// How a pass is cut up.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Longest piece asked for with one request, bytes.
    pub(crate) range: usize,
    pub(crate) batch_size: usize,
    pub(crate) seed: u64,
    /// Whether to hash what is in the arena.
    pub(crate) hash: bool,
}

#[derive(Debug)]
pub(crate) struct Reading<'a> {
    objects: &'a [Object],
    plan: &'a Plan,
    order: Vec<u32>,
    room: Notify,
    started: Instant,
    state: RefCell<State<'a>>,
}

/// What was handed out and what has come.
#[derive(Debug)]
struct State<'a> {
    arena: Option<&'a mut Arena>,
    /// Objects of the order handed out.
    at: usize,
    /// The object being cut, and how much of it was handed out.
    cut: Option<(Rc<Landing>, usize)>,
    /// Objects of the first batch that have not been received.
    first_missing: usize,
    passed: Passed,
    hash: u128,
}

/// An object on its way.
#[derive(Debug)]
struct Landing {
    object: usize,
    /// Its place in the order.
    turn: usize,
    place: Option<Place>,
    missing: Cell<usize>,
}

/// A piece of an object to be asked for with one request.
#[derive(Debug)]
pub(crate) struct Piece {
    landing: Rc<Landing>,
    /// Position of the object in the manifest.
    pub(crate) object: usize,
    /// Bytes of the object, all of it or a part.
    pub(crate) range: Range<usize>,
    /// Whether that is all of it, so that no range needs to be asked for.
    pub(crate) whole: bool,
    landed: usize,
}

impl<'a> Reading<'a> {
    /// Starts the clock of a pass.
    pub(crate) fn start(objects: &'a [Object], plan: &'a Plan, pass: u64, arena: Option<&'a mut Arena>) -> Self {
        let started = Instant::now();
        let first_missing = plan.batch_size.min(objects.len());
        let state = State { arena, at: 0, cut: None, first_missing, passed: Passed::default(), hash: 0 };
        let order = order(objects.len(), plan.seed, pass);
        Reading { objects, plan, order, room: Notify::new(), started, state: RefCell::new(state) }
    }

    /// The next piece to ask for; waits while the arena is full; none at the end.
    pub(crate) async fn next(&self) -> Option<Piece> {
        loop {
            match self.try_next() {
                Ok(piece) => return piece,
                // Nothing can be given back between the refusal and this wait: there is one thread.
                Err(Full) => self.room.notified().await,
            }
        }
    }

    fn try_next(&self) -> Result<Option<Piece>, Full> {
        let state = &mut *self.state.borrow_mut();
        let (landing, from) = match state.cut.take() {
            Some(cut) => cut,
            None => {
                let Some(&object) = self.order.get(state.at) else { return Ok(None) };
                let (object, turn) = (object as usize, state.at);
                let size = self.objects[object].size;
                let place = state.arena.as_mut().map(|arena| arena.take(size).ok_or(Full)).transpose()?;
                state.at += 1;
                (Rc::new(Landing { object, turn, place, missing: Cell::new(size) }), 0)
            }
        };
        let size = self.objects[landing.object].size;
        let to = size.min(from.saturating_add(self.plan.range));
        if to < size {
            state.cut = Some((Rc::clone(&landing), to));
        }
        Ok(Some(Piece { object: landing.object, whole: to - from == size, range: from..to, landing, landed: 0 }))
    }

    /// Takes the next bytes of a piece.
    ///
    /// # Errors
    /// When there are more than were asked for.
    pub(crate) fn land(&self, piece: &mut Piece, bytes: &[u8]) -> Result<()> {
        let (key, asked) = (&self.objects[piece.object].key, piece.range.len());
        ensure!(bytes.len() <= asked - piece.landed, "`{key}`: more than the {asked} bytes asked for");
        if let (Some(arena), Some(place)) = (&mut self.state.borrow_mut().arena, piece.landing.place) {
            arena.copy(place, piece.range.start + piece.landed, bytes);
        }
        piece.landed += bytes.len();
        Ok(())
    }

    /// The answer to a piece has ended.
    ///
    /// # Errors
    /// When bytes of it are missing.
    pub(crate) fn landed(&self, piece: Piece) -> Result<()> {
        let landing = &*piece.landing;
        let (key, landed, asked) = (&self.objects[piece.object].key, piece.landed, piece.range.len());
        ensure!(landed == asked, "`{key}`: {landed} of {asked} bytes came");
        landing.missing.set(landing.missing.get() - piece.landed);
        let state = &mut *self.state.borrow_mut();
        state.passed.bytes += piece.landed as u64;
        if landing.missing.get() > 0 {
            return Ok(());
        }
        state.passed.objects += 1;
        if landing.turn < self.plan.batch_size {
            state.first_missing -= 1;
            if state.first_missing == 0 {
                state.passed.first_batch_us = Some(self.started.elapsed().as_micros() as u64);
            }
        }
        if let (Some(arena), Some(place)) = (&mut state.arena, landing.place) {
            if self.plan.hash {
                state.hash = state.hash.wrapping_add(xxh3_128(arena.bytes(place)));
            }
            arena.give_back(place);
            self.room.notify_waiters();
        }
        Ok(())
    }

    /// The pass is over.
    ///
    /// # Errors
    /// When an object did not come.
    pub(crate) fn finish(self, settings: String) -> Result<Passed> {
        let State { passed, hash, .. } = self.state.into_inner();
        let wanted = self.objects.len() as u64;
        ensure!(passed.objects == wanted, "{} of {wanted} objects came", passed.objects);
        let hash = self.plan.hash.then(|| format!("{hash:032x}"));
        Ok(Passed { wall_s: self.started.elapsed().as_secs_f64(), hash, settings, ..passed })
    }
}

/// The arena has no place at the moment.
#[derive(Debug)]
struct Full;

/// Places start at a cache line.
const LINE_BYTES: usize = 64;
/// What a page holds on every machine this runs on, or a part of it.
const PAGE_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Arena {
    memory: Vec<u8>,
    /// Where the next place starts, unless it has to go round.
    next: usize,
    /// Places not yet free again, oldest first.
    taken: VecDeque<Taken>,
    oldest: u64,
}

#[derive(Debug)]
struct Taken {
    start: usize,
    done: bool,
}

/// A part of the arena that holds one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    number: u64,
    start: usize,
    len: usize,
}

impl Arena {
    /// `bytes` of touched memory, in which objects of up to `largest` bytes land.
    pub(crate) fn new(bytes: usize, largest: usize) -> Result<Arena> {
        if bytes < largest.max(1).next_multiple_of(LINE_BYTES) {
            bail!("an arena of {bytes} bytes does not hold an object of {largest} bytes; give a larger --arena");
        }
        let mut memory = vec![0; bytes];
        // Zeroed memory comes from the kernel untouched: the first pass would pay for its pages.
        memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
        Ok(Arena { memory, next: 0, taken: VecDeque::new(), oldest: 0 })
    }

    pub(crate) fn size(&self) -> usize {
        self.memory.len()
    }

    /// Takes a place for `len` bytes, or none while older objects are in the way.
    pub(crate) fn take(&mut self, len: usize) -> Option<Place> {
        let room = len.max(1).next_multiple_of(LINE_BYTES);
        let end = self.memory.len();
        let start = match self.taken.front() {
            None if end - self.next >= room => self.next,
            None => 0,
            Some(oldest) if self.next > oldest.start && end - self.next >= room => self.next,
            // Going round must not end where the oldest begins: full and empty would look alike.
            Some(oldest) if self.next > oldest.start => (room < oldest.start).then_some(0)?,
            Some(oldest) => (room < oldest.start - self.next).then_some(self.next)?,
        };
        self.next = start + room;
        let number = self.oldest + self.taken.len() as u64;
        self.taken.push_back(Taken { start, done: false });
        Some(Place { number, start, len })
    }

    /// Copies bytes to `at` within a place.
    pub(crate) fn copy(&mut self, place: Place, at: usize, bytes: &[u8]) {
        self.memory[place.start..place.start + place.len][at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn bytes(&self, place: Place) -> &[u8] {
        &self.memory[place.start..place.start + place.len]
    }

    /// Gives a place back. It is free again when all older ones are, too.
    pub(crate) fn give_back(&mut self, place: Place) {
        self.taken[(place.number - self.oldest) as usize].done = true;
        while self.taken.front().is_some_and(|oldest| oldest.done) {
            self.taken.pop_front();
            self.oldest += 1;
        }
    }
}
