//! Streams go their own ways, events bind them together, and neither of the two does the other's work.

#![allow(clippy::undocumented_unsafe_blocks, reason = "raw calls on handles that the test made")]

mod common;

use common::{
    Device, Region, allocate, check, clean, control, copy_in, copy_out, destroy_event, destroy_stream, event, free,
    query, record, stream, stream_with, synchronize, under, wait,
};
use cudarc::driver::sys::{self, CUresult, CUstream};
use fuelrail_cuda_driver::{Fault, Settings, under_driver};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::Mutex;
use std::time::{Duration, Instant};

static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn sees(number: *mut c_void) {
    SEEN.lock().unwrap().push(number as usize);
}

/// Has a stream say a number when it comes to it.
fn say(stream: CUstream, number: usize) {
    check(unsafe { sys::cuLaunchHostFunc(stream, Some(sees), number as *mut c_void) });
}

fn seen() -> Vec<usize> {
    std::mem::take(&mut *SEEN.lock().unwrap())
}

fn late(most_us: u64) -> Settings {
    Settings { delay_us: 0..=most_us, watch_sources: true, ..Settings::default() }
}

#[test]
fn two_streams_end_in_both_orders_and_each_keeps_its_own() {
    under("two_streams_end_in_both_orders_and_each_keeps_its_own", &late(2000), || {
        let mut orders = BTreeSet::new();
        for seed in 0..64 {
            control().set("seed", &seed.to_string());
            let (first, second) = (stream(), stream());
            for (stream, number) in [(first, 1), (second, 3), (first, 2), (second, 4)] {
                say(stream, number);
            }
            check(synchronize(first));
            check(synchronize(second));
            let order = seen();
            let place = |number| order.iter().position(|n| *n == number).unwrap();
            assert!(place(1) < place(2) && place(3) < place(4), "a stream is a queue: {order:?}");
            orders.insert(place(2) < place(4));
            check(destroy_stream(first));
            check(destroy_stream(second));
        }
        assert_eq!(orders.len(), 2, "in 64 seeds one stream was always first");
    });
}

#[test]
fn what_waits_for_an_event_comes_after_it_whatever_the_seed() {
    const BYTES: usize = 5000;
    under("what_waits_for_an_event_comes_after_it_whatever_the_seed", &late(150), || {
        let (source, noise, target) = (Region::registered(BYTES), Region::registered(BYTES), Region::registered(BYTES));
        let (memory, done) = (allocate(BYTES), event());
        for seed in 0..200 {
            control().set("seed", &seed.to_string());
            let (writer, reader) = (stream(), stream());
            source.fill(|i| (i as u64 ^ seed) as u8);
            check(copy_in(memory, noise.pointer(), BYTES, writer));
            check(copy_in(memory, source.pointer(), BYTES, writer));
            check(record(done, writer));
            check(wait(reader, done));
            // Work after the recording is not waited for, and a later recording is another one.
            check(copy_out(target.pointer(), memory, BYTES, reader));
            check(record(done, reader));
            check(wait(writer, done));
            check(copy_in(memory, noise.pointer(), BYTES, writer));
            check(synchronize(reader));
            assert!(target.holds(|i| (i as u64 ^ seed) as u8), "seed {seed}");
            check(synchronize(writer));
            check(destroy_stream(writer));
            check(destroy_stream(reader));
        }
        check(destroy_event(done));
        check(free(memory));
        check(noise.unregister());
        check(source.unregister());
        check(target.unregister());
    });
}

#[test]
fn an_event_is_its_latest_recording_and_a_wait_keeps_the_one_it_saw() {
    let settings = Settings { faults: vec![Fault::Hang { copy: 1 }], ..Settings::default() };
    under("an_event_is_its_latest_recording_and_a_wait_keeps_the_one_it_saw", &settings, || {
        let (region, memory) = (Region::registered(64), allocate(64));
        let (hung, quick, waiter, marks) = (stream(), stream(), stream(), event());
        assert_eq!(query(marks), CUresult::CUDA_SUCCESS, "never recorded is complete");
        check(wait(waiter, marks));
        check(synchronize(waiter));
        check(copy_in(memory, region.pointer(), 64, hung));
        check(record(marks, hung));
        check(wait(waiter, marks));
        say(waiter, 1);
        check(record(marks, quick));
        check(synchronize(quick));
        assert_eq!(query(marks), CUresult::CUDA_SUCCESS, "the latest recording is reached");
        assert!(seen().is_empty(), "the wait is for the first one");
        control().release();
        check(synchronize(waiter));
        assert_eq!(seen(), [1]);
        for stream in [hung, quick, waiter] {
            check(destroy_stream(stream));
        }
        check(destroy_event(marks));
        check(free(memory));
        check(region.unregister());
    });
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
    let settings = Settings { delay_us: 0..=500, ..Settings::default() };
    under("the_default_stream_waits_for_blocking_streams_and_they_for_it", &settings, || {
        let blocking = sys::CUstream_flags::CU_STREAM_DEFAULT;
        for seed in 0..50 {
            control().set("seed", &seed.to_string());
            let (first, second) = (stream_with(blocking), stream_with(blocking));
            say(first, 1);
            say(second, 1);
            say(std::ptr::null_mut(), 2);
            say(first, 3);
            say(second, 3);
            check(synchronize(first));
            check(synchronize(second));
            assert_eq!(seen(), [1, 1, 2, 3, 3], "seed {seed}");
            check(destroy_stream(first));
            check(destroy_stream(second));
        }
    });
}

