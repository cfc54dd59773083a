//! Host memory that the devices may reach by themselves: registered by the program, or allocated for it.
//!
//! Owns the meaning of the calls, and the memory that the driver allocates itself.

use crate::code::{Code, Outcome};
use crate::driver::State;
use crate::tables::pinned::{Origin, Range};
use std::alloc::Layout;

/// `cuMemHostRegister`: the memory is some device's registers. Not modelled.
const IO_MEMORY: u32 = 4;
/// `cuMemHostRegister`: the devices only read. A K80 knows it as unsupported; an H200 requires it of memory that is mapped to be read.
const READ_ONLY: u32 = 8;
/// All flags of `cuMemHostAlloc`: portable, mapped, write-combined.
const ALLOC_FLAGS: u32 = 7;
const PAGE: usize = 4096;

impl State {
    /// Registers memory of the program.
    pub(crate) fn register(&mut self, device: u32, start: u64, bytes: usize, flags: u32) -> Outcome {
        if start == 0 || bytes == 0 || flags > 15 || !mapped(start, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        if flags & IO_MEMORY != 0 || flags & READ_ONLY != 0 && !self.settings.read_only {
            return Err(Code::NOT_SUPPORTED);
        }
        if flags & READ_ONLY == 0 && !writable(start) {
            return Err(Code::INVALID_VALUE);
        }
        let bytes = bytes as u64;
        if let Some((other, range)) = self.pinned.overlapping(start, bytes) {
            let text = format!(
                "cuMemHostRegister_v2({start:#x}, {bytes} bytes) overlaps {other:#x}, {} bytes, which is pinned already",
                range.bytes
            );
            self.violation(text);
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.pin(start, Range { bytes, device, flags, origin: Origin::Registered })
    }

    /// Takes a registration back.
    pub(crate) fn unregister(&mut self, start: u64) -> Outcome {
        let call = "cuMemHostUnregister";
        match self.pinned.ranges.get(&start).copied() {
            Some(range) if range.origin == Origin::Registered => {
                self.refuse_pending(call, start, range.bytes);
                self.pinned.ranges.remove(&start);
                self.pinned.unregistered.insert(start, range.bytes);
                Ok(())
            }
            _ => {
                let twice = self.pinned.unregistered.contains_key(&start);
                let fate = if twice { "was unregistered already" } else { "was never registered" };
                self.violation(format!("{call}: {start:#x} {fate}"));
                Err(Code::HOST_MEMORY_NOT_REGISTERED)
            }
        }
    }

    /// Allocates pinned memory.
    pub(crate) fn host_allocate(&mut self, device: u32, bytes: usize, flags: u32) -> Outcome<u64> {
        if bytes == 0 || flags > ALLOC_FLAGS {
            return Err(Code::INVALID_VALUE);
        }
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| Code::OUT_OF_MEMORY)?;
        // SAFETY: the layout's size is not zero. The memory lives until cuMemFreeHost, by the table.
        let start = unsafe { std::alloc::alloc(layout) } as u64;
        if start == 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        let pinned = self.pin(start, Range { bytes: bytes as u64, device, flags, origin: Origin::Allocated });
        if pinned.is_err() {
            // SAFETY: allocated above with this layout, and nobody else has heard of it.
            unsafe { std::alloc::dealloc(start as *mut u8, layout) };
        }
        pinned.map(|()| start)
    }

    /// Gives allocated pinned memory back. With work pending on it, the bytes stay: that work will still read them.
    pub(crate) fn host_free(&mut self, start: u64) -> Outcome {
        let call = "cuMemFreeHost";
        match self.pinned.ranges.get(&start).copied() {
            Some(range) if range.origin == Origin::Allocated => {
                let busy = self.pending_on(start, range.bytes).is_some();
                self.refuse_pending(call, start, range.bytes);
                self.pinned.ranges.remove(&start);
                if let Ok(layout) = Layout::from_size_align(range.bytes as usize, PAGE)
                    && !busy
                {
                    // SAFETY: host_allocate made it with this layout; the table held it once, and no work is pending on it.
                    unsafe { std::alloc::dealloc(start as *mut u8, layout) };
                }
                Ok(())
            }
            _ => {
                self.violation(format!("{call}: {start:#x} is no memory of cuMemHostAlloc"));
                Err(Code::INVALID_VALUE)
            }
        }
    }

    fn pin(&mut self, start: u64, range: Range) -> Outcome {
        if self.pinned.bytes() + range.bytes > self.settings.pinned_limit {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.pinned.unregistered.remove(&start);
        self.pinned.ranges.insert(start, range);
        Ok(())
    }
}

/// Whether every page of a range is mapped: no device could pin it otherwise.
fn mapped(start: u64, bytes: usize) -> bool {
    let first = start & !(PAGE as u64 - 1);
    let pages = (start - first + bytes as u64).div_ceil(PAGE as u64) as usize;
    let mut resident = vec![0u8; pages];
    // SAFETY: mincore reads no byte of the range, it writes one byte for each page into `resident`, which has as many.
    unsafe { libc::mincore(first as *mut libc::c_void, pages * PAGE, resident.as_mut_ptr()) == 0 }
}

/// Whether the mapping of an address may be written to.
fn writable(address: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let holds = |line: &&str| {
        let (from, to) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).unwrap_or_default();
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        (number(from)..number(to)).contains(&address)
    };
    maps.lines().find(holds).is_some_and(|line| line.split(' ').nth(1).is_some_and(|rights| rights.contains('w')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_written_is_told_from_what_may_not() {
        let page = vec![0u8; PAGE];
        assert!(
            writable(page.as_ptr() as u64)
                && !writable(what_may_be_written_is_told_from_what_may_not as fn() as usize as u64)
        );
    }

    #[test]
    fn unmapped_memory_cannot_be_pinned() {
        let page = vec![0u8; PAGE];
        assert!(mapped(page.as_ptr() as u64, PAGE));
        assert!(!mapped(PAGE as u64, PAGE));
    }
}
