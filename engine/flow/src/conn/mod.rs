//! One keep-alive connection as a state machine: requests out, pipelined responses in, bodies straight into windows.
//!
//! Owns its socket's name, its scratch memory and the exchanges in order. Performs no I/O: it makes ops and is told how
//! they ended.

mod exchange;
mod pace;
mod predict;
mod responses;
mod scatter;
mod secure;

pub use exchange::Proof;
pub(crate) use exchange::{Context, End, Exchange, Fault, Outcome};
pub(crate) use predict::{Asked, AskedRank, HeadPredictor};
pub(crate) use secure::{Secure, Tunnel};

use exchange::Sink;
use fuelrail_base::{Duration, Error, Instant, Kind, Result};
use fuelrail_io::{Op, OpId, Scatter, Slot, SockId};
use fuelrail_wire::tls::Agreed;
use pace::Trickle;
use responses::Responses;
use std::net::SocketAddr;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The connect op is in flight.
    Connecting,
    /// Requests may be sent.
    Open,
    /// No more requests; waits for its ops to be reaped.
    Closing,
}

/// Servers close connections that were idle for long, some after a few seconds. A request that meets such
/// a close is retried without counting as an attempt of its object: many idle connections may be closed in a row.
const IDLE_DOUBT: Duration = Duration::from_secs(1);

pub(crate) struct Conn {
    pub sock: SockId,
    /// Where to.
    pub addr: SocketAddr,
    pub state: State,
    responses: Responses,
    secure: Option<Secure>,
    out: Vec<u8>,
    spare: Vec<u8>,
    /// Where receives land; away only during one.
    places: Option<Scatter>,
    sending: bool,
    receiving: bool,
    /// The receive in flight waits for much at once.
    patient: Option<OpId>,
    connecting: bool,
    pub last_heard: Instant,
    pub opened_at: Instant,
    heard_bytes: u64,
    trickle: Trickle,
    /// The oldest request was sent when the connection may have been closed already, and nothing was heard since.
    stale: bool,
    /// The peer may close after any response without `Connection: close`.
    closes_silently: bool,
    /// Why the connection fails once the receive in flight has been reaped.
    pending_error: Option<Error>,
    /// It ended through an error.
    pub failed: bool,
    /// The ring has been told to close the socket.
    pub close_sent: bool,
}

impl Conn {
    pub(crate) fn new(sock: SockId, addr: SocketAddr, scratch: Slot, secure: Option<Secure>, now: Instant) -> Conn {
        Conn {
            sock,
            addr,
            state: State::Connecting,
            responses: Responses::new(),
            secure,
            out: Vec::with_capacity(REQUESTS_BYTES),
            spare: Vec::with_capacity(REQUESTS_BYTES),
            places: Some(Scatter::new(scratch)),
            sending: false,
            receiving: false,
            patient: None,
            connecting: true,
            last_heard: now,
            opened_at: now,
            heard_bytes: 0,
            trickle: Trickle::default(),
            stale: false,
            closes_silently: false,
            pending_error: None,
            failed: false,
            close_sent: false,
        }
    }

    /// The same, for a peer that may close after any response without `Connection: close`, if so: a close in place of the next
    /// response is then no failure of the object.
    pub(crate) fn closes_silently(self, closes_silently: bool) -> Conn {
        Conn { closes_silently, ..self }
    }

    /// The scratch memory of a connection that is quiet.
    pub(crate) fn into_scratch(self) -> Option<Slot> {
        self.places.map(|places| places.finish().0)
    }

    /// What its TLS handshake agreed on; returned once.
    pub(crate) fn take_agreed(&mut self) -> Option<Agreed> {
        self.secure.as_mut()?.take_agreed()
    }

    /// Requests without a complete response.
    pub(crate) fn queued(&self) -> usize {
        self.responses.queue.len()
    }

