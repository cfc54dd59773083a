//! Checks of life and death: sleeping and waking, cancelling, closing, running full, stale names, and dropping a ring at work; and a
//! forked child that does something and tells how it went.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use fuelrail_base::Duration;
use fuelrail_base::prng::Prng;

use super::fixture::{Fixture, Harness, PATIENCE, Script, all_returned, pattern, received};
use crate::channel::channel;
use crate::ring::{Full, Op, Ring};

/// Receives are cancelled at random moments while bytes come in: each comes back exactly once, and the bytes of all of
/// them together are the message.
pub(super) fn cancel_races_lose_nothing<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const ROUNDS: usize = 300;
    /// A peer that gets no core for a while answers after every cancellation: then it takes more rounds to see a race.
    const ROUNDS_MAX: usize = 20 * ROUNDS;
    let sock = fixture.connect(Script::Echo);
    let mut prng = Prng::new(5);
    let (mut sent, mut got) = (0usize, Vec::new());
    let mut cancelled = 0;
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS && cancelled > 0 && !got.is_empty() {
            break;
        }
        let into = fixture.one_window(64).0;
        let (token, id) = fixture.push(Op::Recv { sock, into });
        let mut pending = BTreeSet::from([token]);
        if prng.chance(0.6) {
            let n = 1 + prng.below(40) as usize;
            let bytes = (sent..sent + n).map(|i| pattern(9, i)).collect();
            pending.insert(fixture.push(Op::Send { sock, bytes, from: 0 }).0);
        }
        let before_cancel = prng.below(3);
        for _ in 0..before_cancel {
            let until = fixture.ring.now().after(Duration::from_micros(prng.below(200)));
            fixture.ring.wait(Some(until)).unwrap();
            fixture.harness.pass();
        }
        fixture.ring.cancel(id);
        if prng.chance(0.3) {
            fixture.ring.cancel(id);
        }
        while !pending.is_empty() {
            let done = fixture.next();
            assert!(pending.remove(&done.token), "token {} came back twice in round {round}", done.token);
            match (&done.op, done.result) {
                (Op::Send { bytes, .. }, Ok(n)) if n > 0 && n <= bytes.len() => sent += n,
                (Op::Recv { .. }, _) => match received(done) {
                    Ok(bytes) => got.extend(bytes),
                    Err(libc::ECANCELED) => cancelled += 1,
                    Err(errno) => panic!("error {errno} instead of ECANCELED"),
                },
                (op, result) => panic!("{op:?}: {result:?}"),
            }
        }
    }
    assert!(cancelled > 0 && !got.is_empty(), "no race: {cancelled} cancelled, {} bytes", got.len());
    while got.len() < sent {
        let bytes = fixture.receive(sock, 4096).unwrap();
        assert!(!bytes.is_empty(), "the stream ended {} bytes early", sent - got.len());
        got.extend(bytes);
    }
    assert!(got.len() == sent, "{} bytes sent, {} received", sent, got.len());
    assert!(got.iter().enumerate().all(|(i, b)| *b == pattern(9, i)), "bytes were lost, repeated or moved");
    fixture.ring.close(sock);
}

