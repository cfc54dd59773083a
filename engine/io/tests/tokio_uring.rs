//! The ring on tokio-uring: the one suite, and the fault of the runtime it guards against.
#![cfg(feature = "tokio-uring")]

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Poll;

use fuelrail_base::{Duration, Kind};
use fuelrail_io::conformance::{ScratchFiles, Script, TcpPeers, Venue, suite};
use fuelrail_io::{Arena, ArenaConfig, Done, HugePages, Op, Region, Ring, Scatter, TokioUringRing, UringConfig};
use tokio_uring::buf::{IoBuf, IoBufMut};

/// Real sockets.
struct Loopback {
    peers: TcpPeers,
    files: ScratchFiles,
    register: bool,
}

impl Venue for Loopback {
    type Ring = TokioUringRing;

    fn ring(&mut self, entries: u32, arena: &Arena) -> TokioUringRing {
        let register = self.register.then(|| arena.clone());
        TokioUringRing::new(&UringConfig { entries, sockets: 64, register }).expect("io_uring on the testing machine")
    }

    fn peer(&mut self, script: Script) -> SocketAddr {
        self.peers.listen(script)
    }

    fn nobody(&mut self) -> SocketAddr {
        TcpPeers::nobody()
    }

    fn file(&mut self) -> PathBuf {
        self.files.path()
    }

    fn rest(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

fn passes(register: bool) {
    for (name, check) in suite::<Loopback>() {
        let mut venue = Loopback { peers: TcpPeers::default(), files: ScratchFiles::default(), register };
        check(&mut venue).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    }
}

#[test]
fn tokio_uring_passes() {
    passes(false);
}

#[test]
fn tokio_uring_passes_with_registered_memory() {
    passes(true);
}

/// Longest that bytes on the loopback interface may take on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection: our end and the peer's.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

/// A buffer whose drop stands for freeing it: from then on its memory may be anybody's. In truth it lives for ever, so
/// that looking at it, and the kernel's writing to it, are harmless.
struct Lent {
    memory: &'static [AtomicU8; 16],
    peer: TcpStream,
    written_after_drop: &'static AtomicBool,
}

// SAFETY: the memory lives for ever and does not move.
unsafe impl IoBuf for Lent {
    fn stable_ptr(&self) -> *const u8 {
        self.memory.as_ptr().cast()
    }

    fn bytes_init(&self) -> usize {
        0
    }

    fn bytes_total(&self) -> usize {
        self.memory.len()
    }
}

// SAFETY: as above; every byte may be written through a shared reference.
unsafe impl IoBufMut for Lent {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr().cast_mut().cast()
    }

    unsafe fn set_init(&mut self, _len: usize) {}
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.peer.write_all(b"after being freed").unwrap();
        let deadline = std::time::Instant::now() + PATIENCE;
        while std::time::Instant::now() < deadline && !self.written_after_drop.load(Ordering::Relaxed) {
            // Completion work runs when the thread comes back from a system call.
            std::thread::sleep(Duration::from_millis(1));
            let written = self.memory.iter().any(|byte| byte.load(Ordering::Relaxed) != 0);
            self.written_after_drop.store(written, Ordering::Relaxed);
        }
    }
}

/// The fault we guard against: dropped with a read in flight, the runtime drops the buffer first and asks the kernel to let
/// go of it afterwards. When this fails, upstream has repaired it, and the guard may go. Its test is beside the ring.
#[test]
fn the_runtime_by_itself_frees_memory_the_kernel_still_writes_to() {
    let (ours, peer) = pair();
    let memory: &'static [AtomicU8; 16] = Box::leak(Box::new([const { AtomicU8::new(0) }; 16]));
    let written_after_drop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let runtime = tokio_uring::Runtime::new(&tokio_uring::builder()).unwrap();
    let stream = runtime.block_on(async {
        // SAFETY: the descriptor is given up by `ours` and owned by the stream alone.
        let stream = unsafe { tokio_uring::net::TcpStream::from_raw_fd(ours.into_raw_fd()) };
        let mut read = Box::pin(stream.read(Lent { memory, peer, written_after_drop }));
        let begun = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending())).await;
        assert!(begun, "nothing was sent, so nothing can have been read");
        drop(read);
        tokio::task::yield_now().await;
        stream
    });
    assert!(!written_after_drop.load(Ordering::Relaxed), "a read given up keeps its buffer while the runtime lives");
    drop(runtime);
    drop(stream);
    assert!(written_after_drop.load(Ordering::Relaxed), "tokio-uring frees no memory under the kernel any more");
}

fn memory() -> (Arena, Region) {
    let config = ArenaConfig { bytes: 1 << 20, regions: 1, huge_pages: HugePages::Off, ..ArenaConfig::default() };
    let (arena, mut regions) = Arena::new(&config).unwrap();
    (arena, regions.pop().unwrap())
}

fn next(ring: &mut TokioUringRing) -> Done {
    loop {
        if let Some(done) = ring.pop() {
            return done;
        }
        ring.wait(Some(ring.now().after(PATIENCE))).unwrap();
    }
}

#[test]
fn a_forked_child_is_refused_and_does_not_disturb_the_parent() {
    let (_arena, mut region) = memory();
    let mut peers = TcpPeers::default();
    let mut ring = TokioUringRing::new(&UringConfig::default()).unwrap();
    let addr = peers.listen(Script::Echo);
    let sock = ring.socket(&addr).unwrap();
    ring.push(Op::Connect { sock, addr }, 0).unwrap();
    assert_eq!(next(&mut ring).result, Ok(0));
    let mut into = Scatter::new(region.alloc(64).unwrap());
    into.push_body(region.alloc(100).unwrap().fill().carve(100).unwrap(), 100).unwrap();
    ring.push(Op::Recv { sock, into }, 5).unwrap();
    ring.wait(Some(ring.now())).unwrap();
    // SAFETY: the child touches only its own copy of this ring, allocates (glibc makes that safe after fork), and leaves
    // by `_exit` without running anything of the parent's.
    let status = unsafe {
        match libc::fork() {
            0 => {
                let refused = matches!(ring.wait(None), Err(error) if error.kind() == Kind::Environment);
                drop(ring);
                libc::_exit(if refused { 42 } else { 1 });
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                libc::WEXITSTATUS(status)
            }
        }
    };
    assert_eq!(status, 42, "the child's ring must refuse to work");
    ring.push(Op::Send { sock, bytes: b"still here".to_vec(), from: 0 }, 6).unwrap();
    let results: Vec<_> = (0..2).map(|_| next(&mut ring)).map(|done| (done.token, done.result)).collect();
    assert!(results.contains(&(5, Ok(10))) && results.contains(&(6, Ok(10))), "{results:?}");
}
