//! Entry points about modules and kernels.

use crate::code::Code;
use crate::exports::{Handle, In, Out, entries};
use crate::ptx::Grid;
use std::ffi::c_char;

entries! {
    fn cuModuleLoadData(module: Out<Handle>, image: In<c_char>) Init |call, held| {
        held.current_device(call)?;
        let text = image.text()?;
        module.put(Handle::from_number(held.load_module(call, &text)?))
    };
    fn cuModuleUnload(module: Handle) Release |call, held| held.unload_module(call, module.number());
    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: In<c_char>) Init |call, held| {
        let name = name.text()?;
        function.put(Handle::from_number(held.function(call, module.number(), &name)?))
    };
    fn cuLaunchKernel(
        function: Handle,
        blocks_x: u32,
        blocks_y: u32,
        blocks_z: u32,
        threads_x: u32,
        threads_y: u32,
        threads_z: u32,
        shared: u32,
        stream: Handle,
        arguments: In<*const u8>,
        extra: Handle,
    ) Init |call, held| {
        // Arguments in one buffer, and shared memory, are not modelled: no kernel of ours has them.
        if extra.number() != 0 || shared != 0 {
            held.violation(format!("{call}: shared memory and the extra arguments are not modelled"));
            return Err(Code::INVALID_VALUE);
        }
        let function = held.known_function(call, function.number())?;
        let arguments = arguments.arguments(function.entry().parameters.iter().map(|p| p.bytes))?;
        let grid = Grid { blocks: [blocks_x, blocks_y, blocks_z], threads: [threads_x, threads_y, threads_z] };
        held.launch(call, function, grid, stream.number(), &arguments)
    };
}
