//! cudarc's own code over the driver: the loader's whole path, and that sound use leaves no trace.

mod common;

use common::{Region, check, clean};
use cudarc::driver::{CudaContext, sys};
use fuelrail_cuda_driver::{Settings, under_driver};

#[test]
fn registered_memory_arrives_on_the_device_and_comes_back() {
    let settings = Settings { watch_sources: true, delay_us: 0..=300, ..Settings::default() };
    if !under_driver("registered_memory_arrives_on_the_device_and_comes_back", &settings) {
        return;
    }
    {
        let context = CudaContext::new(0).unwrap();
        assert_eq!(context.compute_capability().unwrap(), (3, 7));
        assert!(!context.has_async_alloc());
        let mut region = Region::registered(1 << 20);
        let stream = context.new_stream_with_priority(-5).unwrap();
        // SAFETY: every byte is written before it is read.
        let mut device = unsafe { stream.alloc::<u8>(1 << 20) }.unwrap();
        let done = context.new_event(None).unwrap();
        region.fill(|i| (i / 4096) as u8);
        region.copy_to(&mut device, &stream);
        done.record(&stream).unwrap();
        done.synchronize().unwrap();
        assert!(done.try_is_complete().unwrap());
        let back = stream.clone_dtoh(&device).unwrap();
        stream.synchronize().unwrap();
        assert!(back.iter().enumerate().all(|(i, b)| *b == (i / 4096) as u8));
    }
    clean();
}

#[test]
fn both_names_are_one_library_and_the_version_is_what_was_set() {
    let settings = Settings { version: 12020, devices: 3, capability: (9, 0), ..Settings::default() };
    if !under_driver("both_names_are_one_library_and_the_version_is_what_was_set", &settings) {
        return;
    }
    let mut version = 0;
    // SAFETY: the place outlives the call.
    check(unsafe { sys::cuDriverGetVersion(&mut version) });
    assert_eq!(version, 12020);
    assert_eq!(CudaContext::device_count().unwrap(), 3);
    assert_eq!(CudaContext::new(2).unwrap().compute_capability().unwrap(), (9, 0));
    assert!(CudaContext::new(3).is_err());
    // The control functions were found through the other name; they must speak of the same calls.
    assert!(common::control().calls()["cuDriverGetVersion"] > 0);
    clean();
}
