//! A whole shard with a disk, on a simulated ring: what is written is read again, whatever the disk does meanwhile.

use super::memory::region;
use super::world::{self, Bucket, Heard, run, tagged_objects, whole};
use crate::channels::channels;
use crate::conn::Proof;
use crate::deliver::{Consumer, Outlet};
use crate::setup::{ShardConfig, ShardEnds};
use crate::shard::Shard;
use crate::spill::{
    Known, ManagerLink, SegmentFile, SegmentGrant, SegmentRequest, ShardLink, SpillSetup, SpillStage, segment_queues,
};
use crate::status::{ShardStatus, Snapshot};
use fuelrail_base::{BlockId, Duration, Error, Instant, Kind, SampleId};
use fuelrail_io::{FileOptions, Ring, SimDisk, SimDiskFailure, SimFaults, SimRing, SimWorld, channel};
use fuelrail_plan::spill::{Mount, PAGE_BYTES, Spill, SpillConfig, SpillPolicy};
use fuelrail_plan::window::WindowConfig;
use fuelrail_wire::block::{PAGE_BYTES as JOURNAL_PAGE, records};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SEGMENT_BYTES: u64 = 1 << 20;
const UNIT: u64 = 512;

fn config(policy: SpillPolicy) -> ShardConfig {
    let spill = SpillConfig { policy, unit: UNIT, blocks_max: 500, pending_bytes_max: 8 << 20 };
    let window = WindowConfig { connections_start: 2, connections_max: 4, depth_max: 4, ..WindowConfig::default() };
    let mut config = world::config(6 << 20, window);
    config.planner.spill = Some(spill);
    config
}

/// A manager that makes segments in the simulated disk until there are `segments_max`.
struct Manager {
    world: SimWorld,
    ring: SimRing,
    channel: ShardLink,
    /// The next shard's ends.
    next: Option<ManagerLink>,
    dir: PathBuf,
    made: u64,
    alive: u64,
    segments_max: u64,
    failures: Vec<String>,
    /// How often it heard that the disk does not answer.
    unanswered: u64,
}

impl Manager {
    fn new(world: &SimWorld, segments_max: u64) -> Manager {
        let made = world.files().len() as u64;
        let (next, channel) = segment_queues();
        Manager {
            world: world.clone(),
            ring: SimRing::with_capacity(world, 8, 8),
            channel,
            next: Some(next),
            dir: PathBuf::from("/cache"),
            made,
            alive: made,
            segments_max,
            failures: Vec::new(),
            unanswered: 0,
        }
    }

    fn path(&self, key: u64) -> PathBuf {
        self.dir.join(key.to_string())
    }

    /// The ends of a shard that starts.
    fn connect(&mut self) -> ManagerLink {
        self.next.take().unwrap_or_else(|| {
            let (shard, channel) = segment_queues();
            self.channel = channel;
            shard
        })
    }

    fn work(&mut self) {
        while let Some(request) = self.channel.from.recv() {
            match request {
                SegmentRequest::Another { .. } => {
                    let supply = self.another();
                    self.channel.to.send(supply).unwrap();
                }
                SegmentRequest::Trimmed(key) => {
                    assert!(self.world.remove_file(&self.path(key)));
                    self.alive -= 1;
                    let supply = self.another();
                    self.channel.to.send(supply).unwrap();
                }
                SegmentRequest::Failed(_, error) => self.failures.push(error.to_string()),
                SegmentRequest::Rotten(..) => {}
                SegmentRequest::Unanswered(..) => self.unanswered += 1,
            }
        }
    }

    fn another(&mut self) -> SegmentGrant {
        if self.alive >= self.segments_max {
            return SegmentGrant::NoMore;
        }
        let path = self.path(self.made);
        let options = FileOptions { write: true, create: true, direct: true, len: Some(SEGMENT_BYTES) };
        let Ok(file) = self.ring.open(&path, &options) else { return SegmentGrant::NoMore };
        self.ring.close_file(file);
        (self.made, self.alive) = (self.made + 1, self.alive + 1);
        let mount = Mount::Open { end: PAGE_BYTES, records: 0 };
        SegmentGrant::Segment(SegmentFile {
            key: self.made - 1,
            mark: 0,
            path,
            directory: None,
            len: SEGMENT_BYTES,
            direct: true,
            mount,
        })
    }

