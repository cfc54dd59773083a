//! Requests over keep-alive connections of HTTP.
//!
//! Owns the connections and the scratch memory they hold. Opens connections on demand up to the number wanted,
//! prefers idle ones, pipelines when all are busy, detects silence.

use super::transport::{Begin, Second, Transport, TransportIo};
use crate::addresses::Addresses;
use crate::conn::{Asked, Conn, Context, Exchange, HeadPredictor, State};
use crate::objects::Server;
use crate::peers::PeerRoute;
use fuelrail_base::limits::CONNECTIONS_PER_SHARD_MAX;
use fuelrail_base::{Duration, Error, Instant, Kind};
use fuelrail_io::{Done, Full, Op, Ring, Slot};
use fuelrail_plan::planner::FetchId;
use fuelrail_plan::schedule::UseTime;
use slab::Slab;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// The connections of one shard.
pub(super) struct Http {
    server: Server,
    /// Where the server is another rank's, and not the bucket's: how it is asked.
    peer: Option<PeerRoute>,
    /// Connections that requests may take which another rank may have to fetch first. It may be waiting for what the others request.
    pub(super) fetched_max: usize,
    /// Set in the token of every operation: which of a shard's servers it is for.
    lane: u64,
    conns: Slab<Conn>,
    /// The connection that became idle last, if it still is: most requests find their connection without a search.
    idle: usize,
    /// Connections that may have operations to push, each of them once.
    dirty: VecDeque<usize>,
    /// For each connection, whether it is among them.
    is_dirty: Vec<bool>,
    /// Scratch memory of connections that are not open; the last one used is the first one taken: it is warm.
    scratch: Vec<Slot>,
    predictor: HeadPredictor,
    host: String,
    /// The request being written.
    text: Vec<u8>,
    /// Its path.
    path: String,
    /// Its `If-Match` entity tag.
    tag: String,
    stall_after: Duration,
    next_sweep: Instant,
    /// Connections under way: their operation has not come back.
    connecting: usize,
    addresses: Addresses,
    /// Set when the system refuses another socket; cleared when one closes.
    sockets_exhausted: bool,
}

/// Bits of a token below those of its lane.
pub(super) const LANE_BITS: u32 = 48;

/// Which of a connection's ops a token names. A token is the connection's and not a block's: one receive brings the answers of
/// several pipelined requests.
const CONNECT: u64 = 0;
const SEND: u64 = 1;
const RECV: u64 = 2;

/// A connect that takes longer is given up for one to another address.
const CONNECT_PATIENCE: Duration = Duration::from_millis(250);
/// A response that is no longer needed is read to its end if it is no longer than this: a new connection costs more.
const DRAIN_BYTES_MAX: u64 = 256 << 10;

impl Transport for Http {
    fn pump<R: Ring>(&mut self, io: &mut TransportIo<R>, wanted: usize, depth: impl Fn(u64) -> usize) {
        // A proxy may close the connection after its first response, and lose the others by a reset.
        let depth_max = if self.server.go_between().is_some() { 1 } else { usize::MAX };
        while let Some(exchange) = io.requests.waiting.front() {
            let depth = depth(exchange.asked.len).min(depth_max);
            let may_be_fetched = |conn: &Conn| conn.front().is_some_and(|front| front.asked.may_be_fetched());
            if exchange.asked.may_be_fetched()
                && self.conns.iter().filter(|(_, conn)| may_be_fetched(conn)).count() >= self.fetched_max
            {
                break;
            }
            let Some(at) = self.choose(io, wanted, depth, None) else { break };
            let mut exchange = io.requests.take().expect("just seen");
            exchange.sent_at = io.now;
            self.send_request(io, at, exchange);
        }
        self.push_ops(io.ring);
    }

