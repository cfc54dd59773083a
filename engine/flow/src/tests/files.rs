//! The fetch stage over a folder, on a simulated disk: what lands, what does not, and that every window is returned.

use super::memory::{region, window};
use crate::conn::{Asked, End, Fault, Outcome};
use crate::fetch::FetchStage;
use crate::listing::Listed;
use crate::objects::Objects;
use fuelrail_base::limits::FOLDER_FILES_MAX;
use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Kind, SampleId};
use fuelrail_io::{Region, Ring, SimDiskFailure, SimFaults, SimRing, SimWorld};
use fuelrail_plan::planner::FetchId;
use fuelrail_wire::Etag;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EIO: i32 = 5;

struct Rig {
    world: SimWorld,
    ring: SimRing,
    region: Region,
    fetch: FetchStage,
    sizes: Vec<u64>,
    ended: Vec<Outcome>,
}

fn path(n: u32) -> PathBuf {
    Path::new("/set/k").join(n.to_string())
}

fn content(n: u32, len: u64) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + u64::from(n)) as u8).collect()
}

fn stage(sizes: &[u64]) -> FetchStage {
    let listed: Vec<Listed> =
        (0..).zip(sizes).map(|(n, &size)| Listed { key: format!("k/{n}"), size, etag: None }).collect();
    let objects = Objects::new("file:///set/".parse().unwrap(), Vec::new(), &listed, 1 << 20).unwrap();
    FetchStage::new(Arc::new(objects), Duration::from_secs(10), Vec::new())
}

impl Rig {
    fn new(sizes: &[u64], entries: u32) -> Rig {
        Rig::with_faults(sizes, entries, SimFaults::default())
    }

    fn with_faults(sizes: &[u64], entries: u32, faults: SimFaults) -> Rig {
        let world = SimWorld::new(1, faults, Box::new(super::world::Bucket::new(&[])));
        for (n, len) in (0..).zip(sizes) {
            world.write_file(&path(n), &content(n, *len)).unwrap();
        }
        let fetch = stage(sizes);
        let ring = SimRing::with_capacity(&world, entries, 4);
        Rig { world, ring, region: region(4 << 20), fetch, sizes: sizes.to_vec(), ended: Vec::new() }
    }

    /// Begins anew, with no file open.
    fn restart(&mut self) {
        self.fetch.close(&mut self.ring);
        self.fetch = stage(&self.sizes);
    }

    fn ask(&mut self, n: u32, first: u64, len: u64, etag: Option<Etag>) {
        let object_len = self.sizes[n as usize];
        let (fetch, sample) = (FetchId { place: n, serial: 0 }, SampleId(n.into()));
        let asked = Asked { fetch, sample, first, len, object_len, whole: true, etag, second: false, rank: None };
        let window = window(&mut self.region, len as usize);
        self.fetch.request(asked, window, self.ring.now());
    }

    /// As when an earlier attempt landed the first `had` bytes of the file.
    fn ask_for_the_rest(&mut self, n: u32, had: u64) {
        let object_len = self.sizes[n as usize];
        let mut window = window(&mut self.region, object_len as usize);
        window.put(&content(n, object_len)[..had as usize]);
        let (fetch, sample) = (FetchId { place: n, serial: 0 }, SampleId(n.into()));
        let asked = Asked {
            fetch,
            sample,
            first: had,
            len: object_len - had,
            object_len,
            whole: true,
            etag: None,
            second: false,
            rank: None,
        };
        self.fetch.request(asked, window, self.ring.now());
    }

    /// Goes on until `enough` have ended. `between` may change the world after each iteration.
    fn run(&mut self, enough: usize, mut between: impl FnMut(&SimWorld)) {
        for _ in 0..10_000 {
            let now = self.ring.now();
            self.fetch.pump(&mut self.ring, now, 8, |_| 1);
            self.ring.wait(Some(self.ring.now())).unwrap();
            while let Some(done) = self.ring.pop() {
                let now = self.ring.now();
                self.fetch.done(&mut self.ring, now, done);
            }
            self.ended.extend(self.fetch.outcomes());
            if self.ended.len() >= enough {
                assert_eq!((self.fetch.waiting(), self.fetch.outstanding(), self.ring.in_flight()), (0, 0, 0));
                return;
            }
            between(&self.world);
            self.ring.wait(None).unwrap();
            self.world.advance();
        }
        panic!("{} of {enough} have ended", self.ended.len());
    }

