//! One keep-alive connection as a state machine: requests out, pipelined responses in, bodies straight into windows.
//!
//! Owns its socket's name, its scratch memory and the exchanges in order. Performs no I/O: it makes ops and is told how
//! they ended. A receive scatters over head (scratch) and body (window) of as many pipelined responses as their
//! predicted head lengths allow; when a prediction proves wrong, the bytes are gathered and fed through the linear
//! path, which copies and counts what it copies.

use crate::exchange::{Asked, Exchange, Proof, REFUSAL_TEXT_BYTES_MAX, Sink};
use crate::predict::{Guess, HeadPredictor};
use arrayvec::ArrayVec;
use fuelrail_base::limits::{RESPONSE_HEAD_BYTES_MAX, SCATTER_PIECES_MAX};
use fuelrail_base::{Duration, Error, Instant, Kind, Result};
use fuelrail_io::{Landed, Op, Scatter, Slot, SockId, Window};
use fuelrail_wire::{Body, Expect, Framing, Method, Parsed, ResponseHead, parse_head};
use std::collections::VecDeque;

/// How an exchange ended.
pub(crate) enum Outcome {
    /// All bytes are in the window.
    Landed { asked: Asked, window: Window, proof: Proof, first_byte: Duration, total: Duration },
    /// This attempt failed; what landed before the fault stays in the window when it can be trusted.
    Failed { asked: Asked, window: Window, proof: Proof, error: Error, retry_after: Option<Duration>, new_bytes: usize },
    /// The connection closed before this request's turn.
    Unserved { asked: Asked, window: Window },
}

/// Where the connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The connect op is in flight.
    Connecting,
    /// Requests may be sent.
    Open,
    /// No more requests; waits for its ops to come home.
    Closing,
}

/// What the connection shares with its shard while it is told something.
pub(crate) struct Context<'a> {
    pub now: Instant,
    pub predictor: &'a mut HeadPredictor,
    pub outcomes: &'a mut Vec<Outcome>,
    pub copied_bytes: &'a mut u64,
}

/// Receives stop growing over pipelined responses at this many bytes.
const RECEIVE_BYTES_TARGET: usize = 1 << 20;
/// Scratch bytes asked for when control bytes of a chunked body or a refusal's text come next.
const CONTROL_BYTES: usize = 1024;

pub(crate) struct Conn {
    sock: SockId,
    pub state: State,
    queue: VecDeque<Exchange>,
    /// The front exchange's body, once its head is known.
    body: Option<Body>,
    /// That body is framed by length: nothing but payload comes until its end.
    by_length: bool,
    /// Bytes of a head that is not complete yet.
    head: Vec<u8>,
    out: Vec<u8>,
    spare: Vec<u8>,
    scratch: Option<Slot>,
    sending: bool,
    receiving: bool,
    pub last_heard: Instant,
    outstanding_bytes: u64,
    last_response: bool,
    doom: Option<Error>,
    /// It ended through an error.
    pub failed: bool,
    /// The ring has been told to close the socket.
    pub close_sent: bool,
    connecting: bool,
}

/// A piece of a finished receive.
#[derive(Clone, Copy)]
enum Piece {
    Head {
        from: usize,
        got: usize,
    },
    /// Body bytes at the end of the filled part of the window of exchange `exchange` (as counted before the receive).
    Body {
        exchange: usize,
        got: usize,
    },
}

impl Piece {
    fn got(self) -> usize {
        match self {
            Piece::Head { got, .. } | Piece::Body { got, .. } => got,
        }
    }
}

impl Conn {
    pub(crate) fn new(sock: SockId, scratch: Slot, now: Instant) -> Conn {
        Conn {
            sock,
            state: State::Connecting,
            queue: VecDeque::with_capacity(8),
            body: None,
            by_length: false,
            head: Vec::with_capacity(1024),
            out: Vec::with_capacity(2048),
            spare: Vec::with_capacity(2048),
            scratch: Some(scratch),
            sending: false,
            receiving: false,
            last_heard: now,
            outstanding_bytes: 0,
            last_response: false,
            doom: None,
            failed: false,
            close_sent: false,
            connecting: true,
        }
    }

    pub(crate) fn sock(&self) -> SockId {
        self.sock
    }

