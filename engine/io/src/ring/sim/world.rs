//! The simulated world: its clock, its events, its connections, and what each ring has going on.
//!
//! Every choice comes from one seeded generator and every container iterates in a fixed order, so a run is a function
//! of its seed and of what the rings ask for.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Error, Instant, Kind, Result};

use super::conn::{Conn, Phase};
use super::faults::{SimCounts, SimFaults};
use super::host::{Host, Replies, Reply};
use crate::ring::desk::Desk;
use crate::ring::table::Name;
use crate::ring::{Done, Full, Op, OpId, RingCounts, SockId};
use crate::timer::{TimerKey, Timers};
use crate::wake::Waker;

/// An operation of one of the rings: ring number and name as bits, which sort.
pub(super) type FlightKey = (usize, u64);

#[derive(Debug)]
enum Event {
    /// A delayed operation starts.
    Start(FlightKey),
    /// A connect is answered.
    Connected(FlightKey, u64, Result<(), i32>),
    /// An answer of a peer arrives.
    Arrive(u64, Reply),
    /// A cancellation takes effect.
    Cancel(FlightKey),
}

/// Where an operation is that has been submitted and has not landed.
#[derive(Debug)]
enum Stage {
    /// An event will move it on; a connect also names its connection.
    Scheduled(TimerKey, Option<u64>),
    /// It waits for bytes on this connection.
    Receiving(u64),
}

struct Seat {
    desk: Desk<u64>,
    waker: Waker,
    /// Pushed, not submitted.
    queued: Vec<Name>,
    /// To be cancelled at the next submission; the flag says whether its socket is closing.
    cancels: Vec<(Name, bool)>,
    /// Done, not seen by the ring.
    landed: Vec<(Name, i32)>,
    /// When the ring wants to be woken.
    wanted: Option<Instant>,
}

pub(super) struct World {
    now: Instant,
    prng: Prng,
    faults: SimFaults,
    counts: SimCounts,
    host: Box<dyn Host>,
    events: Timers<Event>,
    seats: Vec<Option<Seat>>,
    conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    stages: BTreeMap<FlightKey, Stage>,
}

