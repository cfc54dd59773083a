//! Checks of moving bytes: all of them, in order, in place, and accounted for.

use fuelrail_base::Duration;
use fuelrail_base::prng::Prng;

use super::fixture::{Fixture, Harness, Script, pattern, received};
use crate::ring::{Op, Ring, SockId};
use crate::scatter::{Landed, Scatter};
use crate::slot::Window;

pub(super) fn connects_and_is_refused<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let good = fixture.connect(Script::Echo);
    let addr = fixture.harness.closed_addr();
    let sock = fixture.ring.socket(&addr).unwrap();
    let done = fixture.run(Op::Connect { sock, addr });
    assert!(done.result == Err(libc::ECONNREFUSED), "connecting without a listener: {:?}", done.result);
    fixture.send_all(good, b"still works".to_vec());
    fixture.ring.close(sock);
    fixture.ring.close(good);
}

/// Sends and receives at the same time, more than any socket buffer holds.
pub(super) fn echo_of_a_large_message<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const LEN: usize = 3 << 20;
    let sock = fixture.connect(Script::Echo);
    let message: Vec<u8> = (0..LEN).map(|i| pattern(7, i)).collect();
    let (mut sent, mut echoed) = (0, Vec::with_capacity(LEN));
    let mut window = fixture.slot(LEN).fill().carve(LEN);
    let mut scratch = Some(fixture.slot(64));
    fixture.push(Op::Send { sock, bytes: message.clone(), from: 0 });
    loop {
        if let (Some(window), Some(scratch)) = (window.take(), scratch.take()) {
            let mut into = Scatter::new(scratch);
            into.push_body(window, 1 << 20).expect("the window has room");
            fixture.push(Op::Recv { sock, into });
        }
        let done = fixture.next();
        let n = done.result.unwrap_or_else(|errno| panic!("error {errno} after {} bytes", echoed.len()));
        match done.op {
            Op::Send { bytes, from, .. } => {
                assert!(from == sent && n > 0 && from + n <= LEN, "send at {from} took {n}");
                sent += n;
                if sent < LEN {
                    fixture.push(Op::Send { sock, bytes, from: sent });
                }
            }
            Op::Recv { into, .. } => {
                let (back, pieces) = into.finish();
                let Some(Landed::Body { window: piece, got, .. }) = pieces.into_iter().next() else {
                    panic!("the body piece did not come back");
                };
                assert!(n == got && n > 0, "{n} reported, {got} accounted for");
                echoed.extend_from_slice(&piece.bytes()[piece.filled() - got..]);
                if echoed.len() == LEN {
                    break;
                }
                (window, scratch) = (Some(piece), Some(back));
            }
            other => panic!("an unexpected operation: {other:?}"),
        }
    }
    assert!(echoed == message, "the echo differs");
    let counts = fixture.ring.facts().counts;
    assert!(counts.received_bytes == LEN as u64, "counters: {counts:?}");
    fixture.ring.close(sock);
}

/// What lies around the pieces, and must stay as it was.
const FENCE: u8 = 0xEE;

/// Where a sequence of bytes was received so far: `lens` pieces, head and body alternately.
struct Target {
    windows: Vec<Window>,
    lens: Vec<usize>,
    heads: Vec<u8>,
}

impl Target {
    /// Receives until `total` bytes are in their places. Every receive offers all unfilled pieces.
    fn fill<V: Harness>(mut self, fixture: &mut Fixture<'_, V>, sock: SockId, total: usize) -> Target {
        let mut filled = vec![0usize; self.lens.len()];
        let mut scratch = fixture.slot(256);
        while filled.iter().sum::<usize>() < total {
            scratch[..].fill(FENCE);
            let mut into = Scatter::new(scratch);
            into.keep(5);
            let mut windows = core::mem::take(&mut self.windows).into_iter();
            let mut offered = Vec::new();
            let mut kept = Vec::new();
            for (i, len) in self.lens.iter().enumerate() {
                let rest = len - filled[i];
                if i % 2 == 0 {
                    if rest > 0 {
                        assert!(into.push_head(rest), "no room for a head of {rest}");
                        offered.push(i);
                    }
                } else if let Some(window) = windows.next() {
                    assert!(window.filled() == filled[i], "a window's cursor moved on its own");
                    match into.push_body(window, rest) {
                        Ok(()) => offered.push(i),
                        Err(window) => kept.push((i, window)),
                    }
                }
            }
            let done = fixture.run(Op::Recv { sock, into });
            let n = done.result.unwrap();
            assert!(n > 0, "the peer finished early");
            let Op::Recv { into, .. } = done.op else { panic!("not a receive") };
            let (back, pieces) = into.finish();
            assert!(back[..5].iter().all(|b| *b == FENCE), "the kept part of the scratch memory was written");
            let mut seen = 0;
            for (i, piece) in offered.into_iter().zip(pieces) {
                let got = match piece {
                    Landed::Head { from, got, asked } => {
                        assert!(back[from + got..from + asked].iter().all(|b| *b == FENCE), "written past `got`");
                        self.heads.extend_from_slice(&back[from..from + got]);
                        got
                    }
                    Landed::Body { window, got, .. } => {
                        kept.push((i, window));
                        got
                    }
                };
                filled[i] += got;
                seen += got;
            }
            assert!(seen == n, "{n} reported, {seen} accounted for");
            kept.sort_by_key(|(i, _)| *i);
            self.windows = kept.into_iter().map(|(_, window)| window).collect();
            scratch = back;
        }
        self
    }
}