    /// The scratch memory of a connection that is quiet.
    pub(crate) fn into_scratch(self) -> Option<Slot> {
        self.scratch
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.outstanding_bytes
    }

    pub(crate) fn takes_requests(&self) -> bool {
        self.state != State::Closing && !self.last_response && self.doom.is_none()
    }

    /// Nothing of this connection is with the ring any more.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.sending && !self.receiving && !self.connecting
    }

    /// The connect op ended.
    pub(crate) fn connected(&mut self, result: Result<()>, cx: &mut Context) {
        self.connecting = false;
        match result {
            Ok(()) if self.state == State::Connecting => {
                self.state = State::Open;
                self.last_heard = cx.now;
            }
            Err(error) if self.state == State::Connecting => self.fail(error, cx),
            _ => {}
        }
    }

    /// The ring had no room: the op stays due.
    pub(crate) fn take_back(&mut self, op: Op) {
        match op {
            Op::Connect { .. } => unreachable!("a connection that cannot connect is not kept"),
            Op::Send { mut bytes, from, .. } => {
                self.sending = false;
                bytes.drain(..from);
                bytes.append(&mut self.out);
                self.out = bytes;
            }
            Op::Recv { into, .. } => {
                self.receiving = false;
                let (scratch, landed) = into.finish();
                self.scratch = Some(scratch);
                let windows = landed.into_iter().filter_map(|l| match l {
                    Landed::Body { window, .. } => Some(window),
                    Landed::Head { .. } => None,
                });
                for (exchange, window) in self.queue.iter_mut().zip(windows) {
                    exchange.window = Some(window);
                }
            }
        }
    }

    /// Queues a request with its text.
    pub(crate) fn request(&mut self, exchange: Exchange, text: &[u8]) {
        if self.queue.is_empty() {
            self.last_heard = exchange.sent_at;
        }
        self.out.extend_from_slice(text);
        self.outstanding_bytes += exchange.asked.len;
        self.queue.push_back(exchange);
    }

    /// The send op that is due, if any.
    pub(crate) fn send_op(&mut self) -> Option<Op> {
        if self.state != State::Open || self.sending || self.out.is_empty() {
            return None;
        }
        self.sending = true;
        let bytes = core::mem::replace(&mut self.out, core::mem::take(&mut self.spare));
        Some(Op::Send { sock: self.sock, bytes, from: 0 })
    }

    /// A send ended. Returns the op for what is left of it.
    pub(crate) fn sent(
        &mut self,
        mut bytes: Vec<u8>,
        from: usize,
        result: Result<usize, i32>,
        cx: &mut Context,
    ) -> Option<Op> {
        match result {
            Ok(n) if from + n < bytes.len() && self.state == State::Open => {
                return Some(Op::Send { sock: self.sock, bytes, from: from + n });
            }
            Err(errno) if transient(errno) && self.state == State::Open => {
                return Some(Op::Send { sock: self.sock, bytes, from });
            }
            Err(errno) if self.state == State::Open && self.doom.is_none() => {
                self.sending = false;
                self.fail(Error::from_errno(Kind::Network, "sending the request", errno), cx);
            }
            _ => {}
        }
        self.sending = false;
        bytes.clear();
        self.spare = bytes;
        None
    }

    /// The receive op that is due, if any.
    pub(crate) fn recv_op(&mut self, predictor: &HeadPredictor) -> Option<Op> {
        if self.state != State::Open || self.receiving || self.queue.is_empty() {
            return None;
        }
        let mut into = Scatter::new(self.scratch.take()?);
        self.receiving = true;
        if let Some(body) = &self.body {
            let in_window = matches!(self.queue[0].sink, Sink::Window);
            if let (Expect::Payload { at_most }, true) = (body.expect(), in_window) {
                let rest = usize::try_from(at_most).unwrap_or(usize::MAX);
                push_body(&mut into, &mut self.queue[0], rest);
            }
            if !(self.by_length && in_window) {
                // What follows a chunk, a refusal or a body without length is looked at before anything lands.
                into.push_head(CONTROL_BYTES);
                return Some(Op::Recv { sock: self.sock, into });
            }
            self.push_responses(&mut into, 1, predictor);
        } else {
            self.push_responses(&mut into, 0, predictor);
        }
        Some(Op::Recv { sock: self.sock, into })
    }

    /// Extends the scatter over whole responses, from exchange `next` on, as far as heads can be predicted.
    fn push_responses(&mut self, into: &mut Scatter, next: usize, predictor: &HeadPredictor) {
        let mut held = self.head.len();
        for exchange in self.queue.iter_mut().skip(next) {
            if into.asked() >= RECEIVE_BYTES_TARGET || into.pieces() + 2 > SCATTER_PIECES_MAX {
                return;
            }
            match predictor.guess(&exchange.asked) {
                Guess::Exact(len) if len > held => {
                    if !into.push_head(len - held) {
                        return;
                    }
                    push_body(into, exchange, usize::MAX);
                    held = 0;
                }
                Guess::Exact(_) | Guess::Probe(_) if into.pieces() > 0 => return,
                Guess::Exact(_) => {
                    into.push_head(CONTROL_BYTES);
                    return;
                }
                Guess::Probe(len) => {
                    into.push_head(len.saturating_sub(held).max(64));
                    return;
                }
            }
        }
    }

    /// A receive ended.
    pub(crate) fn received(&mut self, into: Scatter, result: Result<usize, i32>, cx: &mut Context) {
        self.receiving = false;
        let (scratch, landed) = into.finish();
        let mut pieces: ArrayVec<Piece, SCATTER_PIECES_MAX> = ArrayVec::new();
        let mut bodies = 0;
        for l in landed {
            pieces.push(match l {
                Landed::Head { from, got, .. } => Piece::Head { from, got },
                Landed::Body { window, got, .. } => {
                    self.queue[bodies].window = Some(window);
                    bodies += 1;
                    Piece::Body { exchange: bodies - 1, got }
                }
            });
        }
        let mut verdict = match result {
            Ok(0) => self.ended(cx),
            Ok(_) => {
                self.last_heard = cx.now;
                self.walk(&scratch, &pieces, cx)
            }
            Err(errno) if transient(errno) => Ok(()),
            Err(errno) => Err(Error::from_errno(Kind::Network, "receiving the response", errno)),
        };
        self.scratch = Some(scratch);
        if let Some(doom) = self.doom.take() {
            verdict = Err(doom);
        }
        if let Err(error) = verdict {
            self.fail(error, cx);
        }
    }

    /// Goes through the pieces in stream order. As long as every head ends where it was predicted to, all is in place;
    /// at the first one that does not, the rest is gathered and fed.
    fn walk(&mut self, scratch: &[u8], pieces: &[Piece], cx: &mut Context) -> Result<()> {
        let exchanges = self.queue.len();
        for (i, &piece) in pieces.iter().enumerate() {
            if piece.got() == 0 || self.state == State::Closing {
                break;
            }
            match piece {
                Piece::Body { got, .. } => {
                    let body = self.body.as_mut().expect("a body in place follows its head");
                    body.payload(got as u64);
                    self.settle(cx)?;
                }
                Piece::Head { from, got } => {
                    let bytes = &scratch[from..from + got];
                    if self.head_in_place(bytes, cx)? {
                        self.settle(cx)?;
                        continue;
                    }
                    let gathered = self.gather(scratch, &pieces[i + 1..], exchanges - self.queue.len(), cx);
                    self.feed(bytes, cx)?;
                    return self.feed(&gathered, cx);
                }
            }
        }
        Ok(())
    }

    /// Whether these bytes complete the head of the front exchange exactly, and its body is the one that was asked for,
    /// so that body bytes of the same receive already lie where they belong. If so the body is begun.
    fn head_in_place(&mut self, bytes: &[u8], cx: &mut Context) -> Result<bool> {
        let before = self.head.len();
        if self.body.is_some() || before + bytes.len() > RESPONSE_HEAD_BYTES_MAX {
            return Ok(false);
        }
        let parsed = if before == 0 {
            parse_head(bytes, Method::Get)?
        } else {
            self.head.extend_from_slice(bytes);
            parse_head(&self.head, Method::Get)?
        };
        let asked = self.queue.front().ok_or_else(unrequested)?.asked;
        match parsed {
            Parsed::Complete { head, len } if len == before + bytes.len() && asked.is_answered_in_place(&head) => {
                self.head.clear();
                self.begin_body(&head, len, cx)?;
                Ok(true)
            }
            _ => {
                self.head.truncate(before);
                Ok(false)
            }
        }
    }

    fn begin_body(&mut self, head: &ResponseHead, len: usize, cx: &mut Context) -> Result<()> {
        let exchange = self.queue.front_mut().ok_or_else(unrequested)?;
        exchange.first_byte_at.get_or_insert(cx.now);
        cx.predictor.learn(&exchange.asked, head, len);
        self.last_response |= !head.keep_alive;
        let framing = exchange.accept(head)?;
        self.by_length = matches!(framing, Framing::Length(_));
        self.body = Some(Body::new(framing));
        Ok(())
    }

    /// Collects the bytes of pieces that did not land where they belong, and clears them from the windows.
    fn gather(&mut self, scratch: &[u8], pieces: &[Piece], finished: usize, cx: &mut Context) -> Vec<u8> {
        let mut all = Vec::with_capacity(pieces.iter().map(|p| p.got()).sum());
        for &piece in pieces {
            match piece {
                Piece::Head { from, got } => all.extend_from_slice(&scratch[from..from + got]),
                Piece::Body { exchange, got } => {
                    let window = self.queue[exchange - finished].window.as_mut().expect("windows are home");
                    let kept = window.filled() - got;
                    all.extend_from_slice(&window.bytes()[kept..]);
                    window.rewind(kept);
                    *cx.copied_bytes += got as u64;
                }
            }
        }
        all
    }

    /// The linear path: any bytes of the stream, in order, wherever they were received.
    fn feed(&mut self, mut bytes: &[u8], cx: &mut Context) -> Result<()> {
        while !bytes.is_empty() && self.state != State::Closing {
            let used = match &mut self.body {
                None => self.feed_head(bytes, cx)?,
                Some(body) => {
                    let exchange = self.queue.front_mut().ok_or_else(unrequested)?;
                    match body.expect() {
                        Expect::Payload { at_most } => {
                            let n = bytes.len().min(usize::try_from(at_most).unwrap_or(usize::MAX));
                            put(exchange, &bytes[..n], cx)?;
                            body.payload(n as u64);
                            n
                        }
                        Expect::Control { .. } => body.control(bytes)?,
                        Expect::End => 0,
                    }
                }
            };
            bytes = &bytes[used..];
            self.settle(cx)?;
        }
        Ok(())
    }

    /// Adds bytes to the head under way; returns how many belonged to it.
    fn feed_head(&mut self, bytes: &[u8], cx: &mut Context) -> Result<usize> {
        if self.queue.is_empty() {
            return Err(unrequested());
        }
        let before = self.head.len();
        let room = RESPONSE_HEAD_BYTES_MAX.saturating_sub(before);
        let taken = bytes.len().min(room);
        self.head.extend_from_slice(&bytes[..taken]);
        let held = core::mem::take(&mut self.head);
        let parsed = parse_head(&held, Method::Get);
        let used = match parsed? {
            Parsed::Partial => {
                self.head = held;
                return Ok(taken);
            }
            Parsed::Interim { len } => len,
            Parsed::Complete { head, len } => {
                self.begin_body(&head, len, cx)?;
                len
            }
        };
        self.head = held;
        self.head.clear();
        Ok(used - before)
    }

    /// Finishes the front exchange when its body is complete. True when it did.
    fn settle(&mut self, cx: &mut Context) -> Result<bool> {
        if !matches!(self.body.as_ref().map(Body::expect), Some(Expect::End)) {
            return Ok(false);
        }
        self.body = None;
        let exchange = self.queue.pop_front().expect("a body belongs to an exchange");
        self.outstanding_bytes -= exchange.asked.len;
        finish(exchange, cx);
        if self.last_response {
            self.close(cx);
        }
        Ok(true)
    }

    /// The peer closed its side.
    fn ended(&mut self, cx: &mut Context) -> Result<()> {
        if let Some(body) = &mut self.body {
            body.closed()?;
            self.settle(cx)?;
        } else if !self.head.is_empty() {
            return Err(Error::new(Kind::Protocol, "the connection closed inside a response head"));
        } else if !self.queue.is_empty() {
            return Err(Error::new(Kind::Network, "the connection closed without an answer"));
        }
        self.close(cx);
        Ok(())
    }

    /// Gives the front exchange up with `error` and hands the others back. When a receive is in flight this waits for
    /// its return: the kernel may still write into the windows. The caller closes the socket when the state says so.
    pub(crate) fn fail(&mut self, error: Error, cx: &mut Context) {
        self.state = State::Closing;
        self.failed = true;
        if self.receiving {
            self.doom.get_or_insert(error);
            return;
        }
        if let Some(mut exchange) = self.queue.pop_front() {
            if self.body.is_none() {
                exchange.forget_landed();
            }
            fail_exchange(exchange, error, cx);
        }
        self.close(cx);
    }

    /// Hands all exchanges back unserved and stops.
    fn close(&mut self, cx: &mut Context) {
        self.state = State::Closing;
        self.body = None;
        self.outstanding_bytes = 0;
        for exchange in self.queue.drain(..) {
            let mut window = exchange.window.expect("no receive is in flight");
            // Nothing of its response was read in order, so nothing that landed there is known to be good.
            window.rewind(exchange.resumed_at);
            cx.outcomes.push(Outcome::Unserved { asked: exchange.asked, window });
        }
    }
}

