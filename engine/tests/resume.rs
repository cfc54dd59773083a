//! A run that is killed goes on where it stood: real processes, SIGKILL, and the joined logs as the proof.
//!
//! The test binary is its own child: run with [`ROLE`] set, the test that is named becomes a rank that reads, logs, saves
//! its state after every batch, and is killed for it.

use crate::common::{PATIENCE, bare_listing, bucket, eventually, listing, loader_at};
use fuelrail::{Audit, ByteSize, Kind, Listed, State};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::{Bucket, DataSet};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Set in a child: what it shall do, as JSON.
const ROLE: &str = "RESUME_TEST_ROLE";

/// What one child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Role {
    uri: String,
    set: DataSet,
    rank: u32,
    world: u32,
    order: String,
    shards: u16,
    cache_bytes: u64,
    /// Work between a batch and the saving of its state: a kill in it loses a batch that was logged.
    work_us: u64,
    /// The state it goes on from, if any.
    resume: Option<State>,
    /// The log it writes.
    log: PathBuf,
    /// States land here, one file per batch: `RANK-SEQ`.
    states: PathBuf,
}

/// Every other seed plays under the sticky order.
fn order_of(seed: u64) -> String {
    ["global", "sticky"][seed as usize % 2].into()
}

const BATCH: u32 = 4;
const EPOCHS: u64 = 2;

impl Role {
    fn of_this_process() -> Option<Role> {
        std::env::var(ROLE).ok().map(|text| serde_json::from_str(&text).expect("the parent wrote it"))
    }

    /// Reads to the end, saving the state after every batch; the parent usually does not let it come that far.
    fn play(self) {
        let mut builder = loader_at(&self.uri)
            .batch_size(BATCH)
            .epochs(EPOCHS)
            .rank(self.rank)
            .world(self.world)
            .order(self.order.parse().unwrap())
            .shards(self.shards)
            .cache_limit(ByteSize(self.cache_bytes))
            .connections_max(8)
            .audit(self.log.clone());
        if let Some(state) = self.resume.clone() {
            builder = builder.resume(state);
        }
        let mut loader = builder.build().expect("a sound role");
        while let Some(batch) = loader.next_batch() {
            let batch = batch.expect("a healthy bucket");
            for sample in batch.samples() {
                self.set.verify(loader.key(sample.id), sample.bytes).expect("every byte is the generator's");
            }
            std::thread::sleep(Duration::from_micros(self.work_us));
            self.save(batch.seq(), &loader.state());
        }
    }

    /// Whole or not at all: written beside its place, then renamed.
    fn save(&self, seq: u64, state: &State) {
        let place = self.states.join(format!("{}-{seq:06}", self.rank));
        let beside = place.with_extension("new");
        std::fs::write(&beside, state.to_json()).expect("the scratch folder takes it");
        std::fs::rename(&beside, &place).expect("the scratch folder takes it");
    }

    /// Starts a child that plays this role as part of the test called `test`.
    fn start(&self, test: &str) -> Child {
        std::fs::create_dir_all(&self.states).unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("resume::{test}"), "--nocapture", "--test-threads=1"])
            .env(ROLE, serde_json::to_string(self).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .expect("this binary can be run again")
    }
}

/// The state after batch `seq` of a rank.
fn saved(states: &Path, rank: u32, seq: u64) -> Option<State> {
    let text = std::fs::read_to_string(states.join(format!("{rank}-{seq:06}"))).ok()?;
    Some(State::from_json(&text).expect("a state is whole or absent"))
}

/// Batches of a rank whose states were saved.
fn batches_saved(states: &Path, rank: u32) -> u64 {
    (0..).find(|&seq| !states.join(format!("{rank}-{seq:06}")).exists()).expect("there is an end")
}

/// The log holds more than its first line.
fn is_begun(log: &Path) -> bool {
    std::fs::read(log).is_ok_and(|text| text.iter().filter(|&&byte| byte == b'\n').count() > 1)
}

/// Kills with SIGKILL, whatever it is doing. True when it had not ended on its own.
fn kill(mut child: Child) -> bool {
    child.kill().expect("it is our child");
    let status = child.wait().expect("it is our child");
    assert!(status.success() || status.code().is_none(), "the child failed: {status}");
    !status.success()
}

fn wait(mut child: Child) {
    let begun = Instant::now();
    while child.try_wait().expect("it is our child").is_none() {
        assert!(begun.elapsed() < PATIENCE, "the last leg never ended");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().expect("it is our child").success());
}

fn assert_exactly_once(logs: &[PathBuf], samples: u64) {
    // A child killed before its log had its first line left nothing.
    let begun = |path: &&PathBuf| std::fs::read(path).is_ok_and(|text| text.contains(&b'\n'));
    let logs: Vec<Audit> = logs.iter().filter(begun).map(|path| Audit::read(path).unwrap()).collect();
    let verdict = Audit::join(&logs).unwrap();
    assert!(verdict.exactly_once, "{} logs: {verdict:?}", logs.len());
    assert!(verdict.epochs.iter().all(|epoch| epoch.once == samples) && verdict.epochs.len() as u64 == EPOCHS);
}

