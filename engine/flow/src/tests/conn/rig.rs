//! One connection on a simulated ring, and a server that plays a script to it.

use super::plain::{Case, End, Ended, Script};
use crate::conn::{self, Asked, Conn, Context, Exchange, Fault, HeadPredictor, Outcome, State};
use crate::tests::memory::region;
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Error, Instant, Kind};
use fuelrail_io::{Done, Filling, Full, Host, Op, Replies, Ring, SimFaults, SimRing, SimWorld, Window};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// How bytes are cut on their way, and what else goes wrong below HTTP.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Chops {
    pub(super) seed: u64,
    /// The longest piece the server sends at once.
    pub(super) piece_max: usize,
    pub(super) faults: SimFaults,
    /// Room in the ring, ops.
    pub(super) entries: u32,
    /// Requests are all queued at the start, not some later.
    pub(super) at_once: bool,
}

impl Chops {
    /// Nothing is cut.
    pub(super) fn none() -> Chops {
        Chops { seed: 0, piece_max: usize::MAX, faults: SimFaults::default(), entries: 8, at_once: true }
    }

    pub(super) fn draw(prng: &mut Prng) -> Chops {
        let mut weight = || if prng.chance(0.5) { 0.0 } else { prng.unit() };
        let (short_receive, short_send) = (weight(), weight());
        Chops {
            piece_max: [1, 2, 7, 64, 300, usize::MAX][prng.below(6) as usize],
            faults: SimFaults { short_receive, short_send, ..SimFaults::default() },
            entries: 1 + prng.below(3) as u32,
            at_once: prng.chance(0.5),
            seed: prng.next(),
        }
    }
}

/// What the connection made of it.
pub(super) struct Played {
    /// By exchange.
    pub(super) ended: Vec<Ended>,
    pub(super) copied_bytes: u64,
    pub(super) predictor: HeadPredictor,
    /// Receives that were needed.
    pub(super) receives: u64,
}

/// Plays `script` to the requests of `cases`.
pub(super) fn play(cases: &[Case], script: &Script, chops: Chops, predictor: HeadPredictor) -> Played {
    let lens = cases.iter().map(Case::window_len);
    let room: usize = lens.clone().map(|len| len + GUARD_BYTES).sum();
    let mut region = region((room + 2 * SCRATCH_BYTES) as u64);
    let mut slot = region.alloc(room).unwrap();
    slot[..].fill(GUARDED);
    let mut filling = slot.fill();
    let waiting = cases.iter().map(|case| (case.asked, carve(&mut filling, case))).collect();

    let world = SimWorld::new(chops.seed, chops.faults, Box::new(Server::new(script, chops)));
    let mut ring = SimRing::with_capacity(&world, chops.entries, 1);
    let addr = SocketAddr::from(([127, 0, 0, 1], 80));
    let sock = ring.socket(&addr).unwrap();
    let conn = Conn::new(sock, addr, region.alloc(SCRATCH_BYTES).unwrap(), None, ring.now());
    ring.push(Op::Connect { sock, addr }, CONNECT).unwrap();
    let mut rig = Rig {
        world,
        ring,
        conn,
        waiting,
        predictor,
        outcomes: Vec::new(),
        copied_bytes: 0,
        receives: 0,
        prng: Prng::new(chops.seed ^ 1),
        at_once: chops.at_once,
    };
    rig.run(cases.len());
    let Rig { outcomes, copied_bytes, predictor, receives, .. } = rig;
    let ended = by_exchange(outcomes, cases.len());

    let slot = filling.seal().expect("every window is home");
    let mut from = 0;
    for len in lens {
        assert!(slot[from + len..][..GUARD_BYTES].iter().all(|b| *b == GUARDED), "written outside a window");
        from += len + GUARD_BYTES;
    }
    Played { ended, copied_bytes, predictor, receives }
}

/// Bytes between windows that nobody may write.
const GUARD_BYTES: usize = 64;
const GUARDED: u8 = 0xA5;

fn carve(filling: &mut Filling, case: &Case) -> Window {
    let mut window = filling.carve(case.window_len()).unwrap();
    window.put(&case.before);
    filling.skip(GUARD_BYTES);
    window
}

/// Exactly one outcome each, as plain values.
fn by_exchange(outcomes: Vec<Outcome>, exchanges: usize) -> Vec<Ended> {
    let mut sorted: Vec<Option<Ended>> = vec![None; exchanges];
    for outcome in outcomes {
        let (asked, ended) = match outcome {
            Outcome { asked, window, end: conn::End::Landed { .. }, .. } => {
                (asked, Ended::Landed(window.bytes().to_vec()))
            }
            Outcome { asked, window, end: conn::End::Failed { fault: Fault { error, .. }, .. }, .. } => {
                (asked, Ended::Failed(error.kind(), window.bytes().to_vec()))
            }
            Outcome { asked, window, end: conn::End::Unserved { .. }, .. } => {
                (asked, Ended::Unserved(window.bytes().to_vec()))
            }
        };
        let place = &mut sorted[asked.fetch.place as usize];
        assert!(place.is_none(), "exchange {} ended twice", asked.fetch.place);
        *place = Some(ended);
    }
    sorted.into_iter().enumerate().map(|(i, o)| o.unwrap_or_else(|| panic!("exchange {i} never ended"))).collect()
}

struct Rig {
    world: SimWorld,
    ring: SimRing,
    conn: Conn,
    /// Requests not given to the connection yet.
    waiting: VecDeque<(Asked, Window)>,
    predictor: HeadPredictor,
    outcomes: Vec<Outcome>,
    copied_bytes: u64,
    receives: u64,
    prng: Prng,
    at_once: bool,
}

const CONNECT: u64 = 0;
const OTHER: u64 = 1;

