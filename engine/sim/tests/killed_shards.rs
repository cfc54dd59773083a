//! A shard that dies anywhere, of anything: the consumer is told why within a second, the other shards end by themselves, and all
//! memory and connections are given back.

use crate::seeds::seeds;
use fuelrail_base::canary::{self, Crash, Stage};
use fuelrail_base::prng::Prng;
use fuelrail_sim::{Checker, DiskShape, LifeShape, Scenario, run};

const SHARDS: [u16; 4] = [1, 2, 4, 8];
const STAGES: [Stage; 5] = [Stage::Start, Stage::Receive, Stage::Spill, Stage::Assemble, Stage::Deliver];
/// Error numbers of the ring, and what the error says; none is a panic.
const WAYS: [(Option<i32>, &str); 3] =
    [(None, " panicked: a planted panic"), (Some(5), "Input/output error"), (Some(12), "Cannot allocate memory")];

/// Whatever else may be wrong with this seed's world stays so; one rank, one life.
fn scenario(seed: u64, crash: Crash, shards: u16) -> Scenario {
    let mut s = Scenario::draw(seed);
    s.lives = vec![LifeShape { world: 1, kill_after_steps: None, kill_after_events: 0 }];
    (s.hopeless, s.outage, s.loader.shards) = (Vec::new(), None, shards);
    // Long enough for every shard to come by every stage.
    s.sizes = s.sizes.iter().copied().cycle().take(s.sizes.len().max(60)).collect();
    (s.samples, s.total_bytes) = (s.sizes.len() as u64, s.sizes.iter().sum());
    (s.epochs, s.batch_size) = (s.epochs.max(3), s.batch_size.min(4));
    let longest = s.sizes.iter().max().copied().unwrap_or(0);
    s.loader.room_bytes = s.loader.room_bytes.max(u64::from(s.batch_size) * (longest + 8192));
    if crash.stage == Stage::Spill {
        // A disk that is no faster than the bucket is not used.
        s.bucket.latency_us = (20_000, 30_000);
        s.add_disk(DiskShape::faultless());
    }
    s
}

#[test]
fn a_shard_that_dies_ends_the_run_with_its_cause_within_a_second() {
    let (mut died, mut played) = (0, 0);
    for seed in seeds(0..60, 0) {
        let mut prng = Prng::new(seed);
        let at = seed as usize;
        let (shards, stage) = (SHARDS[at % 4], STAGES[at / 4 % 5]);
        let (errno, says) = WAYS[at / 20 % 3];
        let crash = Crash { shard: prng.below(u64::from(shards)) as u16, stage, after: prng.below(4) as u32, errno };
        let scenario = scenario(seed, crash, shards);
        let report = canary::with_crash(crash, || run(&scenario));
        played += 1;
        // A small data set may come to its end before the crash is due, or be delivered to its last batch.
        let Some(found) = report.violations.first() else { continue };
        assert_eq!((report.violations.len(), found.checker), (1, Checker::Panic), "{crash:?}: {report}");
        assert!(found.text.starts_with(&format!("shard {}", crash.shard)), "{crash:?}: {report}");
        assert!(found.text.contains(says), "{crash:?}: {report}");
        died += 1;
    }
    assert!(died * 10 > played * 9, "only {died} of {played} crashes ended a run: they prove too little");
}
