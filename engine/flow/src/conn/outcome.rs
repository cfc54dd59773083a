//! How an exchange ends.
//!
//! Every exchange ends in exactly one outcome, which carries its window back. Decides which landed bytes may be kept; never
//! decides whether to retry.

use super::exchange::{Asked, Exchange, Proof, Sink};
use super::predict::HeadPredictor;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::{Duration, Error, Instant, Kind, WallTime};
use fuelrail_io::{Filling, Window};

/// What an exchange was, and how it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub asked: Asked,
    pub window: Window,
    /// What the window is carved from, of a second request.
    pub spare: Option<Filling>,
    pub end: End,
}

/// How an exchange ended.
#[derive(Debug)]
pub(crate) enum End {
    /// All bytes are in the window.
    Landed { proof: Proof, first_byte: Duration, total: Duration },
    /// This attempt failed; what landed before the fault stays in the window when it can be trusted.
    Failed { proof: Proof, new_bytes: usize, fault: Fault },
    /// The connection closed before this request's turn; `displaced` when that was our doing, for the one before it.
    Unserved { displaced: bool },
}

/// What an exchange failed from.
#[derive(Debug)]
pub(crate) struct Fault {
    pub error: Error,
    /// The pause that the server requested.
    pub retry_after: Option<Duration>,
    /// The date of a refusal.
    pub server_time: Option<WallTime>,
    /// The server had closed a connection that was idle for long: it says nothing about the object.
    pub idled_out: bool,
}

impl Fault {
    /// For a reason that no server gave.
    pub(crate) fn new(error: Error) -> Fault {
        Fault { error, retry_after: None, server_time: None, idled_out: false }
    }
}

impl Outcome {
    /// An exchange ended so.
    pub(crate) fn new(exchange: Exchange, end: End) -> Outcome {
        let asked = exchange.asked;
        let (window, spare) = exchange.into_memory();
        Outcome { asked, window, spare, end }
    }

    /// All bytes of an exchange are in its window, and prove this.
    pub(crate) fn landed(exchange: Exchange, proof: Proof, now: Instant) -> Outcome {
        let first_byte = exchange.first_byte_at.unwrap_or(now).since(exchange.sent_at);
        let total = now.since(exchange.sent_at);
        Outcome::new(exchange, End::Landed { proof, first_byte, total })
    }

    /// An exchange failed.
    pub(crate) fn failed(exchange: Exchange, fault: Fault) -> Outcome {
        let new_bytes = exchange.window().filled().saturating_sub(exchange.resumed_at);
        let proof = exchange.proof;
        Outcome::new(exchange, End::Failed { proof, new_bytes, fault })
    }

    /// The same end; where it failed, for what another failed from, if that did.
    pub(crate) fn because_of(mut self, other: End) -> Outcome {
        if let (End::Failed { fault, .. }, End::Failed { fault: other, .. }) = (&mut self.end, other) {
            *fault = other;
        }
        self
    }

    /// Why it failed, if the server or the way there is to blame.
    pub(crate) fn failure(&self) -> Option<Kind> {
        match &self.end {
            End::Failed { fault, .. } if !fault.idled_out => Some(fault.error.kind()).filter(|k| *k != Kind::Cancelled),
            _ => None,
        }
    }
}

/// What a connection borrows from its shard while it handles an event.
pub(crate) struct Context<'a> {
    pub now: Instant,
    pub predictor: &'a mut HeadPredictor,
    pub outcomes: &'a mut Vec<Outcome>,
    pub copied_bytes: &'a mut u64,
}

/// The response has ended as its framing says.
pub(super) fn finish(mut exchange: Exchange, cx: &mut Context) {
    let error = match &exchange.sink {
        Sink::Refusal { .. } => exchange.refusal(),
        Sink::Window => {
            if canary::on(Mistake::FetchTakesShort) {
                let window = exchange.window_mut();
                window.fill(window.room());
            }
            let window = exchange.window();
            if window.room() > 0 {
                let (got, want) = (window.filled(), window.len());
                Error::new(Kind::Truncated, format!("the body ended at byte {got} of {want}"))
            } else {
                return land(exchange, cx);
            }
        }
    };
    fail(exchange, error, false, cx);
}

/// The response ended in a fault.
pub(super) fn fail(mut exchange: Exchange, error: Error, idled_out: bool, cx: &mut Context) {
    let window = exchange.window_mut();
    if matches!(error.kind(), Kind::Mismatch | Kind::Changed | Kind::Protocol) {
        window.rewind(0);
    }
    if window.room() == 0 {
        // All payload came before the fault: only the end of its framing is lost, and nothing is left to request.
        return land(exchange, cx);
    }
    let (retry_after_s, server_time) = match exchange.sink {
        Sink::Refusal { retry_after_s, date, .. } => (retry_after_s, date),
        Sink::Window => (None, None),
    };
    let retry_after = retry_after_s.map(|s| Duration::from_secs(u64::from(s)));
    cx.outcomes.push(Outcome::failed(exchange, Fault { error, retry_after, server_time, idled_out }));
}

/// The connection closes before this exchange's response was looked at: nothing that landed for it is known to be good.
pub(super) fn unserved(mut exchange: Exchange, displaced: bool, cx: &mut Context) {
    exchange.forget_landed();
    cx.outcomes.push(Outcome::new(exchange, End::Unserved { displaced }));
}

/// Every byte has come. It counts, unless the server's checksum says otherwise.
fn land(exchange: Exchange, cx: &mut Context) {
    match exchange.check_digest() {
        Ok(()) => {
            let proof = exchange.proof;
            cx.outcomes.push(Outcome::landed(exchange, proof, cx.now));
        }
        Err(damaged) => fail(exchange, damaged, false, cx),
    }
}