    fn done<R: Ring>(&mut self, io: &mut TransportIo<R>, done: Done) {
        let at = usize::try_from((done.token ^ self.lane) >> 2).expect("tokens are made from connection numbers");
        match done.op {
            Op::Connect { addr, .. } => self.connected(io, at, addr, done.result),
            Op::Send { bytes, from, .. } => {
                let rest = self.tell(io, at, |conn, cx| conn.sent(bytes, from, done.result, cx));
                if let Some(op) = rest
                    && let Err(Full(op)) = io.ring.push(op, done.token)
                {
                    self.conns[at].take_back(op);
                }
            }
            Op::Recv { into, .. } => {
                self.tell(io, at, |conn, cx| conn.received(into, done.result, cx));
                if !io.requests.progressed && done.result.is_ok_and(|got| got > 0) {
                    io.requests.progressed = self.conns[at].has_payload();
                }
                let stats = &mut io.requests.stats;
                (stats.heads_predicted, stats.heads_mispredicted) = (self.predictor.right, self.predictor.wrong);
                if let Some(agreed) = self.conns[at].take_agreed() {
                    stats.tls_handshakes += 1;
                    stats.tls_resumed += u64::from(agreed.resumed);
                }
            }
            op => unreachable!("a connection does not submit {op:?}"),
        }
        self.after(io, at);
    }

    fn sweep<R: Ring>(&mut self, io: &mut TransportIo<R>) -> Option<Instant> {
        if io.now >= self.next_sweep {
            self.fail_silent(io);
        }
        let hasten = self.hasten(io);
        let sweep = (io.requests.outstanding() > 0).then_some(self.next_sweep);
        [hasten, sweep].into_iter().flatten().min()
    }

    fn second<R: Ring>(
        &mut self,
        io: &mut TransportIo<R>,
        asked: Asked,
        depth: usize,
        begin: Option<impl Begin>,
    ) -> Second {
        let Some((first, since)) = self.front(asked.fetch) else { return Second::Early };
        let Some(begin) = begin else { return Second::NoRoom };
        let Some(at) = self.choose(io, usize::MAX, depth, Some(first)) else { return Second::NoRoom };
        let (spare, window) = begin(since);
        self.conns[first].set_hedged();
        // Nothing is queued behind a second request either: it may be slow, too.
        let (spare, hedged) = (Some(spare), true);
        let exchange = Exchange { spare, hedged, ..Exchange::new(asked, window, io.now) };
        io.requests.taken += 1;
        self.send_request(io, at, exchange);
        Second::Sent
    }

    fn cancel<R: Ring>(&mut self, io: &mut TransportIo<R>, fetch: FetchId) {
        if let Some((at, _)) = self.front(fetch) {
            self.give_up(io, at);
        }
    }

    fn cancel_seconds<R: Ring>(&mut self, io: &mut TransportIo<R>, fetch: FetchId) {
        while let Some((at, _)) = self.conns.iter().find(|(_, conn)| is_long_second(conn, fetch)) {
            self.give_up(io, at);
        }
    }

    fn close<R: Ring>(&mut self, ring: &mut R) {
        self.conns.iter().for_each(|(_, conn)| ring.close(conn.sock));
    }

    fn describe(&self, now: Instant) -> String {
        let busy = self.conns.iter().filter(|(_, conn)| conn.queued() > 0);
        let silence = busy.map(|(_, conn)| now.since(conn.last_heard)).max().unwrap_or_default().as_secs_f64();
        let (conns, shunned) = (self.conns.len(), self.addresses.shunned(now));
        format!("{conns} connections, longest silence {silence:.3} s, {shunned} addresses shunned")
    }
}

