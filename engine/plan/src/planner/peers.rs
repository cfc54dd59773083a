//! Other ranks as a source of blocks: whom to ask, how long one may take, and which is left alone for a while.
//!
//! Only a block's home keeps it, and others ask that; what it does not have it fetches once for all of them: from the rank that was its home
//! in a run of fewer ranks, if that still has it on disk, else from the bucket. A rank that takes too long, by its own round trips (Jacobson,
//! 1988), costs its block one request to the bucket. Owns what is known of each rank. Never knows an address.

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
/// A rank is slow whose answers are in transit for so many times as long as the bucket takes for all, …
const SLOW_TIMES: u32 = 3;
/// … and longer than a busy machine explains.
const SLOW_MIN: Duration = Duration::from_millis(50);
/// Answers before a rank that was never fast is known to be slow.
const ANSWERS_KNOWN: u32 = 64;
/// Former homes are asked for so many blocks before any of them has had one, …
const HOPE_START: u32 = 32;
/// … for so many more behind each that had, …
const HOPE_EARNED: u32 = 8;
/// … up to this many; …
const HOPE_MAX: u32 = 256;
/// … and for one of so many blocks when nothing is hoped for.
const HOPELESS_EVERY: u32 = 64;

/// What is known of one rank.
#[derive(Clone, Copy, Default)]
struct Peer {
    /// Mean and mean deviation of its round trips, once there were any.
    round_trip: Option<(Duration, Duration)>,
    /// Mean time that its answers are in transit, and how many there were, up to those after which it is known.
    transit: Duration,
    answers: u32,
    /// Requests that it has not answered.
    under_way: u32,
    failures: u32,
    /// The request under way is the one that it is tried with behind failures.
    tried: bool,
    away_until: Instant,
}

impl Peer {
    /// Behind a failure it is asked for one block at a time, until it sends one.
    fn may_be_asked(&self, now: Instant) -> bool {
        self.away_until <= now && (self.failures == 0 || self.under_way == 0)
    }

    /// Leaves it alone for a while. Failures at the same time count once.
    fn failed(&mut self, now: Instant) {
        if self.away_until <= now {
            self.away_until = now.after((AWAY_MIN * (1 << self.failures.min(7))).min(AWAY_MAX));
            self.failures += 1;
        }
    }

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
    /// For how many blocks a former home is asked.
    hope: u32,
    /// Blocks for which none was asked.
    hopeless: u32,
    /// Requests under way, by when they have taken too long; some are over.
    due: BinaryHeap<Reverse<(Instant, FetchId)>>,
}

impl Peers {
    pub(super) fn new(homes: Homes) -> Peers {
        let peers = vec![Peer::default(); usize::from(homes.ranks())];
        Peers { homes, peers, hope: HOPE_START, hopeless: 0, due: BinaryHeap::with_capacity(256) }
    }

    /// Whether this rank keeps a block.
    pub(super) fn is_home(&self, block: BlockId) -> bool {
        self.homes.of(block) == self.homes.rank()
    }

    /// The rank that keeps a block.
    pub(super) fn home(&self, block: BlockId) -> u16 {
        self.homes.of(block)
    }

    /// The rank to ask for a block that this one keeps and does not have: its home in a run without this rank, while such ranks have blocks.
    pub(super) fn former(&mut self, block: BlockId) -> Option<u16> {
        let rank = self.homes.second(block)?;
        self.hopeless = if self.hope == 0 { self.hopeless.wrapping_add(1) } else { 0 };
        self.hopeless.is_multiple_of(HOPELESS_EVERY).then_some(rank)
    }

    /// A rank is about to leave, and has said so.
    pub(super) fn leaves(&mut self, rank: u16) {
        self.homes.leaves(rank);
    }

    /// Whether a rank is not to be left alone.
    pub(super) fn may_be_asked(&self, now: Instant, rank: u16) -> bool {
        self.peers[usize::from(rank)].may_be_asked(now)
    }

    /// A former home had a block, or not.
    pub(super) fn moved(&mut self, had: bool) {
        self.hope = if had { (self.hope + HOPE_EARNED).min(HOPE_MAX) } else { self.hope.saturating_sub(1) };
    }

