//! The fetch stage on a simulated ring: who serves what, and what happens when nobody can.

use super::memory::{region, window};
use super::world::{Bucket, DEAD, Heard, LIVE, content, objects_at};
use crate::conn::{Asked, Conn, Context, End, Exchange, Fault, HeadPredictor, Outcome};
use crate::fetch::FetchStage;
use crate::objects::Objects;
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::{Duration, Error, Instant, Kind, SampleId, WallTime};
use fuelrail_io::{Host, Op, Region, Replies, Ring, SimFaults, SimRing, SimWorld};
use fuelrail_plan::planner::FetchId;
use std::net::SocketAddr;
use std::sync::Arc;

const STALL_AFTER: Duration = Duration::from_secs(10);

pub(super) struct Rig {
    pub(super) world: SimWorld,
    pub(super) ring: SimRing,
    region: Region,
    pub(super) fetch: FetchStage,
    sizes: Vec<u64>,
    pub(super) wanted: usize,
    pub(super) depth: usize,
    pub(super) ended: Vec<Outcome>,
}

impl Rig {
    pub(super) fn new(bucket: Bucket, addresses: &[&str], sockets: u32) -> Rig {
        let sizes = bucket.sizes.clone();
        let world = SimWorld::new(1, SimFaults::default(), Box::new(bucket));
        Rig::of(world, objects_at(addresses, &sizes, 1 << 20), &sizes, sockets, SCRATCH_BYTES)
    }

    /// A stage with room for four connections.
    pub(super) fn of(world: SimWorld, objects: Arc<Objects>, sizes: &[u64], sockets: u32, scratch_bytes: usize) -> Rig {
        let ring = SimRing::with_capacity(&world, 64, sockets);
        let mut region = region(4 << 20);
        let scratch = (0..4).map(|_| region.alloc(scratch_bytes).unwrap()).collect();
        let fetch = FetchStage::new(objects, STALL_AFTER, scratch);
        Rig { world, ring, region, fetch, sizes: sizes.to_vec(), wanted: 1, depth: 4, ended: Vec::new() }
    }

    /// Requests whole objects.
    pub(super) fn request(&mut self, samples: impl Iterator<Item = u32>) {
        for n in samples {
            let len = self.sizes[n as usize];
            let (fetch, sample) = (FetchId { place: n, serial: 0 }, SampleId(n.into()));
            let asked = Asked::whole(fetch, sample, len);
            let window = window(&mut self.region, len as usize);
            self.fetch.request(asked, window, self.ring.now());
        }
    }

    /// One iteration of a shard.
    fn iterate(&mut self) -> bool {
        let depth = self.depth;
        let now = self.ring.now();
        self.fetch.pump(&mut self.ring, now, self.wanted, |_| depth);
        self.ring.wait(Some(self.ring.now())).unwrap();
        let mut moved = false;
        while let Some(done) = self.ring.pop() {
            moved = true;
            let now = self.ring.now();
            self.fetch.done(&mut self.ring, now, done);
        }
        self.ended.extend(self.fetch.outcomes());
        moved
    }

    /// Goes on until `enough` outcomes have come or nothing happens any more.
    pub(super) fn run(&mut self, enough: usize) {
        let mut still = 0;
        while self.ended.len() < enough && still < 2 {
            if self.iterate() {
                still = 0;
                continue;
            }
            let now = self.ring.now();
            let until = self.fetch.sweep(&mut self.ring, now);
            self.ring.wait(until).unwrap();
            still = if self.world.advance() { 0 } else { still + 1 };
        }
    }

    /// Lets time pass with nothing to do.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.ring.now().after(time);
        while self.ring.now() < until {
            self.iterate();
            self.ring.wait(Some(until)).unwrap();
            self.world.advance();
        }
    }

    /// Everything asked for has landed, with the right bytes.
    pub(super) fn check_landed(&mut self, samples: usize) {
        assert_eq!(self.ended.len(), samples, "{:?}", self.ended);
        for outcome in self.ended.drain(..) {
            let Outcome { asked, window, end: End::Landed { .. }, .. } = outcome else { panic!("{outcome:?}") };
            assert_eq!(window.bytes(), content(asked.sample, asked.len));
        }
    }
}

