//! Body framing: exact offsets, every refusal, and any chopping of any chunked body.

use fuelrail_base::Kind;
use fuelrail_base::limits::OBJECT_BYTES_MAX;
use fuelrail_wire::framing::{CHUNK_LINE_BYTES_MAX, TRAILER_BYTES_MAX};
use fuelrail_wire::fuzz::receive;
use fuelrail_wire::{Body, Expect, Framing};
use proptest::prelude::*;

/// Feeds control bytes in one piece; all must be consumed.
fn control(body: &mut Body, bytes: &[u8]) {
    assert_eq!(body.control(bytes).unwrap(), bytes.len(), "{:?}", bytes.escape_ascii().to_string());
}

#[test]
fn a_counted_body_is_payload_to_its_last_byte() {
    let mut body = Body::new(Framing::Length(10));
    assert_eq!(body.expect(), Expect::Payload { at_most: 10 });
    body.payload(4);
    assert_eq!((body.expect(), body.landed()), (Expect::Payload { at_most: 6 }, 4));
    assert_eq!(body.control(b"xyz").unwrap(), 0, "payload is not control");
    let error = body.clone().closed().unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Truncated, "the body ended at byte 4 of 10"));
    body.payload(6);
    assert_eq!(body.expect(), Expect::End);
    body.closed().unwrap();
}

#[test]
fn bodies_without_bytes_are_over_at_once() {
    for framing in [Framing::None, Framing::Length(0)] {
        let mut body = Body::new(framing);
        assert_eq!(body.expect(), Expect::End);
        body.payload(0);
        body.closed().unwrap();
    }
}

#[test]
fn closing_ends_an_open_body() {
    let mut body = Body::new(Framing::UntilClose);
    body.payload(7);
    assert_eq!(body.expect(), Expect::Payload { at_most: u64::MAX - 7 });
    body.closed().unwrap();
    assert_eq!((body.expect(), body.landed()), (Expect::End, 7));
}

#[test]
fn a_chunked_body_step_by_step() {
    let mut body = Body::new(Framing::Chunked);
    assert_eq!(body.expect(), Expect::Control { at_least: 3 });
    assert_eq!(body.control(b"A;name=\"v\"\r\n0123").unwrap(), 12, "stops at the first payload byte");
    assert_eq!(body.expect(), Expect::Payload { at_most: 10 });
    body.payload(10);
    assert_eq!(body.expect(), Expect::Control { at_least: 5 });
    control(&mut body, b"\r");
    assert_eq!(body.expect(), Expect::Control { at_least: 4 });
    control(&mut body, b"\n00");
    assert_eq!(body.expect(), Expect::Control { at_least: 3 });
    control(&mut body, b" \t;x\r");
    assert_eq!(body.expect(), Expect::Control { at_least: 3 });
    control(&mut body, b"\n");
    assert_eq!(body.expect(), Expect::Control { at_least: 2 });
    control(&mut body, b"X-Sum: 1\r\n");
    assert_eq!(body.control(b"\r\nHTTP/1.1").unwrap(), 2, "stops after the blank line");
    assert_eq!((body.expect(), body.landed()), (Expect::End, 10));
    body.closed().unwrap();
}

#[test]
fn broken_chunks_are_refused() {
    for bad in [
        "\r\n",
        "g\r\n",
        " 5\r\n",
        "-5\r\n",
        "0x5\r\n",
        "5 5\r\n",
        "5\n",
        "5\rx",
        "5;a\nb\r\n",
        "5;a\0\r\n",
        "5\r\nhelloX",
        "5\r\nhello\rX",
        "0\r\n\n",
        "0\r\nX: y\n",
        "0\r\nX\r\r\n",
        "0\r\n\rX",
    ] {
        let got = receive(Framing::Chunked, bad.as_bytes(), |most| most);
        assert_eq!(got.verdict.expect_err(bad).kind(), Kind::Protocol, "{bad:?}");
    }
}

