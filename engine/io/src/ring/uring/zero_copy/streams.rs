//! Which receive gets which bytes of the area: one stream per socket, which a request of the kernel feeds with chunks while
//! operations take bytes out of it, in order.
//!
//! Pure: what happens to memory, books and kernel is somebody else's ([`Effects`]). Owns the chunks between their coming
//! and their going back; a chunk goes back exactly once, whatever becomes of its socket.

use std::collections::VecDeque;

use super::chunk::Chunk;
use crate::ring::table::{Name, Table};

/// Bytes a request may bring before it must be made anew. What an operation does not want of them is kept for the next of
/// its socket, so this is also the most that a socket without an operation can hold of the area.
pub(super) const CREDIT_BYTES: u32 = 1 << 20;
/// The most one operation asks for: what it wants beyond is for the next.
const ASKED_BYTES_MAX: usize = 1 << 30;

/// What streams cause.
pub(super) trait Effects {
    /// Copies `len` bytes of the chunk, from `from` on, to their place behind the first `at` bytes of what `op` asks for.
    fn copy(&mut self, op: Name, at: usize, chunk: &Chunk, from: usize, len: usize);
    /// The chunk is the kernel's again.
    fn give_back(&mut self, chunk: Chunk);
    /// The operation is done: bytes copied, or a negative error number.
    fn land(&mut self, op: Name, result: i32);
    /// The operation has to be received into its place by the kernel.
    fn receive_plainly(&mut self, op: Name);
    /// A request that brings the next [`CREDIT_BYTES`] of the socket into the area, under the stream's name. It needs the
    /// socket until its end.
    fn arm(&mut self, stream: Name, socket: Socket);
    /// The request under the stream's name is to end early.
    fn disarm(&mut self, stream: Name);
    /// The request has ended and needs the socket no more.
    fn release(&mut self, socket: Socket);
}

/// A socket: by its name, and by what requests name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Socket {
    pub(super) name: Name,
    pub(super) descriptor: i32,
}

struct Kept {
    chunk: Chunk,
    used: usize,
}

struct Waiting {
    op: Name,
    asked: usize,
    copied: usize,
    /// Only all that is asked for is enough.
    patient: bool,
}

/// How a stream goes on once its request has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    /// With another request.
    On,
    /// With receives past the area: the kernel cannot serve this socket through it.
    Plainly,
    /// Not at all: zero for the end of the stream, or a negative error number.
    Over(i32),
}

struct Stream {
    socket: Socket,
    /// The socket is closed; what comes goes straight back.
    closed: bool,
    /// Bytes the request may still bring; `None` without one.
    armed: Option<u32>,
    kept: VecDeque<Kept>,
    waiting: VecDeque<Waiting>,
    course: Course,
    /// In the list of those to be settled.
    touched: bool,
}

pub(super) struct Streams {
    table: Table<Stream>,
    /// The stream of the socket at each place of the ring's table. A closed socket keeps its place until its request ends.
    places: Vec<Option<Name>>,
    touched: Vec<Name>,
    /// Requests the kernel has.
    out: usize,
}

impl Streams {
    /// For a ring with so many places for sockets.
    pub(super) fn new(places: u32) -> Streams {
        Streams {
            table: Table::new(places),
            places: vec![None; places as usize],
            touched: Vec::with_capacity(places as usize),
            out: 0,
        }
    }

    /// Requests the kernel has.
    pub(super) fn out(&self) -> usize {
        self.out
    }

    /// An operation wants the next `asked` bytes of the socket.
    pub(super) fn receive(
        &mut self,
        socket: Socket,
        op: Name,
        (asked, patient): (usize, bool),
        effects: &mut impl Effects,
    ) {
        let name = *self.places[socket.name.index as usize].get_or_insert_with(|| {
            let (kept, waiting, course) = (VecDeque::new(), VecDeque::new(), Course::On);
            let stream = Stream { socket, closed: false, armed: None, kept, waiting, course, touched: false };
            let Ok(name) = self.table.insert(stream) else { unreachable!("a stream per place fits") };
            name
        });
        let Some(stream) = self.table.get_mut(name) else { unreachable!("a place names a stream that lives") };
        stream.waiting.push_back(Waiting { op, asked: asked.min(ASKED_BYTES_MAX), copied: 0, patient });
        self.settle_one(name, effects);
    }

    /// The operation is asked back: it gets what it has, or `ECANCELED`. False when no stream knows it.
    pub(super) fn cancel(&mut self, socket: Name, op: Name, effects: &mut impl Effects) -> bool {
        let Some(stream) = self.of(socket).and_then(|name| self.table.get_mut(name)) else { return false };
        let Some(at) = stream.waiting.iter().position(|waiting| waiting.op == op) else { return false };
        let copied = stream.waiting.remove(at).map_or(0, |waiting| waiting.copied);
        effects.land(op, if copied > 0 { copied as i32 } else { -libc::ECANCELED });
        true
    }