    /// What the journals on the disk tell of these objects.
    fn recover(&self, sizes: &[u64], block_bytes: u64) -> Vec<(SegmentFile, Vec<Known>)> {
        let objects = tagged_objects(sizes, block_bytes);
        let segments = self.world.files().into_iter().map(|path| {
            let bytes = self.world.read_file(&path).unwrap();
            let key = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            let mut known = Vec::new();
            for page in bytes.rchunks(JOURNAL_PAGE).take_while(|page| page.iter().any(|byte| *byte != 0)) {
                for record in records(page) {
                    let ids = (0..sizes.len() as u64).map(SampleId);
                    let Some(sample) = ids.into_iter().find(|id| objects.fingerprint(*id) == Some(record.fingerprint))
                    else {
                        continue;
                    };
                    let block = BlockId { sample, index: (record.first / block_bytes) as u32 };
                    let (place, crc32c, promised) = (record.place, record.crc32c, record.promised);
                    known.push(Known { block, place, crc32c, promised });
                }
            }
            let mount = Mount::Sealed;
            (SegmentFile { key, mark: 0, path, directory: None, len: SEGMENT_BYTES, direct: true, mount }, known)
        });
        segments.collect()
    }
}

/// What a run is made of.
struct Case<'a> {
    sizes: &'a [u64],
    block_bytes: u64,
    epochs: u64,
    /// Batches after which the run is cut short.
    stop_after: u64,
    /// It ends in order, and not as a killed process does.
    in_order: bool,
    /// Operations its ring holds.
    entries: u32,
    policy: SpillPolicy,
}

/// Runs a shard over the world's disk, checks every byte, and ends it in order unless it is cut short.
fn drive(
    world: &SimWorld,
    manager: &mut Manager,
    case: &Case,
    mut each_iteration: impl FnMut(u64, &Manager),
) -> Snapshot {
    let ring = SimRing::with_capacity(world, case.entries, 16);
    let run = run(case.sizes.len() as u64, 4, case.epochs);
    let consumer = Arc::new(Consumer::default());
    let (deliver, lane) = channel(16);
    let mut outlet = Outlet::new(vec![lane], vec![ring.waker()], Arc::clone(&consumer), run.batches());
    let status = Arc::new(ShardStatus::default());
    let found = manager.recover(case.sizes, case.block_bytes);
    let setup = SpillSetup { channel: manager.connect(), unit: UNIT, files_max: 3, found };
    let ends = ShardEnds {
        channels: channels(1, true).remove(0),
        deliver,
        consumer,
        status: Arc::clone(&status),
        spill: Some(setup),
        peers: None,
    };
    let objects = Arc::new(tagged_objects(case.sizes, case.block_bytes).direct(UNIT).unwrap());
    let mut shard = Shard::new(ring, region(16 << 20), objects, &run, &config(case.policy), ends).unwrap();
    let (mut taken, mut iterations, mut samples) = (0, 0u64, 0);
    while !outlet.is_finished() && taken < case.stop_after {
        assert!(shard.iterate());
        manager.work();
        each_iteration(iterations, manager);
        while let Some(batch) = outlet.try_take() {
            let batch = batch.result.unwrap();
            for placed in batch.samples.iter() {
                let bytes = &batch.slot[placed.offset..placed.offset + placed.len];
                assert!(*bytes == *whole(placed.id, case.sizes[placed.id.0 as usize]), "{:?} is damaged", placed.id);
                samples += 1;
            }
            taken += 1;
        }
        shard.sleep().unwrap();
        if shard.ring().sleeps() {
            world.advance();
        }
        iterations += 1;
        assert!(iterations < 200_000, "stuck: {}", shard.snapshot().text);
    }
    assert!(taken >= case.stop_after || samples == case.sizes.len() as u64 * case.epochs);
    let snapshot = shard.snapshot();
    if case.in_order {
        while !shard.save_step() {
            shard.ring().wait(None).unwrap();
            world.advance();
        }
    }
    snapshot
}

/// Short ones, long ones, some of several blocks, one empty: 6 MB.
fn sizes() -> Vec<u64> {
    (0..60u64).map(|i| if i % 3 == 0 { 60_000 + i * 7_001 } else { i * 313 }).collect()
}

const CASE: Case<'static> = Case {
    sizes: &[],
    block_bytes: 128 << 10,
    epochs: 2,
    stop_after: u64::MAX,
    in_order: true,
    entries: 256,
    policy: SpillPolicy::NextUse,
};

