//! A scripted TLS server for the record layer, and the invariants that must hold whatever it sends.
//!
//! Fuzz targets and the corpus test run [`records`]. Nothing here is for users of the crate.

use super::record::{APPLICATION, Key, Records, Schedule, record_len};
use super::shared::{HEADER_BYTES, PAYLOAD_BYTES_MAX, Plaintext};
use fuelrail_base::prng::Prng;
use fuelrail_base::{Error, Kind, Result};
use rustls::ConnectionTrafficSecrets;
use rustls::crypto::cipher::{AeadKey, Iv};

/// Whatever a server seals, and whatever is done to it on the way: what is delivered is a prefix of what it meant, however
/// the stream is cut up and wherever payload is placed, and nothing is delivered of a record that is not genuine.
///
/// The first byte chooses the suite, the second the seed of cuts and places, and the rest is a script of records: each a
/// type, a length, padding, and damage (see [`Server::say`]).
pub fn records(bytes: &[u8]) {
    let [suite, seed, script @ ..] = bytes else { return };
    let suite = *suite % 2;
    let mut server = Server::new(suite);
    let mut script = script.iter().copied();
    while server.say(&mut script) {}
    let seed = u64::from(*seed);
    let whole = server.heard_by(suite, seed, |_, rest| rest);
    assert!(server.meant.starts_with(&whole.payload), "what is delivered was meant");
    assert!(!server.is_honest || whole.error.is_some() || whole.payload == server.meant || whole.ended);
    if let Some(error) = &whole.error {
        assert!(matches!(error.kind(), Kind::Protocol | Kind::Denied), "{error}");
    }
    let chopped = server.heard_by(suite, !seed, |prng, rest| 1 + prng.below(rest as u64) as usize);
    assert_eq!(chopped, whole, "chopped at random");
    if server.wire.len() < 4096 {
        assert_eq!(server.heard_by(suite, seed, |_, _| 1), whole, "byte by byte");
    }
}

/// What came through.
#[derive(PartialEq, Eq, Debug)]
struct Heard {
    payload: Vec<u8>,
    /// Bytes said in answer.
    answered: usize,
    key_updates: u64,
    ended: bool,
    error: Option<Error>,
}

/// Deterministic test keys, one after the other.
struct FixedSchedule {
    suite: u8,
    opened: u8,
    sealed: u8,
}

fn secrets(suite: u8, generation: u8) -> ConnectionTrafficSecrets {
    let (key, iv) = (AeadKey::from([generation; 32]), Iv::from([!generation; 12]));
    match suite {
        0 => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
        _ => ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv },
    }
}

fn key(suite: u8, generation: u8) -> Key {
    Key::new((0, secrets(suite, generation))).expect("material of the right lengths")
}

impl Schedule for FixedSchedule {
    fn next_opening(&mut self) -> Result<(u64, ConnectionTrafficSecrets)> {
        self.opened = self.opened.wrapping_add(1);
        Ok((0, secrets(self.suite, self.opened)))
    }

    fn next_sealing(&mut self) -> Result<(u64, ConnectionTrafficSecrets)> {
        self.sealed = self.sealed.wrapping_add(1);
        Ok((0, secrets(self.suite, self.sealed)))
    }

    fn ticket(&mut self, message: &[u8]) -> Result<()> {
        if message.is_empty() { Err(Error::new(Kind::Protocol, "an empty ticket")) } else { Ok(()) }
    }
}

/// The other side: what it says on the wire, and the payload it means by it.
struct Server {
    suite: u8,
    key: Key,
    generation: u8,
    wire: Vec<u8>,
    meant: Vec<u8>,
    /// Nothing was damaged so far.
    is_honest: bool,
}

impl Server {
    fn new(suite: u8) -> Server {
        Server { suite, key: key(suite, 0), generation: 0, wire: Vec::new(), meant: Vec::new(), is_honest: true }
    }