/// A receive that waits for many bytes is cancelled. The next one waits for any, whether it was pushed before that or after.
pub(super) fn patience_ends_with_its_receive<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const MARK: usize = 128 << 10;
    const LEN: usize = 10_000;
    let sock = fixture.connect(Script::Echo);
    for behind in [true, false] {
        let mut into = fixture.one_window(MARK).0;
        into.be_patient(MARK);
        let (token, patient) = fixture.push(Op::Recv { sock, into });
        let into = fixture.one_window(LEN).0;
        let mut next = Some(Op::Recv { sock, into });
        if behind && let Some(op) = next.take() {
            fixture.push(op);
        }
        fixture.step();
        fixture.ring.cancel(patient);
        let done = fixture.next();
        assert!(done.token == token && done.result == Err(libc::ECANCELED), "{}: {:?}", done.token, done.result);
        drop(done);
        if let Some(op) = next {
            fixture.push(op);
        }
        fixture.push(Op::Send { sock, bytes: vec![7; LEN], from: 0 });
        let (mut sent, mut got) = (0, 0);
        while sent < LEN || got < LEN {
            let done = fixture.next();
            match (done.op, done.result) {
                (Op::Send { bytes, .. }, Ok(n)) => {
                    sent += n;
                    if sent < LEN {
                        fixture.push(Op::Send { sock, bytes, from: sent });
                    }
                }
                (Op::Recv { .. }, Ok(n)) => {
                    got += n;
                    if got < LEN {
                        let into = fixture.one_window(LEN - got).0;
                        fixture.push(Op::Recv { sock, into });
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    fixture.ring.close(sock);
}

pub(super) fn close_with_operations_in_flight<V: Harness>(fixture: &mut Fixture<'_, V>) {
    for iterations in 0..4 {
        let sock = fixture.connect(Script::Silent);
        let mut pending = BTreeSet::new();
        let mut fillings = Vec::new();
        for _ in 0..3 {
            let (into, filling) = fixture.one_window(1_000);
            pending.insert(fixture.push(Op::Recv { sock, into }).0);
            fillings.push(filling);
        }
        for _ in 0..iterations {
            fixture.step();
        }
        fixture.ring.close(sock);
        fixture.ring.close(sock);
        let into = fixture.one_window(10).0;
        let (refused, _) = fixture.push(Op::Recv { sock, into });
        pending.insert(refused);
        while !pending.is_empty() {
            let done = fixture.next();
            let expected = if done.token == refused { libc::EBADF } else { libc::ECANCELED };
            assert!(done.result == Err(expected), "after close: {:?}, not {expected}", done.result);
            assert!(pending.remove(&done.token), "token {} came back twice", done.token);
        }
        assert!(fillings.into_iter().all(|filling| filling.seal().is_ok()), "windows did not come back");
    }
}

pub(super) fn a_full_ring_gives_the_operation_back<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const ENTRIES: u32 = 4;
    let sock = fixture.connect(Script::Silent);
    let mut ids = Vec::new();
    for _ in 0..ENTRIES {
        let into = fixture.one_window(100).0;
        ids.push(fixture.push(Op::Recv { sock, into }).1);
    }
    let (into, filling) = fixture.one_window(77);
    match fixture.ring.push(Op::Recv { sock, into }, 999) {
        Err(Full(Op::Recv { into, .. })) => {
            assert!(into.asked() == 77 && into.pieces() == 1, "the operation came back changed: {into:?}");
        }
        other => panic!("a full ring took an operation: {other:?}"),
    }
    assert!(filling.seal().is_ok(), "a refused operation keeps its window");
    assert!(fixture.ring.in_flight() == ENTRIES as usize, "{} in flight", fixture.ring.in_flight());
    fixture.ring.cancel(ids[1]);
    let done = fixture.next();
    assert!(done.result == Err(libc::ECANCELED), "{:?}", done.result);
    drop(done);
    let into = fixture.one_window(77).0;
    fixture.push(Op::Recv { sock, into });
    fixture.ring.close(sock);
    for _ in 0..ENTRIES {
        let done = fixture.next();
        assert!(done.result == Err(libc::ECANCELED), "{:?}", done.result);
    }
}

pub(super) fn stale_names_are_refused<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let addr = fixture.harness.peer(Script::Silent);
    let stale = fixture.ring.socket(&addr).unwrap();
    fixture.ring.close(stale);
    let (_, old) = fixture.push(Op::Connect { sock: stale, addr });
    let done = fixture.next();
    assert!(done.result == Err(libc::EBADF), "connect on a closed socket: {:?}", done.result);
    // The new socket and the new operation take the places of the old ones; the old names must not reach them.
    let sock = fixture.connect(Script::Silent);
    assert!(sock != stale, "a socket's name was used twice");
    let into = fixture.one_window(10).0;
    let (_, id) = fixture.push(Op::Recv { sock, into });
    assert!(id != old, "an operation's name was used twice");
    fixture.ring.cancel(old);
    fixture.ring.close(stale);
    for _ in 0..5 {
        fixture.step();
        assert!(fixture.ring.pop().is_none(), "a stale name cancelled a new operation");
    }
    fixture.ring.cancel(id);
    let done = fixture.next();
    assert!(done.result == Err(libc::ECANCELED), "{:?}", done.result);
    drop(done);
    fixture.ring.close(sock);
}

pub(super) fn sockets_run_out_and_come_back<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let addr = fixture.harness.peer(Script::Silent);
    for _ in 0..2 {
        let mut socks = Vec::new();
        let error = loop {
            match fixture.ring.socket(&addr) {
                Ok(sock) => socks.push(sock),
                Err(error) => break error,
            }
            assert!(socks.len() <= 1 << 15, "sockets never run out");
        };
        assert!(error.kind() == fuelrail_base::Kind::Budget, "{error}");
        for sock in socks {
            fixture.ring.close(sock);
        }
    }
}

/// The ring is dropped while a receive waits; bytes that come later must not reach its memory.
pub(super) fn dropped_in_flight_memory_is_left_alone<V: Harness>(harness: &mut V) {
    let pause = Duration::from_millis(60);
    let mut fixture = Fixture::new(harness, 16);
    let sock = fixture.connect(Script::Pattern { seed: 1, len: 4096, chunk: 4096, pause });
    let (into, filling) = fixture.one_window(4096);
    fixture.push(Op::Recv { sock, into });
    fixture.push(Op::Send { sock, bytes: b"go".to_vec(), from: 0 });
    fixture.look();
    drop(fixture.ring);
    // The window is back: this is the only way to the bytes now.
    let mut slot = filling.seal().expect("the dropped ring kept the window");
    slot[..].fill(0xEE);
    fixture.harness.rest(pause * 4);
    assert!(slot.iter().all(|b| *b == 0xEE), "the memory was written after the ring was gone");
    drop(slot);
    all_returned(&mut fixture.region);
}

/// A ring dropped with every kind of operation in every state gives all memory back.
pub(super) fn dropped_busy_everything_is_returned<V: Harness>(harness: &mut V) {
    let mut fixture = Fixture::new(harness, 64);
    let scripts =
        [Script::Silent, Script::Echo, Script::Pattern { seed: 2, len: 9_000, chunk: 100, pause: Duration::ZERO }];
    let mut socks = Vec::new();
    for script in scripts.into_iter().cycle().take(9) {
        socks.push(fixture.connect(script));
    }
    let mut fillings = Vec::new();
    for sock in socks {
        let (into, filling) = fixture.one_window(5_000);
        fillings.push(filling);
        fixture.push(Op::Recv { sock, into });
        fixture.push(Op::Send { sock, bytes: vec![1; 3_000], from: 0 });
    }
    fixture.step();
    let addr = fixture.harness.peer(Script::Silent);
    let unsubmitted = fixture.ring.socket(&addr).unwrap();
    fixture.push(Op::Connect { sock: unsubmitted, addr });
    drop(fixture.ring);
    assert!(fillings.iter().all(|filling| filling.windows_out() == 0), "the dropped ring kept windows");
    drop(fillings);
    all_returned(&mut fixture.region);
}

/// Does the work in a forked child, which exits with what it returns: that code, or `None` when the child was killed because
/// it had not ended in time.
///
/// For tests only. Of several threads the child has but this one, so a lock that another one holds stays held there.
///
/// # Panics
/// When the process may have no child.
pub fn in_fork(limit: Duration, work: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child works on its own copy of all memory, in which glibc keeps the allocator usable over a fork, and leaves
    // by `_exit`, so that nothing of the parent's runs there.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(101);
        // SAFETY: ends the child, which shares no memory with another process.
        unsafe { libc::_exit(code) };
    }
    let deadline = Instant::now() + limit;
    let mut status = 0;
    loop {
        // SAFETY: the status lives during the call.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if Instant::now() >= deadline {
            // SAFETY: our child, not waited for yet, so its number is still its own; the status lives during the call.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &raw mut status, 0);
            }
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn a_wait_ends_in_time<V: Harness>(fixture: &mut Fixture<'_, V>) {
    // Over at once, with nothing to do, in the past and now.
    for until in [fixture.ring.now(), fuelrail_base::Instant::ZERO] {
        fixture.ring.wait(Some(until)).unwrap();
    }
    let sock = fixture.connect(Script::Silent);
    let into = fixture.one_window(10).0;
    fixture.push(Op::Recv { sock, into });
    let until = fixture.ring.now().after(Duration::from_millis(30));
    let mut iterations = 0;
    while fixture.ring.now() < until {
        fixture.ring.wait(Some(until)).unwrap();
        fixture.harness.pass();
        assert!(fixture.ring.pop().is_none(), "a completion out of nothing");
        iterations += 1;
        assert!(iterations < 100, "waiting does not wait");
    }
    fixture.ring.close(sock);
    fixture.next();
}

pub(super) fn a_wake_ends_a_wait<V: Harness>(fixture: &mut Fixture<'_, V>) {
    for pause in [Duration::ZERO, Duration::from_millis(10), Duration::from_millis(10)] {
        let waker = fixture.ring.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(pause);
            waker.wake();
        });
        let until = fixture.ring.now().after(PATIENCE);
        fixture.ring.wait(Some(until)).unwrap();
        assert!(fixture.ring.now() < until, "a wake did not end the wait");
        thread.join().expect("the waking thread panicked");
    }
}