fn world(seed: u64, faults: SimFaults, sizes: &[u64]) -> (SimWorld, Heard) {
    let bucket = Bucket::new(sizes);
    let heard = Heard::clone(&bucket.heard);
    (SimWorld::new(seed, faults, Box::new(bucket)), heard)
}

#[test]
fn the_second_epoch_comes_from_disk_and_a_later_run_asks_for_nothing() {
    let sizes = sizes();
    let total: u64 = sizes.iter().sum();
    let (world, heard) = world(1, SimFaults::default(), &sizes);
    let mut manager = Manager::new(&world, 20);
    let case = Case { sizes: &sizes, ..CASE };
    let first = drive(&world, &mut manager, &case, |_, _| ());
    let short: u64 = sizes.iter().map(|size| size % (128 << 10)).filter(|tail| *tail < 64 << 10).sum();
    let Snapshot { fetch, planner, disk, .. } = &first;
    assert_eq!(fetch.landed_bytes + planner.spill.hit_bytes, 2 * total, "{}", first.text);
    assert!(fetch.landed_bytes <= total + short, "only short blocks may be late: they wait for company");
    assert_eq!((planner.spill.lost, disk.failures), (0, 0));
    assert!((short..=2 * short).contains(&disk.copied_bytes), "only short blocks are copied, once each way");
    assert_eq!(disk.read_alone.count() + disk.read_beside.count(), planner.spill.hits);
    assert!(disk.read_bytes >= planner.spill.hit_bytes && disk.written_bytes > planner.spill.written_bytes, "{disk:?}");
    assert!(disk.written_bytes < planner.spill.written_bytes * 3 / 2, "padding and journal are little");
    assert_eq!(first.disk_blocks, planner.spill.written);
    assert!(first.index_bytes > 0 && first.text.contains("spill: "), "{}", first.text);
    let requests = heard.borrow().len();
    let again = drive(&world, &mut Manager::new(&world, 20), &case, |_, _| ());
    assert_eq!((again.fetch.landed_bytes, again.planner.spill.hit_bytes), (0, 2 * total), "{}", again.text);
    assert_eq!(again.planner.spill.written, 0, "and nothing is written twice");
    assert_eq!(heard.borrow().len(), requests, "the bucket was asked for nothing");
}

#[test]
fn a_segment_that_could_not_be_asked_for_is_asked_for_again() {
    let sizes = sizes();
    let (world, _) = world(1, SimFaults::default(), &sizes);
    let mut manager = Manager::new(&world, 20);
    // The queue to the manager is full when the shard first wants a segment.
    let error = Error::new(Kind::File, "an earlier one");
    let requests = &mut manager.next.as_mut().unwrap().to;
    while requests.send(SegmentRequest::Failed(0, error.clone())).is_ok() {}
    let end = drive(&world, &mut manager, &Case { sizes: &sizes, ..CASE }, |_, _| ());
    assert!(manager.made > 0 && end.planner.spill.hit_bytes > 0, "it has no segment: {}", end.text);
}

/// A sample of several blocks is written to disk, does not prove itself, and is fetched anew into the same memory while the
/// blocks of its batch-mates are on their way to the disk.
#[test]
fn a_sample_is_fetched_anew_while_the_disk_reads_its_batch_mates() {
    let sizes = [1_200_000, 90_000, 91_000, 92_000];
    for seed in 0..20 {
        let mut bucket = Bucket::new(&sizes);
        bucket.drips = Some((16 << 10, Duration::from_millis(2)));
        // The first answer promises another checksum than the object has; the batch-mates come when it is fetched anew.
        bucket.says = Box::new(|nth| if nth == 0 { "x-amz-checksum-crc32c: AAAAAA==\r\n" } else { "" });
        bucket.takes = Box::new(move |nth| Some(Duration::from_millis(if nth == 12 { 100 + seed * 20 } else { 1 })));
        let world = SimWorld::new(seed, SimFaults::default(), Box::new(bucket));
        world.set_disk(SimDisk { latency_max: Duration::from_millis(8), ..SimDisk::default() });
        let case = Case { sizes: &sizes, epochs: 12, ..CASE };
        let end = drive(&world, &mut Manager::new(&world, 20), &case, |_, _| ());
        assert!(end.unproved > 0 && end.planner.spill.written > 0, "{}", end.text);
    }
}

