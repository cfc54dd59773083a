//! The responses of one connection, in the order of their requests: the linear path through their bytes.
//!
//! Owns the exchanges and how far the front one's response has come. Takes the bytes of the stream in any pieces, copies
//! payload into windows and counts what it copies; `scatter.rs` spares the copy where it can. Knows no socket.

use super::exchange::{self, Context, Exchange, REFUSAL_BYTES_MAX, REFUSAL_TEXT_BYTES_MAX, Sink};
use super::pace::Pace;
use fuelrail_base::limits::{PIPELINE_DEPTH_MAX, RESPONSE_HEAD_BYTES_MAX};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::{Body, Expect, Framing, Parsed, ResponseHead, parse_head};
use std::collections::VecDeque;

pub(super) struct Responses {
    /// Requests without a complete response, oldest first.
    pub(super) queue: VecDeque<Exchange>,
    /// The front exchange's body, once its head is known.
    pub(super) body: Option<Body>,
    /// That body is framed by length: nothing but payload comes until its end.
    pub(super) by_length: bool,
    /// Bytes of a head that is not complete yet.
    pub(super) head: Vec<u8>,
    pub(super) pace: Pace,
    /// Bytes of interim responses since the last final one.
    interim_bytes: usize,
    /// Bytes requested by all of the queue.
    pub(super) asked_bytes: u64,
    /// The response under way is the last one.
    pub(super) last: bool,
    /// The last response has ended.
    pub(super) over: bool,
}

impl Responses {
    pub(super) fn new() -> Responses {
        Responses {
            queue: VecDeque::with_capacity(PIPELINE_DEPTH_MAX),
            body: None,
            by_length: false,
            head: Vec::with_capacity(1024),
            pace: Pace::default(),
            interim_bytes: 0,
            asked_bytes: 0,
            last: false,
            over: false,
        }
    }

    pub(super) fn push(&mut self, exchange: Exchange) {
        assert!(exchange.asked.len > 0, "a request is for at least one byte");
        self.asked_bytes += exchange.asked.len;
        self.queue.push_back(exchange);
    }

    /// The front response's body ends only with the connection.
    pub(super) fn ends_by_close(&self) -> bool {
        self.body.as_ref().is_some_and(Body::ends_by_close)
    }

    /// Nothing of the front response has come.
    pub(super) fn is_between(&self) -> bool {
        self.body.is_none() && self.head.is_empty() && self.interim_bytes == 0
    }

    /// Any bytes of the stream, in order, wherever they were received. Payload is copied.
    pub(super) fn feed(&mut self, mut bytes: &[u8], cx: &mut Context) -> Result<()> {
        while !bytes.is_empty() && !self.over {
            let used = match &mut self.body {
                None => self.feed_head(bytes, cx)?,
                Some(body) => match body.expect() {
                    Expect::Payload { at_most } => {
                        let n = bytes.len().min(usize::try_from(at_most).unwrap_or(usize::MAX));
                        body.payload(n as u64);
                        let landed = body.landed();
                        put(self.front()?, &bytes[..n], landed, cx)?;
                        n
                    }
                    Expect::Control { .. } => body.control(bytes)?,
                    Expect::End => 0,
                },
            };
            bytes = &bytes[used..];
            self.settle(cx);
        }
        Ok(())
    }

    /// The front exchange's head is complete and `len` bytes long.
    pub(super) fn begin_body(&mut self, head: &ResponseHead, len: usize, cx: &mut Context) -> Result<()> {
        self.interim_bytes = 0;
        self.last |= !head.keep_alive;
        let exchange = self.front()?;
        exchange.first_byte_at.get_or_insert(cx.now);
        cx.predictor.learn(&exchange.asked, head, len);
        let framing = exchange.accept(head)?;
        self.by_length = matches!(framing, Framing::Length(_));
        self.body = Some(Body::new(framing));
        Ok(())
    }

