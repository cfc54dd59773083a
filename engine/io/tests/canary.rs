//! The conformance suite must catch rings that lie. Each plant is one small bug over the simulated ring; a suite that
//! passes any of them is itself broken.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fuelrail_base::{Duration, Instant, Result};
use fuelrail_io::conformance::{Harness, Script, ScriptedHost, suite};
use fuelrail_io::{
    Arena, Done, FileId, FileOptions, Full, Op, OpId, OwnDirectory, Ring, RingFacts, SimFaults, SimRing, SimWorld,
    SockId, Waker,
};

/// A bug to plant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plant {
    /// None: the suite must pass.
    Nothing,
    /// Every 5th receive reports one byte too many.
    OneByteTooMany,
    /// Every 7th completion never comes back.
    DropsACompletion,
    /// Every 9th completion carries the token of the one before.
    WrongToken,
    /// Cancellations are forgotten.
    ForgetsCancellations,
    /// A cancelled operation is reported as cancelled although its bytes were taken.
    CancelsTooLate,
    /// Closing a socket leaves its operations hanging.
    ForgetsClosing,
    /// A dropped ring forgets what was in flight.
    LeaksOnDrop,
    /// Refused connections look accepted.
    AcceptsRefusal,
    /// In-flight counts one too few.
    Miscounts,
    /// Every 3rd write to a file reports one byte more than it took.
    TakesTooMuch,
    /// Every 3rd read from a file comes from one byte further on.
    ReadsBeside,
    /// A write to a closed file looks done.
    WritesToClosed,
}

struct Planted {
    ring: Option<SimRing>,
    plant: Plant,
    completions: u64,
    last_token: u64,
    cancelled: Vec<u64>,
    tokens: Vec<(OpId, u64)>,
}

impl Planted {
    fn ring(&mut self) -> &mut SimRing {
        self.ring.as_mut().expect("set until drop")
    }
}

impl Ring for Planted {
    fn now(&self) -> Instant {
        self.ring.as_ref().expect("set until drop").now()
    }

    fn socket(&mut self, addr: &SocketAddr) -> Result<SockId> {
        self.ring().socket(addr)
    }

    fn close(&mut self, sock: SockId) {
        if self.plant != Plant::ForgetsClosing {
            self.ring().close(sock);
        }
    }

    fn open_in(&mut self, own: Option<&OwnDirectory>, path: &Path, options: &FileOptions) -> Result<FileId> {
        self.ring().open_in(own, path, options)
    }

    fn close_file(&mut self, file: FileId) {
        if self.plant != Plant::ForgetsClosing {
            self.ring().close_file(file);
        }
    }

    fn push(&mut self, mut op: Op, token: u64) -> Result<OpId, Full> {
        if let (Plant::ReadsBeside, Op::ReadAt { offset, .. }) = (self.plant, &mut op) {
            *offset += u64::from(token.is_multiple_of(3));
        }
        let id = self.ring().push(op, token)?;
        self.tokens.push((id, token));
        Ok(id)
    }

    fn cancel(&mut self, op: OpId) {
        if self.plant == Plant::ForgetsCancellations {
            return;
        }
        let token = self.tokens.iter().rev().find(|(id, _)| *id == op).map(|(_, token)| *token);
        self.cancelled.extend(token);
        self.ring().cancel(op);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        self.ring().wait(until)
    }

    fn pop(&mut self) -> Option<Done> {
        let mut done = self.ring().pop()?;
        self.completions += 1;
        let n = self.completions;
        match self.plant {
            Plant::OneByteTooMany if n.is_multiple_of(5) && matches!(done.op, Op::Recv { .. }) => {
                done.result = done.result.map(|bytes| bytes + 1);
            }
            Plant::DropsACompletion if n.is_multiple_of(7) => return self.pop(),
            Plant::WrongToken if n.is_multiple_of(9) => done.token = self.last_token,
            Plant::CancelsTooLate if self.cancelled.contains(&done.token) => done.result = Err(libc::ECANCELED),
            Plant::AcceptsRefusal if matches!(done.op, Op::Connect { .. }) => done.result = Ok(0),
            Plant::TakesTooMuch if n.is_multiple_of(3) && matches!(done.op, Op::WriteAt { .. }) => {
                done.result = done.result.map(|bytes| bytes + 1);
            }
            Plant::WritesToClosed if done.op.file().is_some() && done.result == Err(libc::EBADF) => done.result = Ok(0),
            _ => {}
        }
        self.last_token = done.token;
        Some(done)
    }

    fn in_flight(&self) -> usize {
        let n = self.ring.as_ref().expect("set until drop").in_flight();
        if self.plant == Plant::Miscounts { n.saturating_sub(1) } else { n }
    }

    fn waker(&self) -> Waker {
        self.ring.as_ref().expect("set until drop").waker()
    }

    fn facts(&self) -> RingFacts {
        self.ring.as_ref().expect("set until drop").facts()
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let ring = self.ring.take();
        if self.plant == Plant::LeaksOnDrop {
            std::mem::forget(ring);
        }
    }
}

struct PlantedHarness {
    world: SimWorld,
    plant: Plant,
    files: u32,
}

impl Harness for PlantedHarness {
    type Ring = Planted;

    fn ring(&mut self, entries: u32, _arena: &Arena) -> Planted {
        Planted {
            ring: Some(SimRing::with_capacity(&self.world, entries, 64)),
            plant: self.plant,
            completions: 0,
            last_token: 0,
            cancelled: Vec::new(),
            tokens: Vec::new(),
        }
    }

    fn peer(&mut self, script: Script) -> SocketAddr {
        ScriptedHost::addr(script)
    }

    fn closed_addr(&mut self) -> SocketAddr {
        ScriptedHost::closed_addr()
    }

    fn file(&mut self) -> PathBuf {
        self.files += 1;
        PathBuf::from(format!("file-{}", self.files))
    }

    fn pass(&mut self) {
        self.world.advance();
    }

    fn rest(&mut self, time: Duration) {
        let until = self.world.now().after(time);
        while self.world.now() < until && self.world.advance() {}
    }
}

/// Names of the checks that fail over this plant.
fn caught(plant: Plant) -> Vec<&'static str> {
    let mut caught = Vec::new();
    for (name, check) in suite::<PlantedHarness>() {
        // In virtual time a ring never sleeps: the checks of waking spin, and no plant here concerns them.
        if name.contains("wake") {
            continue;
        }
        let host = ScriptedHost::new(Duration::from_micros(150));
        let mut harness =
            PlantedHarness { world: SimWorld::new(1, SimFaults::default(), Box::new(host)), plant, files: 0 };
        if catch_unwind(AssertUnwindSafe(|| check(&mut harness))).is_err() {
            caught.push(name);
        }
    }
    caught
}

#[test]
fn an_honest_ring_passes() {
    assert_eq!(caught(Plant::Nothing), Vec::<&str>::new());
}

#[test]
fn every_plant_is_caught() {
    for plant in [
        Plant::OneByteTooMany,
        Plant::DropsACompletion,
        Plant::WrongToken,
        Plant::ForgetsCancellations,
        Plant::CancelsTooLate,
        Plant::ForgetsClosing,
        Plant::LeaksOnDrop,
        Plant::AcceptsRefusal,
        Plant::Miscounts,
        Plant::TakesTooMuch,
        Plant::ReadsBeside,
        Plant::WritesToClosed,
    ] {
        assert!(!caught(plant).is_empty(), "{plant:?} passes the suite");
    }
}