    /// Says one record as the next bytes of the script have it; false at the script's end.
    fn say(&mut self, script: &mut impl Iterator<Item = u8>) -> bool {
        let (Some(what), Some(size)) = (script.next(), script.next()) else { return false };
        let size = usize::from(size);
        match what % 12 {
            0..=3 => self.payload(size, 0),
            4 => self.payload(PAYLOAD_BYTES_MAX - size % 3, 0),
            5 => self.payload(size, 1 + size * 7 % 300),
            6 => self.payload(0, size % 4),
            7 => self.seal(22, &[&[4, 0, 0, size as u8][..], &vec![7; size]].concat()),
            8 => {
                self.seal(22, &[24, 0, 0, 1, (size % 2) as u8]);
                self.generation = self.generation.wrapping_add(1);
                self.key = key(self.suite, self.generation);
            }
            9 => self.seal(21, &[1, if size.is_multiple_of(2) { 0 } else { 90 }]),
            10 => {
                // Any type and content at all.
                let mut inside: Vec<u8> = script.take(size % 8).chain([size as u8]).collect();
                self.key.seal(&[&inside], &mut self.wire).expect("a few records");
                inside.truncate(inside.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1));
                if inside.pop() == Some(APPLICATION) {
                    self.meant.append(&mut inside);
                }
                self.is_honest = false;
            }
            _ => {
                // Damage to what was said last, or bytes of no record.
                let at = script.next().map_or(0, usize::from);
                match self.wire.last_mut() {
                    Some(byte) if size.is_multiple_of(2) => *byte ^= 1 << (at % 8),
                    _ => self.wire.extend(core::iter::repeat_n(at as u8, size)),
                }
                self.is_honest = false;
            }
        }
        true
    }

    fn payload(&mut self, bytes: usize, padding: usize) {
        let start = self.meant.len();
        let payload: Vec<u8> = (start..start + bytes).map(|at| (at % 251) as u8).collect();
        let padding = padding.min(PAYLOAD_BYTES_MAX - bytes);
        let sealed = self.key.seal(&[&payload, &[APPLICATION], &vec![0; padding]], &mut self.wire);
        sealed.expect("a few records");
        self.meant.extend_from_slice(&payload);
    }

    fn seal(&mut self, kind: u8, content: &[u8]) {
        self.key.seal(&[content, &[kind]], &mut self.wire).expect("a few records");
    }

    /// What a client hears that receives pieces as long as `piece` says of what is left.
    fn heard_by(&self, suite: u8, seed: u64, piece: impl Fn(&mut Prng, usize) -> usize) -> Heard {
        let schedule = FixedSchedule { suite, opened: 0, sealed: 0 };
        let mut records = Records::new(schedule, key(suite, 0), key(suite, 0));
        let mut body = Body { payload: Vec::new(), place: Vec::new(), prng: Prng::new(seed) };
        let mut prng = Prng::new(seed);
        let (mut held, mut out, mut error) = (Vec::new(), Vec::new(), None);
        let (mut from, mut answered) = (0, 0);
        while from < self.wire.len() && error.is_none() && !records.ended {
            let bytes = piece(&mut prng, self.wire.len() - from);
            held.extend_from_slice(&self.wire[from..from + bytes]);
            from += bytes;
            match records.feed(&mut held, &mut body, &mut out) {
                Ok(used) => {
                    assert!(used <= held.len());
                    held.drain(..used);
                    let whole = record_len(&held).is_some_and(|len| len <= held.len());
                    assert!(!whole || records.ended, "a whole record was left");
                }
                Err(e) => error = Some(e),
            }
            assert!(out.len() <= HEADER_BYTES * 8, "one answer for many key updates");
            answered = answered.max(out.len());
        }
        let (key_updates, ended) = (records.key_updates, records.ended);
        Heard { payload: body.payload, answered, key_updates, ended, error }
    }
}

/// Offers places at random, longer ones than asked for among them.
struct Body {
    payload: Vec<u8>,
    place: Vec<u8>,
    prng: Prng,
}

impl Plaintext for Body {
    fn place(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let offered = self.prng.below(3) > 0;
        let longer = self.prng.below(20) as usize;
        offered.then(|| {
            self.place.resize(bytes + longer, 0);
            self.place.as_mut_slice()
        })
    }

    fn placed(&mut self, bytes: usize) -> Result<()> {
        self.payload.extend_from_slice(&self.place[..bytes]);
        Ok(())
    }

    fn given(&mut self, payload: &[u8]) -> Result<()> {
        self.payload.extend_from_slice(payload);
        Ok(())
    }
}