    /// Finishes the front exchange if its body is complete.
    pub(super) fn settle(&mut self, cx: &mut Context) {
        if !matches!(self.body.as_ref().map(Body::expect), Some(Expect::End)) {
            return;
        }
        self.body = None;
        let exchange = self.queue.pop_front().expect("a body belongs to an exchange");
        self.asked_bytes -= exchange.asked.len;
        if let Some(begun) = exchange.first_byte_at {
            self.pace.measured(exchange.asked.len, cx.now.since(begun));
        }
        exchange::finish(exchange, cx);
        self.over = self.last;
    }

    /// The peer closed its side.
    pub(super) fn ended(&mut self, cx: &mut Context) -> Result<()> {
        if let Some(body) = &mut self.body {
            let closed = body.closed();
            closed.map_err(|error| {
                self.queue.front().filter(|front| matches!(front.sink, Sink::Window)).map_or(error, Exchange::cut_short)
            })?;
            self.settle(cx);
        } else if !self.is_between() {
            return Err(Error::new(Kind::Truncated, "the connection closed inside a response head"));
        } else if !self.queue.is_empty() {
            return Err(Error::new(Kind::Network, "the connection closed without a response"));
        }
        self.over = true;
        Ok(())
    }

    pub(super) fn fail_front(&mut self, error: Error, idled_out: bool, cx: &mut Context) {
        if let Some(mut exchange) = self.queue.pop_front() {
            if self.body.is_none() {
                exchange.forget_landed();
            }
            exchange::fail(exchange, error, idled_out, cx);
        }
    }

    /// Hands all exchanges back unserved.
    pub(super) fn close(&mut self, displaced: bool, cx: &mut Context) {
        self.over = true;
        self.body = None;
        self.asked_bytes = 0;
        for exchange in self.queue.drain(..) {
            exchange::unserved(exchange, displaced, cx);
        }
    }

    /// The exchange whose response comes next or is under way.
    pub(super) fn front(&mut self) -> Result<&mut Exchange> {
        self.queue.front_mut().ok_or_else(|| Error::new(Kind::Protocol, "the server sent bytes without a request"))
    }

    /// Adds bytes to the head under way; returns how many belonged to it.
    fn feed_head(&mut self, bytes: &[u8], cx: &mut Context) -> Result<usize> {
        self.front()?;
        let before = self.head.len();
        let taken = bytes.len().min(RESPONSE_HEAD_BYTES_MAX.saturating_sub(before));
        self.head.extend_from_slice(&bytes[..taken]);
        let len = match parse_head(&self.head)? {
            Parsed::Partial => return Ok(taken),
            Parsed::Interim { len } => {
                self.interim_bytes += len;
                if self.interim_bytes > RESPONSE_HEAD_BYTES_MAX {
                    let cause = format!("more than {RESPONSE_HEAD_BYTES_MAX} bytes of interim responses");
                    return Err(Error::new(Kind::Protocol, cause).with_hint("the server or a proxy is broken"));
                }
                len
            }
            Parsed::Complete { head, len } => {
                self.begin_body(&head, len, cx)?;
                len
            }
        };
        self.head.clear();
        Ok(len - before)
    }
}

/// Lands payload, the last of `landed` bytes so far.
fn put(exchange: &mut Exchange, bytes: &[u8], landed: u64, cx: &mut Context) -> Result<()> {
    match &mut exchange.sink {
        Sink::Window => {
            let taken = exchange.window_mut().put(bytes);
            *cx.copied_bytes += taken as u64;
            if taken < bytes.len() {
                return Err(Error::new(Kind::Mismatch, "the body is longer than the listing promises"));
            }
        }
        Sink::Refusal { text, .. } => {
            let room = REFUSAL_TEXT_BYTES_MAX.saturating_sub(text.len());
            text.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if landed > REFUSAL_BYTES_MAX {
                return Err(exchange.refusal());
            }
        }
    }
    Ok(())
}
