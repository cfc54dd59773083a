//! Device memory: host memory behind addresses that no processor can follow.
//!
//! Owns their addresses (never given out twice, with a gap after each) and their fates. Every
//! use of a device address goes through [`State::device_range`].

use crate::code::{Code, Outcome};
use crate::driver::{Held, State};
use crate::tables::memory::{Allocation, Bytes};
use crate::tables::work::Touch;
use std::sync::Arc;

/// Device addresses begin here. Bits 48 to 55 are set as no user address of a processor has them: to follow one is a fault.
const ADDRESSES: u64 = 0x00fa_0000_0000_0000;
/// Each device has this much address space.
const DEVICE_STEP: u64 = 1 << 42;
/// Allocations begin on multiples of this, as CUDA promises at least 256; and no more, so that nobody gets used to pages.
const ALIGNMENT: u64 = 512;
/// Address space between two allocations that belongs to nobody.
const GAP: u64 = 64 << 10;
/// What fresh memory holds: nobody may count on zeros.
const FRESH: u8 = 0xa5;

impl State {
    /// The first pending piece of work that touches a range.
    pub(crate) fn pending_on(&self, start: u64, bytes: u64) -> Option<&Touch> {
        let end = start.saturating_add(bytes);
        self.pending.values().flatten().find(|t| t.start < end && start < t.start.saturating_add(t.bytes))
    }

    /// A violation if pending work touches a range that is about to go.
    pub(crate) fn refuse_pending(&mut self, call: &str, start: u64, bytes: u64) {
        // A lost device touches nothing any more; what is in the queues is thrown away.
        if !self.lost.is_empty() {
            return;
        }
        if let Some(touch) = self.pending_on(start, bytes) {
            let text = format!("{call}({start:#x}, {bytes} bytes) while work is pending on it: {}", touch.what);
            self.violation(text);
        }
    }

    /// Allocates device memory.
    pub(crate) fn allocate(&mut self, device: u32, bytes: usize) -> Outcome<u64> {
        let bytes = bytes as u64;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (_, held) = self.memory.held(Some(device));
        let limit = self.settings.memory.min(self.settings.memory_limit);
        if held.checked_add(bytes).is_none_or(|all| all > limit) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let mut store = Vec::new();
        let size = usize::try_from(bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
        store.try_reserve_exact(size).map_err(|_| Code::OUT_OF_MEMORY)?;
        store.resize(size, FRESH);
        let next = self.memory.next.entry(device).or_insert(GAP);
        let pointer = ADDRESSES + u64::from(device) * DEVICE_STEP + *next;
        *next += (bytes + GAP).next_multiple_of(ALIGNMENT);
        let memory = Arc::new(Bytes::new(store));
        self.memory.live.insert(pointer, Allocation { device, bytes, memory });
        Ok(pointer)
    }

    /// Finds the memory of a device address range.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` after a violation, when the range is not inside one live allocation.
    pub(crate) fn device_range(&mut self, call: &str, pointer: u64, bytes: u64) -> Outcome<(Arc<Bytes>, usize)> {
        let complaint = match self.memory.live.range(..=pointer).next_back() {
            Some((start, a)) if (pointer - start).saturating_add(bytes) <= a.bytes => {
                return Ok((a.memory.clone(), (pointer - start) as usize));
            }
            Some((start, a)) if pointer - start < a.bytes + GAP => format!(
                "{call}: {bytes} bytes at {pointer:#x} lie out of bounds of the allocation {start:#x} of {} bytes",
                a.bytes
            ),
            _ => match self.memory.freed.range(..=pointer).next_back() {
                Some((start, size)) if pointer - start < *size => {
                    format!("{call}: device memory {pointer:#x} is used after it was freed")
                }
                _ => format!("{call}: {pointer:#x} is no device memory"),
            },
        };
        self.violation(complaint);
        Err(Code::INVALID_VALUE)
    }

    /// The touch that a piece of work has on device memory.
    pub(crate) fn touch(&self, what: &str, start: u64, bytes: u64) -> Touch {
        Touch { start, bytes, what: format!("{what} at {start:#x}, {bytes} bytes") }
    }

    /// The size of the allocation that begins at an address.
    fn allocation(&mut self, call: &str, pointer: u64) -> Outcome<Allocated> {
        let complaint = match self.memory.live.get(&pointer) {
            Some(a) => return Ok(Allocated { device: a.device, bytes: a.bytes }),
            None if self.memory.freed.contains_key(&pointer) => {
                format!("{call}: device memory {pointer:#x} is freed twice")
            }
            None => format!("{call}: no allocation begins at {pointer:#x}"),
        };
        self.violation(complaint);
        Err(Code::INVALID_VALUE)
    }
}

/// An allocation's device and size.
struct Allocated {
    device: u32,
    bytes: u64,
}

impl Held {
    /// Gives device memory back, which no work may be pending on. As a device's driver does, it first waits for all work of the device,
    /// whatever memory that uses; not for work that must not be there.
    pub(crate) fn free(&mut self, call: &str, pointer: u64) -> Outcome {
        if pointer == 0 {
            return Ok(());
        }
        let Allocated { device, bytes } = self.allocation(call, pointer)?;
        if self.pending_on(pointer, bytes).is_none() {
            let idle =
                |state: &State| state.streams.values().filter(|s| s.device == device).all(|s| s.done == s.submitted);
            let _ = self.wait_until(device, idle);
        }
        self.refuse_pending(call, pointer, bytes);
        // Its bytes live on until the last work that uses them has ended.
        self.memory.live.remove(&pointer);
        self.memory.freed.insert(pointer, bytes);
        Ok(())
    }
}
