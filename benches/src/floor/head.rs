//! The head of an answer, read as little as can be: where it ends, that it is a 200, and its `Content-Length`.
//!
//! Owns nothing. A server that chunks or closes is refused: a floor is measured against servers that do neither.

use fuelrail::{Error, Kind, Result};

/// Where the body starts and how long it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) bytes: usize,
    pub(super) body_bytes: u64,
}

/// Reads the head at the start of `answer`; none when it has not arrived whole.
pub(super) fn parse(answer: &[u8]) -> Result<Option<Head>> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = &answer[..end];
    if !head.starts_with(b"HTTP/1.1 200") {
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let cause = format!("the server answers `{}`", String::from_utf8_lossy(line).escape_debug());
        return Err(Error::new(Kind::Protocol, cause).cure("check --uri and --manifest"));
    }
    let mut lines = head.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(LENGTH.len())?;
        name.eq_ignore_ascii_case(LENGTH).then_some(value)
    });
    let length = value.and_then(|value| std::str::from_utf8(value).ok()?.trim().parse().ok());
    let body_bytes = length.ok_or_else(|| {
        Error::new(Kind::Protocol, "the server gives no Content-Length").cure("use a server of plain files")
    })?;
    Ok(Some(Head { bytes: end + 4, body_bytes }))
}

const LENGTH: &[u8] = b"content-length:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_length_and_nothing_else() {
        let answer = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 12\r\n\r\nbody";
        assert_eq!(parse(answer).unwrap(), Some(Head { bytes: answer.len() - 4, body_bytes: 12 }));
        assert_eq!(parse(&answer[..30]).unwrap(), None);
        assert!(parse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\n").unwrap_err().to_string().contains("404"));
        for none in [&b"HTTP/1.1 200 OK\r\nX: 1\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"] {
            assert_eq!(parse(none).unwrap_err().kind(), Kind::Protocol);
        }
    }
}
