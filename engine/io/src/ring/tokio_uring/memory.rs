//! The arena as buffers of the runtime's registry, so that receives and file operations skip the page look-up.

use std::sync::Arc;

use fuelrail_base::ByteSize;
use tokio_uring::Runtime;
use tokio_uring::buf::fixed::FixedBufRegistry;
use tokio_uring::buf::{IoBuf, IoBufMut};

use crate::arena::Mapping;
use crate::ring::requests::BUFFER_BYTES_MAX;
use crate::ring::uring::setup::registering_refused;

/// Most buffers the runtime's registry takes; it leaves out the rest in silence.
const BUFFERS_MAX: usize = 1024;

/// One registered buffer: a piece of the arena, held only so that the mapping outlives its registration. Bytes are reached
/// through operations and their windows, never through this.
struct Piece {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

// SAFETY: the piece lies inside the mapping, which does not move and which the piece keeps mapped. The runtime's driver
// holds the registry, and so the piece, until its ring is closed.
unsafe impl IoBuf for Piece {
    fn stable_ptr(&self) -> *const u8 {
        self.mapping.at(self.offset as u64, self.len).as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len
    }

    fn bytes_total(&self) -> usize {
        self.len
    }
}

// SAFETY: as above. The registry hands its buffers out only when asked to (`check_out`), which nobody does: only the
// operations of the ring name this memory, each through a window that is the only way to its bytes.
unsafe impl IoBufMut for Piece {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.mapping.at(self.offset as u64, self.len).as_ptr()
    }

    unsafe fn set_init(&mut self, _len: usize) {}
}

/// Registers the whole mapping with the runtime's ring, in buffers of [`BUFFER_BYTES_MAX`] from its start.
///
/// # Errors
/// Why not, with a cure.
pub(super) fn register(runtime: &Runtime, mapping: &Arc<Mapping>) -> Result<(), String> {
    let (_, bytes) = mapping.range();
    if bytes.div_ceil(BUFFER_BYTES_MAX) > BUFFERS_MAX {
        let most = ByteSize((BUFFERS_MAX * BUFFER_BYTES_MAX) as u64);
        return Err(format!("registering {}: tokio-uring's limit is {most}", ByteSize(bytes as u64)));
    }
    let pieces = (0..bytes).step_by(BUFFER_BYTES_MAX).map(|offset| Piece {
        mapping: mapping.clone(),
        offset,
        len: (bytes - offset).min(BUFFER_BYTES_MAX),
    });
    let registry = FixedBufRegistry::new(pieces);
    runtime.block_on(async { registry.register() }).map_err(|error| registering_refused(bytes as u64, &error))
}