#[test]
fn chunks_and_lines_are_bounded() {
    let refused = |text: String, says: &str| {
        let error = receive(Framing::Chunked, text.as_bytes(), |most| most).verdict.unwrap_err();
        assert_eq!(error.kind(), Kind::Protocol);
        assert!(error.to_string().contains(says), "{error}");
    };
    refused("10000000000000000\r\n".into(), "a chunk makes the body longer");
    refused("ffffffffffffffff\r\n".into(), "a chunk makes the body longer");
    refused(format!("1\r\nx\r\n{OBJECT_BYTES_MAX:x}\r\n"), "a chunk makes the body longer");
    let mut largest = Body::new(Framing::Chunked);
    control(&mut largest, format!("{OBJECT_BYTES_MAX:x}\r\n").as_bytes());
    assert_eq!(largest.expect(), Expect::Payload { at_most: OBJECT_BYTES_MAX });

    let line_max = CHUNK_LINE_BYTES_MAX as usize;
    let line = |bytes: usize| format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(bytes - 4));
    receive(Framing::Chunked, line(line_max).as_bytes(), |most| most).verdict.unwrap();
    refused(line(line_max + 1), "a chunk-size line is longer than 4096");
    refused("0".repeat(line_max + 1), "a chunk-size line is longer than 4096");

    let trailer_max = TRAILER_BYTES_MAX as usize;
    let trailers = |bytes: usize| format!("0\r\nA: {}\r\n\r\n", "t".repeat(bytes - 7));
    receive(Framing::Chunked, trailers(trailer_max).as_bytes(), |most| most).verdict.unwrap();
    refused(trailers(trailer_max + 1), "trailers are longer than 8192");
}

#[test]
fn truncation_is_counted_wherever_it_happens() {
    for (input, says) in [
        ("", "the body ended at byte 0, before its last chunk"),
        ("5", "the body ended at byte 0, before its last chunk"),
        ("5\r\nhel", "the body ended at byte 3, with 2 bytes of a chunk missing"),
        ("5\r\nhello", "the body ended at byte 5, before its last chunk"),
        ("5\r\nhello\r\n0\r\n", "the body ended at byte 5, before its last chunk"),
        ("5\r\nhello\r\n0\r\n\r", "the body ended at byte 5, before its last chunk"),
    ] {
        let got = receive(Framing::Chunked, input.as_bytes(), |most| most);
        let error = got.verdict.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Truncated, says), "{input:?}");
        assert!(!got.ended);
    }
}

#[test]
#[should_panic(expected = "at most 3 were due")]
fn landing_more_than_due_is_a_bug() {
    Body::new(Framing::Length(3)).payload(4);
}

#[test]
#[should_panic(expected = "where none was due")]
fn landing_between_chunks_is_a_bug() {
    Body::new(Framing::Chunked).payload(1);
}

/// A chunked body, its payload, and what follows it on the connection.
fn any_chunked() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let chunk = (proptest::collection::vec(any::<u8>(), 1..50), 0..4usize, any::<bool>(), "(;[ -~]{0,9})?");
    let trailers = proptest::collection::vec("[A-Za-z][ -~]{0,20}", 0..3);
    (proptest::collection::vec(chunk, 0..8), trailers).prop_map(|(chunks, trailers)| {
        let (mut wire, mut payload) = (Vec::new(), Vec::new());
        for (bytes, zeros, upper, extension) in chunks {
            let size = if upper { format!("{:X}", bytes.len()) } else { format!("{:x}", bytes.len()) };
            wire.extend_from_slice(format!("{}{size}{extension}\r\n", "0".repeat(zeros)).as_bytes());
            wire.extend_from_slice(&bytes);
            wire.extend_from_slice(b"\r\n");
            payload.extend_from_slice(&bytes);
        }
        wire.extend_from_slice(b"0\r\n");
        for line in trailers {
            wire.extend_from_slice(format!("{line}\r\n").as_bytes());
        }
        wire.extend_from_slice(b"\r\n");
        (wire, payload)
    })
}

proptest! {
    #[test]
    fn any_chopping_gives_the_payload_and_stops_at_the_end(
        (wire, payload) in any_chunked(),
        next in proptest::collection::vec(any::<u8>(), 0..20),
        cuts in proptest::collection::vec(1..30usize, 1..20),
    ) {
        let input = [wire.as_slice(), &next].concat();
        let mut turn = cuts.iter().cycle();
        let got = receive(Framing::Chunked, &input, |most| most.min(*turn.next().unwrap()));
        prop_assert_eq!(got.verdict, Ok(()));
        prop_assert!(got.ended);
        prop_assert_eq!(got.taken, wire.len(), "not a byte of the next response is touched");
        prop_assert_eq!(got.payload, payload);
    }

    #[test]
    fn a_chunked_body_cut_anywhere_is_truncated((wire, payload) in any_chunked(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(wire.len());
        let got = receive(Framing::Chunked, &wire[..cut], |most| most);
        prop_assert_eq!(got.verdict.unwrap_err().kind(), Kind::Truncated);
        prop_assert!(payload.starts_with(&got.payload));
    }
}
