//! The planner, fact by fact: what it commands, in which order, and what it leaves alone.

use fuelrail_base::{BatchSeq, BlockId, Duration, Instant, Kind, SampleId, ShardId};
use fuelrail_plan::catalog::Catalog;
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::pace::Ledger;
use fuelrail_plan::planner::{
    Asker, Attempt, Fact, FetchId, GivenUp, Keep, Origin, PlannerConfig, Source, Waiters, Want,
};
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Strategy;
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::schedule::UseTime;
use fuelrail_plan::spill::{Mount, PAGE_BYTES, SpillConfig, SpillPolicy, Spot};
use fuelrail_plan::window::WindowConfig;
use std::sync::Arc;

mod hedges;

/// Those that wait are numbers here.
type Planner = fuelrail_plan::planner::Planner<u32>;
type Command = fuelrail_plan::planner::Command<u32>;

const SAMPLES: u64 = 8;
const SAMPLE_BYTES: u64 = 100;

fn config() -> PlannerConfig {
    PlannerConfig {
        shard: ShardId(0),
        shards: 1,
        prefetch: Strategy::default(),
        policy: PolicyName::Fifo,
        cache_bytes: 2 * SAMPLE_BYTES,
        cached_block_bytes_min: 0,
        batch_room_bytes: 1 << 20,
        horizon_epochs: 1,
        spill: None,
        homes: None,
        retry: RetryConfig { attempts_max: 3, ..RetryConfig::default() },
        pace: Ledger::default(),
        window: WindowConfig { connections_start: 4, connections_max: 8, depth_max: 4, ..WindowConfig::default() },
        hedge: HedgeConfig::default(),
        seed: 1,
    }
}

/// Eight samples of one block each, two epochs in batches of two.
fn planner(config: &PlannerConfig) -> Planner {
    let start = Cursor { epoch: 0, position: 0 };
    let (samples, batch_size) = (SAMPLES, 2);
    let run = RunConfig {
        samples,
        seed: 0,
        order: OrderName::Global,
        shuffle: false,
        world: 1,
        rank: 0,
        batch_size,
        drop_last: false,
        epochs: 2,
        start,
    };
    let catalog = Catalog::new(vec![SAMPLE_BYTES; SAMPLES as usize], 1 << 20).unwrap();
    Planner::new(config, Run::new(run).unwrap(), Arc::new(catalog)).unwrap()
}

fn block(n: u32) -> BlockId {
    BlockId { sample: SampleId(n.into()), index: 0 }
}

/// What the planner can hear: a fact, or an ask.
enum Told {
    Fact(Fact),
    Ask(u32, BlockId, UseTime, bool),
}

impl From<Fact> for Told {
    fn from(fact: Fact) -> Told {
        Told::Fact(fact)
    }
}

fn asked(ask: u32, n: u32, at: u64) -> Told {
    Told::Ask(ask, block(n), UseTime(at), false)
}

fn delivered(n: u32, first: u32, others: &[u32], source: Source, keep: Option<Keep>) -> Command {
    Command::Deliver { block: block(n), waiters: Waiters { first, others: others.to_vec() }, source, keep }
}

/// A fact that says nothing new of a consumer that has taken nothing.
const TIME_PASSED: Fact = Fact::Consumer { taken: 0, waits: false };

fn landed(fetch: FetchId) -> Fact {
    let ms = Duration::from_millis(1);
    Fact::Landed { fetch, first_byte: ms, total: ms, outran: None }
}

fn failed(fetch: FetchId, kind: Kind, attempt: Attempt) -> Fact {
    Fact::Failed { fetch, kind, retry_after: None, attempt }
}

/// All commands but those of the assembler role.
fn commands(planner: &mut Planner) -> Vec<Command> {
    core::iter::from_fn(|| planner.pop()).filter(|c| !matches!(c, Command::Open { .. })).collect()
}

