//! A device's primary context, the one that PyTorch and the CUDA runtime use too, and what is made in it: streams, events,
//! memory.
//!
//! Owns the handles: each is released when its owner is dropped, in the process that made it and in no other. When
//! that is safe, the owners in `ring` and `copier` decide.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::ManuallyDrop;
use std::sync::Arc;

use fuelrail::Memory;
use fuelrail::internal::ForkGuard;
use fuelrail_base::{ByteSize, Result};

use crate::device::Device;
use crate::driver::{CUcontext, CUdeviceptr, CUevent, CUstream, Code, Driver};

/// Our streams do not synchronise with the legacy default stream.
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

/// Registered for every context of the process, not only the current one. Never write-combined: the shards read and decrypt
/// in place, which is ruinous on such memory; never read-only: they write.
const PORTABLE: c_uint = 1;

/// Registered memory. Unregistered when dropped: keep it while copies are in flight.
pub struct Pinned {
    context: Arc<Context>,
    memory: ManuallyDrop<Memory>,
    /// Regions registered so far, from the first.
    registered: usize,
}

impl Pinned {
    /// Registers every region of a loader's memory. All of it becomes resident.
    ///
    /// # Errors
    /// `Environment` when the driver refuses, with what to do; then nothing stays registered.
    pub fn register(device: &Device, memory: Memory) -> Result<Pinned> {
        let context = Arc::clone(device.context());
        let mut pinned = Pinned { context, memory: ManuallyDrop::new(memory), registered: 0 };
        let whole = pinned.memory.span().1;
        for region in 0..pinned.memory.regions().len() {
            // What was registered before a refusal is unregistered as `pinned` is dropped.
            pinned.register_region(region, whole)?;
            pinned.registered += 1;
        }
        Ok(pinned)
    }

    fn region(&self, region: usize) -> (*mut c_void, usize) {
        let (at, len) = self.memory.regions().nth(region).expect("the region exists");
        (at.cast_mut().cast(), len)
    }

    fn register_region(&self, region: usize, whole: usize) -> Result<()> {
        let (at, len) = self.region(region);
        let driver = self.context.driver;
        let _entered = self.context.enter()?;
        // SAFETY: the range is a whole region of the arena, page-aligned, mapped as long as `self.memory` lives, which is kept
        // until the range is unregistered. Registering pins its pages and changes nothing in them.
        let code = unsafe { driver.cuMemHostRegister_v2(at, len, PORTABLE) };
        let doing =
            format!("registering region {region} ({}) of {} with CUDA", ByteSize(len as u64), ByteSize(whole as u64));
        let error = driver.error(code, &doing);
        match code {
            Code::SUCCESS => Ok(()),
            Code::OUT_OF_MEMORY => Err(error.with_hint(
                "the system refused to pin that much memory: lower memory_limit, or raise the memory limit of the container and \
                 ulimit -l (memlock)",
            )),
            Code::ALREADY_REGISTERED => Err(error.with_hint("one feed per loader: its memory can be registered only once")),
            Code::NOT_PERMITTED | Code::NOT_SUPPORTED => Err(error
                .with_hint("the system does not let this process pin memory: raise ulimit -l (memlock), or run outside the sandbox")),
            _ => Err(error),
        }
    }

    /// Unregisters from the last region to the first; the error of the first refusal.
    fn unregister(&mut self) -> Result<()> {
        let entered = self.context.enter()?;
        while self.registered > 0 {
            let (at, _) = self.region(self.registered - 1);
            // SAFETY: this range was registered by `register_region` and not yet unregistered; no copy is in flight on it,
            // because the copy thread, whose this is, drops it only when the last copy was seen to its end.
            let code = unsafe { self.context.driver.cuMemHostUnregister(at) };
            self.context.driver.check(code, "unregistering the loader's memory")?;
            self.registered -= 1;
        }
        drop(entered);
        Ok(())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.check_fork().is_err() {
            // The child's copy of the mapping is its own; the registration is the parent's.
            return;
        }
        match self.unregister() {
            // SAFETY: dropped once, here, and not used after; nothing of it is registered any more.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            Err(error) => {
                let bytes = ByteSize(self.memory.span().1 as u64);
                warn_leaked(&format!("{bytes} of host memory stay mapped until the process ends: {error}"));
            }
        }
    }
}

impl core::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pinned").field("memory", &*self.memory).field("regions", &self.registered).finish()
    }
}

/// Logs a warning that a resource was leaked, and why.
pub(crate) fn warn_leaked(what: &str) {
    tracing::warn!("{what}");
}