    /// The socket closes; its operations have been asked back. One that is closed already is ignored.
    pub(super) fn close(&mut self, socket: Name, effects: &mut impl Effects) {
        let Some(name) = self.of(socket) else { return };
        let Some(stream) = self.table.get_mut(name).filter(|stream| !stream.closed) else { return };
        assert!(stream.waiting.is_empty(), "operations on a closing socket have been asked back");
        stream.closed = true;
        stream.kept.drain(..).for_each(|kept| effects.give_back(kept.chunk));
        if stream.armed.is_some() {
            effects.disarm(name);
        } else {
            self.forget(name);
        }
    }

    /// The stream of this very socket, not of a later one at its place.
    fn of(&self, socket: Name) -> Option<Name> {
        let name = self.places[socket.index as usize]?;
        self.table.get(name).filter(|stream| stream.socket.name == socket).map(|_| name)
    }

    fn forget(&mut self, name: Name) {
        if let Some(stream) = self.table.remove(name) {
            self.places[stream.socket.name.index as usize] = None;
        }
    }

    /// All requests are to end early.
    pub(super) fn disarm_all(&self, effects: &mut impl Effects) {
        let armed = self.table.iter().filter(|(_, stream)| stream.armed.is_some());
        armed.for_each(|(name, _)| effects.disarm(name));
    }

    /// A request brought a chunk.
    pub(super) fn bring(&mut self, name: Name, chunk: Chunk, effects: &mut impl Effects) {
        let Some(stream) = self.table.get_mut(name).filter(|stream| !stream.closed) else {
            return effects.give_back(chunk);
        };
        if let Some(left) = &mut stream.armed {
            *left = left.saturating_sub(chunk.len() as u32);
        }
        stream.kept.push_back(Kept { chunk, used: 0 });
        self.touch(name);
    }

    /// A request ended: with zero, or a negative error number.
    pub(super) fn end(&mut self, name: Name, result: i32, effects: &mut impl Effects) {
        let Some(stream) = self.table.get_mut(name) else { unreachable!("{name:?} lives as long as its request") };
        self.out -= 1;
        effects.release(stream.socket);
        let left = stream.armed.take();
        if stream.closed {
            return self.forget(name);
        }
        stream.course = match -result {
            // All that it was to bring has come.
            0 if left == Some(0) => Course::On,
            // Asked back; or the completion queue, or the area, was full for a moment.
            libc::ECANCELED | libc::ENOSPC | libc::ENOBUFS => Course::On,
            // Not a stream the area can serve, or nothing of the area is left that the kernel could copy into.
            libc::ENOMEM | libc::EINVAL | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT => Course::Plainly,
            _ => Course::Over(result.min(0)),
        };
        self.touch(name);
    }

    /// Hands what has come to the operations that wait for it. To be called when all completions at hand were told.
    pub(super) fn settle(&mut self, effects: &mut impl Effects) {
        while let Some(name) = self.touched.pop() {
            if let Some(stream) = self.table.get_mut(name) {
                stream.touched = false;
            }
            self.settle_one(name, effects);
        }
    }

    fn touch(&mut self, name: Name) {
        if let Some(stream) = self.table.get_mut(name)
            && !core::mem::replace(&mut stream.touched, true)
        {
            self.touched.push(name);
        }
    }

    fn settle_one(&mut self, name: Name, effects: &mut impl Effects) {
        let Some(stream) = self.table.get_mut(name) else { return };
        while let Some(waiting) = stream.waiting.front_mut() {
            waiting.take(&mut stream.kept, effects);
            let over = stream.course != Course::On;
            let enough = waiting.copied == waiting.asked || (waiting.copied > 0 && (!waiting.patient || over));
            match stream.course {
                _ if enough => effects.land(waiting.op, waiting.copied as i32),
                Course::Over(result) => effects.land(waiting.op, result),
                Course::Plainly => effects.receive_plainly(waiting.op),
                Course::On => break,
            }
            stream.waiting.pop_front();
        }
        if !stream.waiting.is_empty() && stream.armed.is_none() {
            stream.armed = Some(CREDIT_BYTES);
            self.out += 1;
            effects.arm(name, stream.socket);
        }
    }
}

impl Waiting {
    /// Copies what is kept as far as it is asked for; what is used up goes back.
    fn take(&mut self, kept: &mut VecDeque<Kept>, effects: &mut impl Effects) {
        while self.copied < self.asked
            && let Some(first) = kept.front_mut()
        {
            let n = (self.asked - self.copied).min(first.chunk.len() - first.used);
            effects.copy(self.op, self.copied, &first.chunk, first.used, n);
            self.copied += n;
            first.used += n;
            if first.used == first.chunk.len()
                && let Some(first) = kept.pop_front()
            {
                effects.give_back(first.chunk);
            }
        }
    }
}