    /// A rank is asked now. The bucket takes `bucket` for a block.
    pub(super) fn asked(&mut self, now: Instant, rank: u16, fetch: FetchId, bucket: Duration) {
        let peer = &mut self.peers[usize::from(rank)];
        peer.tried = peer.failures > 0;
        // Whoever needs the block that it is tried with waits no longer than for a rank that is fast.
        let most = if peer.tried { (bucket * SLOW_TIMES).max(PATIENCE_MIN) } else { PATIENCE_MAX };
        self.due.push(Reverse((now.after(peer.patience().min(most)), fetch)));
        peer.under_way += 1;
    }

    /// A rank has sent a block, so long after it was to be asked, of which so long in transit. The bucket takes `bucket` for one; zero while unknown.
    pub(super) fn landed(&mut self, now: Instant, rank: u16, (took, transit): (Duration, Duration), bucket: Duration) {
        let peer = &mut self.peers[usize::from(rank)];
        peer.under_way -= 1;
        let limit = if bucket.is_zero() { Duration::MAX } else { (bucket * SLOW_TIMES).max(SLOW_MIN) };
        // Of one that just starts, many answers are late at once. Behind a failure one tells.
        let is_known = transit <= limit || peer.answers + 1 >= ANSWERS_KNOWN;
        let anew = peer.failures > 0 || peer.answers < ANSWERS_KNOWN;
        peer.transit = if anew { transit } else { peer.transit - peer.transit / 8 + transit / 8 };
        peer.answers = if is_known { ANSWERS_KNOWN } else { peer.answers + 1 };
        let tried = core::mem::take(&mut peer.tried);
        match peer.answers >= ANSWERS_KNOWN && peer.transit > limit {
            // Others are under way that were sent before this was known.
            true if peer.failures == 0 => peer.failures = 1,
            true if tried => peer.failed(now),
            true => {}
            false => peer.failures = 0,
        }
        peer.round_trip = Some(match peer.round_trip {
            None => (took, took / 2),
            Some((mean, deviation)) => {
                let off = took.abs_diff(mean);
                (mean - mean / 8 + took / 8, deviation - deviation / 4 + off / 4)
            }
        });
    }

