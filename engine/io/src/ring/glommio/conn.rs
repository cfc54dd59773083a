//! One connection on glommio's sockets: tried without blocking, and polled for readiness only when it is not ready.
//!
//! Owns the descriptor. Never lets the kernel keep an address: every transfer is over when its call returns, so an
//! operation can be cancelled at any moment.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;

use crate::ring::Op;
use crate::ring::calls::on_socket;
use crate::ring::msghdr::MsghdrTable;

/// A socket, from its making to its end.
pub struct Conn {
    /// The descriptor until the first operation, which runs in the executor's context.
    fresh: Option<OwnedFd>,
    /// Owned by glommio, which closes it.
    stream: Option<TcpStream>,
    /// The last receive drained the socket: the next one polls for readiness first.
    dry: bool,
}

impl Conn {
    pub(super) fn new(fd: OwnedFd) -> Conn {
        Conn { fresh: Some(fd), stream: None, dry: false }
    }

    /// Works on an operation, in the executor's context: how many bytes it moved (zero for a connect), or a negative
    /// error number. While pending, the context's waker is woken when to call again.
    pub(super) fn advance(&mut self, op: &mut Op, msghdrs: &mut MsghdrTable, context: &mut Context<'_>) -> Poll<i32> {
        if let Some(fd) = self.fresh.take() {
            // SAFETY: `fd` is open and given up here: the stream is its only owner from now on.
            self.stream = Some(unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) });
        }
        let stream = self.stream.as_mut().expect("made of the descriptor just now, or earlier");
        let receives = matches!(op, Op::Recv { .. });
        if !(receives && core::mem::take(&mut self.dry)) {
            // Ours first: glommio's send would raise SIGPIPE in programs that do not ignore it, and its receive takes one piece.
            let moved = on_socket(op, stream.as_raw_fd(), msghdrs);
            if moved != -libc::EAGAIN {
                self.dry = matches!(op, Op::Recv { into, .. } if moved < into.asked() as i32);
                return Poll::Ready(moved);
            }
        }
        let stream = Pin::new(stream);
        let outcome = match op {
            Op::Recv { into, .. } => {
                let (target, len) = into.first_target();
                // SAFETY: the scatter, borrowed until after this call, owns these bytes, and is the only way to them; they are
                // initialised, like all memory of the arena.
                let first = unsafe { core::slice::from_raw_parts_mut(target, len) };
                stream.poll_read(context, first).map_ok(|got| {
                    self.dry = got < len;
                    got
                })
            }
            Op::Send { bytes, from, .. } => stream.poll_write(context, &bytes[*from..]),
            // An empty write waits until the socket is connected.
            _ => stream.poll_write(context, &[]),
        };
        outcome.map(|result| result.map_or_else(|error| -error.raw_os_error().unwrap_or(libc::EIO), |n| n as i32))
    }
}
