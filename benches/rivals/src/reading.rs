//! One pass over the data set as the native clients share it: which piece is asked for next, where its bytes go, when
//! the first batch is whole, and what came in all.
//!
//! Owns the arena and the count. Runs on one thread: its parts are borrowed only between two waits.

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
    arena: Option<RefCell<&'a mut Arena>>,
    queue: RefCell<Queue>,
    room: Notify,
    started: Instant,
    objects_done: Cell<u64>,
    bytes_done: Cell<u64>,
    first_missing: Cell<usize>,
    first_batch_us: Cell<Option<u64>>,
    hash: Cell<u128>,
}

/// What was handed out: the object being cut, and how far in the order we are.
#[derive(Debug, Default)]
struct Queue {
    at: usize,
    cut: Option<(Rc<Landing>, usize)>,
}

/// An object on its way.
#[derive(Debug)]
struct Landing {
    object: usize,
    turn: usize,
    place: Option<Place>,
    missing: Cell<usize>,
}

/// A piece of an object to be asked for with one request.
#[derive(Debug)]
pub(crate) struct Piece {
    landing: Rc<Landing>,
    pub(crate) object: usize,
    /// Bytes of the object, all of it or a part.
    pub(crate) range: Range<usize>,
    /// Whether that is all of it, so that no range needs to be asked for.
    pub(crate) whole: bool,
    landed: usize,
}

impl<'a> Reading<'a> {
    pub(crate) fn start(objects: &'a [Object], plan: &'a Plan, pass: u64, arena: Option<&'a mut Arena>) -> Self {
        let started = Instant::now();
        Reading {
            objects,
            plan,
            order: order(objects.len(), plan.seed, pass),
            arena: arena.map(RefCell::new),
            queue: RefCell::default(),
            room: Notify::new(),
            started,
            objects_done: Cell::new(0),
            bytes_done: Cell::new(0),
            first_missing: Cell::new(plan.batch_size.min(objects.len())),
            first_batch_us: Cell::new(None),
            hash: Cell::new(0),
        }
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
        let mut queue = self.queue.borrow_mut();
        let (landing, from) = match queue.cut.take() {
            Some(cut) => cut,
            None => {
                let Some(&object) = self.order.get(queue.at) else { return Ok(None) };
                let (object, turn) = (object as usize, queue.at);
                let size = self.objects[object].size;
                let place = match &self.arena {
                    Some(arena) => Some(arena.borrow_mut().take(size).ok_or(Full)?),
                    None => None,
                };
                queue.at += 1;
                (Rc::new(Landing { object, turn, place, missing: Cell::new(size) }), 0)
            }
        };
        let size = self.objects[landing.object].size;
        let to = size.min(from.saturating_add(self.plan.range));
        if to < size {
            queue.cut = Some((Rc::clone(&landing), to));
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
        if let (Some(arena), Some(place)) = (&self.arena, piece.landing.place) {
            arena.borrow_mut().copy(place, piece.range.start + piece.landed, bytes);
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
        self.bytes_done.set(self.bytes_done.get() + piece.landed as u64);
        if landing.missing.get() == 0 {
            self.deliver(landing);
        }
        Ok(())
    }

    fn deliver(&self, landing: &Landing) {
        self.objects_done.set(self.objects_done.get() + 1);
        if landing.turn < self.plan.batch_size {
            self.first_missing.set(self.first_missing.get() - 1);
            if self.first_missing.get() == 0 {
                self.first_batch_us.set(Some(self.started.elapsed().as_micros() as u64));
            }
        }
        if let (Some(arena), Some(place)) = (&self.arena, landing.place) {
            let mut arena = arena.borrow_mut();
            if self.plan.hash {
                self.hash.set(self.hash.get().wrapping_add(xxh3_128(arena.bytes(place))));
            }
            arena.give_back(place);
            self.room.notify_waiters();
        }
    }

    /// The pass is over.
    ///
    /// # Errors
    /// When an object did not come.
    pub(crate) fn finish(self, settings: String) -> Result<Passed> {
        let (objects, wanted) = (self.objects_done.get(), self.objects.len() as u64);
        if objects != wanted {
            return Err(Flaw::new(format!("{objects} of {wanted} objects came")));
        }
        Ok(Passed {
            bytes: self.bytes_done.get(),
            objects,
            wall_s: self.started.elapsed().as_secs_f64(),
            first_batch_us: self.first_batch_us.get(),
            hash: self.plan.hash.then(|| format!("{:032x}", self.hash.get())),
            settings,
        })
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

    /// Lands every piece as it comes, one after the other.
    fn read(objects: &[Object], plan: &Plan, pass: u64) -> (Passed, Vec<(usize, Range<usize>, bool)>) {
        let mut arena = Arena::new(1024, 256).unwrap();
        let reading = Reading::start(objects, plan, pass, Some(&mut arena));
        let mut pieces = Vec::new();
        while let Some(mut piece) = reading.try_next().expect("the arena empties itself") {
            pieces.push((piece.object, piece.range.clone(), piece.whole));
            let bytes = vec![piece.object as u8; piece.range.len()];
            let (one, two) = bytes.split_at(bytes.len() / 3);
            reading.land(&mut piece, one).unwrap();
            reading.land(&mut piece, two).unwrap();
            reading.landed(piece).unwrap();
        }
        (reading.finish("plain".into()).unwrap(), pieces)
    }

    #[test]
    fn every_byte_is_asked_for_once_and_the_hash_does_not_know_the_order() {
        let objects = objects(&[100, 0, 256, 7]);
        let (first, pieces) = read(&objects, &plan(100), 0);
        assert_eq!((first.bytes, first.objects), (363, 4));
        assert!(first.first_batch_us.is_some());
        for (number, object) in objects.iter().enumerate() {
            let mine: Vec<_> = pieces.iter().filter(|piece| piece.0 == number).collect();
            assert!(mine.windows(2).all(|two| two[0].1.end == two[1].1.start));
            assert_eq!((mine[0].1.start, mine.last().unwrap().1.end), (0, object.size));
            assert_eq!(mine[0].2, object.size <= 100);
        }
        let (second, others) = read(&objects, &plan(usize::MAX), 5);
        assert_ne!(pieces.first(), others.first());
        let expected = objects.iter().enumerate().map(|(n, o)| xxh3_128(&vec![n as u8; o.size]));
        let expected = expected.fold(0u128, u128::wrapping_add);
        assert_eq!(first.hash, Some(format!("{expected:032x}")));
        assert_eq!(second.hash, first.hash);
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
