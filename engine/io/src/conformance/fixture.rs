//! The fixture of a check: one ring with its harness and memory, and the steps checks are made of. Each step is bounded.

use std::net::SocketAddr;
use std::path::PathBuf;

use fuelrail_base::Duration;
use fuelrail_base::prng::mix64;

use crate::arena::{Arena, ArenaConfig, HugePages};
use crate::region::Region;
use crate::ring::{Done, Op, OpId, Ring, SockId};
use crate::scatter::{Landed, Scatter};
use crate::slot::{Filling, Slot, Window};

/// Longest a check waits for one completion, by the ring's clock.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Longest single wait, so that a harness's time can pass.
const STEP: Duration = Duration::from_millis(20);

/// A ring with its harness and memory, as the checks use it.
pub(super) struct Fixture<'v, V: Harness> {
    pub(super) harness: &'v mut V,
    pub(super) ring: V::Ring,
    pub(super) region: Region,
    pub(super) arena: Arena,
    next_token: u64,
}

impl<'v, V: Harness> Fixture<'v, V> {
    pub(super) fn new(harness: &'v mut V, entries: u32) -> Fixture<'v, V> {
        let config = ArenaConfig { bytes: 8 << 20, regions: 1, huge_pages: HugePages::Off, ..ArenaConfig::default() };
        let (arena, mut regions) = Arena::new(&config).unwrap();
        let region = regions.pop().expect("an arena of one region has one region");
        let ring = harness.ring(entries, &arena);
        Fixture { harness, ring, region, arena, next_token: 1 }
    }

    pub(super) fn push(&mut self, op: Op) -> (u64, OpId) {
        let token = self.next_token;
        self.next_token += 1;
        let in_flight = self.ring.in_flight();
        let id = self.ring.push(op, token);
        (token, id.unwrap_or_else(|full| panic!("the ring is full with {in_flight} in flight: {:?}", full.0)))
    }

    /// Pushes an operation, the only one, and waits until it has completed.
    pub(super) fn run(&mut self, op: Op) -> Done {
        let (token, _) = self.push(op);
        let done = self.next();
        assert!(done.token == token, "token {} came back for {token}", done.token);
        done
    }

    /// Waits without sleeping.
    pub(super) fn look(&mut self) {
        self.ring.wait(Some(self.ring.now())).unwrap();
    }

    /// One iteration: waits a little and lets time pass.
    pub(super) fn step(&mut self) {
        let until = self.ring.now().after(STEP);
        self.ring.wait(Some(until)).unwrap();
        self.harness.pass();
    }

    pub(super) fn next(&mut self) -> Done {
        let deadline = self.ring.now().after(PATIENCE);
        loop {
            if let Some(done) = self.ring.pop() {
                assert!(done.token != 0 && done.token < self.next_token, "unknown token {}", done.token);
                return done;
            }
            assert!(self.ring.now() < deadline, "no completion with {} in flight", self.ring.in_flight());
            self.step();
        }
    }

    /// Checks that no completion follows and nothing is in flight.
    fn quiet(&mut self) {
        for _ in 0..3 {
            self.step();
            assert!(self.ring.pop().is_none(), "a completion too many");
        }
        assert!(self.ring.in_flight() == 0, "{} in flight after everything came back", self.ring.in_flight());
    }

    pub(super) fn connect(&mut self, script: Script) -> SockId {
        let addr = self.harness.peer(script);
        let sock = self.ring.socket(&addr).unwrap();
        assert_eq!(self.run(Op::Connect { sock, addr }).result, Ok(0), "connect");
        sock
    }

    /// Sends all of `bytes`, with as many operations as it takes.
    pub(super) fn send_all(&mut self, sock: SockId, bytes: Vec<u8>) {
        let (total, mut bytes, mut from) = (bytes.len(), bytes, 0);
        while from < total {
            let done = self.run(Op::Send { sock, bytes, from });
            let Op::Send { bytes: back, .. } = done.op else { panic!("a send came back as something else") };
            let n = done.result.expect("send");
            assert!(n > 0 && n <= total - from, "send of {} took {n}", total - from);
            (bytes, from) = (back, from + n);
        }
    }

    pub(super) fn slot(&mut self, len: usize) -> Slot {
        self.region.alloc(len).unwrap_or_else(|| panic!("no slot of {len} bytes in the check's arena"))
    }

    /// An empty window of `len` bytes, and the filling to seal afterwards.
    pub(super) fn room(&mut self, len: usize) -> (Window, Filling) {
        let mut filling = self.slot(len).fill();
        (filling.carve(len).expect("a fresh filling has room"), filling)
    }

    /// A scatter of one window over a whole new slot, and the filling to seal afterwards.
    pub(super) fn one_window(&mut self, len: usize) -> (Scatter, Filling) {
        let (window, filling) = self.room(len);
        let mut into = Scatter::new(self.slot(64));
        into.push_body(window, len).expect("a fresh scatter has room");
        (into, filling)
    }

    /// Receives once into one window; the bytes received, or the error number.
    pub(super) fn receive(&mut self, sock: SockId, len: usize) -> Result<Vec<u8>, i32> {
        let into = self.one_window(len).0;
        received(self.run(Op::Recv { sock, into }))
    }

    /// Drops the ring and checks the counts: operations, memory.
    pub(super) fn finish(mut self) {
        self.quiet();
        let counts = self.ring.facts().counts;
        assert!(counts.ops == counts.completions, "{} operations, {} completions", counts.ops, counts.completions);
        drop(self.ring);
        all_returned(&mut self.region);
    }
}

/// Checks that all memory is returned to the region.
pub(super) fn all_returned(region: &mut Region) {
    region.collect();
    assert_eq!(region.outstanding(), 0, "slots were not returned");
    assert_eq!(region.free_bytes(), region.capacity(), "the region is not whole again");
}

/// The bytes of a completed receive, after checking its accounting.
pub(super) fn received(done: Done) -> Result<Vec<u8>, i32> {
    let Op::Recv { into, .. } = done.op else { panic!("a receive came back as something else") };
    let asked = into.asked();
    let (scratch, pieces) = into.finish();
    let (mut bytes, mut short) = (Vec::new(), false);
    for piece in &pieces {
        let (landed, asked, got) = match piece {
            Landed::Head { from, asked, got } => (&scratch[*from..from + got], *asked, *got),
            Landed::Body { window, asked, got } => (&window.bytes()[window.filled() - got..], *asked, *got),
        };
        bytes.extend_from_slice(landed);
        assert!(got <= asked, "{got} bytes in a piece of {asked}");
        assert!(!(short && got > 0), "bytes in a piece after one that is not full");
        short |= got < asked;
    }
    match done.result {
        Ok(n) => {
            assert!(n == bytes.len() && n <= asked, "{n} reported, {} accounted for, {asked} asked", bytes.len());
        }
        Err(errno) => assert!(bytes.is_empty(), "error {errno} with {} bytes accounted for", bytes.len()),
    }
    done.result.map(|_| bytes)
}

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
pub fn pattern(seed: u64, i: usize) -> u8 {
    mix64(seed ^ (i as u64 / 8).wrapping_mul(0x9E37_79B9)).to_le_bytes()[i % 8]
}
