//! Requests as the bucket hears them, strict because the client is what is being tested; and responses before anything goes wrong with
//! them: heads in several styles, bodies in several framings.

use core::ops::Range;

use fuelrail_base::SampleId;
use fuelrail_base::prng::Prng;
use fuelrail_wire::multipart::checksum;
use percent_encoding::percent_decode_str;

use crate::dataset::{AUTHORITY, DataSet, PATH};
use crate::scenario::{BucketShape, Flavour};

/// A GET of an object or of a part of it.
pub(super) struct Get {
    pub sample: SampleId,
    /// First and last byte, both inclusive and inside the object.
    pub range: Option<(u64, u64)>,
    /// The object's checksum is requested.
    pub checksum: bool,
}

/// Length of the first complete head in `inbox`.
pub(super) fn head_len(inbox: &[u8]) -> Option<usize> {
    inbox.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Takes a head apart, or says what is wrong with it.
pub(super) fn parse(head: &[u8], objects: &DataSet) -> Result<Get, String> {
    let text = core::str::from_utf8(head).map_err(|_| "not ASCII".to_string())?;
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let path = lines
        .next()
        .and_then(|line| line.strip_prefix("GET "))
        .and_then(|line| line.strip_suffix(" HTTP/1.1"))
        .ok_or("not a GET of HTTP/1.1")?;
    let key = path.strip_prefix(PATH).ok_or_else(|| format!("'{path}' is not in the bucket"))?;
    let key = percent_decode_str(key).decode_utf8().map_err(|_| format!("'{key}' is badly escaped"))?;
    let sample = objects.sample(&key).ok_or_else(|| format!("no object is named '{key}'"))?;
    let (mut host, mut range, mut checksum) = (None, None, false);
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or_else(|| format!("'{line}' is no header line"))?;
        match name.to_ascii_lowercase().as_str() {
            "host" => host = Some(value),
            "range" => range = Some(span(value).ok_or_else(|| format!("'{value}' is no range"))?),
            "x-amz-checksum-mode" => checksum = value == "ENABLED",
            "accept-encoding" if value != "identity" => return Err(format!("'{value}' would move offsets")),
            _ => {}
        }
    }
    if host != Some(AUTHORITY) {
        return Err(format!("the Host line is {host:?}"));
    }
    let len = objects.bytes(sample).len() as u64;
    match range {
        _ if len == 0 => Err("an empty object needs no request".into()),
        Some((first, last)) if first > last || last >= len => Err(format!("{first}-{last} of {len} bytes")),
        _ => Ok(Get { sample, range, checksum }),
    }
}

fn span(value: &str) -> Option<(u64, u64)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// One response, ready to be spoilt and sent.
pub(super) struct Answer {
    pub wire: Vec<u8>,
    /// Bytes of its head, interim heads included.
    pub head_len: usize,
    /// Where the last byte of payload ends.
    pub payload_end: usize,
    /// The body ends with the connection.
    pub until_close: bool,
    /// What the head says, to say it differently.
    pub says: Says,
}

/// The content of a head.
#[derive(Clone)]
pub(super) struct Says {
    pub status: u16,
    pub reason: &'static str,
    pub length: Option<u64>,
    pub chunked: bool,
    pub range: Option<(u64, u64, u64)>,
    pub etag: Option<String>,
    pub crc32c: Option<u32>,
    pub retry_after_s: Option<u64>,
    pub close: bool,
    pub flavour: Flavour,
    pub interim: bool,
    /// Payload, before framing.
    pub payload: Vec<u8>,
    /// The whole object, for who ignores ranges.
    pub whole: Vec<u8>,
}

/// The object, or the part of it that was requested.
pub(super) fn object(objects: &DataSet, get: &Get, shape: &BucketShape, last: bool, prng: &mut Prng) -> Answer {
    let whole = objects.bytes(get.sample);
    let len = whole.len() as u64;
    let span: Range<usize> = get.range.map_or(0..whole.len(), |(first, last)| first as usize..last as usize + 1);
    let until_close = prng.chance(shape.until_close);
    let chunked = !until_close && prng.chance(shape.chunked);
    let says = Says {
        status: if get.range.is_some() { 206 } else { 200 },
        reason: if get.range.is_some() { "Partial Content" } else { "OK" },
        length: (!until_close && !chunked).then_some(span.len() as u64),
        chunked,
        range: get.range.map(|(first, last)| (first, last, len)),
        etag: shape.etags.1.then(|| objects.etag(get.sample).to_string()),
        crc32c: promises(get, shape).then(|| objects.crc32c(get.sample)),
        retry_after_s: None,
        close: until_close || (last && shape.announces_close),
        flavour: shape.flavour,
        interim: prng.chance(shape.interim),
        payload: whole[span].to_vec(),
        whole: whole.to_vec(),
    };
    Answer::of(says, prng)
}

/// Whether the answer carries the checksum of the whole object.
pub(super) fn promises(get: &Get, shape: &BucketShape) -> bool {
    shape.crc32c && if get.range.is_none() { get.checksum } else { shape.crc32c_of_parts }
}

/// The response of a bucket that is down, or to a request for a sample that can never be read.
pub(super) fn refusal(status: u16, shape: &BucketShape, prng: &mut Prng) -> Answer {
    Answer::of(Says::refusal(status, shape.flavour), prng)
}

