//! The life of an operation in a simulated world: from its submission, through faults, to its completion.

use std::net::SocketAddr;
use std::path::Path;

use fuelrail_base::{Duration, Kind};

use super::network::{FlightKey, Phase, Replies, Reply};
use super::world::{Event, Held, Stage, World};
use crate::ring::Op;
use crate::ring::file::FileOptions;
use crate::ring::table::Name;

impl World {
    pub(super) fn submit(&mut self, key: FlightKey) {
        if self.faults.delay > 0.0 && self.prng.chance(self.faults.delay) {
            self.counts.delays += 1;
            let by = self.some_delay();
            self.schedule(key, by, None, Event::Start(key));
        } else {
            self.perform(key);
        }
    }

    pub(super) fn perform(&mut self, key: FlightKey) {
        if self.strikes(self.faults.no_memory) && self.flight(key).is_some() {
            self.counts.no_memory += 1;
            return self.complete(key, -libc::ENOMEM);
        }
        let Some((op, held)) = self.flight(key) else { return };
        let Some(&mut Held::Conn(conn)) = held else { return self.start_disk(key) };
        let connecting = matches!(op, Op::Connect { .. });
        if self.prng.chance(self.faults.transient_errno) {
            self.counts.transient_errnos += 1;
            let errno = self.pick(&[libc::EINTR, libc::EAGAIN, libc::ENOBUFS]);
            return self.complete(key, -errno);
        }
        if self.prng.chance(self.faults.fatal_errno) {
            self.counts.fatal_errnos += 1;
            let errno = match connecting {
                true => self.pick(&[libc::ECONNREFUSED, libc::ETIMEDOUT]),
                false => self.pick(&[libc::ECONNRESET, libc::ETIMEDOUT, libc::EPIPE]),
            };
            self.snap(conn, errno);
            return self.complete(key, -errno);
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
            _ => {}
        }
    }

    /// Schedules a disk operation, which takes effect at the end of its latency.
    fn start_disk(&mut self, key: FlightKey) {
        let most = u64::try_from(self.disk.settings.latency_max.as_nanos()).unwrap_or(u64::MAX).max(1);
        let after = Duration::from_nanos(self.prng.below(most));
        let mark = self.disk.mark();
        self.schedule(key, after, None, Event::Disk(key, mark));
    }

    pub(super) fn finish_disk(&mut self, key: FlightKey, mark: u64) {
        if self.prng.chance(self.faults.disk_errno) {
            self.counts.disk_errnos += 1;
            return self.complete(key, -libc::EIO);
        }
        if let Some((Op::Open(opening), _)) = self.flight(key) {
            let path = opening.path().to_owned();
            return self.finish_open(key, &path);
        }
        let (short_read, short_write) = (self.faults.short_read, self.faults.short_write);
        let World { rings, disk, prng, counts, .. } = self;
        let Some(state) = rings[key.0].as_mut() else { return };
        let Some((op, Some(Held::File(file)))) = state.ops.flight(Name::from_bits(key.1)) else { return };
        let unit = file.unit();
        let mut cut = |chance: f64, n: usize, cuts: &mut u64| {
            if n <= unit || !prng.chance(chance) {
                return n;
            }
            *cuts += 1;
            (1 + prng.below(n.div_ceil(unit) as u64 - 1) as usize) * unit
        };
        let result = match op {
            Op::ReadAt { offset, into, .. } => disk.read(file, *offset, into.reach()).map(|bytes| {
                let n = cut(short_read, bytes.len(), &mut counts.short_reads);
                into.read_in(&bytes[..n]);
                n
            }),
            Op::WriteAt { offset, from, start, .. } => {
                let rest = &from.bytes()[*start..];
                let n = cut(short_write, rest.len(), &mut counts.short_writes);
                disk.write(file, *offset, &rest[..n])
            }
            Op::Stat { facts, .. } => {
                facts.set(disk.marked(file));
                Ok(0)
            }
            Op::SyncData { .. } => disk.sync(file, mark).map(|()| 0),
            Op::Connect { .. } | Op::Send { .. } | Op::Recv { .. } | Op::Open(_) => {
                unreachable!("{op:?} is not about a file")
            }
        };
        self.complete(key, result.map_or_else(|errno| -errno, |n| n as i32));
    }

