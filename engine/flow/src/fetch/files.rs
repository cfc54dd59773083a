//! Requests to a folder: each is a read of an open file.
//!
//! Owns the files of requests under way, and keeps the last ones open for the next requests. Files are opened and examined by
//! operations of the ring, so no slow file system holds the shard up. A file is held to the mark it was listed with, before its
//! bytes are read and after, so that what lands is one content of it and not a mixture.

use super::transport::{Transport, TransportIo};
use crate::conn::{Asked, Exchange, Outcome, Proof};
use core::fmt::Write as _;
use fuelrail_base::limits::FOLDER_FILES_MAX;
use fuelrail_base::{Error, Instant, Kind, Result};
use fuelrail_io::{
    Done, FileFacts, FileId, FileMark, Full, Op, OpId, Opening, Ring, Window, not_regular, open_refusal,
};
use fuelrail_wire::Etag;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::path::Path;

/// Set in the token of an operation that makes a file ready, not of one that serves a request.
const OF_FILE: u64 = 1 << 32;
const PRESENT: &str = "a request lacks its window only during a read";

/// A request under way.
struct Reading {
    exchange: Exchange,
    /// Where its file is held.
    file: usize,
}

/// A file, open or being opened.
struct Held {
    /// Its place in the listing.
    object: usize,
    opening: OpId,
    /// `None` while it is being opened.
    opened: Option<Opening>,
    /// What it was when it was opened; `None` before.
    mark: Option<FileMark>,
    readings: usize,
    /// When it was used last, by count.
    used: u64,
}

impl Held {
    fn file(&self) -> Option<FileId> {
        self.opened.as_ref().and_then(Opening::file)
    }
}

/// The files of one shard.
pub(super) struct Files {
    readings: Slab<Reading>,
    /// Requests whose read found no room in the ring.
    due: VecDeque<usize>,
    held: Slab<Held>,
    /// Files that the next requests may use.
    by_object: HashMap<usize, usize>,
    uses: u64,
    /// Emptied lists, kept for their memory.
    facts: Vec<FileFacts>,
    path: String,
    closed: bool,
}

impl Files {
    pub(super) fn new() -> Files {
        Files {
            readings: Slab::with_capacity(FOLDER_FILES_MAX),
            due: VecDeque::with_capacity(FOLDER_FILES_MAX),
            held: Slab::with_capacity(FOLDER_FILES_MAX),
            by_object: HashMap::with_capacity(FOLDER_FILES_MAX),
            uses: 0,
            facts: Vec::with_capacity(FOLDER_FILES_MAX),
            path: String::with_capacity(4096),
            closed: false,
        }
    }
}

impl Transport for Files {
    fn pump<R: Ring>(&mut self, io: &mut TransportIo<R>, wanted: usize, _: impl Fn(u64) -> usize) {
        while let Some(&at) = self.due.front() {
            if !self.read(io.ring, at) {
                return;
            }
            self.due.pop_front();
        }
        while self.readings.len() < wanted.min(FOLDER_FILES_MAX)
            && let Some(mut exchange) = io.requests.take()
        {
            exchange.sent_at = io.now;
            match self.hold(io, &exchange.asked) {
                Ok(Some(file)) => {
                    io.requests.stats.requests += 1;
                    self.held[file].readings += 1;
                    let at = self.readings.insert(Reading { exchange, file });
                    if self.held[file].mark.is_some() {
                        self.begin(io, at);
                    }
                }
                Ok(None) => return io.requests.put_back(exchange),
                Err(error) => io.requests.refuse(exchange, error),
            }
        }
    }

    /// There is room in the ring for another operation in its place.
    fn done<R: Ring>(&mut self, io: &mut TransportIo<R>, done: Done) {
        let at = (done.token & !OF_FILE) as usize;
        match done.op {
            Op::Open(opening) => self.opened(io, at, opening, done.result),
            Op::Stat { facts, .. } => {
                if done.token & OF_FILE == 0 {
                    self.read_through(io, at, done.result.map(|_| facts.mark()));
                } else {
                    self.examined(io, at, done.result.map(|_| &facts));
                }
                self.facts.push(facts);
            }
            op => self.came(io, at, window_of(op), done.result),
        }
    }

    fn close<R: Ring>(&mut self, ring: &mut R) {
        self.closed = true;
        for (_, held) in &self.held {
            match held.file() {
                Some(file) => ring.close_file(file),
                None => ring.cancel(held.opening),
            }
        }
    }

    fn describe(&self, _: Instant) -> String {
        format!("{} files held", self.held.len())
    }
}

