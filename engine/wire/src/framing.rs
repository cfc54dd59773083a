//! Body framing as offsets: says where the next bytes from the socket belong, so that a body lands in place.
//!
//! Owns the state of one body. Never holds payload: the caller lands payload bytes wherever they go and reports how many,
//! and hands over only the control bytes between them (chunk sizes, line ends, trailers), chopped in any way.

use crate::escape::protocol;
use fuelrail_base::limits::OBJECT_BYTES_MAX;
use fuelrail_base::{Error, Kind, Result};

/// Longest chunk-size line, extensions included. Real ones are below 20 bytes.
pub const CHUNK_LINE_BYTES_MAX: u32 = 4 << 10;
/// Most bytes of trailer lines after the last chunk.
pub const TRAILER_BYTES_MAX: u32 = 8 << 10;

/// How a body is delimited.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Framing {
    /// There is no body.
    #[default]
    None,
    /// Exactly this many bytes.
    Length(u64),
    /// Chunks, each with its size in front.
    Chunked,
    /// Everything until the peer closes the connection.
    UntilClose,
}

/// What the next bytes from the peer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Payload: at most this many bytes (at least one) may be landed before asking again.
    Payload {
        /// Bytes of payload that follow without a break.
        at_most: u64,
    },
    /// Control bytes for [`Body::control`].
    Control {
        /// Bytes that are certain to be control: reading no more than this never swallows payload.
        at_least: usize,
    },
    /// The body is over.
    End,
}

/// One body on its way in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Body {
    state: State,
    landed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// So many bytes are left.
    Counted(u64),
    /// Everything until the connection closes.
    Open,
    /// In the size line. `size` is what its digits say so far.
    SizeLine {
        place: Place,
        size: u64,
        line_bytes: u32,
    },
    /// So many bytes of the current chunk are left.
    Chunk(u64),
    /// After a chunk, before its line end; `cr` when the first half of it has come.
    ChunkEnd {
        cr: bool,
    },
    Trailer {
        place: Place,
        bytes: u32,
    },
    Done,
}

/// Where in a line of control bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// At its first byte.
    Start,
    /// Among the digits of a size.
    Digits,
    /// In the blanks after the digits: no digit may follow.
    Blanks,
    /// In an extension or a trailer field.
    Text,
    /// After CR, before LF. `blank` when nothing stood before.
    Cr { blank: bool },
}

const LINE_START: State = State::SizeLine { place: Place::Start, size: 0, line_bytes: 0 };

