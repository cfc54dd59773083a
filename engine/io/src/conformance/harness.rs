//! The harness of the suite: makes rings and scripted peers. Runs nothing.

use std::net::SocketAddr;
use std::path::PathBuf;

use fuelrail_base::Duration;
use fuelrail_base::prng::mix64;

use crate::arena::Arena;
use crate::ring::Ring;

/// The script of a peer for each connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Script {
    /// Sends back every byte.
    Echo,
    /// After the first byte received: pauses, then sends `len` bytes of [`pattern`] in chunks, then finishes.
    Pattern {
        /// Seed of the content.
        seed: u64,
        /// Bytes in all.
        len: usize,
        /// Bytes per write.
        chunk: usize,
        /// Before the first write.
        pause: Duration,
    },
    /// Accepts and never sends.
    Silent,
    /// Resets the connection at the first byte.
    Reset,
}

/// Makes the rings and peers of the checks.
pub trait Harness {
    /// The back-end.
    type Ring: Ring;

    /// A ring of at least `entries` operations in flight; exactly so many where the check depends on it.
    fn ring(&mut self, entries: u32, arena: &Arena) -> Self::Ring;

    /// A peer that follows this script.
    fn peer(&mut self, script: Script) -> SocketAddr;

    /// An address without a listener.
    fn closed_addr(&mut self) -> SocketAddr;

    /// The path of a file that does not exist, each time another, in a directory that does. It is removed with the
    /// harness.
    fn file(&mut self) -> PathBuf;

    /// Lets time pass for the peers, where that does not happen by itself. Called after each wait.
    fn pass(&mut self) {}

    /// Lets about this much time pass.
    fn rest(&mut self, time: Duration);
}

/// One check of the suite, which panics with what it finds wrong.
pub type Check<V> = (&'static str, fn(&mut V));

/// Byte `i` of the pattern `seed`, which peers send.
#[must_use]
pub fn pattern(seed: u64, i: usize) -> u8 {
    mix64(seed ^ (i as u64 / 8).wrapping_mul(0x9E37_79B9)).to_le_bytes()[i % 8]
}
