//! The transport trait, and what all transports work on: waiting requests, outcomes and counters.

use crate::conn::{Asked, Context, Exchange, Fault, HeadPredictor, Outcome};
use crate::credential::Signatory;
use crate::objects::Objects;
use fuelrail_base::{Error, Instant};
use fuelrail_io::{Done, Filling, Ring, Window};
use fuelrail_plan::planner::FetchId;
use std::collections::VecDeque;
use std::sync::Arc;

/// Counters of the fetch stage since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FetchStats {
    /// Requests written.
    pub requests: u64,
    /// Connections opened.
    pub connections: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections closed because of an error.
    pub connections_failed: u64,
    /// TLS handshakes that ended well.
    pub tls_handshakes: u64,
    /// TLS handshakes resumed by a ticket of an earlier connection.
    pub tls_resumed: u64,
    /// Payload bytes landed.
    pub landed_bytes: u64,
    /// Payload bytes the CPU copied on the way to their window.
    pub copied_bytes: u64,
    /// Response heads whose length was guessed right.
    pub heads_predicted: u64,
    /// Response heads whose length was guessed wrong.
    pub heads_mispredicted: u64,
}

/// A source of blocks. Every request it takes ends in one outcome, which carries the window back. A transport without second
/// requests or timeouts leaves those methods out.
pub(super) trait Transport {
    /// Starts requests that wait, as far as `wanted` of them at once, or connections with `depth(bytes)` of them, allow. Pushes
    /// all operations that are due.
    fn pump<R: Ring>(&mut self, io: &mut TransportIo<R>, wanted: usize, depth: impl Fn(u64) -> usize);

    /// An operation came back.
    fn done<R: Ring>(&mut self, io: &mut TransportIo<R>, done: Done);

    /// Fails what takes too long. Returns when to check again.
    fn sweep<R: Ring>(&mut self, _: &mut TransportIo<R>) -> Option<Instant> {
        None
    }

    /// Sends a second request for a slow first one. `begin` takes the time when the first was sent and returns the second's memory;
    /// `None` when there is none.
    fn second<R: Ring>(&mut self, _: &mut TransportIo<R>, _: Asked, _depth: usize, _: Option<impl Begin>) -> Second {
        Second::Early
    }

    /// Gives up the first request of a fetch, if its response is under way, so that the rest is requested elsewhere.
    fn cancel<R: Ring>(&mut self, _: &mut TransportIo<R>, _: FetchId) {}

    /// Gives up second requests of a fetch that is over.
    fn cancel_seconds<R: Ring>(&mut self, _: &mut TransportIo<R>, _: FetchId) {}

    /// Ends all requests, at shutdown: operations under way return through the ring.
    fn close<R: Ring>(&mut self, ring: &mut R);

    /// The transport's part of the watchdog's line.
    fn describe(&self, now: Instant) -> String;
}

/// Returns a second request's memory, given the time when the first was sent.
pub(crate) trait Begin: FnOnce(Instant) -> (Filling, Window) {}

impl<F: FnOnce(Instant) -> (Filling, Window)> Begin for F {}

/// What became of a second request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Second {
    Sent,
    /// The server has not started on the first one yet.
    Early,
    /// There is no memory or no connection for it.
    NoRoom,
}

/// What all transports work on.
pub(super) struct Requests {
    pub(super) objects: Arc<Objects>,
    pub(super) signatory: Option<Signatory>,
    pub(super) waiting: VecDeque<Exchange>,
    /// Requests taken by the transport whose outcome was not handed on.
    pub(super) taken: usize,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) stats: FetchStats,
    /// Payload has come since this was last looked at.
    pub(super) progressed: bool,
}

impl Requests {
    pub(super) fn new(objects: Arc<Objects>, signatory: Option<Signatory>) -> Requests {
        Requests {
            signatory,
            objects,
            waiting: VecDeque::with_capacity(256),
            taken: 0,
            outcomes: Vec::with_capacity(256),
            stats: FetchStats::default(),
            progressed: false,
        }
    }

    /// The next request that waits.
    pub(super) fn take(&mut self) -> Option<Exchange> {
        self.taken += usize::from(!self.waiting.is_empty());
        self.waiting.pop_front()
    }

    /// Puts a request back that was taken.
    pub(super) fn put_back(&mut self, exchange: Exchange) {
        self.taken -= 1;
        self.waiting.push_front(exchange);
    }

    /// Ends a request that could not be served.
    pub(super) fn refuse(&mut self, exchange: Exchange, error: Error) {
        self.outcomes.push(Outcome::failed(exchange, Fault::new(error)));
    }

    pub(super) fn outstanding(&self) -> usize {
        self.taken - self.outcomes.len()
    }
}

/// The ring, the time and the requests that a transport works with.
pub(super) struct TransportIo<'a, R> {
    pub(super) ring: &'a mut R,
    pub(super) now: Instant,
    pub(super) requests: &'a mut Requests,
}

impl<R> TransportIo<'_, R> {
    pub(super) fn context<'a>(&'a mut self, predictor: &'a mut HeadPredictor) -> Context<'a> {
        let Requests { outcomes, stats, .. } = self.requests;
        Context { now: self.now, predictor, outcomes, copied_bytes: &mut stats.copied_bytes }
    }
}
