//! The virtual bucket: an HTTP/1.1 object server in virtual time, with faults by seed.
//!
//! Owns its connections' queues and clocks. Requests may arrive chopped or many at a time; each connection answers one
//! after another. Records what it did, and requests no sound client would send.

mod fault;
mod http;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Instant, SampleId};
use fuelrail_io::{Host, Replies};

use self::fault::{Effect, Fault};
use self::http::Answer;
use self::http::Get;
use crate::dataset::{DEAD_ADDRESS, DataSet};
use crate::scenario::{BucketShape, Despair, Down, FaultShares, OutageShape, Scenario};

/// `ECONNREFUSED` of Linux.
const REFUSED: i32 = 111;
/// Where there is a rate of requests, those of so much time may come at once.
const BURST: Duration = Duration::from_millis(100);

/// One connection, as the bucket sees it.
struct Peer {
    inbox: Vec<u8>,
    /// When the last byte answered so far has arrived.
    free_at: Instant,
    responses: u64,
    /// Nothing more is answered.
    ended: bool,
    /// It carries a fault after which no client may keep it: when that has arrived.
    broken_at: Option<Instant>,
    /// No further fault on it: the client need not live to see it.
    spoilt: bool,
}

/// The server of a simulated world.
pub(crate) struct Bucket {
    shape: BucketShape,
    shares: FaultShares,
    outage: Option<OutageShape>,
    block_bytes: u64,
    stall_after: Duration,
    objects: Rc<DataSet>,
    hopeless: BTreeMap<SampleId, Despair>,
    prng: Prng,
    peers: BTreeMap<u64, Peer>,
    /// When the shared pipe is free again.
    pipe_free_at: Instant,
    /// When the requests so far are due at the rate that there is.
    due_at: Instant,
    bookkeeping: Rc<RefCell<Bookkeeping>>,
    /// The planted bug: one body has a flipped bit and no checksum.
    flips_silently: bool,
}

impl Bucket {
    pub(crate) fn new(
        scenario: &Scenario,
        life: usize,
        objects: Rc<DataSet>,
        bookkeeping: Rc<RefCell<Bookkeeping>>,
        flips_silently: bool,
    ) -> Bucket {
        Bucket {
            shape: scenario.bucket.clone(),
            shares: scenario.faults,
            outage: scenario.outage,
            block_bytes: scenario.block_bytes,
            stall_after: Duration::from_millis(scenario.loader.stall_after_ms),
            objects,
            hopeless: scenario.hopeless.iter().map(|&(sample, why)| (SampleId(sample), why)).collect(),
            prng: scenario.prng(life, "bucket"),
            peers: BTreeMap::new(),
            pipe_free_at: Instant::ZERO,
            due_at: Instant::ZERO,
            bookkeeping,
            flips_silently,
        }
    }

    fn serve(&mut self, conn: u64, get: &Get, now: Instant, out: &mut Replies) {
        let sample = get.sample;
        {
            let mut bookkeeping = self.bookkeeping.borrow_mut();
            bookkeeping.requests += 1;
            *bookkeeping.requests_of.entry(sample).or_default() += 1;
        }
        let Some(peer) = self.peers.get(&conn) else { return };
        let last = self.shape.responses_per_connection.checked_sub(peer.responses + 1) == Some(0);
        let down = self.down(now);
        let is_over = self.is_over_rate(now);
        let fault = if self.peers[&conn].spoilt || down.is_some() || is_over { None } else { self.draw_fault(get) };
        let mut answer = match self.hopeless.get(&sample) {
            None if down == Some(Down::SlowDown) || is_over => http::refusal(503, &self.shape, &mut self.prng),
            None if down.is_some() => http::refusal(500, &self.shape, &mut self.prng),
            Some(Despair::NotFound) => http::refusal(404, &self.shape, &mut self.prng),
            Some(Despair::Denied) => http::refusal(403, &self.shape, &mut self.prng),
            Some(Despair::ServerError) => http::refusal(500, &self.shape, &mut self.prng),
            None => http::object(self.objects.as_ref(), get, &self.shape, last, &mut self.prng),
        };
        if core::mem::take(&mut self.flips_silently) {
            answer.flip_silently();
        }
        let effect = fault.map_or(Effect::None, |fault| fault.apply(&mut answer, &self.shape, &mut self.prng));
        self.send(conn, sample, &answer, effect, now, out);
        if last || answer.until_close {
            self.end(conn, now, out);
        }
    }

    /// Counts a request at the rate that there is. True when it is one too many.
    fn is_over_rate(&mut self, now: Instant) -> bool {
        let rate = self.shape.requests_per_s;
        if rate == 0 || self.due_at.since(now) > BURST {
            return rate > 0;
        }
        self.due_at = self.due_at.max(now).after(Duration::from_secs_f64(1.0 / rate as f64));
        false
    }

    /// What is seen of an outage now.
    fn down(&self, now: Instant) -> Option<Down> {
        self.outage.filter(|outage| outage.covers(now)).map(|outage| outage.how)
    }

