//! The simulated world: the same seed is the same run, faults are injected and counted, time only jumps.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use fuelrail_base::prng::mix64;
use fuelrail_base::{Duration, Instant};
use fuelrail_io::conformance::{Script, ScriptedHost};
use fuelrail_io::{
    Arena, ArenaConfig, Host, HugePages, Op, Region, Replies, Ring, Scatter, SimCounts, SimFaults, SimRing, SimWorld,
};

fn region() -> Region {
    let config = ArenaConfig {
        bytes: 4 << 20,
        regions: 1,
        huge_pages: HugePages::Off,
        slots_per_region: 256,
        ..ArenaConfig::default()
    };
    Arena::new(&config).unwrap().1.pop().unwrap()
}

fn receive(region: &mut Region, len: usize) -> Scatter {
    let mut into = Scatter::new(region.alloc(64).unwrap());
    let window = region.alloc(len).unwrap().fill().carve(len).unwrap();
    into.push_body(window, len).unwrap();
    into
}

struct Outcome {
    trace: u64,
    errnos: Vec<i32>,
    received: u64,
    counts: SimCounts,
    end: Instant,
}

/// Two rings echo on several connections for a while; everything that happens goes into one number.
fn run(seed: u64, faults: SimFaults) -> Outcome {
    let world = SimWorld::new(seed, faults, Box::new(ScriptedHost::new(Duration::from_micros(200))));
    let mut region = region();
    let mut rings = [SimRing::new(&world), SimRing::new(&world)];
    let mut outcome =
        Outcome { trace: 0, errnos: Vec::new(), received: 0, counts: SimCounts::default(), end: Instant::ZERO };
    let addr = ScriptedHost::addr(Script::Echo);
    for token in 0..8u64 {
        let ring = &mut rings[token as usize % 2];
        let sock = ring.socket(&addr).unwrap();
        ring.push(Op::Connect { sock, addr }, token).unwrap();
    }
    for _ in 0..400 {
        for ring in &mut rings {
            ring.wait(None).unwrap();
            while let Some(done) = ring.pop() {
                let facts =
                    (done.token << 32) ^ done.result.map_or_else(|errno| u64::from(errno as u32) << 20, |n| n as u64);
                outcome.trace = mix64(outcome.trace ^ facts ^ ring.now().0);
                outcome.errnos.extend(done.result.err());
                let sock = done.op.sock().expect("only sockets are used here");
                let again = match (done.op, done.result) {
                    (Op::Connect { addr, .. }, Err(libc::EAGAIN | libc::EINTR | libc::ENOBUFS)) => {
                        Some(Op::Connect { sock, addr })
                    }
                    (Op::Connect { .. }, Ok(_)) => {
                        ring.push(Op::Recv { sock, into: receive(&mut region, 700) }, done.token).unwrap();
                        Some(Op::Send { sock, bytes: vec![done.token as u8; 900], from: 0 })
                    }
                    (Op::Send { bytes, from, .. }, Ok(n)) if from + n < bytes.len() => {
                        Some(Op::Send { sock, bytes, from: from + n })
                    }
                    (Op::Send { bytes, .. }, Ok(_)) => Some(Op::Send { sock, bytes, from: 0 }),
                    (Op::Send { bytes, from, .. }, Err(libc::EAGAIN | libc::EINTR | libc::ENOBUFS)) => {
                        Some(Op::Send { sock, bytes, from })
                    }
                    (Op::Recv { .. }, Ok(n)) => {
                        outcome.received += n as u64;
                        Some(Op::Recv { sock, into: receive(&mut region, 700) })
                    }
                    (Op::Recv { into, .. }, Err(libc::EAGAIN | libc::EINTR | libc::ENOBUFS)) => {
                        Some(Op::Recv { sock, into })
                    }
                    _ => None,
                };
                if let Some(op) = again {
                    ring.push(op, done.token).unwrap();
                }
            }
        }
        world.advance();
    }
    outcome.counts = world.counts();
    outcome.end = world.now();
    outcome
}

