//! Events and their recordings.
//!
//! Owns what an event is; who waits for one is said in [`crate::event`].

use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// One recording of an event: reached or not yet.
#[derive(Debug, Default)]
pub(crate) struct Marker {
    reached: OnceLock<Instant>,
}

impl Marker {
    /// When it was reached.
    pub(crate) fn reached(&self) -> Option<Instant> {
        self.reached.get().copied()
    }

    pub(crate) fn reach(&self) {
        self.reached.get_or_init(Instant::now);
    }
}

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) device: u32,
    pub(crate) flags: u32,
    /// The latest recording.
    pub(crate) marker: Option<Arc<Marker>>,
}
