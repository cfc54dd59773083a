//! What a test may order to go wrong goes wrong, so and not otherwise.

#![allow(clippy::undocumented_unsafe_blocks, reason = "raw calls on handles that the test made; misuse is the point")]

mod common;

use common::{
    Device, Region, allocate, caught, check, clean, control, copy_in, copy_out, destroy_event, destroy_stream, event,
    free, query, record, stream, synchronize, wait,
};
use cudarc::driver::sys::{self, CUresult, CUstream};
use fuelrail_cuda_driver::{Code, Fault, Settings, When, under_driver};
use std::ffi::{CString, c_void};

fn with(faults: Vec<Fault>) -> Settings {
    Settings { faults, ..Settings::default() }
}

#[test]
fn the_named_call_fails_with_the_named_code_and_does_nothing() {
    let entry = "cuMemcpyHtoDAsync_v2".to_owned();
    let settings = with(vec![Fault::Fail { entry, call: 2, code: Code::LAUNCH_FAILED }]);
    if !under_driver("the_named_call_fails_with_the_named_code_and_does_nothing", &settings) {
        return;
    }
    let device = Device::open();
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
    drop(device);
    clean();
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
        unsafe { sys::cuCtxSynchronize() },
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
    let waiter = std::thread::spawn(move || synchronize(handle as CUstream));
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
    if !under_driver("a_copy_that_hangs_leaves_everything_behind_it_not_ready", &with(vec![Fault::Hang { copy: 1 }])) {
        return;
    }
    let device = Device::open();
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
        assert_eq!(unsafe { sys::cuStreamQuery(first) }, CUresult::CUDA_ERROR_NOT_READY);
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
    drop(device);
    clean();
}

#[test]
fn memory_above_the_limits_is_not_given() {
    let settings = Settings { memory_limit: 1000, pinned_limit: 8192, ..Settings::default() };
    if !under_driver("memory_above_the_limits_is_not_given", &settings) {
        return;
    }
    let device = Device::open();
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
    drop(device);
    clean();
}

const STORE: &str = ".visible .entry store(.param .u64 to, .param .u64 at) {\n.reg .b64 %rd<3>; .reg .b32 %r;\n\
                     ld.param.u64 %rd0, [to];\nld.param.u64 %rd1, [at];\nadd.u64 %rd2, %rd0, %rd1;\n\
                     mov.u32 %r, 7;\nst.global.u32 [%rd2], %r;\nret; }";

fn load(heading: &str, body: &str) -> Result<sys::CUmodule, CUresult> {
    let text = CString::new(format!("{heading}\n.address_size 64\n{body}")).unwrap();
    let mut module = std::ptr::null_mut();
    match unsafe { sys::cuModuleLoadData(&mut module, text.as_ptr().cast()) } {
        CUresult::CUDA_SUCCESS => Ok(module),
        error => Err(error),
    }
}

fn store(module: sys::CUmodule, to: u64, at: u64, stream: CUstream) -> CUresult {
    let mut function = std::ptr::null_mut();
    check(unsafe { sys::cuModuleGetFunction(&mut function, module, c"store".as_ptr()) });
    let mut arguments: [*mut c_void; 2] = [(&raw const to).cast_mut().cast(), (&raw const at).cast_mut().cast()];
    unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), std::ptr::null_mut()) }
}

#[test]
fn a_kernel_that_stores_out_of_bounds_is_caught_and_loses_the_device() {
    if !under_driver("a_kernel_that_stores_out_of_bounds_is_caught_and_loses_the_device", &Settings::default()) {
        return;
    }
    let device = Device::open();
    let (region, memory, stream) = (Region::registered(16), allocate(16), stream());
    let module = load(".version 7.4 .target sm_37", STORE).unwrap();
    check(store(module, memory, 12, stream));
    check(copy_out(region.pointer(), memory, 16, stream));
    check(synchronize(stream));
    assert!(region.holds(|i| [0xa5, 7, 0][if i < 12 {
        0
    } else if i == 12 {
        1
    } else {
        2
    }]));
    check(store(module, memory, 16, stream));
    assert_eq!(synchronize(stream), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    caught("kernel store line 9, block [0, 0, 0], thread [0, 0, 0]: writes 4 bytes at");
    let _ = (free(memory), region.unregister(), destroy_stream(stream));
    assert_eq!(unsafe { sys::cuModuleUnload(module) }, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    drop(device);
    clean();
}

#[test]
fn a_kernels_memory_may_not_go_before_it_ran_and_a_module_dies_once() {
    let settings = with(vec![Fault::Hang { copy: 1 }]);
    if !under_driver("a_kernels_memory_may_not_go_before_it_ran_and_a_module_dies_once", &settings) {
        return;
    }
    let device = Device::open();
    let (region, memory, other, stream) = (Region::registered(16), allocate(16), allocate(16), stream());
    let module = load(".version 7.4 .target sm_37", STORE).unwrap();
    assert_eq!(control().report().modules, 1);
    check(copy_in(other, region.pointer(), 16, stream));
    check(store(module, memory, 0, stream));
    check(free(memory));
    caught("while work is pending on it: kernel store");
    check(unsafe { sys::cuModuleUnload(module) });
    assert_eq!(unsafe { sys::cuModuleUnload(module) }, CUresult::CUDA_ERROR_INVALID_HANDLE);
    caught("was destroyed");
    control().release();
    assert_eq!(synchronize(stream), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    caught("is no device memory");
    let _ = (free(other), region.unregister(), destroy_stream(stream));
    drop(device);
    clean();
}

#[test]
fn modules_above_the_device_or_the_driver_are_refused() {
    if !under_driver("modules_above_the_device_or_the_driver_are_refused", &Settings::default()) {
        return;
    }
    let device = Device::open();
    let cases = [
        (".version 7.4 .target sm_52", STORE, CUresult::CUDA_ERROR_INVALID_PTX, ".target sm_52 is above"),
        (".version 7.5 .target sm_37", STORE, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "7.5 is above 7.4"),
        (".version 7.4 .target sm_37", ".entry a() {\nbar.sync 0; }", CUresult::CUDA_ERROR_INVALID_PTX, "PTX line 4"),
        ("\x7fELF", "", CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, "reads PTX only"),
    ];
    for (heading, body, code, words) in cases {
        assert_eq!(load(heading, body).unwrap_err(), code);
        caught(words);
    }
    control().set("capability", "8.0");
    let module = load(".version 7.4 .target sm_52", STORE).unwrap();
    let mut function = std::ptr::null_mut();
    let missing = unsafe { sys::cuModuleGetFunction(&mut function, module, c"load".as_ptr()) };
    assert_eq!(missing, CUresult::CUDA_ERROR_NOT_FOUND);
    check(unsafe { sys::cuModuleUnload(module) });
    drop(device);
    clean();
}