fn all_faults() -> SimFaults {
    SimFaults {
        short_receive: 0.3,
        short_send: 0.3,
        reorder: 0.5,
        transient_errno: 0.05,
        fatal_errno: 0.0005,
        corrupt: 0.01,
        delay: 0.3,
        delay_max: Duration::from_millis(2),
        ..SimFaults::default()
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let mut traces = Vec::new();
    for seed in 0..8 {
        let (one, two) = (run(seed, all_faults()), run(seed, all_faults()));
        assert_eq!((one.trace, one.counts, one.end), (two.trace, two.counts, two.end), "seed {seed}");
        assert!(one.received > 0, "seed {seed}");
        traces.push(one.trace);
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 8, "seeds differ");
}

#[test]
fn every_fault_is_injected_counted_and_seen() {
    let outcome = run(3, SimFaults { fatal_errno: 0.01, ..all_faults() });
    let counts = outcome.counts;
    for (what, n) in [
        ("short receives", counts.short_receives),
        ("short sends", counts.short_sends),
        ("reorders", counts.reorders),
        ("transient errnos", counts.transient_errnos),
        ("fatal errnos", counts.fatal_errnos),
        ("corruptions", counts.corruptions),
        ("delays", counts.delays),
    ] {
        assert!(n > 0, "no {what}: {counts:?}");
    }
    let transient =
        outcome.errnos.iter().filter(|errno| [libc::EINTR, libc::EAGAIN, libc::ENOBUFS].contains(*errno)).count()
            as u64;
    assert!(transient > 0 && transient <= counts.transient_errnos, "{transient} of {counts:?}");
    assert!(outcome.errnos.len() as u64 >= transient + counts.fatal_errnos.min(1));
    assert_eq!(run(3, SimFaults::default()).counts, SimCounts::default(), "no fault without a weight");
}

#[test]
fn swarm_mixes_differ_and_repeat() {
    let mixes: Vec<SimFaults> = (0..50).map(SimFaults::swarm).collect();
    assert_eq!(mixes, (0..50).map(SimFaults::swarm).collect::<Vec<_>>());
    assert!(mixes.iter().any(|mix| mix.fatal_errno == 0.0) && mixes.iter().any(|mix| mix.fatal_errno > 0.0));
    assert!(mixes.iter().all(|mix| mix.corrupt == 0.0));
}

/// A host that notes what it is told.
#[derive(Clone, Default)]
struct Notes {
    told: Rc<RefCell<Vec<String>>>,
}

impl Host for Notes {
    fn connect(&mut self, conn: u64, addr: SocketAddr, now: Instant) -> (Duration, Result<(), i32>) {
        self.told.borrow_mut().push(format!("{} connect {conn} {addr}", now.0));
        (Duration::from_nanos(100), Ok(()))
    }

    fn receive(&mut self, conn: u64, bytes: &[u8], now: Instant, out: &mut Replies) {
        self.told.borrow_mut().push(format!("{} receive {conn} {}", now.0, bytes.len()));
        match bytes {
            b"stall" => {
                out.send(Duration::from_nanos(10), b"before".to_vec());
                out.stall();
                out.send(Duration::from_nanos(10), b"never".to_vec());
            }
            _ => {
                out.send(Duration::from_nanos(50), b"slow".to_vec());
                out.send(Duration::from_nanos(10), b"fast".to_vec());
                out.finish(Duration::ZERO);
            }
        }
    }

    fn closed(&mut self, conn: u64, now: Instant) {
        self.told.borrow_mut().push(format!("{} closed {conn}", now.0));
    }
}

#[test]
fn time_jumps_to_events_and_to_wake_ups_and_answers_keep_their_order() {
    let notes = Notes::default();
    let world = SimWorld::new(0, SimFaults::default(), Box::new(notes.clone()));
    let mut region = region();
    let mut ring = SimRing::new(&world);
    assert!(!world.advance(), "nothing is pending in an empty world");
    let addr: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let sock = ring.socket(&addr).unwrap();
    ring.push(Op::Connect { sock, addr }, 1).unwrap();
    ring.wait(Some(Instant(30))).unwrap();
    assert!(world.advance());
    assert_eq!(world.now(), Instant(30), "the wake-up comes before the event");
    assert!(world.advance());
    assert_eq!(world.now(), Instant(100));
    assert!(ring.pop().is_none(), "completions are queued by wait only");
    ring.wait(None).unwrap();
    assert_eq!(ring.pop().map(|done| (done.token, done.result)), Some((1, Ok(0))));
    ring.push(Op::Send { sock, bytes: b"ask".to_vec(), from: 0 }, 2).unwrap();
    ring.push(Op::Recv { sock, into: receive(&mut region, 100) }, 3).unwrap();
    ring.wait(None).unwrap();
    assert_eq!(ring.pop().map(|done| done.token), Some(2));
    assert!(world.advance());
    assert_eq!(world.now(), Instant(150));
    ring.wait(None).unwrap();
    let done = ring.pop().unwrap();
    assert_eq!((done.token, done.result), (3, Ok(4)), "the slow answer first, alone or with what came at once");
    ring.push(Op::Recv { sock, into: receive(&mut region, 100) }, 4).unwrap();
    ring.wait(None).unwrap();
    assert_eq!(ring.pop().map(|done| done.result), Some(Ok(4)));
    ring.waker().wake();
    assert!(world.advance(), "a woken ring is something pending");
    assert_eq!(world.now(), Instant(150), "and time waits for it");
    ring.wait(None).unwrap();
    assert!(!world.advance());
    ring.close(sock);
    let told = notes.told.borrow();
    assert_eq!(*told, ["0 connect 0 10.0.0.1:80", "100 receive 0 3", "150 closed 0"]);
}

#[test]
fn a_stalled_peer_leaves_the_world_still() {
    let world = SimWorld::new(0, SimFaults::default(), Box::new(Notes::default()));
    let mut region = region();
    let mut ring = SimRing::new(&world);
    let addr: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let sock = ring.socket(&addr).unwrap();
    ring.push(Op::Connect { sock, addr }, 1).unwrap();
    ring.wait(None).unwrap();
    while world.advance() {}
    ring.push(Op::Send { sock, bytes: b"stall".to_vec(), from: 0 }, 2).unwrap();
    ring.push(Op::Recv { sock, into: receive(&mut region, 100) }, 3).unwrap();
    ring.wait(None).unwrap();
    while world.advance() {}
    ring.wait(None).unwrap();
    let results: Vec<_> = std::iter::from_fn(|| ring.pop()).map(|done| (done.token, done.result)).collect();
    assert_eq!(results, [(1, Ok(0)), (2, Ok(5)), (3, Ok(6))]);
    let id = ring.push(Op::Recv { sock, into: receive(&mut region, 100) }, 4).unwrap();
    ring.wait(None).unwrap();
    assert!(!world.advance(), "nothing will ever come");
    ring.cancel(id);
    ring.wait(None).unwrap();
    assert_eq!(ring.pop().map(|done| (done.token, done.result)), Some((4, Err(libc::ECANCELED))));
    drop(ring);
}
