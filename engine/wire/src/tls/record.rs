//! The record layer of TLS 1.3: records as they stand on the wire, the key of one direction of a connection, which opens and seals
//! them; and on an established connection payload to where it belongs, and the few messages besides.
//!
//! Owns the keys of both directions and the handshake message under way. What a message means for keys and tickets is
//! [`Schedule`]'s: rustls in life, fixed keys under test.

use super::failure::{alert, broken};
use super::shared::{HEADER_BYTES, PAYLOAD_BYTES_MAX, Plaintext, SEALED_BYTES_MAX, TAG_BYTES};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use fuelrail_base::{Error, Kind, Result};
use rustls::ConnectionTrafficSecrets;

/// Most bytes of the content of one record with its type.
const INNER_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 1;

/// Type of every sealed record, and of payload inside one.
pub(super) const APPLICATION: u8 = 23;
/// Lowest type of any record.
pub(super) const CHANGE_CIPHER_SPEC: u8 = 20;
/// Type of handshake messages.
const HANDSHAKE: u8 = 22;
/// Type of alerts.
const ALERT: u8 = 21;

/// Length of the record that starts here, header and all; `None` when not even its header is complete.
pub(super) fn record_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER_BYTES)?;
    Some(HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]])))
}

/// Length of the sealed record that starts here, if it is whole.
///
/// # Errors
/// `Protocol` when it is no sealed record or breaks a limit; said as early as its header shows it.
fn sealed_len(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(len) = record_len(bytes) else { return Ok(None) };
    if bytes[0] != APPLICATION || bytes[1] != 3 {
        return Err(broken("invalid data where a TLS record was expected"));
    }
    match len - HEADER_BYTES {
        sealed if sealed > SEALED_BYTES_MAX => Err(broken("a TLS record is longer than allowed")),
        sealed if sealed <= TAG_BYTES => Err(broken("a TLS record is too short")),
        _ => Ok((len <= bytes.len()).then_some(len)),
    }
}

/// Type and length of what an opened record holds: its padding taken off.
pub(super) fn content(opened: &[u8]) -> Result<(u8, usize)> {
    let Some(at) = opened.iter().rposition(|&byte| byte != 0) else {
        return Err(broken("a TLS record contains only padding"));
    };
    if opened.len() > INNER_BYTES_MAX {
        return Err(broken("a TLS record's content is longer than allowed"));
    }
    Ok((opened[at], at))
}

const IV_BYTES: usize = 12;

/// One direction's key and the number of its next record.
pub(super) struct Key {
    key: LessSafeKey,
    iv: [u8; IV_BYTES],
    /// Records opened or sealed with it so far.
    records: u64,
}

impl Key {
    /// From what rustls gives, with the number of the next record.
    pub(super) fn new((records, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Key> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        match &secrets {
            Aes128Gcm { key, iv } => Key::of(&AES_128_GCM, key.as_ref(), iv.as_ref(), records),
            Aes256Gcm { key, iv } => Key::of(&AES_256_GCM, key.as_ref(), iv.as_ref(), records),
            Chacha20Poly1305 { key, iv } => Key::of(&CHACHA20_POLY1305, key.as_ref(), iv.as_ref(), records),
            _ => None,
        }
        .ok_or_else(|| Error::new(Kind::Environment, "unsupported cipher suite"))
    }

    /// From raw material; `None` when a length does not fit the algorithm.
    pub(super) fn of(algorithm: &'static Algorithm, key: &[u8], iv: &[u8], records: u64) -> Option<Key> {
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?);
        Some(Key { key, iv: iv.try_into().ok()?, records })
    }

    /// Opens a record (`sealed` ends with its tag) into memory of exactly its length without tag.
    ///
    /// # Errors
    /// `Protocol` when it is not genuine; `into` is scrap then.
    fn open_into(&mut self, header: &[u8], sealed: &[u8], into: &mut [u8]) -> Result<()> {
        let nonce = self.nonce()?;
        let (text, tag) = sealed.split_at(sealed.len() - TAG_BYTES);
        self.key.open_separate_gather(nonce, Aad::from(header), text, tag, into).map_err(|_| forged())
    }