/// A shard that waits for a slow disk sleeps until the disk is done.
#[test]
fn a_slow_disk_is_waited_for_asleep() {
    let sizes: Vec<u64> = (0..64).map(|i| if i % 4 == 0 { 70_000 + i * 331 } else { 9_000 + i * 31 }).collect();
    for seed in 0..4 {
        let (world, _) = world(seed, SimFaults::default(), &sizes);
        world.set_disk(SimDisk { latency_max: Duration::from_millis(400), ..SimDisk::default() });
        let mut iterations: BTreeMap<u128, u64> = BTreeMap::new();
        let case = Case { sizes: &sizes, epochs: 3, ..CASE };
        let end = drive(&world, &mut Manager::new(&world, 20), &case, |_, _| {
            *iterations.entry(world.now().since(Instant::ZERO).as_millis() / 1000).or_default() += 1;
        });
        let time = world.now().since(Instant::ZERO);
        assert!(end.planner.spill.written > 0 && time > Duration::from_millis(400), "{time:?}: {}", end.text);
        let most = iterations.values().max();
        assert!(most.is_some_and(|most| *most < 1_000), "iterations of the loop per virtual second: {iterations:?}");
    }
}

#[test]
fn a_disk_that_does_not_answer_is_reported() {
    let sizes = [90_000; 16];
    let (world, _) = world(5, SimFaults::default(), &sizes);
    let case = Case { sizes: &sizes, ..CASE };
    let mut manager = Manager::new(&world, 20);
    drive(&world, &mut manager, &case, |_, _| ());
    assert_eq!(manager.unanswered, 0);
    world.set_disk(SimDisk { latency_max: Duration::from_secs(200), ..SimDisk::default() });
    let mut manager = Manager::new(&world, 20);
    let mut told = false;
    drive(&world, &mut manager, &case, |_, manager| told |= manager.unanswered > 0);
    assert!(told, "reads took minutes");
}

#[test]
fn power_cuts_at_any_moment_cost_requests_and_never_a_byte() {
    let sizes: Vec<u64> = (0..16u64).map(|i| if i % 4 == 0 { 65_536 + i * 3_001 } else { i * 313 }).collect();
    let total: u64 = sizes.iter().sum();
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..2000 {
        let (world, _) = world(seed, SimFaults::default(), &sizes);
        let case = Case { sizes: &sizes, epochs: 12, stop_after: 1 + seed % 48, in_order: seed % 4 == 0, ..CASE };
        drive(&world, &mut Manager::new(&world, 8), &case, |_, _| ());
        world.cut_power();
        if seed % 3 == 0
            && let Some(path) = world.files().get(seed as usize % 5)
        {
            world.rot(path);
        }
        let case = Case { sizes: &sizes, ..CASE };
        let mut manager = Manager::new(&world, 8);
        manager.made = 1000;
        let after = drive(&world, &mut manager, &case, |_, _| ());
        assert_eq!(after.planner.asked_bytes, 2 * total);
        kept += after.planner.spill.adopted;
        lost += after.planner.spill.lost;
    }
    assert!(
        kept > 1_000 && lost > 500 && lost < kept,
        "{kept} blocks found again, {lost} of them damaged: the cuts cut nothing"
    );
}

#[test]
fn a_disk_that_fails_is_left_alone_and_the_epochs_go_on() {
    const ENOSPC: i32 = 28;
    const EROFS: i32 = 30;
    const EIO: i32 = 5;
    const ECANCELED: i32 = 125;
    let sizes = sizes();
    let mut said = 0;
    let failures =
        [(None, Some(EIO)), (Some(EIO), None), (Some(EIO), Some(EIO)), (None, Some(ENOSPC)), (None, Some(EROFS))];
    for (reads, writes) in failures.into_iter().chain([(None, Some(ECANCELED))]) {
        for at in [0, 10, 40, 400] {
            let (world, _) = world(9, SimFaults::default(), &sizes);
            let mut manager = Manager::new(&world, 20);
            let case = Case { sizes: &sizes, epochs: 3, ..CASE };
            let end = drive(&world, &mut manager, &case, |iteration, manager| {
                if iteration == at {
                    manager.world.fail_disk(Path::new("/cache"), SimDiskFailure { reads, writes });
                }
            });
            said += manager.failures.len();
            let names_threads = |line: &String| line.contains("pids.max");
            assert!(writes != Some(ECANCELED) || manager.failures.iter().all(names_threads), "{:?}", manager.failures);
            assert!(
                at > 0 || writes.is_none() || end.planner.spill.written == 0,
                "{reads:?} {writes:?}: nothing was refused"
            );
            assert!(
                at > 0 || reads.is_none() || end.planner.spill.hits == end.planner.spill.lost,
                "{:?}",
                end.planner.spill
            );
        }
    }
    assert!(said > 10, "{said} failures were told of");
}

