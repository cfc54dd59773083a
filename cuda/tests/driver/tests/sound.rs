//! cudarc's own code over the driver: the loader's whole path, and that sound use leaves no trace. One use of cudarc is not
//! sound; the driver shows it.

mod common;

use common::{Region, check, clean, control, copy_in};
use cudarc::driver::{CudaContext, DevicePtrMut, sys};
use fuelrail_cuda_driver::{Fault, Settings, under_driver};
use std::collections::BTreeSet;

#[test]
fn registered_memory_arrives_on_the_device_and_comes_back() {
    let settings = Settings { watch_sources: true, delay_us: 0..=300, ..Settings::default() };
    if !under_driver("registered_memory_arrives_on_the_device_and_comes_back", &settings) {
        return;
    }
    let context = CudaContext::new(0).unwrap();
    assert_eq!(context.compute_capability().unwrap(), (3, 7));
    assert!(context.name().unwrap().contains("test device"));
    assert!(!context.has_async_alloc());
    let region = Region::registered(1 << 20);
    let stream = context.new_stream_with_priority(-5).unwrap();
    // SAFETY: every byte is written before it is read.
    let mut device = unsafe { stream.alloc::<u8>(1 << 20) }.unwrap();
    let done = context.new_event(None).unwrap();
    region.fill(|i| (i / 4096) as u8);
    let (to, guard) = device.device_ptr_mut(&stream);
    check(copy_in(to, region.pointer(), region.len(), stream.cu_stream()));
    drop(guard);
    done.record(&stream).unwrap();
    done.synchronize().unwrap();
    assert!(done.try_is_complete().unwrap());
    let back = stream.clone_dtoh(&device).unwrap();
    stream.synchronize().unwrap();
    assert!(back.iter().enumerate().all(|(i, b)| *b == (i / 4096) as u8));
    check(region.unregister());
    drop((device, done, stream, context));
    clean();
    let known: BTreeSet<&str> = include_str!("../cuda-11.4-symbols.txt").lines().collect();
    let strangers: Vec<String> = control().calls().into_keys().filter(|name| !known.contains(name.as_str())).collect();
    assert!(strangers.is_empty(), "called but not in CUDA 11.4: {strangers:?}");
}

#[test]
fn both_names_are_one_library_and_the_devices_are_what_was_set() {
    let settings = Settings { version: 12020, devices: 3, capability: (9, 0), memory: 1 << 30, ..Settings::default() };
    if !under_driver("both_names_are_one_library_and_the_devices_are_what_was_set", &settings) {
        return;
    }
    let mut version = 0;
    // SAFETY: the place outlives the call.
    check(unsafe { sys::cuDriverGetVersion(&mut version) });
    assert_eq!(version, 12020);
    // cudarc loads libcuda.so, the control functions libcuda.so.1: they must speak of the same calls.
    assert_eq!(control().calls()["cuDriverGetVersion"], 1);
    assert_eq!(CudaContext::device_count().unwrap(), 3);
    let context = CudaContext::new(2).unwrap();
    assert_eq!(context.compute_capability().unwrap(), (9, 0));
    assert_eq!(context.mem_get_info().unwrap(), (1 << 30, 1 << 30));
    assert_eq!(context.uuid().unwrap().bytes[15], 2);
    assert!(CudaContext::new(3).is_err());
    drop(context);
    clean();
}

#[test]
fn without_devices_the_driver_says_so() {
    let settings = Settings { devices: 0, ..Settings::default() };
    if !under_driver("without_devices_the_driver_says_so", &settings) {
        return;
    }
    assert_eq!(CudaContext::new(0).unwrap_err().0, sys::CUresult::CUDA_ERROR_NO_DEVICE);
}

#[test]
fn memory_pools_are_used_where_the_devices_have_them() {
    let settings = Settings { pools: true, capability: (8, 0), delay_us: 0..=200, ..Settings::default() };
    if !under_driver("memory_pools_are_used_where_the_devices_have_them", &settings) {
        return;
    }
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let device = stream.clone_htod(&[7u8; 5000][..]).unwrap();
    assert_eq!(stream.clone_dtoh(&device).unwrap(), [7u8; 5000]);
    drop(device);
    stream.synchronize().unwrap();
    assert!(control().calls()["cuMemFreeAsync"] > 0);
    drop((stream, context));
    clean();
}

/// cudarc lets a plain slice be the source of a copy and takes the borrow for enough. When the slice happens to be
/// registered, the call returns before the copy ran, and safe code changes what is copied.
#[test]
fn cudarcs_copy_from_a_registered_slice_is_unsound_and_the_driver_sees_it() {
    let settings = Settings { watch_sources: true, faults: vec![Fault::Hang { copy: 1 }], ..Settings::default() };
    if !under_driver("cudarcs_copy_from_a_registered_slice_is_unsound_and_the_driver_sees_it", &settings) {
        return;
    }
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let mut source = vec![1u8; 10_000];
    // SAFETY: the vector is not moved before it is unregistered.
    check(unsafe { sys::cuMemHostRegister_v2(source.as_mut_ptr().cast(), source.len(), 0) });
    // SAFETY: every byte is written before it is read.
    let mut device = unsafe { stream.alloc::<u8>(10_000) }.unwrap();
    stream.memcpy_htod(&source[..], &mut device).unwrap();
    source.fill(2);
    control().release();
    assert_eq!(stream.clone_dtoh(&device).unwrap(), [2u8; 10_000]);
    common::caught("was modified before the copy ran");
    // SAFETY: the stream has nothing to do any more.
    check(unsafe { sys::cuMemHostUnregister(source.as_mut_ptr().cast()) });
    drop((device, stream, context));
    clean();
}
