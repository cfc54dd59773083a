//! What the two sides of one connection share: hyper, which reads and writes through the [`Link`], and the services, which
//! may take the socket over. Drives nothing.

use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll};
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::desk::Desk;
use super::pacing::Bandwidth;
use super::pipe::Pipe;
use super::raw::RawReply;
use super::socket::Socket;

/// What hyper's side, the service and the driver of one connection share.
pub(crate) struct Connection {
    pub(crate) desk: Rc<Desk>,
    pub(crate) pipe: RefCell<Pipe>,
    /// Requests read so far.
    pub(crate) requests: Cell<u32>,
    takeover: RefCell<Option<RawReply>>,
    /// Set when hyper flushed after the take-over was asked for.
    flushed: Cell<bool>,
    /// Shared with the bodies in flight, which must not hold the connection that holds them.
    pub(crate) bandwidth: Rc<Bandwidth>,
}

impl Connection {
    pub(crate) fn new(desk: &Rc<Desk>, socket: Socket) -> Connection {
        Connection {
            desk: Rc::clone(desk),
            pipe: RefCell::new(Pipe::new(socket)),
            requests: Cell::new(0),
            takeover: RefCell::new(None),
            flushed: Cell::new(false),
            bandwidth: Rc::default(),
        }
    }

    fn note_flush(&self) {
        if self.takeover.borrow().is_some() {
            self.flushed.set(true);
        }
    }

    /// Asks for the socket to answer with `reply` and never returns: the driver drops the asking request.
    pub(crate) async fn take_over(&self, reply: RawReply) -> Infallible {
        *self.takeover.borrow_mut() = Some(reply);
        core::future::pending().await
    }

    /// Whether a take-over is due: asked for, and hyper's earlier answers are in the pipe.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.takeover.borrow().is_some() && self.flushed.get()
    }

    /// The socket, and the answer it was taken over for, if it was.
    pub(crate) fn into_parts(self) -> (Socket, Option<RawReply>) {
        (self.pipe.into_inner().into_socket(), self.takeover.into_inner())
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
        self.connection.pipe.borrow_mut().poll_read(context, buffer)
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
        self.connection.pipe.borrow_mut().poll_shutdown(context, &self.connection.desk.site.tally)
    }
}
