//! The engine's own counters, added up.

use fuelrail_flow::Snapshot;
use serde::Serialize;

/// The counters of a report, each with the number of a shard's snapshot that it sums up.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $($from:ident).+,)+) => {
        /// The engine's counters, summed over shards, ranks and lives.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            pub(crate) fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }

            pub(crate) fn add_snapshot(&mut self, snapshot: &Snapshot) {
                $(self.$name += snapshot.$($from).+;)+
            }
        }
    };
}

counters! {
    /// Blocks requested.
    asks: planner.asks,
    /// Served from the cache.
    hits: planner.hits,
    /// Served by a fetch already under way.
    shared: planner.shared,
    /// Attempts after the first.
    retries: planner.retries,
    /// Requests sent a second time.
    hedges: planner.hedges,
    /// Fetches given up.
    given_up: planner.given_up,
    /// Blocks dropped from the cache.
    evictions: planner.evictions,
    /// Requests written.
    requests: fetch.requests,
    /// Connections opened.
    connections: fetch.connections,
    /// Connections closed because of an error.
    connections_failed: fetch.connections_failed,
    /// Payload bytes landed.
    landed_bytes: fetch.landed_bytes,
    /// Payload bytes our own code copied.
    copied_bytes: copied_bytes,
    /// Samples fetched anew because their proof failed.
    unproved: unproved,
    /// Response heads whose length was guessed right.
    heads_predicted: fetch.heads_predicted,
    /// … and wrong.
    heads_mispredicted: fetch.heads_mispredicted,
    /// Blocks written to disk.
    spilled: planner.spill.written,
    /// Blocks asked of the disk.
    disk_hits: planner.spill.hits,
    /// Those that could not be had from it.
    disk_lost: planner.spill.lost,
    /// Blocks found on disk at the start.
    adopted: planner.spill.adopted,
    /// Segments given up to make room.
    trims: planner.spill.trims,
}
