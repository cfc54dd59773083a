//! Making the sockets of a ring, and how many bytes wake their reader.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use fuelrail_base::{Error, Kind, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};

/// Whether a call on a socket that is not ready waits, or returns `EAGAIN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocking {
    /// For io_uring, which never blocks on a socket, but returns `EAGAIN` from a non-blocking one.
    Yes,
    /// For back-ends that try and then wait for readiness.
    No,
}

/// A TCP socket of the address's family, with Nagle's algorithm off.
pub(super) fn tcp_socket(addr: &SocketAddr, blocking: Blocking) -> Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = match blocking {
        Blocking::Yes => SocketFlags::CLOEXEC,
        Blocking::No => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    };
    let failed = |errno: rustix::io::Errno| {
        Error::from_errno(Kind::Environment, "opening a socket", errno.raw_os_error())
            .with_hint("raise the limit of open files (ulimit -n)")
    };
    let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(failed)?;
    sockopt::set_tcp_nodelay(&fd, true).map_err(failed)?;
    Ok(fd)
}

/// The error when the ring's table of sockets is full.
pub(super) fn sockets_open() -> Error {
    Error::new(Kind::Budget, "all sockets of this ring are open")
        .with_hint("close some first, or give the ring a larger socket table")
}

/// An open socket or file, and the low-water mark (`SO_RCVLOWAT`) set for it; zero: none.
#[derive(Debug)]
pub struct Descriptor {
    pub(super) fd: OwnedFd,
    low_water: usize,
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Descriptor {
        Descriptor { fd, low_water: 0 }
    }
}

impl Descriptor {
    /// Sets the low-water mark: the next receive is woken when `step_bytes` have arrived; zero: for any. Where the kernel
    /// refuses, it wakes more often, which only costs time.
    pub(super) fn wake_for(&mut self, step_bytes: usize) {
        if self.low_water == step_bytes {
            return;
        }
        let value = i32::try_from(step_bytes.max(1)).unwrap_or(i32::MAX);
        // SAFETY: the kernel reads `value`, which lives until after the call.
        let rc = unsafe {
            let (at, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
            libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, len)
        };
        if rc == 0 {
            self.low_water = step_bytes;
        }
    }
}
