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
    /// It is in [`Lanes::busy`].
    listed: bool,
}

impl Lane {
    /// Whether nothing is to be done until a request comes.
    fn is_idle(&self) -> bool {
        self.requests.waiting.is_empty() && self.requests.taken == 0 && !self.http.is_due()
    }
}

/// The lanes of one shard, by rank; there is none to the shard's own.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Vec<Option<Lane>>,
    /// Ranks whose lanes are not idle: of a thousand, few are asked at a time. A lane may become idle while it is listed.
    busy: Vec<u16>,
    connections: usize,
}

impl Lanes {
    /// Lanes that share these connections, by their scratch memory. With `kept`, one of each is left for blocks that a rank holds.
    pub(super) fn new(
        objects: &Arc<Objects>,
        links: Vec<Option<PeerLink>>,
        stall_after: Duration,
        (scratch, kept): (Vec<Slot>, bool),
    ) -> Lanes {
        let connections = scratch.len() / links.iter().flatten().count().max(1);
        let fetched_max = connections.saturating_sub(usize::from(kept)).max(1);
        let mut scratch = scratch.into_iter();
        let lane = |(at, link): (usize, Option<PeerLink>)| {
            let PeerLink { server, route } = link?;
            let lane = u16::try_from(at + 1).expect("ranks that keep blocks for each other are below 65 535");
            let scratch = scratch.by_ref().take(connections).collect();
            let mut http = Http::new((server, Some(route), lane), stall_after, scratch);
            http.fetched_max = fetched_max;
            Some(Lane { requests: Requests::new(Arc::clone(objects), None), http, listed: false })
        };
        Lanes { lanes: links.into_iter().enumerate().map(lane).collect(), busy: Vec::new(), connections }
    }

    /// The lane of a rank, which is no longer idle then.
    fn of(&mut self, rank: u16) -> &mut Lane {
        let lane = self.lanes[usize::from(rank)].as_mut().expect("the planner asks other ranks");
        if !core::mem::replace(&mut lane.listed, true) {
            self.busy.push(rank);
        }
        lane
    }

    fn busy(&self) -> impl Iterator<Item = &Lane> {
        self.busy.iter().filter_map(|rank| self.lanes[usize::from(*rank)].as_ref())
    }

    /// Takes a request. One for what is held passes those that the rank may have to fetch first, as their answers may wait for its own.
    pub(super) fn ask(&mut self, rank: u16, asked: Asked, window: Window, now: Instant) {
        let waiting = &mut self.of(rank).requests.waiting;
        let at = match asked.may_be_fetched() {
            true => waiting.len(),
            false => waiting.partition_point(|before| !before.asked.may_be_fetched()),
        };
        waiting.insert(at, Exchange::new(asked, window, now));
    }

    pub(super) fn pump<R: Ring>(&mut self, ring: &mut R, now: Instant) {
        let Lanes { lanes, busy, connections } = self;
        busy.retain(|rank| {
            let Some(lane) = &mut lanes[usize::from(*rank)] else { return false };
            let Lane { requests, http, .. } = lane;
            // A response that waits for the bucket would hold up what is behind it.
            http.pump(&mut TransportIo { ring, now, requests }, *connections, |_| 1);
            lane.listed = !lane.is_idle();
            lane.listed
        });
    }

    /// An operation of the lane with this number, which is one above its rank's, came back.
    pub(super) fn done<R: Ring>(&mut self, ring: &mut R, now: Instant, number: u64, done: Done) {
        let Lane { requests, http, .. } = self.of(number as u16 - 1);
        http.done(&mut TransportIo { ring, now, requests }, done);
    }

    pub(super) fn sweep<R: Ring>(&mut self, ring: &mut R, now: Instant) -> Option<Instant> {
        let Lanes { lanes, busy, .. } = self;
        let swept = busy.iter().filter_map(|rank| {
            let Lane { requests, http, .. } = lanes[usize::from(*rank)].as_mut()?;
            http.sweep(&mut TransportIo { ring, now, requests })
        });
        swept.min()
    }

    /// Gives a request up, if it is not over.
    pub(super) fn recall<R: Ring>(&mut self, ring: &mut R, now: Instant, fetch: FetchId, rank: u16) {
        let Lane { requests, http, .. } = self.of(rank);
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
        self.lanes.iter_mut().flatten().for_each(|lane| lane.http.close(ring));
    }

    pub(super) fn next_outcome(&mut self) -> Option<Outcome> {
        let Lanes { lanes, busy, .. } = self;
        busy.iter().find_map(|rank| {
            let Lane { requests, .. } = lanes[usize::from(*rank)].as_mut()?;
            let outcome = requests.outcomes.pop()?;
            requests.taken -= 1;
            Some(outcome)
        })
    }

    pub(super) fn has_outcomes(&self) -> bool {
        self.busy().any(|lane| !lane.requests.outcomes.is_empty())
    }

    /// Requests that wait for a connection.
    pub(super) fn waiting(&self) -> usize {
        self.busy().map(|lane| lane.requests.waiting.len()).sum()
    }

    /// The lanes' part of the watchdog's line: those that are not idle.
    pub(super) fn describe(&self, now: Instant) -> String {
        let line = |(rank, Lane { requests, http, .. }): (&u16, &Lane)| {
            let (under_way, waiting) = (requests.outstanding(), requests.waiting.len());
            format!("; rank {rank}: {under_way} under way, {waiting} waiting, {}", http.describe(now))
        };
        self.busy.iter().zip(self.busy()).map(line).collect()
    }
}
