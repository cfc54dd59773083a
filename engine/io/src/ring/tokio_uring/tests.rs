//! The guard against the runtime's freeing memory before the kernel has let go of it; the fault itself is shown in
//! `tests/tokio_uring.rs`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::TokioUringRing;
use crate::arena::{Arena, ArenaConfig, HugePages};
use crate::region::Region;
use crate::ring::uring::UringConfig;
use crate::ring::{Op, Ring};
use crate::scatter::Scatter;
use crate::slot::Slot;
use crate::wake::Waker;

/// Longest that anything here may take on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long memory is watched for bytes that must not come.
const WATCH: Duration = Duration::from_millis(50);

/// A waker that stops whoever rings it until the other end is read: what it writes to is full.
fn stopping_waker() -> (Waker, UnixStream) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while match ours.write(&[0; 4096]) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    } {}
    ours.set_nonblocking(false).unwrap();
    let waker = Waker::writing(ours.into());
    assert!(waker.arm());
    (waker, theirs)
}

/// Takes over the memory of a receive the moment it is free, lets bytes come in on its connection, and says what became of
/// the memory. The thread that gave it up is stopped meanwhile, in the middle of doing so.
fn inherit(mut region: Region, mut peer: TcpStream, mut bell: UnixStream) -> Slot {
    let deadline = Instant::now() + PATIENCE;
    while region.outstanding() > 0 {
        assert!(Instant::now() < deadline, "the memory did not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut slot = region.alloc(64).unwrap();
    slot[..].fill(0);
    // Refused when the connection is gone already: then nobody can write to the memory, either.
    let _ = peer.write_all(&[0xFF; 16]);
    std::thread::sleep(WATCH);
    // There is room again, and the other thread goes on.
    let read = bell.read(&mut [0; 1 << 16]).unwrap();
    assert!(read > 0);
    slot
}

#[test]
fn a_dropped_ring_frees_no_memory_the_kernel_still_writes_to() {
    let config = ArenaConfig { bytes: 1 << 20, regions: 1, huge_pages: HugePages::Off, ..ArenaConfig::default() };
    let (arena, mut regions) = Arena::new(&config).unwrap();
    let mut region = regions.pop().unwrap();
    let (waker, bell) = stopping_waker();
    region.set_waker(waker);
    let mut ring = TokioUringRing::new(&UringConfig::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let sock = ring.socket(&addr).unwrap();
    ring.push(Op::Connect { sock, addr }, 0).unwrap();
    while ring.pop().is_none() {
        ring.wait(None).unwrap();
    }
    let peer = listener.accept().unwrap().0;
    let mut into = Scatter::new(region.alloc(64).unwrap());
    assert!(into.push_head(16));
    ring.push(Op::Recv { sock, into }, 1).unwrap();
    ring.wait(Some(ring.now())).unwrap();
    assert_eq!((ring.in_flight(), region.outstanding()), (1, 1));
    let heir = std::thread::spawn(move || inherit(region, peer, bell));
    drop(ring);
    drop(arena);
    let slot = heir.join().unwrap();
    assert!(slot.iter().all(|byte| *byte == 0), "written after it was given back: {:?}", &slot[..16]);
}
