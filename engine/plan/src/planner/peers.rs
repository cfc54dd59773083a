//! Other ranks as a source of blocks: which one to request a block from, how long it may take, and when it counts as failed.
//!
//! Only a block's home keeps it, and others ask that; what it does not have it fetches once for all of them: from the rank that was its home
//! in a run before, if that still has it on disk, else from the bucket. A rank that takes too long, by its own round trips (Jacobson,
//! 1988), costs its block one request to the bucket. Owns what is known of each rank. Never knows an address.

use super::types::FetchId;
use crate::health::Status;
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
/// A rank is slow whose answers are in transit for so many times as long as the bucket takes for all, …
const SLOW_TIMES: u32 = 3;
/// … and longer than a busy machine explains.
const SLOW_MIN: Duration = Duration::from_millis(50);
/// Answers before a rank that was never fast is known to be slow.
const ANSWERS_KNOWN: u32 = 64;
/// Misses that requests to former homes may have. A request misses when the rank does not have the block.
const FORMER: MissBudget = MissBudget { left: 32, per_hit: 8, most: 256, skipped: 0 };
/// Misses that requests to homes may have. One misses when the home fetches the block and does not keep it, or cannot fetch it. Homes are
/// asked as long as more than one request in 129 hits, so that the bucket is asked for less than a hundredth more than the caches lack.
const HOMES: MissBudget = MissBudget { left: 256, per_hit: 128, most: 1024, skipped: 0 };
/// Of the blocks that come when no miss is left, one in so many is requested.
const SAMPLED_EVERY: u32 = 64;

/// Mean and mean deviation of round trips.
type RoundTrip = (Duration, Duration);

/// What is known of one rank.
#[derive(Clone, Copy, Default)]
struct Peer {
    /// Its round trips, once there were any.
    round_trip: Option<RoundTrip>,
    /// Mean time that its answers are in transit, and how many there were, up to those after which it is known.
    transit: Duration,
    answers: u32,
    /// Requests that it has not answered.
    under_way: u32,
}

impl Peer {
    /// How long the next request should take: it waits for those before it. One that has not answered yet takes as long as the `others`.
    fn patience(&self, others: Option<RoundTrip>) -> Duration {
        let known = self.round_trip.or(others);
        known.map_or(PATIENCE_MAX, |(mean, deviation)| mean + deviation * 8 + mean * self.under_way / AT_ONCE)
    }
}

/// Mean and mean deviation with one more.
fn updated(known: Option<RoundTrip>, took: Duration) -> RoundTrip {
    match known {
        None => (took, took / 2),
        Some((mean, deviation)) => (mean - mean / 8 + took / 8, deviation - deviation / 4 + took.abs_diff(mean) / 4),
    }
}

/// How long a rank's answers may be in transit, where the bucket takes so long for a block; without a limit while that is not known.
fn limit(bucket: Duration) -> Duration {
    if bucket.is_zero() { Duration::MAX } else { (bucket * SLOW_TIMES).max(SLOW_MIN) }
}

/// A budget of misses that hits refill, as retry budgets have it: where nearly all requests would miss, few are sent.
struct MissBudget {
    left: u32,
    /// What a hit adds, …
    per_hit: u32,
    /// … up to this many.
    most: u32,
    /// Blocks since no miss is left.
    skipped: u32,
}

impl MissBudget {
    /// Whether the next block is requested.
    fn allows(&mut self) -> bool {
        self.skipped = if self.left == 0 { self.skipped.wrapping_add(1) } else { 0 };
        self.skipped.is_multiple_of(SAMPLED_EVERY)
    }

    fn record(&mut self, hit: bool) {
        self.left = if hit { (self.left + self.per_hit).min(self.most) } else { self.left.saturating_sub(1) };
    }
}

/// The other ranks, as one shard sees them.
pub(super) struct Peers {
    homes: Homes,
    peers: Vec<Peer>,
    /// Round trips of all of them.
    round_trips: Option<RoundTrip>,
    former_misses: MissBudget,
    home_misses: MissBudget,
    /// The latest epoch in which homes were asked.
    epoch: u64,
    /// Requests under way, by when they have taken too long; some are over.
    due: BinaryHeap<Reverse<(Instant, FetchId)>>,
    /// When the caller had last not run for a while.
    interrupted_at: Instant,
}

