//! For every check of the driver a small misuse through CUDA's raw calls that must be caught: a check that cannot fail is none.

#![allow(clippy::undocumented_unsafe_blocks, reason = "raw calls on handles that the test made; misuse is the point")]

mod common;

use common::{
    Device, Region, allocate, caught, check, clean, control, copy_in, copy_out, destroy_event, destroy_stream, event,
    free, query, record, stream, synchronize, under, wait,
};
use cudarc::driver::sys::{self, CUresult};
use fuelrail_cuda_driver::{Fault, Settings, under_driver};

fn plain() -> Settings {
    Settings::default()
}

/// The first copy does not run before the test says so.
fn held_back() -> Settings {
    Settings { faults: vec![Fault::Hang { copy: 1 }], ..Settings::default() }
}

#[test]
fn a_source_modified_before_its_copy_ran_is_caught_and_goes_out_as_it_is_then() {
    let settings = Settings { watch_sources: true, ..held_back() };
    under("a_source_modified_before_its_copy_ran_is_caught_and_goes_out_as_it_is_then", &settings, || {
        let (source, target) = (Region::registered(10_000), Region::registered(10_000));
        let (memory, stream) = (allocate(10_000), stream());
        source.fill(|_| 1);
        check(copy_in(memory, source.pointer(), source.len(), stream));
        source.set(9_000, 2);
        control().release();
        check(copy_out(target.pointer(), memory, target.len(), stream));
        check(synchronize(stream));
        caught("was modified before the copy ran (near offset 8192)");
        assert!(target.holds(|i| if i == 9_000 { 2 } else { 1 }), "a late copy takes what is there when it runs");
        check(free(memory));
        check(destroy_stream(stream));
        check(source.unregister());
        check(target.unregister());
    });
}

#[test]
fn memory_that_work_is_pending_on_may_not_go() {
    under("memory_that_work_is_pending_on_may_not_go", &held_back(), || {
        let (source, memory, stream) = (Region::registered(4096), allocate(4096), stream());
        let mut pinned = std::ptr::null_mut();
        // SAFETY: the place outlives the call.
        check(unsafe { sys::cuMemHostAlloc(&mut pinned, 100, 0) });
        check(copy_in(memory, source.pointer(), source.len(), stream));
        check(copy_in(memory, pinned, 100, stream));
        check(source.unregister());
        caught("cuMemHostUnregister");
        check(free(memory));
        caught("while work is pending on it: cuMemcpyHtoDAsync_v2");
        // SAFETY: the driver keeps the bytes for the pending copy.
        check(unsafe { sys::cuMemFreeHost(pinned) });
        caught("cuMemFreeHost");
        control().release();
        check(synchronize(stream));
        check(destroy_stream(stream));
    });
}

#[test]
fn device_memory_is_used_in_bounds_and_before_it_is_freed_or_not_at_all() {
    if !under_driver("device_memory_is_used_in_bounds_and_before_it_is_freed_or_not_at_all", &plain()) {
        return;
    }
    let device = Device::open();
    let (region, memory, stream) = (Region::registered(4096), allocate(1000), stream());
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!(copy_in(memory + 1, region.pointer(), 1000, stream), invalid);
    caught("out of bounds of the allocation");
    assert_eq!(copy_out(region.pointer(), memory, 1001, stream), invalid);
    caught("out of bounds of the allocation");
    assert_eq!(copy_in(memory, region.pointer(), usize::MAX, stream), invalid);
    caught("out of bounds of the allocation");
    assert_eq!(copy_in(region.pointer() as u64, region.pointer(), 10, stream), invalid);
    caught("is no device memory");
    check(free(memory));
    assert_eq!(copy_in(memory, region.pointer(), 1000, stream), invalid);
    caught("is used after it was freed");
    assert_eq!(free(memory), invalid);
    caught("is freed twice");
    assert_eq!(free(memory + 8), invalid);
    caught("no allocation begins at");
    check(destroy_stream(stream));
    check(region.unregister());
    drop(device);
    clean();
}

