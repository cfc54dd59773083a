//! A whole shard on a simulated ring, where its stages alone cannot show what goes wrong between them.

use super::memory::region;
use super::world::{self, Bucket, content, objects, packed_at, run, stand_still};
use crate::channels::channels;
use crate::deliver::{Consumer, Outlet};
use crate::hedge::Spares;
use crate::objects::Objects;
use crate::peers::{PeerLink, PeerRoom, PeerRoute, PeerSetup, peer_queue};
use crate::setup::{ShardConfig, ShardEnds, memory};
use crate::shard::Shard;
use crate::status::ShardStatus;
use fuelrail_base::limits::{SAMPLE_ALIGN, SCRATCH_BYTES};
use fuelrail_base::{Duration, Error, Instant, Kind};
use fuelrail_io::{Host, PollRing, Replies, Ring, SimFaults, SimRing, SimWorld, ThreadMeter, UringConfig, channel};
use fuelrail_plan::homes::Homes;
use fuelrail_plan::planner::PlannerStats;
use fuelrail_plan::run::Run;
use fuelrail_plan::window::WindowConfig;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};

fn config(cache_bytes: u64) -> ShardConfig {
    let window = WindowConfig { connections_start: 2, connections_max: 4, depth_max: 4, ..WindowConfig::default() };
    let mut config = world::config(64 << 10, window);
    config.planner.cache_bytes = cache_bytes;
    config
}

/// One shard that serves two epochs over objects of these sizes, on a ring with so many sockets.
fn shard(sizes: &[u64], cache_bytes: u64, sockets: u32) -> (SimWorld, Shard<SimRing>, Outlet, Arc<ShardStatus>) {
    shard_of(Bucket::new(sizes), cache_bytes, sockets)
}

/// The same, from this bucket.
fn shard_of(bucket: Bucket, cache_bytes: u64, sockets: u32) -> (SimWorld, Shard<SimRing>, Outlet, Arc<ShardStatus>) {
    let objects = objects(&bucket.sizes, 256);
    let world = SimWorld::new(1, SimFaults::default(), Box::new(bucket));
    let ring = SimRing::with_capacity(&world, 64, sockets);
    let (shard, outlet, status) = shard_on(ring, objects, cache_bytes);
    (world, shard, outlet, status)
}

/// The same, on this ring.
fn shard_on<R: Ring>(ring: R, objects: Arc<Objects>, cache_bytes: u64) -> (Shard<R>, Outlet, Arc<ShardStatus>) {
    let run = run(objects.catalog().samples(), 4, 2);
    shard_of_run(ring, objects, &run, &config(cache_bytes), None)
}

/// The same, of a run with these settings, beside other ranks or without.
fn shard_of_run<R: Ring>(
    ring: R,
    objects: Arc<Objects>,
    run: &Run,
    config: &ShardConfig,
    peers: Option<PeerSetup>,
) -> (Shard<R>, Outlet, Arc<ShardStatus>) {
    let consumer = Arc::new(Consumer::default());
    let (deliver, lane) = channel(16);
    let outlet = Outlet::new(vec![lane], vec![ring.waker()], Arc::clone(&consumer), run.batches());
    let status = Arc::new(ShardStatus::default());
    let ends = ShardEnds {
        channels: channels(1, true).remove(0),
        deliver,
        consumer,
        status: Arc::clone(&status),
        spill: None,
        peers,
    };
    let shard = Shard::new(ring, region(1 << 20), objects, run, config, ends).unwrap();
    (shard, outlet, status)
}

