//! What a transport is, and what all of them work on: the requests that wait, their outcomes and the counters.

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
    /// Those that a ticket of an earlier connection made short.
    pub tls_resumed: u64,
    /// Payload bytes landed.
    pub landed_bytes: u64,
    /// Payload bytes our own code copied on the way to their place.
    pub copied_bytes: u64,
    /// Response heads whose length was guessed right.
    pub heads_predicted: u64,
    /// Response heads whose length was guessed wrong.
    pub heads_mispredicted: u64,
}

/// One way to get blocks. Every request it takes ends in one outcome, which carries the window back. What has no second requests
/// or no patience of its own leaves those methods out.
pub(super) trait Transport {
    /// Starts requests that wait, as far as `wanted` of them at once, or connections with `depth(bytes)` of them, allow. Pushes
    /// all operations that are due.
    fn pump<R: Ring>(&mut self, turn: &mut Turn<R>, wanted: usize, depth: impl Fn(u64) -> usize);

    /// An operation came back.
    fn done<R: Ring>(&mut self, turn: &mut Turn<R>, done: Done);

    /// Fails what takes too long. Returns when it wants to look again.
    fn sweep<R: Ring>(&mut self, _: &mut Turn<R>) -> Option<Instant> {
        None
    }

    /// Sends a second request for what the first is slow with. `begin` gives its memory, told when the first was sent; `None`
    /// when there is none.
    fn second<R: Ring>(&mut self, _: &mut Turn<R>, _: Asked, _depth: usize, _: Option<impl Begin>) -> Second {
        Second::Early
    }

    /// Gives up the first request of a fetch, if it is being answered, so that what is missing is had elsewhere.
    fn cancel<R: Ring>(&mut self, _: &mut Turn<R>, _: FetchId) {}

    /// Gives up second requests of a fetch that is over.
    fn cancel_seconds<R: Ring>(&mut self, _: &mut Turn<R>, _: FetchId) {}

    /// Ends everything, for good: what is under way comes back through the ring.
    fn close<R: Ring>(&mut self, ring: &mut R);

    /// What the watchdog prints.
    fn describe(&self, now: Instant) -> String;
}

/// Gives a second request its memory, told when the first was sent.
pub(crate) trait Begin: FnOnce(Instant) -> (Filling, Window) {}

impl<F: FnOnce(Instant) -> (Filling, Window)> Begin for F {}

/// What became of a second request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Second {
    Sent,
    /// The server has not come to the first one yet.
    Early,
    /// There is no memory or no connection for it.
    NoRoom,
}

/// What all transports work on.
pub(super) struct Requests {
    pub(super) objects: Arc<Objects>,
    pub(super) signatory: Option<Signatory>,
    pub(super) waiting: VecDeque<Exchange>,
    /// Requests that the transport has taken and whose outcome was not handed on.
    pub(super) taken: usize,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) stats: FetchStats,
}

impl Requests {
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

/// What a transport is called with.
pub(super) struct Turn<'a, R> {
    pub(super) ring: &'a mut R,
    pub(super) now: Instant,
    pub(super) requests: &'a mut Requests,
}

impl<R> Turn<'_, R> {
    pub(super) fn context<'a>(&'a mut self, predictor: &'a mut HeadPredictor) -> Context<'a> {
        let Requests { outcomes, stats, .. } = self.requests;
        Context { now: self.now, predictor, outcomes, copied_bytes: &mut stats.copied_bytes }
    }
}
