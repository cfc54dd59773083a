//! Entry points about streams, events and host functions.

use crate::capture::exchange_mode;
use crate::code::Code;
use crate::exports::{Handle, Out, entries};
use crate::tables::work::{Callback, Work};
use std::ffi::c_void;

entries! {
    fn cuStreamCreate(stream: Out<Handle>, flags: u32) Context |call, held| {
        let device = held.current_device(call)?;
        stream.put(Handle::from_number(held.make_stream(device, flags)?))
    };
    fn cuStreamDestroy_v2(stream: Handle) Release |call, held| held.destroy_stream(call, stream.number());
    fn cuStreamSynchronize(stream: Handle) Context |call, held| {
        let stream = held.stream(call, stream.number())?;
        held.drain(stream)
    };
    fn cuStreamBeginCapture_v2(stream: Handle, mode: i32) Context |call, held| {
        held.begin_capture(call, stream.number(), mode)
    };
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) Context |call, held| {
        graph.put(Handle::from_number(held.end_capture(call, stream.number())?))
    };
    fn cuThreadExchangeStreamCaptureMode(mode: Out<i32>) Init |_call, _held| mode.exchange(exchange_mode);
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) Context |call, held| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        held.wait_event(call, stream.number(), event.number())
    };
    fn cuLaunchHostFunc(
        stream: Handle,
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        argument: Handle,
    ) Context |call, held| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let stream = held.stream(call, stream.number())?;
        let argument = argument.number() as usize;
        held.submit(stream, Work::Call(Callback { function, argument }), Vec::new());
        Ok(())
    };
    fn cuEventCreate(event: Out<Handle>, flags: u32) Context |call, held| {
        let device = held.current_device(call)?;
        event.put(Handle::from_number(held.make_event(device, flags)?))
    };
    fn cuEventDestroy_v2(event: Handle) Release |call, held| held.destroy_event(call, event.number());
    fn cuEventRecord(event: Handle, stream: Handle) Context |call, held| {
        held.record(call, event.number(), stream.number())
    };
    fn cuEventQuery(event: Handle) Context |call, held| held.query_event(call, event.number());
    fn cuEventSynchronize(event: Handle) Context |call, held| held.sync_event(call, event.number());
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) Context |call, held| {
        milliseconds.put(held.elapsed(call, start.number(), end.number())?)
    };
}
