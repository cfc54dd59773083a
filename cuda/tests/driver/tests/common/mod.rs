//! What the tests share: CUDA's raw calls with their results handed on, host memory that outlives its copies, and short
//! ways to ask the driver.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the calls are the point: misuse is what the driver must see")]

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUresult, CUstream};
use fuelrail_cuda_driver::{Control, Settings, under_driver};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

/// The driver's control functions.
pub(crate) fn control() -> Control {
    Control::find().unwrap()
}

/// Runs `body` under the driver with a device's context current, and checks what it leaves.
pub(crate) fn under(test: &str, settings: &Settings, body: impl FnOnce()) {
    if under_driver(test, settings) {
        let device = Device::open();
        body();
        drop(device);
        clean();
    }
}

/// Panics unless a call succeeded.
#[track_caller]
pub(crate) fn check(result: CUresult) {
    result.result().unwrap();
}

/// Panics unless the driver holds nothing and saw no misuse.
#[track_caller]
pub(crate) fn clean() {
    control().assert_clean();
}

/// Panics unless the driver saw exactly one misuse, whose text has these words; then forgives it.
#[track_caller]
pub(crate) fn caught(words: &str) {
    let violations = control().violations();
    assert!(violations.len() == 1 && violations[0].contains(words), "expected one '{words}', found {violations:#?}");
    control().forgive();
}

/// A device's context, retained and current; let go of at the end.
pub(crate) struct Device(i32);

impl Device {
    pub(crate) fn open() -> Device {
        Device::nth(0)
    }

    pub(crate) fn nth(ordinal: i32) -> Device {
        let mut context = null_mut();
        check(unsafe { sys::cuInit(0) });
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, ordinal) });
        check(unsafe { sys::cuCtxSetCurrent(context) });
        Device(ordinal)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A lost device answers with its loss and is let go of all the same.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.0) };
    }
}

pub(crate) fn allocate(bytes: usize) -> CUdeviceptr {
    let mut pointer = 0;
    check(unsafe { sys::cuMemAlloc_v2(&mut pointer, bytes) });
    pointer
}

pub(crate) fn free(pointer: CUdeviceptr) -> CUresult {
    unsafe { sys::cuMemFree_v2(pointer) }
}

/// A stream that does not wait for the default stream.
pub(crate) fn stream() -> CUstream {
    stream_with(sys::CUstream_flags::CU_STREAM_NON_BLOCKING)
}

pub(crate) fn stream_with(flags: sys::CUstream_flags) -> CUstream {
    let mut stream = null_mut();
    check(unsafe { sys::cuStreamCreate(&mut stream, flags as u32) });
    stream
}

pub(crate) fn synchronize(stream: CUstream) -> CUresult {
    unsafe { sys::cuStreamSynchronize(stream) }
}

pub(crate) fn destroy_stream(stream: CUstream) -> CUresult {
    unsafe { sys::cuStreamDestroy_v2(stream) }
}

pub(crate) fn event() -> CUevent {
    let mut event = null_mut();
    check(unsafe { sys::cuEventCreate(&mut event, 0) });
    event
}

pub(crate) fn record(event: CUevent, stream: CUstream) -> CUresult {
    unsafe { sys::cuEventRecord(event, stream) }
}

pub(crate) fn wait(stream: CUstream, event: CUevent) -> CUresult {
    unsafe { sys::cuStreamWaitEvent(stream, event, 0) }
}

pub(crate) fn query(event: CUevent) -> CUresult {
    unsafe { sys::cuEventQuery(event) }
}

pub(crate) fn destroy_event(event: CUevent) -> CUresult {
    unsafe { sys::cuEventDestroy_v2(event) }
}

pub(crate) fn copy_in(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) -> CUresult {
    unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream) }
}

pub(crate) fn copy_out(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, stream) }
}

/// Host memory at an address of its own. It is never given back: what a test does wrong with it must not hurt the test.
pub(crate) struct Region {
    start: *mut u8,
    bytes: usize,
}

impl Region {
    /// Pageable memory.
    pub(crate) fn pageable(bytes: usize) -> Region {
        // Held from here, so that a leak checker finds it: a copy may run for as long as the process does.
        static HELD: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());
        let mut memory = vec![0; bytes].into_boxed_slice();
        let start = memory.as_mut_ptr();
        HELD.lock().unwrap().push(memory);
        Region { start, bytes }
    }

    /// Memory registered with the driver; a context must be current.
    pub(crate) fn registered(bytes: usize) -> Region {
        let region = Region::pageable(bytes);
        check(region.register());
        region
    }

    pub(crate) fn register(&self) -> CUresult {
        unsafe { sys::cuMemHostRegister_v2(self.pointer(), self.bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) }
    }

    pub(crate) fn unregister(&self) -> CUresult {
        unsafe { sys::cuMemHostUnregister(self.pointer()) }
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.start.cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// One byte, read from memory.
    pub(crate) fn get(&self, at: usize) -> u8 {
        assert!(at < self.bytes);
        unsafe { self.start.add(at).read_volatile() }
    }

    /// Writes one byte.
    pub(crate) fn set(&self, at: usize, byte: u8) {
        assert!(at < self.bytes);
        unsafe { self.start.add(at).write_volatile(byte) }
    }

    pub(crate) fn fill(&self, byte: impl Fn(usize) -> u8) {
        (0..self.bytes).for_each(|i| self.set(i, byte(i)));
    }

    /// Whether every byte is what it should be.
    pub(crate) fn holds(&self, byte: impl Fn(usize) -> u8) -> bool {
        (0..self.bytes).all(|i| self.get(i) == byte(i))
    }
}