    /// Bytes requested by them.
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.responses.asked_bytes
    }

    /// Whether more requests may be sent here: not behind one that is slow already.
    pub(crate) fn takes_requests(&self) -> bool {
        self.state != State::Closing && !self.responses.last && !self.front().is_some_and(|front| front.hedged)
    }

    /// The exchange whose response comes next.
    pub(crate) fn front(&self) -> Option<&Exchange> {
        self.responses.queue.front()
    }

    /// The response under way has brought payload, which a refusal does not.
    pub(crate) fn has_payload(&self) -> bool {
        let is_payload = || self.front().is_some_and(|front| matches!(front.sink, Sink::Window));
        self.responses.body.as_ref().is_some_and(|body| body.landed() > 0) && is_payload()
    }

    /// Notes that a second request runs against the front exchange.
    pub(crate) fn set_hedged(&mut self) {
        if let Some(front) = self.responses.queue.front_mut() {
            front.hedged = true;
        }
    }

    /// The ring has no operation of this connection.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.sending && !self.receiving && !self.connecting
    }

    /// The connect op ended.
    pub(crate) fn connected(&mut self, result: Result<()>, cx: &mut Context) {
        self.connecting = false;
        match result {
            Ok(()) if self.state == State::Connecting => {
                self.state = State::Open;
                self.last_heard = cx.now;
            }
            Err(error) if self.state == State::Connecting => self.fail(error, cx),
            _ => {}
        }
    }

    /// Takes back an op for which the ring had no room: it stays due.
    pub(crate) fn take_back(&mut self, op: Op) {
        match op {
            Op::Send { mut bytes, from, .. } => {
                self.sending = false;
                bytes.drain(..from);
                bytes.append(&mut self.out);
                self.out = bytes;
            }
            Op::Recv { mut into, .. } => {
                self.receiving = false;
                self.responses.take_back_windows(into.landed());
                self.places = Some(into);
            }
            // A connection whose connect op finds no room is dropped.
            op => unreachable!("a connection queued {op:?}"),
        }
    }

    /// Queues a request with its text.
    ///
    /// # Errors
    /// As [`Secure::seal`]: the connection has to be failed then.
    pub(crate) fn request(&mut self, exchange: Exchange, text: &[u8]) -> Result<()> {
        if self.queued() == 0 {
            let has_answered = self.closes_silently && self.heard_bytes > 0;
            self.stale = has_answered || exchange.sent_at.since(self.last_heard) >= IDLE_DOUBT;
            self.last_heard = exchange.sent_at;
        }
        let sealed = match &mut self.secure {
            None => {
                self.out.extend_from_slice(text);
                Ok(())
            }
            Some(secure) => secure.seal(text),
        };
        self.responses.push(exchange);
        sealed
    }

    /// The send op that is due, if any.
    pub(crate) fn send_op(&mut self) -> Option<Op> {
        if self.state != State::Open || self.sending {
            return None;
        }
        if let Some(secure) = &mut self.secure {
            secure.take_output(&mut self.out);
        }
        if self.out.is_empty() {
            return None;
        }
        self.sending = true;
        let bytes = core::mem::replace(&mut self.out, core::mem::take(&mut self.spare));
        Some(Op::Send { sock: self.sock, bytes, from: 0 })
    }

    /// A send ended. Returns the op for what is left of it.
    pub(crate) fn sent(
        &mut self,
        mut bytes: Vec<u8>,
        from: usize,
        result: Result<usize, i32>,
        cx: &mut Context,
    ) -> Option<Op> {
        if self.state == State::Open {
            match result {
                Ok(n) if from + n < bytes.len() => return Some(Op::Send { sock: self.sock, bytes, from: from + n }),
                Err(errno) if transient(errno) => return Some(Op::Send { sock: self.sock, bytes, from }),
                Err(errno) => self.fail(Error::from_errno(Kind::Network, "sending the request", errno), cx),
                Ok(_) => {}
            }
        }
        self.sending = false;
        bytes.clear();
        self.spare = bytes;
        None
    }

    /// The receive op that is due, if any.
    pub(crate) fn recv_op(&mut self, predictor: &HeadPredictor) -> Option<Op> {
        if self.state != State::Open || self.receiving || self.queued() == 0 {
            return None;
        }
        let mut into = self.places.take()?;
        match &mut self.secure {
            None => self.responses.plan(&mut into, predictor),
            Some(secure) => secure.plan(&mut into, &self.responses),
        }
        self.receiving = true;
        Some(Op::Recv { sock: self.sock, into })
    }

    /// The ring took the receive that was due, under this name.
    pub(crate) fn receives(&mut self, op: OpId, patience_bytes: usize) {
        self.patient = (patience_bytes > 0).then_some(op);
    }

    /// Bytes of the response under way, or waited for, that came within the last `window` or longer, if that is too slow to go on waiting.
    pub(crate) fn trickles(&mut self, window: Duration, now: Instant) -> Option<u64> {
        // Also before its head is whole: interim responses, and bytes of a head, may come for ever.
        let is_ready = self.state == State::Open && self.secure.as_ref().is_none_or(Secure::is_agreed);
        let began = |front: &Exchange| front.first_byte_at.unwrap_or(front.sent_at);
        let answer = self.front().filter(|_| is_ready).map(|front| (front.asked.fetch, began(front)));
        self.trickle.look(answer, self.heard_bytes, window, now)
    }

    /// A receive that waits for much at once hides whether anything comes. The op to ask back, so that what has come is
    /// seen; from then on this connection is woken for every byte, until a body has shown its pace anew.
    pub(crate) fn lose_patience(&mut self) -> Option<OpId> {
        let op = self.patient.take()?;
        self.responses.pace.forget();
        Some(op)
    }

    pub(crate) fn received(&mut self, mut into: Scatter, result: Result<usize, i32>, cx: &mut Context) {
        self.receiving = false;
        self.patient = None;
        let pieces = self.responses.take_back_windows(into.landed());
        let verdict = match (result, self.pending_error.take()) {
            (Ok(0), None) => match &self.secure {
                None => self.responses.ended(cx),
                Some(secure) => secure.cut(&mut self.responses, cx),
            },
            (Err(errno), None) if transient(errno) || errno == ASKED_BACK => Ok(()),
            (Err(errno), None) => Err(Error::from_errno(Kind::Network, "receiving the response", errno)),
            (Ok(0) | Err(_), Some(pending_error)) => Err(pending_error),
            (Ok(got), pending_error) => {
                self.last_heard = cx.now;
                self.heard_bytes += got as u64;
                let walked = match &mut self.secure {
                    None => {
                        self.stale = false;
                        self.responses.walk(into.scratch(), &pieces, cx)
                    }
                    Some(secure) => secure.landed(got, &mut into, &mut self.responses, &mut self.stale, cx),
                };
                walked.and_then(|()| if self.responses.over { Ok(()) } else { pending_error.map_or(Ok(()), Err) })
            }
        };
        self.places = Some(into);
        match verdict {
            Err(error) => self.fail(error, cx),
            Ok(()) if self.responses.over => self.close(false, cx),
            Ok(()) => {}
        }
    }

    /// Fails the front exchange with `error` and hands the others back; `Cancelled` when the connection is sound and its bytes are
    /// requested elsewhere. With a receive in flight this waits until it is reaped: the kernel may still write into the windows.
    /// The caller closes the socket when the state says so.
    pub(crate) fn fail(&mut self, error: Error, cx: &mut Context) {
        self.state = State::Closing;
        if self.receiving {
            self.pending_error.get_or_insert(error);
            return;
        }
        let error = match &self.secure {
            Some(secure) => secure.blame(error),
            None => error,
        };
        let idled_out = self.stale && self.responses.is_between() && error.kind() == Kind::Network;
        let given_up = error.kind() == Kind::Cancelled;
        self.failed = !given_up;
        self.responses.fail_front(error, idled_out, cx);
        self.close(given_up && !self.connecting, cx);
    }

    /// Hands all exchanges back unserved and stops.
    fn close(&mut self, displaced: bool, cx: &mut Context) {
        self.state = State::Closing;
        self.responses.close(displaced, cx);
    }
}

/// Room for the text of as many requests as a connection usually has at once.
const REQUESTS_BYTES: usize = 8 << 10;

/// ECANCELED: a patient receive was cancelled before anything came.
const ASKED_BACK: i32 = 125;

/// EINTR and EAGAIN say nothing about the connection.
fn transient(errno: i32) -> bool {
    matches!(errno, 4 | 11)
}
