//! What the tests share: host memory that outlives its copies, and short ways to ask the driver.

#![allow(dead_code, reason = "each test file uses its part")]

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, sys};
use fuelrail_cuda_driver::Control;

/// The driver's control functions.
pub(crate) fn control() -> Control {
    Control::find().unwrap()
}

/// Panics unless a call succeeded.
#[track_caller]
pub(crate) fn check(result: sys::CUresult) {
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

/// Host memory of whole pages at an address of its own, registered or not.
pub(crate) struct Region {
    bytes: Vec<u8>,
    registered: bool,
}

impl Region {
    /// Pageable memory.
    pub(crate) fn pageable(bytes: usize) -> Region {
        Region { bytes: vec![0; bytes], registered: false }
    }

    /// Memory registered with the driver; a context must be current.
    pub(crate) fn registered(bytes: usize) -> Region {
        let mut region = Region::pageable(bytes);
        // SAFETY: the memory stays where it is until drop, which takes the registration back first.
        check(unsafe { sys::cuMemHostRegister_v2(region.pointer(), bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) });
        region.registered = true;
        region
    }

    pub(crate) fn pointer(&mut self) -> *mut std::ffi::c_void {
        self.bytes.as_mut_ptr().cast()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn fill(&mut self, byte: impl Fn(usize) -> u8) {
        self.bytes.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i));
    }

    /// Takes the registration back, as drop would.
    pub(crate) fn unregister(&mut self) -> sys::CUresult {
        self.registered = false;
        // SAFETY: the pointer is only looked up.
        unsafe { sys::cuMemHostUnregister(self.pointer()) }
    }

    /// Asks for a copy of the whole to the beginning of device memory.
    pub(crate) fn copy_to(&mut self, device: &mut CudaSlice<u8>, stream: &CudaStream) {
        let (to, _guard) = device.device_ptr_mut(stream);
        // SAFETY: every test waits for its copies before it lets go of either memory, or is about what happens if not.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, self.pointer(), self.len(), stream.cu_stream()) });
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.registered {
            check(self.unregister());
        }
    }
}
