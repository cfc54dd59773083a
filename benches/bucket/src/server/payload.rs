//! Response bodies: whole small ones, and streams of frames that are generated or read on the fly into recycled buffers
//! and paced by the script.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::body::{Body, Buf, Bytes, Frame, SizeHint};
use tokio::task::{JoinHandle, spawn_blocking};

use super::desk::Desk;
use super::pacing::Pacing;
use super::pool::{Chunk, FRAME_BYTES};
use crate::alarm::Sleep;
use crate::store::Content;

/// A response body.
pub(crate) struct Payload {
    state: State,
    /// Without a known length hyper uses chunked coding.
    length_known: bool,
}

enum State {
    Whole(Option<Chunk>),
    Stream(Box<Stream>),
}

impl Payload {
    pub(crate) fn empty() -> Payload {
        Payload { state: State::Whole(None), length_known: true }
    }

    pub(crate) fn document(bytes: Bytes) -> Payload {
        Payload { state: State::Whole(Some(Chunk::Shared(bytes))), length_known: true }
    }

    pub(crate) fn whole(chunk: Chunk) -> Payload {
        Payload { state: State::Whole(Some(chunk)), length_known: true }
    }

    pub(crate) fn stream(stream: Stream) -> Payload {
        Payload { state: State::Stream(Box::new(stream)), length_known: true }
    }

    pub(crate) fn without_length(self) -> Payload {
        Payload { length_known: false, ..self }
    }

    /// Sends nothing for `pause` before body byte `at`. Whole bodies are not paused.
    pub(crate) fn pause_at(&mut self, at: u64, pause: Duration) {
        if let State::Stream(stream) = &mut self.state {
            stream.pause = Some((stream.next + at, pause));
        }
    }

    /// Bytes still to come.
    pub(crate) fn exact_bytes(&self) -> Option<u64> {
        match &self.state {
            State::Whole(chunk) => Some(chunk.as_ref().map_or(0, |chunk| chunk.remaining() as u64)),
            State::Stream(stream) => Some(stream.end - stream.next),
        }
    }

    /// The next bytes; `None` at the end.
    pub(crate) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Chunk>>> {
        match &mut self.state {
            State::Whole(chunk) => Poll::Ready(chunk.take().filter(Buf::has_remaining).map(Ok)),
            State::Stream(stream) => stream.poll_chunk(context),
        }
    }
}

impl Body for Payload {
    type Data = Chunk;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, io::Error>>> {
        self.poll_chunk(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.length_known && self.exact_bytes() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        match self.exact_bytes() {
            Some(bytes) if self.length_known => SizeHint::with_exact(bytes),
            _ => SizeHint::default(),
        }
    }
}

/// A read on the blocking pool: the buffer it was given, and how much of it is the frame.
type Reading = JoinHandle<io::Result<(Vec<u8>, usize)>>;

/// A range of an object, frame by frame.
pub(crate) struct Stream {
    content: Content,
    next: u64,
    end: u64,
    frame_bytes: usize,
    desk: Rc<Desk>,
    pacing: Option<Pacing>,
    /// Whether the next frame's bandwidth is already reserved.
    reserved: bool,
    pause: Option<(u64, Duration)>,
    waiting: Option<Sleep>,
    reading: Option<Reading>,
}

impl Stream {
    pub(crate) fn new(content: Content, range: Range<u64>, desk: &Rc<Desk>, pacing: Option<Pacing>) -> Stream {
        Stream {
            content,
            next: range.start,
            end: range.end,
            frame_bytes: pacing.as_ref().map_or(FRAME_BYTES, |pacing| pacing.frame_bytes(FRAME_BYTES)),
            desk: Rc::clone(desk),
            pacing,
            reserved: false,
            pause: None,
            waiting: None,
            reading: None,
        }
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Chunk>>> {
        loop {
            if let Some(sleep) = &mut self.waiting {
                ready!(Pin::new(sleep).poll(context));
                self.waiting = None;
            }
            if let Some(reading) = &mut self.reading {
                let read = ready!(Pin::new(reading).poll(context)).unwrap_or_else(|e| Err(io::Error::other(e)));
                self.reading = None;
                return Poll::Ready(Some(read.map(|(buffer, bytes)| self.count(buffer, bytes))));
            }
            if self.next == self.end {
                return Poll::Ready(None);
            }
            if let Some((_, pause)) = self.pause.take_if(|(at, _)| *at <= self.next) {
                self.waiting = Some(self.desk.site.alarm.sleep_until(Instant::now() + pause));
                continue;
            }
            let until = self.pause.map_or(self.end, |(at, _)| at.min(self.end));
            let bytes = (until - self.next).min(self.frame_bytes as u64) as usize;
            if self.must_wait(bytes) {
                continue;
            }
            self.reserved = false;
            let mut buffer = self.desk.pool.take(bytes);
            if self.content.blocks() {
                let (content, offset) = (self.content.clone(), self.next);
                let read = move || content.read_at(offset, &mut buffer[..bytes]).map(|()| (buffer, bytes));
                self.reading = Some(spawn_blocking(read));
                continue;
            }
            let read = self.content.read_at(self.next, &mut buffer[..bytes]);
            return Poll::Ready(Some(read.map(|()| self.count(buffer, bytes))));
        }
    }

    /// Reserves bandwidth for the next frame once; true when it has to wait for it.
    fn must_wait(&mut self, bytes: usize) -> bool {
        let Some(pacing) = self.pacing.as_ref().filter(|_| !self.reserved) else { return false };
        let now = Instant::now();
        let from = pacing.reserve(now, bytes as u64);
        self.reserved = true;
        if from > now {
            self.waiting = Some(self.desk.site.alarm.sleep_until(from));
        }
        from > now
    }

    fn count(&mut self, buffer: Vec<u8>, bytes: usize) -> Chunk {
        self.next += bytes as u64;
        self.desk.site.tally.body(bytes);
        Chunk::pooled(buffer, bytes, &self.desk.pool)
    }
}
