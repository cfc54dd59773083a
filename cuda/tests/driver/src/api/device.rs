//! Entry points about the driver itself, its devices, their primary contexts and the names of errors.

use crate::code::{Code, Outcome};
use crate::context;
use crate::driver::Held;
use crate::exports::{Handle, Out, entries};
use std::ffi::c_char;

entries! {
    fn cuInit(flags: u32) Init |_call, held| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if held.settings.devices == 0 {
            return Err(Code::NO_DEVICE);
        }
        held.initialised = true;
        Ok(())
    };
    fn cuGetErrorName(code: i32, name: Out<*const c_char>) Nothing |_call, _held| describe(code, name);
    fn cuGetErrorString(code: i32, text: Out<*const c_char>) Nothing |_call, _held| describe(code, text);
    fn cuDeviceGetCount(count: Out<i32>) Init |_call, held| count.put(held.settings.devices.cast_signed());
    fn cuDeviceGet(device: Out<i32>, ordinal: i32) Init |_call, held| {
        held.device(ordinal)?;
        device.put(ordinal)
    };
    fn cuDeviceGetName(name: Out<c_char>, room: i32, device: i32) Init |_call, held| {
        held.device(device)?;
        name.put_text("Fuelrail test device", room)
    };
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) Init |_call, held| {
        held.device(device)?;
        bytes.put(usize::try_from(held.settings.memory).unwrap_or(usize::MAX))
    };
    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: i32, device: i32) Init |_call, held| {
        let device = held.device(device)?;
        text.put_text(&format!("0000:{:02x}:00.0", bus_of(device)), room)
    };
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) Init |_call, held| {
        held.device(device)?;
        value.put(attribute_of(attribute)?)
    };
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) Init |_call, held| {
        let device = held.device(device)?;
        if let Some(code) = held.lost.get(&device) {
            return Err(*code);
        }
        *held.retained.entry(device).or_insert(0) += 1;
        context.put(Handle::from_number(context::handle_of(device)))
    };
    fn cuDevicePrimaryCtxRelease_v2(device: i32) Init |call, held| release(call, held, device);
    fn cuCtxSetCurrent(context: Handle) Init |call, held| {
        if context.number() != 0 {
            let device = held.device_of(context.number())?;
            held.alive(call, device)?;
        }
        context::set_current(context.number());
        Ok(())
    };
    fn cuCtxPushCurrent_v2(context: Handle) Init |call, held| {
        let device = held.device_of(context.number())?;
        held.alive(call, device)?;
        context::push_current(context.number());
        held.lost.get(&device).map_or(Ok(()), |code| Err(*code))
    };
    fn cuCtxPopCurrent_v2(context: Out<Handle>) Init |_call, _held| {
        let top = context::pop_current().ok_or(Code::INVALID_CONTEXT)?;
        context.offer(Handle::from_number(top));
        Ok(())
    };
}

/// Writes the name of a code; CUDA's own texts say little more, so the name serves for both.
fn describe(code: i32, place: Out<*const c_char>) -> Outcome {
    match Code(code).name() {
        Some(name) => place.put(name.as_ptr()),
        None => {
            place.offer(std::ptr::null());
            Err(Code::INVALID_VALUE)
        }
    }
}

fn release(call: &str, held: &mut Held, device: i32) -> Outcome {
    let device = held.device(device)?;
    match held.retained.get_mut(&device).filter(|n| **n > 0) {
        Some(count) => *count -= 1,
        None => {
            held.violation(format!("{call}: the context of device {device} is not retained by anybody"));
            return Err(Code::INVALID_CONTEXT);
        }
    }
    held.lost.get(&device).map_or(Ok(()), |code| Err(*code))
}

/// Device n sits on bus n + 1 of domain 0.
fn bus_of(device: u32) -> u32 {
    device + 1
}

/// What a device of this driver answers for the attributes that the loader asks for, by their numbers: those of a K80.
fn attribute_of(attribute: i32) -> Outcome<i32> {
    Ok(match attribute {
        40 => 2, // copy engines
        75 => 3, // compute capability, before and after the point
        76 => 7,
        99 => 1, // host memory can be registered
        _ => return Err(Code::INVALID_VALUE),
    })
}
