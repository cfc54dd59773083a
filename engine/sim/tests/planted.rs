//! A mistake inside the shipping code of each stage is noticed, and by the check that is there for it.

use crate::seeds::seeds;
use fuelrail_base::canary::{self, Mistake};
use fuelrail_io::SimFaults;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::spill::SpillPolicy;
use fuelrail_sim::{Checker, DiskShape, FaultShares, LifeShape, Scenario, run};

/// Which checks may notice it. A mistake that breaks what the code itself asserts is noticed by that.
fn checkers(mistake: Mistake) -> &'static [Checker] {
    match mistake {
        Mistake::OrderRepeats => &[Checker::ExactlyOnce],
        Mistake::WindowLeaks | Mistake::ChannelLoses => &[Checker::Liveness, Checker::Starvation],
        Mistake::FetchTakesShort | Mistake::CacheConfuses | Mistake::SpillTrusts => &[Checker::Content],
        Mistake::AssembleMisplaces | Mistake::AssembleTrusts => &[Checker::Content],
        Mistake::TrimForgets | Mistake::JournalMisplaces => &[Checker::Disk],
        Mistake::DeliverSwaps => &[Checker::Order],
    }
}

/// A scenario in which the mistake has an effect, and nothing would excuse it.
fn scenario(mistake: Mistake, seed: u64) -> Scenario {
    let mut s = Scenario::draw(seed);
    s.sizes = vec![3_000; 60];
    (s.order, s.shuffle) = (OrderName::Global, true);
    (s.batch_size, s.epochs, s.drop_last, s.hopeless) = (3, 3, false, Vec::new());
    (s.block_bytes, s.disk, s.ring) = (4096, None, SimFaults::default());
    s.lives = vec![LifeShape { world: 1, kill_after_steps: None, kill_after_events: 0 }];
    (s.faults, s.bucket.crc32c, s.bucket.etags) = (FaultShares::default(), false, (true, true));
    (s.bucket.addresses, s.bucket.responses_per_connection, s.bucket.until_close) = (1, 0, 0.0);
    let l = &mut s.loader;
    (l.shards, l.cache_bytes, l.watermarks, l.hedge_percent) = (1, 0, None, 0);
    (l.room_bytes, l.ring_entries, l.ring_sockets, l.bad_samples) = (64 << 10, 512, 512, "raise");
    match mistake {
        Mistake::ChannelLoses => (s.loader.shards, s.loader.cache_bytes) = (3, 1 << 20),
        Mistake::CacheConfuses => (s.loader.cache_bytes, s.loader.policy) = (1 << 20, PolicyName::NextUse),
        Mistake::FetchTakesShort => {
            s.bucket.until_close = 1.0;
            s.faults = FaultShares { finish: 0.5, per_key_max: 2, ..FaultShares::default() };
        }
        Mistake::AssembleTrusts => {
            (s.bucket.crc32c, s.bucket.chunked) = (true, 0.0);
            s.faults = FaultShares { flipped: 0.5, per_key_max: 2, ..FaultShares::default() };
        }
        Mistake::SpillTrusts | Mistake::JournalMisplaces => {
            let first = LifeShape { world: 1, kill_after_steps: Some(40), kill_after_events: 0 };
            s.lives.insert(0, first);
            // A disk that is no faster than the bucket is not read.
            s.bucket.latency_us = (20_000, 30_000);
            let rot_bits = if mistake == Mistake::SpillTrusts { 1_000 } else { 0 };
            s.add_disk(DiskShape { rot_bits, ..DiskShape::faultless() });
        }
        Mistake::TrimForgets => {
            (s.sizes, s.epochs) = (vec![40_000; 60], 4);
            s.loader.room_bytes = 1 << 20;
            // A disk that is no faster than the bucket is not used.
            s.bucket.latency_us = (20_000, 30_000);
            (s.samples, s.total_bytes) = (60, s.sizes.iter().sum());
            s.add_disk(DiskShape { segments_max: 1, policy: SpillPolicy::Fifo, ..DiskShape::faultless() });
        }
        _ => {}
    }
    (s.samples, s.total_bytes) = (s.sizes.len() as u64, s.sizes.iter().sum());
    s
}

#[test]
fn a_mistake_in_any_stage_is_noticed() {
    for mistake in Mistake::ALL {
        for seed in seeds(0..3, 1) {
            let scenario = (seed..seed + 20).map(|seed| scenario(mistake, seed)).find(|scenario| {
                let sound = run(scenario);
                assert!(sound.is_sound(), "{mistake:?}, seed {seed}, not planted: {sound}");
                // Damage may meet no block that is read again, or so much that no segment is.
                mistake != Mistake::SpillTrusts || sound.counters.disk_lost > 0
            });
            let scenario = scenario.unwrap_or_else(|| panic!("{mistake:?}, seed {seed}: nothing to notice"));
            let report = canary::with(mistake, || run(&scenario));
            let found = report.violations.first();
            let found = found.unwrap_or_else(|| panic!("{mistake:?} lives, seed {seed}: {report}"));
            let is_panic = found.checker == Checker::Panic;
            assert!(is_panic || checkers(mistake).contains(&found.checker), "{mistake:?}, seed {seed}: {report}");
        }
    }
}
