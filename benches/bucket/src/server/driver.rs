//! Drives one connection: polls hyper, sends what was held back, and when a fault below HTTP is due takes the socket over.
//!
//! A take-over is sound because hyper is dropped only after it flushed every earlier answer into the pipe, and because it
//! always ends the connection: nothing of hyper's parsing state is needed again.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::rc::Rc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::rustls::HandshakeKind;

use super::connection::{Connection, Link};
use super::desk::Desk;
use super::raw::{linger, send};
use super::service::attend;
use super::socket::Socket;

/// Counts a connection as open while it lives, also when its task is dropped.
struct Open<'a>(&'a Desk);

impl<'a> Open<'a> {
    fn new(desk: &'a Desk) -> Open<'a> {
        desk.site.tally.connection_opened();
        Open(desk)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.site.tally.connection_closed();
    }
}

/// How long a TLS handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Serves one connection until either side ends it.
pub(crate) async fn serve(socket: TcpStream, desk: Rc<Desk>) {
    let _open = Open::new(&desk);
    // Without it a small answer could wait for the acknowledgement of the one before. Failing costs time, not bytes.
    let _ = socket.set_nodelay(true);
    let Some(socket) = secured(socket, &desk).await else { return };
    let connection = Rc::new(Connection::new(&desk, socket));
    drive(&connection).await;
    // `drive` dropped hyper, the service and every request with it; bodies under way hold only the bandwidth.
    let connection = Rc::into_inner(connection).expect("hyper has let go of the connection");
    let (mut socket, takeover) = connection.into_parts();
    match takeover {
        Some(reply) => send(reply, socket, &desk).await,
        None => linger(&mut socket).await,
    }
}

/// The socket after the TLS handshake, where there is to be one; `None` when the client will not.
async fn secured(socket: TcpStream, desk: &Desk) -> Option<Socket> {
    let Some(terminator) = &desk.site.terminator else { return Some(Socket::Plain(socket)) };
    let handshake = terminator.acceptor.accept(socket).into_fallible();
    match tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await {
        Ok(Ok(tls)) => {
            desk.site.tally.tls_handshake(tls.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed));
            Some(Socket::Tls(Box::new(tls)))
        }
        // The alert that says why is on its way; a rude end could overtake it.
        Ok(Err((_, socket))) => {
            linger(&mut Socket::Plain(socket)).await;
            None
        }
        Err(_) => None,
    }
}

/// Polls hyper until it is done, or until a take-over is due and hyper's earlier answers are out.
async fn drive(connection: &Rc<Connection>) {
    let service = {
        let connection = Rc::clone(connection);
        service_fn(move |request| attend(Rc::clone(&connection), request))
    };
    let mut hyper =
        pin!(http1::Builder::new().half_close(true).serve_connection(TokioIo::new(Link::new(connection)), service));
    let mut ended = false;
    poll_fn(|context| {
        // An error here is the client's doing or a body that could not be read; either way the connection is over.
        ended = ended || hyper.as_mut().poll(context).is_ready();
        let mut pipe = connection.pipe.borrow_mut();
        let sent = pipe.poll_send_held(context, &connection.desk.site.tally);
        let broken = matches!(sent, Poll::Ready(Err(_)));
        let handed_over = connection.is_handed_over();
        if broken || ((ended || handed_over) && !pipe.has_held()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
