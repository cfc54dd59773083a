//! Zero-copy receive where no card can do it: refused aloud, with ordinary receives going on; and rehearsed, with the kernel
//! copying into the area where a card would write.

use crate::skip::skip_or_fail;
use std::process::Command;

use crate::loopback::loopback_passes;
use crate::steps::{connect, memory, next};
use fuelrail_io::conformance::{Script, TcpPeers};
use fuelrail_io::{Kernel, Landed, Op, Region, Ring, Scatter, SockId, UringConfig, UringRing};

const MEMORY: u64 = 8 << 20;

/// Sends a message of `len` bytes to an echo and receives it again, `step` bytes asked for at a time, over a head of ten
/// bytes and a body.
fn echo(ring: &mut impl Ring, region: &mut Region, sock: SockId, len: usize, step: usize) {
    let message: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    ring.push(Op::Send { sock, bytes: message.clone(), from: 0 }, 1).unwrap();
    let mut window = region.alloc(step).unwrap().fill().carve(step).unwrap();
    let mut into = Scatter::new(region.alloc(64).unwrap());
    while got.len() < len {
        let asked = (len - got.len()).min(step + 10);
        window.rewind(0);
        assert!(into.push_head(asked.min(10)));
        if asked > 10 {
            into.push_body(window, asked - 10).unwrap();
        } else {
            drop(window);
        }
        ring.push(Op::Recv { sock, into }, 2).unwrap();
        (into, window) = loop {
            let done = next(ring);
            let n = done.result.unwrap();
            match done.op {
                Op::Send { bytes, from, .. } if from + n < len => {
                    ring.push(Op::Send { sock, bytes, from: from + n }, 1).unwrap();
                    sent += n;
                }
                Op::Send { .. } => sent += n,
                Op::Recv { mut into, .. } => {
                    assert!(n > 0, "the echo ended at {} of {len}", got.len());
                    let scratch = into.scratch().to_vec();
                    let mut body = None;
                    for piece in into.landed() {
                        match piece {
                            Landed::Head { from, got: n, .. } => got.extend_from_slice(&scratch[from..from + n]),
                            Landed::Body { window, .. } => {
                                got.extend_from_slice(window.bytes());
                                body = Some(window);
                            }
                        }
                    }
                    let fresh = || region.alloc(step).unwrap().fill().carve(step).unwrap();
                    break (into, body.unwrap_or_else(fresh));
                }
                other => panic!("{other:?}"),
            }
        };
    }
    while sent < len {
        let done = next(ring);
        sent += done.result.unwrap();
    }
    assert!(got == message, "{len} bytes in steps of {step} came back changed");
}

/// The whole suite over the area: whatever chunks the kernel makes, every operation gets its bytes, once.
#[test]
fn a_rehearsed_ring_passes_the_suite() {
    loopback_passes(false, |config| UringRing::as_on(config, Kernel::Rehearsing));
}

/// The kernel knows the request and refuses it, for want of a queue: every socket goes on with ordinary receives.
#[test]
fn a_ring_whose_requests_are_refused_passes_the_suite() {
    loopback_passes(false, |config| UringRing::as_on(config, Kernel::Refusing));
    let (_arena, mut region) = memory(MEMORY);
    let mut peers = TcpPeers::default();
    let mut ring = UringRing::as_on(&UringConfig::default(), Kernel::Refusing).unwrap();
    let sock = connect(&mut ring, &mut peers, Script::Echo);
    echo(&mut ring, &mut region, sock, 100_000, 10_000);
    let counts = ring.facts().counts;
    assert_eq!((counts.received_bytes, counts.zero_copy_bytes), (100_000, 0));
}

/// More than the area holds goes through it, in receives smaller and larger than a chunk and than a request's credit; what a
/// receive does not want is kept for the next; every byte is counted as copied by the ring.
#[test]
fn every_piece_of_the_area_goes_back_and_every_byte_is_counted() {
    let (_arena, mut region) = memory(MEMORY);
    let mut peers = TcpPeers::default();
    let mut ring = UringRing::as_on(&UringConfig::default(), Kernel::Rehearsing).unwrap();
    let facts = ring.facts();
    if facts.refusals.iter().any(|line| line.contains("os error 22")) {
        skip_or_fail("linux-6.18", format_args!("{facts:?}"));
        return;
    }
    assert!(facts.abilities.contains(&"zero-copy receive"), "{facts:?}");
    let sock = connect(&mut ring, &mut peers, Script::Echo);
    let mut total = 0;
    for (len, step, times) in [(300_000, 1, 1), (300_000, 4_095, 8), (3_000_000, 1_500_000, 40)] {
        for _ in 0..times {
            let step = if step == 1 { 311 } else { step };
            echo(&mut ring, &mut region, sock, len, step);
            total += len as u64;
        }
    }
    assert!(total > 64 << 20, "more than the area holds");
    let counts = ring.facts().counts;
    assert_eq!((counts.received_bytes, counts.zero_copy_bytes), (total, total));
    ring.close(sock);
}

/// On interfaces without a card behind them the kernel refuses the queue; the line says why, and receives are ordinary.
#[test]
fn without_a_card_it_is_refused_aloud_and_ordinary_receives_go_on() {
    for (interface, cause) in [("lo", "the driver of lo"), ("fuelrail-none", "no interface fuelrail-none")] {
        let queue = Some(format!("{interface}:0").parse().unwrap());
        let mut ring = UringRing::new(&UringConfig { zero_copy_receive: queue, ..UringConfig::default() }).unwrap();
        let facts = ring.facts();
        let lines: Vec<_> = facts.refusals.iter().filter(|line| line.starts_with("zero-copy receive on ")).collect();
        let [line] = lines.as_slice() else { panic!("{facts:?}") };
        let privileged = !line.contains("CAP_NET_ADMIN") && !line.contains("kernel 6.18");
        assert!(line.contains(cause) || !privileged, "{line}");
        assert!(line.ends_with("Ordinary receives go on"), "{line}");
        assert!(!facts.abilities.contains(&"zero-copy receive"), "{facts:?}");
        let (_arena, mut region) = memory(MEMORY);
        let mut peers = TcpPeers::default();
        let sock = connect(&mut ring, &mut peers, Script::Echo);
        echo(&mut ring, &mut region, sock, 100_000, 10_000);
        let counts = ring.facts().counts;
        assert_eq!((counts.received_bytes, counts.zero_copy_bytes), (100_000, 0));
        ring.close(sock);
    }
}

/// A pair of virtual cards in a network namespace of this thread: they have drivers and queues, but hand none out.
#[test]
fn a_virtual_card_is_refused_aloud() {
    std::thread::spawn(|| {
        // SAFETY: moves this thread, which ends with the test, to a namespace of its own; fails harmlessly without the right.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            skip_or_fail("netns", format_args!("{}", std::io::Error::last_os_error()));
            return;
        }
        let made = Command::new("ip").args(["link", "add", "rail0", "type", "veth", "peer", "name", "rail1"]).status();
        if !made.as_ref().is_ok_and(std::process::ExitStatus::success) {
            skip_or_fail("netns", format_args!("{made:?}"));
            return;
        }
        let queue = Some("rail0:0".parse().unwrap());
        let ring = UringRing::new(&UringConfig { zero_copy_receive: queue, ..UringConfig::default() }).unwrap();
        let refusals = ring.facts().refusals;
        let told = |line: &String| {
            line.starts_with("zero-copy receive on rail0:0: the driver of rail0 hands no queue")
                && line.contains("doctor")
        };
        assert!(refusals.iter().any(told), "{refusals:?}");
    })
    .join()
    .unwrap();
}