impl Rig {
    fn run(&mut self, exchanges: usize) {
        self.request(true);
        while self.outcomes.len() < exchanges || !self.conn.is_quiet() && self.conn.state == State::Closing {
            self.push();
            self.ring.wait(Some(self.ring.now())).unwrap();
            let mut moved = false;
            while let Some(done) = self.ring.pop() {
                moved = true;
                self.done(done);
            }
            self.request(self.conn.queued() == 0);
            if self.conn.state == State::Closing && !self.conn.close_sent {
                self.conn.close_sent = true;
                self.ring.close(self.conn.sock);
                moved = true;
            }
            if !moved && !self.world.advance() {
                self.stall();
            }
        }
        assert_eq!(self.outcomes.len(), exchanges);
    }

    /// Gives requests to the connection, at least one if `now`.
    fn request(&mut self, mut now: bool) {
        while !self.waiting.is_empty() && (now || self.at_once || !self.conn.takes_requests() || self.prng.chance(0.5))
        {
            now = false;
            let (asked, window) = self.waiting.pop_front().unwrap();
            if self.conn.takes_requests() {
                let text = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", asked.fetch.place);
                self.conn.request(Exchange::new(asked, window, self.ring.now()), text.as_bytes()).unwrap();
            } else {
                let exchange = Exchange::new(asked, window, self.ring.now());
                self.outcomes.push(Outcome::new(exchange, conn::End::Unserved { displaced: false }));
            }
        }
    }

    fn push(&mut self) {
        if let Some(op) = self.conn.send_op()
            && let Err(Full(op)) = self.ring.push(op, OTHER)
        {
            return self.conn.take_back(op);
        }
        if let Some(op) = self.conn.recv_op(&self.predictor)
            && let Err(Full(op)) = self.ring.push(op, OTHER)
        {
            self.conn.take_back(op);
        }
    }

    fn done(&mut self, done: Done) {
        let mut cx = Context {
            now: self.ring.now(),
            predictor: &mut self.predictor,
            outcomes: &mut self.outcomes,
            copied_bytes: &mut self.copied_bytes,
        };
        match done.op {
            Op::Connect { .. } => {
                let error = |errno| Error::from_errno(Kind::Network, "connecting", errno);
                self.conn.connected(done.result.map(drop).map_err(error), &mut cx);
            }
            Op::Send { bytes, from, .. } => {
                if let Some(op) = self.conn.sent(bytes, from, done.result, &mut cx)
                    && let Err(Full(op)) = self.ring.push(op, OTHER)
                {
                    self.conn.take_back(op);
                }
            }
            Op::Recv { into, .. } => {
                self.receives += 1;
                self.conn.received(into, done.result, &mut cx);
            }
            op => unreachable!("a connection asked for {op:?}"),
        }
    }

    /// Nothing ever comes again: what the shard's sweep would find.
    fn stall(&mut self) {
        assert_eq!(self.conn.state, State::Open, "a world stands still only while something is waited for");
        let before = self.outcomes.len();
        let mut cx = Context {
            now: self.ring.now(),
            predictor: &mut self.predictor,
            outcomes: &mut self.outcomes,
            copied_bytes: &mut self.copied_bytes,
        };
        self.conn.fail(Error::new(Kind::Stalled, "nothing came"), &mut cx);
        assert!(!self.conn.is_quiet(), "a connection that waits for an answer has a receive in flight");
        assert_eq!(self.outcomes.len(), before, "windows are not handed back while the kernel may write to them");
    }
}

/// Answers each request with its response, in pieces.
struct Server {
    script: Script,
    prng: Prng,
    piece_max: usize,
    heard: Vec<u8>,
    answered: usize,
    sent: usize,
    ended: bool,
}

impl Server {
    fn new(script: &Script, chops: Chops) -> Server {
        let (script, prng) = (script.clone(), Prng::new(chops.seed));
        Server { script, prng, piece_max: chops.piece_max, heard: Vec::new(), answered: 0, sent: 0, ended: false }
    }

    fn say(&mut self, bytes: &[u8], out: &mut Replies) {
        let mut rest = &bytes[..bytes.len().min(self.script.cut - self.sent)];
        self.sent += rest.len();
        while !rest.is_empty() {
            let most = rest.len().min(self.piece_max);
            let n = if self.piece_max == usize::MAX { most } else { 1 + self.prng.below(most as u64) as usize };
            let (now, later) = rest.split_at(n);
            let after = if self.piece_max == usize::MAX { 0 } else { self.prng.below(2) };
            out.send(Duration::from_micros(after), now.to_vec());
            rest = later;
        }
    }
}

impl Host for Server {
    fn connect(&mut self, _: u64, _: SocketAddr, _: Instant) -> (Duration, Result<(), i32>) {
        (Duration::from_micros(5), Ok(()))
    }

    fn receive(&mut self, _: u64, bytes: &[u8], _: Instant, out: &mut Replies) {
        for &byte in bytes {
            self.heard.push(byte);
            if self.heard.ends_with(b"\r\n\r\n") {
                self.heard.clear();
                let response = core::mem::take(&mut self.script.responses[self.answered]);
                self.answered += 1;
                self.say(&response, out);
            }
        }
        if self.answered == self.script.responses.len() {
            let extra = core::mem::take(&mut self.script.extra);
            self.say(&extra, out);
        }
        let done = self.sent == self.script.cut || self.answered == self.script.responses.len();
        if done && !self.ended {
            self.ended = true;
            // Long after the last bytes: a reset takes unread bytes along, and these were read.
            match self.script.end {
                End::Finish => out.finish(Duration::from_millis(1)),
                End::Reset => out.reset(Duration::from_millis(1)),
                End::Stall => {}
            }
        }
    }

    fn closed(&mut self, _: u64, _: Instant) {}
}
