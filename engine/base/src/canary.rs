//! Deliberate mistakes inside shipping code, one per stage, which the simulation must detect: a checker that misses one is broken.
//!
//! A [`Crash`] can be planted, too: a shard fails at a given stage, which the run must report as an error.
//!
//! Without the feature `canary`, which only tests switch on, [`on`] is the constant `false` and nothing is left of them. With it,
//! each place costs one load from the thread's own memory: a build of the whole workspace with tests switches it on everywhere.

/// A mistake that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// The order names one sample at two positions.
    OrderRepeats,
    /// The planner counts ended fetches as in flight.
    WindowLeaks,
    /// A message from one shard to another is lost.
    ChannelLoses,
    /// A body that ended early is taken for whole.
    FetchTakesShort,
    /// A hit in RAM returns another block.
    CacheConfuses,
    /// A block from disk is not compared with its checksum.
    SpillTrusts,
    /// A retired segment is not removed.
    TrimForgets,
    /// A record of the journal has a wrong place for its block.
    JournalMisplaces,
    /// A sample has a wrong offset in its batch.
    AssembleMisplaces,
    /// A sample is not compared with the server's checksum.
    AssembleTrusts,
    /// Two batches change places.
    DeliverSwaps,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Mistake; 11] = [
        Mistake::OrderRepeats,
        Mistake::WindowLeaks,
        Mistake::ChannelLoses,
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

/// The stages at which a shard can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Before it has fetched anything.
    Start,
    /// When received bytes come back from the ring.
    Receive,
    /// When a block is written to disk.
    Spill,
    /// When a block has reached the batch that needs it.
    Assemble,
    /// When a batch is complete.
    Deliver,
    /// When a sample is decoded: on a decoding thread, whatever the shard.
    Decode,
}

impl Stage {
    /// All of them.
    pub const ALL: [Stage; 6] =
        [Stage::Start, Stage::Receive, Stage::Spill, Stage::Assemble, Stage::Deliver, Stage::Decode];
}

/// A planted failure of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crash {
    /// Which shard.
    pub shard: u16,
    /// Where.
    pub stage: Stage,
    /// How often it passes there before.
    pub after: u32,
    /// The error number that the next wait of its ring ends with; `None` is a panic.
    pub errno: Option<i32>,
}

/// Whether this thread makes the mistake.
#[cfg(not(feature = "canary"))]
#[inline(always)]
#[must_use]
pub const fn on(_: Mistake) -> bool {
    false
}

/// A shard passes a stage, where a planted crash may end it.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub const fn pass(_: u16, _: Stage) {}

/// The error number that the wait of this shard's ring is to end with.
#[cfg(not(feature = "canary"))]
#[inline(always)]
#[must_use]
pub const fn refusal(_: u16) -> Option<i32> {
    None
}

/// The work of a new thread, on which is planted what is planted on this one.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub const fn inherited<T, W: FnOnce() -> T>(work: W) -> W {
    work
}

#[cfg(feature = "canary")]
pub use planted::{inherited, on, pass, refusal, with, with_crash};

#[cfg(feature = "canary")]
mod planted {
    use super::{Crash, Mistake, Stage};
    use core::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
        static CRASH: Cell<Option<Crash>> = const { Cell::new(None) };
        /// A crash that is due at the shard's next wait.
        static DUE: Cell<Option<Crash>> = const { Cell::new(None) };
    }

    /// Whether this thread makes the mistake.
    #[inline]
    #[must_use]
    pub fn on(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }

    /// A shard passes a stage, where a planted crash may end it.
    ///
    /// # Panics
    /// When a panic is what was planted.
    #[inline]
    pub fn pass(shard: u16, stage: Stage) {
        let Some(crash) = CRASH.get().filter(|crash| (crash.shard, crash.stage) == (shard, stage)) else { return };
        if let Some(after) = crash.after.checked_sub(1) {
            return CRASH.set(Some(Crash { after, ..crash }));
        }
        CRASH.set(None);
        assert!(crash.errno.is_some(), "a planted panic of shard {shard} at {stage:?}");
        DUE.set(Some(crash));
    }

    /// The error number that the wait of this shard's ring is to end with.
    #[inline]
    #[must_use]
    pub fn refusal(shard: u16) -> Option<i32> {
        let crash = DUE.get().filter(|crash| crash.shard == shard)?;
        DUE.set(None);
        crash.errno
    }

    /// The work of a new thread, on which is planted what is planted on this one.
    pub fn inherited<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let (planted, crash) = (PLANTED.get(), CRASH.get());
        move || {
            PLANTED.set(planted);
            CRASH.set(crash);
            work()
        }
    }

    /// Takes out what was planted, when the work is done or panics.
    struct Removed;

    impl Drop for Removed {
        fn drop(&mut self) {
            PLANTED.set(None);
            CRASH.set(None);
            DUE.set(None);
        }
    }

    /// Does something on this thread with the mistake planted.
    pub fn with<T>(mistake: Mistake, run: impl FnOnce() -> T) -> T {
        PLANTED.set(Some(mistake));
        let _removed = Removed;
        run()
    }

    /// Does something on this thread, and on those it starts, with the crash planted.
    pub fn with_crash<T>(crash: Crash, run: impl FnOnce() -> T) -> T {
        CRASH.set(Some(crash));
        let _removed = Removed;
        run()
    }
}
