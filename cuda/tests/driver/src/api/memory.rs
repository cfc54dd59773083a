//! Entry points about memory: device, pinned, and the bytes between them.

use crate::code::{Code, Outcome};
use crate::context;
use crate::driver::{Held, Needs};
use crate::exports::{Handle, Out, entries};
use crate::tables::work::Work;

entries! {
    fn cuMemAlloc_v2(pointer: Out<u64>, bytes: usize) Init |call, held| {
        let device = held.current_device(call)?;
        pointer.put(held.allocate(device, bytes)?)
    };
    fn cuMemFree_v2(pointer: u64) Release |call, held| held.free(call, pointer);
    fn cuMemAllocAsync(pointer: Out<u64>, bytes: usize, stream: Handle) Init |call, held| {
        let stream = held.stream(call, stream.number())?;
        if !held.settings.pools {
            return Err(Code::NOT_SUPPORTED);
        }
        let device = held.streams.get(&stream).map(|s| s.device).ok_or(Code::INVALID_HANDLE)?;
        pointer.put(held.allocate(device, bytes)?)
    };
    fn cuMemFreeAsync(pointer: u64, stream: Handle) Release |call, held| {
        if held.lost.is_some() {
            return held.free(call, pointer);
        }
        let stream = held.stream(call, stream.number())?;
        held.free_later(call, pointer)?;
        held.submit(stream, Work::Free { pointer }, Vec::new());
        Ok(())
    };
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) Init |call, held| {
        let device = held.current_device(call)?;
        let all = held.settings.memory;
        let (_, used) = held.memory.held(Some(device));
        total.put(usize::try_from(all).unwrap_or(usize::MAX))?;
        free.put(usize::try_from(all.saturating_sub(used)).unwrap_or(usize::MAX))
    };
    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, pointer: u64) Init |_call, held| {
        let (at, size, _) = held.memory.around(pointer).ok_or(Code::NOT_FOUND)?;
        start.offer(at);
        bytes.offer(size as usize);
        Ok(())
    };
    fn cuMemHostAlloc(pointer: Out<Handle>, bytes: usize, flags: u32) Init |call, held| {
        let device = held.current_device(call)?;
        let start = held.host_allocate(device, bytes, flags)?;
        pointer.put(Handle::from_number(start))
    };
    fn cuMemAllocHost_v2(pointer: Out<Handle>, bytes: usize) Init |call, held| {
        let device = held.current_device(call)?;
        let start = held.host_allocate(device, bytes, 0)?;
        pointer.put(Handle::from_number(start))
    };
    fn cuMemFreeHost(pointer: Handle) Release |_call, held| held.host_free(pointer.number());
    fn cuMemHostRegister_v2(pointer: Handle, bytes: usize, flags: u32) Init |call, held| {
        let device = held.current_device(call)?;
        held.register(device, pointer.number(), bytes, flags)
    };
    fn cuMemHostUnregister(pointer: Handle) Release |_call, held| held.unregister(pointer.number());
    fn cuMemHostGetFlags(flags: Out<u32>, pointer: Handle) Init |_call, held| {
        let (_, _, _, of) = held.pinned.around(pointer.number()).ok_or(Code::INVALID_VALUE)?;
        flags.put(of)
    };
    fn cuMemHostGetDevicePointer_v2(pointer: Out<u64>, host: Handle, flags: u32) Init |_call, held| {
        if flags != 0 || held.pinned.around(host.number()).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        pointer.put(host.number())
    };
    fn cuMemcpyHtoDAsync_v2(to: u64, from: Handle, bytes: usize, stream: Handle) Init |call, held| {
        held.copy_in(call, to, from.number(), bytes, stream.number())
    };
    fn cuMemcpyDtoHAsync_v2(to: Handle, from: u64, bytes: usize, stream: Handle) Init |call, held| {
        held.copy_out(call, to.number(), from, bytes, stream.number())
    };
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) Init |call, held| {
        held.copy_across(call, to, from, bytes, stream.number())
    };
    fn cuMemcpyHtoD_v2(to: u64, from: Handle, bytes: usize) Init |call, held| {
        held.copy_in(call, to, from.number(), bytes, 0)?;
        drain_legacy(call, held)
    };
    fn cuMemcpyDtoH_v2(to: Handle, from: u64, bytes: usize) Init |call, held| {
        held.copy_out(call, to.number(), from, bytes, 0)?;
        drain_legacy(call, held)
    };
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) Init |call, held| held.copy_across(call, to, from, bytes, 0);
    fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: Handle) Init |call, held| {
        held.fill(call, to, value, bytes, stream.number())
    };
    fn cuMemsetD8_v2(to: u64, value: u8, bytes: usize) Init |call, held| held.fill(call, to, value, bytes, 0);
}

/// Asks what a pointer is. The kind of `value` depends on the attribute, as in CUDA.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(value: *mut std::ffi::c_void, attribute: i32, pointer: u64) -> i32 {
    crate::driver::enter("cuPointerGetAttribute", Needs::Init, |held| {
        let bytes = pointer_attribute(held, attribute, pointer)?;
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: by CUDA's contract `value` points to as many bytes as the attribute has; `bytes` are that many.
        unsafe { value.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    })
}

/// The bytes of a pointer's attribute, as many as CUDA writes for it.
fn pointer_attribute(held: &Held, attribute: i32, pointer: u64) -> Outcome<Vec<u8>> {
    const HOST: u32 = 1;
    const DEVICE: u32 = 2;
    let on_device = held.memory.around(pointer);
    let on_host = held.pinned.around(pointer).map(|(start, bytes, device, _)| (start, bytes, device));
    let kind = if on_device.is_some() { DEVICE } else { HOST };
    let (start, bytes, device) = on_device.or(on_host).ok_or(Code::INVALID_VALUE)?;
    let long = |value: u64| Ok(value.to_ne_bytes().to_vec());
    match attribute {
        1 => long(context::handle_of(device)),
        2 => Ok(kind.to_ne_bytes().to_vec()),
        3 => long(pointer),
        4 if kind == HOST => long(pointer),
        8 => Ok(vec![0]), // managed: nothing is
        9 => Ok(device.to_ne_bytes().to_vec()),
        11 => long(start),
        12 => long(bytes),
        13 => Ok(vec![1]), // mapped
        _ => Err(Code::INVALID_VALUE),
    }
}

fn drain_legacy(call: &str, held: &mut Held) -> Outcome {
    let stream = held.stream(call, 0)?;
    held.drain(stream)
}