fn tell(planner: &mut Planner, now: Instant, told: impl Into<Told>) -> Vec<Command> {
    match told.into() {
        Told::Fact(fact) => planner.tell(now, fact),
        Told::Ask(ask, block, at, fresh) => planner.ask(now, ask, Want { block, at, fresh, asker: Asker::Own }),
    }
    commands(planner)
}

/// The one command there is, a fetch of this block.
fn the_fetch(commands: &[Command], n: u32) -> FetchId {
    match commands {
        &[Command::Start { fetch, block: b, from: Origin::Bucket }] if b == block(n) => fetch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_block_is_fetched_kept_and_answered_and_then_served() {
    let mut planner = planner(&config());
    let fetch = the_fetch(&tell(&mut planner, Instant(0), asked(1, 5, 0)), 5);
    assert_eq!(planner.first(fetch), Some(&mut 1));
    let kept = delivered(5, 1, &[], Source::Bucket, Some(Keep::Ram));
    assert_eq!(tell(&mut planner, Instant(1), landed(fetch)), [kept]);
    assert_eq!(tell(&mut planner, Instant(2), asked(2, 5, 9)), [Command::Serve { waiter: 2, block: block(5) }]);
    let stats = planner.stats();
    assert_eq!((stats.asks, stats.hits, stats.asked_bytes, stats.hit_bytes), (2, 1, 200, 100));
}

#[test]
fn a_block_under_way_is_shared() {
    let mut planner = planner(&config());
    let fetch = the_fetch(&tell(&mut planner, Instant(0), asked(1, 5, 0)), 5);
    for ask in 2..4 {
        assert_eq!(tell(&mut planner, Instant(0), asked(ask, 5, 8)), []);
    }
    let out = tell(&mut planner, Instant(1), landed(fetch));
    assert_eq!(out, [delivered(5, 1, &[2, 3], Source::Bucket, Some(Keep::Ram))]);
    assert_eq!(planner.stats().shared, 2);
}

#[test]
fn a_full_cache_drops_before_it_keeps() {
    let mut planner = planner(&config());
    for n in 0..3 {
        let fetch = the_fetch(&tell(&mut planner, Instant(0), asked(n, n, 0)), n);
        let out = tell(&mut planner, Instant(1), landed(fetch));
        let evicts = out.iter().position(|c| *c == Command::Evict(block(0)));
        let keeps = out.iter().position(|c| *c == delivered(n, n, &[], Source::Bucket, Some(Keep::Ram))).unwrap();
        assert_eq!(evicts.is_some(), n == 2, "the cache holds two blocks");
        assert!(evicts.is_none_or(|at| at < keeps), "{out:?}");
    }
    assert_eq!(planner.stats().evictions, 1);
}

#[test]
fn a_fresh_ask_drops_what_is_cached_and_fetches_anew() {
    let mut planner = planner(&config());
    let fetch = the_fetch(&tell(&mut planner, Instant(0), asked(1, 5, 0)), 5);
    tell(&mut planner, Instant(0), landed(fetch));
    let again = Told::Ask(2, block(5), UseTime(0), true);
    let out = tell(&mut planner, Instant(1), again);
    assert_eq!(out[0], Command::Evict(block(5)));
    the_fetch(&out[1..], 5);
}

#[test]
fn a_failed_fetch_is_tried_again_when_its_time_has_come_and_not_before() {
    let mut planner = planner(&config());
    let fetch = the_fetch(&tell(&mut planner, Instant(0), asked(1, 5, 0)), 5);
    assert_eq!(tell(&mut planner, Instant(10), failed(fetch, Kind::Network, Attempt::Barren)), []);
    let due = planner.deadline().unwrap();
    assert!(due > Instant(10));
    assert_eq!(tell(&mut planner, Instant(due.0 - 1), TIME_PASSED), []);
    assert_eq!(the_fetch(&tell(&mut planner, due, TIME_PASSED), 5), fetch);
    assert_eq!(planner.stats().retries, 1);
}

/// Fails the block's fetch again and again; returns the kinds of attempts it took until it was refused.
fn until_refused(planner: &mut Planner, attempts: impl IntoIterator<Item = Attempt>) -> (usize, u32) {
    let mut fetch = the_fetch(&tell(planner, Instant(0), asked(1, 5, 0)), 5);
    let mut now = Instant(0);
    for (i, attempt) in attempts.into_iter().enumerate() {
        match *tell(planner, now, failed(fetch, Kind::Network, attempt)) {
            [] => {}
            [Command::Refuse { waiters: Waiters { first: 1, .. }, attempts, .. }] => return (i + 1, attempts),
            ref other => panic!("{other:?}"),
        }
        now = planner.deadline().unwrap();
        fetch = the_fetch(&tell(planner, now, TIME_PASSED), 5);
    }
    panic!("never refused");
}

#[test]
fn attempts_are_counted_but_not_those_that_brought_something_or_were_excused() {
    use Attempt::{Barren, Excused, Progress};
    assert_eq!(until_refused(&mut planner(&config()), [Barren; 9]), (3, 3));
    let progress = [Barren, Barren, Progress, Barren, Barren, Barren];
    assert_eq!(
        until_refused(&mut planner(&config()), progress),
        (5, 3),
        "progress counts as the first of a new series"
    );
    let excused = [Barren, Excused, Excused, Excused, Barren, Excused, Barren, Barren];
    assert_eq!(until_refused(&mut planner(&config()), excused), (7, 3), "excused ones neither count nor forgive");
}

#[test]
fn what_cannot_be_helped_is_refused_at_once_to_all_who_asked() {
    let mut planner = planner(&config());
    let fetch = the_fetch(&tell(&mut planner, Instant(0), asked(1, 5, 0)), 5);
    tell(&mut planner, Instant(0), asked(2, 5, 1));
    let out = tell(&mut planner, Instant(1), failed(fetch, Kind::NotFound, Attempt::Barren));
    let waiters = Waiters { first: 1, others: vec![2] };
    let refuse = Command::Refuse { block: block(5), waiters, attempts: 1, why: GivenUp::Tried };
    assert_eq!(out, [refuse]);
    assert_eq!(planner.stats().given_up, 1);
    the_fetch(&tell(&mut planner, Instant(2), asked(3, 5, 9)), 5);
}

#[test]
fn an_unserved_request_goes_out_again_at_once() {
    let mut planner = planner(&config());
    let fetch = the_fetch(&tell(&mut planner, Instant(0), asked(1, 5, 0)), 5);
    for _ in 0..10 {
        assert_eq!(the_fetch(&tell(&mut planner, Instant(0), Fact::Unserved { fetch, displaced: false }), 5), fetch);
    }
    assert_eq!(planner.stats().retries, 0);
}

#[test]
fn the_most_urgent_waits_least() {
    let window = WindowConfig { connections_start: 1, connections_max: 1, depth_max: 1, ..WindowConfig::default() };
    let mut planner = planner(&PlannerConfig { window, ..config() });
    let mut fetch = the_fetch(&tell(&mut planner, Instant(0), asked(0, 0, 0)), 0);
    for (ask, at) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
        assert_eq!(tell(&mut planner, Instant(0), asked(ask, ask, at)), [], "one place, and it is taken");
    }
    assert_eq!(planner.queued(), 4);
    for ask in [2, 4, 3, 1] {
        let out = tell(&mut planner, Instant(1), landed(fetch));
        fetch = the_fetch(&out[out.len() - 1..], ask);
    }
}

/// The batch that the assembler role commands to open, if any.
fn open(planner: &mut Planner, now: Instant) -> Option<(u64, u64)> {
    planner.look_ahead(now);
    core::iter::from_fn(|| planner.pop()).find_map(|c| match c {
        Command::Open { seq, bytes } => Some((seq.0, bytes)),
        _ => None,
    })
}

#[test]
fn batches_are_opened_one_by_one_in_order_with_the_room_they_need() {
    let mut planner = planner(&config());
    planner.tell(Instant(0), TIME_PASSED);
    let mut seq = 0;
    while let Some(opened) = open(&mut planner, Instant(0)) {
        // Two samples of 100 bytes, each from a line of 64 on.
        assert_eq!(opened, (seq, 256));
        planner.tell(Instant(0), TIME_PASSED);
        assert_eq!(open(&mut planner, Instant(0)), None, "the last one is not answered yet");
        planner.tell(Instant(0), Fact::Opened(BatchSeq(seq)));
        seq += 1;
    }
    assert!(seq >= 1 && !planner.all_opened(), "the look-ahead ends somewhere");
    for taken in 1..=8 {
        planner.tell(Instant(taken), Fact::Ready(BatchSeq(taken - 1)));
        planner.tell(Instant(taken), Fact::Consumer { taken, waits: true });
        while let Some((next, _)) = open(&mut planner, Instant(taken)) {
            assert_eq!(next, seq);
            planner.tell(Instant(taken), Fact::Opened(BatchSeq(seq)));
            seq += 1;
        }
    }
    assert!(planner.all_opened() && seq == 8);
}

#[test]
fn no_fact_opens_a_batch_by_itself() {
    // The shard asks when every ask has been told. Before that the source looks idle, and all memory would be opened.
    let mut planner = planner(&config());
    for fact in [Fact::Idle, Fact::Room, Fact::Consumer { taken: 0, waits: true }] {
        planner.tell(Instant(0), fact);
        assert_eq!(planner.pop(), None, "{fact:?}");
    }
    assert_eq!(open(&mut planner, Instant(0)), Some((0, 256)));
    planner.tell(Instant(0), Fact::Opened(BatchSeq(0)));
    assert_eq!(planner.pop(), None, "its asks come first");
}

#[test]
fn a_shard_opens_its_own_batches_only() {
    let mut planner = planner(&PlannerConfig { shard: ShardId(1), shards: 3, ..config() });
    let mut seqs = Vec::new();
    for taken in 0..3 {
        planner.tell(Instant(0), Fact::Consumer { taken, waits: true });
        while let Some((seq, _)) = open(&mut planner, Instant(0)) {
            seqs.push(seq);
            planner.tell(Instant(0), Fact::Opened(BatchSeq(seq)));
            planner.tell(Instant(0), Fact::Ready(BatchSeq(seq)));
        }
    }
    assert_eq!(seqs, [1, 4, 7]);
}

#[test]
fn time_between_two_waits_is_not_counted_as_waiting() {
    let mut planner = planner(&config());
    let mut opened = 0;
    let mut open_all = |planner: &mut Planner, now| {
        while let Some((seq, _)) = open(planner, now) {
            planner.tell(now, Fact::Opened(BatchSeq(seq)));
            opened = seq + 1;
        }
        opened
    };
    let at = |ms: u64, us: u64| Instant(ms * 1_000_000 + us * 1_000);
    // A batch takes 10 ms to fill, and so does a step of the consumer.
    planner.tell(at(0, 0), TIME_PASSED);
    assert_eq!(open_all(&mut planner, at(0, 0)), 2);
    for seq in 0..2 {
        planner.tell(at(10, 0), Fact::Ready(BatchSeq(seq)));
    }
    planner.tell(at(10, 0), Fact::Consumer { taken: 1, waits: false });
    // It looks for another batch for a microsecond, without patience, and computes on.
    planner.tell(at(10, 1), Fact::Consumer { taken: 1, waits: true });
    planner.tell(at(10, 2), Fact::Consumer { taken: 1, waits: false });
    planner.tell(at(20, 0), Fact::Consumer { taken: 2, waits: false });
    let open = open_all(&mut planner, at(20, 0)) - 2;
    assert!(open <= 3, "{open} batches are open for a consumer whose steps take as long as filling one");
}

#[test]
fn requests_queue_on_a_connection_once_a_first_byte_was_timed() {
    let mut planner = planner(&PlannerConfig { cache_bytes: 0, ..config() });
    assert_eq!(planner.depth(SAMPLE_BYTES), 1);
    let fetch = the_fetch(&tell(&mut planner, Instant(0), asked(0, 5, 0)), 5);
    let time = Duration::from_micros(500);
    tell(&mut planner, Instant(0).after(time), Fact::Landed { fetch, first_byte: time, total: time, outran: None });
    assert_eq!((planner.depth(SAMPLE_BYTES), planner.depth(1 << 30)), (4, 2));
}

#[test]
fn without_room_nothing_is_opened_until_room_may_have_appeared() {
    for reopens in [Fact::Room, Fact::Consumer { taken: 1, waits: false }] {
        let mut planner = planner(&config());
        planner.tell(Instant(0), TIME_PASSED);
        assert_eq!(open(&mut planner, Instant(0)), Some((0, 256)));
        planner.tell(Instant(0), Fact::Opened(BatchSeq(0)));
        assert_eq!(open(&mut planner, Instant(0)), Some((1, 256)));
        planner.tell(Instant(0), Fact::NoRoom(BatchSeq(1)));
        assert!(planner.is_blocked());
        for fact in [Fact::Idle, Fact::Ready(BatchSeq(0)), Fact::Consumer { taken: 0, waits: true }] {
            planner.tell(Instant(0), fact);
            assert_eq!(open(&mut planner, Instant(0)), None, "{fact:?}");
        }
        planner.tell(Instant(0), reopens);
        assert!(!planner.is_blocked());
        assert_eq!(open(&mut planner, Instant(0)), Some((1, 256)), "{reopens:?}");
    }
}

#[test]
fn before_the_first_batch_the_disk_is_not_asked_for_all_that_there_is_room_for() {
    let spill = SpillConfig { policy: SpillPolicy::NextUse, unit: 512, blocks_max: 80, pending_bytes_max: 400 };
    let mut planner = planner(&PlannerConfig { cache_bytes: 0, spill: Some(spill), ..config() });
    let tier = planner.spill().unwrap();
    let segment = tier.mount(1 << 20, Mount::Open { end: PAGE_BYTES, records: 0 }).unwrap();
    for n in 0..SAMPLES as u32 {
        let spot = Spot { segment, place: PAGE_BYTES + 512 * u64::from(n), crc32c: 0 };
        assert!(tier.adopt(block(n), SAMPLE_BYTES, spot));
    }
    planner.tell(Instant(0), Fact::Consumer { taken: 0, waits: true });
    let mut opened = 0;
    while let Some((seq, _)) = open(&mut planner, Instant(0)) {
        planner.tell(Instant(0), Fact::Opened(BatchSeq(seq)));
        for n in [2 * seq, 2 * seq + 1] {
            let n = n % SAMPLES;
            let out = tell(&mut planner, Instant(0), asked(n as u32, n as u32, n));
            assert!(matches!(out[..], [] | [Command::Start { from: Origin::Disk(_), .. }]), "{out:?}");
        }
        opened += 1;
    }
    assert_eq!(opened, 2);
}

/// A planner that has seen 64 fetches of 20 ms, and one more under way since the returned moment.
fn experienced() -> (Planner, Instant, FetchId) {
    experienced_in(&PlannerConfig { cache_bytes: 0, ..config() })
}

fn experienced_in(config: &PlannerConfig) -> (Planner, Instant, FetchId) {
    let mut planner = planner(config);
    let ms = Duration::from_millis(20);
    let mut now = Instant(0);
    for ask in 0..64 {
        let fetch = the_fetch(&tell(&mut planner, now, asked(ask, 5, 0)), 5);
        now = now.after(ms);
        let fact = Fact::Landed { fetch, first_byte: ms, total: ms, outran: None };
        assert_eq!(tell(&mut planner, now, fact).len(), 1);
    }
    let fetch = the_fetch(&tell(&mut planner, now, asked(64, 5, 0)), 5);
    (planner, now, fetch)
}

/// While a server was away, connections at rest ended, and nobody noticed. Each costs a probe, and none may cost its pause.
#[test]
fn connections_that_ended_at_rest_do_not_hold_probes_up() {
    let config = PlannerConfig { cache_bytes: 0, retry: RetryConfig::default(), ..config() };
    let (mut planner, began, fetch) = experienced_in(&config);
    let (mut now, mut under_way) = (began, Some(fetch));
    let mut step = |planner: &mut Planner, attempt| {
        let fact = match under_way {
            Some(fetch) => failed(fetch, Kind::Network, attempt),
            None => {
                now = planner.deadline().expect("it is tried again");
                TIME_PASSED
            }
        };
        under_way = match tell(planner, now, fact)[..] {
            [Command::Start { fetch, .. }] => Some(fetch),
            [] => None,
            ref other => panic!("{other:?}"),
        };
        now
    };
    while step(&mut planner, Attempt::Barren) < began.after(Duration::from_secs(40)) {}
    assert!(planner.to_string().contains("nothing served"), "{planner}");
    let retries = planner.stats().retries;
    let from = step(&mut planner, Attempt::Excused);
    let mut to = from;
    while planner.stats().retries < retries + 50 {
        to = step(&mut planner, Attempt::Excused);
    }
    assert!(to.since(from) < Duration::from_secs(5), "{:?} for fifty of them", to.since(from));
}

#[test]
fn a_block_that_makes_a_little_progress_for_ever_is_given_up_in_time_and_outages_do_not_count() {
    let retry = RetryConfig { attempts_max: 3, request_limit_us: 60_000_000, ..RetryConfig::default() };
    let config = PlannerConfig { cache_bytes: 0, retry, ..config() };
    let (mut planner, began, mut fetch) = experienced_in(&config);
    let mut now = began;
    let refused = loop {
        now = now.after(Duration::from_secs(7));
        match tell(&mut planner, now, failed(fetch, Kind::Truncated, Attempt::Progress))[..] {
            [] => {}
            [Command::Refuse { why, .. }] => break why,
            ref other => panic!("{other:?}"),
        }
        now = planner.deadline().expect("it is tried again");
        fetch = match tell(&mut planner, now, TIME_PASSED)[..] {
            [Command::Start { fetch, .. }] => fetch,
            ref other => panic!("{other:?}"),
        };
    };
    let GivenUp::Late(time) = refused else { panic!("{refused:?}") };
    assert!((60..75).contains(&time.as_secs()), "{time:?}");
}

#[test]
fn a_server_that_is_down_is_asked_for_one_object_after_the_other() {
    let config = PlannerConfig { cache_bytes: 0, retry: RetryConfig::default(), ..config() };
    let (mut planner, mut now, fetch) = experienced_in(&config);
    let (mut under_way, mut seen) = (vec![fetch], Vec::new());
    let mut next = tell(&mut planner, now, asked(65, 6, 30));
    next.extend(tell(&mut planner, now, asked(66, 7, 40)));
    while seen.len() < 60 {
        for command in next.drain(..) {
            let Command::Start { fetch, block, .. } = command else { continue };
            under_way.push(fetch);
            seen.push(block.sample.0);
        }
        let fact = match under_way.pop() {
            Some(fetch) => failed(fetch, Kind::Network, Attempt::Barren),
            None => {
                now = planner.deadline().expect("it is tried again");
                TIME_PASSED
            }
        };
        next = tell(&mut planner, now, fact);
    }
    let turns = [5, 6, 7].map(|n| seen[30..60].iter().filter(|at| **at == n).count());
    assert_eq!(turns, [10; 3], "{seen:?}");
}
