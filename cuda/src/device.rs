//! The GPUs of this machine: their facts, their place, and opening one.
//!
//! Owns no device: looking costs no memory on it, only [`Device::open`] retains its context.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::ManuallyDrop;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use fuelrail::Memory;
use fuelrail_base::{ByteSize, Error, Kind, Result};

use crate::context::Context;
use crate::driver::{Code, Driver};

const ASYNC_ENGINES: c_int = 40;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
const HOST_REGISTER: c_int = 99;

/// Facts of a GPU. The two dies of a K80 are two GPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// Its number in this process.
    pub ordinal: u32,
    /// Its product name.
    pub name: String,
    /// Its compute capability: `(3, 7)` is a K80.
    pub capability: (u32, u32),
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// Copies it can run at a time beside kernels.
    pub copy_engines: u32,
    /// Whether it copies from registered host memory.
    pub registers_memory: bool,
    /// Its PCI address, as Linux writes it; empty when the driver reports none.
    pub pci: String,
    /// Its NUMA node, where the machine has nodes and reports it.
    pub node: Option<u16>,
}

impl core::fmt::Display for DeviceFacts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (major, minor) = self.capability;
        let memory = ByteSize(self.memory_bytes);
        write!(f, "GPU {}: {}, {memory}, compute capability {major}.{minor}, ", self.ordinal, self.name)?;
        write!(f, "{} copy engine(s), PCI {}", self.copy_engines, if self.pci.is_empty() { "?" } else { &self.pci })?;
        self.node.map_or(Ok(()), |node| write!(f, ", NUMA node {node}"))
    }
}

/// A GPU, opened: its primary context is retained until this and all that was made with it is gone.
#[derive(Clone)]
pub struct Device {
    facts: DeviceFacts,
    context: Arc<Context>,
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Device").field(&self.facts).finish()
    }
}

impl Device {
    /// How many GPUs this process may use; 0 when the driver sees none.
    ///
    /// # Errors
    /// `Environment` when there is no CUDA driver or it does not start, with what to do.
    pub fn count() -> Result<u32> {
        let driver = match Driver::get() {
            Err(error) if error.cause().contains("CUDA_ERROR_NO_DEVICE") => return Ok(0),
            driver => driver?,
        };
        count(driver)
    }

    /// Facts of the GPUs that this process may use.
    ///
    /// # Errors
    /// As [`Device::count`].
    pub fn all() -> Result<Vec<DeviceFacts>> {
        let count = Device::count()?;
        (0..count).map(|ordinal| facts(Driver::get()?, ordinal).map(|(_, facts)| facts)).collect()
    }

    /// Opens a GPU.
    ///
    /// # Errors
    /// `Usage` when there is no such number; `Environment` as [`Device::count`], and when the device cannot be used, with
    /// what to do.
    pub fn open(ordinal: u32) -> Result<Device> {
        let driver = Driver::get()?;
        let count = count(driver)?;
        if ordinal >= count {
            let cure = match count {
                0 => "look whether nvidia-smi sees a GPU, and at CUDA_VISIBLE_DEVICES".to_owned(),
                n => format!("count from 0 to {}: the numbers are those that CUDA_VISIBLE_DEVICES leaves", n - 1),
            };
            return Err(Error::new(Kind::Usage, format!("GPU {ordinal} of {count}")).with_hint(cure));
        }
        let (handle, facts) = facts(driver, ordinal)?;
        if !facts.registers_memory {
            let cause = format!("{facts} cannot copy from registered host memory");
            return Err(
                Error::new(Kind::Environment, cause).with_hint("use another GPU, or take batches from the Loader")
            );
        }
        Ok(Device { context: Context::retain(driver, handle)?, facts })
    }

