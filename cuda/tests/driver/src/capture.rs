//! Capture of streams into graphs: what is put into a captured stream is not done, and some calls break captures.
//!
//! Owns each thread's mode. A graph is a handle and nothing else: this driver runs none.

use crate::code::{Code, Outcome};
use crate::driver::State;
use crate::tables::stream::Capture;
use std::cell::Cell;

/// The mode in which every thread's unsafe calls break a capture, and which every thread begins with.
const GLOBAL: i32 = 0;
const RELAXED: i32 = 2;

thread_local! {
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

/// Sets the calling thread's mode; returns the one before.
pub(crate) fn exchange_mode(mode: i32) -> Outcome<i32> {
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(MODE.replace(mode))
}

impl State {
    /// Begins to capture a stream.
    pub(crate) fn begin_capture(&mut self, call: &str, stream: u64, mode: i32) -> Outcome {
        let stream = self.stream(call, stream)?;
        if !(GLOBAL..=RELAXED).contains(&mode) || self.captures.contains_key(&stream) {
            return Err(Code::INVALID_VALUE);
        }
        self.captures.insert(stream, Capture { mode, broken: false });
        Ok(())
    }

    /// Ends it; a handle for the graph, unless the capture was broken.
    pub(crate) fn end_capture(&mut self, call: &str, stream: u64) -> Outcome<u64> {
        let stream = self.stream(call, stream)?;
        match self.captures.remove(&stream) {
            Some(Capture { broken: false, .. }) => Ok(self.new_handle()),
            Some(_) => Err(Code::STREAM_CAPTURE_INVALIDATED),
            None => Err(Code::INVALID_VALUE),
        }
    }

    /// Whether an unsafe call of this thread meets a capture in the global mode, which it breaks.
    pub(crate) fn breaks_capture(&mut self) -> bool {
        let met = MODE.get() == GLOBAL && self.captures.values().any(|capture| capture.mode == GLOBAL);
        self.captures
            .values_mut()
            .filter(|capture| met && capture.mode == GLOBAL)
            .for_each(|capture| capture.broken = true);
        met
    }
}
