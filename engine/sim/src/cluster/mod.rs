//! A job of up to a thousand ranks and more that keep blocks for each other, in virtual time: the shipping planner of each rank.
//!
//! Only planners are played, against a bucket, a network and disks of given latencies and rates: no bytes, no connections, one shard a rank.
//! Trainers sum their gradients, so all wait for the last one in every step. Every sample of a whole epoch must come once. What one planner
//! was told is recorded: told again to a planner alone, it shows what planning costs without the other ranks in the processor's caches.

mod job;
mod shape;

use fuelrail_base::Result;
use fuelrail_base::prng::mix64;
use job::Job;
pub use shape::{Cluster, Played, Recording};

/// Plays it.
///
/// # Errors
/// `Usage` for a job that cannot be; `Environment` when a sample came twice or not at all, or nothing goes on: a bug of the engine.
pub fn play(cluster: &Cluster) -> Result<(Played, Recording)> {
    let names: Vec<u64> = (1..=u64::from(cluster.ranks) + u64::from(cluster.new_ranks)).map(mix64).collect();
    let (names, new) = names.split_at(cluster.ranks.into());
    let mut job = Job::new(cluster, names)?;
    if cluster.lost_ranks > 0 || !new.is_empty() {
        job.go_on(cluster.lost_at_step)?;
        job.begin_anew(names, new)?;
    }
    job.go_on(cluster.steps_max)?;
    job.end()
}
