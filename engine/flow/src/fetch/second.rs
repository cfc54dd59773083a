//! Requests sent a second time: on which connection, and what becomes of the one that lost.

use super::FetchStage;
use crate::conn::{Asked, Conn, Context, Exchange, State};
use fuelrail_base::{Error, Instant, Kind};
use fuelrail_io::{Filling, Ring, Window};
use fuelrail_plan::brain::FetchId;

/// An answer nobody waits for is read to its end when it is no longer than this: a new connection costs more.
const DRAIN_BYTES_MAX: u64 = 256 << 10;

impl FetchStage {
    /// The connection whose next answer is this fetch's, and when it was asked.
    pub(crate) fn front(&self, fetch: FetchId) -> Option<(usize, Instant)> {
        self.conns.iter().filter(|(_, conn)| conn.state != State::Closing).find_map(|(at, conn)| {
            let front = conn.front().filter(|front| front.asked.fetch == fetch && !front.asked.second)?;
            Some((at, front.sent_at))
        })
    }

    /// A connection for the second request of what `first` is slow with: an idle one, else a new one, else the least busy.
    /// Where the bucket has several addresses, rather one to another.
    pub(crate) fn rival<R: Ring>(&mut self, ring: &mut R, now: Instant, first: usize, depth: usize) -> Option<usize> {
        let slow = self.conns[first].addr;
        let best = self
            .conns
            .iter()
            .filter(|(at, conn)| *at != first && conn.takes_requests() && conn.queued() < depth)
            .min_by_key(|(_, conn)| (conn.queued(), conn.addr == slow, conn.outstanding_bytes()))
            .map(|(at, conn)| (at, conn.queued()));
        match best {
            Some((at, 0)) => Some(at),
            _ => self.open(ring, now, Some(slow)).or(best.map(|(at, _)| at)),
        }
    }

    /// Sends the second request there, against the one that `first` is slow with.
    pub(crate) fn send_second(
        &mut self,
        (at, first): (usize, usize),
        asked: Asked,
        (spare, window): (Filling, Window),
        now: Instant,
    ) {
        self.conns[first].set_hedged();
        // Nothing shall stand behind a second request either: it may be slow, too.
        let (spare, hedged) = (Some(spare), true);
        self.send_request(at, Exchange { spare, hedged, ..Exchange::new(asked, window, now) });
    }

    /// Closes a connection because what it is slow with is had elsewhere: its window comes home when its operations have.
    pub(crate) fn give_up<R: Ring>(&mut self, ring: &mut R, now: Instant, at: usize) {
        let error = Error::new(Kind::Cancelled, "it took too long, and was asked for elsewhere");
        let mut cx = Context {
            now,
            predictor: &mut self.predictor,
            outcomes: &mut self.outcomes,
            copied_bytes: &mut self.stats.copied_bytes,
        };
        self.conns[at].fail(error, &mut cx);
        self.after(ring, at);
    }

    /// Second requests of this fetch are waited for no more: they may end if they are short, else their connections are closed.
    pub(crate) fn lose<R: Ring>(&mut self, ring: &mut R, now: Instant, fetch: FetchId) {
        let lost = |conn: &Conn| {
            let front = conn.front().map(|front| front.asked);
            let long = |asked: Asked| asked.fetch == fetch && asked.second && asked.len > DRAIN_BYTES_MAX;
            conn.state != State::Closing && conn.queued() == 1 && front.is_some_and(long)
        };
        while let Some((at, _)) = self.conns.iter().find(|(_, conn)| lost(conn)) {
            self.give_up(ring, now, at);
        }
    }
}
