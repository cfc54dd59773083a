//! What a test may order to go wrong goes wrong, so and not otherwise.

#![allow(clippy::undocumented_unsafe_blocks, reason = "raw calls on handles that the test made; misuse is the point")]

mod common;

use common::{
    Device, Region, allocate, check, clean, control, copy_in, copy_out, destroy_event, destroy_stream, event, free,
    query, record, stream, synchronize, under, wait,
};
use cudarc::driver::sys::{self, CUresult, CUstream};
use fuelrail_cuda_driver::{Code, Fault, Settings, When, under_driver};

fn with(faults: Vec<Fault>) -> Settings {
    Settings { faults, ..Settings::default() }
}

#[test]
fn the_named_call_fails_with_the_named_code_and_does_nothing() {
    let entry = "cuMemcpyHtoDAsync_v2".to_owned();
    let settings = with(vec![Fault::Fail { entry, call: 2, code: Code::LAUNCH_FAILED }]);
    under("the_named_call_fails_with_the_named_code_and_does_nothing", &settings, || {
        let (region, back) = (Region::registered(64), Region::registered(64));
        let (memory, stream) = (allocate(64), stream());
        let copy = |byte| {
            region.fill(|_| byte);
            let result = copy_in(memory, region.pointer(), 64, stream);
            check(synchronize(stream));
            result
        };
        assert_eq!(copy(1), CUresult::CUDA_SUCCESS);
        assert_eq!(copy(2), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        check(copy_out(back.pointer(), memory, 64, stream));
        check(synchronize(stream));
        assert!(back.holds(|_| 1));
        assert_eq!(copy(3), CUresult::CUDA_SUCCESS);
        check(free(memory));
        check(destroy_stream(stream));
        check(region.unregister());
        check(back.unregister());
    });
}

#[test]
fn a_lost_device_stays_lost_runs_nothing_more_and_lets_go() {
    let settings = with(vec![Fault::Lose { when: When::Copy(2), code: Code::ECC_UNCORRECTABLE }]);
    if !under_driver("a_lost_device_stays_lost_runs_nothing_more_and_lets_go", &settings) {
        return;
    }
    let lost = CUresult::CUDA_ERROR_ECC_UNCORRECTABLE;
    let device = Device::open();
    let (region, memory, stream, event) = (Region::registered(64), allocate(64), stream(), event());
    check(copy_in(memory, region.pointer(), 64, stream));
    check(synchronize(stream));
    check(copy_in(memory, region.pointer(), 64, stream));
    assert_eq!(synchronize(stream), lost);
    for result in [
        query(event),
        record(event, stream),
        copy_in(memory, region.pointer(), 64, stream),
        destroy_event(event),
        destroy_stream(stream),
        free(memory),
        region.unregister(),
    ] {
        assert_eq!(result, lost);
    }
    drop(device);
    clean();
}

#[test]
fn a_loss_wakes_those_who_wait_and_comes_when_it_is_asked_for() {
    if !under_driver("a_loss_wakes_those_who_wait_and_comes_when_it_is_asked_for", &with(vec![Fault::Hang { copy: 1 }]))
    {
        return;
    }
    let device = Device::open();
    let (region, memory, stream) = (Region::registered(64), allocate(64), stream());
    check(copy_in(memory, region.pointer(), 64, stream));
    let handle = stream as usize;
    let (ready, opened) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let device = Device::open();
        ready.send(()).unwrap();
        let seen = synchronize(handle as CUstream);
        drop(device);
        seen
    });
    opened.recv().unwrap();
    control().set_faults(&[Fault::Lose { when: When::Now, code: Code::ILLEGAL_ADDRESS }]);
    let seen = waiter.join().unwrap();
    assert_eq!(seen, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let _ = (free(memory), destroy_stream(stream), region.unregister());
    drop(device);
    // The stream's thread throws its work away by itself.
    while control().report().pending > 0 {
        std::thread::yield_now();
    }
    control().forgive();
    clean();
}

#[test]
fn a_copy_that_hangs_leaves_everything_behind_it_not_ready() {
    under("a_copy_that_hangs_leaves_everything_behind_it_not_ready", &with(vec![Fault::Hang { copy: 1 }]), || {
        let (region, memory, first, second) = (Region::registered(64), allocate(64), stream(), stream());
        let (hung, behind, free_of_it) = (event(), event(), event());
        check(copy_in(memory, region.pointer(), 64, first));
        check(record(hung, first));
        check(record(free_of_it, second));
        check(wait(second, hung));
        check(record(behind, second));
        check(unsafe { sys::cuEventSynchronize(free_of_it) });
        for _ in 0..200 {
            assert_eq!(query(hung), CUresult::CUDA_ERROR_NOT_READY);
            assert_eq!(query(behind), CUresult::CUDA_ERROR_NOT_READY);
            std::thread::yield_now();
        }
        assert_eq!(query(free_of_it), CUresult::CUDA_SUCCESS);
        control().release();
        check(unsafe { sys::cuEventSynchronize(behind) });
        assert_eq!(query(hung), CUresult::CUDA_SUCCESS);
        for event in [hung, behind, free_of_it] {
            check(destroy_event(event));
        }
        check(destroy_stream(first));
        check(destroy_stream(second));
        check(free(memory));
        check(region.unregister());
    });
}

#[test]
fn memory_above_the_limits_is_not_given() {
    let settings = Settings { memory_limit: 1000, pinned_limit: 8192, ..Settings::default() };
    under("memory_above_the_limits_is_not_given", &settings, || {
        let mut pointer = 0;
        let first = allocate(600);
        assert_eq!(unsafe { sys::cuMemAlloc_v2(&mut pointer, 401) }, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let second = allocate(400);
        check(free(first));
        check(free(second));
        let region = Region::registered(8000);
        let mut host = std::ptr::null_mut();
        assert_eq!(unsafe { sys::cuMemHostAlloc(&mut host, 200, 0) }, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(Region::pageable(200).register(), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        check(region.unregister());
    });
}
