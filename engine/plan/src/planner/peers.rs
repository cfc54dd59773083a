//! Other ranks as a source of blocks: whom to ask, how long one may take, and which is left alone for a while.
//!
//! Only a block's home keeps it, and others ask that; what it does not have it fetches once for all of them. A rank that takes too long, by
//! its own round trips (Jacobson, 1988), costs its block one request to the bucket. Owns what is known of each rank. Never knows an address.

use super::types::FetchId;
use crate::homes::Homes;
use core::cmp::Reverse;
use fuelrail_base::{BlockId, Duration, Instant};
use std::collections::BinaryHeap;

/// How long a rank of which nothing is known may take, and any rank at most: it may have to fetch the block itself.
const PATIENCE_MAX: Duration = Duration::from_secs(2);
/// How long any rank may take: less would be noise of a busy machine, and look-ahead covers it.
const PATIENCE_MIN: Duration = Duration::from_millis(100);
/// Requests that a rank serves at once, about.
const AT_ONCE: u32 = 8;
/// How long a rank is left alone after its first failure in a row; that doubles, …
const AWAY_MIN: Duration = Duration::from_millis(100);
/// … up to this.
const AWAY_MAX: Duration = Duration::from_secs(10);

/// What is known of one rank.
#[derive(Clone, Copy, Default)]
struct Peer {
    /// Mean and mean deviation of its round trips, once there were any.
    round_trip: Option<(Duration, Duration)>,
    /// Requests that it has not answered.
    under_way: u32,
    failures: u32,
    away_until: Instant,
}

impl Peer {
    /// How long the next request may take: it waits for those before it.
    fn patience(&self) -> Duration {
        let known = self
            .round_trip
            .map(|(mean, deviation)| (mean + deviation * 8 + mean * self.under_way / AT_ONCE).max(PATIENCE_MIN));
        known.map_or(PATIENCE_MAX, |patience| patience.min(PATIENCE_MAX))
    }
}

/// The other ranks, as one shard sees them.
pub(super) struct Peers {
    homes: Homes,
    peers: Vec<Peer>,
    /// Requests under way, by when they have taken too long; some are over.
    due: BinaryHeap<Reverse<(Instant, FetchId)>>,
}

impl Peers {
    pub(super) fn new(homes: Homes) -> Peers {
        let peers = vec![Peer::default(); usize::from(homes.ranks())];
        Peers { homes, peers, due: BinaryHeap::with_capacity(256) }
    }

    /// Whether this rank keeps a block.
    pub(super) fn is_home(&self, block: BlockId) -> bool {
        self.homes.of(block) == self.homes.rank()
    }

    /// The rank to ask for a block, if it is another one and not to be left alone.
    pub(super) fn to_ask(&self, now: Instant, block: BlockId) -> Option<u16> {
        let home = self.homes.of(block);
        (home != self.homes.rank() && self.peers[usize::from(home)].away_until <= now).then_some(home)
    }

    /// A rank is asked now.
    pub(super) fn asked(&mut self, now: Instant, rank: u16, fetch: FetchId) {
        let peer = &mut self.peers[usize::from(rank)];
        self.due.push(Reverse((now.after(peer.patience()), fetch)));
        peer.under_way += 1;
    }

    /// A rank has sent a block, after so long.
    pub(super) fn landed(&mut self, rank: u16, took: Duration) {
        let peer = &mut self.peers[usize::from(rank)];
        (peer.failures, peer.under_way) = (0, peer.under_way - 1);
        peer.round_trip = Some(match peer.round_trip {
            None => (took, took / 2),
            Some((mean, deviation)) => {
                let off = took.abs_diff(mean);
                (mean - mean / 8 + took / 8, deviation - deviation / 4 + off / 4)
            }
        });
    }

    /// A rank did not send a block: it failed or took too long, unless the request was `displaced`. Failures at the same time count once.
    pub(super) fn unserved(&mut self, now: Instant, rank: u16, displaced: bool) {
        let peer = &mut self.peers[usize::from(rank)];
        peer.under_way -= 1;
        if !displaced && peer.away_until <= now {
            peer.away_until = now.after((AWAY_MIN * (1 << peer.failures.min(7))).min(AWAY_MAX));
            peer.failures += 1;
        }
    }

    /// The next request that has taken too long, if it is not over.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<FetchId> {
        let &Reverse((due, fetch)) = self.due.peek()?;
        (due <= now).then(|| {
            self.due.pop();
            fetch
        })
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Order;
    use fuelrail_base::SampleId;

    fn block(sample: u64) -> BlockId {
        BlockId { sample: SampleId(sample), index: (sample % 3) as u32 }
    }

    #[test]
    fn patience_follows_round_trips_and_one_that_fails_is_left_alone_for_a_while_that_doubles() {
        let at = |ms| Instant::ZERO.after(Duration::from_millis(ms));
        let mut peers = Peers::new(Homes::new((0, 2), &Order::new(9, 1, true)));
        let (theirs, fetch) =
            ((0..).map(block).find(|block| peers.homes.of(*block) == 1).unwrap(), FetchId { place: 1, serial: 1 });
        let answered = |peers: &mut Peers, ms| {
            peers.asked(at(0), 1, fetch);
            peers.landed(1, Duration::from_millis(ms));
            peers.due.clear();
        };
        let failed = |peers: &mut Peers, ms, displaced| {
            peers.asked(at(0), 1, fetch);
            peers.unserved(at(ms), 1, displaced);
            peers.due.clear();
        };
        assert_eq!((peers.is_home(theirs), peers.to_ask(at(0), theirs)), (false, Some(1)));
        peers.asked(at(0), 1, fetch);
        assert_eq!(peers.deadline(), Some(at(2_000)), "nothing is known yet");
        peers.unserved(at(0), 1, true);
        peers.due.clear();
        assert_eq!(peers.to_ask(at(0), theirs), Some(1), "what was displaced says nothing of the rank");
        (0..100).for_each(|_| answered(&mut peers, 8));
        peers.asked(at(0), 1, fetch);
        assert_eq!(peers.deadline(), Some(at(100)));
        assert_eq!((peers.overdue(at(99)), peers.overdue(at(100))), (None, Some(fetch)));
        peers.unserved(at(0), 1, true);
        for _ in 0..30 {
            answered(&mut peers, 100);
            answered(&mut peers, 60);
        }
        peers.asked(at(0), 1, fetch);
        let due = peers.deadline().unwrap();
        assert!((at(180)..at(320)).contains(&due), "{due:?}");
        (0..32).for_each(|_| peers.asked(at(0), 1, fetch));
        let last = peers.due.iter().map(|std::cmp::Reverse((due, _))| *due).max().unwrap();
        assert!((at(450)..at(700)).contains(&last), "it waits for those before it: {last:?}");
        (0..33).for_each(|_| peers.unserved(at(0), 1, true));
        peers.due.clear();
        failed(&mut peers, 0, false);
        failed(&mut peers, 0, false);
        assert_eq!((peers.to_ask(at(99), theirs), peers.to_ask(at(100), theirs)), (None, Some(1)));
        failed(&mut peers, 100, false);
        assert_eq!((peers.to_ask(at(299), theirs), peers.to_ask(at(300), theirs)), (None, Some(1)));
        answered(&mut peers, 1);
        failed(&mut peers, 300, false);
        assert_eq!(peers.to_ask(at(400), theirs), Some(1), "it starts anew");
    }
}
