//! Host memory that the devices may reach by themselves: registered by the program, or allocated for it.
//!
//! Owns the table of pinned ranges. What is not in it is pageable.

use crate::code::{Code, Outcome};
use crate::driver::State;
use std::alloc::Layout;
use std::collections::BTreeMap;

/// Flag of both calls: pinned for all contexts, not only for the one that asked.
const PORTABLE: u32 = 1;
/// `cuMemHostRegister`: the memory is some device's registers. Not modelled.
const IO_MEMORY: u32 = 4;
/// `cuMemHostRegister`: the devices only read. K80 and 11.4 know it as unsupported.
const READ_ONLY: u32 = 8;
/// All flags of `cuMemHostAlloc`: portable, mapped, write-combined.
const ALLOC_FLAGS: u32 = 7;
const PAGE: usize = 4096;

/// Where a range came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Registered,
    Allocated,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    bytes: u64,
    device: u32,
    flags: u32,
    origin: Origin,
}

/// All pinned ranges, by their begin.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    ranges: BTreeMap<u64, Range>,
    unregistered: BTreeMap<u64, u64>,
}

/// What host memory is to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The device reaches it.
    Pinned,
    /// The driver must copy it first.
    Pageable,
    /// Part of it is pinned, part is not: CUDA refuses it.
    Across,
}

impl Pinned {
    /// How many ranges of an origin there are.
    pub(crate) fn count(&self, origin: Origin) -> u64 {
        self.ranges.values().filter(|r| r.origin == origin).count() as u64
    }

    fn bytes(&self) -> u64 {
        self.ranges.values().map(|r| r.bytes).sum()
    }

    fn overlapping(&self, start: u64, bytes: u64) -> Option<(u64, Range)> {
        let (at, range) = self.ranges.range(..start.saturating_add(bytes)).next_back()?;
        (at.saturating_add(range.bytes) > start).then_some((*at, *range))
    }

    /// What a range is to a device.
    pub(crate) fn reach(&self, device: u32, start: u64, bytes: u64) -> Reach {
        match self.overlapping(start, bytes) {
            None => Reach::Pageable,
            Some((_, range)) if range.device != device && range.flags & PORTABLE == 0 => Reach::Pageable,
            Some((at, range)) if at <= start && start + bytes <= at + range.bytes => Reach::Pinned,
            Some(_) => Reach::Across,
        }
    }

    /// Begin, size, device and flags of the range around an address.
    pub(crate) fn around(&self, pointer: u64) -> Option<(u64, u64, u32, u32)> {
        self.overlapping(pointer, 1).map(|(at, r)| (at, r.bytes, r.device, r.flags))
    }
}

impl State {
    /// Registers memory of the program.
    pub(crate) fn register(&mut self, device: u32, start: u64, bytes: usize, flags: u32) -> Outcome {
        if start == 0 || bytes == 0 || flags > 15 || !mapped(start, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        if flags & (IO_MEMORY | READ_ONLY) != 0 {
            return Err(Code::NOT_SUPPORTED);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_tells_pinned_from_pageable_and_refuses_what_lies_across() {
        let mut pinned = Pinned::default();
        let range = Range { bytes: 100, device: 0, flags: 0, origin: Origin::Registered };
        pinned.ranges.insert(1000, range);
        pinned.ranges.insert(2000, Range { flags: PORTABLE, ..range });
        assert_eq!(pinned.reach(0, 1000, 100), Reach::Pinned);
        assert_eq!(pinned.reach(0, 1099, 2), Reach::Across);
        assert_eq!(pinned.reach(0, 990, 20), Reach::Across);
        assert_eq!(pinned.reach(0, 1100, 10), Reach::Pageable);
        assert_eq!(pinned.reach(1, 1000, 10), Reach::Pageable, "not portable");
        assert_eq!(pinned.reach(1, 2000, 10), Reach::Pinned);
    }

    #[test]
    fn unmapped_memory_cannot_be_pinned() {
        let page = vec![0u8; PAGE];
        assert!(mapped(page.as_ptr() as u64, PAGE));
        assert!(!mapped(PAGE as u64, PAGE));
    }
}
