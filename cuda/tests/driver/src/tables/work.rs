//! What a stream can be asked to do, and what a piece of work touches while it is pending.
//!
//! Owns the kinds of work; the table of pending touches, by which a free under a running copy is seen, is the state's.

use crate::tables::event::Marker;
use crate::tables::transfer::Copy;
use std::ffi::c_void;
use std::sync::Arc;

/// A function of the host that a stream calls, with its argument.
#[derive(Clone, Copy)]
pub(crate) struct Callback {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    /// The argument, as a number: it crosses threads.
    pub(crate) argument: usize,
}

/// One piece of work.
pub(crate) enum Work {
    /// Bytes from one place to another.
    Copy(Copy),
    /// Calls the host.
    Call(Callback),
    /// An event's recording is reached.
    Reach(Arc<Marker>),
    /// Waits for an event's recording.
    Await(Arc<Marker>),
    /// Waits until another stream has done this many pieces of work.
    AwaitStream { stream: u64, done: u64 },
}

/// A range of memory, host or device, that pending work will read or write.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// What the work is, for the text of a violation.
    pub(crate) what: String,
}
