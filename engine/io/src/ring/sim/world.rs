//! The simulated world: its clock, its events, its connections, and the state of each ring.
//!
//! Every choice comes from one seeded generator and every container iterates in a fixed order, so a run is a function
//! of its seed and of the rings' operations.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use fuelrail_base::prng::Prng;
use fuelrail_base::{Error, Instant, Kind, Result};

use super::disk::{Disk, Opened};
use super::faults::{SimCounts, SimFaults};
use super::network::{Conn, FlightKey, Host, Phase, Reply};
use crate::ring::file::{FileOptions, files_open};
use crate::ring::kernel::sockets_open;
use crate::ring::op_table::OpTable;
use crate::ring::table::Name;
use crate::ring::{FileId, SockId};
use crate::wake::Waker;

#[derive(Debug)]
pub(super) enum Event {
    /// A delayed operation starts.
    Start(FlightKey),
    Connected(FlightKey, u64, Result<(), i32>),
    Arrive(u64, Reply),
    /// The disk is done with an operation; a sync covers the writes before this number.
    Disk(FlightKey, u64),
    /// A cancellation takes effect.
    Cancel(FlightKey),
}

/// When an event happens, and its number: events of one instant keep the order in which they were set.
pub(super) type EventKey = (Instant, u64);

/// Pending events, in order.
#[derive(Default)]
pub(super) struct Events {
    pub(super) due: BTreeMap<EventKey, Event>,
    count: u64,
}

impl Events {
    pub(super) fn set(&mut self, at: Instant, event: Event) -> EventKey {
        let key = (at, self.count);
        self.count += 1;
        self.due.insert(key, event);
        key
    }
}

/// Where an operation is that has been submitted and has not completed.
#[derive(Debug)]
pub(super) enum Stage {
    /// An event will move it on; a connect also names its connection.
    Scheduled(EventKey, Option<u64>),
    /// Waiting for bytes on this connection.
    Receiving(u64),
}

/// An open socket or file of a ring.
#[derive(Debug)]
pub(super) enum Held {
    /// The connection of this number.
    Conn(u64),
    File(Opened),
}

pub(super) struct RingState {
    pub(super) ops: OpTable<Held>,
    pub(super) waker: Waker,
    /// Operations pushed and not submitted.
    pub(super) queued: Vec<Name>,
    /// To be cancelled at the next submission; the flag says whether its socket is closing.
    pub(super) cancels: Vec<(Name, bool)>,
    /// Operations completed and not reaped by the ring.
    pub(super) completed: Vec<(Name, i32)>,
    /// Some completions did not fit into its queue.
    overflown: bool,
    /// The last wait found no completion and no wake-up, and its deadline was in the future.
    pub(super) sleeps: bool,
    /// When the ring is to be woken.
    pub(super) wanted: Option<Instant>,
}

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) prng: Prng,
    pub(super) faults: SimFaults,
    pub(super) counts: SimCounts,
    pub(super) host: Box<dyn Host>,
    pub(super) events: Events,
    pub(super) rings: Vec<Option<RingState>>,
    pub(super) conns: BTreeMap<u64, Conn>,
    pub(super) next_conn: u64,
    pub(super) has_ipv6: bool,
    pub(super) disk: Disk,
    pub(super) stages: BTreeMap<FlightKey, Stage>,
}

impl World {
    pub(super) fn new(seed: u64, faults: SimFaults, host: Box<dyn Host>) -> World {
        World {
            now: Instant::ZERO,
            prng: Prng::new(seed),
            faults,
            counts: SimCounts::default(),
            host,
            events: Events::default(),
            rings: Vec::new(),
            conns: BTreeMap::new(),
            next_conn: 0,
            has_ipv6: true,
            disk: Disk::default(),
            stages: BTreeMap::new(),
        }
    }

