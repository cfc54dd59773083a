//! What a stream can be asked to do, and what a piece of work touches while it is pending.
//!
//! Owns the kinds of work and the table of pending touches, by which a free under a running copy is seen.

use crate::copy::{Copy, Fill};
use crate::driver::State;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A function of the host that a stream calls, with its argument.
#[derive(Clone, Copy)]
pub(crate) struct Callback {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    /// The argument, as a number: it crosses threads.
    pub(crate) argument: usize,
}

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

/// One piece of work.
pub(crate) enum Work {
    /// Bytes from one place to another.
    Copy(Copy),
    /// A byte, many times.
    Fill(Fill),
    /// Calls the host.
    Call(Callback),
    /// An event's recording is reached.
    Reach(Arc<Marker>),
    /// Waits for an event's recording.
    Await(Arc<Marker>),
    /// Waits until another stream has done this many pieces of work.
    AwaitStream { stream: u64, done: u64 },
    /// Gives device memory back.
    Free { pointer: u64 },
}

/// A range of memory, host or device, that pending work will read or write.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// What the work is, for the text of a violation.
    pub(crate) what: String,
}

impl State {
    /// The first pending piece of work that touches a range.
    pub(crate) fn pending_on(&self, start: u64, bytes: u64) -> Option<&Touch> {
        let end = start.saturating_add(bytes);
        self.pending.values().flatten().find(|t| t.start < end && start < t.start.saturating_add(t.bytes))
    }

    /// A violation if pending work touches a range that is about to go.
    pub(crate) fn refuse_pending(&mut self, call: &str, start: u64, bytes: u64) {
        if let Some(touch) = self.pending_on(start, bytes) {
            let text = format!("{call}({start:#x}, {bytes} bytes) while work is pending on it: {}", touch.what);
            self.violation(text);
        }
    }
}