#[test]
fn the_processor_cannot_follow_a_device_address() {
    if !under_driver("the_processor_cannot_follow_a_device_address", &plain()) {
        return;
    }
    let device = Device::open();
    let memory = allocate(4096);
    // SAFETY: this page is not ours to read; the call looks for it and answers without touching it.
    let mapped = unsafe { libc::msync(((memory >> 12) << 12) as *mut libc::c_void, 4096, libc::MS_ASYNC) };
    assert_eq!(mapped, -1, "a device address is mapped in the host");
    check(free(memory));
    drop(device);
    clean();
}

#[test]
fn copies_of_pageable_memory_are_caught_where_they_are_forbidden() {
    let settings = Settings { forbid_pageable: true, ..plain() };
    under("copies_of_pageable_memory_are_caught_where_they_are_forbidden", &settings, || {
        let (region, memory, stream) = (Region::pageable(64), allocate(64), stream());
        check(copy_in(memory, region.pointer(), 64, stream));
        caught("is not pinned");
        check(copy_out(region.pointer(), memory, 64, stream));
        caught("is not pinned");
        control().set("forbid_pageable", "false");
        check(copy_in(memory, region.pointer(), 64, stream));
        check(synchronize(stream));
        check(free(memory));
        check(destroy_stream(stream));
    });
}

