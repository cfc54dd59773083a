//! TLS under a connection: encrypted records are received into scratch memory and decrypted from there into windows.
//!
//! Owns the session, the CONNECT tunnel that it may need first, and which of the received bytes it has not used up. What a record
//! holds goes straight into the front window when all of it belongs there; heads, and the records that a body begins or ends in, go the
//! linear path of `responses.rs`, which counts what it copies.

use super::exchange::{Context, Sink};
use super::responses::Responses;
use fuelrail_base::limits::RESPONSE_HEAD_BYTES_MAX;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_io::Scatter;
use fuelrail_wire::proxy::HUNG_UP;
use fuelrail_wire::tls::{Agreed, Plaintext, RECORD_BYTES_MAX, Session, ciphertext_bytes_min};
use fuelrail_wire::{Endpoint, Expect, Proxy};
use std::sync::Arc;

/// What a connection over TLS has besides a plain one.
pub(crate) struct Secure {
    session: Session,
    /// What has to be open before the handshake begins.
    tunnel: Option<Tunnel>,
    /// Received and not used up: these bytes of the scratch memory.
    from: usize,
    to: usize,
    /// What the handshake agreed on, until it is taken.
    agreed: Option<Agreed>,
}

impl Secure {
    pub(crate) fn new(session: Session, tunnel: Option<Tunnel>) -> Secure {
        Secure { session, tunnel, from: 0, to: 0, agreed: None }
    }

    /// Encrypts a request; it waits for the end of the handshake.
    ///
    /// # Errors
    /// `Protocol` when the key is used up: under TLS 1.2 no new one can be agreed on.
    pub(super) fn seal(&mut self, text: &[u8]) -> Result<()> {
        self.session.seal(text)
    }

    /// Appends the bytes due to the server, or to the proxy before it.
    pub(super) fn take_output(&mut self, out: &mut Vec<u8>) {
        match &mut self.tunnel {
            Some(tunnel) => tunnel.take_request(out),
            None => self.session.take_output(out),
        }
    }

    /// The handshake is over.
    pub(super) fn is_agreed(&self) -> bool {
        self.session.agreed().is_some()
    }

    /// What the handshake agreed on; returned once.
    pub(super) fn take_agreed(&mut self) -> Option<Agreed> {
        self.agreed.take()
    }

    /// Plans the next receive, after the bytes that are not used up.
    pub(super) fn plan(&mut self, into: &mut Scatter, responses: &Responses) {
        if self.tunnel.is_some() {
            assert!(into.push_head(RESPONSE_HEAD_BYTES_MAX), "scratch memory has room for a head");
            return;
        }
        let room = into.scratch().len();
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if room - self.to < room / 2 {
            // Less than a record, once in a receive.
            into.scratch_mut().copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        into.keep(self.to);
        let held = self.to - self.from;
        let rest = responses.payload_to_come().unwrap_or(0);
        let sealed = ciphertext_bytes_min(rest).saturating_sub(held);
        let step = responses.pace.step_bytes(sealed);
        let asked = (room - self.to).min(if step > 0 { sealed - step } else { usize::MAX });
        assert!(into.push_head(asked), "scratch memory holds more than a record");
        if step > 0 {
            into.be_patient(step);
        }
    }

    /// `got` bytes came: opens the records that are whole. Payload ends doubt in a connection that was silent for long; what
    /// else a server says (that it closes the connection) does not.
    ///
    /// # Errors
    /// What the session, or the responses, say.
    pub(super) fn landed(
        &mut self,
        got: usize,
        into: &mut Scatter,
        responses: &mut Responses,
        stale: &mut bool,
        cx: &mut Context,
    ) -> Result<()> {
        if let Some(tunnel) = &mut self.tunnel {
            let is_open = tunnel.feed(&into.scratch()[..got])?;
            self.tunnel.take_if(|_| is_open);
            return Ok(());
        }
        self.to += got;
        let was_agreed = self.session.agreed().is_some();
        let mut sink = PlaintextSink { responses, cx, stale };
        let used = self.session.feed(&mut into.scratch_mut()[self.from..self.to], &mut sink);
        self.from += used?;
        if self.to - self.from == into.scratch().len() {
            return Err(Error::new(Kind::Protocol, "a TLS handshake message is larger than the connection's memory")
                .with_hint("the server or something on the way is broken"));
        }
        if !was_agreed {
            self.agreed = self.session.agreed();
        }
        if self.session.has_ended() && !responses.over {
            responses.ended(cx)?;
        }
        Ok(())
    }

    /// The stream ended without `close_notify`: a body that only the close ends may have been truncated by an attacker.
    ///
    /// # Errors
    /// What the end means.
    pub(super) fn cut(&self, responses: &mut Responses, cx: &mut Context) -> Result<()> {
        if self.tunnel.is_some() {
            return Err(Tunnel::cut());
        }
        if self.session.agreed().is_none() {
            return Err(Error::new(Kind::Network, "the connection closed during the TLS handshake")
                .with_hint("check that the port in the URI is the server's TLS port, and see the server's logs"));
        }
        if self.from < self.to || responses.ends_by_close() {
            return Err(Error::new(Kind::Truncated, "the connection was cut: it closed without a TLS close_notify"));
        }
        responses.ended(cx)
    }

    /// What an error of the connection means.
    pub(super) fn blame(&self, error: Error) -> Error {
        match &self.tunnel {
            Some(tunnel) => tunnel.blame(error),
            None => error,
        }
    }
}

/// Takes decrypted bytes: payload into the front window, the rest to the linear path.
struct PlaintextSink<'a, 'b> {
    responses: &'a mut Responses,
    cx: &'a mut Context<'b>,
    stale: &'a mut bool,
}

impl Plaintext for PlaintextSink<'_, '_> {
    fn place(&mut self, bytes: usize) -> Option<&mut [u8]> {
        // One byte more than payload is written: it belongs to this window too, and comes anew with the next record.
        let fits = self.responses.payload_to_come().is_some_and(|rest| bytes <= rest);
        let exchange = self.responses.queue.front_mut().filter(|_| fits)?;
        let place = exchange.window_mut().unfilled_mut();
        (bytes <= place.len()).then_some(place)
    }

