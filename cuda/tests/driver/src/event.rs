//! Events: each recording is a marker of its own in a stream's queue.
//!
//! Owns the meaning of the calls. An event that was never recorded is complete; a wait holds on to the recording that it saw.

use crate::code::{Code, Outcome};
use crate::driver::{Held, State};
use crate::tables::event::{Event, Marker};
use crate::tables::work::Work;
use std::sync::Arc;

/// The event keeps no time.
const DISABLE_TIMING: u32 = 2;
/// Another process may use it; asks for the flag before.
const INTERPROCESS: u32 = 4;
const ALL_FLAGS: u32 = 7;

impl State {
    /// Makes an event.
    pub(crate) fn make_event(&mut self, device: u32, flags: u32) -> Outcome<u64> {
        if flags > ALL_FLAGS || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let handle = self.new_handle();
        self.events.insert(handle, Event { device, flags, marker: None });
        Ok(handle)
    }

    /// Destroys an event; a recording in a queue, and a wait for it, stay.
    pub(crate) fn destroy_event(&mut self, call: &str, handle: u64) -> Outcome {
        match self.events.remove(&handle) {
            Some(_) => Ok(()),
            None => Err(self.bad_handle(call, "event", handle)),
        }
    }

    fn event(&mut self, call: &str, handle: u64) -> Outcome<&mut Event> {
        let Some(device) = self.events.get(&handle).map(|e| e.device) else {
            return Err(self.bad_handle(call, "event", handle));
        };
        self.alive(call, device)?;
        self.events.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    fn marker(&mut self, call: &str, handle: u64) -> Outcome<Option<Arc<Marker>>> {
        Ok(self.event(call, handle)?.marker.clone())
    }

    /// Records an event after all that a stream was asked so far.
    pub(crate) fn record(&mut self, call: &str, event: u64, stream: u64) -> Outcome {
        let stream = self.stream(call, stream)?;
        let device = self.streams.get(&stream).map(|s| s.device);
        let event = self.event(call, event)?;
        if Some(event.device) != device {
            return Err(Code::INVALID_HANDLE);
        }
        let marker = Arc::new(Marker::default());
        event.marker = Some(marker.clone());
        self.submit(stream, Work::Reach(marker), Vec::new());
        Ok(())
    }

    /// Makes a stream wait for an event's latest recording; for none, not at all.
    pub(crate) fn wait_event(&mut self, call: &str, stream: u64, event: u64) -> Outcome {
        let stream = self.stream(call, stream)?;
        if let Some(marker) = self.marker(call, event)? {
            self.submit(stream, Work::Await(marker), Vec::new());
        }
        Ok(())
    }

    /// Whether an event's latest recording is reached.
    pub(crate) fn query_event(&mut self, call: &str, event: u64) -> Outcome {
        match self.marker(call, event)? {
            Some(marker) if marker.reached().is_none() => Err(Code::NOT_READY),
            _ => Ok(()),
        }
    }

    /// Milliseconds between the recordings of two events.
    pub(crate) fn elapsed(&mut self, call: &str, start: u64, end: u64) -> Outcome<f32> {
        let mut times = Vec::new();
        for event in [start, end] {
            let event = self.event(call, event)?;
            if event.flags & DISABLE_TIMING != 0 {
                return Err(Code::INVALID_HANDLE);
            }
            let marker = event.marker.clone().ok_or(Code::INVALID_HANDLE)?;
            times.push(marker.reached().ok_or(Code::NOT_READY)?);
        }
        let sign = if times[1] >= times[0] { 1.0 } else { -1.0 };
        let between = times[1].max(times[0]) - times[1].min(times[0]);
        Ok(sign * between.as_secs_f32() * 1000.0)
    }
}

impl Held {
    /// Waits for an event's latest recording.
    pub(crate) fn sync_event(&mut self, call: &str, event: u64) -> Outcome {
        let marker = self.marker(call, event)?;
        let device = self.event(call, event)?.device;
        match marker {
            Some(marker) => self.wait_until(device, |_| marker.reached().is_some()),
            None => Ok(()),
        }
    }
}