#[test]
fn registrations_do_not_overlap_and_end_once() {
    under("registrations_do_not_overlap_and_end_once", &plain(), || {
        let (region, memory, stream) = (Region::pageable(8192), allocate(8192), stream());
        // SAFETY: the driver looks these ranges up; the copies run while the region is there, which is for ever.
        unsafe {
            let middle = region.pointer().byte_add(100);
            check(sys::cuMemHostRegister_v2(middle, 1000, 0));
            assert_eq!(region.register(), CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
            caught("overlaps");
            assert_eq!(copy_in(memory, region.pointer(), 8192, stream), CUresult::CUDA_ERROR_INVALID_VALUE);
            caught("is pinned in part only");
            assert_eq!(sys::cuMemHostUnregister(region.pointer()), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
            caught("was never registered");
            check(sys::cuMemHostUnregister(middle));
            assert_eq!(sys::cuMemHostUnregister(middle), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
            caught("was unregistered already");
            let unmapped = 4096 as *mut std::ffi::c_void;
            assert_eq!(sys::cuMemHostRegister_v2(unmapped, 4096, 0), CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        check(region.register());
        check(region.unregister());
        check(free(memory));
        check(destroy_stream(stream));
    });
}

#[test]
fn destroyed_handles_are_known_and_refused() {
    under("destroyed_handles_are_known_and_refused", &plain(), || {
        let (event, stream) = (event(), stream());
        let invalid = CUresult::CUDA_ERROR_INVALID_HANDLE;
        check(destroy_event(event));
        for result in [destroy_event(event), record(event, stream), wait(stream, event), query(event)] {
            assert_eq!(result, invalid);
        }
        assert_eq!(control().violations().len(), 4);
        assert!(control().violations().iter().all(|text| text.contains("was destroyed")));
        control().forgive();
        check(destroy_stream(stream));
        assert_eq!(destroy_stream(stream), invalid);
        caught("was destroyed");
        assert_eq!(synchronize(8 as sys::CUstream), invalid);
        caught("never existed");
    });
}

#[test]
fn a_released_context_takes_no_more_calls() {
    if !under_driver("a_released_context_takes_no_more_calls", &plain()) {
        return;
    }
    let device = Device::open();
    let stream = stream();
    drop(device);
    assert_eq!(synchronize(stream), CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    caught("the context of device 0 was released");
    assert_eq!(unsafe { sys::cuDevicePrimaryCtxRelease_v2(0) }, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    caught("is not retained by anybody");
    check(destroy_stream(stream));
    clean();
}

#[test]
fn what_is_left_behind_is_reported() {
    under("what_is_left_behind_is_reported", &held_back(), || {
        let (region, memory, stream, event) = (Region::registered(4096), allocate(4096), stream(), event());
        check(copy_in(memory, region.pointer(), 4096, stream));
        check(record(event, stream));
        let report = control().report();
        assert_eq!((report.contexts, report.streams, report.events, report.allocations), (1, 1, 1, 1));
        assert_eq!((report.allocated_bytes, report.registrations, report.pending), (4096, 1, 2));
        let complaint = std::panic::catch_unwind(|| control().assert_clean()).unwrap_err();
        assert!(complaint.downcast_ref::<String>().unwrap().contains("allocations: 1"));
        control().release();
        check(synchronize(stream));
        check(destroy_event(event));
        check(destroy_stream(stream));
        check(free(memory));
        check(region.unregister());
    });
}

#[test]
fn a_call_from_a_host_function_is_caught() {
    unsafe extern "C" fn calls(_: *mut std::ffi::c_void) {
        // SAFETY: the call is refused.
        assert_eq!(unsafe { sys::cuInit(0) }, CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    under("a_call_from_a_host_function_is_caught", &plain(), || {
        let stream = stream();
        // SAFETY: the function is there as long as the program, and looks at no argument.
        check(unsafe { sys::cuLaunchHostFunc(stream, Some(calls), std::ptr::null_mut()) });
        check(synchronize(stream));
        caught("cuInit was called from a host function");
        check(destroy_stream(stream));
    });
}

#[test]
fn a_bad_setting_is_a_violation() {
    if !under_driver("a_bad_setting_is_a_violation", &plain()) {
        return;
    }
    assert!(std::panic::catch_unwind(|| control().set("colour", "red")).is_err());
    caught("there is no setting 'colour'");
    clean();
}

#[test]
fn calls_without_a_current_context_are_refused() {
    under("calls_without_a_current_context_are_refused", &plain(), || {
        let (memory, stream, event) = (allocate(64), stream(), event());
        let (handle, recorded) = (stream as usize, event as usize);
        let elsewhere = std::thread::spawn(move || {
            let (stream, event) = (handle as sys::CUstream, recorded as sys::CUevent);
            [record(event, stream), query(event), synchronize(stream), free(memory), destroy_stream(stream)]
        });
        assert_eq!(elsewhere.join().unwrap(), [CUresult::CUDA_ERROR_INVALID_CONTEXT; 5]);
        check(record(event, stream));
        check(destroy_event(event));
        check(destroy_stream(stream));
        check(free(memory));
    });
}

#[test]
fn a_query_by_any_thread_breaks_a_global_capture_unless_the_thread_is_relaxed() {
    under("a_query_by_any_thread_breaks_a_global_capture_unless_the_thread_is_relaxed", &plain(), || {
        let (captured, event) = (stream(), event());
        let begin = || {
            let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
            // SAFETY: the stream is this test's.
            check(unsafe { sys::cuStreamBeginCapture_v2(captured, global) });
        };
        let end = || {
            let mut graph = std::ptr::null_mut();
            // SAFETY: writes one handle.
            unsafe { sys::cuStreamEndCapture(captured, &mut graph) }
        };
        let recorded = event as usize;
        let query_from = |relaxed: bool| {
            let query = move || {
                let device = Device::open();
                let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                if relaxed {
                    // SAFETY: reads and writes one number.
                    check(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
                    assert_eq!(mode, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
                }
                let said = query(recorded as sys::CUevent);
                drop(device);
                said
            };
            std::thread::spawn(query).join().unwrap()
        };
        begin();
        assert_eq!(query_from(true), CUresult::CUDA_SUCCESS);
        assert_eq!(end(), CUresult::CUDA_SUCCESS);
        begin();
        assert_eq!(query_from(false), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(end(), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        check(destroy_event(event));
        check(destroy_stream(captured));
    });
}