impl Peers {
    pub(super) fn new(homes: Homes) -> Peers {
        let peers = vec![Peer::default(); usize::from(homes.ranks())];
        Peers {
            homes,
            peers,
            round_trips: None,
            former_misses: FORMER,
            home_misses: HOMES,
            epoch: 0,
            due: BinaryHeap::with_capacity(256),
            interrupted_at: Instant::ZERO,
        }
    }

    /// Whether this rank keeps a block.
    pub(super) fn is_home(&self, block: BlockId) -> bool {
        self.homes.of(block) == self.homes.rank()
    }

    /// The rank to ask for a block that this one keeps and does not have: its home in a run before, while such ranks have blocks.
    pub(super) fn former(&mut self, block: BlockId) -> Option<u16> {
        let rank = self.homes.second(block)?;
        self.former_misses.allows().then_some(rank)
    }

    /// The rank to ask for a block that another one keeps, for its use in this epoch. `None` while homes only pass on what
    /// the bucket sends them: the data set is far larger than all caches.
    pub(super) fn home_to_ask(&mut self, block: BlockId, epoch: u64) -> Option<u16> {
        // At an epoch's edge, requests of both come in turn.
        if epoch > self.epoch {
            (self.epoch, self.home_misses) = (epoch, HOMES);
        }
        self.home_misses.allows().then(|| self.homes.of(block))
    }

    /// A rank is about to leave, and has said so.
    pub(super) fn leaves(&mut self, rank: u16) {
        self.homes.leaves(rank);
    }

    /// Whether a rank is asked for another block.
    pub(super) fn may_be_asked(&self, rank: u16) -> bool {
        match self.homes.health().of(rank) {
            Status::Up => true,
            Status::HalfOpen => self.peers[usize::from(rank)].under_way == 0,
            Status::Down => false,
        }
    }

    /// A former home had a block, or not.
    pub(super) fn moved(&mut self, had: bool) {
        self.former_misses.record(had);
    }

    /// A home had a block or keeps it now, or not.
    pub(super) fn kept(&mut self, kept: bool) {
        self.home_misses.record(kept);
    }

    /// A rank is asked now. The bucket takes `bucket` for a block.
    pub(super) fn asked(&mut self, now: Instant, rank: u16, fetch: FetchId, bucket: Duration) {
        let peer = &mut self.peers[usize::from(rank)];
        // It may have what it sent so far, and have to fetch this.
        let least = (bucket * SLOW_TIMES).max(PATIENCE_MIN);
        let patience = match self.homes.health().of(rank) {
            Status::Up => peer.patience(self.round_trips).max(least).min(PATIENCE_MAX),
            // Whoever needs the block that it is tried with waits no longer than for a rank that is fast.
            _ => least,
        };
        self.due.push(Reverse((now.after(patience), fetch)));
        peer.under_way += 1;
    }

    /// A rank has sent a block that it was to be asked for then, so long after, of which so long in transit. The bucket takes `bucket` for one;
    /// zero while unknown.
    pub(super) fn landed(
        &mut self,
        rank: u16,
        asked: Instant,
        (took, transit): (Duration, Duration),
        bucket: Duration,
    ) {
        let (peer, health) = (&mut self.peers[usize::from(rank)], self.homes.health());
        peer.under_way -= 1;
        if asked < self.interrupted_at {
            return;
        }
        let limit = limit(bucket);
        // Of one that just starts, many answers are late at once. On trial one tells.
        let is_known = transit <= limit || peer.answers + 1 >= ANSWERS_KNOWN;
        let anew = health.of(rank) == Status::HalfOpen || peer.answers < ANSWERS_KNOWN;
        peer.transit = if anew { transit } else { peer.transit - peer.transit / 8 + transit / 8 };
        peer.answers = if is_known { ANSWERS_KNOWN } else { peer.answers + 1 };
        if peer.answers >= ANSWERS_KNOWN && peer.transit > limit {
            health.failed(rank, limit);
        } else {
            health.sent(rank);
        }
        peer.round_trip = Some(updated(peer.round_trip, took));
        self.round_trips = Some(updated(self.round_trips, took));
    }

