//! The socket under hyper. Small writes are held back while hyper is being polled and go out together when the poll ends:
//! answers to pipelined requests leave in one packet, yet none waits for a later request's latency (hyper's own
//! `pipeline_flush` would hold them as long as unread requests remain).

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io::{self, IoSlice};

use super::socket::Socket;
use crate::counters::Tally;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Writes that fit in this together are held back.
const HELD_BYTES_MAX: usize = 32 << 10;
/// hyper passes at most 64 slices; one more for what is held.
const SLICES_MAX: usize = 65;

/// The socket and the bytes held back.
pub(crate) struct Pipe {
    socket: Socket,
    held: Vec<u8>,
    /// The socket took bytes and may hold some of them itself.
    unflushed: bool,
}

impl Pipe {
    pub(crate) fn new(socket: Socket) -> Pipe {
        Pipe { socket, held: Vec::new(), unflushed: false }
    }

    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// Whether bytes are held back, here or in the socket.
    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty() || self.unflushed
    }

    /// Sends everything held back.
    pub(crate) fn poll_send_held(&mut self, context: &mut Context<'_>, tally: &Tally) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let sent = ready!(Pin::new(&mut self.socket).poll_write(context, &self.held))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            tally.sent(sent);
            self.held.drain(..sent);
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.socket).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from the socket; nothing is held back on the way in.
    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }

    /// Sends everything held back, then FIN.
    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>, tally: &Tally) -> Poll<io::Result<()>> {
        ready!(self.poll_send_held(context, tally))?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    /// Holds the bytes back when they are few, else sends them behind what is held.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        tally: &Tally,
    ) -> Poll<io::Result<usize>> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.held.len() + total <= HELD_BYTES_MAX {
            slices.iter().for_each(|slice| self.held.extend_from_slice(slice));
            return Poll::Ready(Ok(total));
        }
        loop {
            let held = self.held.len();
            let sent = {
                let mut all = [IoSlice::new(&[]); SLICES_MAX];
                all[0] = IoSlice::new(&self.held);
                let count = slices.len().min(SLICES_MAX - 1);
                all[1..=count].copy_from_slice(&slices[..count]);
                let all = if held == 0 { &all[1..=count] } else { &all[..=count] };
                ready!(Pin::new(&mut self.socket).poll_write_vectored(context, all))?
            };
            tally.sent(sent);
            self.unflushed = true;
            self.held.drain(..sent.min(held));
            if sent > held || sent == 0 {
                return Poll::Ready(Ok(sent - held.min(sent)));
            }
        }
    }
}
