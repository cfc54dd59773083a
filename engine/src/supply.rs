//! Where finished batches come from: the shards themselves, or the decode stage behind them.

use crate::decode::DecodeStage;
use fuelrail_flow::{Finished, Outlet};
use fuelrail_io::Waker;

/// The source of the consumer's batches: shards, or the decoding stage.
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

    /// What decodes, where anything is decoded.
    pub(crate) fn stage(&self) -> Option<&DecodeStage> {
        match self {
            Supply::Raw(_) => None,
            Supply::Decoded(stage) => Some(stage),
        }
    }

    /// In a forked child: lets go without waiting for threads that do not exist there.
    pub(crate) fn forget(&mut self) {
        if let Supply::Decoded(stage) = self {
            stage.forget();
        }
    }
}
