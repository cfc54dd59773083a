//! Requests, written as bytes. Appends to a caller's buffer and allocates nothing else.

use crate::etag;
use fuelrail_base::{Error, Kind, Result};
use std::io::Write as _;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Method {
    /// Head and body.
    Get,
    /// The head alone.
    Head,
}

/// One request without a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Whether the body is wanted.
    pub method: Method,
    /// The `Host` line: [`crate::Endpoint::authority`].
    pub host: &'a str,
    /// The escaped path with its query: [`crate::Endpoint::object_path`] or [`crate::list_path`].
    pub path: &'a str,
    /// First and last byte wanted, both inclusive.
    pub range: Option<(u64, u64)>,
    /// Answer only when the object still has this entity tag, written with or without quotes. A weak tag is left out:
    /// it never matches here (RFC 9110, 13.1.1), so the tag of the answer has to be compared instead.
    pub if_match: Option<&'a str>,
    /// Ask S3 to send the object's stored checksum along.
    pub checksum: bool,
}

impl<'a> Request<'a> {
    /// A request for all of `path`, with nothing optional.
    #[must_use]
    pub fn new(method: Method, host: &'a str, path: &'a str) -> Request<'a> {
        Request { method, host, path, range: None, if_match: None, checksum: false }
    }

    /// Appends the request's bytes to `out`, which stays as it was on an error.
    ///
    /// # Errors
    /// [`Kind::Usage`] when host, path or entity tag hold a byte that could end or split a line: a blank, a control
    /// byte, or a byte above ASCII outside an entity tag.
    ///
    /// # Panics
    /// When the range runs backwards.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        if self.host.is_empty() || !self.host.bytes().all(is_visible) {
            return Err(refusal("host", self.host));
        }
        if !self.path.starts_with('/') || !self.path.bytes().all(is_visible) {
            return Err(refusal("path", self.path));
        }
        if let Some(tag) = self.if_match
            && !etag::is_sound(tag)
        {
            return Err(refusal("entity tag", tag));
        }
        let method: &[u8] = match self.method {
            Method::Get => b"GET ",
            Method::Head => b"HEAD ",
        };
        out.extend_from_slice(method);
        out.extend_from_slice(self.path.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(self.host.as_bytes());
        out.extend_from_slice(COMMON);
        if let Some((first, last)) = self.range {
            assert!(first <= last, "a range runs forwards, not from {first} to {last}");
            let _ = write!(out, "Range: bytes={first}-{last}\r\n"); // writing to memory cannot fail
        }
        if let Some(tag) = self.if_match.filter(|tag| !tag.starts_with("W/")) {
            let quote: &[u8] = if tag.starts_with('"') { b"" } else { b"\"" };
            for piece in [b"If-Match: ", quote, tag.as_bytes(), quote, b"\r\n"] {
                out.extend_from_slice(piece);
            }
        }
        if self.checksum {
            out.extend_from_slice(b"x-amz-checksum-mode: ENABLED\r\n");
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }
}

/// Appends a GET to `out`. A request for the whole object also asks for its checksum; a part of it has none.
///
/// # Errors
/// As [`Request::write`].
///
/// # Panics
/// As [`Request::write`].
pub fn write_get(
    out: &mut Vec<u8>,
    host: &str,
    path: &str,
    range: Option<(u64, u64)>,
    if_match: Option<&str>,
) -> Result<()> {
    Request { range, if_match, checksum: range.is_none(), ..Request::new(Method::Get, host, path) }.write(out)
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
        .cure("escape every blank, control character and non-ASCII character as %XX")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: Request<'_>) -> String {
        let mut out = Vec::new();
        request.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

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
    fn whole_objects_ask_for_their_checksum() {
        let mut out = Vec::new();
        write_get(&mut out, "h", "/k", None, None).unwrap();
        assert!(out.ends_with(b"x-amz-checksum-mode: ENABLED\r\n\r\n"));
    }

    #[test]
    fn tags_are_quoted_and_weak_ones_left_out() {
        let plain = Request::new(Method::Head, "h", "/k");
        assert!(text(plain).starts_with("HEAD /k HTTP/1.1\r\n"));
        assert!(text(Request { if_match: Some("abc"), ..plain }).contains("If-Match: \"abc\"\r\n"));
        assert_eq!(text(Request { if_match: Some("W/\"abc\""), ..plain }), text(plain));
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
        ] {
            let mut out = vec![1];
            let error = write_get(&mut out, host, path, None, tag).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{host:?} {path:?} {tag:?}");
            assert_eq!(out, [1]);
        }
    }
}