impl Files {
    /// The file of a request; begins to open it where it is not open. `None` when the ring is full.
    fn hold<R: Ring>(&mut self, io: &mut TransportIo<R>, asked: &Asked) -> Result<Option<usize>> {
        self.uses += 1;
        let objects = &io.requests.objects;
        let object = objects.object_of(asked.sample);
        if let Some(&file) = self.by_object.get(&object) {
            self.held[file].used = self.uses;
            return Ok(Some(file));
        }
        let key = objects.key(asked.sample);
        if key.split('/').any(|part| part == "..") {
            return Err(
                Error::new(Kind::Usage, "its path leads out of the folder").with_hint("leave '..' out of the manifest")
            );
        }
        if self.held.len() >= FOLDER_FILES_MAX {
            self.close_idle(io.ring);
        }
        self.path.clear();
        objects.endpoint().push_file_path(&mut self.path, key);
        let entry = self.held.vacant_entry();
        let file = entry.key();
        let Ok(opening) = io.ring.push(Op::Open(Opening::new(&self.path)?), OF_FILE | file as u64) else {
            return Ok(None);
        };
        entry.insert(Held { object, opening, opened: None, mark: None, readings: 0, used: self.uses });
        self.by_object.insert(object, file);
        Ok(Some(file))
    }

    /// Begins to read, if the file still matches its listing.
    fn begin<R: Ring>(&mut self, io: &mut TransportIo<R>, at: usize) {
        let Reading { exchange, file } = &self.readings[at];
        let mark = self.held[*file].mark.expect("only open files are read");
        match judged(mark, &exchange.asked) {
            Err(error) => self.fail(io, at, error),
            Ok(()) if self.due.is_empty() && self.read(io.ring, at) => {}
            Ok(()) => self.due.push_back(at),
        }
    }

    /// Reads the missing end of a window. False when the ring is full.
    fn read<R: Ring>(&mut self, ring: &mut R, at: usize) -> bool {
        let Reading { exchange, file } = &mut self.readings[at];
        let file = self.held[*file].file().expect("only open files are read");
        let into = exchange.window.take().expect(PRESENT);
        let landed = (into.filled() - exchange.resumed_at) as u64;
        let op = Op::ReadAt { file, offset: exchange.asked.first + landed, into };
        match ring.push(op, at as u64) {
            Ok(_) => true,
            Err(Full(op)) => {
                exchange.window = Some(window_of(op));
                false
            }
        }
    }

    /// Examines a file. False when the ring is full.
    fn examine<R: Ring>(&mut self, ring: &mut R, file: usize, token: u64) -> bool {
        let facts = self.facts.pop().unwrap_or_default();
        let file = self.held[file].file().expect("only open files are examined");
        ring.push(Op::Stat { file, facts }, token).is_ok()
    }

    fn opened<R: Ring>(&mut self, io: &mut TransportIo<R>, file: usize, opening: Opening, result: Result<usize, i32>) {
        let error = match result {
            Ok(_) if !self.closed => {
                self.held[file].opened = Some(opening);
                if self.examine(io.ring, file, OF_FILE | file as u64) {
                    return;
                }
                no_room()
            }
            Ok(_) => {
                self.held[file].opened = Some(opening);
                ended()
            }
            Err(CANCELLED) => ended(),
            // No further file can be opened: one of ours is closed, now or when its request ends.
            Err(EMFILE | ENFILE) if self.held.iter().any(|(_, held)| held.file().is_some()) => {
                for at in self.readings_of(file) {
                    io.requests.stats.requests -= 1;
                    io.requests.put_back(self.readings.remove(at).exchange);
                }
                self.close_idle(io.ring);
                return self.forget(io.ring, file);
            }
            Err(errno) => open_refusal(opening.path(), errno),
        };
        self.fail_all(io, file, &error);
    }

    fn examined<R: Ring>(&mut self, io: &mut TransportIo<R>, file: usize, result: Result<&FileFacts, i32>) {
        let path = self.held[file].opened.as_ref().map_or(Path::new(""), Opening::path);
        let error = match result {
            Err(CANCELLED) => ended(),
            Err(errno) => unreadable("it", errno),
            Ok(facts) if !facts.is_regular() => not_regular(path),
            Ok(facts) => {
                self.held[file].mark = Some(facts.mark());
                for at in self.readings_of(file) {
                    self.begin(io, at);
                }
                return;
            }
        };
        self.fail_all(io, file, &error);
    }

    /// A read came back.
    fn came<R: Ring>(&mut self, io: &mut TransportIo<R>, at: usize, window: Window, result: Result<usize, i32>) {
        let room = window.room();
        let Reading { exchange, file } = &mut self.readings[at];
        exchange.first_byte_at.get_or_insert(io.now);
        exchange.window = Some(window);
        let error = match result {
            Err(CANCELLED) => ended(),
            Err(errno) => unreadable("it", errno),
            Ok(0) => changed("it is shorter than its listed length"),
            Ok(_) if room > 0 => {
                if !self.read(io.ring, at) {
                    self.due.push_back(at);
                }
                return;
            }
            Ok(_) => {
                let file = *file;
                if self.examine(io.ring, file, at as u64) {
                    return;
                }
                no_room()
            }
        };
        self.fail(io, at, error);
    }

