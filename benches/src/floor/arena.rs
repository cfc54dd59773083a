//! The memory that payload moves through: one stretch, written from end to end and round again.
//!
//! Owns the stretch. Bytes are never looked at again: a floor assembles nothing.

use fuelrail::{Error, Kind, Result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Into {
    /// Through an arena of the task's size, from end to end and round again.
    Arena,
    /// Into the same mebibyte over and over: it stays in cache.
    Hot,
    /// Nowhere: the kernel drops them (`MSG_TRUNC`). All of a receive but its copy.
    Nowhere,
}

/// Bytes asked for by one system call.
pub(super) const RECEIVE_BYTES: usize = 1 << 20;
/// Least room a receive is given; shorter ends of the stretch are skipped. Every head must fit.
pub(super) const ROOM_BYTES_MIN: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Arena {
    memory: Vec<u8>,
    at: usize,
}

const PAGE_BYTES: usize = 4096;

impl Arena {
    /// A stretch of `bytes`. Memory from the allocator this large is fresh from the kernel: touching every page takes the
    /// page faults before the first pass.
    pub(super) fn new(bytes: usize, touch: bool) -> Result<Arena> {
        if bytes < ROOM_BYTES_MIN {
            let cause = format!("an arena of {bytes} bytes is below {ROOM_BYTES_MIN}");
            return Err(Error::new(Kind::Usage, cause).with_hint("give more with --arena"));
        }
        let mut memory = vec![0u8; bytes];
        if touch {
            // A value, not zero: a page that only holds zeroes may stay unmapped.
            memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
        }
        Ok(Arena { memory, at: 0 })
    }

    /// Room for one receive of at most `most` bytes, where the last one ended.
    pub(super) fn room(&mut self, most: usize) -> &mut [u8] {
        if self.memory.len() - self.at < ROOM_BYTES_MIN {
            self.at = 0;
        }
        let end = (self.at + most).min(self.memory.len());
        &mut self.memory[self.at..end]
    }

    pub(super) fn take(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_round_and_never_gives_less_than_a_head_needs() {
        let mut arena = Arena::new(3 * ROOM_BYTES_MIN, true).unwrap();
        let mut given = 0;
        for _ in 0..100 {
            let room = arena.room(ROOM_BYTES_MIN + 17).len();
            assert!((ROOM_BYTES_MIN..=ROOM_BYTES_MIN + 17).contains(&room), "{room}");
            arena.take(room.min(50_000));
            given += room.min(50_000);
        }
        assert!(given > 10 * ROOM_BYTES_MIN && arena.at <= arena.memory.len());
        assert!(Arena::new(100, false).is_err());
    }
}