impl Body {
    /// A body that starts with the next byte.
    pub fn new(framing: Framing) -> Body {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(bytes) => State::Counted(bytes),
            Framing::Chunked => LINE_START,
            Framing::UntilClose => State::Open,
        };
        Body { state, landed: 0 }
    }

    /// What the next bytes are.
    pub fn expect(&self) -> Expect {
        match self.state {
            State::Counted(left) | State::Chunk(left) => Expect::Payload { at_most: left },
            State::Open => Expect::Payload { at_most: u64::MAX - self.landed },
            State::SizeLine { place, size, .. } => Expect::Control { at_least: size_line_rest(place, size) },
            // Its own line end, then the shortest size line.
            State::ChunkEnd { cr } => Expect::Control { at_least: if cr { 4 } else { 5 } },
            State::Trailer { place, .. } => Expect::Control {
                at_least: match place {
                    Place::Start => 2,
                    Place::Cr { blank: true } => 1,
                    Place::Cr { blank: false } => 3,
                    Place::Digits | Place::Blanks | Place::Text => 4,
                },
            },
            State::Done => Expect::End,
        }
    }

    /// Whether only the end of the connection ends it.
    pub fn ends_by_close(&self) -> bool {
        self.state == State::Open
    }

    /// Payload bytes landed so far.
    pub fn landed(&self) -> u64 {
        self.landed
    }

    /// Notes that `bytes` of payload have landed.
    ///
    /// # Panics
    /// When that is more than [`Body::expect`] allows.
    pub fn payload(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let Expect::Payload { at_most } = self.expect() else {
            panic!("{bytes} bytes of payload landed where none was due");
        };
        assert!(bytes <= at_most, "{bytes} bytes of payload landed where at most {at_most} were due");
        self.landed += bytes;
        self.state = match self.state {
            State::Counted(left) if left == bytes => State::Done,
            State::Counted(left) => State::Counted(left - bytes),
            State::Chunk(left) if left == bytes => State::ChunkEnd { cr: false },
            State::Chunk(left) => State::Chunk(left - bytes),
            other => other,
        };
    }

    /// Consumes control bytes from the front of `bytes`, up to the next payload byte or the end of the body, and
    /// returns how many they were.
    ///
    /// # Errors
    /// [`Kind::Protocol`] when they are not chunked framing or exceed a limit. The body is then of no further use.
    pub fn control(&mut self, bytes: &[u8]) -> Result<usize> {
        for (at, &byte) in bytes.iter().enumerate() {
            self.state = match self.state {
                State::SizeLine { place, size, line_bytes } => {
                    if line_bytes >= CHUNK_LINE_BYTES_MAX {
                        return Err(protocol(format!("a chunk-size line is longer than {CHUNK_LINE_BYTES_MAX} bytes")));
                    }
                    self.size_line(place, size, line_bytes + 1, byte)?
                }
                State::ChunkEnd { cr: false } if byte == b'\r' => State::ChunkEnd { cr: true },
                State::ChunkEnd { cr: true } if byte == b'\n' => LINE_START,
                State::ChunkEnd { .. } => return Err(unexpected(byte, "after a chunk")),
                State::Trailer { place, bytes } => {
                    if bytes >= TRAILER_BYTES_MAX {
                        return Err(protocol(format!("trailers are longer than {TRAILER_BYTES_MAX} bytes")));
                    }
                    trailer(place, bytes + 1, byte)?
                }
                State::Counted(_) | State::Open | State::Chunk(_) | State::Done => return Ok(at),
            };
        }
        Ok(bytes.len())
    }

    /// Notes that the peer closed the connection.
    ///
    /// # Errors
    /// [`Kind::Truncated`] when the body was not over yet, with the counts.
    pub fn closed(&mut self) -> Result<()> {
        let landed = self.landed;
        let cause = match self.state {
            State::Done => return Ok(()),
            State::Open => {
                self.state = State::Done;
                return Ok(());
            }
            State::Counted(left) => format!("the body ended at byte {landed} of {}", landed + left),
            State::Chunk(left) => format!("the body ended at byte {landed}, with {left} bytes of a chunk missing"),
            _ => format!("the body ended at byte {landed}, before its last chunk"),
        };
        Err(Error::new(Kind::Truncated, cause))
    }

    fn size_line(&self, place: Place, size: u64, line_bytes: u32, byte: u8) -> Result<State> {
        if let (Place::Start | Place::Digits, Some(digit)) = (place, (byte as char).to_digit(16)) {
            let size = size.checked_mul(16).and_then(|size| size.checked_add(u64::from(digit)));
            let within = |size: &u64| self.landed.checked_add(*size).is_some_and(|sum| sum <= OBJECT_BYTES_MAX);
            let size = size
                .filter(within)
                .ok_or_else(|| protocol(format!("a chunk makes the body longer than {OBJECT_BYTES_MAX} bytes")))?;
            return Ok(State::SizeLine { place: Place::Digits, size, line_bytes });
        }
        let place = match (place, byte) {
            (Place::Digits | Place::Blanks, b' ' | b'\t') => Place::Blanks,
            (Place::Digits | Place::Blanks, b';') => Place::Text,
            (Place::Digits | Place::Blanks | Place::Text, b'\r') => Place::Cr { blank: false },
            (Place::Text, _) if is_text(byte) => Place::Text,
            (Place::Cr { .. }, b'\n') if size == 0 => return Ok(State::Trailer { place: Place::Start, bytes: 0 }),
            (Place::Cr { .. }, b'\n') => return Ok(State::Chunk(size)),
            _ => return Err(unexpected(byte, "in a chunk-size line")),
        };
        Ok(State::SizeLine { place, size, line_bytes })
    }
}

/// Fewest control bytes that can follow in a size line: up to its end, and the blank line after a size of zero.
fn size_line_rest(place: Place, size: u64) -> usize {
    match (place, size) {
        (Place::Start, _) => 3,  // "1\r\n"
        (Place::Digits, 0) => 3, // one more digit, or the blank line
        (Place::Digits, _) => 2,
        (Place::Blanks | Place::Text, 0) => 4,
        (Place::Blanks | Place::Text, _) => 2,
        (Place::Cr { .. }, 0) => 3,
        (Place::Cr { .. }, _) => 1,
    }
}

fn trailer(place: Place, bytes: u32, byte: u8) -> Result<State> {
    let place = match (place, byte) {
        (Place::Start, b'\r') => Place::Cr { blank: true },
        (Place::Text, b'\r') => Place::Cr { blank: false },
        (Place::Start | Place::Text, _) if is_text(byte) => Place::Text,
        (Place::Cr { blank: true }, b'\n') => return Ok(State::Done),
        (Place::Cr { blank: false }, b'\n') => Place::Start,
        _ => return Err(unexpected(byte, "in a trailer")),
    };
    Ok(State::Trailer { place, bytes })
}

/// Bytes allowed inside a line: all but control bytes, of which a tab may pass.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7F)
}

fn unexpected(byte: u8, place: &str) -> Error {
    protocol(format!("unexpected byte '{}' {place}", byte.escape_ascii()))
}
