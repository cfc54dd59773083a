//! Checks of life and death: cancelling, closing, running full, stale names, and dropping a ring at work.

use std::collections::BTreeSet;

use fuelrail_base::Duration;
use fuelrail_base::prng::Prng;

use super::stage::{Stage, all_home, received};
use super::venue::{Script, Venue, recital};
use crate::ring::{Full, Op, Ring};

/// Receives are cancelled at random moments while bytes come in: each comes back exactly once, and the bytes of all of
/// them together are the message.
pub(super) fn cancel_races_lose_nothing<V: Venue>(stage: &mut Stage<'_, V>) {
    const ROUNDS: usize = 300;
    /// A peer that gets no core for a while answers after every cancellation: then it takes more rounds to see a race.
    const ROUNDS_MAX: usize = 20 * ROUNDS;
    let sock = stage.connect(Script::Echo);
    let mut prng = Prng::new(5);
    let (mut sent, mut got) = (0usize, Vec::new());
    let mut cancelled = 0;
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS && cancelled > 0 && !got.is_empty() {
            break;
        }
        let into = stage.one_window(64).0;
        let (token, id) = stage.push(Op::Recv { sock, into });
        let mut pending = BTreeSet::from([token]);
        if prng.chance(0.6) {
            let n = 1 + prng.below(40) as usize;
            let bytes = (sent..sent + n).map(|i| recital(9, i)).collect();
            pending.insert(stage.push(Op::Send { sock, bytes, from: 0 }).0);
        }
        let before_cancel = prng.below(3);
        for _ in 0..before_cancel {
            let until = stage.ring.now().after(Duration::from_micros(prng.below(200)));
            stage.ring.wait(Some(until)).unwrap();
            stage.venue.pass();
        }
        stage.ring.cancel(id);
        if prng.chance(0.3) {
            stage.ring.cancel(id);
        }
        while !pending.is_empty() {
            let done = stage.next();
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
        let bytes = stage.receive(sock, 4096).unwrap();
        assert!(!bytes.is_empty(), "the stream ended {} bytes early", sent - got.len());
        got.extend(bytes);
    }
    assert!(got.len() == sent, "{} bytes sent, {} received", sent, got.len());
    assert!(got.iter().enumerate().all(|(i, b)| *b == recital(9, i)), "bytes were lost, repeated or moved");
    stage.ring.close(sock);
}

pub(super) fn close_with_operations_in_flight<V: Venue>(stage: &mut Stage<'_, V>) {
    for turns in 0..4 {
        let sock = stage.connect(Script::Silent);
        let mut pending = BTreeSet::new();
        let mut fillings = Vec::new();
        for _ in 0..3 {
            let (into, filling) = stage.one_window(1_000);
            pending.insert(stage.push(Op::Recv { sock, into }).0);
            fillings.push(filling);
        }
        for _ in 0..turns {
            stage.turn();
        }
        stage.ring.close(sock);
        stage.ring.close(sock);
        let into = stage.one_window(10).0;
        let (refused, _) = stage.push(Op::Recv { sock, into });
        pending.insert(refused);
        while !pending.is_empty() {
            let done = stage.next();
            let expected = if done.token == refused { libc::EBADF } else { libc::ECANCELED };
            assert!(done.result == Err(expected), "after close: {:?}, not {expected}", done.result);
            assert!(pending.remove(&done.token), "token {} came back twice", done.token);
        }
        assert!(fillings.into_iter().all(|filling| filling.seal().is_ok()), "windows did not come back");
    }
}

pub(super) fn a_full_ring_gives_the_operation_back<V: Venue>(stage: &mut Stage<'_, V>) {
    const ENTRIES: u32 = 4;
    let sock = stage.connect(Script::Silent);
    let mut ids = Vec::new();
    for _ in 0..ENTRIES {
        let into = stage.one_window(100).0;
        ids.push(stage.push(Op::Recv { sock, into }).1);
    }
    let (into, filling) = stage.one_window(77);
    match stage.ring.push(Op::Recv { sock, into }, 999) {
        Err(Full(Op::Recv { into, .. })) => {
            assert!(into.asked() == 77 && into.pieces() == 1, "the operation came back changed: {into:?}");
        }
        other => panic!("a full ring took an operation: {other:?}"),
    }
    assert!(filling.seal().is_ok(), "a refused operation keeps its window");
    assert!(stage.ring.in_flight() == ENTRIES as usize, "{} in flight", stage.ring.in_flight());
    stage.ring.cancel(ids[1]);
    let done = stage.next();
    assert!(done.result == Err(libc::ECANCELED), "{:?}", done.result);
    drop(done);
    let into = stage.one_window(77).0;
    stage.push(Op::Recv { sock, into });
    stage.ring.close(sock);
    for _ in 0..ENTRIES {
        let done = stage.next();
        assert!(done.result == Err(libc::ECANCELED), "{:?}", done.result);
    }
    assert!(stage.ring.facts().counts.full == 1, "full counted {} times", stage.ring.facts().counts.full);
}