    fn placed(&mut self, bytes: usize) -> Result<()> {
        *self.stale = false;
        self.responses.front()?.window_mut().fill(bytes);
        let body = self.responses.body.as_mut().expect("a place is offered inside a body");
        body.payload(bytes as u64);
        self.responses.settle(self.cx);
        Ok(())
    }

    fn given(&mut self, payload: &[u8]) -> Result<()> {
        *self.stale = false;
        self.responses.feed(payload, self.cx)
    }
}

impl Responses {
    /// Bytes of payload that come next and belong into the front window; `None` when something else may come.
    fn payload_to_come(&self) -> Option<usize> {
        let Expect::Payload { at_most } = self.body.as_ref()?.expect() else { return None };
        let in_window = self.by_length && !self.over && matches!(self.queue.front()?.sink, Sink::Window);
        in_window.then(|| usize::try_from(at_most).unwrap_or(usize::MAX))
    }
}

const _: () =
    assert!(fuelrail_base::limits::TLS_SCRATCH_BYTES_MIN >= 4 * RECORD_BYTES_MAX, "records must not fill the memory");

/// A tunnel that is not open yet.
///
/// The CONNECT tunnel through a proxy, opened before TLS begins on it. Owns the CONNECT request and what has come of its response.
pub(crate) struct Tunnel {
    proxy: Arc<Proxy>,
    server: Endpoint,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// The proxy refused the tunnel.
    refused: bool,
}

impl Tunnel {
    pub(crate) fn new(proxy: Arc<Proxy>, server: &Endpoint) -> Tunnel {
        let mut request = Vec::new();
        proxy.push_connect(server, &mut request);
        Tunnel { proxy, server: server.clone(), request, answer: Vec::new(), refused: false }
    }

    /// Appends the CONNECT request, once.
    fn take_request(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.request);
    }

    /// Takes the next bytes of the response. True when the tunnel is open.
    ///
    /// # Errors
    /// As [`Proxy::judge`].
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<bool> {
        self.answer.extend_from_slice(bytes);
        let judged = self.proxy.judge(&self.server, &self.answer);
        self.refused = judged.is_err();
        judged
    }

    /// What an error before the tunnel is open means. A refusal of the proxy stays as it is.
    pub(super) fn blame(&self, error: Error) -> Error {
        if self.refused {
            return error;
        }
        self.proxy.tunnel_failed(&self.server, error.kind(), &error.cause())
    }

    /// The proxy closed the connection.
    pub(super) fn cut() -> Error {
        Error::new(Kind::Network, HUNG_UP)
    }
}