/// How many requests each connection got.
fn per_connection(heard: &Heard) -> Vec<usize> {
    let mut counts = Vec::new();
    for (conn, _) in heard.borrow().iter() {
        let at = *conn as usize;
        counts.resize(counts.len().max(at + 1), 0);
        counts[at] += 1;
    }
    counts
}

fn fault_of(outcome: &Outcome) -> Option<&Fault> {
    if let End::Failed { fault, .. } = &outcome.end { Some(fault) } else { None }
}

pub(super) fn error_of(outcome: &Outcome) -> Option<&Error> {
    fault_of(outcome).map(|fault| &fault.error)
}

pub(super) fn kind_of(outcome: &Outcome) -> Option<Kind> {
    error_of(outcome).map(Error::kind)
}

pub(super) fn idled_out(outcome: &Outcome) -> Option<bool> {
    fault_of(outcome).map(|fault| fault.idled_out)
}

#[test]
fn requests_spread_over_connections_then_queue_behind_each_other_then_wait() {
    let bucket = Bucket::new(&[100; 12]);
    let heard = Heard::clone(&bucket.heard);
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    (rig.wanted, rig.depth) = (3, 2);
    rig.request(0..12);
    rig.iterate();
    assert_eq!((rig.fetch.outstanding(), rig.fetch.waiting()), (6, 6));
    rig.run(12);
    rig.check_landed(12);
    let counts = per_connection(&heard);
    assert!(counts.len() == 3 && counts.iter().all(|n| (3..=5).contains(n)), "{counts:?}");
    assert_eq!((rig.fetch.stats().connections, rig.fetch.stats().requests), (3, 12));
}

#[test]
fn of_equally_busy_connections_the_one_with_fewer_bytes_to_come_is_chosen() {
    let bucket = Bucket::new(&[50_000, 100, 100]);
    let heard = Heard::clone(&bucket.heard);
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    (rig.wanted, rig.depth) = (2, 2);
    rig.request(0..3);
    rig.run(3);
    rig.check_landed(3);
    assert_eq!(per_connection(&heard), [1, 2]);
}

#[test]
fn nothing_is_sent_behind_an_answer_that_is_announced_as_the_last() {
    let mut bucket = Bucket::new(&[40_000, 100]);
    bucket.says = Box::new(|nth| if nth == 0 { "Connection: close\r\n" } else { "" });
    bucket.drips = Some((1_000, Duration::from_millis(1)));
    let heard = Heard::clone(&bucket.heard);
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    rig.depth = 2;
    rig.request(0..1);
    (0..10).for_each(|_| rig.pass(Duration::from_millis(1)));
    assert_eq!(rig.fetch.stats().connections_open, 1);
    rig.request(1..2);
    rig.run(2);
    rig.check_landed(2);
    assert_eq!(per_connection(&heard), [1, 1]);
}

#[test]
fn when_fewer_connections_are_wanted_the_later_ones_rest() {
    let bucket = Bucket::new(&[100; 24]);
    let heard = Heard::clone(&bucket.heard);
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    (rig.wanted, rig.depth) = (4, 2);
    rig.request(0..8);
    rig.run(8);
    rig.check_landed(8);
    assert_eq!(per_connection(&heard), [2; 4]);
    rig.wanted = 2;
    rig.request(8..24);
    rig.run(16);
    rig.check_landed(16);
    let counts = per_connection(&heard);
    assert_eq!(counts[2..], [2; 2], "{counts:?}");
    assert_eq!(rig.fetch.stats().connections_open, 4, "they stay open");
}

#[test]
fn an_idle_connection_is_used_before_another_is_opened() {
    let mut rig = Rig::new(Bucket::new(&[100; 2]), &[LIVE], 8);
    rig.wanted = 4;
    for sample in 0..2 {
        rig.request(sample..sample + 1);
        rig.run(1);
        rig.check_landed(1);
    }
    assert_eq!(rig.fetch.stats().connections, 1);
}

#[test]
fn a_refused_address_is_followed_by_the_next() {
    let mut rig = Rig::new(Bucket::new(&[100]), &[DEAD, LIVE], 8);
    rig.request(0..1);
    rig.run(1);
    let outcome = rig.ended.pop().unwrap();
    let error = error_of(&outcome).unwrap();
    assert_eq!(error.kind(), Kind::Network);
    assert!(error.to_string().contains(DEAD), "{error}");
    rig.request(0..1);
    rig.run(1);
    rig.check_landed(1);
}

