//! What only a real kernel can show: no allocation and one system call per iteration, forks, and the limits of memory, files and threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::fork::fork_at_work;
use crate::skip::skip_or_fail;
use crate::steps::{connect, memory, next};
use fuelrail_base::{Duration, Kind};
use fuelrail_io::conformance::{ScratchFiles, Script, TcpPeers, in_fork};
use fuelrail_io::{FileOptions, Landed, Op, Opening, PollRing, Ring, Scatter, SockId, UringConfig, UringRing, Window};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: hands every request on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more; nobody looks at it then.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise about `layout` is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above with this layout, that is from the system allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One echo with a head and a body piece; gives back what it was given, ready for the next.
fn round(
    ring: &mut impl Ring,
    sock: SockId,
    bytes: Vec<u8>,
    mut window: Window,
    mut into: Scatter,
) -> (Vec<u8>, Window, Scatter) {
    let (len, mut left, mut message) = (bytes.len(), bytes.len(), None);
    window.rewind(0);
    ring.push(Op::Send { sock, bytes, from: 0 }, 1).unwrap();
    while left > 0 || message.is_none() {
        assert!(into.push_head(10.min(left.max(1))));
        into.push_body(window, len).unwrap();
        ring.push(Op::Recv { sock, into }, 2).unwrap();
        (into, window) = loop {
            let done = next(ring);
            let n = done.result.unwrap();
            match done.op {
                Op::Send { bytes, from, .. } if from + n < len => {
                    ring.push(Op::Send { sock, bytes, from: from + n }, 1).unwrap();
                }
                Op::Send { bytes, .. } => message = Some(bytes),
                Op::Recv { mut into, .. } => {
                    left -= n;
                    let last = into.landed().last();
                    let Some(Landed::Body { window, .. }) = last else { panic!("the body is the last piece") };
                    break (into, window);
                }
                other => panic!("{other:?}"),
            }
        };
        while left == 0 && message.is_none() {
            if let Op::Send { bytes, .. } = next(ring).op {
                message = Some(bytes);
            }
        }
    }
    (message.unwrap(), window, into)
}

#[test]
fn the_hot_loop_allocates_nothing_and_enters_once_a_turn() {
    let (ops, enters) = hot_loop(UringRing::new(&UringConfig::default()).unwrap());
    assert!(ops >= 4_000 && enters <= ops, "{enters} system calls for {ops} operations");
}

/// Each operation is a call of its own, and each answer is waited for: three calls for two operations, and a few for
/// answers that come in pieces.
#[test]
fn the_hot_loop_of_poll_allocates_nothing_and_tries_nothing_in_vain() {
    let (ops, enters) = hot_loop(PollRing::new(&UringConfig::default()).unwrap());
    assert!(ops >= 4_000 && enters <= 2 * ops, "{enters} system calls for {ops} operations");
}

/// Thousands of echoes after a warm-up: operations and system calls.
fn hot_loop(mut ring: impl Ring) -> (u64, u64) {
    let (_arena, mut region) = memory(1 << 20);
    let mut peers = TcpPeers;
    let sock = connect(&mut ring, &mut peers, Script::Echo);
    let mut window = region.alloc(1_000).unwrap().fill().carve(1_000).unwrap();
    let mut into = Scatter::new(region.alloc(64).unwrap());
    let mut bytes = vec![7u8; 1_000];
    for _ in 0..50 {
        (bytes, window, into) = round(&mut ring, sock, bytes, window, into);
    }
    let (allocations, counts) = (ALLOCATIONS.get(), ring.facts().counts);
    let allocations_of_facts = ALLOCATIONS.get() - allocations;
    for _ in 0..2_000 {
        (bytes, window, into) = round(&mut ring, sock, bytes, window, into);
        // Slots come and go in the hot loop, too.
        drop((region.alloc(300), region.alloc(5_000)));
    }
    let after = ALLOCATIONS.get();
    assert_eq!(after - allocations - allocations_of_facts, 0, "heap allocations in the hot loop");
    let (ops, enters) = (ring.facts().counts.ops - counts.ops, ring.facts().counts.enters - counts.enters);
    drop((bytes, window, into));
    ring.close(sock);
    (ops, enters)
}

#[test]
fn a_forked_child_is_refused_and_does_not_disturb_the_parent() {
    fork_at_work(UringRing::new(&UringConfig::default()).unwrap());
}