    /// A rank did not send a block that it was asked for then: it failed or took too long, unless the request was `displaced`. The bucket takes
    /// `bucket` for one.
    pub(super) fn unserved(&mut self, rank: u16, asked: Instant, displaced: bool, bucket: Duration) {
        self.peers[usize::from(rank)].under_way -= 1;
        if !displaced && asked >= self.interrupted_at {
            self.homes.health().failed(rank, limit(bucket));
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

    /// The caller did not run for a while before now: how long answers took that were due meanwhile tells nothing of their ranks.
    pub(super) fn interrupted(&mut self, now: Instant) {
        self.interrupted_at = now;
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
    use std::sync::Arc;

    fn block(sample: u64) -> BlockId {
        BlockId { sample: SampleId(sample), index: (sample % 3) as u32 }
    }

    /// Two ranks, as the first sees the second, and a block that the second keeps.
    fn pair() -> (Peers, BlockId) {
        let peers = Peers::new(Homes::new(0, &[1, 2], &Order::new(9, 1, true)));
        let theirs = (0..).map(block).find(|block| peers.homes.of(*block) == 1).unwrap();
        (peers, theirs)
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO.after(Duration::from_millis(ms))
    }

    const FETCH: FetchId = FetchId { place: 1, serial: 1 };

    #[test]
    fn patience_follows_round_trips_and_one_that_fails_is_not_asked_until_it_answers() {
        let (mut peers, theirs) = pair();
        let health = Arc::clone(peers.homes.health());
        let answered = |peers: &mut Peers, ms| {
            peers.asked(at(0), 1, FETCH, Duration::ZERO);
            peers.landed(1, at(0), (Duration::from_millis(ms), Duration::ZERO), Duration::ZERO);
            peers.due.clear();
        };
        let ends = |peers: &mut Peers, displaced| {
            peers.unserved(1, at(0), displaced, Duration::from_millis(30));
            peers.due.clear();
        };
        assert_eq!(
            (peers.is_home(theirs), peers.home_to_ask(theirs, 0), peers.may_be_asked(1)),
            (false, Some(1), true)
        );
        peers.asked(at(0), 1, FETCH, Duration::ZERO);
        assert_eq!(peers.deadline(), Some(at(2_000)), "nothing is known yet");
        ends(&mut peers, true);
        assert!(peers.may_be_asked(1), "what was displaced says nothing of the rank");
        (0..100).for_each(|_| answered(&mut peers, 8));
        peers.asked(at(0), 1, FETCH, Duration::ZERO);
        assert_eq!(peers.deadline(), Some(at(100)));
        assert_eq!((peers.overdue(at(99)), peers.overdue(at(100))), (None, Some(FETCH)));
        ends(&mut peers, true);
        for _ in 0..30 {
            answered(&mut peers, 100);
            answered(&mut peers, 60);
        }
        peers.asked(at(0), 1, FETCH, Duration::ZERO);
        let due = peers.deadline().unwrap();
        assert!((at(180)..at(320)).contains(&due), "{due:?}");
        (0..32).for_each(|_| peers.asked(at(0), 1, FETCH, Duration::ZERO));
        let last = peers.due.iter().map(|std::cmp::Reverse((due, _))| *due).max().unwrap();
        assert!((at(450)..at(700)).contains(&last), "it waits for those before it: {last:?}");
        (0..32).for_each(|_| ends(&mut peers, true));
        ends(&mut peers, false);
        let down = health.down().collect::<Vec<_>>();
        assert!(!peers.may_be_asked(1) && down[0].limit == Duration::from_millis(90), "{down:?}");
        health.recovered(1);
        assert!(peers.may_be_asked(1));
        peers.asked(at(0), 1, FETCH, Duration::from_millis(50));
        assert_eq!(
            (peers.may_be_asked(1), peers.deadline()),
            (false, Some(at(150))),
            "one at a time, and not for long"
        );
        ends(&mut peers, false);
        assert_eq!(health.down().map(|down| down.failures).collect::<Vec<_>>(), [2]);
        health.recovered(1);
        answered(&mut peers, 1);
        assert_eq!(health.of(1), Status::Up);
    }

    #[test]
    fn what_a_rank_was_asked_before_an_interruption_tells_nothing_of_it() {
        let (mut peers, _) = pair();
        let (ms, health) = (Duration::from_millis, Arc::clone(peers.homes.health()));
        let answered = |peers: &mut Peers, asked, took| {
            peers.asked(at(asked), 1, FETCH, Duration::ZERO);
            peers.landed(1, at(asked), (ms(took), ms(took)), ms(10));
        };
        (0..100).for_each(|_| answered(&mut peers, 0, 8));
        let known = peers.round_trips;
        peers.interrupted(at(1_010));
        (0..100).for_each(|_| answered(&mut peers, 1_000, 900));
        peers.asked(at(1_000), 1, FETCH, Duration::ZERO);
        peers.unserved(1, at(1_000), false, ms(10));
        assert!(peers.round_trips == known && health.of(1) == Status::Up);
        // Later ones tell of it again.
        (0..100).for_each(|_| answered(&mut peers, 1_010, 900));
        assert_eq!(health.of(1), Status::Down);
        health.recovered(1);
        peers.interrupted(at(2_010));
        answered(&mut peers, 2_000, 8);
        assert_eq!(health.of(1), Status::HalfOpen, "it is still on trial");
        answered(&mut peers, 2_010, 8);
        assert_eq!(health.of(1), Status::Up);
    }

    #[test]
    fn a_rank_whose_answers_take_longer_than_the_buckets_is_not_asked_until_it_is_fast() {
        let (mut peers, _) = pair();
        let health = Arc::clone(peers.homes.health());
        let ms = Duration::from_millis;
        let mut answered = |transit: u64, bucket: u64| {
            peers.asked(at(0), 1, FETCH, ms(bucket));
            peers.landed(1, at(0), (ms(900), ms(transit)), ms(bucket));
            health.of(1)
        };
        for _ in 0..20 {
            assert_eq!(answered(900, 20), Status::Up, "it starts");
        }
        for _ in 0..40 {
            answered(10, 20);
        }
        assert_eq!(answered(100, 20), Status::Up, "one late answer is no slow rank");
        assert_eq!(answered(100, 50), Status::Up, "nor is one that is slow beside a slow bucket");
        (0..100).find(|_| answered(100, 20) == Status::Down).expect("it becomes slow");
        assert_eq!(answered(10, 20), Status::Down, "what was under way changes nothing");
        health.recovered(1);
        assert_eq!(answered(100, 20), Status::Down, "on trial one answer tells");
        health.recovered(1);
        assert_eq!(answered(10, 20), Status::Up);
        for _ in 0..20 {
            answered(900, 0);
        }
        assert_eq!(answered(900, 0), Status::Up, "the bucket is not known");
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

    #[test]
    fn homes_are_asked_while_one_block_of_a_hundred_is_kept_and_anew_in_every_epoch() {
        let (mut peers, theirs) = pair();
        let mut asked = |epoch, kept: &dyn Fn(u32) -> bool| {
            let asks = |n: &u32| {
                peers.home_to_ask(theirs, epoch).is_some_and(|_| {
                    peers.kept(kept(*n));
                    true
                })
            };
            (0..10_000).filter(asks).count()
        };
        assert_eq!(asked(0, &|_| false), 256 + (10_000 - 256) / 64);
        assert_eq!(asked(1, &|n| n % 100 == 0), 10_000);
        assert!((1_000..1_300).contains(&asked(1, &|_| false)));
        assert!(asked(2, &|n| n % 1_000 == 0) < 3_500);
        // At an epoch's edge.
        let in_turn = |n: &u64| {
            let asks = peers.home_to_ask(theirs, 3 - n % 2).is_some();
            if asks {
                peers.kept(false);
            }
            asks
        };
        assert_eq!((0..10_000).filter(in_turn).count(), 256 + (10_000 - 256) / 64);
    }

    #[test]
    fn a_rank_that_has_not_answered_may_take_as_long_as_the_others() {
        let mut peers = Peers::new(Homes::new(0, &[1, 2, 3], &Order::new(9, 1, true)));
        peers.asked(at(0), 1, FETCH, Duration::ZERO);
        peers.landed(1, at(0), (Duration::from_millis(40), Duration::ZERO), Duration::ZERO);
        peers.due.clear();
        peers.asked(at(0), 2, FETCH, Duration::ZERO);
        assert_eq!(peers.deadline(), Some(at(200)));
        peers.due.clear();
        peers.asked(at(0), 1, FETCH, Duration::from_millis(150));
        assert_eq!(peers.deadline(), Some(at(450)), "it may have to fetch the block");
    }
}
