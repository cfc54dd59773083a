//! Waiting for sockets to become ready. Owns the epoll instance; knows sockets by their place in the ring's table.
//!
//! Edge-triggered, and for both directions at once: a connection is announced once for life instead of before every wait,
//! and what is known to be ready is not asked about again.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use fuelrail_base::{Duration, Error, Kind, Result};

/// Most events taken with one call.
const EVENTS_MAX: usize = 256;

/// What the kernel said of one descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Event {
    /// The number it was announced with.
    pub(super) number: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The peer has finished, or the connection is broken: no further edge will tell of what is left to read.
    pub(super) over: bool,
}

/// An epoll instance.
pub(super) struct Epoll {
    fd: OwnedFd,
    events: Box<[libc::epoll_event]>,
    seen: usize,
    /// The kernel takes nanoseconds (5.11).
    fine: bool,
}

impl Epoll {
    pub(super) fn new() -> Result<Epoll> {
        // SAFETY: no memory is passed to the kernel.
        let raw = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if raw < 0 {
            return Err(Error::from_errno(Kind::Environment, "creating an epoll instance", last_errno())
                .cure("raise the limit of open files (ulimit -n)"));
        }
        // SAFETY: `raw` was just returned by the kernel and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX].into();
        Ok(Epoll { fd, events, seen: 0, fine: true })
    }

    /// Announces a descriptor for good. What it is ready for already is the first event.
    pub(super) fn add(&self, fd: RawFd, number: u64) -> core::result::Result<(), i32> {
        let edges = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event { events: edges as u32, u64: number };
        // SAFETY: the kernel reads `event`, which lives until after the call.
        match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Forgets a descriptor about to be closed. Closing alone would not do where a forked child holds it, too.
    pub(super) fn remove(&self, fd: RawFd) {
        // SAFETY: no memory is passed to the kernel. Refused only for a descriptor it does not know.
        unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) };
    }

    /// Waits for events, at most so long (`None`: for ever). An interruption by a signal is an early return.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> core::result::Result<(), i32> {
        self.seen = 0;
        let seen = loop {
            let seen = if self.fine { self.wait_fine(limit) } else { self.wait_coarse(limit) };
            match seen {
                // An older kernel, or a seccomp filter older than the call.
                Err(libc::ENOSYS | libc::EPERM) if self.fine => self.fine = false,
                Err(libc::EINTR) => break 0,
                seen => break seen?,
            }
        };
        self.seen = seen;
        Ok(())
    }

    /// What the last wait brought.
    pub(super) fn events(&self) -> impl Iterator<Item = Event> + '_ {
        self.events[..self.seen].iter().map(|event| {
            let bits = event.events as i32;
            let broken = bits & (libc::EPOLLHUP | libc::EPOLLERR) != 0;
            let over = broken || bits & libc::EPOLLRDHUP != 0;
            Event {
                number: event.u64,
                readable: over || bits & libc::EPOLLIN != 0,
                writable: broken || bits & libc::EPOLLOUT != 0,
                over,
            }
        })
    }

    fn wait_fine(&mut self, limit: Option<Duration>) -> core::result::Result<usize, i32> {
        let spec = limit.map(|limit| libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let spec = spec.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: the kernel writes at most as many events as there is room for, and reads `spec`; both live until after
        // the call. No signal mask is passed.
        let seen = unsafe {
            let (events, room) = (self.events.as_mut_ptr(), self.events.len());
            libc::syscall(libc::SYS_epoll_pwait2, self.fd.as_raw_fd(), events, room as i32, spec, 0usize, 0usize)
        };
        usize::try_from(seen).map_err(|_| last_errno())
    }

    /// To the next full millisecond: late by less than one, never early again and again.
    fn wait_coarse(&mut self, limit: Option<Duration>) -> core::result::Result<usize, i32> {
        let millis = limit.map_or(-1, |limit| i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        // SAFETY: as above.
        let seen = unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), self.events.len() as i32, millis)
        };
        usize::try_from(seen).map_err(|_| last_errno())
    }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
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
            epoll.add(near.as_raw_fd(), 7).unwrap();
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
            epoll.remove(near.as_raw_fd());
            epoll.add(near.as_raw_fd(), 8).unwrap();
        }
    }
}
