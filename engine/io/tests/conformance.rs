//! The back-ends pass the one suite: io_uring and epoll against real peers on the loopback interface and real files, the
//! simulated ring in virtual time under every mix of harmless faults.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::loopback::loopback_passes;
use fuelrail_base::Duration;
use fuelrail_io::conformance::{Harness, Script, ScriptedHost, suite};
use fuelrail_io::{Arena, Kernel, PollRing, Ring, SimFaults, SimRing, SimWorld, UringConfig, UringRing};

/// A simulated world.
struct Simulated {
    world: SimWorld,
    files: u32,
}

impl Simulated {
    fn new(seed: u64, faults: SimFaults) -> Simulated {
        let host = ScriptedHost::new(Duration::from_micros(seed % 3 * 150));
        Simulated { world: SimWorld::new(seed, faults, Box::new(host)), files: 0 }
    }
}

impl Harness for Simulated {
    type Ring = SimRing;

    fn ring(&mut self, entries: u32, _arena: &Arena) -> SimRing {
        SimRing::with_capacity(&self.world, entries, 64)
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

/// Faults a correct caller must not notice in the bytes.
fn harmless(seed: u64) -> SimFaults {
    SimFaults { transient_errno: 0.0, fatal_errno: 0.0, disk_errno: 0.0, ..SimFaults::swarm(seed) }
}

#[test]
fn uring_passes() {
    loopback_passes(false, UringRing::new);
}

#[test]
fn uring_passes_with_registered_memory() {
    loopback_passes(true, UringRing::new);
}

#[test]
fn uring_passes_with_cooperative_completions() {
    loopback_passes(true, |config| UringRing::as_on(config, Kernel::V5_19));
}

#[test]
fn uring_passes_without_registered_files() {
    loopback_passes(false, |config| UringRing::as_on(config, Kernel::V5_13));
}

#[test]
fn poll_passes() {
    loopback_passes(false, PollRing::new);
}

#[test]
fn sim_passes_without_faults() {
    for (name, check) in suite::<Simulated>() {
        eprintln!("{name}");
        check(&mut Simulated::new(0, SimFaults::default()));
    }
}

#[test]
fn sim_passes_with_harmless_faults() {
    // The checks of waking use real threads, which spin against a ring that never sleeps; faults do not touch them.
    let checks: Vec<_> = suite::<Simulated>().into_iter().filter(|(name, _)| !name.contains("wake")).collect();
    for seed in 1..40 {
        for (name, check) in &checks {
            eprintln!("seed {seed}: {name}");
            check(&mut Simulated::new(seed, harmless(seed)));
        }
    }
}

/// Registered memory is really used, or the ring says why not.
#[test]
fn registered_memory_is_used_or_refused_aloud() {
    let config = fuelrail_io::ArenaConfig { bytes: 4 << 20, ..fuelrail_io::ArenaConfig::default() };
    let (arena, _regions) = Arena::new(&config).unwrap();
    let ring = UringRing::new(&UringConfig { register: Some(arena), ..UringConfig::default() }).unwrap();
    let facts = ring.facts();
    let used = facts.abilities.contains(&"registered memory");
    let refused = facts.refusals.iter().any(|why| why.contains("registering"));
    assert!(used != refused, "{facts:?}");
}
