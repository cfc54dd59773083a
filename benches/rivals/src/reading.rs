//! One pass over the data set as the native clients share it: which piece is asked for next, where its bytes go, when
//! the first batch is whole, and what came in all.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_128;

use crate::arena::{Arena, Place};
use crate::flaw::{Flaw, Result};
use crate::manifest::{Object, order};
use crate::protocol::Passed;

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
        if bytes.len() > piece.range.len() - piece.landed {
            let key = &self.objects[piece.object].key;
            return Err(Flaw::new(format!("`{key}`: more than the {} bytes asked for", piece.range.len())));
        }
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
        if piece.landed < piece.range.len() {
            let key = &self.objects[piece.object].key;
            return Err(Flaw::new(format!("`{key}`: {} of {} bytes came", piece.landed, piece.range.len())));
        }
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
        if passed.objects != wanted {
            return Err(Flaw::new(format!("{} of {wanted} objects came", passed.objects)));
        }
        let hash = self.plan.hash.then(|| format!("{hash:032x}"));
        Ok(Passed { wall_s: self.started.elapsed().as_secs_f64(), hash, settings, ..passed })
    }
}

/// The arena has no place at the moment.
#[derive(Debug)]
struct Full;

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(sizes: &[usize]) -> Vec<Object> {
        sizes.iter().enumerate().map(|(n, &size)| Object { key: format!("k{n}"), size }).collect()
    }

    fn plan(range: usize) -> Plan {
        Plan { range, batch_size: 2, seed: 1, hash: true }
    }

    #[test]
    fn too_much_and_too_little_are_told() {
        let objects = objects(&[10]);
        let plan = plan(100);
        let reading = Reading::start(&objects, &plan, 0, None);
        let mut piece = reading.try_next().unwrap().unwrap();
        assert_eq!(
            reading.land(&mut piece, &[0; 11]).unwrap_err().to_string(),
            "`k0`: more than the 10 bytes asked for"
        );
        reading.land(&mut piece, &[0; 9]).unwrap();
        assert_eq!(reading.landed(piece).unwrap_err().to_string(), "`k0`: 9 of 10 bytes came");
        assert_eq!(reading.finish(String::new()).unwrap_err().to_string(), "0 of 1 objects came");
    }

    #[test]
    fn a_full_arena_holds_back_the_next_object() {
        let objects = objects(&[400, 400, 300]);
        let mut arena = Arena::new(1024, 400).unwrap();
        let plan = plan(1000);
        let reading = Reading::start(&objects, &plan, 0, Some(&mut arena));
        let mut first = reading.try_next().unwrap().unwrap();
        let _second = reading.try_next().unwrap().unwrap();
        assert!(reading.try_next().is_err());
        reading.land(&mut first, &[7; 400]).unwrap();
        reading.landed(first).unwrap();
        assert!(reading.try_next().unwrap().is_some());
    }
}
