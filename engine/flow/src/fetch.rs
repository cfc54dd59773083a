//! The fetch stage: requests spread over keep-alive connections.
//!
//! Owns the connections and the scratch memory they hold. Opens connections on demand up to the number the brain wants,
//! prefers idle ones, pipelines when all are busy, notices silence. Never decides what to fetch or whether to try again.

use crate::addresses::Addresses;
use crate::conn::{Asked, Conn, Context, Exchange, Fault, HeadPredictor, Outcome, State};
use crate::credential::{Signatory, judged};
use crate::objects::Objects;
use files::Files;
use fuelrail_base::limits::CONNECTIONS_PER_SHARD_MAX;
use fuelrail_base::metrics::Histogram;
use fuelrail_base::{Duration, Error, Instant, Kind, WallTime};
use fuelrail_io::{Done, Full, Op, Ring, Slot, Window};
use fuelrail_wire::Scheme;
use slab::Slab;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

mod files;
mod patience;
mod second;

/// Counters of the fetch stage since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FetchStats {
    /// Requests written.
    pub requests: u64,
    /// Connections opened.
    pub connections: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections closed because of an error.
    pub connections_failed: u64,
    /// TLS handshakes that ended well.
    pub tls_handshakes: u64,
    /// Those that a ticket of an earlier connection made short.
    pub tls_resumed: u64,
    /// Payload bytes landed.
    pub landed_bytes: u64,
    /// Payload bytes our own code copied on the way to their place.
    pub copied_bytes: u64,
    /// Response heads whose length was guessed right.
    pub heads_predicted: u64,
    /// Response heads whose length was guessed wrong.
    pub heads_mispredicted: u64,
}

/// The fetch stage of one shard.
pub(crate) struct FetchStage {
    objects: Arc<Objects>,
    conns: Slab<Conn>,
    /// Connections that may have something to push.
    dirty: VecDeque<usize>,
    /// Scratch memory of connections that are not open; the last one used is the first one taken: it is warm.
    scratch: Vec<Slot>,
    predictor: HeadPredictor,
    outcomes: Vec<Outcome>,
    waiting: VecDeque<Exchange>,
    signatory: Option<Signatory>,
    host: String,
    /// The request being written.
    text: Vec<u8>,
    /// Its path.
    path: String,
    /// The entity tag it insists on.
    tag: String,
    stall_after: Duration,
    next_sweep: Instant,
    /// Connections under way: their operation has not come back.
    connecting: usize,
    addresses: Addresses,
    /// What is read instead of asked for, where the bucket is a folder.
    files: Option<Files>,
    /// Set when the system refuses another socket; cleared when one closes.
    sockets_exhausted: bool,
    stats: FetchStats,
    /// Time from request to last byte.
    pub get_latency: Histogram,
}

/// Which of a connection's ops a token names.
const CONNECT: u64 = 0;
const SEND: u64 = 1;
const RECV: u64 = 2;

impl FetchStage {
    pub(crate) fn new(objects: Arc<Objects>, stall_after: Duration, scratch: Vec<Slot>) -> FetchStage {
        FetchStage {
            signatory: objects.signatory(),
            host: objects.endpoint().authority(),
            addresses: Addresses::new(Arc::clone(objects.addresses())),
            files: (objects.endpoint().scheme == Scheme::File).then(Files::new),
            text: Vec::with_capacity(2048),
            path: String::with_capacity(1024),
            tag: String::with_capacity(64),
            objects,
            conns: Slab::with_capacity(CONNECTIONS_PER_SHARD_MAX),
            dirty: VecDeque::with_capacity(CONNECTIONS_PER_SHARD_MAX),
            scratch,
            predictor: HeadPredictor::default(),
            outcomes: Vec::with_capacity(256),
            waiting: VecDeque::with_capacity(256),
            stall_after,
            next_sweep: Instant::ZERO,
            connecting: 0,
            sockets_exhausted: false,
            stats: FetchStats::default(),
            get_latency: Histogram::new(),
        }
    }

