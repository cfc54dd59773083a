//! One connection's TLS from ClientHello to its end.
//!
//! Owns what is to be sent and has not been taken yet. Handshakes are fed to rustls record by record, so that at their end
//! nothing of the record layer's first record has been touched.

use super::client::Client;
use super::failure::{broken, explain, no_tls};
use super::record::{APPLICATION, CHANGE_CIPHER_SPEC, Key, Records, Schedule, record_len};
use super::shared::{Plaintext, RECORD_BYTES_MAX};
use core::fmt;
use fuelrail_base::{Error, Kind, Result};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, WriteTraffic};
use rustls::{CipherSuite, ConnectionTrafficSecrets, HandshakeKind, ProtocolVersion};

/// What a handshake ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// TLS 1.2 or 1.3.
    pub version: ProtocolVersion,
    /// The cipher suite.
    pub suite: CipherSuite,
    /// A ticket of an earlier connection spared the certificates.
    pub resumed: bool,
}

/// The client's side of one TLS connection.
pub struct Session {
    stage: Stage,
    agreed: Option<Agreed>,
    /// Bytes for the server.
    out: Vec<u8>,
    /// Payload that waits for keys.
    early: Vec<u8>,
    /// Rustls wants to see bytes of the last input again.
    left_over: bool,
    /// Bytes of a handshake message in several records that rustls was shown and wants to see again.
    shown: usize,
    ended: bool,
}

enum Stage {
    /// Through rustls: a handshake of any version, and all of TLS 1.2.
    Rustls(Box<UnbufferedClientConnection>),
    /// TLS 1.3 after its handshake.
    Records(Box<Records<KernelConnection<ClientConnectionData>>>),
    /// After an error.
    Failed,
}

/// What a turn of rustls ended with.
enum Turn {
    More,
    Blocked,
    Established,
}

impl Session {
    /// A session that begins: its ClientHello is to be [taken](Session::take_output).
    ///
    /// # Errors
    /// `Environment` when the system gives no randomness or no time.
    pub fn new(client: &Client) -> Result<Session> {
        let connection = UnbufferedClientConnection::new(client.config.clone(), client.name.clone());
        let mut session = Session {
            stage: Stage::Rustls(Box::new(connection.map_err(|e| explain(&e))?)),
            agreed: None,
            out: Vec::new(),
            early: Vec::new(),
            left_over: false,
            shown: 0,
            ended: false,
        };
        session.rustls(&mut [], &mut NoPayload)?;
        Ok(session)
    }

    /// What was agreed on; `None` while the handshake lasts.
    pub fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// The server has announced, under the connection's keys, that nothing follows.
    pub fn has_ended(&self) -> bool {
        match &self.stage {
            Stage::Records(records) => records.ended,
            _ => self.ended,
        }
    }

    /// How often the server changed its key.
    pub fn key_updates(&self) -> u64 {
        if let Stage::Records(records) = &self.stage { records.key_updates } else { 0 }
    }

    /// Whether there is something for the server.
    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// Appends what is for the server, all of it, to `to`, which must reach the server in this order.
    pub fn take_output(&mut self, to: &mut Vec<u8>) {
        to.append(&mut self.out);
        if let Stage::Records(records) = &mut self.stage {
            records.sent();
        }
    }

    /// Payload for the server; it is kept until there are keys for it.
    ///
    /// # Errors
    /// `Protocol` when the connection cannot take more.
    pub fn seal(&mut self, payload: &[u8]) -> Result<()> {
        match &mut self.stage {
            Stage::Records(records) => records.seal(payload, &mut self.out),
            Stage::Failed => Err(broken("the TLS connection has failed before")),
            Stage::Rustls(_) => {
                self.early.extend_from_slice(payload);
                // What rustls wants to see again cannot be shown to it now: then the payload goes with the next input.
                if self.agreed.is_some() && !self.left_over {
                    self.rustls(&mut [], &mut NoPayload)?;
                }
                Ok(())
            }
        }
    }

    /// Takes what was received: all of it that was not taken before. Returns how many bytes need not be shown again; the
    /// rest, less than a record once the handshake is over, comes again with what is received next.
    ///
    /// # Errors
    /// `Untrusted` for a certificate that is not to be trusted; `Denied` and `Protocol` for what the server says or
    /// breaks; what `to` says. After an error the session is over.
    pub fn feed(&mut self, input: &mut [u8], to: &mut impl Plaintext) -> Result<usize> {
        let fed = self.advance(input, to);
        if fed.is_err() {
            self.stage = Stage::Failed;
        }
        fed
    }

    fn advance(&mut self, input: &mut [u8], to: &mut impl Plaintext) -> Result<usize> {
        let mut used = 0;
        // Only a handshake is shown record by record. What was shown before must be shown whole again.
        let mut shown = core::mem::take(&mut self.shown);
        while self.agreed.is_none() {
            let Some(len) = handshake_record_len(&input[shown..])? else {
                self.shown = shown - used;
                return Ok(used);
            };
            shown += len;
            used += self.rustls(&mut input[used..shown], to)?;
        }
        match &mut self.stage {
            Stage::Records(records) => {
                let fed = records.feed(&mut input[used..], to, &mut self.out);
                fed.map(|bytes| used + bytes)
            }
            Stage::Rustls(_) => self.rustls(&mut input[used..], to).map(|bytes| used + bytes),
            Stage::Failed => Err(broken("the TLS connection has failed before")),
        }
    }

