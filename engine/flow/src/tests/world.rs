//! A data set, a run over it, and a bucket in virtual time that serves it.

use crate::assemble::BadSamples;
use crate::hedge::Spares;
use crate::listing::Listed;
use crate::objects::Objects;
use crate::peers::PeerRoom;
use crate::setup::ShardConfig;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use fuelrail_base::limits::SCRATCH_BYTES;
use fuelrail_base::{Duration, Instant, SampleId, ShardId};
use fuelrail_io::{Host, Replies, Ring as _, SimRing, SimWorld};
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::order::OrderName;
use fuelrail_plan::pace::Ledger;
use fuelrail_plan::planner::PlannerConfig;
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::prefetch::Strategy;
use fuelrail_plan::retry::RetryConfig;
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use fuelrail_plan::window::WindowConfig;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

pub(super) const DEAD: &str = "10.0.0.1:80";
pub(super) const LIVE: &str = "10.0.0.2:80";

/// Objects `k/0`, `k/1`, … of these sizes, at `addresses`.
pub(super) fn objects_at(addresses: &[&str], sizes: &[u64], block_bytes: u64) -> Arc<Objects> {
    packed("http://bucket.test/b/k", addresses, &listed(sizes), block_bytes)
}

/// The same, of another bucket.
pub(super) fn packed_at(uri: &str, addresses: &[&str], sizes: &[u64]) -> Arc<Objects> {
    packed(uri, addresses, &listed(sizes), 1 << 20)
}

/// The same with ETags in the listing; the server gives none.
pub(super) fn tagged_objects(sizes: &[u64], block_bytes: u64) -> Objects {
    let tag = |i| Some(format!("\"tag-{i}\""));
    let listed: Vec<Listed> =
        (0..).zip(sizes).map(|(i, &size)| Listed { key: format!("k/{i}"), size, etag: tag(i) }).collect();
    Arc::into_inner(packed("http://bucket.test/b/k", &[LIVE], &listed, block_bytes)).expect("nobody else has it yet")
}

fn listed(sizes: &[u64]) -> Vec<Listed> {
    (0..).zip(sizes).map(|(i, &size)| Listed { key: format!("k/{i}"), size, etag: None }).collect()
}

fn packed(uri: &str, addresses: &[&str], listed: &[Listed], block_bytes: u64) -> Arc<Objects> {
    let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
    Arc::new(Objects::new(uri.parse().unwrap(), addresses, listed, block_bytes).unwrap())
}

pub(super) fn objects(sizes: &[u64], block_bytes: u64) -> Arc<Objects> {
    objects_at(&[LIVE], sizes, block_bytes)
}

/// The only shard of a run, with so much room for batches, without cache and disk.
pub(super) fn config(batch_room_bytes: u64, window: WindowConfig) -> ShardConfig {
    ShardConfig {
        planner: PlannerConfig {
            shard: ShardId(0),
            shards: 1,
            prefetch: Strategy::default(),
            policy: PolicyName::NextUse,
            cache_bytes: 0,
            cached_block_bytes_min: 0,
            batch_room_bytes,
            horizon_epochs: 1,
            spill: None,
            homes: None,
            pace: Ledger::default(),
            retry: RetryConfig::default(),
            window,
            hedge: HedgeConfig::default(),
            seed: 1,
        },
        bad_samples: BadSamples::Raise,
        stall_after: Duration::from_secs(10),
        connections_max: window.connections_max,
        scratch_bytes: SCRATCH_BYTES as u64,
        spares: Spares::default(),
        peers: PeerRoom::default(),
        chunks: 0,
    }
}

/// A run of one rank in listing order.
pub(super) fn run(samples: u64, batch_size: u32, epochs: u64) -> Run {
    let start = Cursor { epoch: 0, position: 0 };
    let config = RunConfig {
        samples,
        seed: 0,
        order: OrderName::Global,
        shuffle: false,
        world: 1,
        rank: 0,
        batch_size,
        drop_last: false,
        epochs,
        start,
    };
    Run::new(config).unwrap()
}

/// The content of an object. Worked out once per thread.
pub(super) fn content(sample: SampleId, len: u64) -> Vec<u8> {
    whole(sample, len).to_vec()
}

type Content = Rc<[u8]>;

/// The same, not copied.
pub(super) fn whole(sample: SampleId, len: u64) -> Content {
    thread_local! {
        static MADE: RefCell<HashMap<(SampleId, u64), Content>> = RefCell::default();
    }
    let make = || (0..len).map(|at| (fuelrail_base::prng::mix64(sample.0 << 32 | at) >> 7) as u8).collect();
    MADE.with_borrow_mut(|made| Rc::clone(made.entry((sample, len)).or_insert_with(make)))
}

/// Lets virtual time pass until then; only the ring given waits for it.
pub(super) fn stand_still(world: &SimWorld, ring: &mut SimRing, until: Instant) {
    while world.now() < until {
        ring.wait(Some(until)).unwrap();
        world.advance();
    }
}

/// What the bucket was asked, by connection.
pub(super) type Heard = Rc<RefCell<Vec<(u64, String)>>>;

