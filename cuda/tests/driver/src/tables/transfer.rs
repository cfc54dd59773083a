//! Copies that wait for their turn, and what a stream's thread does when it comes.
//!
//! Owns the moving of the bytes and the watch over sources. A copy reads what is there when it runs, as hardware does.

use crate::tables::memory::Bytes;
use std::sync::Arc;

/// Sources are compared in pieces of this size.
const WATCH_BYTES: usize = 4096;

/// One end of a copy.
pub(crate) enum End {
    /// Host memory, by its address.
    Host(u64),
    /// Bytes that the driver has copied for itself.
    Staged(Vec<u8>),
    /// Device memory and the offset in it.
    Device(Arc<Bytes>, usize),
}

/// A copy that waits for its turn.
pub(crate) struct Copy {
    pub(crate) call: &'static str,
    pub(crate) from: End,
    pub(crate) to: End,
    pub(crate) bytes: usize,
    /// Sums of the source's pieces at submission.
    pub(crate) watch: Option<Vec<u64>>,
    /// The device whose link to the host it takes.
    pub(crate) device: u32,
}

impl Copy {
    /// Moves the bytes; returns what is wrong with the source.
    pub(crate) fn run(&self) -> Option<String> {
        let complaint = self.check_source();
        match (&self.from, &self.to) {
            (End::Host(from), End::Device(to, at)) => read_host(*from, &mut to.lock()[*at..*at + self.bytes]),
            (End::Staged(from), End::Device(to, at)) => to.lock()[*at..*at + self.bytes].copy_from_slice(from),
            (End::Device(from, at), End::Host(to)) => write_host(*to, &from.lock()[*at..*at + self.bytes]),
            _ => {}
        }
        complaint
    }

    fn check_source(&self) -> Option<String> {
        let (End::Host(from), Some(then)) = (&self.from, &self.watch) else { return None };
        let now = sums(*from, self.bytes);
        let piece = then.iter().zip(&now).position(|(a, b)| a != b)?;
        let offset = piece * WATCH_BYTES;
        Some(format!(
            "{}: the source {from:#x}, {} bytes, was modified before the copy ran (near offset {offset})",
            self.call, self.bytes
        ))
    }
}

/// Sums of the pieces of host memory.
pub(crate) fn sums(start: u64, bytes: usize) -> Vec<u64> {
    let mut piece = vec![0u8; WATCH_BYTES.min(bytes)];
    let mut sums = Vec::with_capacity(bytes.div_ceil(WATCH_BYTES));
    for offset in (0..bytes).step_by(WATCH_BYTES) {
        let part = &mut piece[..WATCH_BYTES.min(bytes - offset)];
        read_host(start + offset as u64, part);
        let sum = part.chunks(8).fold(bytes as u64, |sum, chunk| {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        });
        sums.push(sum);
    }
    sums
}

pub(crate) fn read_host(from: u64, to: &mut [u8]) {
    // SAFETY: the caller of the entry point promised CUDA that this memory stays until the copy has run, and the table of
    // pinned ranges has seen it; it is read as a device reads it, whatever other threads do to it.
    unsafe { std::ptr::copy(from as *const u8, to.as_mut_ptr(), to.len()) };
}

fn write_host(to: u64, from: &[u8]) {
    // SAFETY: as for reading: the caller of the entry point keeps this memory, for writing, until the copy has run.
    unsafe { std::ptr::copy(from.as_ptr(), to as *mut u8, from.len()) };
}
