//! Draws requests and the responses to them: right, unusual, refusing, wrong.

use super::plain::{Case, End, Script};
use crate::conn::Asked;
use fuelrail_base::SampleId;
use fuelrail_base::prng::Prng;
use fuelrail_plan::planner::FetchId;
use fuelrail_wire::{Etag, Framing, Parsed, parse_head};

pub(super) const TAG: &str = "\"v1\"";

/// Byte `at` of an object.
fn content(sample: u64, at: u64) -> u8 {
    (fuelrail_base::prng::mix64(sample << 40 | at) >> 13) as u8
}

pub(super) fn bytes(sample: u64, first: u64, len: u64) -> Vec<u8> {
    (first..first + len).map(|at| content(sample, at)).collect()
}

/// How much the heads of a server differ from one response to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heads {
    /// Only in their numbers.
    Constant,
    /// One in four is longer.
    Sometimes,
    /// All of them.
    Always,
}

/// A request for a whole object or for the rest of one of its blocks.
pub(super) fn case(prng: &mut Prng, at: u32) -> Case {
    let object_len = [1, 9, 200, 5_000, 30_000][prng.below(5) as usize] + prng.below(100);
    let block_first = if prng.chance(0.3) { prng.below(object_len) } else { 0 };
    let block_len = if prng.chance(0.3) { 1 + prng.below(object_len - block_first) } else { object_len - block_first };
    let landed = if prng.chance(0.3) { prng.below(block_len) } else { 0 };
    let asked = Asked {
        fetch: FetchId { place: at, serial: 0 },
        sample: SampleId(at.into()),
        first: block_first + landed,
        len: block_len - landed,
        object_len,
        whole: true,
        etag: prng.chance(0.5).then(|| Etag::of(TAG)),
        second: false,
        rank: None,
    };
    Case { asked, before: bytes(at.into(), block_first, landed) }
}

/// A whole run: how trouble-prone follows from the seed.
pub(super) fn script(prng: &mut Prng, cases: &[Case]) -> Script {
    let heads = [Heads::Constant, Heads::Sometimes, Heads::Always][prng.below(3) as usize];
    let odd = [0.0, 0.1, 0.5][prng.below(3) as usize];
    let mut responses = Vec::new();
    for case in cases {
        let response = if prng.chance(odd) { unusual(prng, case, heads) } else { good(prng, case, heads) };
        responses.push(if prng.chance(0.3) { summed(prng, case, response) } else { response });
    }
    let extra = if prng.chance(0.2) { b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx".to_vec() } else { Vec::new() };
    let all: usize = responses.iter().map(Vec::len).sum::<usize>() + extra.len();
    let all = responses.iter().position(|r| is_unframed(r)).map_or(all, |at| responses[..=at].concat().len());
    let cut = if prng.chance(0.5) { all } else { prng.below(all as u64 + 1) as usize };
    let end = [End::Finish, End::Reset, End::Stall][prng.below(3) as usize];
    Script { responses, extra, cut, end }
}

/// Only the end of the connection ends it, so the server closes after it.
fn is_unframed(mut response: &[u8]) -> bool {
    loop {
        match parse_head(response) {
            Ok(Parsed::Interim { len }) => response = &response[len..],
            Ok(Parsed::Complete { head, .. }) => return head.framing == Framing::UntilClose,
            _ => return false,
        }
    }
}

/// What is asked for, framed by length.
pub(super) fn good(prng: &mut Prng, case: &Case, heads: Heads) -> Vec<u8> {
    let Asked { sample, first, len, .. } = case.asked;
    let mut out = status_line(case, heads, prng);
    out.extend(format!("Content-Length: {len}\r\n\r\n").into_bytes());
    out.extend(bytes(sample.0, first, len));
    out
}

/// The status line and headers that do not frame the body.
fn status_line(case: &Case, heads: Heads, prng: &mut Prng) -> Vec<u8> {
    let Asked { first, len, object_len, .. } = case.asked;
    let mut text = if len == object_len {
        "HTTP/1.1 200 OK\r\n".to_string()
    } else {
        format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{}/{object_len}\r\n", first + len - 1)
    };
    text += "Server: test\r\nETag: \"v1\"\r\n";
    let longer = match heads {
        Heads::Constant => false,
        Heads::Sometimes => prng.chance(0.25),
        Heads::Always => true,
    };
    if longer {
        text += &format!("X-Pad: {}\r\n", "p".repeat(prng.below(200) as usize));
    }
    text.into_bytes()
}

/// With a checksum of the object in its head, if it is sent as a whole: now and then a wrong one.
fn summed(prng: &mut Prng, case: &Case, mut response: Vec<u8>) -> Vec<u8> {
    const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\n";
    if response.starts_with(WHOLE) {
        let sum = crc32(&bytes(case.asked.sample.0, 0, case.asked.object_len)) ^ u32::from(prng.chance(0.2));
        let line = format!("x-amz-checksum-crc32: {}\r\n", base64(sum.to_be_bytes()));
        response.splice(WHOLE.len()..WHOLE.len(), line.into_bytes());
    }
    response
}

/// CRC-32 of IEEE 802.3, bit after bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (0xEDB8_8320 * (sum & 1)))
    })
}