    /// A request comes in an outage. True when it is not even read.
    fn fall_silent(&mut self, conn: u64, now: Instant, out: &mut Replies) -> bool {
        self.bookkeeping.borrow_mut().fault(None, "outage");
        match self.down(now) {
            Some(Down::Refused | Down::Reset) => out.reset(Duration::ZERO),
            Some(Down::Silent) => out.stall(),
            _ => return false,
        }
        self.peers.entry(conn).and_modify(|peer| peer.ended = true);
        true
    }

    /// The fault for this request, if any, noted in the bookkeeping.
    fn draw_fault(&mut self, get: &Get) -> Option<Fault> {
        if self.hopeless.contains_key(&get.sample) {
            return None;
        }
        let (fault, name) = fault::draw(&self.shares, &mut self.prng)?;
        let whole_bytes = self.objects.bytes(get.sample).len() as u64;
        let sense = match fault {
            Fault::WrongRange => get.range.is_some(),
            Fault::IgnoredRange => get.range.is_some() && whole_bytes > self.block_bytes,
            // Without a checksum the damage cannot be noticed: TLS is what guards against it.
            Fault::Flipped => http::promises(get, &self.shape),
            // Without listed tags a first look at an object cannot know which version is right; a second one can.
            Fault::Changed => {
                self.shape.etags.1 && (self.shape.etags.0 || get.range.is_some_and(|(first, _)| first > 0))
            }
            Fault::WrongEtag => self.shape.etags.1,
            _ => true,
        };
        let mut bookkeeping = self.bookkeeping.borrow_mut();
        // Two different tags, or three damaged copies, rightly end the patience with an object.
        let tags: u32 =
            ["changed", "wrong_etag"].iter().map(|name| bookkeeping.faults_on(get.sample, Some(name))).sum();
        let once_more = match fault {
            Fault::Changed | Fault::WrongEtag => tags == 0,
            Fault::Flipped => bookkeeping.faults_on(get.sample, Some("flipped")) < 2,
            _ => true,
        };
        if !sense || !once_more || bookkeeping.faults_on(get.sample, None) >= self.shares.per_key_max {
            return None;
        }
        bookkeeping.fault(Some(get.sample), name);
        Some(fault)
    }

    /// Sends an answer in segments, at the speed of the connection and of the shared pipe.
    fn send(&mut self, conn: u64, sample: SampleId, answer: &Answer, effect: Effect, now: Instant, out: &mut Replies) {
        let Some(peer) = self.peers.get_mut(&conn) else { return };
        peer.responses += 1;
        let (least, most) = self.shape.latency_us;
        let latency = Duration::from_micros(least + self.prng.below(most - least + 1));
        let mut at = peer.free_at.max(now).after(latency);
        let (end, pause, segment) = match effect {
            Effect::Cut { at, .. } => (at, Duration::ZERO, self.shape.segment_bytes),
            Effect::Drip => {
                let pieces = 12.min(answer.wire.len()).max(1);
                (answer.wire.len(), self.stall_after / 16, answer.wire.len().div_ceil(pieces))
            }
            Effect::None | Effect::Refusal | Effect::Breaks | Effect::Poisons => {
                (answer.wire.len(), Duration::ZERO, self.shape.segment_bytes)
            }
        };
        for piece in answer.wire[..end].chunks(segment.max(1)) {
            let on_wire = Duration::from_secs_f64(piece.len() as f64 / self.shape.connection_bytes_per_s as f64);
            at = at.after(on_wire + pause);
            if self.shape.total_bytes_per_s > 0 {
                let through = Duration::from_secs_f64(piece.len() as f64 / self.shape.total_bytes_per_s as f64);
                // Bandwidth is reserved from the least latency on, so that an answer with a longer one does not delay the others.
                self.pipe_free_at = self.pipe_free_at.max(now.after(Duration::from_micros(least))).after(through);
                at = at.max(self.pipe_free_at);
            }
            out.send(at.since(now), piece.to_vec());
        }
        peer.free_at = at;
        // A reset must not race with what came before it: those bytes count as read.
        let just_after = at.after(Duration::from_nanos(1));
        match effect {
            Effect::Cut { how, .. } => {
                match how {
                    Fault::Reset => out.reset(just_after.since(now)),
                    Fault::Finish => out.finish(just_after.since(now)),
                    _ => out.stall(),
                }
                peer.ended = true;
                // A body that is whole before its framing ends may rightly be taken as whole; an end before the first byte
                // may rightly be taken for the end of an idle connection.
                let idle_close = end == 0 && how != Fault::Stall;
                peer.broken_at = (end < answer.payload_end && !idle_close).then_some(just_after);
            }
            Effect::Breaks => peer.broken_at = Some(at),
            Effect::Poisons => peer.spoilt = true,
            Effect::Refusal => self.bookkeeping.borrow_mut().refusals_due.entry(conn).or_default().push(at),
            Effect::None | Effect::Drip => {}
        }
        peer.spoilt |= peer.broken_at.is_some();
        if self.hopeless.contains_key(&sample) {
            self.bookkeeping.borrow_mut().refusals_due.entry(conn).or_default().push(at);
        }
    }