    /// Its facts.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

fn count(driver: &Driver) -> Result<u32> {
    let mut count = 0;
    // SAFETY: writes one number, to a variable that lives through the call.
    match unsafe { driver.cuDeviceGetCount(&raw mut count) } {
        Code::NO_DEVICE => Ok(0),
        code => driver.check(code, "counting the GPUs").map(|()| count.unsigned_abs()),
    }
}

fn facts(driver: &Driver, ordinal: u32) -> Result<(c_int, DeviceFacts)> {
    let doing = format!("reading the attributes of GPU {ordinal}");
    let check = |code| driver.check(code, &doing);
    let (mut device, mut bytes) = (0, 0usize);
    // SAFETY: writes one handle, to a variable that lives through the call.
    check(unsafe { driver.cuDeviceGet(&raw mut device, ordinal.cast_signed()) })?;
    // SAFETY: writes one number, to a variable that lives through the call.
    check(unsafe { driver.cuDeviceTotalMem_v2(&raw mut bytes, device) })?;
    let number = |attribute: c_int| -> Result<u32> {
        let mut value = 0;
        // SAFETY: writes one number, to a variable that lives through the call.
        check(unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute, device) }).map(|()| value.unsigned_abs())
    };
    // SAFETY: the driver writes at most as many characters as `len`, which the buffer has.
    let name = text(|at, len| unsafe { driver.cuDeviceGetName(at, len, device) });
    // SAFETY: as above.
    let pci = text(|at, len| unsafe { driver.cuDeviceGetPCIBusId(at, len, device) }).unwrap_or_default();
    let facts = DeviceFacts {
        ordinal,
        name: name.map_err(|code| driver.error(code, &doing))?,
        capability: (number(CAPABILITY_MAJOR)?, number(CAPABILITY_MINOR)?),
        memory_bytes: bytes as u64,
        copy_engines: number(ASYNC_ENGINES)?,
        registers_memory: number(HOST_REGISTER)? != 0,
        node: node(Path::new("/"), &pci),
        pci: pci.to_ascii_lowercase(),
    };
    Ok((device, facts))
}

/// The text that a function of the driver writes into a buffer.
fn text(ask: impl FnOnce(*mut c_char, c_int) -> Code) -> Result<String, Code> {
    let mut buffer: [c_char; 256] = [0; 256];
    let code = ask(buffer.as_mut_ptr(), 255);
    if code != Code::SUCCESS {
        return Err(code);
    }
    // SAFETY: the last character was not given to the driver and is NUL; the buffer lives through the call.
    Ok(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned())
}

/// NUMA node of a PCI device on the machine below `root`. The kernel writes -1 for no node.
fn node(root: &Path, pci: &str) -> Option<u16> {
    let folder = root.join("sys/bus/pci/devices").join(pci.to_ascii_lowercase());
    fs::read_to_string(folder.join("numa_node")).ok()?.trim().parse().ok()
}

/// Registered for every context of the process, not only the current one. Never write-combined: the shards read and decrypt
/// in place, which is ruinous on such memory; read-only is another process's alone: ours is written.
const PORTABLE: c_uint = 1;
/// Memory that is mapped to be read. From CUDA 11.1 on, where the device can; refused elsewhere.
const READ_ONLY: c_uint = 8;

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
        let flags = if self.memory.is_borrowed() { PORTABLE | READ_ONLY } else { PORTABLE };
        let _entered = self.context.enter()?;
        // SAFETY: the range is a whole region of the arena, page-aligned, mapped as long as `self.memory` lives, which is kept
        // until the range is unregistered. Registering pins its pages and changes nothing in them.
        let code = unsafe { driver.cuMemHostRegister_v2(at, len, flags) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_sits_where_the_kernel_says_and_nowhere_when_it_does_not() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/bus/pci/devices/0000:8a:00.0");
        assert_eq!(node(root.path(), "0000:8A:00.0"), None);
        fs::create_dir_all(&folder).unwrap();
        for (says, expected) in [("-1\n", None), ("1\n", Some(1))] {
            fs::write(folder.join("numa_node"), says).unwrap();
            assert_eq!(node(root.path(), "0000:8A:00.0"), expected);
        }
        assert_eq!(node(root.path(), ""), None);
    }
}
