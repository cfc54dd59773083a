//! The ring on tokio-uring: the one suite, and the fault of the runtime it guards against.
#![cfg(feature = "tokio-uring")]

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Poll;

use crate::fork::fork_at_work;
use crate::loopback::loopback_passes;
use fuelrail_base::Duration;
use fuelrail_io::{TokioUringRing, UringConfig};
use tokio_uring::buf::{IoBuf, IoBufMut};

#[test]
fn tokio_uring_passes() {
    loopback_passes(false, TokioUringRing::new);
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

#[test]
fn a_forked_child_is_refused_and_does_not_disturb_the_parent() {
    fork_at_work(TokioUringRing::new(&UringConfig::default()).unwrap());
}