pub(super) fn stale_names_are_refused<V: Venue>(stage: &mut Stage<'_, V>) {
    let addr = stage.venue.peer(Script::Silent);
    let stale = stage.ring.socket(&addr).unwrap();
    stage.ring.close(stale);
    let (_, old) = stage.push(Op::Connect { sock: stale, addr });
    let done = stage.next();
    assert!(done.result == Err(libc::EBADF), "connect on a closed socket: {:?}", done.result);
    // The new socket and the new operation take the places of the old ones; the old names must not reach them.
    let sock = stage.connect(Script::Silent);
    assert!(sock != stale, "a socket's name was used twice");
    let into = stage.one_window(10).0;
    let (_, id) = stage.push(Op::Recv { sock, into });
    assert!(id != old, "an operation's name was used twice");
    stage.ring.cancel(old);
    stage.ring.close(stale);
    for _ in 0..5 {
        stage.turn();
        assert!(stage.ring.pop().is_none(), "a stale name cancelled a new operation");
    }
    stage.ring.cancel(id);
    let done = stage.next();
    assert!(done.result == Err(libc::ECANCELED), "{:?}", done.result);
    drop(done);
    stage.ring.close(sock);
}

pub(super) fn sockets_run_out_and_come_back<V: Venue>(stage: &mut Stage<'_, V>) {
    let addr = stage.venue.peer(Script::Silent);
    for _ in 0..2 {
        let mut socks = Vec::new();
        let error = loop {
            match stage.ring.socket(&addr) {
                Ok(sock) => socks.push(sock),
                Err(error) => break error,
            }
            assert!(socks.len() <= 1 << 15, "sockets never run out");
        };
        assert!(error.kind() == fuelrail_base::Kind::Budget, "{error}");
        for sock in socks {
            stage.ring.close(sock);
        }
    }
}

/// The ring is dropped while a receive waits; bytes that come later must not reach its memory.
pub(super) fn dropped_in_flight_memory_is_left_alone<V: Venue>(venue: &mut V) {
    let pause = Duration::from_millis(60);
    let mut stage = Stage::new(venue, 16);
    let sock = stage.connect(Script::Recite { seed: 1, len: 4096, chunk: 4096, pause });
    let (into, filling) = stage.one_window(4096);
    stage.push(Op::Recv { sock, into });
    stage.push(Op::Send { sock, bytes: b"go".to_vec(), from: 0 });
    stage.look();
    drop(stage.ring);
    // The window is back: this is the only way to the bytes now.
    let mut slot = filling.seal().expect("the dropped ring kept the window");
    slot[..].fill(0xEE);
    stage.venue.rest(pause * 4);
    assert!(slot.iter().all(|b| *b == 0xEE), "the memory was written after the ring was gone");
    drop(slot);
    all_home(&mut stage.region);
}

/// A ring dropped with every kind of operation in every state gives all memory back.
pub(super) fn dropped_busy_everything_comes_home<V: Venue>(venue: &mut V) {
    let mut stage = Stage::new(venue, 64);
    let scripts =
        [Script::Silent, Script::Echo, Script::Recite { seed: 2, len: 9_000, chunk: 100, pause: Duration::ZERO }];
    let mut socks = Vec::new();
    for script in scripts.into_iter().cycle().take(9) {
        socks.push(stage.connect(script));
    }
    let mut fillings = Vec::new();
    for sock in socks {
        let (into, filling) = stage.one_window(5_000);
        fillings.push(filling);
        stage.push(Op::Recv { sock, into });
        stage.push(Op::Send { sock, bytes: vec![1; 3_000], from: 0 });
    }
    stage.turn();
    let addr = stage.venue.peer(Script::Silent);
    let unsubmitted = stage.ring.socket(&addr).unwrap();
    stage.push(Op::Connect { sock: unsubmitted, addr });
    drop(stage.ring);
    assert!(fillings.iter().all(|filling| filling.windows_out() == 0), "the dropped ring kept windows");
    drop(fillings);
    all_home(&mut stage.region);
}