impl Says {
    pub(super) fn refusal(status: u16, flavour: Flavour) -> Says {
        let (reason, code) = match status {
            403 => ("Forbidden", "AccessDenied"),
            404 => ("Not Found", "NoSuchKey"),
            503 => ("Slow Down", "SlowDown"),
            _ => ("Internal Server Error", "InternalError"),
        };
        let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>");
        Says {
            status,
            reason,
            length: Some(text.len() as u64),
            chunked: false,
            range: None,
            etag: None,
            crc32c: None,
            retry_after_s: None,
            close: false,
            flavour,
            interim: false,
            payload: text.into_bytes(),
            whole: Vec::new(),
        }
    }
}

impl Answer {
    /// Writes what is said.
    pub(super) fn of(says: Says, prng: &mut Prng) -> Answer {
        let mut wire = Vec::with_capacity(says.payload.len() + 600);
        if says.interim {
            wire.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n");
        }
        push_head(&mut wire, &says, prng);
        let head_len = wire.len();
        let payload_end = if says.chunked {
            push_chunks(&mut wire, &says.payload, prng)
        } else {
            wire.extend_from_slice(&says.payload);
            wire.len()
        };
        let until_close = says.length.is_none() && !says.chunked;
        Answer { wire, head_len, payload_end, until_close, says }
    }

    /// Replaces the response by another one, rewritten from what it says now.
    pub(super) fn rewrite(&mut self, prng: &mut Prng) {
        *self = Answer::of(self.says.clone(), prng);
    }

    /// Flips a bit of a payload sent by length and takes the checksum away.
    pub(super) fn flip_silently(&mut self) {
        if let Some(byte) = self.says.payload.first_mut() {
            *byte ^= 1;
        }
        self.says.crc32c = None;
        *self = Answer::of(self.says.clone(), &mut Prng::new(0));
    }
}

fn push_head(wire: &mut Vec<u8>, says: &Says, prng: &mut Prng) {
    let mut lines = vec![format!("HTTP/1.1 {} {}", says.status, says.reason)];
    match says.flavour {
        Flavour::S3 => {
            lines.push(format!("x-amz-id-2: {:032x}", u128::from(prng.next())));
            lines.push(format!("x-amz-request-id: {:016X}", prng.next()));
            lines.push("Date: Sat, 21 Nov 2026 04:40:50 GMT".into());
            lines.push("Last-Modified: Fri, 20 Nov 2026 10:00:00 GMT".into());
            lines.push("Accept-Ranges: bytes".into());
            lines.push("Server: AmazonS3".into());
        }
        Flavour::Nginx => lines.push("Server: nginx/1.27.2".into()),
        Flavour::Varying => lines.push(format!("x-trace: {}", "t".repeat(prng.below(40) as usize))),
    }
    lines.push("Content-Type: application/octet-stream".into());
    lines.extend(says.length.map(|length| format!("Content-Length: {length}")));
    if says.chunked {
        lines.push("Transfer-Encoding: chunked".into());
    }
    lines.extend(says.range.map(|(first, last, total)| format!("Content-Range: bytes {first}-{last}/{total}")));
    lines.extend(says.etag.as_ref().map(|etag| format!("ETag: {etag}")));
    lines.extend(says.crc32c.map(|crc| format!("x-amz-checksum-crc32c: {}", checksum(crc))));
    lines.extend(says.retry_after_s.map(|s| format!("Retry-After: {s}")));
    lines.push(if says.close { "Connection: close" } else { "Connection: keep-alive" }.into());
    wire.extend_from_slice(lines.join("\r\n").as_bytes());
    wire.extend_from_slice(b"\r\n\r\n");
}

/// Appends the body in chunks of any size, some with an extension or a trailer. Returns where the payload ends.
fn push_chunks(wire: &mut Vec<u8>, payload: &[u8], prng: &mut Prng) -> usize {
    let mut rest = payload;
    let mut payload_end = wire.len();
    while !rest.is_empty() {
        let (now, later) = rest.split_at(1 + prng.below(rest.len() as u64) as usize);
        let extension = if prng.chance(0.1) { ";note=x" } else { "" };
        wire.extend_from_slice(format!("{:x}{extension}\r\n", now.len()).as_bytes());
        wire.extend_from_slice(now);
        payload_end = wire.len();
        wire.extend_from_slice(b"\r\n");
        rest = later;
    }
    let trailer = if prng.chance(0.1) { "x-done: yes\r\n" } else { "" };
    wire.extend_from_slice(format!("0\r\n{trailer}\r\n").as_bytes());
    payload_end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::URI;

    #[test]
    fn understands_what_the_engine_writes_and_refuses_the_rest() {
        let set = DataSet::new(1, &[5, 5, 5, 9, 0]);
        let endpoint: fuelrail_wire::Endpoint = URI.parse().unwrap();
        let mut text = Vec::new();
        let path = endpoint.object_path(set.key(SampleId(3)));
        fuelrail_wire::write_get(&mut text, &endpoint.authority(), &path, Some((2, 8)), None).unwrap();
        assert_eq!(head_len(&text), Some(text.len()));
        assert_eq!(head_len(&text[..text.len() - 1]), None);
        let get = parse(&text, &set).unwrap();
        assert_eq!((get.sample, get.range, get.checksum), (SampleId(3), Some((2, 8)), false));
        for (from, to) in [("GET", "PUT"), ("2-8", "2-9"), ("2-8", "8-2"), (":9000", ""), ("set", "sat")] {
            let wrong = String::from_utf8(text.clone()).unwrap().replacen(from, to, 1);
            assert!(parse(wrong.as_bytes(), &set).is_err(), "{wrong}");
        }
    }
}