#[test]
fn every_sample_arrives_and_the_second_epoch_comes_from_the_cache() {
    let sizes: Vec<u64> = (0..10).map(|i| i * 97).collect();
    let (world, mut shard, mut outlet, status) = shard(&sizes, 64 << 10, 8);
    let (mut samples, mut iterations) = (0, 0);
    while !outlet.is_finished() {
        assert!(shard.iterate());
        while let Some(batch) = outlet.try_take() {
            let batch = batch.result.unwrap();
            for placed in batch.samples.iter() {
                let bytes = &batch.slot[placed.offset..placed.offset + placed.len];
                assert_eq!(bytes, content(placed.id, sizes[placed.id.0 as usize]));
                samples += 1;
            }
        }
        shard.sleep().unwrap();
        world.advance();
        iterations += 1;
        assert!(iterations < 1000, "stuck: {}", shard.snapshot().text);
    }
    assert_eq!(samples, 20);
    let snapshot = shard.snapshot();
    let bytes: u64 = sizes.iter().sum();
    assert_eq!((snapshot.planner.asked_bytes, snapshot.planner.hit_bytes), (2 * bytes, bytes));
    assert_eq!(snapshot.fetch.landed_bytes, bytes);
    // Of blocks of 256 bytes: 9 objects have some.
    let blocks: u64 = sizes.iter().map(|size| size.div_ceil(256)).sum();
    assert_eq!((snapshot.fetch.requests, snapshot.get_latency.count()), (blocks, blocks));
    assert_eq!(snapshot.copied_bytes, snapshot.fetch.copied_bytes + 2 * bytes, "into the cache and out of it");
    assert_eq!((snapshot.wasted_bytes, snapshot.unproved, snapshot.disk_blocks, snapshot.index_bytes), (0, 0, 0, 0));
    let passed: Vec<_> = snapshot.gates.iter().map(|gate| gate.passed).collect();
    assert_eq!(passed[..2], [blocks, 6], "requests, and batches filled");
    assert!(snapshot.thread.is_none() && snapshot.ring.is_some());
    assert!(status.beats() > 0);
    status.stop();
    assert!(!shard.iterate());
    // With nothing under way there is nothing to wait for.
    let before = world.now();
    shard.end();
    assert!(status.is_gone() && world.now() == before);
}

#[test]
fn a_consumer_that_only_takes_is_not_given_more_open_batches_than_the_source_can_work_on() {
    // Batches of 4 objects; two to four connections serve 16 requests at once at most, so 4 batches and one to follow. There is
    // room for 128.
    let sizes = vec![100; 800];
    let (world, mut shard, mut outlet, _) = shard(&sizes, 0, 8);
    let (mut taken, mut most) = (0, 0);
    while !outlet.is_finished() {
        assert!(shard.iterate());
        most = most.max(shard.snapshot().gates[1].occupancy);
        let before = taken;
        while let Some(batch) = outlet.try_take() {
            batch.result.unwrap();
            taken += 1;
            outlet.set_waiting(false);
        }
        if taken > before {
            // It computes for a moment: so short a step asks for all the depth there is.
            assert!(shard.iterate());
            let soon = shard.ring().now().after(Duration::from_nanos(100));
            shard.ring().wait(Some(soon)).unwrap();
        } else {
            outlet.set_waiting(true);
            assert!(shard.iterate());
            shard.sleep().unwrap();
        }
        world.advance();
    }
    assert_eq!(taken, 400);
    assert!((2..=6).contains(&most), "{most} batches were incomplete at once");
}

#[test]
fn a_failure_elsewhere_wakes_a_shard_and_ends_it() {
    let (_world, mut shard, outlet, status) = shard(&[100; 4], 0, 8);
    assert!(shard.iterate());
    outlet.consumer().failure.guard("a thread", || Err::<(), _>(Error::new(Kind::File, "the disk is gone")));
    assert!(shard.ring().waker().is_notified(), "it sleeps on");
    assert!(!shard.iterate() && !status.is_gone());
    drop(shard);
    assert!(status.is_gone(), "its last snapshot is still waited for");
}

