//! Copies: how they are asked for.
//!
//! Owns the meaning of pinned and pageable memory in a copy, and the reservation of the link's bandwidth.

use crate::code::{Code, Outcome};
use crate::driver::{Held, State};
use crate::tables::pinned::Reach;
use crate::tables::transfer::{Copy, End, read_host, sums};
use crate::tables::work::{Touch, Work};
use std::time::{Duration, Instant};

impl State {
    /// Takes a copy's time on its device's link; says when the link is through with it.
    pub(crate) fn book_link(&mut self, copy: &Copy) -> Option<Instant> {
        let device = Some(copy.device).filter(|_| self.settings.gbps > 0.0)?;
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
        let copy = Copy { call, from: source, to: End::Device(memory, offset), bytes, watch, device };
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
        self.submit(stream, Work::Copy(Copy { call, from, to, bytes, watch: None, device }), touches);
        if reach == Reach::Pageable { self.drain(stream) } else { Ok(()) }
    }
}