impl Http {
    /// Requests to a bucket's server, or another rank's; each server of a shard has a lane of its own.
    pub(super) fn new(
        (server, peer, lane): (Server, Option<PeerRoute>, u16),
        stall_after: Duration,
        scratch: Vec<Slot>,
    ) -> Http {
        Http {
            host: server.endpoint().authority(),
            addresses: Addresses::new(Arc::clone(server.addresses())),
            server,
            peer,
            fetched_max: usize::MAX,
            lane: u64::from(lane) << LANE_BITS,
            text: Vec::with_capacity(2048),
            path: String::with_capacity(1024),
            tag: String::with_capacity(64),
            conns: Slab::with_capacity(scratch.len()),
            idle: 0,
            dirty: VecDeque::with_capacity(scratch.len()),
            is_dirty: vec![false; scratch.len()],
            scratch,
            predictor: HeadPredictor::default(),
            stall_after,
            next_sweep: Instant::ZERO,
            connecting: 0,
            sockets_exhausted: false,
        }
    }

    /// Whether connections may have operations to push.
    pub(super) fn is_due(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Calls a method of a connection with its context.
    fn tell<R, T>(&mut self, io: &mut TransportIo<R>, at: usize, news: impl FnOnce(&mut Conn, &mut Context) -> T) -> T {
        news(&mut self.conns[at], &mut io.context(&mut self.predictor))
    }

    fn send_request<R: Ring>(&mut self, io: &mut TransportIo<R>, at: usize, exchange: Exchange) {
        let objects = &io.requests.objects;
        let asked = exchange.asked;
        let window = exchange.window.as_ref().expect("not sent yet");
        let landed = window.filled() as u64;
        let range = asked.ranged().then(|| (asked.first, asked.first + asked.len - 1));
        debug_assert_eq!(window.len() as u64 - landed, asked.len, "a request is for what is missing");
        self.text.clear();
        self.path.clear();
        self.tag.clear();
        match &self.peer {
            Some(peer) => {
                let at = asked.rank.map_or(UseTime(0), |rank| rank.at);
                peer.push_path(&mut self.path, asked.sample, at);
            }
            None => objects.endpoint().push_object_path(&mut self.path, objects.key(asked.sample)),
        }
        objects.push_strong_etag(asked.sample, &mut self.tag);
        let tag = Some(self.tag.as_str()).filter(|tag| !tag.is_empty());
        let written = fuelrail_wire::write_get(&mut self.text, &self.host, &self.path, range, tag);
        let signed = |()| match (&self.peer, io.requests.signatory.as_mut()) {
            (Some(peer), _) => {
                peer.add_lines(&mut self.text, &asked);
                Ok(())
            }
            (None, Some(signatory)) => signatory.sign_head(&mut self.text),
            (None, None) => Ok(()),
        };
        match written.and_then(signed) {
            Ok(()) => {
                if let Some(proxy) = self.server.go_between() {
                    proxy.address(&self.host, &mut self.text);
                }
                io.requests.stats.requests += 1;
                if let Err(error) = self.conns[at].request(exchange, &self.text) {
                    self.tell(io, at, |conn, cx| conn.fail(error, cx));
                }
                self.after(io, at);
            }
            Err(error) => io.requests.refuse(exchange, error),
        }
    }

    /// The connection for the next request: an idle one, else a new one while more are wanted, else the least busy. When
    /// fewer are wanted than are open, the later ones stay idle. A second request goes to another connection, preferably to
    /// another address.
    fn choose<R: Ring>(
        &mut self,
        io: &mut TransportIo<R>,
        wanted: usize,
        depth: usize,
        first: Option<usize>,
    ) -> Option<usize> {
        let is_idle = |conn: &Conn| conn.takes_requests() && conn.queued() == 0;
        if first.is_none() && self.idle < wanted && self.conns.get(self.idle).is_some_and(is_idle) {
            return Some(self.idle);
        }
        let slow = first.map(|first| self.conns[first].addr);
        let mut best = None;
        for (at, conn) in self.conns.iter().filter(|(_, conn)| conn.takes_requests()).take(wanted) {
            let load = (conn.queued(), Some(conn.addr) == slow, conn.outstanding_bytes());
            if load.0 < depth && Some(at) != first && best.is_none_or(|(least, _)| load < least) {
                best = Some((load, at));
                if load == (0, false, 0) {
                    break;
                }
            }
        }
        match best {
            Some(((0, ..), at)) => Some(at),
            _ if self.conns.len() < wanted.min(CONNECTIONS_PER_SHARD_MAX) => {
                self.open(io, slow).or(best.map(|(_, at)| at))
            }
            _ => best.map(|(_, at)| at),
        }
    }

    /// Opens a connection, preferably not to the address `slow`.
    fn open<R: Ring>(&mut self, io: &mut TransportIo<R>, slow: Option<SocketAddr>) -> Option<usize> {
        if self.scratch.is_empty() || (self.sockets_exhausted && !self.conns.is_empty()) {
            return None;
        }
        let (addr, made) = loop {
            let addr = self.addresses.choose(io.now, slow);
            let made = self.server.secure().and_then(|secure| Ok((io.ring.socket(&addr)?, secure)));
            let is_refused = made.as_ref().is_err_and(|error| error.kind() == Kind::Network);
            if !(is_refused && self.addresses.refused(addr)) {
                break (addr, made);
            }
        };
        match made {
            Ok((sock, secure)) => {
                let entry = self.conns.vacant_entry();
                let at = entry.key();
                if io.ring.push(Op::Connect { sock, addr }, self.lane | (at as u64) << 2 | CONNECT).is_err() {
                    io.ring.close(sock);
                    return None;
                }
                let scratch = self.scratch.pop().expect("looked at above");
                entry.insert(
                    Conn::new(sock, addr, scratch, secure, io.now).closes_silently(self.server.go_between().is_some()),
                );
                io.requests.stats.connections += 1;
                io.requests.stats.connections_open += 1;
                self.connecting += 1;
                Some(at)
            }
            Err(error) => {
                self.sockets_exhausted = error.kind() != Kind::Network;
                if self.conns.is_empty()
                    && let Some(exchange) = io.requests.take()
                {
                    io.requests.refuse(exchange, error);
                }
                None
            }
        }
    }

    /// Marks a connection for the next pump. A busy one gets many requests before it: more than the queue has room for.
    fn mark(&mut self, at: usize) {
        if !std::mem::replace(&mut self.is_dirty[at], true) {
            self.dirty.push_back(at);
        }
    }

    fn push_ops<R: Ring>(&mut self, ring: &mut R) {
        for _ in 0..self.dirty.len() {
            let Some(at) = self.dirty.pop_front() else { return };
            self.is_dirty[at] = false;
            let Some(conn) = self.conns.get_mut(at) else { continue };
            if !push_due(ring, conn, self.lane | (at as u64) << 2, &self.predictor) {
                self.mark(at);
                return;
            }
        }
    }

    fn connected<R: Ring>(&mut self, io: &mut TransportIo<R>, at: usize, addr: SocketAddr, result: Result<usize, i32>) {
        self.connecting -= 1;
        let result = match result {
            Ok(_) => {
                self.addresses.connected(addr);
                Ok(())
            }
            Err(errno) => {
                if self.conns[at].state == State::Connecting {
                    self.addresses.failed(addr, io.now);
                }
                let error = Error::from_errno(Kind::Network, &format!("connecting to {addr}"), errno)
                    .with_hint("check that the server is running and the address is correct");
                Err(match self.server.go_between() {
                    Some(proxy) => proxy.error(error.kind(), error.cause()),
                    None => error,
                })
            }
        };
        self.tell(io, at, |conn, cx| conn.connected(result, cx));
    }

    /// Closes and removes a finished connection; marks any other for the next pump.
    fn after<R: Ring>(&mut self, io: &mut TransportIo<R>, at: usize) {
        let conn = &mut self.conns[at];
        if conn.state == State::Closing {
            if !conn.close_sent {
                conn.close_sent = true;
                io.ring.close(conn.sock);
            }
            if conn.is_quiet() {
                io.requests.stats.connections_failed += u64::from(conn.failed);
                io.requests.stats.connections_open -= 1;
                self.scratch.extend(self.conns.remove(at).into_scratch());
                self.sockets_exhausted = false;
            }
        } else {
            if conn.queued() == 0 {
                self.idle = at;
            }
            self.mark(at);
        }
    }

    /// The connection whose next response is this fetch's, and when its request was sent.
    fn front(&self, fetch: FetchId) -> Option<(usize, Instant)> {
        self.conns.iter().filter(|(_, conn)| conn.state != State::Closing).find_map(|(at, conn)| {
            let front = conn.front().filter(|front| front.asked.fetch == fetch && !front.asked.second)?;
            Some((at, front.sent_at))
        })
    }

    /// Closes a connection whose slow request is sent elsewhere: its window returns once its operations are reaped.
    fn give_up<R: Ring>(&mut self, io: &mut TransportIo<R>, at: usize) {
        let error = Error::new(Kind::Cancelled, "it took too long, and was requested over another connection");
        self.tell(io, at, |conn, cx| conn.fail(error, cx));
        self.after(io, at);
    }

    /// Fails connections that have been silent for too long, or that trickle.
    fn fail_silent<R: Ring>(&mut self, io: &mut TransportIo<R>) {
        let (now, patience) = (io.now, self.stall_after);
        self.next_sweep = now.after(patience / 4);
        let mut stuck = Vec::new();
        for (at, conn) in &mut self.conns {
            let silence = now.since(conn.last_heard);
            if silence >= patience / 4
                && let Some(op) = conn.lose_patience()
            {
                io.ring.cancel(op);
            }
            if conn.state == State::Closing || conn.queued() == 0 {
                continue;
            }
            let (trickles, secs) = (conn.trickles(patience, now), patience.as_secs_f64());
            if silence >= patience {
                stuck.push((at, Error::new(Kind::Stalled, format!("no byte was received for {secs} s"))));
            } else if let Some(came) = trickles {
                stuck.push((at, Error::new(Kind::Stalled, format!("only {came} bytes were received in {secs} s"))));
            }
        }
        for (at, error) in stuck {
            if self.conns[at].state == State::Connecting {
                self.addresses.failed(self.conns[at].addr, now);
            }
            self.tell(io, at, |conn, cx| conn.fail(error, cx));
            self.after(io, at);
        }
    }

    /// Gives up connects that take long where another address may be better (as in Happy Eyeballs, RFC 8305): their requests go
    /// there. Returns when to check again.
    fn hasten<R: Ring>(&mut self, io: &mut TransportIo<R>) -> Option<Instant> {
        if self.connecting == 0 {
            return None;
        }
        let now = io.now;
        let late = |conn: &Conn| conn.opened_at.after(CONNECT_PATIENCE);
        while let Some((at, conn)) = self.conns.iter().find(|(_, conn)| {
            conn.state == State::Connecting && late(conn) <= now && self.addresses.has_other(conn.addr, now)
        }) {
            self.addresses.failed(conn.addr, now);
            self.give_up(io, at);
        }
        let waiting = self.conns.iter().map(|(_, conn)| conn).filter(|conn| conn.state == State::Connecting);
        waiting.filter(|conn| self.addresses.has_other(conn.addr, now)).map(late).min().map(|at| at.max(now))
    }
}

/// Pushes the operations due on a connection. False when the ring is full and some stay due.
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

/// Whether a connection has only a second request of this fetch, whose response is too long to be read to its end.
fn is_long_second(conn: &Conn, fetch: FetchId) -> bool {
    let long = |asked: Asked| asked.fetch == fetch && asked.second && asked.len > DRAIN_BYTES_MAX;
    conn.state != State::Closing && conn.queued() == 1 && conn.front().is_some_and(|front| long(front.asked))
}
