//! Requests, written as bytes. Appends to a caller's buffer and allocates nothing else.

use crate::etag;
use fuelrail_base::{Error, Kind, Result};
use std::io::Write as _;

/// Appends a GET of `path` to `out`, which stays as it was on an error. `host` is the `Host` line ([`crate::Endpoint::authority`]), `path`
/// is escaped and has its query ([`crate::Endpoint::object_path`] or [`crate::list_path`]). Both ends of `range` are inclusive; a
/// request for the whole object also asks S3 for its stored checksum, a part of it has none. It is answered only where the object still
/// has the entity tag `if_match`, written with or without quotes. A weak tag is left out: it never matches here (RFC 9110, 13.1.1), so the
/// tag of the answer has to be compared instead.
///
/// # Errors
/// [`Kind::Usage`] when host, path or entity tag hold a byte that could end or split a line: a blank, a control
/// byte, or a byte above ASCII outside an entity tag.
///
/// # Panics
/// When the range runs backwards.
pub fn write_get(
    out: &mut Vec<u8>,
    host: &str,
    path: &str,
    range: Option<(u64, u64)>,
    if_match: Option<&str>,
) -> Result<()> {
    if host.is_empty() || !host.bytes().all(is_visible) {
        return Err(refusal("host", host));
    }
    if !path.starts_with('/') || !path.bytes().all(is_visible) {
        return Err(refusal("path", path));
    }
    if let Some(tag) = if_match.filter(|tag| !etag::is_sound(tag)) {
        return Err(refusal("entity tag", tag));
    }
    for piece in [b"GET ", path.as_bytes(), b" HTTP/1.1\r\nHost: ", host.as_bytes(), COMMON] {
        out.extend_from_slice(piece);
    }
    if let Some((first, last)) = range {
        assert!(first <= last, "a range runs forwards, not from {first} to {last}");
        let _ = write!(out, "Range: bytes={first}-{last}\r\n"); // writing to memory cannot fail
    }
    if let Some(tag) = if_match.filter(|tag| !tag.starts_with("W/")) {
        let quote: &[u8] = if tag.starts_with('"') { b"" } else { b"\"" };
        for piece in [b"If-Match: ", quote, tag.as_bytes(), quote, b"\r\n"] {
            out.extend_from_slice(piece);
        }
    }
    if range.is_none() {
        out.extend_from_slice(b"x-amz-checksum-mode: ENABLED\r\n");
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Ends the `Host` line. Bodies must arrive as stored, so that their offsets mean something: no content coding.
const COMMON: &[u8] =
    concat!("\r\nUser-Agent: fuelrail/", env!("CARGO_PKG_VERSION"), "\r\nAccept-Encoding: identity\r\n").as_bytes();

fn is_visible(byte: u8) -> bool {
    (0x21..=0x7E).contains(&byte)
}

fn refusal(part: &str, text: &str) -> Error {
    let shown = crate::escape::shown(text.as_bytes(), 64);
    Error::new(Kind::Usage, format!("'{shown}' cannot be the {part} of an HTTP request"))
        .with_hint("escape every blank, control character and non-ASCII character as %XX")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_the_standard_asks_for() {
        let mut out = b"GET /before HTTP/1.1\r\n\r\n".to_vec();
        write_get(&mut out, "h:9000", "/b/k", Some((0, 99)), Some("\"abc\"")).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "GET /before HTTP/1.1\r\n\r\nGET /b/k HTTP/1.1\r\nHost: h:9000\r\nUser-Agent: fuelrail/{version}\r\n\
             Accept-Encoding: identity\r\nRange: bytes=0-99\r\nIf-Match: \"abc\"\r\n\r\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn tags_are_quoted_and_weak_ones_left_out() {
        let text = |tag| {
            let mut out = Vec::new();
            write_get(&mut out, "h", "/k", None, tag).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(text(Some("abc")).ends_with("If-Match: \"abc\"\r\nx-amz-checksum-mode: ENABLED\r\n\r\n"));
        assert_eq!(text(Some("W/\"abc\"")), text(None));
    }

    #[test]
    fn nothing_can_split_a_line() {
        for (host, path, tag) in [
            ("h\r\nX: y", "/k", None),
            ("", "/k", None),
            ("h", "/k HTTP/1.1\r\nX: y", None),
            ("h", "k", None),
            ("h", "/é", None),
            ("h", "/k", Some("a\r\nX: y")),
            ("h", "/k", Some("a\" b")),
            ("h", "/k", Some("")),
            ("h", "/k", Some("\"\"")),
            ("h", "/k", Some("\"a")),
        ] {
            let mut out = vec![1];
            let error = write_get(&mut out, host, path, None, tag).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{host:?} {path:?} {tag:?}");
            assert_eq!(out, [1]);
        }
    }
}
