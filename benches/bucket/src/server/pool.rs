//! Buffers that are used again, and bytes on their way out of them.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use hyper::body::{Buf, Bytes};

/// Bytes of a full frame, and the largest body that goes out in one frame with its head.
pub(crate) const FRAME_BYTES: usize = 256 << 10;
/// Smaller buffers come from the allocator, which is good at them.
const POOLED_BYTES_MIN: usize = 16 << 10;
const POOLED_BUFFERS_MAX: usize = 64;

/// Frame buffers of one thread, last in first out so that the next frame is written into a warm one.
#[derive(Default)]
pub(crate) struct Pool {
    free: RefCell<Vec<Vec<u8>>>,
}

impl Pool {
    /// A buffer of `bytes` bytes with arbitrary content.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes < POOLED_BYTES_MIN {
            return vec![0; bytes];
        }
        let mut buffer = self.free.borrow_mut().pop().unwrap_or_default();
        if buffer.len() < bytes {
            buffer.resize(FRAME_BYTES.max(bytes), 0);
        }
        buffer
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        if buffer.len() >= POOLED_BYTES_MIN && free.len() < POOLED_BUFFERS_MAX {
            free.push(buffer);
        }
    }
}

/// Bytes on their way out.
pub(crate) enum Chunk {
    Pooled { buffer: Vec<u8>, unsent: Range<usize>, pool: Rc<Pool> },
    Shared(Bytes),
}

impl Chunk {
    pub(crate) fn pooled(buffer: Vec<u8>, bytes: usize, pool: &Rc<Pool>) -> Chunk {
        Chunk::Pooled { buffer, unsent: 0..bytes, pool: Rc::clone(pool) }
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        match self {
            Chunk::Pooled { unsent, .. } => unsent.len(),
            Chunk::Shared(bytes) => bytes.len(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Chunk::Pooled { buffer, unsent, .. } => &buffer[unsent.clone()],
            Chunk::Shared(bytes) => bytes,
        }
    }

    fn advance(&mut self, sent: usize) {
        match self {
            Chunk::Pooled { unsent, .. } => {
                assert!(sent <= unsent.len(), "advanced by {sent} of {}", unsent.len());
                unsent.start += sent;
            }
            Chunk::Shared(bytes) => bytes.advance(sent),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Chunk::Pooled { buffer, pool, .. } = self {
            pool.give(core::mem::take(buffer));
        }
    }
}
