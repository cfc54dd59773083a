//! Entry points about memory: device, pinned, and the bytes between them.

use crate::exports::{Handle, Out, entries};

entries! {
    fn cuMemAlloc_v2(pointer: Out<u64>, bytes: usize) Context |call, held| {
        let device = held.current_device(call)?;
        pointer.put(held.allocate(device, bytes)?)
    };
    fn cuMemFree_v2(pointer: u64) Release |call, held| held.free(call, pointer);
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) Context |call, held| {
        let device = held.current_device(call)?;
        let all = held.settings.memory;
        let (_, used) = held.memory.held(Some(device));
        total.put(usize::try_from(all).unwrap_or(usize::MAX))?;
        free.put(usize::try_from(all.saturating_sub(used)).unwrap_or(usize::MAX))
    };
    fn cuMemHostAlloc(pointer: Out<Handle>, bytes: usize, flags: u32) Context |call, held| {
        let device = held.current_device(call)?;
        let start = held.host_allocate(device, bytes, flags)?;
        pointer.put(Handle::from_number(start))
    };
    fn cuMemFreeHost(pointer: Handle) Release |_call, held| held.host_free(pointer.number());
    fn cuMemHostRegister_v2(pointer: Handle, bytes: usize, flags: u32) Context |call, held| {
        let device = held.current_device(call)?;
        held.register(device, pointer.number(), bytes, flags)
    };
    fn cuMemHostUnregister(pointer: Handle) Release |_call, held| held.unregister(pointer.number());
    fn cuMemcpyHtoDAsync_v2(to: u64, from: Handle, bytes: usize, stream: Handle) Context |call, held| {
        held.copy_in(call, to, from.number(), bytes, stream.number())
    };
    fn cuMemcpyDtoHAsync_v2(to: Handle, from: u64, bytes: usize, stream: Handle) Context |call, held| {
        held.copy_out(call, to.number(), from, bytes, stream.number())
    };
}