/// Another thread sends items one by one; the ring sleeps whenever its channel is empty. A lost wake-up ends in patience.
pub(super) fn no_wake_up_is_lost<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const ITEMS: u32 = 50_000;
    let (mut tx, mut rx) = channel::<u32>(8);
    rx.set_waker(fixture.ring.waker());
    let sender = std::thread::spawn(move || {
        for mut item in 0..ITEMS {
            while let Err(back) = tx.send(item) {
                if tx.is_closed() {
                    return;
                }
                item = back;
                std::thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < ITEMS {
        while let Some(item) = rx.recv() {
            assert!(item == expected, "item {item} instead of {expected}");
            expected += 1;
        }
        if expected < ITEMS && !rx.is_closed() {
            let until = fixture.ring.now().after(PATIENCE);
            fixture.ring.wait(Some(until)).unwrap();
            assert!(fixture.ring.now() < until, "a wake-up was lost after {expected} items");
        }
    }
    sender.join().expect("the sending thread panicked");
}

/// Echo goes on undisturbed while another thread wakes without pause.
pub(super) fn wakes_do_not_disturb_operations<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let sock = fixture.connect(Script::Echo);
    let waker = fixture.ring.waker();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            waker.wake();
            std::thread::yield_now();
        }
    });
    for round in 0..100u8 {
        fixture.send_all(sock, vec![round; 100]);
        let mut left = 100;
        while left > 0 {
            let bytes = fixture.receive(sock, left).unwrap();
            assert!(!bytes.is_empty() && bytes.iter().all(|b| *b == round), "round {round}: {bytes:?}");
            left -= bytes.len();
        }
    }
    drop(stop);
    thread.join().expect("the waking thread panicked");
    fixture.ring.close(sock);
}