/// One run from its first sample to its last, killed and resumed on the way. Returns how often it was killed.
fn journey(test: &str, seed: u64, bucket: &Bucket, set: &DataSet, folder: &Path) -> u64 {
    let mut draw = Prng::new(seed);
    let mut logs = Vec::new();
    let mut resume: Option<State> = None;
    let mut kills = 0;
    for leg in 0.. {
        let place = folder.join(format!("{seed}-{leg}"));
        let role = Role {
            uri: bucket.url(""),
            set: set.clone(),
            rank: 0,
            world: 1,
            shards: 1 + (seed % 2) as u16,
            order: order_of(seed),
            cache_bytes: if seed.is_multiple_of(3) { 20_000 } else { 0 },
            work_us: draw.below(4000),
            resume: resume.clone(),
            log: place.with_extension("log"),
            states: place,
        };
        logs.push(role.log.clone());
        let mut child = role.start(test);
        let mut ended = || child.try_wait().expect("it is our child").is_some();
        // Now and then before it does anything, or once its first batch is logged; mostly some batches on.
        match draw.below(8) {
            0 => {}
            1 => eventually("a batch is logged", || ended() || is_begun(&role.log)),
            _ => {
                let batches = draw.below(13);
                eventually("batches come", || ended() || batches_saved(&role.states, 0) >= batches);
            }
        }
        std::thread::sleep(Duration::from_micros(draw.below(3000)));
        let killed = kill(child);
        kills += u64::from(killed);
        let batches = batches_saved(&role.states, 0);
        if batches > 0 {
            resume = saved(&role.states, 0, batches - 1);
        }
        if !killed {
            break;
        }
    }
    assert_exactly_once(&logs, set.len());
    kills
}

#[test]
fn killed_at_random_moments_and_resumed_delivers_every_sample_once() {
    const TEST: &str = "killed_at_random_moments_and_resumed_delivers_every_sample_once";
    if let Some(role) = Role::of_this_process() {
        return role.play();
    }
    let folder = tempfile::tempdir().unwrap();
    let set = DataSet::digits(500, 5);
    let bucket = bucket(&set, "latency=uniform:0ms..2ms");
    let kills: u64 = std::thread::scope(|scope| {
        let journeys = |from: u64| {
            let (bucket, set, folder) = (&bucket, &set, folder.path());
            move || {
                let mut kills = 0;
                for seed in (from..).step_by(2) {
                    kills += journey(TEST, seed, bucket, set, folder);
                    if kills >= 50 {
                        break;
                    }
                }
                kills
            }
        };
        let both = [scope.spawn(journeys(0)), scope.spawn(journeys(1))];
        both.into_iter().map(|thread| thread.join().expect("every journey ends")).sum()
    });
    assert!(kills >= 100, "{kills} kills");
}

#[test]
fn world_size_may_change_in_the_middle_of_an_epoch() {
    const TEST: &str = "world_size_may_change_in_the_middle_of_an_epoch";
    if let Some(role) = Role::of_this_process() {
        return role.play();
    }
    let folder = tempfile::tempdir().unwrap();
    let set = DataSet::digits(331, 5);
    let bucket = bucket(&set, "latency=uniform:0ms..2ms");
    for seed in 0..4 {
        let mut draw = Prng::new(seed);
        let mut logs = Vec::new();
        let mut resume: Option<State> = None;
        // The world shrinks and grows; the last leg runs to its end.
        for (leg, world) in [3u32, 2, 4, 3, 2, 4].into_iter().enumerate() {
            let states = folder.path().join(format!("{seed}-{leg}"));
            let work_us = draw.below(2000);
            let role = |rank: u32| Role {
                uri: bucket.url(""),
                set: set.clone(),
                rank,
                world,
                shards: 1,
                order: order_of(seed),
                cache_bytes: 0,
                work_us,
                resume: resume.clone(),
                log: folder.path().join(format!("{seed}-{leg}-{rank}.log")),
                states: states.clone(),
            };
            let roles: Vec<Role> = (0..world).map(role).collect();
            logs.extend(roles.iter().map(|role| role.log.clone()));
            let mut children: Vec<Child> = roles.iter().map(|role| role.start(TEST)).collect();
            if leg == 5 {
                children.into_iter().for_each(wait);
                break;
            }
            let steps = draw.below(12);
            eventually("all ranks move", || {
                let ended = children.iter_mut().all(|child| child.try_wait().expect("it is our child").is_some());
                ended || (0..world).all(|rank| batches_saved(&states, rank) >= steps)
            });
            std::thread::sleep(Duration::from_micros(draw.below(3000)));
            for child in children {
                kill(child);
            }
            // What every rank has done is where the next world goes on; faster ranks lose what they had ahead.
            let common = (0..world).map(|rank| batches_saved(&states, rank)).min().expect("a world has ranks");
            if let Some(last) = common.checked_sub(1) {
                let states: Vec<State> = (0..world).filter_map(|rank| saved(&states, rank, last)).collect();
                assert!(states.iter().all(|state| *state == states[0]), "ranks disagree: {states:?}");
                resume = Some(states[0].clone());
            }
        }
        assert_exactly_once(&logs, set.len());
    }
}

/// A copy of it elsewhere has other ETags, and a manifest may have none.
#[test]
fn a_data_set_is_known_by_its_keys_and_sizes() {
    let set = DataSet::digits(8, 1);
    let bucket = bucket(&set, "");
    let builder = |listed: Vec<Listed>| loader_at(&bucket.url("")).batch_size(4).listing(listed);
    let mut first = builder(listing(&set)).build().unwrap();
    first.next_batch().unwrap().unwrap();
    let state = first.state();
    let rest = builder(bare_listing(&set)).resume(state.clone()).build().unwrap();
    assert_eq!(rest.map(|batch| batch.unwrap().len()).sum::<usize>(), 4);
    let mut longer = listing(&set);
    longer[0].size += 1;
    let error = builder(longer).resume(state).build().unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("saved with listing"), "{error}");
}