/// What the watchdog prints of a shard that does not move.
#[test]
fn a_shard_that_waits_says_what_for() {
    let mut bucket = Bucket::new(&[100; 8]);
    bucket.mute = true;
    let (world, mut shard, _outlet, _) = shard_of(bucket, 64 << 10, 8);
    let mut iterations = 0;
    while world.now() < Instant::ZERO.after(Duration::from_secs(9)) {
        assert!(shard.iterate());
        shard.sleep().unwrap();
        world.advance();
        iterations += 1;
    }
    assert!(iterations < 100, "it sleeps: {iterations} iterations in 9 s");
    let snapshot = shard.snapshot();
    for part in [
        "fetch: 4 requests outstanding, 0 waiting to be sent, 4 connections, longest silence 10.0",
        "hedge: 0 of 0 spare slots in use by second requests",
        "cache: 0 blocks, 65536 of 65536 bytes free",
        "spill: none",
        "assemble: 2 batches open, 8 blocks awaited, oldest 0 lacks 4 samples, first 'k/0'",
        "deliver: next 0, 0 finished early, gate deliver: 0 of 1024 (mean 0.0, mean wait 0 µs)",
        "channels: 0 requests open with other shards, 0 not sent yet",
        "gate fetch: 4 of 128 (mean ",
        "gate assemble: 2 of 1024 (mean ",
        "ops in flight",
        "bytes free",
    ] {
        assert!(snapshot.text.contains(part), "no {part:?} in {}", snapshot.text);
    }
    let gates: Vec<_> = snapshot.gates.iter().map(|gate| (gate.name, gate.passed, gate.occupancy)).collect();
    assert_eq!(gates, [("fetch", 0, 4), ("assemble", 0, 2), ("deliver", 0, 0)]);
    assert!(!snapshot.waits_for_leases && snapshot.operations > 0, "it waits for the bucket");
}

/// Cuts every answer after so many bytes of payload.
struct Cuts {
    bucket: Bucket,
    after: usize,
}

impl Host for Cuts {
    fn connect(&mut self, conn: u64, addr: SocketAddr, now: Instant) -> (Duration, Result<(), i32>) {
        self.bucket.connect(conn, addr, now)
    }

    fn receive(&mut self, _: u64, bytes: &[u8], _: Instant, out: &mut Replies) {
        let answer = self.bucket.answer(str::from_utf8(bytes).unwrap(), "");
        let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let cut = answer.len().min(body + self.after);
        out.send(Duration::ZERO, answer[..cut].to_vec());
        if cut < answer.len() {
            out.finish(Duration::ZERO);
        }
    }

    fn closed(&mut self, _: u64, _: Instant) {}
}

/// Ten attempts are enough for no more than 40 kB of it; but one that brings 4 KiB is no failure.
#[test]
fn an_object_that_comes_piece_by_piece_arrives_while_the_pieces_are_of_a_size() {
    for (after, arrives) in [(1024, true), (1023, false)] {
        let bucket = Bucket::new(&[60_000]);
        let world = SimWorld::new(1, SimFaults::default(), Box::new(Cuts { bucket, after }));
        let ring = SimRing::with_capacity(&world, 64, 8);
        let (mut shard, mut outlet, _) = shard_on(ring, objects(&[60_000], 1 << 20), 0);
        let batch = loop {
            shard.iterate();
            if let Some(batch) = outlet.try_take() {
                break batch;
            }
            shard.sleep().unwrap();
            world.advance();
        };
        match batch.result {
            Ok(batch) => assert!(arrives && batch.slot[..60_000] == content(batch.samples[0].id, 60_000), "{after}"),
            Err(error) => assert!(!arrives && error.kind() == Kind::Truncated, "{after}: {error}"),
        }
    }
}

/// Nothing is on its way that could make room: the loader warns of the consumer that keeps its batches.
#[test]
fn a_shard_whose_memory_the_consumer_holds_says_so() {
    let sizes = [4_000; 160];
    let world = SimWorld::new(1, SimFaults::default(), Box::new(Bucket::new(&sizes)));
    let ring = SimRing::with_capacity(&world, 64, 8);
    let (mut shard, mut outlet, _) = shard_on(ring, objects(&sizes, 1 << 20), 0);
    let (mut held, mut iterations) = (Vec::new(), 0);
    while !shard.snapshot().waits_for_leases {
        assert!(shard.iterate());
        held.extend(core::iter::from_fn(|| outlet.try_take()));
        shard.sleep().unwrap();
        world.advance();
        iterations += 1;
        assert!(iterations < 1000, "{}", shard.snapshot().text);
    }
    assert!((50..80).contains(&held.len()), "{} batches fill the arena", held.len());
    held.clear();
    assert!(shard.iterate() && !shard.snapshot().waits_for_leases, "{}", shard.snapshot().text);
}

