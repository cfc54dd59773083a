//! Entry points about the driver itself, its devices, their primary contexts and the names of errors.

use crate::code::{Code, Outcome};
use crate::context;
use crate::driver::Held;
use crate::exports::{Handle, In, Out, entries};
use crate::stream::PRIORITIES;
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
    fn cuDriverGetVersion(version: Out<i32>) Nothing |_call, held| version.put(held.settings.version.cast_signed());
    fn cuGetErrorName(code: i32, name: Out<*const c_char>) Nothing |_call, _held| describe(code, name);
    fn cuGetErrorString(code: i32, text: Out<*const c_char>) Nothing |_call, _held| describe(code, text);
    fn cuDeviceGetCount(count: Out<i32>) Init |_call, held| count.put(held.settings.devices.cast_signed());
    fn cuDeviceGet(device: Out<i32>, ordinal: i32) Init |_call, held| {
        held.device(ordinal)?;
        device.put(ordinal)
    };
    fn cuDeviceGetName(name: Out<c_char>, room: i32, device: i32) Init |_call, held| {
        held.device(device)?;
        let (major, minor) = held.settings.capability;
        name.put_text(&format!("Fuelrail test device {major}.{minor}"), room)
    };
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) Init |_call, held| uuid.put(uuid_of(held.device(device)?));
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) Init |_call, held| uuid.put(uuid_of(held.device(device)?));
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) Init |_call, held| {
        held.device(device)?;
        bytes.put(usize::try_from(held.settings.memory).unwrap_or(usize::MAX))
    };
    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: i32, device: i32) Init |_call, held| {
        let device = held.device(device)?;
        text.put_text(&format!("0000:{:02x}:00.0", bus_of(device)), room)
    };
    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: In<c_char>) Init |_call, held| {
        let text = text.text()?;
        let found = (0..held.settings.devices).find(|d| text.contains(&format!("{:02x}:00.0", bus_of(*d))));
        device.put(found.ok_or(Code::INVALID_DEVICE)?.cast_signed())
    };
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) Init |_call, held| {
        let device = held.device(device)?;
        value.put(attribute_of(held, attribute, device)?)
    };
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) Init |_call, held| {
        held.device(device)?;
        held.device(peer)?;
        can.put(0)
    };
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) Init |_call, held| {
        let device = held.device(device)?;
        *held.retained.entry(device).or_insert(0) += 1;
        context.put(Handle::from_number(context::handle_of(device)))
    };
    fn cuDevicePrimaryCtxRelease_v2(device: i32) Release |call, held| release(call, held, device);
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) Init |_call, held| {
        let device = held.device(device)?;
        flags.offer(0);
        active.put(i32::from(held.retained.get(&device).is_some_and(|n| *n > 0)))
    };
    fn cuCtxGetCurrent(context: Out<Handle>) Init |_call, _held| {
        context.put(Handle::from_number(context::current_handle()))
    };
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
        Ok(())
    };
    fn cuCtxPopCurrent_v2(context: Out<Handle>) Init |_call, _held| {
        let top = context::pop_current().ok_or(Code::INVALID_CONTEXT)?;
        context.offer(Handle::from_number(top));
        Ok(())
    };
    fn cuCtxGetDevice(device: Out<i32>) Init |call, held| device.put(held.current_device(call)?.cast_signed());
    fn cuCtxGetFlags(flags: Out<u32>) Init |call, held| {
        held.current_device(call)?;
        flags.put(0)
    };
    fn cuCtxGetApiVersion(context: Handle, version: Out<u32>) Init |_call, held| {
        held.device_of(context.number())?;
        version.put(3020)
    };
    fn cuCtxSynchronize() Init |call, held| {
        let device = held.current_device(call)?;
        held.drain_device(device)
    };
    fn cuCtxGetStreamPriorityRange(lowest: Out<i32>, highest: Out<i32>) Init |call, held| {
        held.current_device(call)?;
        lowest.offer(PRIORITIES.0);
        highest.offer(PRIORITIES.1);
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
    Ok(())
}

fn uuid_of(device: u32) -> [u8; 16] {
    let mut uuid = *b"fuelrail-test\0\0\0";
    uuid[15] = device.to_le_bytes()[0];
    uuid
}

/// Device n sits on bus n + 1 of domain 0.
fn bus_of(device: u32) -> u32 {
    device + 1
}

/// What a device of this driver answers for an attribute of CUDA 11.4, by its number. Values are those of a K80 where the
/// settings do not say otherwise; attributes that nobody here asks for are 0.
fn attribute_of(held: &Held, attribute: i32, device: u32) -> Outcome<i32> {
    /// The last attribute that 11.4 knows.
    const LAST: i32 = 118;
    let (major, minor) = held.settings.capability;
    Ok(match attribute {
        1..=3 => 1024,                      // threads of a block, and its extents in x and y
        4 => 64,                            // extent of a block in z
        5 => i32::MAX,                      // blocks of a grid in x
        6 | 7 => 65535,                     // in y and z
        8 => 48 << 10,                      // shared memory of a block
        10 => 32,                           // threads of a warp
        12 => 65536,                        // registers of a block
        13 => 823_500,                      // clock, kHz
        16 => 13,                           // multiprocessors
        19 | 31 => 1,                       // maps host memory; runs kernels side by side
        32 => 1,                            // corrects memory errors
        33 => bus_of(device).cast_signed(), // bus
        34 | 50 => 0,                       // slot and domain
        36 => 2_505_000,                    // memory clock, kHz
        37 => 384,                          // memory bus, bits
        38 => 1_572_864,                    // second level cache
        39 => 2048,                         // threads of a multiprocessor
        40 => 2,                            // copy engines
        41 => 1,                            // one address space
        75 => major.cast_signed(),
        76 => minor.cast_signed(),
        78 => 1,      // streams have priorities
        91 | 99 => 1, // registered memory has one address for host and device; can be registered
        115 => i32::from(held.settings.pools),
        _ if (1..=LAST).contains(&attribute) => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}