/// Serves `k/N` whole or in part. Told of trouble by the test.
pub(super) struct Bucket {
    pub(super) sizes: Vec<u64>,
    pub(super) heard: Heard,
    /// A connection is closed this long after its first request.
    pub(super) close_after: Option<Duration>,
    /// How long the answer to the n-th request takes; none for ever.
    pub(super) takes: Box<dyn FnMut(u64) -> Option<Duration>>,
    /// An answer comes in pieces of so many bytes, so long after each other.
    pub(super) drips: Option<(usize, Duration)>,
    /// A connection to an address that is alive stands after so long.
    pub(super) connects: Box<dyn FnMut(SocketAddr) -> Duration>,
    /// Nothing is ever answered.
    pub(super) mute: bool,
    /// A connection is closed after so many answers.
    pub(super) answers_max: usize,
    /// A line more in the head of the answer to the n-th request.
    pub(super) says: Box<dyn FnMut(u64) -> &'static str>,
    texts: HashMap<u64, Vec<u8>>,
    closes_at: HashMap<u64, Instant>,
    /// When a connection has answered all it was asked so far; none when it never will.
    done_at: HashMap<u64, Option<Instant>>,
}

impl Bucket {
    pub(super) fn new(sizes: &[u64]) -> Bucket {
        Bucket {
            sizes: sizes.to_vec(),
            heard: Heard::default(),
            close_after: None,
            takes: Box::new(|_| Some(Duration::from_millis(1))),
            drips: None,
            connects: Box::new(|_| Duration::from_micros(10)),
            mute: false,
            answers_max: usize::MAX,
            says: Box::new(|_| ""),
            texts: HashMap::new(),
            closes_at: HashMap::new(),
            done_at: HashMap::new(),
        }
    }

    pub(super) fn answer(&self, request: &str, says: &str) -> Vec<u8> {
        let path = request.split(' ').nth(1).unwrap();
        // Another rank is asked with the time of the use, and sends the checksum.
        let (path, at) = path.split_once('?').map_or((path, None), |(path, at)| (path, Some(at)));
        let sample: u32 = path.strip_prefix("/b/k/").and_then(|n| n.parse().ok()).expect("a known path");
        let size = self.sizes[sample as usize];
        let whole = whole(SampleId(sample.into()), size);
        let sum = BASE64_STANDARD.encode(crc32c::crc32c(&whole).to_be_bytes());
        let says = at.map_or(says.to_owned(), |_| format!("x-amz-checksum-crc32c: {sum}\r\n"));
        let range = request.lines().find_map(|line| line.strip_prefix("Range: bytes="));
        match range.and_then(|range| range.split_once('-')) {
            None => [format!("HTTP/1.1 200 OK\r\n{says}Content-Length: {size}\r\n\r\n").as_bytes(), &whole].concat(),
            Some((first, last)) => {
                let (from, to): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
                let head = format!(
                    "HTTP/1.1 206 Partial Content\r\n{says}Content-Range: bytes {from}-{to}/{size}\r\nContent-Length: {}\r\n\r\n",
                    to + 1 - from
                );
                [head.as_bytes(), &whole[from..=to]].concat()
            }
        }
    }
}

impl Host for Bucket {
    fn connect(&mut self, _: u64, addr: SocketAddr, _: Instant) -> (Duration, Result<(), i32>) {
        const ECONNREFUSED: i32 = 111;
        if addr.to_string() == DEAD {
            return (Duration::from_micros(10), Err(ECONNREFUSED));
        }
        ((self.connects)(addr), Ok(()))
    }

    fn receive(&mut self, conn: u64, bytes: &[u8], now: Instant, out: &mut Replies) {
        let text = self.texts.entry(conn).or_default();
        text.extend_from_slice(bytes);
        let mut requests = Vec::new();
        while let Some(end) = text.windows(4).position(|w| w == b"\r\n\r\n") {
            requests.push(String::from_utf8(text.drain(..end + 4).collect()).unwrap());
        }
        for request in requests {
            let asked = 1 + self.heard.borrow().iter().filter(|(heard, _)| *heard == conn).count();
            self.heard.borrow_mut().push((conn, request.clone()));
            if self.mute || self.closes_at.get(&conn).is_some_and(|at| now >= *at) {
                continue;
            }
            if asked > self.answers_max {
                out.finish(Duration::ZERO);
                return;
            }
            let nth = self.heard.borrow().len() as u64 - 1;
            let takes = (self.takes)(nth);
            let done_at = self.done_at.entry(conn).or_insert(Some(now));
            // A server answers one request after the other.
            *done_at = done_at.and_then(|done| Some(done.max(now).after(takes?)));
            if let Some(done) = *done_at {
                let says = (self.says)(nth);
                let answer = self.answer(&request, says);
                let (piece, pause) = self.drips.unwrap_or((answer.len(), Duration::ZERO));
                for (nth, piece) in (0..).zip(answer.chunks(piece)) {
                    out.send(done.since(now) + pause * nth, piece.to_vec());
                }
            }
        }
        if let (Some(after), false) = (self.close_after, self.closes_at.contains_key(&conn)) {
            self.closes_at.insert(conn, now.after(after));
            out.finish(after);
        }
    }

    fn closed(&mut self, conn: u64, _: Instant) {
        self.texts.remove(&conn);
    }
}