    /// Takes a request for the missing end of `window`. It waits when no connection has a place.
    pub(crate) fn request(&mut self, asked: Asked, window: Window, now: Instant) {
        let exchange = Exchange::new(asked, window, now);
        match &mut self.files {
            Some(files) => files.request(exchange),
            None => self.waiting.push_back(exchange),
        }
    }

    /// Requests that wait for a place on a connection.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.files.as_ref().map_or(0, Files::waiting)
    }

    /// Requests sent or about to be sent on connections.
    pub(crate) fn outstanding(&self) -> usize {
        let sent: usize = self.conns.iter().map(|(_, c)| c.queued()).sum();
        sent + self.files.as_ref().map_or(0, Files::outstanding)
    }

    /// Whether a request is on a connection.
    fn is_busy(&self) -> bool {
        self.conns.iter().any(|(_, conn)| conn.queued() > 0) || self.files.as_ref().is_some_and(|f| f.outstanding() > 0)
    }

    /// Gives waiting requests to connections and pushes all ops that are due. `depth` tells how many requests of a length
    /// may be outstanding on one connection.
    pub(crate) fn pump<R: Ring>(&mut self, ring: &mut R, now: Instant, wanted: usize, depth: impl Fn(u64) -> usize) {
        if let Some(files) = &mut self.files {
            return files.pump(ring, wanted, &self.objects, &mut self.outcomes);
        }
        // A proxy may close the connection behind its first answer, and take the others with it by a reset.
        let depth_max = if self.objects.go_between().is_some() { 1 } else { usize::MAX };
        while let Some(exchange) = self.waiting.front() {
            let depth = depth(exchange.asked.len).min(depth_max);
            let Some(at) = self.choose(ring, now, wanted, depth) else { break };
            let mut exchange = self.waiting.pop_front().expect("just seen");
            exchange.sent_at = now;
            self.send_request(at, exchange);
        }
        self.push_ops(ring);
    }

    fn send_request(&mut self, at: usize, exchange: Exchange) {
        let asked = exchange.asked;
        let window = exchange.window.as_ref().expect("not sent yet");
        let landed = window.filled() as u64;
        let range = asked.ranged().then(|| (asked.first, asked.first + asked.len - 1));
        debug_assert_eq!(window.len() as u64 - landed, asked.len, "a request asks for what is missing");
        let key = self.objects.key(asked.sample);
        self.text.clear();
        self.path.clear();
        self.objects.endpoint().push_object_path(&mut self.path, key);
        self.tag.clear();
        self.objects.push_strong_etag(asked.sample, &mut self.tag);
        let tag = Some(self.tag.as_str()).filter(|tag| !tag.is_empty());
        let written = fuelrail_wire::write_get(&mut self.text, &self.host, &self.path, range, tag);
        let signed = |()| self.signatory.as_mut().map_or(Ok(()), |signatory| signatory.sign_head(&mut self.text));
        match written.and_then(signed) {
            Ok(()) => {
                if let Some(proxy) = self.objects.go_between() {
                    proxy.address(&self.host, &mut self.text);
                }
                self.conns[at].request(exchange, &self.text);
                self.stats.requests += 1;
                self.dirty.push_back(at);
            }
            Err(error) => self.refuse(exchange, error),
        }
    }

    /// The connection for the next request: an idle one, else a new one while more are wanted, else the least busy. When
    /// fewer are wanted than are open, the later ones rest.
    fn choose<R: Ring>(&mut self, ring: &mut R, now: Instant, wanted: usize, depth: usize) -> Option<usize> {
        let mut best = None;
        for (at, conn) in self.conns.iter().filter(|(_, conn)| conn.takes_requests()).take(wanted) {
            let load = (conn.queued(), conn.outstanding_bytes());
            if load.0 == 0 {
                return Some(at);
            }
            if load.0 < depth && best.is_none_or(|(least, _)| load < least) {
                best = Some((load, at));
            }
        }
        let best = best.map(|(_, at)| at);
        if self.conns.len() < wanted.min(CONNECTIONS_PER_SHARD_MAX) {
            self.open(ring, now, None).or(best)
        } else {
            best
        }
    }

    /// Opens a connection, rather not to the address `slow`.
    fn open<R: Ring>(&mut self, ring: &mut R, now: Instant, slow: Option<SocketAddr>) -> Option<usize> {
        if self.sockets_exhausted && !self.conns.is_empty() {
            return None;
        }
        if self.scratch.is_empty() {
            return None;
        }
        let addr = self.addresses.choose(now, slow);
        let made = self.objects.secure().and_then(|secure| Ok((ring.socket(&addr)?, secure)));
        match made {
            Ok((sock, secure)) => {
                let scratch = self.scratch.pop()?;
                let conn = Conn::new(sock, addr, scratch, secure, now);
                let at = self.conns.insert(conn.fickle(self.objects.go_between().is_some()));
                self.stats.connections += 1;
                self.connecting += 1;
                let token = (at as u64) << 2 | CONNECT;
                if let Err(Full(_)) = ring.push(Op::Connect { sock, addr }, token) {
                    ring.close(sock);
                    self.connecting -= 1;
                    self.scratch.extend(self.conns.remove(at).into_scratch());
                    return None;
                }
                Some(at)
            }
            Err(error) => {
                self.sockets_exhausted = true;
                if self.conns.is_empty()
                    && let Some(exchange) = self.waiting.pop_front()
                {
                    self.refuse(exchange, error);
                }
                None
            }
        }
    }

    /// A request that cannot even be sent.
    fn refuse(&mut self, exchange: Exchange, error: Error) {
        self.outcomes.push(Outcome::failed(exchange, Fault::new(error)));
    }

    fn push_ops<R: Ring>(&mut self, ring: &mut R) {
        for _ in 0..self.dirty.len() {
            let Some(at) = self.dirty.pop_front() else { return };
            let Some(conn) = self.conns.get_mut(at) else { continue };
            if !push_due(ring, conn, (at as u64) << 2, &self.predictor) {
                self.dirty.push_back(at);
                return;
            }
        }
    }

    /// An op came home from the ring.
    pub(crate) fn done<R: Ring>(&mut self, ring: &mut R, now: Instant, done: Done) {
        if let Some(files) = &mut self.files {
            return files.done(ring, done, &mut self.outcomes);
        }
        let at = usize::try_from(done.token >> 2).expect("tokens are made from connection numbers");
        let conn = &mut self.conns[at];
        let mut cx = Context {
            now,
            predictor: &mut self.predictor,
            outcomes: &mut self.outcomes,
            copied_bytes: &mut self.stats.copied_bytes,
        };
        match done.op {
            Op::Connect { addr, .. } => {
                self.connecting -= 1;
                if let Err(errno) = done.result {
                    if conn.state == State::Connecting {
                        self.addresses.failed(addr, now);
                    }
                    let error = Error::from_errno(Kind::Network, &format!("connecting to {addr}"), errno)
                        .with_hint("check that the server runs and the address is right");
                    let error = match self.objects.go_between() {
                        Some(proxy) => proxy.error(error.kind(), error.cause()),
                        None => error,
                    };
                    conn.connected(Err(error), &mut cx);
                } else {
                    self.addresses.connected(addr);
                    conn.connected(Ok(()), &mut cx);
                }
            }
            Op::Send { bytes, from, .. } => {
                let rest = conn.sent(bytes, from, done.result, &mut cx);
                if let Some(op) = rest
                    && let Err(Full(op)) = ring.push(op, done.token)
                {
                    conn.take_back(op);
                }
            }
            Op::Recv { into, .. } => {
                conn.received(into, done.result, &mut cx);
                if let Some(agreed) = conn.take_agreed() {
                    self.stats.tls_handshakes += 1;
                    self.stats.tls_resumed += u64::from(agreed.resumed);
                }
            }
            op => unreachable!("a connection asked for {op:?}"),
        }
        self.after(ring, at);
    }

    /// Closes and forgets what is finished, else marks the connection for the next pump.
    fn after<R: Ring>(&mut self, ring: &mut R, at: usize) {
        let conn = &mut self.conns[at];
        if conn.state == State::Closing {
            if !conn.close_sent {
                conn.close_sent = true;
                ring.close(conn.sock());
            }
            if conn.is_quiet() {
                self.stats.connections_failed += u64::from(conn.failed);
                self.scratch.extend(self.conns.remove(at).into_scratch());
                self.sockets_exhausted = false;
            }
        } else {
            self.dirty.push_back(at);
        }
    }

    /// Closes every connection, for good: what they have under way comes back through the ring.
    pub(crate) fn close<R: Ring>(&mut self, ring: &mut R) {
        self.conns.iter().for_each(|(_, conn)| ring.close(conn.sock()));
        if let Some(files) = &mut self.files {
            files.close(ring);
        }
    }

    /// What an error of this stage means, given who asked.
    pub(crate) fn judged(&self, error: Error, server_time: Option<WallTime>) -> Error {
        let error = match self.objects.go_between() {
            Some(proxy) => proxy.spared(error),
            None => error,
        };
        judged(error, self.signatory.as_ref().map(|signatory| &**signatory.authority()), server_time)
    }

    /// Something ended since [`outcomes`](FetchStage::outcomes) was called.
    pub(crate) fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// What ended since the last call.
    pub(crate) fn outcomes(&mut self) -> Vec<Outcome> {
        core::mem::take(&mut self.outcomes)
    }

    /// Gives an emptied outcome list back, so that its memory is used again.
    pub(crate) fn recycle(&mut self, mut outcomes: Vec<Outcome>) {
        outcomes.clear();
        if self.outcomes.is_empty() {
            self.outcomes = outcomes;
        }
    }

    pub(crate) fn landed(&mut self, bytes: u64, latency: Duration) {
        self.stats.landed_bytes += bytes;
        self.get_latency.record(latency);
    }

    pub(crate) fn stats(&self) -> FetchStats {
        FetchStats {
            connections_open: self.conns.len() as u64,
            heads_predicted: self.predictor.right,
            heads_mispredicted: self.predictor.wrong,
            requests: self.stats.requests + self.files.as_ref().map_or(0, |files| files.begun),
            ..self.stats
        }
    }

    /// One line for the watchdog.
    pub(crate) fn describe(&self, now: Instant) -> String {
        let oldest = self.conns.iter().filter(|(_, c)| c.queued() > 0).map(|(_, c)| now.since(c.last_heard)).max();
        format!(
            "fetch: {} connections, {} requests outstanding, {} waiting for a place, longest silence {:.3} s, {} addresses shunned",
            self.conns.len(),
            self.outstanding(),
            self.waiting.len(),
            oldest.unwrap_or_default().as_secs_f64(),
            self.addresses.shunned(now),
        )
    }
}

/// Pushes what is due on a connection. False when the ring is full: something stays due.
fn push_due<R: Ring>(ring: &mut R, conn: &mut Conn, token: u64, predictor: &HeadPredictor) -> bool {
    if let Some(op) = conn.send_op()
        && let Err(Full(op)) = ring.push(op, token | SEND)
    {
        conn.take_back(op);
        return false;
    }
    if let Some(op) = conn.recv_op(predictor) {
        let patience = if let Op::Recv { into, .. } = &op { into.patience_bytes() } else { 0 };
        match ring.push(op, token | RECV) {
            Ok(id) => conn.receives(id, patience),
            Err(Full(op)) => {
                conn.take_back(op);
                return false;
            }
        }
    }
    true
}
