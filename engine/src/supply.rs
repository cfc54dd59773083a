//! Where finished batches come from: the shards themselves, or the decode stage behind them.

use crate::decode::{DecodeStage, DecodeStats, Facts, Shape};
use fuelrail_flow::{Finished, GateFacts, Outlet};
use fuelrail_io::Waker;
use std::sync::Arc;

/// The consumer's side of whatever stands before it.
pub(crate) enum Supply {
    Raw(Outlet),
    Decoded(DecodeStage),
}

impl Supply {
    /// All batches have been taken.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Supply::Raw(outlet) => outlet.is_finished(),
            Supply::Decoded(stage) => stage.is_finished(),
        }
    }

    /// The next batch in order, if it is there.
    pub(crate) fn try_take(&mut self) -> Option<Finished> {
        match self {
            Supply::Raw(outlet) => outlet.try_take(),
            Supply::Decoded(stage) => stage.try_take(),
        }
    }

    pub(crate) fn set_waiting(&mut self, waits: bool) {
        match self {
            Supply::Raw(outlet) => outlet.set_waiting(waits),
            Supply::Decoded(stage) => stage.set_waiting(waits),
        }
    }

    pub(crate) fn set_waker(&self, waker: &Waker) {
        match self {
            Supply::Raw(outlet) => outlet.set_waker(waker),
            Supply::Decoded(stage) => stage.set_waker(waker),
        }
    }

    /// Whether only the consumer can make room for the next batch. `None` where the shards know.
    pub(crate) fn is_starved(&self) -> Option<bool> {
        match self {
            Supply::Raw(_) => None,
            Supply::Decoded(stage) => Some(stage.is_starved()),
        }
    }

    /// What so many decoded samples are.
    pub(crate) fn shape(&self, samples: usize) -> Option<Shape> {
        match self {
            Supply::Raw(_) => None,
            Supply::Decoded(stage) => Some(Shape::new(samples, stage.decode())),
        }
    }

    /// Bytes of so many decoded samples.
    pub(crate) fn decoded_bytes(&self, samples: u32) -> Option<u64> {
        match self {
            Supply::Raw(_) => None,
            Supply::Decoded(stage) => Some(u64::from(samples) * stage.decode().sample_bytes()),
        }
    }

    /// For the watchdog, which outlives no stage it looks at.
    pub(crate) fn decode_facts(&self) -> Option<Arc<Facts>> {
        match self {
            Supply::Raw(_) => None,
            Supply::Decoded(stage) => Some(Arc::clone(stage.facts())),
        }
    }

    pub(crate) fn decode_stats(&self) -> Option<(DecodeStats, [GateFacts; 2])> {
        let facts = self.decode_facts()?;
        Some((facts.stats(), facts.gates()))
    }

    /// In a forked child: lets go without waiting for threads that do not exist there.
    pub(crate) fn forget(&mut self) {
        if let Supply::Decoded(stage) = self {
            stage.forget();
        }
    }
}