    pub(super) fn advance(&mut self) -> bool {
        let rings = || self.rings.iter().flatten();
        if rings().any(|state| state.waker.is_notified()) {
            return true;
        }
        let wanted = rings().filter_map(|state| state.wanted).min();
        let Some(next) = self.events.due.keys().next().map(|(at, _)| *at).into_iter().chain(wanted).min() else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(due) = self.events.due.first_entry().filter(|due| due.key().0 <= self.now) {
            let event = due.remove();
            self.happen(event);
        }
        for state in self.rings.iter_mut().flatten() {
            state.wanted = state.wanted.filter(|wanted| *wanted > self.now);
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
                self.complete(key, result.map_or_else(|errno| -errno, |()| 0));
            }
            Event::Arrive(id, reply) => {
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.arrive(reply);
                    self.serve_receivers(id);
                }
            }
            Event::Disk(key, mark) => {
                self.stages.remove(&key);
                self.finish_disk(key, mark);
            }
            Event::Cancel(key) => self.cancel_now(key),
        }
    }

    pub(super) fn add_ring(&mut self, entries: u32, sockets: u32, waker: Waker) -> usize {
        self.rings.push(Some(RingState {
            ops: OpTable::new(entries, sockets),
            waker,
            queued: Vec::new(),
            cancels: Vec::new(),
            completed: Vec::new(),
            overflown: false,
            sleeps: false,
            wanted: None,
        }));
        self.rings.len() - 1
    }

    pub(super) fn remove_ring(&mut self, ring: usize) {
        let first = (ring, 0);
        while let Some((&key, _)) = self.stages.range(first..(ring + 1, 0)).next() {
            self.abandon_disk(key);
            self.unstage(key);
        }
        let Some(state) = self.rings[ring].take() else { return };
        for (_, held) in state.ops.holdings() {
            self.let_go(held);
        }
    }

    pub(super) fn ring_state(&mut self, ring: usize) -> &mut RingState {
        self.rings[ring].as_mut().expect("a ring has its state until it is dropped")
    }

    pub(super) fn socket(&mut self, ring: usize, addr: &SocketAddr) -> Result<SockId> {
        if addr.is_ipv6() && !self.has_ipv6 {
            return Err(Error::from_errno(Kind::Network, "opening a socket", libc::EAFNOSUPPORT));
        }
        let others = self.ring_state(ring).ops.holdings().any(|(_, held)| matches!(held, Held::Conn(_)));
        if others && self.strikes(self.faults.no_descriptor) {
            self.counts.no_descriptor += 1;
            return Err(Error::from_errno(Kind::Environment, "opening a socket", libc::EMFILE));
        }
        let conn = self.next_conn;
        let id = self.ring_state(ring).ops.take_in(Held::Conn(conn), false).map_err(|_| sockets_open())?;
        self.next_conn += 1;
        self.conns.insert(conn, Conn::default());
        Ok(id.into())
    }

    pub(super) fn open_file(&mut self, ring: usize, path: &Path, options: &FileOptions) -> Result<FileId> {
        let held = self.open_there(path, options)?;
        self.ring_state(ring).ops.take_in(held, true).map(FileId::from).map_err(|held| {
            self.let_go(&held);
            files_open()
        })
    }

    pub(super) fn open_there(&mut self, path: &Path, options: &FileOptions) -> Result<Held> {
        if self.strikes(self.faults.no_descriptor) {
            self.counts.no_descriptor += 1;
            return Err(Error::from_errno(Kind::Environment, &format!("opening {}", path.display()), libc::EMFILE));
        }
        self.disk.open(path, options).map(Held::File)
    }

    /// Closes a socket or a file.
    pub(super) fn close(&mut self, ring: usize, id: Name) {
        let state = self.ring_state(ring);
        for name in state.ops.close(id) {
            state.ops.mark_cancelled(name);
            state.cancels.push((name, true));
        }
        self.close_idle(ring);
    }

    pub(super) fn wait(&mut self, ring: usize, until: Option<Instant>) {
        let now = self.now;
        let state = self.ring_state(ring);
        let (queued, cancels) = match state.overflown {
            true => (Vec::new(), Vec::new()),
            false => (core::mem::take(&mut state.queued), core::mem::take(&mut state.cancels)),
        };
        let notified = state.waker.is_notified();
        state.waker.disarm();
        for name in queued.iter().copied() {
            self.submit((ring, name.to_bits()));
        }
        for (name, closing) in cancels.iter().copied() {
            self.submit_cancel((ring, name.to_bits()), closing);
        }
        self.reap(ring);
        let state = self.ring_state(ring);
        let sleeps = !state.ops.has_ready() && !notified && until.is_none_or(|until| until > now);
        state.wanted = if sleeps { until } else { None };
        state.sleeps = sleeps;
        state.ops.counts.sleeps += u64::from(sleeps);
        state.ops.counts.enters += u64::from(sleeps || !queued.is_empty() || !cancels.is_empty());
    }

    fn reap(&mut self, ring: usize) {
        let mut completed = core::mem::take(&mut self.ring_state(ring).completed);
        let overflows = completed.len() > 1 && self.strikes(self.faults.overflow);
        self.ring_state(ring).overflown = overflows;
        if overflows {
            self.counts.overflows += 1;
            let fit = 1 + self.prng.below(completed.len() as u64 - 1) as usize;
            self.ring_state(ring).completed = completed.split_off(fit);
        }
        if completed.len() > 1 && self.prng.chance(self.faults.reorder) {
            self.counts.reorders += 1;
            for i in (1..completed.len()).rev() {
                completed.swap(i, self.prng.below(i as u64 + 1) as usize);
            }
        }
        let state = self.ring_state(ring);
        for (name, result) in completed {
            state.ops.complete(name, result);
        }
        self.close_idle(ring);
    }

    fn close_idle(&mut self, ring: usize) {
        while let Some((_, held)) = self.ring_state(ring).ops.take_closable() {
            self.let_go(&held);
        }
    }

    pub(super) fn let_go(&mut self, held: &Held) {
        match held {
            Held::Conn(id) => {
                self.tell_closed(*id);
                self.conns.remove(id);
            }
            Held::File(file) => self.disk.close(file),
        }
    }

    /// Informs the host, once, that a connection it accepted is closed.
    pub(super) fn tell_closed(&mut self, id: u64) {
        if let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.host_knows) {
            conn.host_knows = false;
            self.host.closed(id, self.now);
        }
    }
}
