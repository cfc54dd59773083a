//! Checks of life and death: cancelling, closing, running full, stale names, and dropping a ring at work.

use std::collections::BTreeSet;

use fuelrail_base::Duration;
use fuelrail_base::prng::Prng;

use super::stage::{Stage, received};
use super::venue::{Check, Script, Venue, Verdict, ensure, recital};
use crate::ring::{Full, Op, Ring};

pub(super) fn checks<V: Venue>() -> Vec<Check<V>> {
    vec![
        ("cancel races lose nothing", cancel_races_lose_nothing),
        ("close with operations in flight", close_with_operations_in_flight),
        ("a full ring gives the operation back", a_full_ring_gives_the_operation_back),
        ("stale names are refused", stale_names_are_refused),
        ("sockets run out and come back", sockets_run_out_and_come_back),
        ("dropped in flight, memory is left alone", dropped_in_flight_memory_is_left_alone),
        ("dropped busy, everything comes home", dropped_busy_everything_comes_home),
    ]
}

/// Receives are cancelled at random moments while bytes come in: each comes back exactly once, and the bytes of all of
/// them together are the message.
fn cancel_races_lose_nothing<V: Venue>(venue: &mut V) -> Verdict {
    const ROUNDS: usize = 300;
    /// A peer that gets no core for a while answers after every cancellation: then it takes more rounds to see a race.
    const ROUNDS_MAX: usize = 20 * ROUNDS;
    let mut stage = Stage::new(venue, 16)?;
    let sock = stage.connect(Script::Echo)?;
    let mut prng = Prng::new(5);
    let (mut sent, mut got) = (0usize, Vec::new());
    let mut cancelled = 0;
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS && cancelled > 0 && !got.is_empty() {
            break;
        }
        let (into, _filling) = stage.one_window(64)?;
        let (token, id) = stage.push(Op::Recv { sock, into })?;
        let mut pending = BTreeSet::from([token]);
        if prng.chance(0.6) {
            let n = 1 + prng.below(40) as usize;
            let bytes = (sent..sent + n).map(|i| recital(9, i)).collect();
            pending.insert(stage.push(Op::Send { sock, bytes, from: 0 })?.0);
        }
        let before_cancel = prng.below(3);
        for _ in 0..before_cancel {
            let until = stage.ring.now().after(Duration::from_micros(prng.below(200)));
            stage.ring.wait(Some(until)).map_err(|error| error.to_string())?;
            stage.venue.pass();
        }
        stage.ring.cancel(id);
        if prng.chance(0.3) {
            stage.ring.cancel(id);
        }
        while !pending.is_empty() {
            let done = stage.next()?;
            ensure!(pending.remove(&done.token), "token {} came back twice in round {round}", done.token);
            match (&done.op, done.result) {
                (Op::Send { bytes, .. }, Ok(n)) if n > 0 && n <= bytes.len() => sent += n,
                (Op::Recv { .. }, _) => match received(done)? {
                    Ok(bytes) => got.extend(bytes),
                    Err(libc::ECANCELED) => cancelled += 1,
                    Err(errno) => return Err(format!("error {errno} instead of ECANCELED")),
                },
                (op, result) => return Err(format!("{op:?}: {result:?}")),
            }
        }
    }
    ensure!(cancelled > 0 && !got.is_empty(), "no race: {cancelled} cancelled, {} bytes", got.len());
    while got.len() < sent {
        let bytes = stage.receive(sock, 4096)?.map_err(|errno| format!("error {errno}"))?;
        ensure!(!bytes.is_empty(), "the stream ended {} bytes early", sent - got.len());
        got.extend(bytes);
    }
    ensure!(got.len() == sent, "{} bytes sent, {} received", sent, got.len());
    ensure!(got.iter().enumerate().all(|(i, b)| *b == recital(9, i)), "bytes were lost, repeated or moved");
    stage.ring.close(sock);
    stage.strike()
}

fn close_with_operations_in_flight<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 16)?;
    for turns in 0..4 {
        let sock = stage.connect(Script::Silent)?;
        let mut pending = BTreeSet::new();
        let mut fillings = Vec::new();
        for _ in 0..3 {
            let (into, filling) = stage.one_window(1_000)?;
            pending.insert(stage.push(Op::Recv { sock, into })?.0);
            fillings.push(filling);
        }
        for _ in 0..turns {
            stage.turn()?;
        }
        stage.ring.close(sock);
        stage.ring.close(sock);
        let (into, late) = stage.one_window(10)?;
        let (refused, _) = stage.push(Op::Recv { sock, into })?;
        pending.insert(refused);
        while !pending.is_empty() {
            let done = stage.next()?;
            let expected = if done.token == refused { libc::EBADF } else { libc::ECANCELED };
            ensure!(done.result == Err(expected), "after close: {:?}, not {expected}", done.result);
            ensure!(pending.remove(&done.token), "token {} came back twice", done.token);
        }
        drop(late);
        ensure!(fillings.into_iter().all(|filling| filling.seal().is_ok()), "windows did not come back");
    }
    stage.strike()
}

