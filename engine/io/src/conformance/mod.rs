//! One suite for every back-end of [`Ring`]: what any ring must do, checked against peers that follow a script.
//!
//! A [`Venue`] is a place where rings of one kind meet such peers: real sockets on the loopback interface
//! ([`TcpPeers`]), or a simulated host ([`ScriptedHost`]). Each check gets a fresh venue and returns what it found
//! wrong; a check never blocks without a limit, so that a broken ring fails instead of hanging.

mod bytes;
mod life;
mod peers;
mod waking;

pub use peers::{ScriptedHost, TcpPeers};

use std::net::SocketAddr;

use fuelrail_base::Duration;
use fuelrail_base::prng::mix64;

use crate::arena::{Arena, ArenaConfig, HugePages};
use crate::region::Region;
use crate::ring::{Done, Op, OpId, Ring, SockId};
use crate::scatter::{Landed, Scatter};
use crate::slot::{Filling, Slot};

/// What a peer does with each connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Script {
    /// Sends back every byte.
    Echo,
    /// After the first byte received: pauses, then sends `len` bytes of [`recital`] in chunks, then finishes.
    Recite {
        /// Names the content.
        seed: u64,
        /// Bytes in all.
        len: usize,
        /// Bytes per write.
        chunk: usize,
        /// Before the first of them.
        pause: Duration,
    },
    /// Accepts and never sends.
    Silent,
    /// Resets the connection at the first byte.
    Reset,
}

/// Where rings meet peers.
pub trait Venue {
    /// The back-end.
    type Ring: Ring;

    /// A ring of at least `entries` operations in flight; exactly so many where the check depends on it.
    fn ring(&mut self, entries: u32, arena: &Arena) -> Self::Ring;

    /// A peer that follows this script.
    fn peer(&mut self, script: Script) -> SocketAddr;

    /// An address where nobody listens.
    fn nobody(&mut self) -> SocketAddr;

    /// Lets time pass for the peers, where that does not happen by itself. Called after each wait.
    fn pass(&mut self) {}

    /// Lets about this much time pass.
    fn rest(&mut self, time: Duration);
}

/// What a check found: nothing, or what is wrong.
pub type Verdict = Result<(), String>;

/// Fails the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!("{} (line {}): {}", module_path!(), line!(), format!($($what)+)));
        }
    };
}
pub(crate) use ensure;

/// One check of the suite.
pub type Check<V> = (&'static str, fn(&mut V) -> Verdict);

/// All checks, by name.
#[must_use]
pub fn suite<V: Venue>() -> Vec<Check<V>> {
    let mut checks: Vec<Check<V>> = Vec::new();
    checks.extend(bytes::checks::<V>());
    checks.extend(life::checks::<V>());
    checks.extend(waking::checks::<V>());
    checks
}

/// The bytes a reciting peer sends: byte `i` of recital `seed`.
#[must_use]
pub fn recital(seed: u64, i: usize) -> u8 {
    mix64(seed ^ (i as u64 / 8).wrapping_mul(0x9E37_79B9)).to_le_bytes()[i % 8]
}

/// Longest a check waits for one completion, by the ring's clock.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest single wait, so that a venue's time can pass.
const STEP: Duration = Duration::from_millis(20);

/// A ring with its venue and memory, as the checks use it.
struct Stage<'v, V: Venue> {
    venue: &'v mut V,
    ring: V::Ring,
    region: Region,
    arena: Arena,
    next_token: u64,
}

