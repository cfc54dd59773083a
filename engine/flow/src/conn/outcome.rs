//! How an exchange ends, and how that is told.
//!
//! Every exchange ends in exactly one outcome, which carries its window home. Decides what of the landed bytes may be
//! kept; never decides whether to try again.

use super::exchange::{Asked, Exchange, Proof, Sink};
use super::predict::HeadPredictor;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_base::{Duration, Error, Instant, Kind, WallTime};
use fuelrail_io::Window;

/// The error of an exchange that failed, the server's wish for a pause, and whether the connection had only idled out.
pub(crate) type Vain = Option<(Error, Option<Duration>, Option<WallTime>, bool)>;

/// How an exchange ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All bytes are in the window.
    Landed { asked: Asked, window: Window, proof: Proof, first_byte: Duration, total: Duration },
    /// This attempt failed; what landed before the fault stays in the window when it can be trusted.
    Failed {
        asked: Asked,
        window: Window,
        proof: Proof,
        error: Error,
        retry_after: Option<Duration>,
        /// The date of a refusal.
        server_time: Option<WallTime>,
        new_bytes: usize,
        /// The server had closed a connection that was idle for long: it says nothing about the object.
        idled_out: bool,
    },
    /// The connection closed before this request's turn; `displaced` when that was our doing, for the one before it.
    Unserved { asked: Asked, window: Window, displaced: bool },
}

impl Outcome {
    /// All bytes of an exchange are in its window, and prove this.
    pub(crate) fn landed(exchange: Exchange, proof: Proof, now: Instant) -> Outcome {
        let first_byte = exchange.first_byte_at.unwrap_or(now).since(exchange.sent_at);
        let (asked, total) = (exchange.asked, now.since(exchange.sent_at));
        Outcome::Landed { asked, window: exchange.into_window(), proof, first_byte, total }
    }

    /// An exchange ended for a reason that no server gave.
    pub(crate) fn failed(exchange: Exchange, error: Error) -> Outcome {
        let (asked, proof, resumed_at) = (exchange.asked, exchange.proof, exchange.resumed_at);
        let window = exchange.into_window();
        let new_bytes = window.filled().saturating_sub(resumed_at);
        let (retry_after, server_time) = (None, None);
        Outcome::Failed { asked, window, proof, error, retry_after, server_time, new_bytes, idled_out: false }
    }

    pub(crate) fn asked(&self) -> &Asked {
        match self {
            Outcome::Landed { asked, .. } | Outcome::Failed { asked, .. } | Outcome::Unserved { asked, .. } => asked,
        }
    }

    /// What was asked, and the window.
    pub(crate) fn into_parts(self) -> (Asked, Window) {
        match self {
            Outcome::Landed { asked, window, .. }
            | Outcome::Failed { asked, window, .. }
            | Outcome::Unserved { asked, window, .. } => (asked, window),
        }
    }

    /// What ended it in vain, apart from its window.
    pub(crate) fn into_vain(self) -> (Vain, Window) {
        match self {
            Outcome::Failed { error, retry_after, server_time, idled_out, window, .. } => {
                (Some((error, retry_after, server_time, idled_out)), window)
            }
            Outcome::Landed { window, .. } | Outcome::Unserved { window, .. } => (None, window),
        }
    }

    /// The same end for another reason, if there is one.
    pub(crate) fn because_of(self, vain: Vain) -> Outcome {
        match (self, vain) {
            (
                Outcome::Failed { asked, window, proof, new_bytes, .. },
                Some((error, retry_after, server_time, idled_out)),
            ) => Outcome::Failed { asked, window, proof, error, retry_after, server_time, new_bytes, idled_out },
            (outcome, _) => outcome,
        }
    }

    /// Why it failed, if the server or the way there is to blame.
    pub(crate) fn failure(&self) -> Option<Kind> {
        match self {
            Outcome::Failed { error, idled_out: false, .. } if error.kind() != Kind::Cancelled => Some(error.kind()),
            _ => None,
        }
    }
}

/// What a connection shares with its shard while it is told something.
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
                let window = exchange.home_window_mut();
                window.fill(window.room());
            }
            let window = exchange.home_window();
            if window.room() > 0 {
                let (got, want) = (window.filled(), window.len());
                Error::new(Kind::Truncated, format!("the body ended at byte {got} of {want}"))
            } else if let Err(damaged) = exchange.check_digest() {
                damaged
            } else {
                return land(exchange, cx);
            }
        }
    };
    fail(exchange, error, false, cx);
}

/// The response ended in a fault.
pub(super) fn fail(mut exchange: Exchange, error: Error, idled_out: bool, cx: &mut Context) {
    let window = exchange.home_window_mut();
    if matches!(error.kind(), Kind::Mismatch | Kind::Changed | Kind::Protocol) {
        window.rewind(0);
    }
    if window.room() == 0 {
        // All payload came before the fault: only the end of its framing is lost, and nothing is left to ask for.
        return land(exchange, cx);
    }
    let new_bytes = window.filled().saturating_sub(exchange.resumed_at);
    let (retry_after_s, server_time) = match exchange.sink {
        Sink::Refusal { retry_after_s, date, .. } => (retry_after_s, date),
        Sink::Window => (None, None),
    };
    let retry_after = retry_after_s.map(|s| Duration::from_secs(u64::from(s)));
    let (asked, proof) = (exchange.asked, exchange.proof);
    let window = exchange.into_window();
    cx.outcomes.push(Outcome::Failed { asked, window, proof, error, retry_after, server_time, new_bytes, idled_out });
}

/// The connection closes before this exchange's response was looked at: nothing that landed for it is known to be good.
pub(super) fn unserved(mut exchange: Exchange, displaced: bool, cx: &mut Context) {
    exchange.forget_landed();
    let asked = exchange.asked;
    cx.outcomes.push(Outcome::Unserved { asked, window: exchange.into_window(), displaced });
}

fn land(exchange: Exchange, cx: &mut Context) {
    let proof = exchange.proof;
    cx.outcomes.push(Outcome::landed(exchange, proof, cx.now));
}
