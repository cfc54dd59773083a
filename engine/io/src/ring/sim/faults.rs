//! Which faults a simulated world injects, and how many it has.

use fuelrail_base::Duration;
use fuelrail_base::prng::{Prng, mix64};

/// Probabilities of faults, each per operation and in `0..=1`. The default injects none.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct SimFaults {
    /// A receive gets fewer bytes than have arrived.
    pub short_receive: f64,
    /// A send takes fewer bytes than it was given.
    pub short_send: f64,
    /// The completions of one iteration are shuffled.
    pub reorder: f64,
    /// An operation fails transiently (`EINTR`, `EAGAIN`, `ENOBUFS`); nothing is moved, a retry may succeed.
    pub transient_errno: f64,
    /// An operation fails for good, with its connection (`ECONNRESET`, `ETIMEDOUT`, `EPIPE`; refused
    /// when connecting).
    pub fatal_errno: f64,
    /// One bit of the received bytes is flipped.
    pub corrupt: f64,
    /// A completion comes later than it could.
    pub delay: f64,
    /// The longest such delay.
    pub delay_max: Duration,
    /// A read from a file gets fewer bytes than there are.
    pub short_read: f64,
    /// A write to a file takes fewer bytes than it was given.
    pub short_write: f64,
    /// An operation on a file fails (`EIO`); nothing is moved.
    pub disk_errno: f64,
    /// An operation fails for lack of kernel memory (`ENOMEM`); nothing is moved.
    pub no_memory: f64,
    /// No descriptor is left for a file, or for a socket (`EMFILE`); not for the only socket of a ring, which would have
    /// nothing to wait for.
    pub no_descriptor: f64,
    /// The completion queue overflows: some completions of an iteration come with the next, and nothing is submitted before.
    pub overflow: f64,
}

impl SimFaults {
    /// A random mix for this seed: each kind of fault is off in about half of the seeds, so that faults are also seen
    /// alone. Corruption is left out (plain HTTP cannot detect it); set it by hand where something checks.
    pub fn swarm(seed: u64) -> SimFaults {
        let mut prng = Prng::new(mix64(seed ^ 0x5741_524D));
        let mut weight = |most: f64| if prng.chance(0.5) { 0.0 } else { prng.unit() * most };
        let network = SimFaults {
            short_receive: weight(0.9),
            short_send: weight(0.9),
            reorder: weight(1.0),
            transient_errno: weight(0.05),
            fatal_errno: weight(0.01),
            corrupt: 0.0,
            delay: weight(0.5),
            delay_max: Duration::from_micros(1 + prng.below(20_000)),
            ..SimFaults::default()
        };
        // Drawn last, so that what the network does under a seed stays what it was before there were disks.
        let mut weight = |most: f64| if prng.chance(0.5) { 0.0 } else { prng.unit() * most };
        SimFaults { short_read: weight(0.9), short_write: weight(0.9), disk_errno: weight(0.01), ..network }
    }
}

/// Faults injected so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SimCounts {
    /// Receives cut short.
    pub short_receives: u64,
    /// Sends cut short.
    pub short_sends: u64,
    /// Iterations whose completions were shuffled into another order.
    pub reorders: u64,
    /// Operations that failed transiently.
    pub transient_errnos: u64,
    /// Operations that failed for good, with their connection.
    pub fatal_errnos: u64,
    /// Receives with a flipped bit.
    pub corruptions: u64,
    /// Completions held back.
    pub delays: u64,
    /// File reads cut short.
    pub short_reads: u64,
    /// File writes cut short.
    pub short_writes: u64,
    /// Operations on files failed.
    pub disk_errnos: u64,
    /// Operations that failed for lack of memory.
    pub no_memory: u64,
    /// Sockets and files refused for lack of a descriptor.
    pub no_descriptor: u64,
    /// Iterations of which some completions came later.
    pub overflows: u64,
}