    fn failure(&mut self) -> (Kind, usize) {
        match self.ended.pop() {
            Some(Outcome { window, end: End::Failed { fault: Fault { error, .. }, .. }, .. }) => {
                (error.kind(), window.filled())
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The bytes that landed, if they did.
fn landed(outcome: Option<Outcome>) -> Option<Vec<u8>> {
    let Outcome { window, end, .. } = outcome?;
    matches!(end, End::Landed { .. }).then(|| window.bytes().to_vec())
}

#[test]
fn files_land_whole_and_in_parts_however_narrow_the_ring_is() {
    let short = SimFaults { short_read: 0.5, reorder: 0.5, ..SimFaults::default() };
    for (entries, faults) in [(2, SimFaults::default()), (64, SimFaults::default()), (2, short), (64, short)] {
        let sizes: Vec<u64> = (0..40).map(|n| 1 + n * 997).collect();
        let mut rig = Rig::with_faults(&sizes, entries, faults);
        (0..40).for_each(|n| rig.ask(n, 0, sizes[n as usize], None));
        rig.run(40, |_| {});
        rig.ask(39, 1_000, 500, None);
        rig.run(41, |_| {});
        assert_eq!(rig.fetch.stats().requests, 41);
        let mut tags = Vec::new();
        for outcome in rig.ended.drain(..) {
            let Outcome { asked, window, end: End::Landed { proof, .. }, .. } = outcome else { panic!("{outcome:?}") };
            let whole = content(asked.sample.0 as u32, asked.object_len);
            assert_eq!(window.bytes(), &whole[asked.first as usize..][..asked.len as usize]);
            tags.push((asked.sample, proof.etag.expect("a file has a mark")));
        }
        let etag = tags.iter().find(|(sample, _)| *sample == SampleId(39)).unwrap().1;
        rig.ask(39, 0, sizes[39], Some(etag));
        rig.run(1, |_| {});
        assert!(landed(rig.ended.pop()).is_some(), "it is as it was");
        // Another file in its place is not what was listed; the one that is still open is.
        rig.world.write_file(&path(39), &content(1, sizes[39])).unwrap();
        rig.ask(39, 0, sizes[39], Some(etag));
        rig.run(1, |_| {});
        assert_eq!(landed(rig.ended.pop()), Some(content(39, sizes[39])));
        rig.restart();
        rig.ask(39, 0, sizes[39], Some(etag));
        rig.run(1, |_| {});
        assert_eq!(rig.failure(), (Kind::Changed, 0));
    }
}

#[test]
fn what_an_earlier_attempt_brought_is_not_read_again() {
    let mut rig = Rig::with_faults(&[5_000; 20], 64, SimFaults { short_read: 0.5, ..SimFaults::default() });
    (0..20).for_each(|n| rig.ask_for_the_rest(n, 1_300 + u64::from(n)));
    rig.run(20, |_| {});
    for outcome in rig.ended.drain(..) {
        let n = outcome.asked.sample.0 as u32;
        assert_eq!(landed(Some(outcome)), Some(content(n, 5_000)));
    }
}

/// Openings are operations, so a slow one holds nothing up; what is open is read again without another, until too many are.
#[test]
fn files_are_opened_side_by_side_and_kept_open() {
    let many = 2 * FOLDER_FILES_MAX as u32;
    let mut rig = Rig::new(&vec![100; many as usize], 64);
    (0..8).for_each(|n| rig.ask(n, 0, 100, None));
    let now = rig.ring.now();
    rig.fetch.pump(&mut rig.ring, now, 8, |_| 1);
    rig.ring.wait(Some(rig.ring.now())).unwrap();
    assert_eq!((rig.ring.in_flight(), rig.fetch.outstanding()), (8, 8), "all are being opened");
    rig.run(8, |_| {});
    let ops = |rig: &Rig| rig.ring.facts().counts.ops;
    let cost = |rig: &mut Rig, n| {
        let (before, ended) = (ops(rig), rig.ended.len());
        rig.ask(n, 0, 100, None);
        rig.run(ended + 1, |_| {});
        ops(rig) - before
    };
    let (open_examine_read_examine, read_examine) = (4, 2);
    assert_eq!(ops(&rig), 8 * open_examine_read_examine);
    assert_eq!(cost(&mut rig, 3), read_examine);
    (8..many).for_each(|n| assert_eq!(cost(&mut rig, n), open_examine_read_examine));
    assert_eq!((cost(&mut rig, many - 1), cost(&mut rig, 3)), (read_examine, open_examine_read_examine));
    assert!(rig.ended.iter().all(|outcome| matches!(outcome.end, End::Landed { .. })));
}

#[test]
fn what_vanished_shrank_or_cannot_be_read_says_so() {
    let mut rig = Rig::new(&[5_000; 4], 64);
    rig.world.remove_file(&path(0));
    rig.world.write_file(&path(1), b"short").unwrap();
    rig.world.fail_disk(&path(2), SimDiskFailure { reads: Some(EIO), writes: None });
    for (n, kind) in [(0, Kind::NotFound), (1, Kind::Changed), (2, Kind::File)] {
        rig.ask(n, 0, 5_000, None);
        rig.run(1, |_| {});
        assert_eq!(rig.failure(), (kind, 0), "{n}");
    }
    rig.ask(3, 0, 5_000, None);
    rig.run(1, |_| {});
    assert!(landed(rig.ended.pop()).is_some());
}

/// Whoever writes to a file while it is read makes an error of it, or was too late to matter.
#[test]
fn no_mixture_of_two_contents_lands() {
    let mut outcomes = [0; 2];
    for seed in 0..200 {
        let mut rig = Rig::new(&[200_000], 64);
        let mut prng = Prng::new(seed);
        let mut writer = SimRing::with_capacity(&rig.world, 8, 4);
        let options = fuelrail_io::FileOptions { write: true, ..fuelrail_io::FileOptions::default() };
        let file = writer.open(&path(0), &options).unwrap();
        let (mut slot, begins) = (window(&mut rig.region, 200_000), prng.below(4));
        slot.put(&vec![0xFF; 200_000]);
        let mut lent = Some(slot.read_pin());
        rig.ask(0, 0, 200_000, None);
        let mut iterations = 0;
        rig.run(1, |_| {
            if iterations == begins
                && let Some(from) = lent.take()
            {
                writer.push(fuelrail_io::Op::WriteAt { file, offset: 0, from, start: 0 }, 0).unwrap();
                writer.wait(Some(writer.now())).unwrap();
            }
            iterations += 1;
        });
        match rig.ended.pop() {
            Some(Outcome { window, end: End::Landed { .. }, .. }) => {
                let bytes = window.bytes();
                assert!(bytes == content(0, 200_000) || bytes.iter().all(|b| *b == 0xFF), "seed {seed}: a mixture");
                outcomes[0] += 1;
            }
            Some(Outcome { window, end: End::Failed { fault: Fault { error, .. }, .. }, .. }) => {
                assert_eq!((error.kind(), window.filled()), (Kind::Changed, 0), "{error}");
                outcomes[1] += 1;
            }
            other => panic!("{other:?}"),
        }
        drop(lent);
    }
    assert!(outcomes[0] > 0, "{outcomes:?}");
}

/// While one file is open, another one is opened in its place, sooner or later; the first of all fails with what to do.
#[test]
fn without_a_descriptor_files_take_turns_and_none_at_all_is_an_error() {
    let faults = SimFaults { no_descriptor: 0.5, ..SimFaults::default() };
    let mut rig = Rig::with_faults(&[5_000; 40], 64, faults);
    (0..40).for_each(|n| rig.ask(n, 0, 5_000, None));
    rig.run(40, |_| {});
    let (mut fetched, mut failed) = (0, 0);
    for outcome in rig.ended.drain(..) {
        let Outcome { asked, window, end, .. } = outcome;
        match end {
            End::Landed { .. } => {
                assert_eq!(window.bytes(), content(asked.sample.0 as u32, 5_000));
                fetched += 1;
            }
            End::Failed { fault, .. } => {
                assert_eq!((fault.error.kind(), window.filled()), (Kind::Environment, 0), "{}", fault.error);
                failed += 1;
            }
            End::Unserved { .. } => panic!("no connection was closed"),
        }
    }
    assert!(fetched >= 30 && failed <= 8 && rig.world.counts().no_descriptor > failed, "{fetched} and {failed}");
    let mut rig = Rig::with_faults(&[10], 64, SimFaults { no_descriptor: 1.0, ..SimFaults::default() });
    rig.ask(0, 0, 10, None);
    rig.run(1, |_| {});
    assert_eq!(rig.failure(), (Kind::Environment, 0));
}

/// Whatever is under way when the loader ends: openings, reads, what waits for a place.
#[test]
fn a_stage_that_ends_hands_every_window_back() {
    for iterations in 0..6 {
        let mut rig = Rig::new(&[200_000; 8], 64);
        rig.world.set_disk(fuelrail_io::SimDisk { latency_max: Duration::from_millis(5), ..Default::default() });
        (0..8).for_each(|n| rig.ask(n, 0, 200_000, None));
        for iteration in 0..1_000 {
            let now = rig.ring.now();
            rig.fetch.pump(&mut rig.ring, now, 8, |_| 1);
            if iteration == iterations {
                rig.fetch.close(&mut rig.ring);
            }
            rig.ring.wait(Some(rig.ring.now())).unwrap();
            while let Some(done) = rig.ring.pop() {
                let now = rig.ring.now();
                rig.fetch.done(&mut rig.ring, now, done);
            }
            rig.ended.extend(rig.fetch.outcomes());
            if rig.ended.len() == 8 {
                break;
            }
            rig.ring.wait(None).unwrap();
            rig.world.advance();
        }
        assert_eq!((rig.ended.len(), rig.ring.in_flight()), (8, 0), "closed in iteration {iterations}");
        for outcome in rig.ended.drain(..) {
            match outcome.end {
                End::Landed { .. } => {}
                End::Failed { fault, .. } => assert_eq!(fault.error.kind(), Kind::Cancelled, "{}", fault.error),
                End::Unserved { .. } => panic!("no connection was closed"),
            }
        }
    }
}

#[test]
fn a_path_out_of_the_folder_is_refused() {
    let mut rig = Rig::new(&[10], 64);
    let listed = [Listed { key: "k/../../x".into(), size: 10, etag: None }];
    let objects = Objects::new("file:///set/".parse().unwrap(), Vec::new(), &listed, 1 << 20).unwrap();
    rig.fetch = FetchStage::new(Arc::new(objects), Duration::from_secs(10), Vec::new());
    rig.world.write_file(Path::new("/x"), &[1; 10]).unwrap();
    rig.ask(0, 0, 10, None);
    rig.run(1, |_| {});
    assert_eq!(rig.failure(), (Kind::Usage, 0));
}