fn base64(bytes: [u8; 4]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(u32::from_be_bytes(bytes)) << 4;
    (0..6).rev().map(|at| char::from(DIGITS[(bits >> (6 * at)) as usize % 64])).collect::<String>() + "=="
}

/// Anything else a server may say.
fn unusual(prng: &mut Prng, case: &Case, heads: Heads) -> Vec<u8> {
    let Asked { sample, first, len, object_len, .. } = case.asked;
    let payload = bytes(sample.0, first, len);
    let mut out = Vec::new();
    for _ in 0..prng.below(3) {
        out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n");
    }
    let start = status_line(case, heads, prng);
    match prng.below(16) {
        0 => out.extend(
            [&start[..], b"Connection: close\r\nContent-Length: ", len.to_string().as_bytes(), b"\r\n\r\n", &payload]
                .concat(),
        ),
        1 => out.extend([&start[..], b"\r\n", &payload].concat()),
        2 | 3 => out.extend([&start[..], b"Transfer-Encoding: chunked\r\n\r\n", &chunked(prng, &payload)].concat()),
        4 => {
            let longer = [&payload[..], b"more"].concat();
            out.extend([&start[..], b"Transfer-Encoding: chunked\r\n\r\n", &chunked(prng, &longer)].concat());
        }
        5 => {
            let shorter = &payload[..prng.below(len) as usize];
            out.extend([&start[..], b"Transfer-Encoding: chunked\r\n\r\n", &chunked(prng, shorter)].concat());
        }
        6 => out.extend([&start[..], b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", &payload].concat()),
        7 => out.extend(
            [&start[..], b"Content-Length: ", (len + 1).to_string().as_bytes(), b"\r\n\r\n", &payload].concat(),
        ),
        8 => {
            let changed = String::from_utf8(start).unwrap().replace(TAG, "\"v2\"");
            out.extend([changed.as_bytes(), format!("Content-Length: {len}\r\n\r\n").as_bytes(), &payload].concat());
        }
        9 => {
            // The whole object, whatever was asked for.
            out.extend(format!("HTTP/1.1 200 OK\r\nContent-Length: {object_len}\r\n\r\n").into_bytes());
            out.extend(bytes(sample.0, 0, object_len));
        }
        10 => {
            let text = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{object_len}\r\n",
                first + 1,
                first + len
            );
            out.extend([text.as_bytes(), format!("Content-Length: {len}\r\n\r\n").as_bytes(), &payload].concat());
        }
        11 => out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n"),
        12 => out.extend((0..1 + prng.below(400)).map(|_| prng.below(256) as u8)),
        13 => {
            let pad = "p".repeat(prng.below(18_000) as usize);
            out.extend(
                [&start[..], format!("X-Pad: {pad}\r\nContent-Length: {len}\r\n\r\n").as_bytes(), &payload].concat(),
            );
        }
        _ => refusal(prng, &mut out),
    }
    out
}

fn refusal(prng: &mut Prng, out: &mut Vec<u8>) {
    let status = [301, 403, 404, 412, 416, 429, 500, 503][prng.below(8) as usize];
    let len = [0, 40, 3_000, 70_000][prng.below(4) as usize];
    let mut text = vec![b'e'; len];
    text.splice(..0, *b"<Error><Code>SlowDown</Code></Error>");
    out.extend(format!("HTTP/1.1 {status} Refused\r\nRetry-After: 3\r\n").into_bytes());
    match prng.below(4) {
        0 => out.extend([b"Transfer-Encoding: chunked\r\n\r\n", &chunked(prng, &text)[..]].concat()),
        1 => out.extend([b"\r\n", &text[..]].concat()),
        2 => {
            out.extend(format!("Connection: close\r\nContent-Length: {}\r\n\r\n", text.len()).into_bytes());
            out.extend(text);
        }
        _ => {
            out.extend(format!("Content-Length: {}\r\n\r\n", text.len()).into_bytes());
            out.extend(text);
        }
    }
}

fn chunked(prng: &mut Prng, mut payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while !payload.is_empty() {
        let (chunk, rest) = payload.split_at(1 + prng.below(payload.len() as u64) as usize);
        let extension = if prng.chance(0.2) { ";x=y" } else { "" };
        out.extend(format!("{:x}{extension}\r\n", chunk.len()).into_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
        payload = rest;
    }
    out.extend_from_slice(if prng.chance(0.2) { b"0\r\nX-T: 1\r\n\r\n" } else { b"0\r\n\r\n" });
    out
}
