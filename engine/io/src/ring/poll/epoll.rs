//! Waiting for sockets to become ready, and the readiness of each: which operations wait for it, and whether a call on it may succeed.
//! Owns the epoll instance; knows sockets by their place in the ring's table.
//!
//! Edge-triggered, and for both directions at once: a connection is registered once instead of before every wait, and what
//! is known to be ready is not polled again.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use fuelrail_base::{Duration, Error, Kind, Result};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::ring::file::last_errno;
use crate::ring::table::Name;

/// Most events taken with one call.
const EVENTS_MAX: usize = 256;

/// Longest single wait: as much as older kernels take, and half.
const WAIT_MOST: Duration = Duration::from_secs(1 << 20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Event {
    /// The number it was registered with.
    pub(super) number: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The peer has finished, or the connection is broken: no further edge follows for what is left to read.
    pub(super) over: bool,
}

pub(super) struct Epoll {
    fd: OwnedFd,
    /// Events of the last wait.
    events: Vec<epoll::Event>,
    /// The kernel takes nanoseconds (5.11).
    fine: bool,
}

impl Epoll {
    pub(super) fn new() -> Result<Epoll> {
        let fd = epoll::create(CreateFlags::CLOEXEC).map_err(|errno| {
            Error::from_errno(Kind::Environment, "creating an epoll instance", errno.raw_os_error())
                .with_hint("raise the limit of open files (ulimit -n)")
        })?;
        Ok(Epoll { fd, events: Vec::with_capacity(EVENTS_MAX), fine: true })
    }

    /// Registers a descriptor for good. Its present readiness is the first event.
    pub(super) fn add(&self, fd: impl AsFd, number: u64) -> core::result::Result<(), i32> {
        let edges = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.fd, fd, EventData::new_u64(number), edges).map_err(|errno| errno.raw_os_error())
    }

    /// Removes a descriptor about to be closed. Closing is not enough where a forked child holds it, too.
    pub(super) fn remove(&self, fd: impl AsFd) {
        // Fails only for a descriptor that is not registered.
        let _ = epoll::delete(&self.fd, fd);
    }

    /// Waits for events, at most for `limit` (`None`: without limit). An interruption by a signal is an early return.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> core::result::Result<(), i32> {
        self.events.clear();
        let limit = limit.map(|limit| limit.min(WAIT_MOST));
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        if self.fine {
            match self.wait_fine(limit.as_ref()) {
                // An older kernel, or a seccomp filter older than the call.
                Err(libc::ENOSYS | libc::EPERM) => self.fine = false,
                Err(libc::EINTR) => return Ok(()),
                seen => return seen,
            }
        }
        // To the next full millisecond: late by less than one, never early again and again.
        match epoll::wait(&self.fd, rustix::buffer::spare_capacity(&mut self.events), limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.raw_os_error()),
        }
    }

    /// The events of the last wait.
    pub(super) fn events(&self) -> impl Iterator<Item = Event> + '_ {
        self.events.iter().map(|event| {
            let (flags, number) = (event.flags, event.data.u64());
            let broken = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            let over = broken || flags.contains(EventFlags::RDHUP);
            let (readable, writable) = (flags.contains(EventFlags::IN), flags.contains(EventFlags::OUT));
            Event { number, readable: over || readable, writable: broken || writable, over }
        })
    }

    /// With a limit in nanoseconds; rustix takes whole milliseconds only.
    fn wait_fine(&mut self, limit: Option<&Timespec>) -> core::result::Result<(), i32> {
        let limit = limit.map_or(core::ptr::null(), core::ptr::from_ref);
        let (fd, events) = (self.fd.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: the kernel writes at most as many events as there is room for, and reads `limit`; both live until after
        // the call. No signal mask is passed.
        let seen =
            unsafe { libc::syscall(libc::SYS_epoll_pwait2, fd, events, EVENTS_MAX as i32, limit, 0usize, 0usize) };
        let seen = usize::try_from(seen).map_err(|_| last_errno())?;
        // SAFETY: the kernel wrote so many, and there is room for them: the list was made with it and is cleared only.
        unsafe { self.events.set_len(seen) };
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(super) struct Direction {
    /// Operations, oldest first.
    pub(super) queue: VecDeque<Name>,
    /// A call may succeed.
    pub(super) ready: bool,
}

/// Readiness of a socket, and the operations that wait for it.
#[derive(Debug, Default)]
pub(super) struct SocketReadiness {
    /// Receives.
    inward: Direction,
    /// Connects and sends.
    outward: Direction,
    /// Registered with epoll: from then on an edge follows every `EAGAIN`.
    pub(super) watched: bool,
    /// The stream has ended or broken: no more edges follow, and calls return the state.
    pub(super) over: bool,
    /// On the list of those to be served.
    listed: bool,
}

impl SocketReadiness {
    pub(super) fn direction(&mut self, inward: bool) -> &mut Direction {
        if inward { &mut self.inward } else { &mut self.outward }
    }

    /// Whether an operation that moved fewer bytes than requested leaves the socket not ready: true where an edge follows
    /// when there is more. Saves the call that would return `EAGAIN`.
    pub(super) fn drained(&self) -> bool {
        self.watched && !self.over
    }
}

/// The readiness of all sockets, and which of them to serve.
///
/// One entry per place in the ring's table, kept while sockets come and go, so that nothing is allocated after the start.
#[derive(Debug)]
pub(super) struct ReadinessTable {
    sockets: Box<[SocketReadiness]>,
    due: Vec<u32>,
}

impl ReadinessTable {
    pub(super) fn new(places: u32) -> ReadinessTable {
        ReadinessTable {
            sockets: (0..places).map(|_| SocketReadiness::default()).collect(),
            due: Vec::with_capacity(places as usize),
        }
    }

    pub(super) fn socket(&mut self, index: u32) -> &mut SocketReadiness {
        &mut self.sockets[index as usize]
    }

    /// Starts the entry of a new socket: nothing is known of it, so both directions count as ready.
    pub(super) fn begin(&mut self, index: u32) {
        let socket = self.socket(index);
        debug_assert!(
            socket.inward.queue.is_empty() && socket.outward.queue.is_empty(),
            "the last socket's operations were removed with it"
        );
        (socket.inward.ready, socket.outward.ready, socket.watched, socket.over) = (true, true, false, false);
    }

    pub(super) fn note(&mut self, index: u32, event: Event) {
        let socket = self.socket(index);
        socket.inward.ready |= event.readable;
        socket.outward.ready |= event.writable;
        socket.over |= event.over;
        self.list(index);
    }

    /// Lists a socket that has a waiting operation in a ready direction.
    pub(super) fn list(&mut self, index: u32) {
        let socket = &mut self.sockets[index as usize];
        let has_work =
            [&socket.inward, &socket.outward].iter().any(|direction| direction.ready && !direction.queue.is_empty());
        if has_work && !socket.listed {
            socket.listed = true;
            self.due.push(index);
        }
    }

    /// Removes the next socket from the list.
    pub(super) fn next_due(&mut self) -> Option<u32> {
        let index = self.due.pop()?;
        self.socket(index).listed = false;
        Some(index)
    }

    /// Removes an operation from the queue it waits in. The receive after it is tried: what has come meanwhile, less than the low-water
    /// mark of the one before, gives no edge.
    pub(super) fn give_up(&mut self, index: u32, name: Name) {
        let socket = self.socket(index);
        let receives = socket.inward.queue.len();
        socket.inward.queue.retain(|waiting| *waiting != name);
        socket.outward.queue.retain(|waiting| *waiting != name);
        socket.inward.ready |= socket.inward.queue.len() < receives;
        self.list(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn wait(epoll: &mut Epoll, limit: Duration) -> Vec<Event> {
        epoll.wait(Some(limit)).unwrap();
        epoll.events().collect()
    }

    #[test]
    fn edges_come_once_and_time_passes_on_old_kernels_too() {
        for fine in [true, false] {
            let mut epoll = Epoll { fine, ..Epoll::new().unwrap() };
            let (near, mut far) = UnixStream::pair().unwrap();
            epoll.add(&near, 7).unwrap();
            let first = Event { number: 7, readable: false, writable: true, over: false };
            assert_eq!(wait(&mut epoll, Duration::ZERO), [first]);
            let before = std::time::Instant::now();
            assert_eq!(wait(&mut epoll, Duration::from_micros(1_500)), []);
            assert!(before.elapsed() >= Duration::from_micros(1_500), "fine: {fine}: woken early");
            far.write_all(b"x").unwrap();
            let second = Event { readable: true, ..first };
            assert_eq!(wait(&mut epoll, Duration::from_secs(10)), [second]);
            assert_eq!(wait(&mut epoll, Duration::ZERO), [], "an edge comes once");
            drop(far);
            let last = Event { over: true, ..second };
            assert_eq!(wait(&mut epoll, Duration::from_secs(10)), [last]);
            epoll.remove(&near);
            epoll.add(&near, 8).unwrap();
        }
    }
}