    /// The bucket ends a connection in order.
    fn end(&mut self, conn: u64, now: Instant, out: &mut Replies) {
        if let Some(peer) = self.peers.get_mut(&conn).filter(|peer| !peer.ended) {
            peer.ended = true;
            out.finish(peer.free_at.since(now));
        }
    }
}

impl Host for Bucket {
    fn connect(&mut self, conn: u64, addr: SocketAddr, now: Instant) -> (Duration, Result<(), i32>) {
        let after = Duration::from_micros(1 + self.prng.below(self.shape.connect_us));
        if self.down(now) == Some(Down::Refused) {
            self.bookkeeping.borrow_mut().fault(None, "outage");
            return (after, Err(REFUSED));
        }
        let dead = addr.to_string() == DEAD_ADDRESS;
        if dead || self.prng.chance(self.shares.refused) {
            let mut bookkeeping = self.bookkeeping.borrow_mut();
            bookkeeping.fault(None, if dead { "dead_address" } else { "refused" });
            bookkeeping.refused_due.push(now.after(after));
            return (after, Err(REFUSED));
        }
        let peer = Peer { inbox: Vec::new(), free_at: now, responses: 0, ended: false, broken_at: None, spoilt: false };
        self.peers.insert(conn, peer);
        let mut bookkeeping = self.bookkeeping.borrow_mut();
        bookkeeping.connections += 1;
        bookkeeping.open += 1;
        (after, Ok(()))
    }

    fn receive(&mut self, conn: u64, bytes: &[u8], now: Instant, out: &mut Replies) {
        let Some(peer) = self.peers.get_mut(&conn) else { return };
        peer.inbox.extend_from_slice(bytes);
        loop {
            let Some(peer) = self.peers.get_mut(&conn).filter(|peer| !peer.ended) else { return };
            let Some(len) = http::head_len(&peer.inbox) else { return };
            let head: Vec<u8> = peer.inbox.drain(..len).collect();
            if self.outage.is_some_and(|outage| outage.covers(now)) && self.fall_silent(conn, now, out) {
                return;
            }
            match http::parse(&head, self.objects.as_ref()) {
                Ok(get) => self.serve(conn, &get, now, out),
                Err(why) => {
                    let text = format!("{why}: {}", String::from_utf8_lossy(&head).escape_debug());
                    self.bookkeeping.borrow_mut().unsound.push(text);
                    self.peers.entry(conn).and_modify(|peer| peer.ended = true);
                    out.reset(Duration::ZERO);
                }
            }
        }
    }

    fn closed(&mut self, conn: u64, now: Instant) {
        let Some(peer) = self.peers.remove(&conn) else { return };
        let mut bookkeeping = self.bookkeeping.borrow_mut();
        bookkeeping.open -= 1;
        bookkeeping.broken_seen += u64::from(peer.broken_at.is_some_and(|at| at <= now));
        let due = bookkeeping.refusals_due.remove(&conn).unwrap_or_default();
        bookkeeping.refusals_seen += due.iter().filter(|due| **due <= now).count() as u64;
    }
}

/// Counted by the bucket in one life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bookkeeping {
    /// Requests understood.
    pub(crate) requests: u64,
    pub(crate) requests_of: BTreeMap<SampleId, u64>,
    /// Connections accepted.
    pub(crate) connections: u64,
    /// Connections open now.
    pub(crate) open: u64,
    /// Faults by name, injected or scheduled.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) faults_of: BTreeMap<(SampleId, &'static str), u32>,
    /// Connections the client cannot have kept after a fault on them, and has closed.
    pub(crate) broken_seen: u64,
    /// Refusals on connections that live on, by when they have arrived whole, per open connection.
    pub(crate) refusals_due: BTreeMap<u64, Vec<Instant>>,
    /// Refusals that arrived on connections closed since.
    pub(crate) refusals_seen: u64,
    /// Refused connections, by when the client is told.
    pub(crate) refused_due: Vec<Instant>,
    /// Requests no sound client sends.
    pub(crate) unsound: Vec<String>,
}

impl Bookkeeping {
    pub(crate) fn fault(&mut self, sample: Option<SampleId>, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
        if let Some(sample) = sample {
            *self.faults_of.entry((sample, name)).or_default() += 1;
        }
    }

    pub(crate) fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Faults injected on one sample, of one name or of all.
    pub(crate) fn faults_on(&self, sample: SampleId, name: Option<&str>) -> u32 {
        let all = self.faults_of.range((sample, "")..(SampleId(sample.0.saturating_add(1)), ""));
        all.filter(|((_, fault), _)| name.is_none_or(|name| name == *fault)).map(|(_, count)| *count).sum()
    }

    /// Failed attempts the client must have noticed by `now`.
    pub(crate) fn failures_seen(&self, now: Instant) -> u64 {
        let arrived = self.refusals_due.values().flatten().chain(&self.refused_due).filter(|due| **due <= now).count();
        self.broken_seen + self.refusals_seen + arrived as u64
    }
}
