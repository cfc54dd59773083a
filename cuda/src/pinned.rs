//! A loader's memory, registered with CUDA: copies from it are asynchronous, without a staging copy by the driver.
//!
//! Owns the registration and, as long as it stands, the memory. The memory is never read or written here, and never unmapped
//! while it may be registered: what the driver refuses to unregister stays mapped until the process ends, and a warning is logged.

use core::ffi::{c_uint, c_void};
use core::mem::ManuallyDrop;
use std::sync::Arc;

use fuelrail::Memory;
use fuelrail_base::{ByteSize, Result};

use crate::context::Context;
use crate::device::Device;
use crate::driver::Code;

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
