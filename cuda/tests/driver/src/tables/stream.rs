//! Streams: their queues, their counts, their randomness.
//!
//! Owns what a stream is; what its thread does is said in [`crate::stream`].

use crate::tables::work::Work;
use std::cell::Cell;
use std::collections::VecDeque;

/// A capture that has begun: its mode, and whether a call has broken it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    pub(crate) mode: i32,
    pub(crate) broken: bool,
}

/// Made with this flag, a stream does not wait for the legacy default stream.
pub(crate) const NON_BLOCKING: u32 = 1;
/// Legacy streams have handles of their own inside, one for each device.
pub(crate) const LEGACY_HANDLES: u64 = 0x00fd_0000_0000_0000;

thread_local! {
    pub(crate) static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is a stream's, inside a host function.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// One stream.
pub(crate) struct Stream {
    pub(crate) device: u32,
    pub(crate) flags: u32,
    pub(crate) queue: VecDeque<(u64, Work)>,
    pub(crate) submitted: u64,
    pub(crate) done: u64,
    /// Its handle is good; a destroyed stream still ends its work.
    pub(crate) live: bool,
    pub(crate) random: Random,
}

impl Stream {
    /// Whether the user made it and has not destroyed it.
    pub(crate) fn is_users(&self, handle: u64) -> bool {
        self.live && handle & LEGACY_HANDLES != LEGACY_HANDLES
    }

    pub(crate) fn blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}

/// The generator of the delays (splitmix64).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