    /// All bytes have come: compares the file's facts with those before the read.
    fn read_through<R: Ring>(&mut self, io: &mut TransportIo<R>, at: usize, after: Result<FileMark, i32>) {
        let mark = self.held[self.readings[at].file].mark.expect("only open files are read");
        match after {
            Ok(after) if after == mark => {
                let Reading { exchange, file } = self.readings.remove(at);
                self.held[file].readings -= 1;
                self.forget_unwanted(io.ring, file);
                let proof = Proof { etag: Some(tag_of(mark)), crc32c: None };
                io.requests.outcomes.push(Outcome::landed(exchange, proof, io.now));
            }
            Ok(_) => self.fail(io, at, changed("it was written to while it was read")),
            Err(CANCELLED) => self.fail(io, at, ended()),
            Err(errno) => self.fail(io, at, unreadable("it", errno)),
        }
    }

    /// Ends a request. Its file is opened anew for the next one.
    fn fail<R: Ring>(&mut self, io: &mut TransportIo<R>, at: usize, error: Error) {
        let Reading { mut exchange, file } = self.readings.remove(at);
        let held = &mut self.held[file];
        held.readings -= 1;
        if self.by_object.get(&held.object) == Some(&file) {
            self.by_object.remove(&held.object);
        }
        self.forget_unwanted(io.ring, file);
        if error.kind() == Kind::Changed {
            // None of the bytes that landed are kept.
            exchange.window_mut().rewind(0);
        }
        io.requests.refuse(exchange, error);
    }

    fn fail_all<R: Ring>(&mut self, io: &mut TransportIo<R>, file: usize, error: &Error) {
        for at in self.readings_of(file) {
            self.fail(io, at, error.clone());
        }
    }

    fn readings_of(&self, file: usize) -> Vec<usize> {
        self.readings.iter().filter(|(_, reading)| reading.file == file).map(|(at, _)| at).collect()
    }

    /// Closes the least recently used file without a request.
    fn close_idle<R: Ring>(&mut self, ring: &mut R) {
        let idle = self.held.iter().filter(|(_, held)| held.readings == 0);
        if let Some((file, _)) = idle.min_by_key(|(_, held)| held.used) {
            self.forget(ring, file);
        }
    }

    /// Closes a file without a request that may not be used again.
    fn forget_unwanted<R: Ring>(&mut self, ring: &mut R, file: usize) {
        let held = &self.held[file];
        if held.readings == 0 && self.by_object.get(&held.object) != Some(&file) {
            self.forget(ring, file);
        }
    }

    fn forget<R: Ring>(&mut self, ring: &mut R, file: usize) {
        let held = self.held.remove(file);
        if self.by_object.get(&held.object) == Some(&file) {
            self.by_object.remove(&held.object);
        }
        if let Some(file) = held.file() {
            ring.close_file(file);
        }
    }
}

/// The process, or the system, has no descriptor left.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
/// ECANCELED: the file was closed under the operation.
const CANCELLED: i32 = 125;

fn window_of(op: Op) -> Window {
    match op {
        Op::ReadAt { into, .. } => into,
        op => unreachable!("a file does not submit {op:?}"),
    }
}

/// Checks a file against its listing.
fn judged(mark: FileMark, asked: &Asked) -> Result<()> {
    if mark.len != asked.object_len {
        return Err(changed(&format!("it is {} bytes long, and was listed with {}", mark.len, asked.object_len)));
    }
    match asked.etag {
        Some(etag) if etag != tag_of(mark) => Err(changed("it was written to after it was listed")),
        _ => Ok(()),
    }
}

fn ended() -> Error {
    Error::new(Kind::Cancelled, "the loader ends")
}

/// The file could not be examined after the read, so its bytes are not kept.
fn no_room() -> Error {
    changed("the ring had no room to examine it")
}

fn changed(cause: &str) -> Error {
    Error::new(Kind::Changed, cause).with_hint("start again once no process writes to the folder")
}

fn unreadable(what: &str, errno: i32) -> Error {
    Error::from_errno(Kind::File, &format!("reading {what}"), errno)
        .with_hint("look at the disk and the kernel's log (dmesg)")
}

/// Formats the tag without a heap allocation: called for every block.
fn tag_of(mark: FileMark) -> Etag {
    let mut text = arrayvec::ArrayString::<40>::new();
    // It is 34 characters long.
    let _ = write!(text, "{mark}");
    Etag::of(&text)
}
