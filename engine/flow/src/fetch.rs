//! The fetch stage: requests for blocks, over the transport that the bucket's scheme names.
//!
//! Owns the requests that wait for a place and the outcomes of those that ended. Never decides what to fetch or whether to try again.

use crate::conn::{Asked, Context, Exchange, Fault, HeadPredictor, Outcome};
use crate::credential::{Signatory, judged};
use crate::objects::Objects;
use files::Files;
use fuelrail_base::metrics::Histogram;
use fuelrail_base::{Duration, Error, Instant, WallTime};
use fuelrail_io::{Done, Filling, Ring, Slot, Window};
use fuelrail_plan::brain::FetchId;
use fuelrail_wire::Scheme;
use http::Http;
use std::collections::VecDeque;
use std::sync::Arc;

mod files;
mod http;

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
trait Transport {
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
struct Requests {
    objects: Arc<Objects>,
    signatory: Option<Signatory>,
    waiting: VecDeque<Exchange>,
    /// Requests that the transport has taken and whose outcome was not handed on.
    taken: usize,
    outcomes: Vec<Outcome>,
    stats: FetchStats,
}

impl Requests {
    /// The next request that waits.
    fn take(&mut self) -> Option<Exchange> {
        self.taken += usize::from(!self.waiting.is_empty());
        self.waiting.pop_front()
    }

    /// Puts a request back that was taken.
    fn put_back(&mut self, exchange: Exchange) {
        self.taken -= 1;
        self.waiting.push_front(exchange);
    }

    /// Ends a request that could not be served.
    fn refuse(&mut self, exchange: Exchange, error: Error) {
        self.outcomes.push(Outcome::failed(exchange, Fault::new(error)));
    }

    fn outstanding(&self) -> usize {
        self.taken - self.outcomes.len()
    }
}

/// What a transport is called with.
struct Turn<'a, R> {
    ring: &'a mut R,
    now: Instant,
    requests: &'a mut Requests,
}

impl<R> Turn<'_, R> {
    fn context<'a>(&'a mut self, predictor: &'a mut HeadPredictor) -> Context<'a> {
        let Requests { outcomes, stats, .. } = self.requests;
        Context { now: self.now, predictor, outcomes, copied_bytes: &mut stats.copied_bytes }
    }
}

/// The transport of a run, chosen at start.
enum Source {
    Http(Box<Http>),
    Files(Box<Files>),
}

macro_rules! call {
    ($source:expr, $method:ident($($arg:expr),*)) => {
        match $source {
            Source::Http(http) => http.$method($($arg),*),
            Source::Files(files) => files.$method($($arg),*),
        }
    };
}

/// Methods of the stage that are its transport's.
macro_rules! forward {
    ($(fn $method:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[doc = concat!("See `Transport::", stringify!($method), "`.")]
        pub(crate) fn $method<R: Ring>(&mut self, ring: &mut R, now: Instant, $($arg: $type),*) $(-> $result)? {
            let turn = &mut Turn { ring, now, requests: &mut self.requests };
            call!(&mut self.source, $method(turn $(, $arg)*))
        }
    )*};
}

/// The fetch stage of one shard.
pub(crate) struct FetchStage {
    requests: Requests,
    source: Source,
    /// Time from request to last byte.
    pub get_latency: Histogram,
}

impl FetchStage {
    pub(crate) fn new(objects: Arc<Objects>, stall_after: Duration, scratch: Vec<Slot>) -> FetchStage {
        let source = match objects.endpoint().scheme {
            Scheme::File => Source::Files(Box::new(Files::new())),
            Scheme::Http | Scheme::Https => Source::Http(Box::new(Http::new(&objects, stall_after, scratch))),
        };
        let requests = Requests {
            signatory: objects.signatory(),
            objects,
            waiting: VecDeque::with_capacity(256),
            taken: 0,
            outcomes: Vec::with_capacity(256),
            stats: FetchStats::default(),
        };
        FetchStage { requests, source, get_latency: Histogram::new() }
    }

    /// Takes a request for the missing end of `window`. It waits when there is no place for it.
    pub(crate) fn request(&mut self, asked: Asked, window: Window, now: Instant) {
        self.requests.waiting.push_back(Exchange::new(asked, window, now));
    }

    /// Requests that wait for a place.
    pub(crate) fn waiting(&self) -> usize {
        self.requests.waiting.len()
    }

    /// Requests under way.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.outstanding()
    }

    forward! {
        fn pump(wanted: usize, depth: impl Fn(u64) -> usize);
        fn done(done: Done);
        fn sweep() -> Option<Instant>;
        fn second(asked: Asked, depth: usize, begin: Option<impl Begin>) -> Second;
        fn cancel(fetch: FetchId);
        fn cancel_seconds(fetch: FetchId);
    }

    /// Ends everything, for good.
    pub(crate) fn close<R: Ring>(&mut self, ring: &mut R) {
        call!(&mut self.source, close(ring));
    }

    /// What an error of this stage means, given who asked.
    pub(crate) fn judged(&self, error: Error, server_time: Option<WallTime>) -> Error {
        let Requests { objects, signatory, .. } = &self.requests;
        let error = match objects.go_between() {
            Some(proxy) => proxy.spared(error),
            None => error,
        };
        judged(error, signatory.as_ref().map(|signatory| &**signatory.authority()), server_time)
    }

    /// Something ended since [`outcomes`](FetchStage::outcomes) was called.
    pub(crate) fn has_outcomes(&self) -> bool {
        !self.requests.outcomes.is_empty()
    }

    /// What ended since the last call.
    pub(crate) fn outcomes(&mut self) -> Vec<Outcome> {
        self.requests.taken -= self.requests.outcomes.len();
        core::mem::take(&mut self.requests.outcomes)
    }

    /// Gives an emptied outcome list back, so that its memory is used again.
    pub(crate) fn recycle(&mut self, mut outcomes: Vec<Outcome>) {
        outcomes.clear();
        if self.requests.outcomes.is_empty() {
            self.requests.outcomes = outcomes;
        }
    }

    pub(crate) fn landed(&mut self, bytes: u64, latency: Duration) {
        self.requests.stats.landed_bytes += bytes;
        self.get_latency.record(latency);
    }

    pub(crate) fn stats(&self) -> FetchStats {
        self.requests.stats
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self, now: Instant) -> String {
        let (outstanding, waiting) = (self.outstanding(), self.waiting());
        let transport = call!(&self.source, describe(now));
        format!("fetch: {outstanding} requests outstanding, {waiting} waiting for a place, {transport}")
    }
}