fn a_full_ring_gives_the_operation_back<V: Venue>(venue: &mut V) -> Verdict {
    const ENTRIES: u32 = 4;
    let mut stage = Stage::new(venue, ENTRIES)?;
    let sock = stage.connect(Script::Silent)?;
    let mut ids = Vec::new();
    let mut fillings = Vec::new();
    for _ in 0..ENTRIES {
        let (into, filling) = stage.one_window(100)?;
        ids.push(stage.push(Op::Recv { sock, into })?.1);
        fillings.push(filling);
    }
    let (into, filling) = stage.one_window(77)?;
    match stage.ring.push(Op::Recv { sock, into }, 999) {
        Err(Full(Op::Recv { into, .. })) => {
            ensure!(into.asked() == 77 && into.pieces() == 1, "the operation came back changed: {into:?}");
        }
        other => return Err(format!("a full ring took an operation: {other:?}")),
    }
    ensure!(filling.seal().is_ok(), "a refused operation keeps its window");
    ensure!(stage.ring.in_flight() == ENTRIES as usize, "{} in flight", stage.ring.in_flight());
    stage.ring.cancel(ids[1]);
    let done = stage.next()?;
    ensure!(done.result == Err(libc::ECANCELED), "{:?}", done.result);
    drop(done);
    let (into, filling) = stage.one_window(77)?;
    stage.push(Op::Recv { sock, into })?;
    stage.ring.close(sock);
    for _ in 0..ENTRIES {
        let done = stage.next()?;
        ensure!(done.result == Err(libc::ECANCELED), "{:?}", done.result);
    }
    ensure!(stage.ring.facts().counts.full == 1, "full counted {} times", stage.ring.facts().counts.full);
    drop((fillings, filling));
    stage.strike()
}

fn stale_names_are_refused<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 1)?;
    let addr = stage.venue.peer(Script::Silent);
    let stale = stage.ring.socket(&addr).map_err(|error| error.to_string())?;
    stage.ring.close(stale);
    let (_, old) = stage.push(Op::Connect { sock: stale, addr })?;
    let done = stage.next()?;
    ensure!(done.result == Err(libc::EBADF), "connect on a closed socket: {:?}", done.result);
    // The new socket and the new operation take the places of the old ones; the old names must not reach them.
    let sock = stage.connect(Script::Silent)?;
    ensure!(sock != stale, "a socket's name was used twice");
    let (into, filling) = stage.one_window(10)?;
    let (_, id) = stage.push(Op::Recv { sock, into })?;
    ensure!(id != old, "an operation's name was used twice");
    stage.ring.cancel(old);
    stage.ring.close(stale);
    for _ in 0..5 {
        stage.turn()?;
        ensure!(stage.ring.pop().is_none(), "a stale name cancelled a new operation");
    }
    stage.ring.cancel(id);
    let done = stage.next()?;
    ensure!(done.result == Err(libc::ECANCELED), "{:?}", done.result);
    drop((done, filling));
    stage.ring.close(sock);
    stage.strike()
}

fn sockets_run_out_and_come_back<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 16)?;
    let addr = stage.venue.peer(Script::Silent);
    for _ in 0..2 {
        let mut socks = Vec::new();
        let error = loop {
            match stage.ring.socket(&addr) {
                Ok(sock) => socks.push(sock),
                Err(error) => break error,
            }
            ensure!(socks.len() <= 1 << 15, "sockets never run out");
        };
        ensure!(error.kind() == fuelrail_base::Kind::Budget, "{error}");
        for sock in socks {
            stage.ring.close(sock);
        }
    }
    stage.strike()
}

/// The ring is dropped while a receive waits; bytes that come later must not reach its memory.
fn dropped_in_flight_memory_is_left_alone<V: Venue>(venue: &mut V) -> Verdict {
    let pause = Duration::from_millis(60);
    let mut stage = Stage::new(venue, 16)?;
    let sock = stage.connect(Script::Recite { seed: 1, len: 4096, chunk: 4096, pause })?;
    let (into, mut filling) = stage.one_window(4096)?;
    stage.push(Op::Recv { sock, into })?;
    stage.push(Op::Send { sock, bytes: b"go".to_vec(), from: 0 })?;
    stage.ring.wait(Some(stage.ring.now())).map_err(|error| error.to_string())?;
    drop(stage.ring);
    // The window is back: this is the only way to the bytes now.
    filling = match filling.seal() {
        Ok(mut slot) => {
            slot[..].fill(0xEE);
            stage.venue.rest(pause * 4);
            ensure!(slot.iter().all(|b| *b == 0xEE), "the memory was written after the ring was gone");
            slot.fill()
        }
        Err(_) => return Err("the dropped ring kept the window".into()),
    };
    drop(filling);
    stage.region.collect();
    ensure!(stage.region.outstanding() == 0, "{} slots did not come home", stage.region.outstanding());
    Ok(())
}

/// A ring dropped with every kind of operation in every state gives all memory back.
fn dropped_busy_everything_comes_home<V: Venue>(venue: &mut V) -> Verdict {
    let mut stage = Stage::new(venue, 64)?;
    let scripts =
        [Script::Silent, Script::Echo, Script::Recite { seed: 2, len: 9_000, chunk: 100, pause: Duration::ZERO }];
    let mut socks = Vec::new();
    for script in scripts.into_iter().cycle().take(9) {
        socks.push(stage.connect(script)?);
    }
    let mut fillings = Vec::new();
    for sock in socks {
        let (into, filling) = stage.one_window(5_000)?;
        fillings.push(filling);
        stage.push(Op::Recv { sock, into })?;
        stage.push(Op::Send { sock, bytes: vec![1; 3_000], from: 0 })?;
    }
    stage.turn()?;
    let addr = stage.venue.peer(Script::Silent);
    let unsubmitted = stage.ring.socket(&addr).map_err(|error| error.to_string())?;
    stage.push(Op::Connect { sock: unsubmitted, addr })?;
    drop(stage.ring);
    ensure!(fillings.iter().all(|filling| filling.windows_out() == 0), "the dropped ring kept windows");
    drop(fillings);
    stage.region.collect();
    ensure!(stage.arena.outstanding() == 0, "{} slots did not come home", stage.arena.outstanding());
    ensure!(stage.region.free_bytes() == stage.region.capacity(), "the region is not whole again");
    Ok(())
}
