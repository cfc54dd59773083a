//! Loaded kernels, launches that wait for their turn, and device memory as a running kernel sees it.
//!
//! Owns the check of every access: it lies inside one allocation that is alive when the kernel begins.

use crate::ptx::{Entry, Fault, Grid, Memory, Module, run};
use crate::tables::memory::Bytes;
use std::sync::Arc;

/// A kernel of a loaded module.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// The module's handle.
    pub(crate) owner: u64,
    pub(crate) module: Arc<Module>,
    /// Which of its entries.
    pub(crate) index: usize,
}

impl Function {
    pub(crate) fn entry(&self) -> &Entry {
        &self.module.entries[self.index]
    }
}

/// A launch that waits for its turn.
pub(crate) struct Launch {
    pub(crate) device: u32,
    pub(crate) function: Function,
    pub(crate) grid: Grid,
    pub(crate) parameters: Vec<u8>,
}

impl Launch {
    /// Runs the kernel over memory.
    pub(crate) fn run(&self, view: &mut View) -> Result<(), Fault> {
        run(self.function.entry(), self.grid, &self.parameters, view)
    }
}

/// The allocations of a device, in order of their addresses.
pub(crate) struct View {
    pub(crate) ranges: Vec<(u64, Arc<Bytes>)>,
    pub(crate) last: usize,
}

impl View {
    /// Lends the bytes of an access.
    fn with(&mut self, at: u64, count: usize, use_them: impl FnOnce(&mut [u8])) -> Result<(), String> {
        let near = self.ranges.get(self.last).is_some_and(|(start, _)| *start <= at)
            && self.ranges.get(self.last + 1).is_none_or(|(start, _)| *start > at);
        if !near {
            let after = self.ranges.partition_point(|(start, _)| *start <= at);
            self.last = after.checked_sub(1).ok_or(format!("{at:#x} is no device memory"))?;
        }
        let Some((start, bytes)) = self.ranges.get(self.last) else {
            return Err(format!("{at:#x} is no device memory"));
        };
        let mut bytes = bytes.lock();
        let size = bytes.len();
        let offset = usize::try_from(at - start).unwrap_or(usize::MAX);
        match offset.checked_add(count).and_then(|end| bytes.get_mut(offset..end)) {
            Some(found) => use_them(found),
            None => return Err(format!("out of bounds of the nearest allocation {start:#x}, {size} bytes")),
        }
        Ok(())
    }
}

impl Memory for View {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), String> {
        let count = into.len();
        let result = self.with(at, count, |found| into.copy_from_slice(found));
        result.map_err(|why| format!("reads {count} bytes at {at:#x}: {why}"))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let result = self.with(at, bytes.len(), |found| found.copy_from_slice(bytes));
        result.map_err(|why| format!("writes {} bytes at {at:#x}: {why}", bytes.len()))
    }
}