/// Lends the exchange's window to the scatter for at most `rest` bytes.
fn push_body(into: &mut Scatter, exchange: &mut Exchange, rest: usize) {
    let window = exchange.window.take().expect("no receive is in flight");
    let at_most = window.room().min(rest);
    if at_most == 0 {
        exchange.window = Some(window);
    } else if let Err(window) = into.push_body(window, at_most) {
        exchange.window = Some(window);
    }
}

fn put(exchange: &mut Exchange, bytes: &[u8], cx: &mut Context) -> Result<()> {
    match &mut exchange.sink {
        Sink::Window => {
            let window = exchange.window.as_mut().expect("no receive is in flight");
            let landed = window.put(bytes);
            *cx.copied_bytes += landed as u64;
            if landed < bytes.len() {
                return Err(Error::new(Kind::Mismatch, "the body is longer than the listing promises"));
            }
        }
        Sink::Refusal { text, .. } => {
            let room = REFUSAL_TEXT_BYTES_MAX.saturating_sub(text.len());
            text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
    Ok(())
}

/// The response has ended as its framing says.
fn finish(exchange: Exchange, cx: &mut Context) {
    let error = match &exchange.sink {
        Sink::Refusal { .. } => exchange.refusal(),
        Sink::Window => {
            let window = exchange.window.as_ref().expect("no receive is in flight");
            if window.room() == 0 {
                return land(exchange, cx);
            }
            let (got, want) = (window.filled(), window.len());
            Error::new(Kind::Truncated, format!("the body ended at byte {got} of {want}"))
        }
    };
    fail_exchange(exchange, error, cx);
}

fn land(exchange: Exchange, cx: &mut Context) {
    let first_byte = exchange.first_byte_at.unwrap_or(cx.now).since(exchange.sent_at);
    let total = cx.now.since(exchange.sent_at);
    let window = exchange.window.expect("no receive is in flight");
    cx.outcomes.push(Outcome::Landed { asked: exchange.asked, window, proof: exchange.proof, first_byte, total });
}

fn fail_exchange(mut exchange: Exchange, error: Error, cx: &mut Context) {
    let window = exchange.window.as_mut().expect("no receive is in flight");
    if matches!(error.kind(), Kind::Mismatch | Kind::Changed | Kind::Protocol) {
        window.rewind(0);
    }
    if window.room() == 0 {
        // All payload came before the fault: only the end of its framing is lost, and nothing is left to ask for.
        return land(exchange, cx);
    }
    let retry_after = match exchange.sink {
        Sink::Refusal { retry_after_s: Some(s), .. } => Some(Duration::from_secs(u64::from(s))),
        _ => None,
    };
    let new_bytes = window.filled().saturating_sub(exchange.resumed_at);
    let (asked, proof) = (exchange.asked, exchange.proof);
    let window = exchange.window.expect("just seen");
    cx.outcomes.push(Outcome::Failed { asked, window, proof, error, retry_after, new_bytes });
}

fn unrequested() -> Error {
    Error::new(Kind::Protocol, "the server sent bytes nobody asked for")
}

/// EINTR and EAGAIN say nothing about the connection.
fn transient(errno: i32) -> bool {
    matches!(errno, 4 | 11)
}
