//! Requests to other ranks: a lane for each, which is HTTP as the bucket's is.
//!
//! Owns the connections, and the requests that wait for one. Never decides whom to ask, or how long to wait.

use super::http::Http;
use super::transport::{Requests, Transport, TransportIo};
use crate::conn::{Asked, End, Exchange, Outcome};
use crate::objects::Objects;
use crate::peers::PeerLink;
use fuelrail_base::{Duration, Instant};
use fuelrail_io::{Done, Ring, Slot, Window};
use fuelrail_plan::planner::FetchId;
use std::sync::Arc;

struct Lane {
    requests: Requests,
    http: Http,
}

/// The lanes of one shard, by rank; there is none to the shard's own.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Option<Lane>>,
    connections: usize,
}

impl Lanes {
    /// Lanes that share these connections, by their scratch memory.
    pub(super) fn new(
        objects: &Arc<Objects>,
        links: Vec<Option<PeerLink>>,
        stall_after: Duration,
        scratch: Vec<Slot>,
    ) -> Lanes {
        let connections = scratch.len() / links.iter().flatten().count().max(1);
        let mut scratch = scratch.into_iter();
        let lane = |(at, link): (usize, Option<PeerLink>)| {
            let PeerLink { server, route } = link?;
            let lane = u16::try_from(at + 1).expect("ranks that keep blocks for each other are below 65 535");
            let scratch = scratch.by_ref().take(connections).collect();
            let http = Http::new((server, Some(route), lane), stall_after, scratch);
            Some(Lane { requests: Requests::new(Arc::clone(objects), None), http })
        };
        Lanes { lanes: links.into_iter().enumerate().map(lane).collect(), connections }
    }

    fn of(&mut self, rank: u16) -> &mut Lane {
        self.lanes[usize::from(rank)].as_mut().expect("the planner asks other ranks")
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().flatten()
    }

    /// Asks a rank for the block that `window` is for.
    pub(super) fn ask(&mut self, rank: u16, asked: Asked, window: Window, now: Instant) {
        self.of(rank).requests.waiting.push_back(Exchange::new(asked, window, now));
    }

    pub(super) fn pump<R: Ring>(&mut self, ring: &mut R, now: Instant) {
        let connections = self.connections;
        for Lane { requests, http } in self.all() {
            // A response that waits for the bucket would hold up what is behind it.
            http.pump(&mut TransportIo { ring, now, requests }, connections, |_| 1);
        }
    }

    /// An operation of the lane with this number, which is one above its rank's, came back.
    pub(super) fn done<R: Ring>(&mut self, ring: &mut R, now: Instant, number: u64, done: Done) {
        let Lane { requests, http } = self.of(number as u16 - 1);
        http.done(&mut TransportIo { ring, now, requests }, done);
    }

    pub(super) fn sweep<R: Ring>(&mut self, ring: &mut R, now: Instant) -> Option<Instant> {
        let swept = self.all().map(|Lane { requests, http }| http.sweep(&mut TransportIo { ring, now, requests }));
        swept.flatten().min()
    }

    /// Gives a request up, if it is not over.
    pub(super) fn recall<R: Ring>(&mut self, ring: &mut R, now: Instant, fetch: FetchId, rank: u16) {
        let Lane { requests, http } = self.of(rank);
        match requests.waiting.iter().position(|waiting| waiting.asked.fetch == fetch) {
            Some(at) => {
                let exchange = requests.waiting.remove(at).expect("it was just seen");
                requests.taken += 1;
                // That it had to wait here says nothing of the rank.
                requests.outcomes.push(Outcome::new(exchange, End::Unserved { displaced: true }));
            }
            None => http.cancel(&mut TransportIo { ring, now, requests }, fetch),
        }
    }

    pub(super) fn close<R: Ring>(&mut self, ring: &mut R) {
        self.all().for_each(|lane| lane.http.close(ring));
    }

    pub(super) fn next_outcome(&mut self) -> Option<Outcome> {
        self.all().find_map(|Lane { requests, .. }| {
            let outcome = requests.outcomes.pop()?;
            requests.taken -= 1;
            Some(outcome)
        })
    }

    pub(super) fn has_outcomes(&self) -> bool {
        self.lanes.iter().flatten().any(|lane| !lane.requests.outcomes.is_empty())
    }

    /// Requests that wait for a connection.
    pub(super) fn waiting(&self) -> usize {
        self.lanes.iter().flatten().map(|lane| lane.requests.waiting.len()).sum()
    }

    /// The lanes' part of the watchdog's line; nothing where there are none.
    pub(super) fn describe(&self, now: Instant) -> String {
        let line = |(rank, lane): (usize, &Option<Lane>)| {
            let Lane { requests, http } = lane.as_ref()?;
            let (under_way, waiting) = (requests.outstanding(), requests.waiting.len());
            Some(format!("; rank {rank}: {under_way} under way, {waiting} waiting, {}", http.describe(now)))
        };
        self.lanes.iter().enumerate().filter_map(line).collect()
    }
}