impl World {
    pub(super) fn new(seed: u64, faults: SimFaults, host: Box<dyn Host>) -> World {
        World {
            now: Instant::ZERO,
            prng: Prng::new(seed),
            faults,
            counts: SimCounts::default(),
            host,
            events: Timers::new(),
            seats: Vec::new(),
            conns: BTreeMap::new(),
            next_conn: 0,
            stages: BTreeMap::new(),
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    pub(super) fn counts(&self) -> SimCounts {
        self.counts
    }

    pub(super) fn advance(&mut self) -> bool {
        let seats = || self.seats.iter().flatten();
        if seats().any(|seat| seat.waker.is_notified()) {
            return true;
        }
        let wanted = seats().filter_map(|seat| seat.wanted).min();
        let Some(next) = self.events.next().into_iter().chain(wanted).min() else { return false };
        self.now = self.now.max(next);
        while let Some(event) = self.events.pop_due(self.now) {
            self.happen(event);
        }
        for seat in self.seats.iter_mut().flatten() {
            seat.wanted = seat.wanted.filter(|wanted| *wanted > self.now);
        }
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(key) => {
                self.stages.remove(&key);
                self.perform(key);
            }
            Event::Connected(key, conn, result) => {
                self.stages.remove(&key);
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.phase = result.map_or_else(Phase::Broken, |()| Phase::Open);
                }
                self.land(key, result.map_or_else(|errno| -errno, |()| 0));
            }
            Event::Arrive(id, reply) => {
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.arrive(reply);
                    self.serve_receivers(id);
                }
            }
            Event::Cancel(key) => self.cancel_now(key),
        }
    }

    // What the rings call.

    pub(super) fn add_ring(&mut self, entries: u32, sockets: u32, waker: Waker) -> usize {
        self.seats.push(Some(Seat {
            desk: Desk::new(entries, sockets, self.now),
            waker,
            queued: Vec::new(),
            cancels: Vec::new(),
            landed: Vec::new(),
            wanted: None,
        }));
        self.seats.len() - 1
    }

    pub(super) fn remove_ring(&mut self, ring: usize) {
        let Some(seat) = self.seats[ring].take() else { return };
        let first = (ring, 0);
        while let Some((&key, _)) = self.stages.range(first..(ring + 1, 0)).next() {
            self.unstage(key);
        }
        let conns: Vec<u64> = seat.desk.sockets().copied().collect();
        for conn in conns {
            self.hang_up(conn);
        }
    }

    fn seat(&mut self, ring: usize) -> &mut Seat {
        self.seats[ring].as_mut().expect("a ring has its seat until it is dropped")
    }

    pub(super) fn socket(&mut self, ring: usize) -> Result<SockId> {
        let conn = self.next_conn;
        let id = self.seat(ring).desk.open(conn).map_err(|_| {
            Error::new(Kind::Budget, "all sockets of this ring are open")
                .cure("close some first, or give the ring a larger socket table")
        })?;
        self.next_conn += 1;
        self.conns.insert(conn, Conn::new());
        Ok(id)
    }

    pub(super) fn close(&mut self, ring: usize, sock: SockId) {
        let mut flying = Vec::new();
        let seat = self.seat(ring);
        seat.desk.close(sock, &mut flying);
        seat.cancels.extend(flying.into_iter().map(|name| (name, true)));
        self.close_idle_socks(ring);
    }

    #[expect(clippy::result_large_err, reason = "the operation comes back whole: it owns memory")]
    pub(super) fn push(&mut self, ring: usize, op: Op, token: u64) -> Result<OpId, Full> {
        let seat = self.seat(ring);
        let (name, flies) = seat.desk.book(op, token)?;
        if flies {
            seat.queued.push(name);
        }
        Ok(OpId { index: name.index, generation: name.generation })
    }

    pub(super) fn cancel(&mut self, ring: usize, name: Name) {
        let seat = self.seat(ring);
        if seat.desk.mark_cancelled(name) {
            seat.cancels.push((name, false));
        }
    }

    pub(super) fn wait(&mut self, ring: usize, until: Option<Instant>) {
        let now = self.now;
        let seat = self.seat(ring);
        let (queued, cancels) = (core::mem::take(&mut seat.queued), core::mem::take(&mut seat.cancels));
        let notified = seat.waker.is_notified();
        seat.waker.disarm();
        seat.desk.submitting(now);
        seat.desk.counts.wakes += u64::from(notified);
        for name in queued.iter().copied() {
            self.submit((ring, name.to_bits()));
        }
        for (name, closing) in cancels.iter().copied() {
            self.submit_cancel((ring, name.to_bits()), closing);
        }
        self.reap(ring);
        let seat = self.seat(ring);
        let sleeps = !seat.desk.has_ready() && !notified && until.is_none_or(|until| until > now);
        seat.wanted = if sleeps { until } else { None };
        seat.desk.counts.sleeps += u64::from(sleeps);
        seat.desk.counts.enters += u64::from(sleeps || !queued.is_empty() || !cancels.is_empty());
    }

    pub(super) fn pop(&mut self, ring: usize) -> Option<Done> {
        self.seat(ring).desk.pop()
    }

    pub(super) fn in_flight(&self, ring: usize) -> usize {
        self.seats[ring].as_ref().map_or(0, |seat| seat.desk.in_flight)
    }

    pub(super) fn ring_counts(&self, ring: usize) -> RingCounts {
        self.seats[ring].as_ref().map_or(RingCounts::default(), |seat| seat.desk.counts)
    }

    // What happens to an operation.

    fn submit(&mut self, key: FlightKey) {
        if self.faults.delay > 0.0 && self.prng.chance(self.faults.delay) {
            self.counts.delays += 1;
            let by = self.some_delay();
            self.schedule(key, by, None, Event::Start(key));
        } else {
            self.perform(key);
        }
    }

    fn perform(&mut self, key: FlightKey) {
        let Some((op, conn)) = self.flight(key) else { return };
        let connecting = match op {
            Op::Connect { .. } => true,
            Op::Send { .. } | Op::Recv { .. } => false,
        };
        if self.prng.chance(self.faults.transient_errno) {
            self.counts.transient_errnos += 1;
            let errno = self.pick(&[libc::EINTR, libc::EAGAIN, libc::ENOBUFS]);
            return self.land(key, -errno);
        }
        if self.prng.chance(self.faults.fatal_errno) {
            self.counts.fatal_errnos += 1;
            let errno = match connecting {
                true => self.pick(&[libc::ECONNREFUSED, libc::ETIMEDOUT]),
                false => self.pick(&[libc::ECONNRESET, libc::ETIMEDOUT, libc::EPIPE]),
            };
            self.snap(conn, errno);
            return self.land(key, -errno);
        }
        match self.flight(key).map(|(op, _)| op) {
            Some(Op::Connect { addr, .. }) => {
                let addr = *addr;
                self.perform_connect(key, conn, addr);
            }
            Some(Op::Send { bytes, from, .. }) => {
                let rest = bytes[*from..].to_vec();
                self.perform_send(key, conn, &rest);
            }
            Some(Op::Recv { .. }) => {
                self.stages.insert(key, Stage::Receiving(conn));
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.receivers.push_back(key);
                }
                self.serve_receivers(conn);
            }
            None => {}
        }
    }

    fn perform_connect(&mut self, key: FlightKey, id: u64, addr: SocketAddr) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        match conn.phase {
            Phase::Fresh => {}
            Phase::Broken(errno) => return self.land(key, -errno),
            Phase::Connecting => return self.land(key, -libc::EALREADY),
            Phase::Open => return self.land(key, -libc::EISCONN),
        }
        conn.phase = Phase::Connecting;
        let (after, result) = self.host.connect(id, addr, self.now);
        conn.host_knows = result.is_ok();
        self.schedule(key, after, Some(id), Event::Connected(key, id, result));
    }

    fn perform_send(&mut self, key: FlightKey, id: u64, bytes: &[u8]) {
        let Some(conn) = self.conns.get(&id) else { return };
        match conn.phase {
            Phase::Open => {}
            Phase::Broken(errno) => return self.land(key, -errno),
            Phase::Fresh | Phase::Connecting => return self.land(key, -libc::ENOTCONN),
        }
        let mut n = bytes.len();
        if n > 1 && self.prng.chance(self.faults.short_send) {
            self.counts.short_sends += 1;
            n = 1 + self.prng.below(n as u64 - 1) as usize;
        }
        let mut replies = Replies::default();
        self.host.receive(id, &bytes[..n], self.now, &mut replies);
        self.schedule_replies(id, replies);
        self.land(key, n as i32);
    }

    fn schedule_replies(&mut self, id: u64, replies: Replies) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        for (after, reply) in replies.list {
            if conn.stalled {
                return;
            }
            match reply {
                Reply::Stall => conn.stalled = true,
                reply => {
                    conn.last_arrival = conn.last_arrival.max(self.now.after(after));
                    self.events.insert(conn.last_arrival, Event::Arrive(id, reply));
                }
            }
        }
    }

    /// Gives waiting receives what has arrived, oldest first.
    fn serve_receivers(&mut self, id: u64) {
        loop {
            let Some(conn) = self.conns.get_mut(&id) else { return };
            let (Some(&key), Some(readable)) = (conn.receivers.front(), conn.readable()) else { return };
            conn.receivers.pop_front();
            self.stages.remove(&key);
            let result = match readable {
                Ok(0) => 0,
                Ok(available) => self.receive(key, id, available),
                Err(errno) => -errno,
            };
            self.land(key, result);
        }
    }

    fn receive(&mut self, key: FlightKey, id: u64, available: usize) -> i32 {
        let asked = match self.flight(key) {
            Some((Op::Recv { into, .. }, _)) => into.asked(),
            _ => return 0,
        };
        let mut n = available.min(asked);
        if n > 1 && self.prng.chance(self.faults.short_receive) {
            self.counts.short_receives += 1;
            n = 1 + self.prng.below(n as u64 - 1) as usize;
        }
        let mut bytes = self.conns.get_mut(&id).map_or_else(Vec::new, |conn| conn.take(n));
        if self.prng.chance(self.faults.corrupt) {
            self.counts.corruptions += 1;
            let bit = self.prng.below(8 * n as u64);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        if let Some((Op::Recv { into, .. }, _)) = self.flight(key) {
            into.write(&bytes);
        }
        n as i32
    }

    fn submit_cancel(&mut self, key: FlightKey, closing: bool) {
        // Closing a socket is not a race against its peer; a cancellation is, when time passes at all.
        if !closing && self.faults.delay > 0.0 && self.prng.chance(self.faults.delay) {
            let by = self.some_delay();
            self.events.insert(self.now.after(by), Event::Cancel(key));
        } else {
            self.cancel_now(key);
        }
    }

    fn cancel_now(&mut self, key: FlightKey) {
        if self.unstage(key) {
            self.land(key, -libc::ECANCELED);
        }
    }

    /// Takes a submitted operation out of whatever it waits for; false when it has landed.
    fn unstage(&mut self, key: FlightKey) -> bool {
        match self.stages.remove(&key) {
            Some(Stage::Scheduled(timer, conn)) => {
                self.events.cancel(timer);
                if let Some(conn) = conn.and_then(|conn| self.conns.get_mut(&conn)) {
                    conn.break_with(libc::ECANCELED);
                }
                true
            }
            Some(Stage::Receiving(conn)) => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.receivers.retain(|waiting| *waiting != key);
                }
                true
            }
            None => false,
        }
    }

    fn schedule(&mut self, key: FlightKey, after: Duration, conn: Option<u64>, event: Event) {
        let timer = self.events.insert(self.now.after(after), event);
        self.stages.insert(key, Stage::Scheduled(timer, conn));
    }

    fn land(&mut self, (ring, bits): FlightKey, result: i32) {
        if let Some(seat) = self.seats[ring].as_mut() {
            seat.landed.push((Name::from_bits(bits), result));
        }
    }

    fn reap(&mut self, ring: usize) {
        let now = self.now;
        let mut landed = core::mem::take(&mut self.seat(ring).landed);
        if landed.len() > 1 && self.prng.chance(self.faults.reorder) {
            self.counts.reorders += 1;
            for i in (1..landed.len()).rev() {
                landed.swap(i, self.prng.below(i as u64 + 1) as usize);
            }
        }
        let seat = self.seat(ring);
        seat.desk.begin_turn(now);
        for (name, result) in landed {
            seat.desk.land(name, result);
        }
        self.close_idle_socks(ring);
    }

    fn close_idle_socks(&mut self, ring: usize) {
        while let Some((_, conn)) = self.seat(ring).desk.take_closable() {
            self.hang_up(conn);
        }
    }

    fn hang_up(&mut self, id: u64) {
        self.tell_closed(id);
        self.conns.remove(&id);
    }

    /// Breaks a connection by an injected fault: the host hears of it, waiting receives get the error.
    fn snap(&mut self, id: u64, errno: i32) {
        self.tell_closed(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.break_with(errno);
        }
        self.serve_receivers(id);
    }

    /// Tells the host, once, that a connection it knows is gone.
    fn tell_closed(&mut self, id: u64) {
        if let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.host_knows) {
            conn.host_knows = false;
            self.host.closed(id, self.now);
        }
    }

    fn flight(&mut self, (ring, bits): FlightKey) -> Option<(&mut Op, u64)> {
        let (op, conn) = self.seats[ring].as_mut()?.desk.flight(Name::from_bits(bits))?;
        Some((op, *conn))
    }

    fn some_delay(&mut self) -> Duration {
        let most = u64::try_from(self.faults.delay_max.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(self.prng.below(most))
    }

    fn pick(&mut self, errnos: &[i32]) -> i32 {
        errnos[self.prng.below(errnos.len() as u64) as usize]
    }
}
