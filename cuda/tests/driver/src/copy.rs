//! Copies and fills: how they are asked for, and what a stream's thread does when their turn comes.
//!
//! Owns the meaning of pinned and pageable sources, the watch over sources, and the booking of the link's bandwidth. A copy
//! reads what is there when it runs, as hardware does.

use crate::code::{Code, Outcome};
use crate::driver::{Held, State};
use crate::memory::Bytes;
use crate::pinned::Reach;
use crate::work::{Touch, Work};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    call: &'static str,
    from: End,
    to: End,
    bytes: usize,
    /// Sums of the source's pieces at submission.
    watch: Option<Vec<u64>>,
    /// The device whose link to the host it takes.
    link: Option<u32>,
}

/// A fill that waits for its turn.
pub(crate) struct Fill {
    pub(crate) memory: Arc<Bytes>,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) value: u8,
}

impl Fill {
    pub(crate) fn run(&self) {
        if let Some(range) = self.memory.lock().get_mut(self.offset..self.offset + self.bytes) {
            range.fill(self.value);
        }
    }
}

impl Copy {
    /// Moves the bytes; returns what is wrong with the source.
    pub(crate) fn run(&self) -> Option<String> {
        let complaint = self.check_source();
        match (&self.from, &self.to) {
            (End::Host(from), End::Device(to, at)) => read_host(*from, &mut to.lock()[*at..*at + self.bytes]),
            (End::Staged(from), End::Device(to, at)) => to.lock()[*at..*at + self.bytes].copy_from_slice(from),
            (End::Device(from, at), End::Host(to)) => write_host(*to, &from.lock()[*at..*at + self.bytes]),
            (End::Device(from, at), End::Device(to, target)) => {
                let bytes = from.lock()[*at..*at + self.bytes].to_vec();
                to.lock()[*target..*target + self.bytes].copy_from_slice(&bytes);
            }
            (_, End::Staged(_)) | (End::Host(_) | End::Staged(_), End::Host(_)) => {}
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
fn sums(start: u64, bytes: usize) -> Vec<u64> {
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

fn read_host(from: u64, to: &mut [u8]) {
    // SAFETY: the caller of the entry point promised CUDA that this memory stays until the copy has run, and the table of
    // pinned ranges has seen it; it is read as a device reads it, whatever other threads do to it.
    unsafe { std::ptr::copy(from as *const u8, to.as_mut_ptr(), to.len()) };
}

fn write_host(to: u64, from: &[u8]) {
    // SAFETY: as for reading: the caller of the entry point keeps this memory, for writing, until the copy has run.
    unsafe { std::ptr::copy(from.as_ptr(), to as *mut u8, from.len()) };
}

impl State {
    /// Takes a copy's time on its device's link; says when the link is through with it.
    pub(crate) fn book_link(&mut self, copy: &Copy) -> Option<Instant> {
        let device = copy.link.filter(|_| self.settings.gbps > 0.0)?;
        let now = Instant::now();
        let begin = self.link_free.get(&device).copied().unwrap_or(now).max(now);
        let end = begin + Duration::from_secs_f64(copy.bytes as f64 / (self.settings.gbps * 1e9));
        self.link_free.insert(device, end);
        Some(end)
    }

    /// How a device reaches host memory.
    fn reach(&mut self, call: &str, device: u32, host: u64, bytes: usize) -> Outcome<Reach> {
        if host == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let reach = self.pinned.reach(device, host, bytes as u64);
        match reach {
            Reach::Across => {
                self.violation(format!("{call}: host memory {host:#x}, {bytes} bytes, is pinned in part only"));
                return Err(Code::INVALID_VALUE);
            }
            Reach::Pageable if self.settings.forbid_pageable => {
                self.violation(format!("{call}: host memory {host:#x}, {bytes} bytes, is not pinned for this device"));
            }
            Reach::Pageable | Reach::Pinned => {}
        }
        Ok(reach)
    }

    fn stream_device(&self, stream: u64) -> u32 {
        self.streams.get(&stream).map_or(0, |s| s.device)
    }
}

impl Held {
    /// Asks for a copy to a device. From pageable memory the driver takes the bytes for itself before it returns, once the
    /// stream has nothing else to do, as CUDA may; from pinned memory it returns at once.
    pub(crate) fn copy_in(&mut self, call: &'static str, to: u64, from: u64, bytes: usize, stream: u64) -> Outcome {
        let stream = self.stream(call, stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let device = self.stream_device(stream);
        let (memory, offset) = self.device_range(call, to, bytes as u64)?;
        let mut touches = vec![self.touch(call, to, bytes as u64)];
        let mut watch = None;
        let source = if self.reach(call, device, from, bytes)? == Reach::Pinned {
            touches.push(Touch {
                start: from,
                bytes: bytes as u64,
                what: format!("{call} from {from:#x}, {bytes} bytes"),
            });
            watch = self.settings.watch_sources.then(|| sums(from, bytes));
            End::Host(from)
        } else {
            self.drain(stream)?;
            let mut staged = vec![0; bytes];
            read_host(from, &mut staged);
            End::Staged(staged)
        };
        let copy = Copy { call, from: source, to: End::Device(memory, offset), bytes, watch, link: Some(device) };
        self.submit(stream, Work::Copy(copy), touches);
        Ok(())
    }

    /// Asks for a copy from a device. To pageable memory it returns when the bytes are there.
    pub(crate) fn copy_out(&mut self, call: &'static str, to: u64, from: u64, bytes: usize, stream: u64) -> Outcome {
        let stream = self.stream(call, stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let device = self.stream_device(stream);
        let (memory, offset) = self.device_range(call, from, bytes as u64)?;
        let reach = self.reach(call, device, to, bytes)?;
        let touches = vec![
            self.touch(call, from, bytes as u64),
            Touch { start: to, bytes: bytes as u64, what: format!("{call} to {to:#x}, {bytes} bytes") },
        ];
        let (from, to) = (End::Device(memory, offset), End::Host(to));
        self.submit(stream, Work::Copy(Copy { call, from, to, bytes, watch: None, link: Some(device) }), touches);
        if reach == Reach::Pageable { self.drain(stream) } else { Ok(()) }
    }

    /// Asks for a copy within device memory.
    pub(crate) fn copy_across(&mut self, call: &'static str, to: u64, from: u64, bytes: usize, stream: u64) -> Outcome {
        let stream = self.stream(call, stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let source = self.device_range(call, from, bytes as u64)?;
        let target = self.device_range(call, to, bytes as u64)?;
        let touches = vec![self.touch(call, from, bytes as u64), self.touch(call, to, bytes as u64)];
        let (from, to) = (End::Device(source.0, source.1), End::Device(target.0, target.1));
        self.submit(stream, Work::Copy(Copy { call, from, to, bytes, watch: None, link: None }), touches);
        Ok(())
    }

    /// Asks for a fill of device memory.
    pub(crate) fn fill(&mut self, call: &'static str, to: u64, value: u8, bytes: usize, stream: u64) -> Outcome {
        let stream = self.stream(call, stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let (memory, offset) = self.device_range(call, to, bytes as u64)?;
        let touches = vec![self.touch(call, to, bytes as u64)];
        self.submit(stream, Work::Fill(Fill { memory, offset, bytes, value }), touches);
        Ok(())
    }
}
