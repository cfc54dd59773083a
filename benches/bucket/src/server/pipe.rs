//! The socket under hyper. Small writes are held back while hyper is being polled and go out together when the poll ends:
//! answers to pipelined requests leave in one packet, yet none waits for a later request's latency (hyper's own
//! `pipeline_flush` would hold them as long as unread requests remain).

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io::{self, IoSlice};
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connection::Connection;
use crate::counters::Tally;

/// Writes that fit in this together are held back.
const HELD_BYTES_MAX: usize = 32 << 10;
/// hyper passes at most 64 slices; one more for what is held.
const SLICES_MAX: usize = 65;

/// The socket and the bytes held back.
pub(crate) struct Pipe {
    socket: TcpStream,
    held: Vec<u8>,
}

impl Pipe {
    pub(crate) fn new(socket: TcpStream) -> Pipe {
        Pipe { socket, held: Vec::new() }
    }

    pub(crate) fn into_socket(self) -> TcpStream {
        self.socket
    }

    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
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
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(
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
            self.held.drain(..sent.min(held));
            if sent > held || sent == 0 {
                return Poll::Ready(Ok(sent - held.min(sent)));
            }
        }
    }
}

/// hyper's end of the pipe.
pub(crate) struct Link {
    connection: Rc<Connection>,
}

impl Link {
    pub(crate) fn new(connection: &Rc<Connection>) -> Link {
        Link { connection: Rc::clone(connection) }
    }
}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection.pipe.borrow_mut().socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tally = &self.connection.desk.site.tally;
        self.connection.pipe.borrow_mut().poll_write(context, slices, tally)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Ready although bytes may be held back: the connection sends them as soon as this poll of hyper ends. hyper calls
    /// this only when it holds no bytes itself, which is what a take-over waits for.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.note_flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.connection.pipe.borrow_mut();
        ready!(pipe.poll_send_held(context, &self.connection.desk.site.tally))?;
        Pin::new(&mut pipe.socket).poll_shutdown(context)
    }
}
