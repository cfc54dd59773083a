//! Responses before anything goes wrong with them: heads in several styles, bodies in several framings.

use super::request::Get;
use crate::dataset::DataSet;
use crate::scenario::{BucketShape, Despair, Flavour};
use core::ops::Range;
use fuelrail_base::prng::Prng;

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

/// The object, or the part of it that was asked for.
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

/// What a sample that can never be had is answered with.
pub(super) fn refusal(why: &Despair, shape: &BucketShape, prng: &mut Prng) -> Answer {
    let (status, reason, code) = match why {
        Despair::NotFound => (404, "Not Found", "NoSuchKey"),
        Despair::Denied => (403, "Forbidden", "AccessDenied"),
        Despair::ServerError => (500, "Internal Server Error", "InternalError"),
    };
    Answer::of(Says::refusal(status, reason, code, shape.flavour), prng)
}

/// What a bucket that is down answers, if it does.
pub(super) fn down(slow_down: bool, shape: &BucketShape, prng: &mut Prng) -> Answer {
    let (status, reason, code) =
        if slow_down { (503, "Slow Down", "SlowDown") } else { (500, "Internal Server Error", "InternalError") };
    Answer::of(Says::refusal(status, reason, code, shape.flavour), prng)
}

impl Says {
    pub(super) fn refusal(status: u16, reason: &'static str, code: &str, flavour: Flavour) -> Says {
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
    lines.extend(says.crc32c.map(|crc| format!("x-amz-checksum-crc32c: {}", base64_of(crc))));
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

/// Four bytes, big-endian, in padded base64.
fn base64_of(word: u32) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(word) << 4;
    let digit = |at: u32| char::from(DIGITS[(bits >> (30 - 6 * at)) as usize & 63]);
    (0..6).map(digit).chain("==".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::SampleId;
    use fuelrail_wire::{Body, Expect, Parsed, parse_head};

    #[test]
    fn the_engine_reads_back_what_is_written() {
        let set = DataSet::new(7, &[300]);
        let mut prng = Prng::new(1);
        for seed in 0..50 {
            let mut shape = crate::Scenario::draw(seed).bucket;
            (shape.interim, shape.until_close, shape.crc32c, shape.chunked) = (0.0, 0.0, true, 0.5);
            shape.crc32c_of_parts = false;
            let range = (seed % 2 == 0).then_some((10, 19));
            let get = Get { sample: SampleId(0), range, checksum: true };
            let answer = object(&set, &get, &shape, false, &mut prng);
            let Parsed::Complete { head, len } = parse_head(&answer.wire).unwrap() else { panic!() };
            assert_eq!(len, answer.head_len);
            assert_eq!(head.crc32c, (seed % 2 == 1).then(|| set.crc32c(SampleId(0))));
            let (mut body, mut at, mut payload) = (Body::new(head.framing), len, Vec::new());
            loop {
                match body.expect() {
                    Expect::Payload { at_most } => {
                        let n = at_most as usize;
                        payload.extend_from_slice(&answer.wire[at..at + n]);
                        body.payload(n as u64);
                        at += n;
                    }
                    Expect::Control { .. } => at += body.control(&answer.wire[at..]).unwrap(),
                    Expect::End => break,
                }
            }
            let whole = set.bytes(SampleId(0));
            assert_eq!(payload, range.map_or(whole, |_| &whole[10..20]));
            assert_eq!(at, answer.wire.len());
        }
    }
}