/// Head and body alternately, with every length of the first head: each byte goes to its place and nowhere else.
pub(super) fn scatter_at_every_split<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const TOTAL: usize = 97;
    let sock = fixture.connect(Script::Echo);
    for head in 1..64 {
        let lens = vec![head, 17, 3, TOTAL - head - 20];
        let message: Vec<u8> = (0..TOTAL).map(|i| pattern(head as u64, i)).collect();
        let mut slot = fixture.slot(256);
        slot[..].fill(FENCE);
        let mut filling = slot.fill();
        filling.skip(3);
        let first = filling.carve(lens[1]).expect("room for the first window");
        filling.skip(7);
        let second = filling.carve(lens[3]).expect("room for the second window");
        fixture.send_all(sock, message.clone());
        let target = Target { windows: vec![first, second], lens: lens.clone(), heads: Vec::new() };
        let target = target.fill(fixture, sock, TOTAL);
        let (a, b, c) = (head, head + 17, head + 20);
        let heads = [&message[..a], &message[b..c]].concat();
        assert!(target.heads == heads, "heads differ at split {head}");
        assert!(filling.windows_out() == 2, "{} windows out of 2", filling.windows_out());
        drop(target);
        let slot = filling.seal().expect("windows are back, yet the filling does not seal");
        let mut expected = vec![FENCE; 256];
        expected[3..20].copy_from_slice(&message[a..b]);
        expected[27..27 + lens[3]].copy_from_slice(&message[c..]);
        assert!(slot[..] == expected[..], "the slot differs at split {head}");
    }
    fixture.ring.close(sock);
}

/// A window filled by receives of random sizes is the message.
pub(super) fn pieces_resume_where_they_stopped<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const LEN: usize = 100_000;
    let script = Script::Pattern { seed: 3, len: LEN, chunk: 1_777, pause: Duration::ZERO };
    let sock = fixture.connect(script);
    fixture.send_all(sock, b"go".to_vec());
    let mut prng = Prng::new(11);
    let mut window = fixture.room(LEN).0;
    while window.room() > 0 {
        let mut into = Scatter::new(fixture.slot(64));
        let at_most = 1 + prng.below(5_000) as usize;
        into.push_body(window, at_most).expect("room");
        let done = fixture.run(Op::Recv { sock, into });
        assert!(matches!(done.result, Ok(n) if n > 0 && n <= at_most), "{:?} of {at_most}", done.result);
        let Op::Recv { into, .. } = done.op else { panic!("not a receive") };
        let Some(Landed::Body { window: back, .. }) = into.finish().1.pop() else { panic!("no body") };
        window = back;
    }
    assert!((0..LEN).all(|i| window.bytes()[i] == pattern(3, i)), "the pattern differs");
    assert!(fixture.receive(sock, 10) == Ok(Vec::new()), "no end of stream after the last byte");
    drop(window);
    fixture.ring.close(sock);
}

pub(super) fn end_of_stream_and_reset<V: Harness>(fixture: &mut Fixture<'_, V>) {
    let ending = fixture.connect(Script::Pattern { seed: 1, len: 0, chunk: 1, pause: Duration::ZERO });
    fixture.send_all(ending, b"go".to_vec());
    for _ in 0..2 {
        let end = fixture.receive(ending, 100);
        assert!(end == Ok(Vec::new()), "end of stream: {end:?}");
    }
    let resetting = fixture.connect(Script::Reset);
    let into = fixture.one_window(100).0;
    fixture.push(Op::Recv { sock: resetting, into });
    fixture.push(Op::Send { sock: resetting, bytes: b"x".to_vec(), from: 0 });
    for _ in 0..2 {
        let done = fixture.next();
        if let Op::Recv { .. } = done.op {
            let outcome = received(done);
            assert!(outcome == Err(libc::ECONNRESET), "receive on a reset connection: {outcome:?}");
        }
    }
    fixture.ring.close(ending);
    fixture.ring.close(resetting);
}

/// Sixteen patterns at once, each whole and in order.
pub(super) fn many_connections_at_once<V: Harness>(fixture: &mut Fixture<'_, V>) {
    const CONNS: usize = 16;
    const LEN: usize = 50_000;
    let mut got: Vec<(SockId, Vec<u8>)> = Vec::new();
    for seed in 0..CONNS {
        let script = Script::Pattern { seed: seed as u64, len: LEN, chunk: 9_000 + seed, pause: Duration::ZERO };
        let sock = fixture.connect(script);
        fixture.send_all(sock, b"go".to_vec());
        got.push((sock, Vec::new()));
    }
    for (sock, _) in &got {
        let into = fixture.one_window(LEN).0;
        fixture.push(Op::Recv { sock: *sock, into });
    }
    let mut open = CONNS;
    while open > 0 {
        let done = fixture.next();
        let sock = done.op.sock().expect("an operation without a socket");
        let bytes = received(done).unwrap();
        if bytes.is_empty() {
            open -= 1;
            continue;
        }
        let (_, so_far) = got.iter_mut().find(|(id, _)| *id == sock).expect("an unknown socket");
        so_far.extend(bytes);
        let into = fixture.one_window(LEN).0;
        fixture.push(Op::Recv { sock, into });
    }
    for (seed, (sock, bytes)) in got.into_iter().enumerate() {
        assert!(bytes.len() == LEN, "pattern {seed} has {} bytes", bytes.len());
        assert!(bytes.iter().enumerate().all(|(i, b)| *b == pattern(seed as u64, i)), "pattern {seed} differs");
        fixture.ring.close(sock);
    }
}