#[test]
fn an_answer_that_trickles_is_given_up_with_what_has_come_and_a_slow_one_is_not() {
    for (piece, trickles) in [(400, true), (2_050, false), (1, true)] {
        let mut bucket = Bucket::new(&[60_000]);
        bucket.drips = Some((piece, Duration::from_secs(1)));
        let mut rig = Rig::new(bucket, &[LIVE], 8);
        rig.request(0..1);
        rig.run(1);
        if !trickles {
            rig.check_landed(1);
            continue;
        }
        let outcome = rig.ended.pop().unwrap();
        let error = error_of(&outcome).unwrap().clone();
        let Outcome { window, end: End::Failed { new_bytes, .. }, .. } = outcome else { unreachable!() };
        assert!(error.kind() == Kind::Stalled && error.to_string().contains("only "), "{error}");
        assert!(rig.ring.now() <= Instant::ZERO.after(STALL_AFTER * 2), "{:?}", rig.ring.now());
        assert!((new_bytes > 50) == (piece > 1), "of one the head does not come: {new_bytes}");
        assert!(window.bytes() == &content(SampleId(0), 60_000)[..new_bytes]);
    }
}

#[test]
fn a_connection_the_server_idled_out_is_no_failed_attempt() {
    let mut bucket = Bucket::new(&[100; 3]);
    bucket.close_after = Some(Duration::from_secs(5));
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    rig.request(0..1);
    rig.run(1);
    rig.check_landed(1);
    rig.pass(Duration::from_secs(30));
    rig.request(1..3);
    rig.run(2);
    let excused = rig.ended.iter().filter(|o| idled_out(o) == Some(true)).count();
    let unserved = rig.ended.iter().filter(|o| matches!(o.end, End::Unserved { .. })).count();
    assert_eq!((excused, unserved), (1, 1), "{:?}", rig.ended);
    rig.ended.clear();
    rig.request(1..3);
    rig.run(2);
    rig.check_landed(2);
}

#[test]
fn only_a_close_before_any_answer_is_excused_after_a_long_silence() {
    let mut bucket = Bucket::new(&[100; 3]);
    bucket.answers_max = 2;
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    rig.request(0..1);
    rig.run(1);
    rig.check_landed(1);
    rig.pass(Duration::from_secs(30));
    rig.request(1..3);
    rig.run(2);
    assert!(matches!(rig.ended[0].end, End::Landed { .. }), "{:?}", rig.ended);
    assert_eq!(idled_out(&rig.ended[1]), Some(false), "{:?}", rig.ended);
}

/// A connection that is open and has these requests, and what it is told with.
fn open_conn(rig: &mut Rig, texts: &[&[u8]]) -> (Conn, Vec<Outcome>) {
    let addr = LIVE.parse().unwrap();
    let sock = rig.ring.socket(&addr).unwrap();
    let mut conn = Conn::new(sock, addr, rig.region.alloc(SCRATCH_BYTES).unwrap(), None, Instant::ZERO);
    let mut outcomes = Vec::new();
    with_context(&mut outcomes, |cx| conn.connected(Ok(()), cx));
    texts.iter().for_each(|text| request(rig, &mut conn, text));
    (conn, outcomes)
}

fn request(rig: &mut Rig, conn: &mut Conn, text: &[u8]) {
    let (fetch, sample) = (FetchId { place: 0, serial: 0 }, SampleId(0));
    let asked = Asked::whole(fetch, sample, 1);
    conn.request(Exchange::new(asked, window(&mut rig.region, 1), Instant::ZERO), text).unwrap();
}

fn with_context<T>(outcomes: &mut Vec<Outcome>, told: impl FnOnce(&mut Context) -> T) -> T {
    let (now, predictor, copied_bytes) = (Instant::ZERO, &mut HeadPredictor::default(), &mut 0);
    told(&mut Context { now, predictor, outcomes, copied_bytes })
}