#[test]
fn a_snapshot_is_published_once_for_each_request() {
    let (_world, mut shard, _outlet, status) = shard(&[100; 4], 0, 8);
    assert!(shard.iterate() && status.answered(1).is_none() && status.latest().text.is_empty());
    let serial = status.request();
    assert!(status.answered(serial).is_none(), "the shard has not run since");
    assert!(shard.iterate());
    let first = status.answered(serial).expect("it was asked for");
    assert!(first.serial == serial && !first.text.is_empty());
    assert!(status.request() == serial + 1 && status.answered(serial + 1).is_none());
    drop(shard);
    assert_eq!(status.answered(serial + 1).map(|last| last.serial), Some(serial), "of a shard that is gone, the last");
}

#[test]
fn a_shard_whose_consumer_is_gone_ends() {
    let (_world, mut shard, outlet, _) = shard(&[100; 4], 0, 8);
    assert!(shard.iterate());
    drop(outlet);
    assert!(!shard.iterate());
}

/// On a real ring and in a thread of its own, with a request under way that is never answered.
#[test]
fn a_shard_that_is_told_to_stop_closes_its_connections_and_leaves_nothing_with_the_ring() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let objects = packed_at("http://bucket.test/b/k", &[&server.local_addr().unwrap().to_string()], &[100; 4]);
    let (ready, started) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let ring = PollRing::new(&UringConfig::default()).unwrap();
        let waker = ring.waker();
        let (shard, outlet, status) = shard_on(ring, objects, 0);
        let mut shard = shard.metered(ThreadMeter::plain());
        ready.send((waker, outlet, status)).unwrap();
        shard.run().unwrap();
        shard.end();
    });
    let (waker, _outlet, status) = started.recv().unwrap();
    let (mut connection, _) = server.accept().unwrap();
    assert!(connection.read(&mut [0; 16]).unwrap() > 0, "a request came");
    status.stop();
    waker.wake();
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).unwrap();
    thread.join().unwrap();
    let last = status.latest();
    assert!(status.is_gone() && last.operations == 0 && last.thread.is_some(), "{}", last.text);
    assert!(last.fetch.requests > 0);
}

#[test]
fn a_request_that_cannot_be_sent_ends_the_run_instead_of_sleeping_for_ever() {
    let (world, mut shard, mut outlet, _) = shard(&[100; 4], 0, 0);
    let batch = loop {
        shard.iterate();
        if let Some(batch) = outlet.try_take() {
            break batch;
        }
        let before = shard.ring().facts().counts.sleeps;
        shard.sleep().unwrap();
        let slept = shard.ring().facts().counts.sleeps > before;
        assert!(world.advance() || !slept, "asleep for ever: {}", shard.snapshot().text);
    };
    assert_eq!(batch.result.unwrap_err().kind(), Kind::Budget);
}

#[test]
fn memory_that_does_not_suffice_is_named_with_what_to_do() {
    let mut region = region(1 << 20);
    let spares = |slots, slot_bytes| Spares { slots, slot_bytes };
    let taken = memory(&mut region, 65_536, (4, 4096), spares(2, 8192), (3, 4096)).unwrap();
    assert_eq!(taken.map(|slots| slots.len()), [1, 4, 2, 3]);
    let taken = memory(&mut region, 0, (4, 0), spares(0, 0), (0, 0)).unwrap();
    assert_eq!(taken.map(|slots| slots.len()), [0; 4], "a folder needs none");
    for (cache_bytes, scratch, spares, chunks, setting) in [
        (2 << 20, (1, 4096), spares(0, 0), (0, 0), "cache_limit"),
        (0, (1000, 65_536), spares(0, 0), (0, 0), "connections_max"),
        (0, (1, 4096), spares(1, 2 << 20), (0, 0), "hedge_percent"),
        (0, (1, 4096), spares(0, 0), (2, 1 << 20), "chunk_size"),
    ] {
        let error = memory(&mut region, cache_bytes, scratch, spares, chunks).unwrap_err();
        assert_eq!(error.kind(), Kind::Budget);
        assert!(error.to_string().contains(setting), "{error}");
    }
}

