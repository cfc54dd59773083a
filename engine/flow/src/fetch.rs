//! The fetch stage: requests for blocks, over the transport that the bucket's scheme names.
//!
//! Owns the requests that wait for a connection and the outcomes of those that ended. Never decides what to fetch or retry.

use crate::conn::{Asked, Exchange, Outcome};
use crate::credential::judged;
use crate::objects::Objects;
use crate::peers::PeerLink;
use files::Files;
use fuelrail_base::metrics::Histogram;
use fuelrail_base::{Duration, Error, Instant, WallTime};
use fuelrail_io::{Done, Ring, Slot, Window};
use fuelrail_plan::planner::FetchId;
use fuelrail_wire::Scheme;
use http::{Http, LANE_BITS};
use peers::Lanes;
use std::sync::Arc;
use transport::{Begin, Requests, Transport, TransportIo};

pub use transport::FetchStats;
pub(crate) use transport::Second;

mod files;
mod http;
mod peers;
mod transport;

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
            let io = &mut TransportIo { ring, now, requests: &mut self.requests };
            call!(&mut self.source, $method(io $(, $arg)*))
        }
    )*};
}

/// What requests to the bucket have failed from since a block came from it.
struct Trouble {
    latest: Error,
    at: Instant,
    times: u64,
}

/// The fetch stage of one shard.
pub(crate) struct FetchStage {
    requests: Requests,
    source: Source,
    peers: Lanes,
    trouble: Option<Trouble>,
    /// Time from request to last byte.
    pub get_latency: Histogram,
}

impl FetchStage {
    pub(crate) fn new(objects: Arc<Objects>, stall_after: Duration, scratch: Vec<Slot>) -> FetchStage {
        let source = match objects.endpoint().scheme {
            Scheme::File => Source::Files(Box::new(Files::new())),
            Scheme::Http | Scheme::Https => {
                Source::Http(Box::new(Http::new((objects.server().clone(), None, 0), stall_after, scratch)))
            }
        };
        let requests = Requests::new(Arc::clone(&objects), objects.signatory());
        FetchStage { requests, source, peers: Lanes::default(), trouble: None, get_latency: Histogram::new() }
    }

    /// The same, with connections to other ranks, too. With `kept`, one to each is left for blocks that it holds.
    pub(crate) fn with_peers(
        self,
        links: Vec<Option<PeerLink>>,
        stall_after: Duration,
        (scratch, kept): (Vec<Slot>, bool),
    ) -> FetchStage {
        FetchStage { peers: Lanes::new(&self.requests.objects, links, stall_after, (scratch, kept)), ..self }
    }

    /// Takes a request for the missing end of `window`. It waits until a connection is free.
    pub(crate) fn request(&mut self, asked: Asked, window: Window, now: Instant) {
        self.requests.waiting.push_back(Exchange::new(asked, window, now));
    }

    /// Requests that wait for a connection.
    pub(crate) fn waiting(&self) -> usize {
        self.requests.waiting.len() + self.peers.waiting()
    }