#[test]
fn a_send_the_ring_gives_back_goes_out_before_what_was_queued_since() {
    let mut rig = Rig::new(Bucket::new(&[1]), &[LIVE], 1);
    let (mut conn, _) = open_conn(&mut rig, &[b"first"]);
    let Some(Op::Send { sock, bytes, from: 0 }) = conn.send_op() else { panic!("a send is due") };
    request(&mut rig, &mut conn, b"second");
    assert!(conn.send_op().is_none(), "one send at a time");
    conn.take_back(Op::Send { sock, bytes, from: 2 });
    assert!(matches!(conn.send_op(), Some(Op::Send { bytes, from: 0, .. }) if bytes == b"rstsecond"));
}

#[test]
fn an_interrupted_operation_is_due_again() {
    const EINTR: i32 = 4;
    let mut rig = Rig::new(Bucket::new(&[1]), &[LIVE], 1);
    let (mut conn, mut outcomes) = open_conn(&mut rig, &[b"request"]);
    let predictor = HeadPredictor::default();
    for _ in 0..3 {
        let Some(Op::Recv { into, .. }) = conn.recv_op(&predictor) else { panic!("a receive is due") };
        with_context(&mut outcomes, |cx| conn.received(into, Err(EINTR), cx));
    }
    let Some(Op::Send { bytes, from, .. }) = conn.send_op() else { panic!("a send is due") };
    let again = with_context(&mut outcomes, |cx| conn.sent(bytes, from, Err(EINTR), cx));
    assert!(matches!(again, Some(Op::Send { bytes, from: 0, .. }) if bytes == b"request"));
    assert!(outcomes.is_empty() && conn.queued() == 1);
}

#[test]
fn a_close_right_after_a_request_is_a_failed_attempt() {
    let mut bucket = Bucket::new(&[100; 2]);
    bucket.close_after = Some(Duration::ZERO);
    bucket.mute = true;
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    rig.request(0..2);
    rig.run(2);
    let counts = rig.ended.iter().filter(|o| idled_out(o) == Some(false)).count();
    assert_eq!(counts, 1, "{:?}", rig.ended);
}

#[test]
fn silence_is_noticed_and_windows_stay_until_the_receive_is_back() {
    let mut bucket = Bucket::new(&[100; 3]);
    bucket.mute = true;
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    rig.depth = 2;
    rig.request(0..3);
    rig.run(2);
    let waited = rig.ring.now().since(Instant::ZERO);
    assert!(waited >= STALL_AFTER && waited < STALL_AFTER * 2, "{waited:?}");
    assert_eq!(kind_of(&rig.ended[0]), Some(Kind::Stalled), "{:?}", rig.ended);
    assert!(matches!(rig.ended[1].end, End::Unserved { .. }) && rig.ended.len() == 2, "{:?}", rig.ended);
    rig.iterate();
    assert_eq!((rig.fetch.waiting(), rig.fetch.outstanding()), (0, 1), "the third goes to another connection");
    assert_eq!((rig.fetch.stats().connections, rig.fetch.stats().connections_open), (2, 1));
    assert_eq!(rig.ended.len(), 2);
}

#[test]
fn without_a_socket_the_request_fails_at_once() {
    let mut rig = Rig::new(Bucket::new(&[100; 1]), &[LIVE], 0);
    rig.request(0..1);
    let now = rig.ring.now();
    rig.fetch.pump(&mut rig.ring, now, 1, |_| 1);
    assert!(rig.fetch.has_outcomes(), "no completion will ever tell of it");
    let outcome = rig.fetch.outcomes().pop().unwrap();
    assert_eq!(kind_of(&outcome), Some(Kind::Budget), "{outcome:?}");
}

#[test]
fn with_fewer_sockets_than_wanted_the_open_ones_serve_all() {
    let mut rig = Rig::new(Bucket::new(&[100; 20]), &[LIVE], 2);
    rig.wanted = 4;
    rig.request(0..20);
    rig.run(20);
    rig.check_landed(20);
    assert_eq!(rig.fetch.stats().connections, 2);
}

/// Answers every request with this.
struct Says(String);

impl Host for Says {
    fn connect(&mut self, _: u64, _: SocketAddr, _: Instant) -> (Duration, Result<(), i32>) {
        (Duration::ZERO, Ok(()))
    }

    fn receive(&mut self, _: u64, _: &[u8], _: Instant, out: &mut Replies) {
        out.send(Duration::ZERO, self.0.clone().into_bytes());
    }

    fn closed(&mut self, _: u64, _: Instant) {}
}