#[test]
fn a_stream_that_does_not_block_passes_the_default_stream() {
    let settings = Settings { faults: vec![Fault::Hang { copy: 1 }], ..Settings::default() };
    under("a_stream_that_does_not_block_passes_the_default_stream", &settings, || {
        let (region, memory, free_stream) = (Region::registered(64), allocate(64), stream());
        check(copy_in(memory, region.pointer(), 64, std::ptr::null_mut()));
        say(free_stream, 1);
        check(synchronize(free_stream));
        assert_eq!(seen(), [1]);
        control().release();
        check(synchronize(std::ptr::null_mut()));
        check(destroy_stream(free_stream));
        check(free(memory));
        check(region.unregister());
    });
}

#[test]
fn pageable_sources_may_change_at_once_and_pageable_targets_are_there_at_once() {
    under("pageable_sources_may_change_at_once_and_pageable_targets_are_there_at_once", &late(500), || {
        let (source, target, memory, stream) =
            (Region::pageable(9000), Region::pageable(9000), allocate(9000), stream());
        for round in 0..20u8 {
            source.fill(|_| round);
            check(copy_in(memory, source.pointer(), 9000, stream));
            source.fill(|_| 255);
            check(copy_out(target.pointer(), memory, 9000, stream));
            assert!(target.holds(|_| round));
        }
        check(free(memory));
        check(destroy_stream(stream));
    });
}

#[test]
fn a_copy_of_pageable_memory_holds_its_caller_until_the_stream_is_through() {
    let settings = Settings { faults: vec![Fault::Hang { copy: 1 }], ..Settings::default() };
    under("a_copy_of_pageable_memory_holds_its_caller_until_the_stream_is_through", &settings, || {
        let (pinned, pageable) = (Region::registered(64), Region::pageable(64));
        let (memory, stream) = (allocate(64), stream());
        check(copy_in(memory, pinned.pointer(), 64, stream));
        let (from, to) = (pageable.pointer() as usize, stream as usize);
        let caller = std::thread::spawn(move || {
            let device = Device::open();
            let copied = copy_in(memory, from as *const c_void, 64, to as CUstream);
            drop(device);
            copied
        });
        // Long enough for a call that does not block to return.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!caller.is_finished());
        control().release();
        check(caller.join().unwrap());
        check(synchronize(stream));
        check(destroy_stream(stream));
        check(free(memory));
        check(pinned.unregister());
    });
}

#[test]
fn the_link_is_no_faster_than_it_was_set() {
    let settings = Settings { gbps: 0.1, ..Settings::default() };
    under("the_link_is_no_faster_than_it_was_set", &settings, || {
        let (region, memory, first, second) = (Region::registered(1_000_000), allocate(1_000_000), stream(), stream());
        let begin = Instant::now();
        for stream in [first, second] {
            check(copy_in(memory, region.pointer(), region.len(), stream));
            check(copy_out(region.pointer(), memory, region.len(), stream));
        }
        check(synchronize(first));
        check(synchronize(second));
        // Four million bytes over one link of 100 million a second, however the streams share it.
        assert!(begin.elapsed() >= Duration::from_millis(40));
        check(destroy_stream(first));
        check(destroy_stream(second));
        check(free(memory));
        check(region.unregister());
    });
}

#[test]
fn times_between_events_run_forward() {
    under("times_between_events_run_forward", &Settings { delay_us: 2000..=2000, ..Settings::default() }, || {
        let (region, memory, stream, begin, end) = (Region::registered(64), allocate(64), stream(), event(), event());
        let mut time = 0.0;
        let elapsed = |time: &mut f32| unsafe { sys::cuEventElapsedTime(time, begin, end) };
        assert_eq!(elapsed(&mut time), CUresult::CUDA_ERROR_INVALID_HANDLE, "never recorded");
        check(record(begin, stream));
        check(copy_in(memory, region.pointer(), 64, stream));
        check(record(end, stream));
        check(synchronize(stream));
        check(elapsed(&mut time));
        assert!(time >= 2.0, "{time} ms for work that was 2 ms late");
        check(destroy_event(begin));
        check(destroy_event(end));
        check(destroy_stream(stream));
        check(free(memory));
        check(region.unregister());
    });
}

#[test]
fn pinning_is_for_the_context_that_asked() {
    let settings = Settings { devices: 2, forbid_pageable: true, ..Settings::default() };
    if !under_driver("pinning_is_for_the_context_that_asked", &settings) {
        return;
    }
    let device = Device::open();
    let region = Region::pageable(4096);
    check(unsafe { sys::cuMemHostRegister_v2(region.pointer(), 4096, 0) });
    let second = Device::nth(1);
    let (far, stream) = (allocate(100), stream());
    check(copy_in(far, region.pointer(), 100, stream));
    common::caught("is not pinned for this device");
    check(synchronize(stream));
    check(destroy_stream(stream));
    check(free(far));
    check(region.unregister());
    drop((second, device));
    clean();
}
