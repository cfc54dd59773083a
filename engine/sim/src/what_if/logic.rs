//! Whether the logic alone (brain, look-ahead, mesh between so many shards) keeps a network card busy: one life of the shipping
//! shards in virtual time, where work costs nothing and nothing goes wrong.
//!
//! Scaled down in bytes and not in proportions: objects and card are a fraction of the real ones, so that the time an object
//! takes on the card, and with it how many must be under way, is as on the node.

use fuelrail_base::{Error, Kind, Result};
use serde::Serialize;

use crate::run::run;
use crate::scenario::Scenario;

/// One life in virtual time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LogicRun {
    /// Shards.
    pub shards: u16,
    /// Time to the first byte of an answer, µs.
    pub latency_us: u64,
    /// How many objects the card carries in that time.
    pub objects_per_latency: u64,
}

/// Length of the objects in virtual time.
const OBJECT_BYTES: u64 = 16 << 10;
/// Objects of each shard: enough that start and end are a small part.
const OBJECTS_PER_SHARD: u64 = 96;
const BATCH_SIZE: u32 = 8;
const SEED: u64 = 1;

/// Share of the card that is busy from the first answer to the last batch.
///
/// # Errors
/// `Environment` when a check of the simulation fails: a bug of the engine, with its seed.
pub fn logic_share(logic: &LogicRun) -> Result<f64> {
    let scenario = scenario(logic);
    let report = run(&scenario);
    if !report.is_sound() {
        return Err(Error::new(Kind::Environment, format!("the simulation is unsound: {report}")).cure("report it"));
    }
    let card_s = scenario.total_bytes as f64 / scenario.bucket.total_bytes_per_s as f64;
    // Nobody's logic brings a byte before the first connection stands and the first answer has come.
    let start_s = 2.0 * logic.latency_us as f64 / 1e6;
    Ok((card_s / (report.virtual_s - start_s).max(card_s)).min(1.0))
}

fn scenario(logic: &LogicRun) -> Scenario {
    let &LogicRun { shards, latency_us, objects_per_latency } = logic;
    let mut scenario = Scenario::quiet(SEED, OBJECTS_PER_SHARD * u64::from(shards), OBJECT_BYTES, BATCH_SIZE);
    let card = objects_per_latency * OBJECT_BYTES * 1_000_000 / latency_us.max(1);
    let bucket = &mut scenario.bucket;
    (bucket.latency_us, bucket.connect_us) = ((latency_us, latency_us), latency_us);
    (bucket.total_bytes_per_s, bucket.connection_bytes_per_s) = (card.max(1), card.max(1));
    scenario.loader.shards = shards;
    scenario
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_card_is_kept_busy_and_a_far_one_less() {
        let share =
            |objects_per_latency| logic_share(&LogicRun { shards: 4, latency_us: 1_000, objects_per_latency }).unwrap();
        let (near, far) = (share(4), share(4_000));
        assert!(near > 0.6, "four objects a latency on four shards: {near}");
        assert!(
            far < near,
            "nobody can have four thousand objects under way with room for {BATCH_SIZE} batches: {far}"
        );
        let again = share(4);
        assert_eq!(near, again, "virtual time repeats itself");
    }
}
