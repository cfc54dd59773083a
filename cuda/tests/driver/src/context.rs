//! Devices and their primary contexts, and which context a thread has current.
//!
//! Owns the addresses of contexts and each thread's stack of them.

use crate::code::{Code, Outcome};
use crate::driver::State;
use std::cell::RefCell;

/// Addresses of contexts: one for each device, none that a processor can follow.
const CONTEXTS: u64 = 0x00fc_0000_0000_0000;
const CONTEXT_STEP: u64 = 0x1000;

thread_local! {
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The handle of a device's primary context.
pub(crate) fn handle_of(device: u32) -> u64 {
    CONTEXTS + u64::from(device) * CONTEXT_STEP
}

/// The thread's current context; 0 if it has none.
pub(crate) fn current_handle() -> u64 {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Replaces the thread's current context; 0 takes it away.
pub(crate) fn set_current(handle: u64) {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

/// Puts a context on top of the thread's stack.
pub(crate) fn push_current(handle: u64) {
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
}

/// Takes the top of the thread's stack away.
pub(crate) fn pop_current() -> Option<u64> {
    CURRENT.with_borrow_mut(Vec::pop)
}

impl State {
    /// The device whose context the thread has current, whether or not the context is alive.
    pub(crate) fn held_device(&self) -> Outcome<u32> {
        self.device_of(current_handle())
    }

    /// Checks a device number.
    pub(crate) fn device(&self, ordinal: i32) -> Outcome<u32> {
        u32::try_from(ordinal).ok().filter(|d| *d < self.settings.devices).ok_or(Code::INVALID_DEVICE)
    }

    /// The device of a context handle, whether or not the context is alive.
    pub(crate) fn device_of(&self, handle: u64) -> Outcome<u32> {
        let offset = handle.checked_sub(CONTEXTS).ok_or(Code::INVALID_CONTEXT)?;
        let device = u32::try_from(offset / CONTEXT_STEP).map_err(|_| Code::INVALID_CONTEXT)?;
        if device >= self.settings.devices || handle_of(device) != handle {
            Err(Code::INVALID_CONTEXT)
        } else {
            Ok(device)
        }
    }

    /// The device whose context the thread has current.
    pub(crate) fn current_device(&mut self, call: &str) -> Outcome<u32> {
        let handle = current_handle();
        if handle == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        let device = self.device_of(handle)?;
        self.alive(call, device)?;
        Ok(device)
    }

    /// Checks that a device's context is retained by somebody.
    pub(crate) fn alive(&mut self, call: &str, device: u32) -> Outcome {
        if self.retained.get(&device).is_some_and(|n| *n > 0) {
            return Ok(());
        }
        self.violation(format!("{call}: the context of device {device} was released"));
        Err(Code::CONTEXT_IS_DESTROYED)
    }
}
