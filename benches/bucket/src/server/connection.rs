//! One connection: polls hyper, sends what was held back, and when a fault below HTTP is due takes the socket over.
//!
//! A take-over is sound because hyper is dropped only after it flushed every earlier answer into the pipe, and because it
//! always ends the connection: nothing of hyper's parsing state is needed again.

use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Desk;
use super::pipe::{Link, Pipe};
use super::raw::{RawReply, send};
use super::service::attend;
use crate::pace::Pace;
use crate::script::Act;

/// How long a closing connection still reads what the client sends: closing with unread bytes would turn FIN into RST.
const LINGER: Duration = Duration::from_secs(1);

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

/// Bandwidth of one connection, under the act it was last used with.
#[derive(Default)]
pub(crate) struct Bandwidth {
    pace: RefCell<Option<(Arc<Act>, Pace)>>,
}

impl Connection {
    pub(crate) fn note_flush(&self) {
        if self.takeover.borrow().is_some() {
            self.flushed.set(true);
        }
    }

    /// Asks for the socket to answer with `reply` and never returns: the driver drops the asking request.
    pub(crate) async fn take_over(&self, reply: RawReply) -> Infallible {
        *self.takeover.borrow_mut() = Some(reply);
        core::future::pending().await
    }
}

impl Bandwidth {
    fn reserve(&self, act: &Arc<Act>, now: Instant, bytes: u64) -> Instant {
        let Some(rate) = act.script.bandwidth_connection_bytes_per_s else { return now };
        let mut pace = self.pace.borrow_mut();
        if !pace.as_ref().is_some_and(|(made_for, _)| Arc::ptr_eq(made_for, act)) {
            *pace = Some((Arc::clone(act), Pace::bytes(rate)));
        }
        pace.as_mut().map_or(now, |(_, pace)| pace.reserve(now, bytes))
    }
}

/// Bandwidth of one body: the connection's and the bucket's.
pub(crate) struct Pacing {
    bandwidth: Rc<Bandwidth>,
    act: Arc<Act>,
}

impl Pacing {
    /// Pacing of a body sent on `connection` under `act`; `None` when the act sets no pace.
    pub(crate) fn new(connection: &Connection, act: &Arc<Act>) -> Option<Pacing> {
        act.is_paced().then(|| Pacing { bandwidth: Rc::clone(&connection.bandwidth), act: Arc::clone(act) })
    }

    pub(crate) fn frame_bytes(&self, largest: usize) -> usize {
        self.act.frame_bytes(largest)
    }

    /// Reserves bytes; they may go at the returned moment.
    pub(crate) fn reserve(&self, now: Instant, bytes: u64) -> Instant {
        self.bandwidth.reserve(&self.act, now, bytes).max(self.act.reserve_total(now, bytes))
    }
}

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

/// Serves one connection until either side ends it.
pub(crate) async fn serve(socket: TcpStream, desk: Rc<Desk>) {
    let _open = Open::new(&desk);
    // Without it a small answer could wait for the acknowledgement of the one before. Failing costs time, not bytes.
    let _ = socket.set_nodelay(true);
    let connection = Rc::new(Connection {
        desk: Rc::clone(&desk),
        pipe: RefCell::new(Pipe::new(socket)),
        requests: Cell::new(0),
        takeover: RefCell::new(None),
        flushed: Cell::new(false),
        bandwidth: Rc::default(),
    });
    drive(&connection).await;
    // `drive` dropped hyper, the service and every request with it; bodies under way hold only the bandwidth.
    let connection = Rc::into_inner(connection).expect("hyper has let go of the connection");
    let mut socket = connection.pipe.into_inner().into_socket();
    match connection.takeover.into_inner() {
        Some(reply) => send(reply, socket, &desk).await,
        None => linger(&mut socket).await,
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
        let handed_over = connection.takeover.borrow().is_some() && connection.flushed.get();
        if broken || ((ended || handed_over) && !pipe.has_held()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Closes without cutting off what was sent: FIN, then reads until the client closes too or time is up.
pub(crate) async fn linger(socket: &mut TcpStream) {
    if socket.shutdown().await.is_ok() {
        // Whether the client closed or time is up, the connection ends here.
        let _ = tokio::time::timeout(LINGER, drain(socket)).await;
    }
}

/// Reads and forgets until the client closes.
pub(crate) async fn drain(socket: &mut TcpStream) {
    let mut waste = [0u8; 4096];
    while matches!(socket.read(&mut waste).await, Ok(1..)) {}
}
