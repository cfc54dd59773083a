//! The fetch stage over a folder: a request is a file opened and read.
//!
//! Owns the files open for requests under way, and closes each with its request: the page cache is what keeps files warm, and a block is
//! long enough to be worth an opening. A file is held to the mark it was listed with, before its bytes are read and after, so
//! that what lands is one content of it and not a mixture.

use crate::conn::{Asked, Exchange, Outcome, Proof};
use crate::objects::Objects;
use core::fmt::Write as _;
use fuelrail_base::{Error, Instant, Kind, Result};
use fuelrail_io::{Done, FileId, FileMark, FileOptions, Full, Op, Ring, Window};
use fuelrail_wire::Etag;
use slab::Slab;
use std::collections::VecDeque;
use std::path::Path;

/// Files read at once: what the deepest queues of disks take.
const FILES_AT_ONCE: usize = 128;
const AWAY: &str = "the window is away only during a read";

/// A request under way.
struct Reading {
    exchange: Exchange,
    file: FileId,
    mark: FileMark,
}

/// The files of one shard.
pub(super) struct Files {
    waiting: VecDeque<Exchange>,
    readings: Slab<Reading>,
    path: String,
    /// Requests begun.
    pub(super) begun: u64,
}

impl Files {
    pub(super) fn new() -> Files {
        Files {
            waiting: VecDeque::with_capacity(256),
            readings: Slab::with_capacity(FILES_AT_ONCE),
            path: String::with_capacity(4096),
            begun: 0,
        }
    }

    pub(super) fn request(&mut self, exchange: Exchange) {
        self.waiting.push_back(exchange);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn outstanding(&self) -> usize {
        self.readings.len()
    }

    /// Begins what waits, as far as so many reads at once are wanted.
    pub(super) fn pump<R: Ring>(
        &mut self,
        ring: &mut R,
        wanted: usize,
        objects: &Objects,
        outcomes: &mut Vec<Outcome>,
    ) {
        while self.readings.len() < wanted.min(FILES_AT_ONCE)
            && let Some(mut exchange) = self.waiting.pop_front()
        {
            exchange.sent_at = ring.now();
            match self.open(ring, objects, &exchange.asked) {
                Ok((file, mark)) => {
                    let at = self.readings.insert(Reading { exchange, file, mark });
                    if !self.read(ring, at) {
                        let Reading { exchange, file, .. } = self.readings.remove(at);
                        ring.close_file(file);
                        return self.waiting.push_front(exchange);
                    }
                    self.begun += 1;
                }
                // No file more can be open; one of ours closes with its request.
                Err(error) if matches!(error.kind(), Kind::Budget | Kind::Environment) && !self.readings.is_empty() => {
                    return self.waiting.push_front(exchange);
                }
                Err(error) => fail(exchange, error, outcomes),
            }
        }
    }

    fn open<R: Ring>(&mut self, ring: &mut R, objects: &Objects, asked: &Asked) -> Result<(FileId, FileMark)> {
        let key = objects.key(asked.sample);
        if key.split('/').any(|part| part == "..") {
            return Err(
                Error::new(Kind::Usage, "its path leads out of the folder").cure("leave '..' out of the manifest")
            );
        }
        self.path.clear();
        objects.endpoint().push_file_path(&mut self.path, key);
        let file = ring.open(Path::new(&self.path), &FileOptions::default())?;
        let marked = ring.mark(file).map_err(|errno| unreadable(&self.path, errno));
        let judged = marked.and_then(|mark| judged(mark, asked).map(|()| (file, mark)));
        judged.inspect_err(|_| ring.close_file(file))
    }

    /// Asks for the missing end of a window. False when the ring is full.
    fn read<R: Ring>(&mut self, ring: &mut R, at: usize) -> bool {
        let Reading { exchange, file, .. } = &mut self.readings[at];
        let into = exchange.window.take().expect(AWAY);
        let landed = (into.filled() - exchange.resumed_at) as u64;
        let op = Op::ReadAt { file: *file, offset: exchange.asked.first + landed, into };
        match ring.push(op, at as u64) {
            Ok(_) => true,
            Err(Full(op)) => {
                exchange.window = Some(window_of(op));
                false
            }
        }
    }

    /// A read came back.
    pub(super) fn done<R: Ring>(&mut self, ring: &mut R, done: Done, outcomes: &mut Vec<Outcome>) {
        let at = done.token as usize;
        let window = window_of(done.op);
        let (room, more) = (window.room(), done.result.is_ok_and(|bytes| bytes > 0));
        let now = ring.now();
        let reading = &mut self.readings[at];
        reading.exchange.first_byte_at.get_or_insert(now);
        reading.exchange.window = Some(window);
        if room > 0 && more && self.read(ring, at) {
            return;
        }
        let Reading { exchange, file, mark } = self.readings.remove(at);
        let after = ring.mark(file);
        ring.close_file(file);
        let error = match done.result {
            Err(CANCELLED) => Error::new(Kind::Cancelled, "the loader ends"),
            Err(errno) => unreadable("it", errno),
            Ok(_) if after != Ok(mark) => changed("it was written to while it was read"),
            Ok(_) if room == 0 => return land(exchange, mark, now, outcomes),
            Ok(0) => changed("it ends before its length"),
            // The ring had no room for the rest: what has come is kept.
            Ok(_) => Error::new(Kind::Truncated, "the rest of it is to be read"),
        };
        fail(exchange, error, outcomes);
    }

    /// Closes all files, for good: reads under way come back through the ring.
    pub(super) fn close<R: Ring>(&mut self, ring: &mut R) {
        self.readings.iter().for_each(|(_, reading)| ring.close_file(reading.file));
    }
}

/// ECANCELED: the file was closed under the read.
const CANCELLED: i32 = 125;

fn window_of(op: Op) -> Window {
    match op {
        Op::ReadAt { into, .. } => into,
        op => unreachable!("a file was not asked for {op:?}"),
    }
}

/// Whether a file is what was listed.
fn judged(mark: FileMark, asked: &Asked) -> Result<()> {
    if mark.len != asked.object_len {
        return Err(changed(&format!("it is {} bytes long, and was listed with {}", mark.len, asked.object_len)));
    }
    match asked.etag {
        Some(etag) if etag != tag_of(mark) => Err(changed("it was written to after it was listed")),
        _ => Ok(()),
    }
}

fn changed(cause: &str) -> Error {
    Error::new(Kind::Changed, cause).cure("start again, when nobody writes to the folder")
}

fn unreadable(what: &str, errno: i32) -> Error {
    Error::from_errno(Kind::File, &format!("reading {what}"), errno)
        .cure("look at the disk and the kernel's log (dmesg)")
}

/// Without a heap: it is asked for every block.
fn tag_of(mark: FileMark) -> Etag {
    let mut text = arrayvec::ArrayString::<40>::new();
    // It is 34 characters long.
    let _ = write!(text, "{mark}");
    Etag::of(&text)
}

fn land(exchange: Exchange, mark: FileMark, now: Instant, outcomes: &mut Vec<Outcome>) {
    let proof = Proof { etag: Some(tag_of(mark)), crc32c: None };
    outcomes.push(Outcome::landed(exchange, proof, now));
}

/// Where the file is not what was listed, nothing that landed of it is kept.
fn fail(mut exchange: Exchange, error: Error, outcomes: &mut Vec<Outcome>) {
    if error.kind() == Kind::Changed {
        exchange.home_window_mut().rewind(0);
    }
    outcomes.push(Outcome::failed(exchange, error));
}
