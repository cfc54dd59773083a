//! A request as a signer sees it: the parts that a signature can cover, and what signatures are made for.

use arrayvec::ArrayVec;
use fuelrail_base::{Error, Kind, Result};

/// Header lines that one signature covers at most.
pub(super) const HEADERS_MAX: usize = 32;
/// Parameters of a query at most.
const PARAMETERS_MAX: usize = 32;

/// Header lines, sorted by name.
pub(super) type Lines<'a> = ArrayVec<(&'a str, &'a [u8]), HEADERS_MAX>;
/// The parameters of a query, sorted by name and value.
pub(super) type Parameters<'a> = ArrayVec<(&'a str, &'a str), PARAMETERS_MAX>;

/// What is asked for, before it is signed.
#[derive(Clone, Copy, Debug)]
pub struct Unsigned<'a> {
    /// In capitals.
    pub method: &'a str,
    /// As in the `Host` line.
    pub host: &'a str,
    /// Escaped, as in the request line.
    pub path_and_query: &'a str,
    /// The other header lines: names in lower case. What [`covered`] names has to be among them if the request has it.
    pub headers: &'a [(&'a str, &'a [u8])],
}

impl<'a> Unsigned<'a> {
    /// The path, and the query after the question mark.
    pub(super) fn parts(&self) -> (&'a str, &'a str) {
        self.path_and_query.split_once('?').unwrap_or((self.path_and_query, ""))
    }

    /// The query taken apart and put into `sorted`. A parameter without a value has an empty one.
    pub(super) fn parameters(&self, sorted: &mut Parameters<'a>) -> Result<()> {
        for pair in self.parts().1.split('&').filter(|pair| !pair.is_empty()) {
            insert(sorted, pair.split_once('=').unwrap_or((pair, "")), |a, b| a <= b)?;
        }
        Ok(())
    }
}

/// Adds a header line, after those of the same name.
pub(super) fn insert_line<'a>(lines: &mut Lines<'a>, name: &'a str, value: &'a [u8]) -> Result<()> {
    insert(lines, (name, value), |a, b| a.0 <= b.0)
}

/// Keeps few things sorted, without a heap.
fn insert<T, const MAX: usize>(
    sorted: &mut ArrayVec<T, MAX>,
    new: T,
    not_after: impl Fn(&T, &T) -> bool,
) -> Result<()> {
    let at = sorted.iter().rposition(|old| not_after(old, &new)).map_or(0, |before| before + 1);
    sorted
        .try_insert(at, new)
        .map_err(|_| Error::new(Kind::Usage, format!("a request with more than {MAX} parts cannot be signed")))
}

/// The name in lower case of a header that a signature covers: what says which bytes are asked for, and all that is the vendors' own,
/// which they insist on; the latter are written in lower case here.
pub fn covered(name: &str) -> Option<&str> {
    // Most lines are not signed, and begin with other letters than those that are.
    match name.as_bytes().first()? | 0x20 {
        b'x' => COVERED_STARTS.iter().any(|start| name.starts_with(start)).then_some(name),
        b'c' | b'i' | b'r' => COVERED.into_iter().find(|covered| name.eq_ignore_ascii_case(covered)),
        _ => None,
    }
}

const COVERED: [&str; 5] = ["range", "if-match", "if-none-match", "content-type", "content-md5"];
const COVERED_STARTS: [&str; 3] = ["x-amz-", "x-ms-", "x-goog-"];

/// Appends a header's value as signatures have it: trimmed, runs of blanks made one.
pub(super) fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    let value = value.trim_ascii();
    if !value.contains(&b' ') {
        return out.extend_from_slice(value);
    }
    let mut blank = false;
    for byte in value {
        if !(blank && *byte == b' ') {
            out.push(*byte);
        }
        blank = *byte == b' ';
    }
}

/// What a signature is good for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scope {
    /// `eu-central-1`; what servers of one's own are set to is mostly `us-east-1`, and Google takes `auto`.
    pub region: String,
    /// `s3`, `sts`.
    pub service: &'static str,
}

/// What the signature says of the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Nothing: TLS and checksums guard it. Costs no pass over the bytes.
    Unsigned,
    /// Its SHA-256, in hexadecimal.
    Sha256(&'a str),
}

/// What signatures are made for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Realm {
    /// Region and service, where those are signed.
    pub scope: Scope,
    /// The requester pays (S3's `x-amz-request-payer`).
    pub requester_pays: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_covered_is_found_in_any_case_and_little_else() {
        for (name, lower) in
            [("Range", Some("range")), ("IF-None-Match", Some("if-none-match")), ("x-ms-date", Some("x-ms-date"))]
        {
            assert_eq!(covered(name), lower);
        }
        assert!(
            ["Host", "content-length", "user-agent", "x-other", ""].into_iter().all(|name| covered(name).is_none())
        );
    }
}
