//! The functions of the CUDA driver that this crate calls: all of them, each looked up by name when the first device is opened,
//! and the meaning of their results.
//!
//! Owns the table and the texts of errors. cudarc finds the library; its own bindings return a Rust enumeration of the codes of
//! one CUDA version, which a newer driver's code would not fit, and panic on a missing function. Here a result is a number
//! and a missing function an error.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

pub(crate) use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUevent, CUstream};
use fuelrail_base::{Error, Kind, Result};

/// The result of a driver function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub c_int);

macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        /// The table of functions.
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(crate) struct Driver {
            $($name: unsafe extern "C" fn($($kind),*) -> c_int,)*
        }

        /// Every driver function that this crate may call, by the name it is linked under.
        pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        #[allow(non_snake_case, clippy::missing_safety_doc, reason = "the driver's names; CUDA's manual has their contracts")]
        impl Driver {
            fn load() -> Result<Driver> {
                // SAFETY: each type is that of CUDA 11.4's header for the function of that name; the driver's binary interface
                // keeps a name's type for ever (changed ones get a new suffix).
                Ok(unsafe { Driver { $($name: find(concat!(stringify!($name), "\0"))?,)* } })
            }

            $(pub(crate) unsafe fn $name(&self, $($argument: $kind),*) -> Code {
                // SAFETY: the caller keeps the function's contract.
                Code(unsafe { (self.$name)($($argument),*) })
            })*
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuGetErrorName(code: c_int, text: *mut *const c_char);
    cuGetErrorString(code: c_int, text: *mut *const c_char);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery(event: CUevent);
    cuEventElapsedTime(ms: *mut f32, begin: CUevent, end: CUevent);
    cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize);
    cuMemFree_v2(at: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost(at: *mut c_void);
    cuMemHostRegister_v2(at: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostUnregister(at: *mut c_void);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
}

/// # Safety
/// `F` is the type of the driver's function of that name, which ends with a NUL.
unsafe fn find<F: Copy>(name: &str) -> Result<F> {
    // SAFETY: `Driver::get` has seen that there is a library, so that this does not panic; the type is the caller's promise.
    // The library is never unloaded.
    unsafe { cudarc::driver::sys::culib().get::<F>(name.as_bytes()) }.map(|found| *found).map_err(|_| {
        let name = name.trim_end_matches('\0');
        Error::new(Kind::Environment, format!("the CUDA driver has no {name}"))
            .with_hint("install NVIDIA driver 470 (CUDA 11.4) or a newer one")
    })
}

impl Driver {
    /// The driver, found and initialised on first use.
    ///
    /// # Errors
    /// `Environment` when there is no driver library, it lacks a function, or it does not start.
    pub(crate) fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Driver::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Driver> {
        // SAFETY: opens and closes shared libraries by the names of the CUDA driver, whose initialisers do no more than theirs.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err(Error::new(Kind::Environment, "there is no CUDA driver: libcuda.so.1 was not found").with_hint(
                "install the NVIDIA driver, or in a container start it with the NVIDIA runtime (docker run --gpus all); \
                 without a GPU take batches from the Loader",
            ));
        }
        let driver = Driver::load()?;
        // SAFETY: takes a number; may be called any number of times.
        let code = unsafe { driver.cuInit(0) };
        driver.check(code, "starting the CUDA driver")?;
        Ok(driver)
    }

    /// `Ok` for success; else the error, with the action, CUDA's name for it, and a hint.
    pub(crate) fn check(&self, code: Code, doing: &str) -> Result<()> {
        if code == Code::SUCCESS { Ok(()) } else { Err(self.error(code, doing)) }
    }

    /// The error of a code that is not success.
    pub(crate) fn error(&self, code: Code, doing: &str) -> Error {
        let error = Error::new(Kind::Environment, format!("{doing}: {}", self.text(code)));
        match code.hint() {
            Some(cure) => error.with_hint(cure),
            None => error,
        }
    }

    fn text(&self, code: Code) -> String {
        let word = |ask: &dyn Fn(*mut *const c_char) -> Code| {
            let mut text: *const c_char = core::ptr::null();
            let known = ask(&raw mut text) == Code::SUCCESS && !text.is_null();
            // SAFETY: the driver's texts are constants of its library, which is never unloaded, and end with a NUL.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        // SAFETY: writes one pointer to a constant text, or none for a code it does not know.
        let name = word(&|text| unsafe { self.cuGetErrorName(code.0, text) });
        // SAFETY: as above.
        let meaning = word(&|text| unsafe { self.cuGetErrorString(code.0, text) });
        match (name, meaning) {
            (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
            (Some(name), None) => name,
            _ => format!("CUDA error {}", code.0),
        }
    }
}

impl Code {
    pub(crate) const SUCCESS: Code = Code(0);
    pub(crate) const OUT_OF_MEMORY: Code = Code(2);
    const NOT_INITIALIZED: Code = Code(3);
    const DEINITIALIZED: Code = Code(4);
    const STUB_LIBRARY: Code = Code(34);
    pub(crate) const NO_DEVICE: Code = Code(100);
    const INVALID_CONTEXT: Code = Code(201);
    const CONTEXT_IS_DESTROYED: Code = Code(709);
    const INVALID_HANDLE: Code = Code(400);
    pub(crate) const NOT_READY: Code = Code(600);
    pub(crate) const ALREADY_REGISTERED: Code = Code(712);
    pub(crate) const NOT_PERMITTED: Code = Code(800);
    pub(crate) const NOT_SUPPORTED: Code = Code(801);
    const SYSTEM_NOT_READY: Code = Code(802);
    const SYSTEM_DRIVER_MISMATCH: Code = Code(803);

    /// Whether the context is lost with it: every later call returns the same, and only a new process gets a new context.
    pub(crate) fn is_loss(self) -> bool {
        // ECC, NVLink, illegal address, time-out, assertion, the exceptions of kernels, contained and unknown errors.
        matches!(self.0, 214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 999)
            || self == Code::CONTEXT_IS_DESTROYED
    }

    fn hint(self) -> Option<&'static str> {
        Some(match self {
            Code::NO_DEVICE => {
                "look whether nvidia-smi sees a GPU, and at CUDA_VISIBLE_DEVICES; a container needs --gpus or the device plugin"
            }
            Code::STUB_LIBRARY => {
                "remove the CUDA toolkit's stubs folder from LD_LIBRARY_PATH: it holds a libcuda for linking only"
            }
            Code::NOT_INITIALIZED => {
                "a forked child cannot use its parent's CUDA: start workers with spawn or forkserver"
            }
            Code::DEINITIALIZED => "drop feeds before the program ends",
            Code::OUT_OF_MEMORY => "free memory on the device, or ask for less",
            Code::SYSTEM_NOT_READY => "start nvidia-fabricmanager (NVSwitch machines need it), then try again",
            Code::SYSTEM_DRIVER_MISMATCH => {
                "load the kernel module that belongs to the installed driver: reboot after an update"
            }
            Code::INVALID_HANDLE | Code::INVALID_CONTEXT => {
                "give a stream of the feed's device that lives as long as the batches taken with it"
            }
            lost if lost.is_loss() => {
                "the device is lost to this process: start it again from the last checkpoint; `dmesg | grep Xid` tells the cause"
            }
            _ => return None,
        })
    }
}
