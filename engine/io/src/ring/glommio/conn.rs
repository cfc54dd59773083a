//! One connection on glommio's sockets: try without blocking, and only when there is nothing, wait for readiness.
//!
//! Owns the descriptor. Never lets the kernel keep an address: every transfer is over when its call returns, so an
//! operation can be given up at any moment.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;

use crate::ring::Op;
use crate::ring::table::Name;
use crate::ring::wires::Wires;
use crate::scatter::Scatter;

/// Longest slice shown to one receive; it may be cut short anyway.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// A socket, from its making to its end.
pub(super) struct Conn {
    stage: Stage,
    /// The last receive is waiting: when the bell rings there is something, so all pieces are tried in one call.
    waiting: bool,
    /// An error the socket gave away when it was asked for the rest of a receive that had brought bytes already.
    broken: Option<i32>,
}

enum Stage {
    Fresh(OwnedFd),
    /// In glommio's hands, which closes it.
    Bound(TcpStream),
    /// Between the two, inside [`Conn::connect`] only.
    Moving,
}

impl Conn {
    pub(super) fn new(fd: OwnedFd) -> Conn {
        Conn { stage: Stage::Fresh(fd), waiting: false, broken: None }
    }

    /// Works on an operation, in the executor's context: how many bytes it moved (zero for a connect), or a negative
    /// error number. While pending, the context's waker is told when to come again.
    pub(super) fn advance(
        &mut self,
        name: Name,
        op: &mut Op,
        wires: &mut Wires,
        context: &mut Context<'_>,
    ) -> Poll<i32> {
        match op {
            Op::Connect { addr, .. } => {
                let (addr, len) = wires.address(name.index, addr);
                self.connect(addr, len, context)
            }
            Op::Send { bytes, from, .. } => self.send(&bytes[*from..], context),
            Op::Recv { into, .. } => self.receive(name, into, wires, context),
            Op::ReadAt { .. } | Op::WriteAt { .. } | Op::Open(_) | Op::Stat { .. } | Op::SyncData { .. } => {
                unreachable!("{op:?} is not about a socket")
            }
        }
    }

    fn connect(&mut self, addr: *const libc::sockaddr, len: libc::socklen_t, context: &mut Context<'_>) -> Poll<i32> {
        let stream = match core::mem::replace(&mut self.stage, Stage::Moving) {
            Stage::Bound(stream) => stream,
            Stage::Fresh(fd) => {
                // SAFETY: the kernel reads `len` bytes at `addr`, an entry of the ring's table, during the call only.
                let rc = unsafe { libc::connect(fd.as_raw_fd(), addr, len) };
                let errno = if rc == 0 { 0 } else { last_errno() };
                if !matches!(errno, 0 | libc::EINPROGRESS) {
                    self.stage = Stage::Fresh(fd);
                    return Poll::Ready(-errno);
                }
                // SAFETY: `fd` is open and given up here: the stream is its only owner from now on.
                unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) }
            }
            Stage::Moving => unreachable!("left only inside this function"),
        };
        self.stage = Stage::Bound(stream);
        let Stage::Bound(stream) = &mut self.stage else { unreachable!("just bound") };
        // Nothing can be sent on a socket that is not connected yet, not even nothing.
        Pin::new(stream).poll_write(context, &[]).map(outcome)
    }

    fn send(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<i32> {
        let Stage::Bound(stream) = &mut self.stage else { return Poll::Ready(-libc::ENOTCONN) };
        // Ours first: glommio's would raise SIGPIPE in programs that do not ignore it.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads `bytes`, borrowed until after the call.
        let sent = unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        match counted(sent) {
            AGAIN => Pin::new(stream).poll_write(context, bytes).map(outcome),
            result => Poll::Ready(result),
        }
    }

    fn receive(&mut self, name: Name, into: &mut Scatter, wires: &mut Wires, context: &mut Context<'_>) -> Poll<i32> {
        let Stage::Bound(stream) = &mut self.stage else { return Poll::Ready(-libc::ENOTCONN) };
        if let Some(errno) = self.broken.take() {
            return Poll::Ready(-errno);
        }
        let fd = stream.as_raw_fd();
        if core::mem::take(&mut self.waiting) {
            match receive_now(fd, wires.receive(name.index, into.targets())) {
                AGAIN => {}
                result => return Poll::Ready(result),
            }
        }
        let Some((target, len)) = into.targets().next() else { unreachable!("checked to ask for bytes") };
        let len = len.min(TRANSFER_BYTES_MAX);
        // SAFETY: the scatter, borrowed until after this call, owns these bytes, and is the only way to them; they are
        // initialised, like all memory of the arena.
        let first = unsafe { core::slice::from_raw_parts_mut(target, len) };
        let got = match Pin::new(stream).poll_read(context, first).map(outcome) {
            Poll::Pending => {
                self.waiting = true;
                return Poll::Pending;
            }
            Poll::Ready(got) => got,
        };
        if got != len as i32 || into.pieces() == 1 {
            return Poll::Ready(got);
        }
        match receive_now(fd, wires.receive(name.index, into.targets().skip(1))) {
            // A socket's buffer holds less than a GiB, and so does the first piece: the sum fits.
            rest @ 0.. => Poll::Ready(got + rest),
            AGAIN => Poll::Ready(got),
            error => {
                self.broken = Some(-error);
                Poll::Ready(got)
            }
        }
    }
}

const AGAIN: i32 = -libc::EAGAIN;

/// Receives what is there.
fn receive_now(fd: RawFd, message: *mut libc::msghdr) -> i32 {
    // SAFETY: the message and its scatter list are an entry of the ring's table, the places in it belong to the operation
    // that is being worked on; the kernel writes to them during the call only.
    counted(unsafe { libc::recvmsg(fd, message, libc::MSG_DONTWAIT) })
}

/// What a system call returned, as a count or a negative error number.
fn counted(returned: isize) -> i32 {
    if returned >= 0 { returned as i32 } else { -last_errno() }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn outcome(result: std::io::Result<usize>) -> i32 {
    match result {
        Ok(n) => n as i32,
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
}