    /// Requests under way.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.outstanding()
    }

    /// Asks another rank for a block.
    pub(crate) fn ask_peer(&mut self, rank: u16, asked: Asked, window: Window, now: Instant) {
        self.peers.ask(rank, asked, window, now);
    }

    /// Gives up a request to another rank, if it is not over.
    pub(crate) fn recall<R: Ring>(&mut self, ring: &mut R, now: Instant, fetch: FetchId, rank: u16) {
        self.peers.recall(ring, now, fetch, rank);
    }

    /// The end of a request to another rank.
    pub(crate) fn next_peer_outcome(&mut self) -> Option<Outcome> {
        self.peers.next_outcome()
    }

    /// Sends what is due, over at most so many connections to the bucket.
    pub(crate) fn pump<R: Ring>(&mut self, ring: &mut R, now: Instant, wanted: usize, depth: impl Fn(u64) -> usize) {
        self.peers.pump(ring, now);
        let io = &mut TransportIo { ring, now, requests: &mut self.requests };
        call!(&mut self.source, pump(io, wanted, depth));
    }

    /// An operation came back.
    pub(crate) fn done<R: Ring>(&mut self, ring: &mut R, now: Instant, done: Done) {
        match done.token >> LANE_BITS {
            0 => {
                let io = &mut TransportIo { ring, now, requests: &mut self.requests };
                call!(&mut self.source, done(io, done));
            }
            lane => self.peers.done(ring, now, lane, done),
        }
    }

    /// Fails what takes too long. Returns when to check again.
    pub(crate) fn sweep<R: Ring>(&mut self, ring: &mut R, now: Instant) -> Option<Instant> {
        let peers = self.peers.sweep(ring, now);
        let io = &mut TransportIo { ring, now, requests: &mut self.requests };
        let source = call!(&mut self.source, sweep(io));
        [source, peers].into_iter().flatten().min()
    }

    forward! {
        fn second(asked: Asked, depth: usize, begin: Option<impl Begin>) -> Second;
        fn cancel(fetch: FetchId);
        fn cancel_seconds(fetch: FetchId);
    }

    /// Ends all requests and connections, at shutdown.
    pub(crate) fn close<R: Ring>(&mut self, ring: &mut R) {
        self.peers.close(ring);
        call!(&mut self.source, close(ring));
    }

    /// What an error of this stage means, given the credentials of its request.
    pub(crate) fn judged(&self, error: Error, server_time: Option<WallTime>) -> Error {
        let Requests { objects, signatory, .. } = &self.requests;
        let error = match objects.server().go_between() {
            Some(proxy) => proxy.spared(error),
            None => error,
        };
        judged(error, signatory.as_ref().map(|signatory| &**signatory.authority()), server_time)
    }

    /// Takes note of a failed request, for the watchdog.
    pub(crate) fn failed(&mut self, error: &Error, now: Instant) {
        let times = self.trouble.as_ref().map_or(0, |trouble| trouble.times) + 1;
        self.trouble = Some(Trouble { latest: error.clone(), at: now, times });
    }

    /// Payload has come from the bucket since the last call.
    pub(crate) fn progressed(&mut self) -> bool {
        core::mem::take(&mut self.requests.progressed)
    }

    /// A request ended since [`outcomes`](FetchStage::outcomes) was called.
    pub(crate) fn has_outcomes(&self) -> bool {
        !self.requests.outcomes.is_empty() || self.peers.has_outcomes()
    }

    /// Outcomes since the last call.
    pub(crate) fn outcomes(&mut self) -> Vec<Outcome> {
        self.requests.taken -= self.requests.outcomes.len();
        core::mem::take(&mut self.requests.outcomes)
    }

    /// Takes back an emptied outcome list, to use its memory again.
    pub(crate) fn recycle(&mut self, mut outcomes: Vec<Outcome>) {
        outcomes.clear();
        if self.requests.outcomes.is_empty() {
            self.requests.outcomes = outcomes;
        }
    }

    pub(crate) fn landed(&mut self, bytes: u64, latency: Duration) {
        self.requests.stats.landed_bytes += bytes;
        self.trouble = None;
        self.get_latency.record(latency);
    }

    pub(crate) fn stats(&self) -> FetchStats {
        self.requests.stats
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self, now: Instant) -> String {
        let (outstanding, waiting) = (self.outstanding(), self.waiting());
        let transport = call!(&self.source, describe(now));
        let trouble = self.trouble.as_ref().map_or(String::new(), |trouble| {
            let Trouble { latest, at, times } = trouble;
            let server = self.requests.objects.endpoint().authority();
            let (cause, age) = (latest.cause(), now.since(*at).as_secs_f64());
            format!(", last error of {server}: {cause}, {age:.1} s ago, {times} since a block came")
        });
        let peers = self.peers.describe(now);
        format!("fetch: {outstanding} requests outstanding, {waiting} waiting to be sent, {transport}{trouble}{peers}")
    }
}