/// A thirty-second part of the room, for at least four of the longest blocks, else for one of twice the mean, else nothing.
#[test]
fn spare_memory_is_a_small_part_of_the_room() {
    for (room, longest, mean, slots, slot_bytes) in [
        (32 << 20, 100_000, 100_000, 10, 100_000),
        (1 << 40, 100_000, 100_000, 16, 100_000),
        (32 * 400_000, 100_000, 10_000, 4, 100_000),
        (32 * 399_999, 100_000, 10_000, 16, 20_000),
        (32 * 20_000, 100_000, 10_000, 1, 20_000),
        (32 * 19_999, 100_000, 10_000, 0, 0),
        (32 * 90_000, 100_000, 90_000, 0, 0),
        (32 * 100_000, 100_000, 90_000, 1, 100_000),
        (32 << 20, 0, 0, 0, 0),
    ] {
        let spares = Spares::within(room, longest, mean);
        assert_eq!((spares.slots, spares.slot_bytes), (slots, slot_bytes), "{room} {longest} {mean}");
        assert_eq!(spares.bytes(), (slots * slot_bytes.next_multiple_of(SAMPLE_ALIGN)) as u64);
    }
}

/// Runs a shard that has another rank for a source. `stops` gives, for each turn of its loop, for how many milliseconds the thread is stopped before
/// and after it sleeps. Returns the number of turns and the planner's counters.
fn interrupted(stops: impl Fn(u32) -> (u64, u64)) -> (u32, PlannerStats) {
    let sizes = [256; 640];
    let mut bucket = Bucket::new(&sizes);
    bucket.takes = Box::new(|_| Some(Duration::from_millis(5)));
    let (objects, world) = (objects(&sizes, 256), SimWorld::new(1, SimFaults::default(), Box::new(bucket)));
    let (ring, mut other) = (SimRing::with_capacity(&world, 64, 32), SimRing::with_capacity(&world, 4, 1));
    let run = run(640, 4, 2);
    let mut config = config(0);
    config.planner.homes = Some(Homes::new(0, &[1, 2], run.order()));
    config.peers = PeerRoom { connections: 9, scratch_bytes: SCRATCH_BYTES, slots: 4, slot_bytes: 256 };
    let link = PeerLink { server: objects.server().clone(), route: PeerRoute::new("/b/k".into(), None) };
    let (_asks, inbox) = peer_queue(4);
    let peers = Some(PeerSetup { links: vec![None, Some(link)], inbox });
    let (mut shard, mut outlet, _) = shard_of_run(ring, objects, &run, &config, peers);
    let mut turns = 0;
    while !outlet.is_finished() {
        assert!(shard.iterate());
        let (before, behind) = stops(turns);
        stand_still(&world, &mut other, world.now().after(Duration::from_millis(before)));
        while let Some(batch) = outlet.try_take() {
            batch.result.unwrap();
        }
        shard.sleep().unwrap();
        stand_still(&world, &mut other, world.now().after(Duration::from_millis(behind)));
        world.advance();
        turns += 1;
        assert!(turns < 10_000, "stuck: {}", shard.snapshot().text);
    }
    (turns, shard.snapshot().planner)
}

#[test]
fn what_came_while_a_thread_did_not_run_is_not_late() {
    // Longer than another rank may take; all answers are there then.
    let (turns, planner) = interrupted(|turn| (0, if (200..220).contains(&turn) { 3_000 } else { 0 }));
    assert!(turns > 220 && planner.peer_misses == 0 && planner.peer_hits > 400, "{turns} turns: {planner:?}");
}

/// `Clock::read` asserts that the clock never goes back.
#[test]
fn a_thread_that_is_late_every_time_gets_to_the_end() {
    for (ms, peer_hits) in [(45, 50), (60, 300)] {
        let (_, planner) = interrupted(|_| (ms, ms));
        assert!(planner.peer_hits > peer_hits && planner.asks == 1_280, "{ms} ms: {planner:?}");
    }
}