#[test]
fn a_forked_child_of_poll_is_refused_and_does_not_disturb_the_parent() {
    let mut files = ScratchFiles::default();
    let mut ring = PollRing::new(&UringConfig::default()).unwrap();
    // With a file open there are threads, which the child does not have.
    ring.open(&files.path(), &FileOptions { write: true, create: true, ..FileOptions::default() }).unwrap();
    fork_at_work(ring);
}

/// Without privileges, registering more than the locked-memory limit is refused aloud and receives work all the same.
#[test]
fn the_locked_memory_limit_is_reported_and_survived() {
    std::thread::spawn(|| {
        let (arena, mut region) = memory(64 << 20);
        let mut peers = TcpPeers;
        // SAFETY: the raw call changes the identity of this thread only; fails harmlessly when it has no right to.
        unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
        let limit = fuelrail_io::probe().memlock_bytes;
        let mut ring = UringRing::new(&UringConfig { register: Some(arena), ..UringConfig::default() }).unwrap();
        let facts = ring.facts();
        match limit {
            Some(limit) if limit < 64 << 20 => {
                assert!(facts.refusals.iter().any(|why| why.contains("locked-memory limit")), "{facts:?}");
            }
            _ => assert!(facts.abilities.contains(&"registered memory"), "{facts:?}"),
        }
        let sock = connect(&mut ring, &mut peers, Script::Echo);
        let window = region.alloc(100).unwrap().fill().carve(100).unwrap();
        let into = Scatter::new(region.alloc(64).unwrap());
        let (_, window, _) = round(&mut ring, sock, vec![9; 90], window, into);
        assert_eq!(window.bytes().last(), Some(&9));
    })
    .join()
    .unwrap();
}

/// The kernel takes no larger table of files than the process may have open.
#[test]
fn a_table_of_files_beyond_the_limit_of_open_files_is_refused_with_what_to_do() {
    let registers = |ring: &UringRing| ring.facts().abilities.contains(&"registered files");
    if !registers(&UringRing::new(&UringConfig { sockets: 16, ..UringConfig::default() }).unwrap()) {
        return skip_or_fail("registered files", "the kernel has none");
    }
    let code = in_fork(Duration::from_secs(60), || {
        setrlimit(Resource::Nofile, Rlimit { current: Some(1024), ..getrlimit(Resource::Nofile) }).unwrap();
        let ring = UringRing::new(&UringConfig { sockets: 1024, ..UringConfig::default() }).unwrap();
        let cure = "raise the limit of open files (ulimit -n) to 1536";
        let is_said = ring.facts().refusals.iter().any(|why| why.contains(cure));
        i32::from(!is_said || registers(&ring))
    });
    assert_eq!(code, Some(0), "the refusal names the limit of open files");
}

/// Of the threads that work on files one is enough. Without any, an opening fails instead of waiting for one.
#[test]
fn without_threads_for_files_an_opening_fails() {
    // What root starts is not limited.
    let other = Uid::from_raw(50_000 + std::process::id() % 15_000);
    let opened = |threads: u64| {
        in_fork(Duration::from_secs(60), || {
            if set_thread_res_uid(other, other, other).is_err() {
                return 77;
            }
            setrlimit(Resource::Nproc, Rlimit { current: Some(threads), maximum: Some(threads) }).unwrap();
            let mut ring = PollRing::new(&UringConfig::default()).unwrap();
            ring.push(Op::Open(Opening::new("/dev/null").unwrap()), 1).unwrap();
            next(&mut ring).result.map_or_else(|errno| errno, |_| 0)
        })
    };
    let none = opened(1);
    if none == Some(77) {
        return skip_or_fail("root", "another user's threads are to be limited");
    }
    assert_eq!((none, opened(2)), (Some(libc::EAGAIN), Some(0)));
}

#[test]
fn wrong_configurations_are_refused() {
    for (entries, sockets) in [(0, 1), (1, 0), (1 << 20, 1), (1, 1 << 20)] {
        let Err(error) = UringRing::new(&UringConfig { entries, sockets, ..UringConfig::default() }) else {
            panic!("{entries} operations and {sockets} sockets were accepted");
        };
        assert_eq!(error.kind(), Kind::Usage, "{error}");
    }
}