#[test]
fn a_swarm_of_faults_never_delivers_a_wrong_byte() {
    let sizes = sizes();
    let mut hits = 0;
    for seed in 0..150 {
        let (world, _) = world(seed, SimFaults::swarm(seed), &sizes);
        // Between one segment and more than enough.
        let mut manager = Manager::new(&world, 1 + seed % 9);
        let entries = [2, 3, 8, 256][seed as usize / 9 % 4];
        let end = drive(&world, &mut manager, &Case { sizes: &sizes, epochs: 3, entries, ..CASE }, |_, _| ());
        hits += end.planner.spill.hits;
    }
    assert!(hits > 1_000, "{hits} blocks came from disk");
}

/// What a slow disk has not written when the last batch is taken waits for it; what is closed before is not waited for.
#[test]
fn a_run_that_is_over_writes_what_waits() {
    let sizes = [90_000; 64];
    let [(over, all), (closed, some)] = [u64::MAX, 8].map(|stop_after| {
        let (world, _) = world(3, SimFaults::default(), &sizes);
        world.set_disk(SimDisk { latency_max: Duration::from_millis(400), ..SimDisk::default() });
        let case = Case { sizes: &sizes, epochs: 1, policy: SpillPolicy::Lru, stop_after, ..CASE };
        let mut manager = Manager::new(&world, 20);
        let stats = drive(&world, &mut manager, &case, |_, _| ()).planner.spill;
        let found = manager.recover(&sizes, CASE.block_bytes).iter().map(|(_, known)| known.len() as u64).sum::<u64>();
        (stats, found)
    });
    assert!(over.written < 32 && closed.written < 32 && some < all, "{some} of {all}: {over:?}, {closed:?}");
    assert_eq!(all + over.refused + over.skipped, 64, "{over:?}");
}

/// What the server said of a block is kept as long as its segment, and no longer.
#[test]
fn proofs_leave_with_their_segment() {
    const SAMPLES: u32 = 50;
    let (world, _) = world(1, SimFaults::default(), &[]);
    let mut ring = SimRing::with_capacity(&world, 8, 8);
    let objects = Arc::new(tagged_objects(&[200_000; SAMPLES as usize], 128 << 10).direct(UNIT).unwrap());
    let mut planner = Spill::new(config(SpillPolicy::NextUse).planner.spill.unwrap());
    let (channel, _manager) = segment_queues();
    let setup = SpillSetup { channel, unit: UNIT, files_max: 3, found: Vec::new() };
    let mut memory = region(16 << 20);
    let waker = ring.waker();
    let mut stage = SpillStage::new(&mut memory, objects, setup, waker, &mut planner).unwrap();
    let mount = Mount::Open { end: PAGE_BYTES, records: 0 };
    for sample in (0..SAMPLES.into()).map(SampleId) {
        let path = PathBuf::from(format!("/cache/{}", sample.0));
        let file = SegmentFile { key: 0, mark: 0, path, directory: None, len: SEGMENT_BYTES, direct: true, mount };
        let segment = stage.mount(file, &mut planner).unwrap();
        let mut filling = memory.alloc(256 << 10).unwrap().fill();
        assert!(filling.align(UNIT as usize));
        let mut window = filling.carve_padded(128 << 10, 128 << 10).unwrap();
        window.put(&vec![7; 128 << 10]);
        // A tag that was listed is known without the segment.
        let etag = Some(fuelrail_wire::Etag::of("\"tag\""));
        let (proof, kept) = match sample.0 % 2 {
            0 => (Proof { etag: None, crc32c: Some(7) }, 1),
            _ => (Proof { etag, crc32c: None }, 0),
        };
        stage.spill(Instant::ZERO, BlockId { sample, index: 0 }, &mut window, proof, (segment, PAGE_BYTES));
        assert_eq!(stage.proofs().0, kept, "of this segment alone");
        stage.drop_waiting();
        stage.trim(&mut ring, segment);
    }
    assert_eq!(stage.proofs(), (0, 0));
}