impl<'v, V: Venue> Stage<'v, V> {
    fn new(venue: &'v mut V, entries: u32) -> Result<Stage<'v, V>, String> {
        let config = ArenaConfig { bytes: 8 << 20, regions: 1, huge_pages: HugePages::Off, ..ArenaConfig::default() };
        let (arena, mut regions) = Arena::new(&config).map_err(|error| error.to_string())?;
        let region = regions.pop().ok_or("an arena of one region has one region")?;
        let ring = venue.ring(entries, &arena);
        Ok(Stage { venue, ring, region, arena, next_token: 1 })
    }

    fn push(&mut self, op: Op) -> Result<(u64, OpId), String> {
        let token = self.next_token;
        self.next_token += 1;
        match self.ring.push(op, token) {
            Ok(id) => Ok((token, id)),
            Err(full) => Err(format!("the ring is full with {} in flight: {:?}", self.ring.in_flight(), full.0)),
        }
    }

    /// One turn: waits a little and lets time pass.
    fn turn(&mut self) -> Verdict {
        let until = self.ring.now().after(STEP);
        self.ring.wait(Some(until)).map_err(|error| error.to_string())?;
        self.venue.pass();
        Ok(())
    }

    /// The next completion.
    fn next(&mut self) -> Result<Done, String> {
        let deadline = self.ring.now().after(PATIENCE);
        loop {
            if let Some(done) = self.ring.pop() {
                ensure!(done.token != 0 && done.token < self.next_token, "unknown token {}", done.token);
                return Ok(done);
            }
            ensure!(self.ring.now() < deadline, "no completion with {} in flight", self.ring.in_flight());
            self.turn()?;
        }
    }

    /// Nothing comes back any more, and nothing is in flight.
    fn quiet(&mut self) -> Verdict {
        for _ in 0..3 {
            self.turn()?;
            ensure!(self.ring.pop().is_none(), "a completion too many");
        }
        ensure!(self.ring.in_flight() == 0, "{} in flight after everything came back", self.ring.in_flight());
        Ok(())
    }

    /// A connected socket.
    fn connect(&mut self, script: Script) -> Result<SockId, String> {
        let addr = self.venue.peer(script);
        let sock = self.ring.socket(&addr).map_err(|error| error.to_string())?;
        let (token, _) = self.push(Op::Connect { sock, addr })?;
        let done = self.next()?;
        ensure!(done.token == token && done.result == Ok(0), "connect: {:?}", done.result);
        Ok(sock)
    }

    /// Sends all of `bytes`, with as many operations as it takes.
    fn send_all(&mut self, sock: SockId, bytes: Vec<u8>) -> Verdict {
        let (total, mut bytes, mut from) = (bytes.len(), bytes, 0);
        while from < total {
            self.push(Op::Send { sock, bytes, from })?;
            let done = self.next()?;
            let Op::Send { bytes: back, .. } = done.op else { return Err("a send came back as something else".into()) };
            let n = done.result.map_err(|errno| format!("send: error {errno}"))?;
            ensure!(n > 0 && n <= total - from, "send of {} took {n}", total - from);
            (bytes, from) = (back, from + n);
        }
        Ok(())
    }

    fn slot(&mut self, len: usize) -> Result<Slot, String> {
        self.region.alloc(len).ok_or_else(|| format!("no slot of {len} bytes in the check's arena"))
    }

    /// A scatter of one window over a whole new slot, and the filling to seal afterwards.
    fn one_window(&mut self, len: usize) -> Result<(Scatter, Filling), String> {
        let scratch = self.slot(64)?;
        let mut filling = self.slot(len)?.fill();
        let window = filling.carve(len).ok_or("a fresh filling has room")?;
        let mut into = Scatter::new(scratch);
        into.push_body(window, len).map_err(|_| "a fresh scatter has room")?;
        Ok((into, filling))
    }

    /// Receives once into one window; the bytes received, or the error number.
    fn receive(&mut self, sock: SockId, len: usize) -> Result<Result<Vec<u8>, i32>, String> {
        let (into, _filling) = self.one_window(len)?;
        let (token, _) = self.push(Op::Recv { sock, into })?;
        let done = self.next()?;
        ensure!(done.token == token, "token {} came back for {token}", done.token);
        received(done)
    }

    /// Closes, waits until everything is back, and checks the books: operations, memory.
    fn strike(mut self) -> Verdict {
        self.quiet()?;
        let counts = self.ring.facts().counts;
        ensure!(counts.ops == counts.completions, "{} operations, {} completions", counts.ops, counts.completions);
        drop(self.ring);
        self.region.collect();
        ensure!(self.arena.outstanding() == 0, "{} slots did not come home", self.arena.outstanding());
        ensure!(self.region.free_bytes() == self.region.capacity(), "the region is not whole again");
        Ok(())
    }
}

/// The bytes a completed receive brought, after checking its accounting.
fn received(done: Done) -> Result<Result<Vec<u8>, i32>, String> {
    let Op::Recv { into, .. } = done.op else { return Err("a receive came back as something else".into()) };
    let asked = into.asked();
    let (scratch, pieces) = into.finish();
    let mut bytes = Vec::new();
    let mut short = false;
    for piece in &pieces {
        let (asked, got) = match piece {
            Landed::Head { from, asked, got } => {
                bytes.extend_from_slice(&scratch[*from..from + got]);
                (*asked, *got)
            }
            Landed::Body { window, asked, got } => {
                bytes.extend_from_slice(&window.bytes()[window.filled() - got..]);
                (*asked, *got)
            }
        };
        ensure!(got <= asked, "{got} bytes in a piece of {asked}");
        ensure!(!(short && got > 0), "bytes in a piece behind one that is not full");
        short |= got < asked;
    }
    match done.result {
        Ok(n) => {
            ensure!(n == bytes.len() && n <= asked, "{n} reported, {} accounted for, {asked} asked", bytes.len());
            Ok(Ok(bytes))
        }
        Err(errno) => {
            ensure!(bytes.is_empty(), "error {errno} with {} bytes accounted for", bytes.len());
            Ok(Err(errno))
        }
    }
}
