//! A device's primary context, the one that PyTorch and the CUDA runtime use too, and what is made in it: streams, events,
//! memory.
//!
//! Owns the handles: each is given back when its owner is dropped, in the process that made it and in no other. Decides
//! nothing about when that is safe: the owners in `ring` and `copier` do.

use core::ffi::{c_int, c_uint};
use std::sync::Arc;

use fuelrail::ForkGuard;
use fuelrail_base::Result;

use crate::driver::{CUcontext, CUdeviceptr, CUevent, CUstream, Code, Driver};

/// Streams of ours wait for nobody they were not told to, not even for the legacy default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;

/// A retained primary context.
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    device: c_int,
    handle: CUcontext,
    guard: ForkGuard,
}

// SAFETY: a context's handle may be used by any thread; the driver locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    pub(crate) fn retain(driver: &'static Driver, device: c_int) -> Result<Arc<Context>> {
        let mut handle = core::ptr::null_mut();
        // SAFETY: writes one handle, to a variable that lives through the call.
        let code = unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut handle, device) };
        driver.check(code, "opening the device's context")?;
        Ok(Arc::new(Context { driver, device, handle, guard: ForkGuard::new() }))
    }

    /// Makes this thread's calls go to this context until the returned guard is dropped; the caller's own context is current
    /// again afterwards.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        self.guard.check()?;
        // SAFETY: the context is retained as long as `self` lives, which the guard borrows.
        let code = unsafe { self.driver.cuCtxPushCurrent_v2(self.handle) };
        self.driver.check(code, "entering the device's context")?;
        Ok(Entered { context: self, not_send: core::marker::PhantomData })
    }

    /// Refuses in a forked child, whose CUDA is not usable.
    pub(crate) fn check_fork(&self) -> Result<()> {
        self.guard.check()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.guard.holds() {
            // SAFETY: gives back what `retain` took; everything made in the context held an `Arc` of this and is gone. What it
            // returns concerns a device that is lost or a driver that has ended: there is nothing left to do.
            let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

/// The context is current on this thread.
pub(crate) struct Entered<'a> {
    context: &'a Context,
    /// It belongs to the thread that entered.
    not_send: core::marker::PhantomData<*mut ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let _ = self.not_send;
        let mut popped = core::ptr::null_mut();
        // SAFETY: takes away what `enter` put on this thread's stack; entries nest as their guards do.
        let _ = unsafe { self.context.driver.cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

/// A stream of ours.
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: CUstream,
}

// SAFETY: a stream's handle may be used by any thread; the driver locks.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream in the current context.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Stream> {
        let mut handle = core::ptr::null_mut();
        // SAFETY: writes one handle, to a variable that lives through the call.
        let code = unsafe { context.driver.cuStreamCreate(&raw mut handle, STREAM_NON_BLOCKING) };
        context.driver.check(code, "making the copy stream")?;
        Ok(Stream { context: Arc::clone(context), handle })
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.handle
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the handle is ours and used by nobody after this; work still queued ends all the same.
            let _ = unsafe { self.context.driver.cuStreamDestroy_v2(self.handle) };
        }
    }
}

/// A moment in a stream.
pub(crate) struct Event {
    context: Arc<Context>,
    handle: CUevent,
}

// SAFETY: an event's handle may be used by any thread; the driver locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event in the current context; one that keeps time costs the device a little more.
    pub(crate) fn new(context: &Arc<Context>, keeps_time: bool) -> Result<Event> {
        let mut handle = core::ptr::null_mut();
        let flags = if keeps_time { 0 } else { EVENT_DISABLE_TIMING };
        // SAFETY: writes one handle, to a variable that lives through the call.
        let code = unsafe { context.driver.cuEventCreate(&raw mut handle, flags) };
        context.driver.check(code, "making an event")?;
        Ok(Event { context: Arc::clone(context), handle })
    }

    /// Marks the end of what the stream has been given so far.
    ///
    /// # Safety
    /// The stream is one of the event's context and not destroyed.
    pub(crate) unsafe fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the event is ours and alive; the stream is the caller's promise.
        let code = unsafe { self.context.driver.cuEventRecord(self.handle, stream) };
        self.context.driver.check(code, "recording an event")
    }

    /// Makes a stream wait, on the device, for what was recorded last.
    ///
    /// # Safety
    /// The stream is not destroyed.
    pub(crate) unsafe fn hold_back(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the event is ours and alive; the stream is the caller's promise.
        let code = unsafe { self.context.driver.cuStreamWaitEvent(stream, self.handle, 0) };
        self.context.driver.check(code, "making a stream wait for a copy")
    }

    /// Whether what was recorded last has been reached. An event never recorded has.
    pub(crate) fn is_reached(&self) -> Result<bool> {
        // SAFETY: the event is ours and alive.
        match unsafe { self.context.driver.cuEventQuery(self.handle) } {
            Code::NOT_READY => Ok(false),
            code => self.context.driver.check(code, "looking whether a copy has ended").map(|()| true),
        }
    }

    /// Milliseconds from this event to a later one, both reached and keeping time.
    pub(crate) fn elapsed_ms(&self, end: &Event) -> Option<f32> {
        let mut ms = 0.0;
        // SAFETY: both events are ours and alive; writes one number, to a variable that lives through the call.
        let code = unsafe { self.context.driver.cuEventElapsedTime(&raw mut ms, self.handle, end.handle) };
        (code == Code::SUCCESS).then_some(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the handle is ours and used by nobody after this; the driver keeps it until streams have passed it.
            let _ = unsafe { self.context.driver.cuEventDestroy_v2(self.handle) };
        }
    }
}

/// Memory of the device. Dropped only when no work of any stream touches it.
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    at: CUdeviceptr,
    len: usize,
}

impl DeviceMemory {
    /// Memory in the current context, for ever at one address; `None` when the device has not that much.
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Option<DeviceMemory>> {
        let mut at = 0;
        // SAFETY: writes one address, to a variable that lives through the call.
        match unsafe { context.driver.cuMemAlloc_v2(&raw mut at, len.max(1)) } {
            Code::SUCCESS => Ok(Some(DeviceMemory { context: Arc::clone(context), at, len })),
            Code::OUT_OF_MEMORY => Ok(None),
            code => Err(context.driver.error(code, "taking device memory")),
        }
    }

    pub(crate) fn at(&self) -> CUdeviceptr {
        self.at
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the address is ours; whoever drops this has seen that no work touches it any more.
            let _ = unsafe { self.context.driver.cuMemFree_v2(self.at) };
        }
    }
}