    fn finish_open(&mut self, key: FlightKey, path: &Path) {
        let result = match self.open_there(path, &FileOptions::default()) {
            Ok(held) => match self.rings[key.0].as_mut().map(|state| state.ops.opened(Name::from_bits(key.1), held)) {
                Some(Err(held)) => {
                    self.let_go(&held);
                    -libc::EMFILE
                }
                _ => 0,
            },
            Err(error) if error.kind() == Kind::NotFound => -libc::ENOENT,
            // The only other error of an opening here: no descriptor is left.
            Err(_) => -libc::EMFILE,
        };
        self.complete(key, result);
    }

    /// The ring of an operation is dropped, or its process killed: a write in flight may still reach the disk.
    pub(super) fn abandon_disk(&mut self, key: FlightKey) {
        let World { rings, disk, prng, .. } = self;
        let flight = rings[key.0].as_mut().and_then(|state| state.ops.flight(Name::from_bits(key.1)));
        if let Some((Op::WriteAt { offset, from, start, .. }, Some(Held::File(file)))) = flight
            && prng.chance(0.5)
        {
            // The ring is gone, and with it the receiver of the result.
            let _ = disk.write(file, *offset, &from.bytes()[*start..]);
        }
    }

    fn perform_connect(&mut self, key: FlightKey, id: u64, addr: SocketAddr) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        match conn.phase {
            Phase::Fresh => {}
            Phase::Broken(errno) => return self.complete(key, -errno),
            Phase::Connecting => return self.complete(key, -libc::EALREADY),
            Phase::Open => return self.complete(key, -libc::EISCONN),
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
            Phase::Broken(errno) => return self.complete(key, -errno),
            Phase::Fresh | Phase::Connecting => return self.complete(key, -libc::ENOTCONN),
        }
        let mut n = bytes.len();
        if n > 1 && self.prng.chance(self.faults.short_send) {
            self.counts.short_sends += 1;
            n = 1 + self.prng.below(n as u64 - 1) as usize;
        }
        let mut replies = Replies::default();
        self.host.receive(id, &bytes[..n], self.now, &mut replies);
        self.schedule_replies(id, replies);
        self.complete(key, n as i32);
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
                    self.events.set(conn.last_arrival, Event::Arrive(id, reply));
                }
            }
        }
    }

    /// Serves waiting receives with the bytes that have arrived, oldest first.
    pub(super) fn serve_receivers(&mut self, id: u64) {
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
            self.complete(key, result);
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

    pub(super) fn submit_cancel(&mut self, key: FlightKey, closing: bool) {
        // Closing a socket does not race against its peer; a cancellation does, if delays are on.
        if !closing && self.faults.delay > 0.0 && self.prng.chance(self.faults.delay) {
            let by = self.some_delay();
            self.events.set(self.now.after(by), Event::Cancel(key));
        } else {
            self.cancel_now(key);
        }
    }

    pub(super) fn cancel_now(&mut self, key: FlightKey) {
        if self.unstage(key) {
            self.complete(key, -libc::ECANCELED);
        }
    }

    /// Removes a submitted operation from what it waits for; false when it has completed.
    pub(super) fn unstage(&mut self, key: FlightKey) -> bool {
        match self.stages.remove(&key) {
            Some(Stage::Scheduled(event, conn)) => {
                self.events.due.remove(&event);
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
        let event = self.events.set(self.now.after(after), event);
        self.stages.insert(key, Stage::Scheduled(event, conn));
    }

    pub(super) fn complete(&mut self, (ring, bits): FlightKey, result: i32) {
        if let Some(state) = self.rings[ring].as_mut() {
            state.completed.push((Name::from_bits(bits), result));
        }
    }

    /// Breaks a connection by an injected fault: the host is informed, waiting receives get the error.
    fn snap(&mut self, id: u64, errno: i32) {
        self.tell_closed(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.break_with(errno);
        }
        self.serve_receivers(id);
    }

    fn flight(&mut self, (ring, bits): FlightKey) -> Option<(&mut Op, Option<&mut Held>)> {
        self.rings[ring].as_mut()?.ops.flight(Name::from_bits(bits))
    }

    /// Draws only where the chance is above zero, so that worlds without this fault keep their random sequence.
    pub(super) fn strikes(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.prng.chance(chance)
    }

    fn some_delay(&mut self) -> Duration {
        let most = u64::try_from(self.faults.delay_max.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(self.prng.below(most))
    }

    fn pick(&mut self, errnos: &[i32]) -> i32 {
        errnos[self.prng.below(errnos.len() as u64) as usize]
    }
}