    /// Lets rustls go as far as it gets with `input`; returns how much of it is done with.
    fn rustls(&mut self, input: &mut [u8], to: &mut impl Plaintext) -> Result<usize> {
        let mut used = 0;
        let established = loop {
            let Stage::Rustls(connection) = &mut self.stage else {
                return Err(broken("the TLS connection has failed before"));
            };
            let status = connection.process_tls_records(&mut input[used..]);
            used += status.discard;
            let state = status.state.map_err(|e| explain(&e))?;
            match turn(state, &mut self.out, &mut self.early, &mut self.ended, to)? {
                Turn::More => {}
                Turn::Blocked => break false,
                Turn::Established => break self.agreed.is_none(),
            }
        };
        self.left_over = used < input.len();
        if established {
            self.establish()?;
        }
        Ok(used)
    }

    /// The handshake is over: under TLS 1.3 the record layer takes over.
    fn establish(&mut self) -> Result<()> {
        let Stage::Rustls(connection) = core::mem::replace(&mut self.stage, Stage::Failed) else {
            return Err(broken("the TLS connection has failed before"));
        };
        let (Some(version), Some(suite)) = (connection.protocol_version(), connection.negotiated_cipher_suite()) else {
            return Err(broken("the TLS handshake ended without an agreement"));
        };
        let resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
        self.agreed = Some(Agreed { version, suite: suite.suite(), resumed });
        if version != ProtocolVersion::TLSv1_3 {
            self.stage = Stage::Rustls(connection);
            return Ok(());
        }
        let (secrets, kernel) = connection.dangerous_into_kernel_connection().map_err(|e| explain(&e))?;
        let records = Records::new(kernel, Key::new(secrets.rx)?, Key::new(secrets.tx)?);
        self.stage = Stage::Records(Box::new(records));
        Ok(())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("agreed", &self.agreed).field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// Does what one state of rustls wants.
fn turn(
    state: ConnectionState<'_, '_, ClientConnectionData>,
    out: &mut Vec<u8>,
    early: &mut Vec<u8>,
    ended: &mut bool,
    to: &mut impl Plaintext,
) -> Result<Turn> {
    match state {
        ConnectionState::EncodeTlsData(mut data) => {
            append(out, |room| match data.encode(room) {
                Ok(bytes) => Ok(bytes),
                Err(EncodeError::InsufficientSize(needs)) => Err(Some(needs.required_size)),
                Err(EncodeError::AlreadyEncoded) => Err(None),
            })?;
            Ok(Turn::More)
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Turn::More)
        }
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                to.given(record.map_err(|e| explain(&e))?.payload)?;
            }
            Ok(Turn::More)
        }
        ConnectionState::WriteTraffic(traffic) => {
            if !early.is_empty() {
                encrypt(traffic, early, out)?;
            }
            Ok(Turn::Established)
        }
        ConnectionState::PeerClosed => {
            *ended = true;
            Ok(Turn::Blocked)
        }
        ConnectionState::BlockedHandshake | ConnectionState::Closed => Ok(Turn::Blocked),
        other => Err(broken(&format!("unexpected TLS state: {other:?}"))),
    }
}

/// Seals all of `early` by way of rustls.
fn encrypt(mut traffic: WriteTraffic<'_, ClientConnectionData>, early: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
    append(out, |room| match traffic.encrypt(early, room) {
        Ok(bytes) => Ok(bytes),
        Err(EncryptError::InsufficientSize(needs)) => Err(Some(needs.required_size)),
        Err(EncryptError::EncryptExhausted) => Err(None),
    })?;
    early.clear();
    Ok(())
}

/// Appends what `write` writes, asked again once with the room it names.
fn append(out: &mut Vec<u8>, mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>) -> Result<()> {
    let start = out.len();
    let mut written = write(&mut []);
    if let Err(Some(room)) = written {
        out.resize(start + room, 0);
        written = write(&mut out[start..]);
    }
    let bytes = written.map_err(|_| broken("TLS has nothing more to seal with"))?;
    out.truncate(start + bytes);
    Ok(())
}

/// Length of the record that starts here, if it is whole.
fn handshake_record_len(input: &[u8]) -> Result<Option<usize>> {
    if input.starts_with(b"HTTP") {
        return Err(Error::new(Kind::Protocol, "the server speaks plain HTTP on this port, not TLS")
            .with_hint("write http:// in the URI, or the server's TLS port"));
    }
    let Some(len) = record_len(input) else { return Ok(None) };
    if !matches!(input[0], CHANGE_CIPHER_SPEC..=APPLICATION) || input[1] != 3 || len > RECORD_BYTES_MAX {
        return Err(no_tls());
    }
    Ok((len <= input.len()).then_some(len))
}

/// A sink for calls that bring no payload.
struct NoPayload;

impl Plaintext for NoPayload {
    fn given(&mut self, _payload: &[u8]) -> Result<()> {
        Err(broken("the server sent data before the first request"))
    }
}

impl Schedule for KernelConnection<ClientConnectionData> {
    fn next_opening(&mut self) -> Result<(u64, ConnectionTrafficSecrets)> {
        self.update_rx_secret().map_err(|e| explain(&e))
    }

    fn next_sealing(&mut self) -> Result<(u64, ConnectionTrafficSecrets)> {
        self.update_tx_secret().map_err(|e| explain(&e))
    }

    fn ticket(&mut self, message: &[u8]) -> Result<()> {
        self.handle_new_session_ticket(message).map_err(|e| explain(&e))
    }
}
