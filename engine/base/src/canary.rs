//! Deliberate mistakes inside shipping code, one per stage, which the simulation must notice: an instrument that lets one pass
//! is broken.
//!
//! Without the feature `canary`, which only tests switch on, [`on`] is the constant `false` and nothing is left of them. With it,
//! each place costs one load from the thread's own memory: a build of the whole workspace with tests switches it on everywhere.

/// A mistake that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// The order names one sample at two positions.
    OrderRepeats,
    /// The planner counts fetches that ended as under way.
    WindowLeaks,
    /// A message from one shard to another is lost.
    MeshLoses,
    /// A body that ended early is taken for whole.
    FetchTakesShort,
    /// A hit in RAM brings another block.
    CacheConfuses,
    /// A block from disk is not compared with its checksum.
    SpillTrusts,
    /// A segment that is given up is not removed.
    TrimForgets,
    /// A record of the journal names another place than the block's.
    JournalMisplaces,
    /// A sample is said to begin elsewhere in its batch.
    AssembleMisplaces,
    /// A sample is not compared with the checksum that the server promised.
    AssembleTrusts,
    /// Two batches change places.
    DeliverSwaps,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Mistake; 11] = [
        Mistake::OrderRepeats,
        Mistake::WindowLeaks,
        Mistake::MeshLoses,
        Mistake::FetchTakesShort,
        Mistake::CacheConfuses,
        Mistake::SpillTrusts,
        Mistake::TrimForgets,
        Mistake::JournalMisplaces,
        Mistake::AssembleMisplaces,
        Mistake::AssembleTrusts,
        Mistake::DeliverSwaps,
    ];
}

/// Whether this thread makes the mistake.
#[cfg(not(feature = "canary"))]
#[inline(always)]
#[must_use]
pub const fn on(_: Mistake) -> bool {
    false
}

#[cfg(feature = "canary")]
pub use planted::{on, with};

#[cfg(feature = "canary")]
mod planted {
    use super::Mistake;
    use core::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    /// Whether this thread makes the mistake.
    #[inline]
    #[must_use]
    pub fn on(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }

    /// Does something on this thread with the mistake planted.
    pub fn with<T>(mistake: Mistake, run: impl FnOnce() -> T) -> T {
        struct Removed;
        impl Drop for Removed {
            fn drop(&mut self) {
                PLANTED.set(None);
            }
        }
        PLANTED.set(Some(mistake));
        let _removed = Removed;
        run()
    }
}
