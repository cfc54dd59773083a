//! The allocations of device memory.
//!
//! Owns the table. Where the addresses come from and what a use of one means is said in [`crate::memory`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes of one allocation.
#[derive(Debug)]
pub(crate) struct Bytes {
    bytes: Mutex<Vec<u8>>,
}

impl Bytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Bytes {
        Bytes { bytes: Mutex::new(bytes) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) device: u32,
    pub(crate) bytes: u64,
    pub(crate) memory: Arc<Bytes>,
}

/// All allocations of all devices.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    pub(crate) live: BTreeMap<u64, Allocation>,
    /// Sizes of those that were freed, for the texts of violations.
    pub(crate) freed: BTreeMap<u64, u64>,
    /// Where each device's next allocation goes, from its beginning.
    pub(crate) next: BTreeMap<u32, u64>,
}

impl DeviceMemory {
    /// Allocations and their bytes, of one device or of all.
    pub(crate) fn held(&self, device: Option<u32>) -> (u64, u64) {
        let of = self.live.values().filter(|a| device.is_none_or(|d| d == a.device));
        of.fold((0, 0), |(n, bytes), a| (n + 1, bytes + a.bytes))
    }
}
