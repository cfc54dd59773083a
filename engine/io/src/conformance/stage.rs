//! A ring on stage: one ring with its venue and memory, and the steps every check is made of. Each step is bounded.

use fuelrail_base::Duration;

use super::venue::{Script, Venue, Verdict, ensure};
use crate::arena::{Arena, ArenaConfig, HugePages};
use crate::region::Region;
use crate::ring::{Done, Op, OpId, Ring, SockId};
use crate::scatter::{Landed, Scatter};
use crate::slot::{Filling, Slot};

/// Longest a check waits for one completion, by the ring's clock.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Longest single wait, so that a venue's time can pass.
const STEP: Duration = Duration::from_millis(20);

/// A ring with its venue and memory, as the checks use it.
pub(super) struct Stage<'v, V: Venue> {
    pub(super) venue: &'v mut V,
    pub(super) ring: V::Ring,
    pub(super) region: Region,
    pub(super) arena: Arena,
    next_token: u64,
}

impl<'v, V: Venue> Stage<'v, V> {
    pub(super) fn new(venue: &'v mut V, entries: u32) -> Result<Stage<'v, V>, String> {
        let config = ArenaConfig { bytes: 8 << 20, regions: 1, huge_pages: HugePages::Off, ..ArenaConfig::default() };
        let (arena, mut regions) = Arena::new(&config).map_err(|error| error.to_string())?;
        let region = regions.pop().ok_or("an arena of one region has one region")?;
        let ring = venue.ring(entries, &arena);
        Ok(Stage { venue, ring, region, arena, next_token: 1 })
    }

    pub(super) fn push(&mut self, op: Op) -> Result<(u64, OpId), String> {
        let token = self.next_token;
        self.next_token += 1;
        match self.ring.push(op, token) {
            Ok(id) => Ok((token, id)),
            Err(full) => Err(format!("the ring is full with {} in flight: {:?}", self.ring.in_flight(), full.0)),
        }
    }

    /// One turn: waits a little and lets time pass.
    pub(super) fn turn(&mut self) -> Verdict {
        let until = self.ring.now().after(STEP);
        self.ring.wait(Some(until)).map_err(|error| error.to_string())?;
        self.venue.pass();
        Ok(())
    }

    /// The next completion.
    pub(super) fn next(&mut self) -> Result<Done, String> {
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
    pub(super) fn quiet(&mut self) -> Verdict {
        for _ in 0..3 {
            self.turn()?;
            ensure!(self.ring.pop().is_none(), "a completion too many");
        }
        ensure!(self.ring.in_flight() == 0, "{} in flight after everything came back", self.ring.in_flight());
        Ok(())
    }

    /// A connected socket.
    pub(super) fn connect(&mut self, script: Script) -> Result<SockId, String> {
        let addr = self.venue.peer(script);
        let sock = self.ring.socket(&addr).map_err(|error| error.to_string())?;
        let (token, _) = self.push(Op::Connect { sock, addr })?;
        let done = self.next()?;
        ensure!(done.token == token && done.result == Ok(0), "connect: {:?}", done.result);
        Ok(sock)
    }

    /// Sends all of `bytes`, with as many operations as it takes.
    pub(super) fn send_all(&mut self, sock: SockId, bytes: Vec<u8>) -> Verdict {
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

    pub(super) fn slot(&mut self, len: usize) -> Result<Slot, String> {
        self.region.alloc(len).ok_or_else(|| format!("no slot of {len} bytes in the check's arena"))
    }

    /// A scatter of one window over a whole new slot, and the filling to seal afterwards.
    pub(super) fn one_window(&mut self, len: usize) -> Result<(Scatter, Filling), String> {
        let scratch = self.slot(64)?;
        let mut filling = self.slot(len)?.fill();
        let window = filling.carve(len).ok_or("a fresh filling has room")?;
        let mut into = Scatter::new(scratch);
        into.push_body(window, len).map_err(|_| "a fresh scatter has room")?;
        Ok((into, filling))
    }

    /// Receives once into one window; the bytes received, or the error number.
    pub(super) fn receive(&mut self, sock: SockId, len: usize) -> Result<Result<Vec<u8>, i32>, String> {
        let (into, _filling) = self.one_window(len)?;
        let (token, _) = self.push(Op::Recv { sock, into })?;
        let done = self.next()?;
        ensure!(done.token == token, "token {} came back for {token}", done.token);
        received(done)
    }

    /// Closes, waits until everything is back, and checks the books: operations, memory.
    pub(super) fn strike(mut self) -> Verdict {
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
pub(super) fn received(done: Done) -> Result<Result<Vec<u8>, i32>, String> {
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