    /// Opens a record where it lies, and returns it without its tag.
    fn open_in_place<'a>(&mut self, header: &[u8], sealed: &'a mut [u8]) -> Result<&'a mut [u8]> {
        let nonce = self.nonce()?;
        self.key.open_in_place(nonce, Aad::from(header), sealed).map_err(|_| forged())
    }

    /// Appends a sealed record whose inside (content, type, padding) is these parts.
    pub(super) fn seal(&mut self, inside: &[&[u8]], out: &mut Vec<u8>) -> Result<()> {
        let nonce = self.nonce()?;
        let sealed = inside.iter().map(|part| part.len()).sum::<usize>() + TAG_BYTES;
        let len = u16::try_from(sealed).expect("callers cut payload into records");
        let start = out.len();
        out.extend_from_slice(&[APPLICATION, 3, 3, (len >> 8) as u8, len as u8]);
        inside.iter().for_each(|part| out.extend_from_slice(part));
        let (header, text) = out[start..].split_at_mut(HEADER_BYTES);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), text);
        out.extend_from_slice(tag.map_err(|_| broken("a record cannot be sealed"))?.as_ref());
        Ok(())
    }

    /// The nonce of the next record, which counts as used from here on.
    fn nonce(&mut self) -> Result<Nonce> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[IV_BYTES - 8..].iter_mut().zip(self.records.to_be_bytes()) {
            *byte ^= number;
        }
        let next = self.records.checked_add(1);
        self.records = next.ok_or_else(|| broken("the connection has used up its record numbers"))?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

fn forged() -> Error {
    broken("a TLS record failed authentication: it was damaged or forged on the way")
}

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
    pub(super) key_updates: u64,
    /// The server has announced that nothing follows.
    pub(super) ended: bool,
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

    /// What was put in `out` is on its way.
    pub(super) fn sent(&mut self) {
        self.answered = false;
    }

    /// Opens the whole records of `input`; returns how many bytes they took. What follows the announced end is not
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
            if self.sealing.records >= SEALED_RECORDS_MAX {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_judged_as_soon_as_they_are_whole() {
        let header = |kind: u8, len: u16| [kind, 3, 3, (len >> 8) as u8, len as u8];
        assert_eq!(sealed_len(&header(23, 17)[..4]), Ok(None));
        assert_eq!(sealed_len(&header(23, 17)), Ok(None));
        assert_eq!(sealed_len(&[&header(23, 17)[..], &[0; 17]].concat()), Ok(Some(22)));
        assert_eq!(sealed_len(&[&header(23, 17)[..], &[0; 40]].concat()), Ok(Some(22)));
        for (kind, len, says) in [
            (23, 16, "too short"),
            (23, 0, "too short"),
            (23, 16641, "longer"),
            (23, u16::MAX, "longer"),
            (20, 1, "where a TLS record"),
            (21, 2, "where a TLS record"),
            (22, 100, "where a TLS record"),
        ] {
            let error = sealed_len(&header(kind, len)).unwrap_err();
            assert!(error.kind() == Kind::Protocol && error.cause().contains(says), "{kind} {len}: {error}");
        }
        assert_eq!(sealed_len(&header(23, 16640)), Ok(None));
    }

    #[test]
    fn padding_is_taken_off() {
        assert_eq!(content(&[7, 23]), Ok((23, 1)));
        assert_eq!(content(&[0, 0, 23, 0, 0, 0]), Ok((23, 2)));
        assert_eq!(content(&[23]), Ok((23, 0)));
        assert!(content(&[0, 0]).unwrap_err().cause().contains("padding"));
        let mut longest = vec![1; INNER_BYTES_MAX];
        assert_eq!(content(&longest), Ok((1, PAYLOAD_BYTES_MAX)));
        longest.push(0);
        assert!(content(&longest).unwrap_err().cause().contains("longer than allowed"));
    }

    #[test]
    fn numbers_are_never_used_twice() {
        let mut key = Key::of(&CHACHA20_POLY1305, &[1; 32], &[2; 12], u64::MAX).unwrap();
        assert!(key.seal(&[&[23]], &mut Vec::new()).unwrap_err().cause().contains("used up"));
    }
}
