//! Canaries: planted bugs, one at a time, that the checks must catch. An instrument that lets one live is broken.
//!
//! They sit in the simulated world or around a shard's inputs and outputs; those inside the engine are `fuelrail_base::canary`'s.

use crate::scenario::{FaultShares, LifeShape, Scenario};
use fuelrail_io::SimFaults;
use serde::Serialize;

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Canary {
    /// A ring loses one completion, with all the operation owns.
    LostCompletion,
    /// A ring's timers are ten minutes late.
    LateTimer,
    /// The bucket flips a bit of one body and sends no checksum.
    FlippedByte,
    /// A batch is delivered twice, in place of its successor.
    BatchTwice,
    /// Two samples of a batch change places.
    SwappedSamples,
    /// A consumer's batch is never given back.
    LeakedSlot,
    /// A batch is written to while the consumer holds it, as when its slot is freed early.
    EarlySlot,
    /// A life resumes one step too late.
    SkippedStep,
    /// A life resumes one step too early.
    DoubleStep,
    /// The retry counter forgets half of the retries.
    HiddenRetries,
}

fuelrail_base::named!(
    Canary,
    "a canary":
    LostCompletion = "lost-completion",
    LateTimer = "late-timer",
    FlippedByte = "flipped-byte",
    BatchTwice = "batch-twice",
    SwappedSamples = "swapped-samples",
    LeakedSlot = "leaked-slot",
    EarlySlot = "early-slot",
    SkippedStep = "skipped-step",
    DoubleStep = "double-step",
    HiddenRetries = "hidden-retries",
);

impl Canary {
    /// Makes the scenario one in which this bug has an effect: a run long enough, a fault where it needs one, a kill
    /// where it needs one, and nothing that would excuse it.
    pub(crate) fn prepare(self, scenario: &mut Scenario) {
        let s = scenario;
        let count = s.sizes.len().clamp(40, 120);
        s.sizes = (0..count).map(|at| 500 + 37 * at as u64).collect();
        (s.batch_size, s.epochs, s.drop_last, s.hopeless) = (3, 2, false, Vec::new());
        (s.loader.room_bytes, s.loader.stall_after_ms) = (s.loader.room_bytes.max(64 << 10), 5_000);
        s.loader.hedge_percent = 0;
        s.block_bytes = 4096;
        s.lives = vec![LifeShape { world: 2, kill_after_steps: None, kill_after_events: 0 }];
        s.ring = SimFaults::default();
        s.faults = FaultShares::default();
        (s.bucket.addresses, s.bucket.responses_per_connection, s.bucket.until_close) = (1, 0, 0.0);
        match self {
            Canary::SkippedStep | Canary::DoubleStep => {
                s.lives.insert(0, LifeShape { world: 1, kill_after_steps: Some(5), kill_after_events: 3 });
            }
            Canary::HiddenRetries => {
                s.faults = FaultShares { server_error: 0.5, per_key_max: 2, ..FaultShares::default() };
            }
            Canary::LateTimer => {
                // One thing at a time, so that nothing else wakes the shard when its timer does not.
                s.faults = FaultShares { server_error: 0.5, per_key_max: 2, ..FaultShares::default() };
                (s.batch_size, s.loader.shards, s.loader.connections_start, s.loader.connections_max) = (1, 1, 1, 1);
                s.sizes = vec![3000; count];
                (s.loader.watermarks, s.loader.room_bytes) = (None, 3008);
                (s.lives[0].world, s.consumer.step_us, s.consumer.pause) = (1, 0, 0.0);
            }
            _ => {}
        }
        (s.samples, s.total_bytes) = (count as u64, s.sizes.iter().sum());
    }
}
