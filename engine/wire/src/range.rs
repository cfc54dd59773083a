//! Content-Range: which bytes a partial response carries, checked against what was asked.

use crate::escape::shown;
use fuelrail_base::{Error, Kind, Result};

/// The span of bytes a 206 response says it carries. Both ends are inclusive, as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentRange {
    /// Offset of the first byte in the object.
    pub first: u64,
    /// Offset of the last byte in the object.
    pub last: u64,
    /// The object's length in bytes, when the server knows it.
    pub total: Option<u64>,
}

impl ContentRange {
    /// Parses a header value: `bytes 0-99/1000` or `bytes 0-99/*`.
    ///
    /// # Errors
    /// [`Kind::Protocol`] when it is anything else, runs backwards or ends past its own total.
    pub fn parse(value: &[u8]) -> Result<ContentRange> {
        let range = ContentRange::scan(value)
            .ok_or_else(|| Error::new(Kind::Protocol, format!("unreadable Content-Range '{}'", shown(value, 64))))?;
        if range.first > range.last || range.total.is_some_and(|total| range.last >= total) {
            return Err(Error::new(Kind::Protocol, format!("impossible Content-Range '{}'", shown(value, 64))));
        }
        Ok(range)
    }

    fn scan(value: &[u8]) -> Option<ContentRange> {
        let (unit, rest) = value.split_at_checked(6)?;
        if !unit.eq_ignore_ascii_case(b"bytes ") {
            return None;
        }
        let slash = rest.iter().position(|byte| *byte == b'/')?;
        let (span, total) = (&rest[..slash], &rest[slash + 1..]);
        let dash = span.iter().position(|byte| *byte == b'-')?;
        let total = if total == b"*" { None } else { Some(decimal(total)?) };
        Some(ContentRange { first: decimal(&span[..dash])?, last: decimal(&span[dash + 1..])?, total })
    }

    /// Number of bytes in the span: at least one. Saturates for the span of all 2⁶⁴ bytes.
    pub fn span_bytes(&self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// Checks the answer to a request for bytes `asked_first..=asked_last` of an object listed with `object_len` bytes.
    /// A request that runs past the object's end must be answered up to the end.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] naming the asked and the received numbers.
    pub fn check(&self, asked_first: u64, asked_last: u64, object_len: u64) -> Result<()> {
        if let Some(total) = self.total
            && total != object_len
        {
            let cause = format!("the object is {total} bytes long, the listing said {object_len}");
            return Err(Error::new(Kind::Mismatch, cause).with_hint("list the bucket again if the object was replaced"));
        }
        let due_last = asked_last.min(object_len.saturating_sub(1));
        if object_len == 0 || (self.first, self.last) != (asked_first, due_last) {
            let cause = format!(
                "requested bytes {asked_first}-{due_last} of {object_len}, the server sent {}-{}",
                self.first, self.last
            );
            return Err(Error::new(Kind::Mismatch, cause));
        }
        Ok(())
    }
}

/// A number in plain digits: no sign, no blanks. `None` when empty or too large.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    let digits = core::str::from_utf8(text).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64, total: Option<u64>) -> ContentRange {
        ContentRange { first, last, total }
    }

    #[test]
    fn refuses_the_rest() {
        for bad in [
            "",
            "bytes",
            "bytes 0-99",
            "bytes 9-0/100",
            "bytes 0-100/100",
            "bytes */100",
            "bytes +1-2/3",
            "bytes 0- 1/3",
            "items 0-1/3",
            "bytes 0-18446744073709551616/*",
            "bytes 0-1/2/3",
        ] {
            assert_eq!(ContentRange::parse(bad.as_bytes()).unwrap_err().kind(), Kind::Protocol, "{bad}");
        }
    }

    #[test]
    fn checks_against_what_was_asked() {
        range(10, 19, Some(100)).check(10, 19, 100).unwrap();
        range(90, 99, None).check(90, 199, 100).unwrap();
        let error = range(0, 9, Some(100)).check(10, 19, 100).unwrap_err();
        assert_eq!(error.kind(), Kind::Mismatch);
        assert_eq!(error.to_string(), "requested bytes 10-19 of 100, the server sent 0-9");
        let error = range(10, 19, Some(101)).check(10, 19, 100).unwrap_err();
        assert!(error.to_string().starts_with("the object is 101 bytes long, the listing said 100"), "{error}");
        let error = range(0, 0, None).check(0, 0, 0).unwrap_err();
        assert_eq!(error.kind(), Kind::Mismatch, "an empty object has no byte to send");
    }
}
