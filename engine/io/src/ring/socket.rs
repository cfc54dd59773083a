//! Making the sockets of a ring. Owns nothing: the descriptor goes to the caller.

use core::mem;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};

use fuelrail_base::{Error, Kind, Result};

/// Whether a call on a socket that is not ready waits, or says `EAGAIN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blocking {
    /// For io_uring, which never blocks on a socket, but would hand `EAGAIN` back from a non-blocking one.
    Yes,
    /// For back-ends that try and then wait for readiness.
    No,
}

/// A TCP socket of the address's family, with Nagle's algorithm off.
pub(super) fn tcp_socket(addr: &SocketAddr, blocking: Blocking) -> Result<OwnedFd> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let failed = |doing: &str| {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Error::from_errno(Kind::Environment, doing, errno)
    };
    let mode = match blocking {
        Blocking::Yes => 0,
        Blocking::No => libc::SOCK_NONBLOCK,
    };
    // SAFETY: no memory is passed to the kernel.
    let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | mode, libc::IPPROTO_TCP) };
    if raw < 0 {
        return Err(failed("opening a socket").cure("raise the limit of open files (ulimit -n)"));
    }
    // SAFETY: `raw` was just returned by the kernel and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let one: libc::c_int = 1;
    // SAFETY: the kernel reads `one`, which lives until after the call.
    let rc = unsafe {
        let value = (&raw const one).cast();
        libc::setsockopt(raw, libc::IPPROTO_TCP, libc::TCP_NODELAY, value, mem::size_of_val(&one) as libc::socklen_t)
    };
    if rc != 0 {
        return Err(failed("setting TCP_NODELAY"));
    }
    Ok(fd)
}

/// What a ring says when its table of sockets is full.
pub(super) fn sockets_open() -> Error {
    Error::new(Kind::Budget, "all sockets of this ring are open")
        .cure("close some first, or give the ring a larger socket table")
}
