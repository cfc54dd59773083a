//! For how many bytes the kernel wakes a reader, per socket: `SO_RCVLOWAT`, set only when it changes.
//!
//! Owns what was last set. Never decides how patient a receive is.

use std::os::fd::{AsFd, AsRawFd};

/// What the kernel was told, by the place of each socket in its table.
pub(super) struct Patience {
    told: Vec<usize>,
}

impl Patience {
    /// For a table of so many places.
    pub(super) fn new(places: u32) -> Patience {
        Patience { told: vec![0; places as usize] }
    }

    /// A new socket took this place: the kernel wakes for any byte.
    pub(super) fn reset(&mut self, index: u32) {
        self.told[index as usize] = 0;
    }

    /// The next receive on this socket is woken when `step_bytes` have come; zero: for any. Where the kernel refuses, it
    /// wakes more often: nothing is lost but time.
    pub(super) fn wake_for(&mut self, index: u32, sock: &impl AsFd, step_bytes: usize) {
        let told = &mut self.told[index as usize];
        if *told == step_bytes {
            return;
        }
        let value = i32::try_from(step_bytes.max(1)).unwrap_or(i32::MAX);
        // SAFETY: the kernel reads `value`, which lives until after the call.
        let rc = unsafe {
            let (at, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
            libc::setsockopt(sock.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, len)
        };
        if rc == 0 {
            *told = step_bytes;
        }
    }
}
