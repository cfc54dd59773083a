//! Modules and launches.
//!
//! Owns which modules are taken (version of PTX, target, known instructions) and which launches; what a kernel's end by a
//! fault means for the device.

use crate::code::{Code, Outcome};
use crate::driver::{Held, State, changed};
use crate::ptx::{Cause, Fault, Grid, Module, read};
use crate::tables::kernel::{Function, Launch, View};
use crate::tables::work::{Touch, Work};
use std::sync::Arc;

/// Threads of a block, altogether.
const BLOCK_THREADS_MAX: u64 = 1024;
/// Extents of a block and of a grid, by axis.
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
const GRID_MAX: [u32; 3] = [i32::MAX.cast_unsigned(), 65535, 65535];
/// How images begin that are not text: ELF, and NVIDIA's bundle of several.
const BINARIES: [&[u8]; 2] = [b"\x7fELF", b"\x50\xed\x55\xba"];

/// The PTX version that a driver of a CUDA version knows: 7.x with 11.x, 8.x with 12.x, 9.x with 13.x. From 12.6 on, whose
/// PTX stayed at 8.5, one less.
fn ptx_version(driver: u32) -> (u32, u32) {
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    let late = major == 12 && minor >= 6;
    (major.saturating_sub(4), if late { minor - 1 } else { minor })
}

impl State {
    /// Loads a module from the text of its PTX.
    pub(crate) fn load_module(&mut self, call: &str, text: &str) -> Outcome<u64> {
        if BINARIES.iter().any(|magic| text.as_bytes().starts_with(magic)) {
            self.violation(format!("{call}: a compiled image; this driver reads PTX only"));
            return Err(Code::NO_BINARY_FOR_GPU);
        }
        let module = match read(text) {
            Ok(module) => module,
            Err(refusal) => {
                self.violation(format!("{call}: PTX line {}: {}", refusal.line, refusal.why));
                return Err(Code::INVALID_PTX);
            }
        };
        self.check_heading(call, &module)?;
        let handle = self.new_handle();
        self.modules.insert(handle, Arc::new(module));
        Ok(handle)
    }

    fn check_heading(&mut self, call: &str, module: &Module) -> Outcome {
        let known = ptx_version(self.settings.version);
        if module.version > known {
            let (major, minor) = module.version;
            self.violation(format!("{call}: PTX .version {major}.{minor} is above {}.{}", known.0, known.1));
            return Err(Code::UNSUPPORTED_PTX_VERSION);
        }
        let (major, minor) = self.settings.capability;
        if module.target > major * 10 + minor {
            self.violation(format!("{call}: PTX .target sm_{} is above the device's {major}.{minor}", module.target));
            return Err(Code::INVALID_PTX);
        }
        Ok(())
    }

    /// Unloads a module and forgets its functions; a launch in a queue keeps what it needs.
    pub(crate) fn unload_module(&mut self, call: &str, handle: u64) -> Outcome {
        if self.modules.remove(&handle).is_none() {
            return Err(self.bad_handle(call, "module", handle));
        }
        self.functions.retain(|_, f| f.owner != handle);
        Ok(())
    }

    /// Finds a kernel of a module by its name.
    pub(crate) fn function(&mut self, call: &str, owner: u64, name: &str) -> Outcome<u64> {
        let Some(module) = self.modules.get(&owner).cloned() else {
            return Err(self.bad_handle(call, "module", owner));
        };
        let index = module.entries.iter().position(|e| e.name == name).ok_or(Code::NOT_FOUND)?;
        let known =
            self.functions.iter().find(|(_, f)| f.owner == owner && f.index == index).map(|(handle, _)| *handle);
        if let Some(handle) = known {
            return Ok(handle);
        }
        let handle = self.new_handle();
        self.functions.insert(handle, Function { owner, module, index });
        Ok(handle)
    }

    /// The function of a handle.
    pub(crate) fn known_function(&mut self, call: &str, handle: u64) -> Outcome<Function> {
        match self.functions.get(&handle).cloned() {
            Some(function) => Ok(function),
            None => Err(self.bad_handle(call, "function", handle)),
        }
    }

    /// The allocations of a device as a kernel sees them.
    pub(crate) fn view(&self, device: u32) -> View {
        let of_device = self.memory.live.iter().filter(|(_, a)| a.device == device);
        View { ranges: of_device.map(|(start, a)| (*start, a.memory.clone())).collect(), last: 0 }
    }

    /// A kernel was stopped: the device is lost with it, as on hardware.
    pub(crate) fn lose_by(&mut self, fault: Fault) {
        self.violation(fault.text);
        self.lost = Some(match fault.cause {
            Cause::Address => Code::ILLEGAL_ADDRESS,
            Cause::Alignment => Code::MISALIGNED_ADDRESS,
            Cause::Endless => Code::LAUNCH_TIMEOUT,
            Cause::Conduct => Code::LAUNCH_FAILED,
        });
        changed();
    }
}

impl Held {
    /// Launches a kernel with its arguments.
    pub(crate) fn launch(
        &mut self,
        call: &str,
        function: Function,
        grid: Grid,
        stream: u64,
        arguments: &[Vec<u8>],
    ) -> Outcome {
        let within = |extent: [u32; 3], max: [u32; 3]| extent.iter().zip(max).all(|(n, max)| (1..=max).contains(n));
        let threads: u64 = grid.threads.iter().map(|n| u64::from(*n)).product();
        if !within(grid.blocks, GRID_MAX) || !within(grid.threads, BLOCK_MAX) || threads > BLOCK_THREADS_MAX {
            return Err(Code::INVALID_VALUE);
        }
        let stream = self.stream(call, stream)?;
        let device = self.streams.get(&stream).map(|s| s.device).ok_or(Code::INVALID_HANDLE)?;
        let mut parameters = vec![0; function.entry().parameter_bytes()];
        let mut touches = Vec::new();
        for (parameter, bytes) in function.entry().parameters.iter().zip(arguments) {
            parameters[parameter.offset..parameter.offset + parameter.bytes].copy_from_slice(bytes);
            touches.extend(self.pointed_at(function.entry().name.as_str(), bytes));
        }
        self.submit(stream, Work::Launch(Launch { device, function, grid, parameters }), touches);
        Ok(())
    }

    /// The allocation that an argument points into, if it is a pointer: the kernel may touch all of it.
    fn pointed_at(&self, kernel: &str, argument: &[u8]) -> Option<Touch> {
        let pointer = u64::from_le_bytes(argument.try_into().ok()?);
        let (start, bytes, _) = self.memory.around(pointer)?;
        Some(self.touch(&format!("kernel {kernel}"), start, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::ptx_version;

    #[test]
    fn each_driver_knows_the_ptx_of_its_time() {
        let known = [11040, 11080, 12000, 12040, 12050, 12060, 12080, 13000].map(ptx_version);
        assert_eq!(known, [(7, 4), (7, 8), (8, 0), (8, 4), (8, 5), (8, 5), (8, 7), (9, 0)]);
    }
}