#[test]
fn a_refusal_is_told_with_what_to_do_and_when_to_try_again() {
    for (status, text, kind, words) in [
        (301, "", Kind::Usage, "set region or endpoint"),
        (400, "The plain HTTP request was sent to HTTPS port", Kind::Protocol, "https://"),
        (401, "The plain HTTP request was sent to HTTPS port", Kind::Denied, "the bucket's permissions"),
        (403, "", Kind::Denied, "the bucket's permissions"),
        (403, "<Error><Code>ExpiredToken</Code></Error>", Kind::Expired, "(ExpiredToken)"),
        (404, "", Kind::NotFound, "deleted after it was listed"),
        (404, "<Error><Code>NoSuchKey</Code></Error>", Kind::NotFound, "answered 404 (NoSuchKey)"),
        (407, "", Kind::Denied, "roxy"),
        (412, "", Kind::Changed, "start a new run"),
        (416, "", Kind::Mismatch, "shorter than it was listed"),
        (418, "", Kind::Usage, "may not be an object store"),
        (429, "", Kind::Throttled, "asks to slow down"),
        (500, "", Kind::Server, "the server's logs"),
    ] {
        let dated = "Retry-After: 7\r\nDate: Thu, 01 Jan 1970 00:01:40 GMT";
        let says = format!("HTTP/1.1 {status} No\r\n{dated}\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        let world = SimWorld::new(1, SimFaults::default(), Box::new(Says(says)));
        let mut rig = Rig::of(world, objects_at(&[LIVE], &[100], 1 << 20), &[100], 8, SCRATCH_BYTES);
        rig.request(0..1);
        rig.run(1);
        let fault = fault_of(&rig.ended[0]).expect("it is refused");
        let error = fault.error.to_string();
        assert!(
            fault.error.kind() == kind && error.contains(words),
            "{status} {text}: {:?} {error}",
            fault.error.kind()
        );
        assert_eq!(fault.retry_after, Some(Duration::from_secs(7)));
        assert_eq!(fault.server_time, (status >= 400).then_some(WallTime(100)));
        assert!(!fault.idled_out && rig.fetch.outstanding() == 0, "the connection serves the next request");
    }
}

#[test]
fn a_long_refusal_is_not_read_to_its_end() {
    for (bytes, closes) in [(64 << 10, false), ((64 << 10) + 1, true)] {
        let text = "x".repeat(bytes);
        let says = format!("HTTP/1.1 500 No\r\nContent-Length: {bytes}\r\n\r\n{text}");
        let world = SimWorld::new(1, SimFaults::default(), Box::new(Says(says)));
        let mut rig = Rig::of(world, objects_at(&[LIVE], &[100], 1 << 20), &[100], 8, SCRATCH_BYTES);
        rig.request(0..1);
        rig.run(1);
        rig.iterate();
        assert_eq!(kind_of(&rig.ended[0]), Some(Kind::Server), "{:?}", rig.ended);
        assert_eq!(rig.fetch.stats().connections_open, u64::from(!closes), "{bytes} bytes");
    }
}

#[test]
fn what_was_done_is_counted() {
    let bucket = Bucket::new(&[100; 20]);
    let heard = Heard::clone(&bucket.heard);
    let mut rig = Rig::new(bucket, &[LIVE], 8);
    rig.wanted = 2;
    rig.request(0..20);
    rig.iterate();
    let now = rig.ring.now();
    let text = rig.fetch.describe(now);
    assert_eq!((rig.fetch.waiting(), rig.fetch.outstanding()), (12, 8));
    assert!(text.starts_with("fetch: 8 requests outstanding, 12 waiting to be sent, 2 connections, "), "{text}");
    rig.run(20);
    let stats = rig.fetch.stats();
    assert_eq!((stats.requests, heard.borrow().len()), (20, 20));
    assert_eq!((stats.connections, stats.connections_open, stats.connections_failed), (2, 2, 0));
    assert!(stats.heads_mispredicted == 0 && stats.heads_predicted > 10, "{stats:?}");
    assert!(stats.copied_bytes <= 2 * 256, "only what came with the first heads is copied: {stats:?}");
    assert_eq!((stats.tls_handshakes, stats.tls_resumed), (0, 0));
    rig.check_landed(20);
}
