//! A device's primary context, the one that PyTorch and the CUDA runtime use too, and what is made in it: streams, events,
//! memory.
//!
//! Owns the handles: each is released when its owner is dropped, in the process that made it and in no other. When
//! that is safe, the owners in `ring` and `copier` decide.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use fuelrail::internal::ForkGuard;
use fuelrail_base::Result;

use crate::driver::{CUcontext, CUdeviceptr, CUevent, CUstream, Code, Driver};

/// Our streams do not synchronise with the legacy default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
/// A thread in this mode may make any call while a stream is captured, by whatever thread: none of ours is to be captured.
const CAPTURE_MODE_RELAXED: c_int = 2;

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
    /// again afterwards. They break no capture of a stream into a graph meanwhile, which other threads' queries of events would.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        self.guard.check()?;
        // SAFETY: the context is retained as long as `self` lives, which the guard borrows.
        let code = unsafe { self.driver.cuCtxPushCurrent_v2(self.handle) };
        self.driver.check(code, "entering the device's context")?;
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: reads and writes one number, a variable that lives through the call.
        let _ = unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        Ok(Entered { context: self, mode, not_send: core::marker::PhantomData })
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
    /// The thread's capture mode outside.
    mode: c_int,
    /// It belongs to the thread that entered.
    not_send: core::marker::PhantomData<*mut ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let _ = self.not_send;
        // SAFETY: reads and writes one number, a variable that lives through the call.
        let _ = unsafe { self.context.driver.cuThreadExchangeStreamCaptureMode(&raw mut self.mode) };
        let mut popped = core::ptr::null_mut();
        // SAFETY: takes away what `enter` put on this thread's stack; entries nest as their guards do.
        let _ = unsafe { self.context.driver.cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

/// A handle in a context, released when dropped: a stream, an event or memory.
pub(crate) struct Owned<T: Copy> {
    context: Arc<Context>,
    handle: T,
    give_back: unsafe fn(&Driver, T) -> Code,
}

// SAFETY: handles of streams, events and memory, of which alone these are made, may be used by any thread; the driver locks.
unsafe impl<T: Copy> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Owned<T> {}

impl<T: Copy> Owned<T> {
    /// What `make` writes the handle of, in the current context.
    fn new(
        context: &Arc<Context>,
        nothing: T,
        make: impl FnOnce(&Driver, *mut T) -> Code,
        give_back: unsafe fn(&Driver, T) -> Code,
    ) -> Result<Owned<T>, Code> {
        let mut handle = nothing;
        match make(context.driver, &raw mut handle) {
            Code::SUCCESS => Ok(Owned { context: Arc::clone(context), handle, give_back }),
            code => Err(code),
        }
    }

    pub(crate) fn handle(&self) -> T {
        self.handle
    }
}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the handle is ours and not used after this. Work queued on a stream ends all the same, the driver keeps an
            // event until streams have passed it, and memory is dropped only when no work uses it any more.
            let _ = unsafe { (self.give_back)(self.context.driver, self.handle) };
        }
    }
}

/// A stream made by this crate.
pub(crate) type Stream = Owned<CUstream>;

/// A stream in the current context.
pub(crate) fn new_stream(context: &Arc<Context>) -> Result<Stream> {
    // SAFETY: writes one handle, where `Owned::new` says.
    let make = |driver: &Driver, at| unsafe { driver.cuStreamCreate(at, STREAM_NON_BLOCKING) };
    Owned::new(context, core::ptr::null_mut(), make, Driver::cuStreamDestroy_v2)
        .map_err(|code| context.driver.error(code, "making the copy stream"))
}

/// A CUDA event: a point in a stream.
pub(crate) type Event = Owned<CUevent>;

/// An event in the current context; one that keeps time costs the device a little more.
pub(crate) fn new_event(context: &Arc<Context>, keeps_time: bool) -> Result<Event> {
    let flags = if keeps_time { 0 } else { EVENT_DISABLE_TIMING };
    // SAFETY: writes one handle, where `Owned::new` says.
    let make = |driver: &Driver, at| unsafe { driver.cuEventCreate(at, flags) };
    Owned::new(context, core::ptr::null_mut(), make, Driver::cuEventDestroy_v2)
        .map_err(|code| context.driver.error(code, "making an event"))
}

impl Event {
    /// Records the end of the work submitted to the stream so far.
    ///
    /// # Safety
    /// The stream is one of the event's context and not destroyed.
    pub(crate) unsafe fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the event is ours and alive; the stream is the caller's promise.
        let code = unsafe { self.context.driver.cuEventRecord(self.handle, stream) };
        self.context.driver.check(code, "recording an event")
    }

    /// Makes a stream wait, on the device, for the last recording.
    ///
    /// # Safety
    /// The stream is not destroyed.
    pub(crate) unsafe fn make_wait(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the event is ours and alive; the stream is the caller's promise.
        let code = unsafe { self.context.driver.cuStreamWaitEvent(stream, self.handle, 0) };
        self.context.driver.check(code, "making a stream wait for a copy")
    }

    /// Whether the last recording has been reached; true for an event that was never recorded.
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

/// Memory of the device. Dropped only when no work of any stream touches it.
pub(crate) type DeviceMemory = Owned<CUdeviceptr>;

/// Memory in the current context, at a fixed address; `None` when the device has too little.
pub(crate) fn new_memory(context: &Arc<Context>, len: usize) -> Result<Option<DeviceMemory>> {
    // SAFETY: writes one address, where `Owned::new` says.
    let make = |driver: &Driver, at| unsafe { driver.cuMemAlloc_v2(at, len.max(1)) };
    match Owned::new(context, 0, make, Driver::cuMemFree_v2) {
        Ok(memory) => Ok(Some(memory)),
        Err(Code::OUT_OF_MEMORY) => Ok(None),
        Err(code) => Err(context.driver.error(code, "taking device memory")),
    }
}

/// Page-locked memory of the host. Dropped only when no copy touches it.
pub(crate) type HostMemory = Owned<*mut c_void>;

/// Page-locked memory of the current context, aligned to a page, not initialised.
pub(crate) fn new_host_memory(context: &Arc<Context>, len: usize) -> Result<HostMemory> {
    // SAFETY: writes one address, where `Owned::new` says.
    let make = |driver: &Driver, at| unsafe { driver.cuMemHostAlloc(at, len.max(1), 0) };
    Owned::new(context, core::ptr::null_mut(), make, Driver::cuMemFreeHost)
        .map_err(|code| context.driver.error(code, "taking page-locked memory"))
}
