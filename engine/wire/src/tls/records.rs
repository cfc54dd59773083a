//! The record layer of an established TLS 1.3 connection: payload to where it belongs, and the few messages besides.
//!
//! Owns the keys of both directions and the handshake message under way. What a message means for keys and tickets is
//! [`Schedule`]'s: rustls in life, fixed keys under test.

use super::failure::alert;
use super::record::{ALERT, APPLICATION, HANDSHAKE, Key, broken, content, sealed_len};
use super::shared::{HEADER_BYTES, PAYLOAD_BYTES_MAX, Plaintext, TAG_BYTES};
use fuelrail_base::Result;
use rustls::ConnectionTrafficSecrets;

/// Handshake messages after the handshake.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// A KeyUpdate that wants none back.
const KEY_UPDATE_ANSWER: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];
/// Longest handshake message, as rustls has it: no ticket is longer.
const MESSAGE_BYTES_MAX: usize = 0xffff;
/// Most records in a row that bring no payload: tickets, key updates and empty records cost us work and the server none.
const BARREN_RECORDS_MAX: u32 = 32;
/// Records sealed with one key before it is changed: AES-GCM bears 2^24.5 of them (RFC 8446, 5.5).
const SEALED_RECORDS_MAX: u64 = 1 << 23;

/// Numbers and secrets that follow those in use, and a place for tickets.
pub(super) trait Schedule {
    /// The next secrets of the server.
    fn next_opening(&mut self) -> Result<(u64, ConnectionTrafficSecrets)>;

    /// Our next secrets.
    fn next_sealing(&mut self) -> Result<(u64, ConnectionTrafficSecrets)>;

    /// Keeps a ticket: the inside of a NewSessionTicket message.
    fn ticket(&mut self, message: &[u8]) -> Result<()>;
}

/// The record layer.
pub(super) struct Records<S> {
    schedule: S,
    opening: Key,
    sealing: Key,
    /// The start of a handshake message that is not complete.
    message: Vec<u8>,
    /// Records since the last payload.
    barren: u32,
    /// An answer to a KeyUpdate is in `out` and not yet sent: one answer serves for many.
    answered: bool,
    /// Key changes of the server.
    key_updates: u64,
    ended: bool,
}

impl<S: Schedule> Records<S> {
    pub(super) fn new(schedule: S, opening: Key, sealing: Key) -> Records<S> {
        Records {
            schedule,
            opening,
            sealing,
            message: Vec::new(),
            barren: 0,
            answered: false,
            key_updates: 0,
            ended: false,
        }
    }

    /// The server has announced that nothing follows.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// How often the server changed its key.
    pub(super) fn key_updates(&self) -> u64 {
        self.key_updates
    }

    /// What was put in `out` is on its way.
    pub(super) fn sent(&mut self) {
        self.answered = false;
    }

    /// Opens the whole records of `input`; returns how many bytes they took. What is behind the announced end is not
    /// looked at.
    ///
    /// # Errors
    /// `Protocol` for what breaks TLS, the server's alert, and what `to` says. Nothing may be fed after an error.
    pub(super) fn feed(&mut self, input: &mut [u8], to: &mut impl Plaintext, out: &mut Vec<u8>) -> Result<usize> {
        let mut used = 0;
        while !self.ended {
            let Some(len) = sealed_len(&input[used..])? else { break };
            let (header, sealed) = input[used..used + len].split_at_mut(HEADER_BYTES);
            self.record(header, sealed, to, out)?;
            used += len;
        }
        Ok(used)
    }

    /// Seals payload, in as many records as it takes.
    pub(super) fn seal(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
        for piece in payload.chunks(PAYLOAD_BYTES_MAX) {
            if self.sealing.records() >= SEALED_RECORDS_MAX {
                self.change_our_key(out)?;
            }
            self.sealing.seal(&[piece, &[APPLICATION]], out)?;
        }
        Ok(())
    }

    fn record(&mut self, header: &[u8], sealed: &mut [u8], to: &mut impl Plaintext, out: &mut Vec<u8>) -> Result<()> {
        let text = sealed.len() - TAG_BYTES;
        let Some(place) = to.place(text) else {
            let opened = self.opening.open_in_place(header, sealed)?;
            let (kind, bytes) = content(opened)?;
            return if self.is_payload(kind, bytes) {
                to.given(&opened[..bytes])
            } else {
                self.control(kind, &opened[..bytes], out)
            };
        };
        let place = &mut place[..text];
        self.opening.open_into(header, sealed, place)?;
        let (kind, bytes) = content(place)?;
        if self.is_payload(kind, bytes) { to.placed(bytes) } else { self.control(kind, &place[..bytes], out) }
    }

    /// Whether a record's content is payload, and not out of turn.
    fn is_payload(&mut self, kind: u8, bytes: usize) -> bool {
        let is_payload = kind == APPLICATION && bytes > 0 && self.message.is_empty();
        if is_payload {
            self.barren = 0;
        }
        is_payload
    }

    /// A record without payload.
    fn control(&mut self, kind: u8, content: &[u8], out: &mut Vec<u8>) -> Result<()> {
        self.barren += 1;
        if self.barren > BARREN_RECORDS_MAX {
            return Err(broken("the server sends TLS messages without payload"));
        }
        match kind {
            HANDSHAKE if content.is_empty() => Err(broken("an empty TLS handshake record came")),
            HANDSHAKE => {
                self.message.extend_from_slice(content);
                self.messages(out)
            }
            _ if !self.message.is_empty() => Err(broken("a TLS handshake message was interrupted")),
            ALERT => {
                self.ended = alert(content)?;
                Ok(())
            }
            APPLICATION => Ok(()),
            _ => Err(broken("a TLS record of an unknown type came")),
        }
    }

    /// Goes through the complete handshake messages.
    fn messages(&mut self, out: &mut Vec<u8>) -> Result<()> {
        while let &[kind, a, b, c, ref rest @ ..] = self.message.as_slice() {
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            if len > MESSAGE_BYTES_MAX {
                return Err(broken("a TLS handshake message is longer than allowed"));
            }
            let Some(inside) = rest.get(..len) else { return Ok(()) };
            match kind {
                NEW_SESSION_TICKET => self.schedule.ticket(inside)?,
                KEY_UPDATE => {
                    let asks = match inside {
                        [0] => false,
                        [1] => true,
                        _ => return Err(broken("a TLS key update is malformed")),
                    };
                    if rest.len() > len {
                        return Err(broken("a TLS key update came with more messages under the old key"));
                    }
                    self.change_their_key(asks, out)?;
                }
                _ => return Err(broken("unexpected TLS message after the handshake")),
            }
            self.message.drain(..4 + len);
        }
        Ok(())
    }

    fn change_their_key(&mut self, asks: bool, out: &mut Vec<u8>) -> Result<()> {
        self.opening = Key::new(self.schedule.next_opening()?)?;
        self.key_updates += 1;
        if asks && !self.answered {
            self.change_our_key(out)?;
            self.answered = true;
        }
        Ok(())
    }

    /// Tells the server under the old key, then takes the new one.
    fn change_our_key(&mut self, out: &mut Vec<u8>) -> Result<()> {
        self.sealing.seal(&[&KEY_UPDATE_ANSWER, &[HANDSHAKE]], out)?;
        self.sealing = Key::new(self.schedule.next_sealing()?)?;
        Ok(())
    }
}