    /// A rank did not send a block: it failed or took too long, unless the request was `displaced`.
    pub(super) fn unserved(&mut self, now: Instant, rank: u16, displaced: bool) {
        let peer = &mut self.peers[usize::from(rank)];
        peer.under_way -= 1;
        if !displaced {
            peer.failed(now);
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

    /// The home of a block, if it may be asked at this millisecond.
    fn to_ask(peers: &Peers, block: BlockId, ms: u64) -> Option<u16> {
        let home = peers.home(block);
        peers.may_be_asked(Instant::ZERO.after(Duration::from_millis(ms)), home).then_some(home)
    }

    #[test]
    fn patience_follows_round_trips_and_one_that_fails_is_left_alone_for_a_while_that_doubles() {
        let at = |ms| Instant::ZERO.after(Duration::from_millis(ms));
        let mut peers = Peers::new(Homes::new(0, &[1, 2], &Order::new(9, 1, true)));
        let (theirs, fetch) =
            ((0..).map(block).find(|block| peers.homes.of(*block) == 1).unwrap(), FetchId { place: 1, serial: 1 });
        let answered = |peers: &mut Peers, ms| {
            peers.asked(at(0), 1, fetch, Duration::ZERO);
            peers.landed(at(0), 1, (Duration::from_millis(ms), Duration::ZERO), Duration::ZERO);
            peers.due.clear();
        };
        let failed = |peers: &mut Peers, ms, displaced| {
            peers.asked(at(0), 1, fetch, Duration::ZERO);
            peers.unserved(at(ms), 1, displaced);
            peers.due.clear();
        };
        assert_eq!((peers.is_home(theirs), to_ask(&peers, theirs, 0)), (false, Some(1)));
        peers.asked(at(0), 1, fetch, Duration::ZERO);
        assert_eq!(peers.deadline(), Some(at(2_000)), "nothing is known yet");
        peers.unserved(at(0), 1, true);
        peers.due.clear();
        assert_eq!(to_ask(&peers, theirs, 0), Some(1), "what was displaced says nothing of the rank");
        (0..100).for_each(|_| answered(&mut peers, 8));
        peers.asked(at(0), 1, fetch, Duration::ZERO);
        assert_eq!(peers.deadline(), Some(at(100)));
        assert_eq!((peers.overdue(at(99)), peers.overdue(at(100))), (None, Some(fetch)));
        peers.unserved(at(0), 1, true);
        for _ in 0..30 {
            answered(&mut peers, 100);
            answered(&mut peers, 60);
        }
        peers.asked(at(0), 1, fetch, Duration::ZERO);
        let due = peers.deadline().unwrap();
        assert!((at(180)..at(320)).contains(&due), "{due:?}");
        (0..32).for_each(|_| peers.asked(at(0), 1, fetch, Duration::ZERO));
        let last = peers.due.iter().map(|std::cmp::Reverse((due, _))| *due).max().unwrap();
        assert!((at(450)..at(700)).contains(&last), "it waits for those before it: {last:?}");
        (0..33).for_each(|_| peers.unserved(at(0), 1, true));
        peers.due.clear();
        failed(&mut peers, 0, false);
        failed(&mut peers, 0, false);
        assert_eq!((to_ask(&peers, theirs, 99), to_ask(&peers, theirs, 100)), (None, Some(1)));
        failed(&mut peers, 100, false);
        assert_eq!((to_ask(&peers, theirs, 299), to_ask(&peers, theirs, 300)), (None, Some(1)));
        answered(&mut peers, 1);
        failed(&mut peers, 300, false);
        assert_eq!(to_ask(&peers, theirs, 400), Some(1), "it starts anew");
    }

    #[test]
    fn a_rank_whose_answers_take_longer_than_the_buckets_is_left_alone_and_tried_again_one_block_at_a_time() {
        let (at, ms) = (|ms| Instant::ZERO.after(Duration::from_millis(ms)), Duration::from_millis);
        let mut peers = Peers::new(Homes::new(0, &[1, 2], &Order::new(9, 1, true)));
        let theirs = (0..).map(block).find(|block| peers.homes.of(*block) == 1).unwrap();
        let mut answered = |now: u64, transit: u64, bucket: u64| {
            peers.asked(at(now), 1, FetchId { place: 1, serial: 1 }, ms(bucket));
            let second = to_ask(&peers, theirs, now);
            peers.landed(at(now), 1, (ms(900), ms(transit)), ms(bucket));
            (second, to_ask(&peers, theirs, now))
        };
        let all_well = (Some(1), Some(1));
        for _ in 0..20 {
            assert_eq!(answered(0, 900, 20), all_well, "it starts");
        }
        for _ in 0..40 {
            answered(0, 10, 20);
        }
        assert_eq!(answered(0, 100, 20), all_well, "one late answer is no slow rank");
        assert_eq!(answered(0, 100, 50), all_well, "nor is one that is slow beside a slow bucket");
        (0..100).find(|_| answered(0, 100, 20).0.is_none()).expect("it becomes slow");
        assert_eq!(answered(0, 100, 20), (None, None), "one at a time, and it is still slow");
        assert_eq!(answered(200, 100, 20), (None, None), "it was left alone for a while");
        assert_eq!(answered(550, 10, 20), (None, None), "for twice as long");
        assert_eq!(answered(600, 10, 20), all_well, "it is fast again");
        for _ in 0..20 {
            answered(600, 900, 0);
        }
        assert_eq!(answered(600, 900, 0), all_well, "the bucket is not known");
    }

    #[test]
    fn former_homes_are_asked_while_they_have_blocks_and_now_and_then() {
        let mut peers = Peers::new(Homes::new(0, &[1, 2, 3], &Order::new(9, 1, true)));
        let ours: Vec<_> = (0..).map(block).filter(|block| peers.is_home(*block)).take(1_000).collect();
        let mut asked = |had: &dyn Fn(usize) -> bool| {
            let mut asked = 0;
            for (n, block) in ours.iter().enumerate() {
                if let Some(rank) = peers.former(*block) {
                    assert_eq!(Some(rank), peers.homes.second(*block));
                    peers.moved(had(n));
                    asked += 1;
                }
            }
            asked
        };
        assert_eq!(asked(&|_| false), 32 + (1_000 - 32) / 64);
        assert!(asked(&|_| true) > 900, "after one that has a block");
        assert!((256..300).contains(&asked(&|_| false)));
        assert!(asked(&|n| n < 64 || n % 4 == 0) > 900, "one in four is worth it");
    }
}
