//! Scatter planning: responses are received straight into their windows. Plans the next receive, and walks what it brought.
//!
//! A receive scatters over head (scratch memory) and body (window) of as many pipelined responses as their predicted
//! head lengths allow. As long as every head ends where it was predicted to, all is in place; at the first that does not,
//! the rest of the receive is gathered and fed through the linear path.

use super::exchange::{Context, Exchange, Sink};
use super::predict::{Guess, HeadPredictor};
use super::responses::Responses;
use arrayvec::ArrayVec;
use fuelrail_base::Result;
use fuelrail_base::limits::{RESPONSE_HEAD_BYTES_MAX, SCATTER_PIECES_MAX};
use fuelrail_io::{Landed, Scatter};
use fuelrail_wire::{Expect, Parsed, parse_head};

/// Receives stop growing over pipelined responses at this many bytes.
const RECEIVE_BYTES_TARGET: usize = 1 << 20;
/// Scratch bytes requested when control bytes of a chunked body or a refusal's text come next.
const CONTROL_BYTES: usize = 1024;
/// Bytes requested at least when nothing is known of the rest of a head.
const PROBE_BYTES_MIN: usize = 64;

/// What a finished receive brought, in stream order.
pub(super) type Pieces = ArrayVec<Piece, SCATTER_PIECES_MAX>;

/// A piece of a finished receive.
#[derive(Clone, Copy)]
pub(super) enum Piece {
    /// Scratch bytes `from..from+got`.
    Head { from: usize, got: usize },
    /// The last `got` bytes of the filled part of the window of exchange `exchange`, as counted before the receive.
    Body { exchange: usize, got: usize },
}

impl Piece {
    fn got(self) -> usize {
        match self {
            Piece::Head { got, .. } | Piece::Body { got, .. } => got,
        }
    }
}

impl Responses {
    /// Plans the next receive, of at least one byte. Moves windows into the scatter, from the front of the queue on without gaps.
    pub(super) fn plan(&mut self, into: &mut Scatter, predictor: &HeadPredictor) {
        match &self.body {
            None => self.plan_responses(into, 0, predictor),
            Some(body) => {
                let in_window = matches!(self.queue[0].sink, Sink::Window);
                if let (Expect::Payload { at_most }, true) = (body.expect(), in_window) {
                    let rest = usize::try_from(at_most).unwrap_or(usize::MAX);
                    let step = if self.by_length { self.pace.step_bytes(rest) } else { 0 };
                    lend(into, &mut self.queue[0], rest - step);
                    if step > 0 {
                        into.be_patient(step);
                        return;
                    }
                }
                if in_window && self.by_length {
                    self.plan_responses(into, 1, predictor);
                } else {
                    // What follows a chunk, a refusal or a body without length is parsed before anything lands.
                    into.push_head(CONTROL_BYTES);
                }
            }
        }
        if into.pieces() == 0 {
            // A head is predicted that would not fit the scratch memory.
            assert!(into.push_head(CONTROL_BYTES), "scratch memory holds a probe");
        }
    }

    /// Extends the scatter over whole responses, from exchange `next` on, as far as heads can be predicted.
    fn plan_responses(&mut self, into: &mut Scatter, next: usize, predictor: &HeadPredictor) {
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
                    lend(into, exchange, usize::MAX);
                    held = 0;
                }
                Guess::Exact(_) | Guess::Probe(_) if into.pieces() > 0 => return,
                Guess::Exact(_) => {
                    into.push_head(CONTROL_BYTES);
                    return;
                }
                Guess::Probe(len) => {
                    into.push_head(len.saturating_sub(held).max(PROBE_BYTES_MIN));
                    return;
                }
            }
        }
    }

    /// Returns the scatter's windows to their exchanges; the pieces that were received.
    pub(super) fn take_back_windows(&mut self, landed: impl Iterator<Item = Landed>) -> Pieces {
        let mut filled = 0;
        let piece = |piece| match piece {
            Landed::Head { from, got, .. } => Piece::Head { from, got },
            Landed::Body { window, got, .. } => {
                self.queue[filled].window = Some(window);
                filled += 1;
                Piece::Body { exchange: filled - 1, got }
            }
        };
        landed.map(piece).collect()
    }

    /// Processes what a receive brought, once all windows are back.
    pub(super) fn walk(&mut self, scratch: &[u8], pieces: &Pieces, cx: &mut Context) -> Result<()> {
        let exchanges = self.queue.len();
        for (i, &piece) in pieces.iter().enumerate() {
            if piece.got() == 0 || self.over {
                break;
            }
            match piece {
                Piece::Body { got, .. } => {
                    let body = self.body.as_mut().expect("a body in place follows its head");
                    body.payload(got as u64);
                    self.settle(cx);
                }
                Piece::Head { from, got } => {
                    let bytes = &scratch[from..from + got];
                    if self.head_in_place(bytes, cx)? {
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

    /// Whether these bytes complete the head of the front exchange exactly, and its body is the one that was requested,
    /// so that body bytes of the same receive already lie where they belong. If so the body is begun.
    fn head_in_place(&mut self, bytes: &[u8], cx: &mut Context) -> Result<bool> {
        let before = self.head.len();
        if self.body.is_some() || before + bytes.len() > RESPONSE_HEAD_BYTES_MAX {
            return Ok(false);
        }
        let asked = self.front()?.asked;
        let parsed = if before == 0 {
            parse_head(bytes)?
        } else {
            self.head.extend_from_slice(bytes);
            parse_head(&self.head)?
        };
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

    /// Collects the bytes of pieces that did not land where they belong, and clears them from the windows.
    fn gather(&mut self, scratch: &[u8], pieces: &[Piece], finished: usize, cx: &mut Context) -> Vec<u8> {
        let mut all = Vec::with_capacity(pieces.iter().map(|p| p.got()).sum());
        for &piece in pieces {
            match piece {
                Piece::Head { from, got } => all.extend_from_slice(&scratch[from..from + got]),
                Piece::Body { exchange, got } => {
                    let window = self.queue[exchange - finished].window_mut();
                    let kept = window.filled() - got;
                    all.extend_from_slice(&window.bytes()[kept..]);
                    window.rewind(kept);
                    *cx.copied_bytes += got as u64;
                }
            }
        }
        all
    }
}

/// Moves the exchange's window into the scatter for at most `rest` bytes.
fn lend(into: &mut Scatter, exchange: &mut Exchange, rest: usize) {
    let window = exchange.window.take().expect("an exchange has its window between receives");
    if let Err(window) = into.push_body(window, rest) {
        exchange.window = Some(window);
    }
}
