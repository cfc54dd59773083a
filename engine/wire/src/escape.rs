//! Percent escaping and its inverse, and errors about foreign bytes.

use core::fmt::Write as _;
use fuelrail_base::{Error, Kind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};

/// Everything but RFC 3986 "unreserved" and the slash.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
/// Everything but RFC 3986 "unreserved".
const QUERY: &AsciiSet = &PATH.add(b'/');

/// Why an escaped text could not be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    /// A `%` that is not followed by two hexadecimal digits.
    Percent,
    /// The decoded bytes are not UTF-8.
    Utf8,
}

/// Appends `text` escaped for a path: slashes stay.
pub(crate) fn push_path(out: &mut String, text: &str) {
    out.extend(utf8_percent_encode(text, PATH));
}

/// Appends `text` escaped for a query value.
pub(crate) fn push_query(out: &mut String, text: &str) {
    out.extend(utf8_percent_encode(text, QUERY));
}

/// Decodes `%XX` once, strictly. A plus sign stays a plus sign.
pub(crate) fn decode(text: &str) -> Result<String, Flaw> {
    let bytes = text.as_bytes();
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%') {
        let digits = bytes.get(at + 1..at + 3).ok_or(Flaw::Percent)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(Flaw::Percent);
        }
    }
    percent_decode(bytes).decode_utf8().map(|text| text.into_owned()).map_err(|_| Flaw::Utf8)
}

/// Foreign bytes made fit for an error text: at most `most` of them, escaped, with an ellipsis when cut.
pub(crate) fn shown(bytes: &[u8], most: usize) -> String {
    let mut text = bytes[..bytes.len().min(most)].escape_ascii().to_string();
    if bytes.len() > most {
        let _ = write!(text, "…");
    }
    text
}

/// What a server sent breaks its protocol.
pub(crate) fn protocol(cause: impl Into<String>) -> Error {
    Error::new(Kind::Protocol, cause)
}
