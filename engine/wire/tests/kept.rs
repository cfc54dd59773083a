//! Listings that are kept: written and read again, golden bytes, and damage of every kind seen.

use fuelrail_wire::kept::{
    Answer, FRAME_HEAD_BYTES, Flaw, Frames, HEADER_BYTES, Header, Holds, Name, NameKind, Object, Packer, SourceId,
    Unpacker, asked,
};
use fuelrail_wire::{Cloud, Entry, ListPage, PageStart};
use proptest::prelude::*;

fn id() -> SourceId {
    SourceId(*b"0123456789abcdef")
}

fn entry(key: &str, size: u64, etag: Option<&str>) -> Entry {
    Entry { key: key.into(), size, etag: etag.map(Into::into) }
}

fn page() -> ListPage {
    let md5 = "\"9b2cf535f27731c974343645a3985328\"";
    let entries = vec![
        entry("train/000.jpg", 10, Some(md5)),
        entry("train/001.jpg", 300, None),
        entry("train/é.jpg", 1 << 40, Some("\"0x8DC\"")),
        entry("train/è", 0, Some("W/\"x\"")),
        entry("z", 1, Some(&md5.to_uppercase())),
    ];
    ListPage { entries, next: Some("go on".into()) }
}

#[test]
fn golden_bytes() {
    let header = Header { holds: Holds::Whole(3), source: id(), begun_s: 1_700_000_000 };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let written = header.encode();
    assert_eq!(
        hex(&written),
        "6675656c7261696c206c697374696e67020000000100000030313233343536373839616263646566\
         00f1536500000000030000000000000000000000eed544bb"
    );
    let mut frame = Vec::new();
    Frames::behind(&written).push(&mut frame, |out| {
        let mut packer = Packer::default();
        packer.push(out, Object { key: "ab", size: 300, etag: Some("\"9b2cf535f27731c974343645a3985328\"") });
        packer.push(out, Object { key: "ac", size: 0, etag: None });
    });
    assert_eq!(hex(&frame), "1c0000001921b94200026162ac02019b2cf535f27731c974343645a39853280101630000");
    let mut answer = Vec::new();
    let page = ListPage { entries: vec![entry("k", 1, None)], ..ListPage::default() };
    Answer::write(&mut answer, (300, 7), &page);
    assert_eq!(hex(&answer), "ac0207000000000000016b0100");
    assert_eq!(asked("p/", PageStart { after: Some("p/a"), token: None }), 288970245);
}

#[test]
fn a_header_says_what_it_was_told_and_damage_is_seen() {
    for holds in [Holds::Whole(0), Holds::Whole(u64::MAX), Holds::Journal] {
        let header = Header { holds, source: id(), begun_s: 5 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Ok(header));
        for bit in 0..8 * HEADER_BYTES {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let flaw = Header::decode(&damaged).unwrap_err();
            let expected = match bit / 8 {
                0..16 => matches!(flaw, Flaw::Foreign),
                16..20 => matches!(flaw, Flaw::Version(..)),
                _ => flaw == Flaw::Damaged,
            };
            assert!(expected, "bit {bit}: {flaw}");
        }
        assert_eq!(Header::decode(&bytes[..HEADER_BYTES - 1]), Err(Flaw::Short));
    }
}

#[test]
fn frames_are_proved_in_their_order_and_their_file() {
    let header = Header { holds: Holds::Journal, source: id(), begun_s: 5 }.encode();
    let (mut out, mut frames) = (Vec::new(), Frames::behind(&header));
    for payload in ["one", "", "three"] {
        frames.push(&mut out, |out| out.extend_from_slice(payload.as_bytes()));
    }
    let read = |mut frames: Frames, mut bytes: &[u8]| {
        let (mut read, mut payload) = (Vec::new(), Vec::new());
        while frames.read(&mut bytes, &mut payload).is_ok() {
            read.push(String::from_utf8(payload.clone()).unwrap());
        }
        read
    };
    let begin = Frames::behind(&header);
    assert_eq!(read(begin, &out), ["one", "", "three"]);
    let (one, two) = (FRAME_HEAD_BYTES + 3, 2 * FRAME_HEAD_BYTES + 3);
    for cut in 0..out.len() {
        let whole = usize::from(cut >= one) + usize::from(cut >= two);
        assert_eq!(read(begin, &out[..cut]).len(), whole, "cut at {cut}");
        let mut damaged = out.clone();
        damaged[cut] ^= 4;
        assert_eq!(read(begin, &damaged).len(), whole, "damaged at {cut}");
    }
    assert!(read(begin, &out[one..]).is_empty(), "a frame is left out");
    let other = Header { holds: Holds::Journal, source: id(), begun_s: 6 }.encode();
    assert!(read(Frames::behind(&other), &out).is_empty(), "another file's frames");
}

#[test]
fn what_is_no_object_is_refused() {
    let mut good = Vec::new();
    Packer::default().push(&mut good, Object { key: "é", size: 5, etag: Some("\"x\"") });
    assert_eq!(good, b"\x00\x02\xC3\xA9\x05\x02\x03\"x\"");
    let long = [b"\x00\x81\x08".as_slice(), &[b'k'; 1025], b"\x05\x00"].concat();
    let cases: [(&[u8], Flaw); 13] = [
        (b"\x01\x01k\x05\x00", Flaw::Absurd),
        (b"\x00\x00\x05\x00", Flaw::Absurd),
        (b"\x00\x01\xFF\x05\x00", Flaw::Absurd),
        (b"\x00\x02\xC3\xA9\x05\x00\x01\x01k\x05\x00", Flaw::Absurd),
        (b"\x00\x01k\x05\x03", Flaw::Absurd),
        (b"\x00\x01k\x05\x02\x03a b", Flaw::Absurd),
        (b"\x00\x01k\x05\x02\x00", Flaw::Absurd),
        (b"\x00\x01k\x05\x02\x02W/", Flaw::Absurd),
        (b"\x00\x01k\xFF\xFF\xFF\xFF\xFF\xFF\x01\x00", Flaw::Absurd),
        (b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F\x00", Flaw::Absurd),
        (b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", Flaw::Absurd),
        (b"\x00\x01k\x05\x01short", Flaw::Short),
        (&long, Flaw::Absurd),
    ];
    for (bytes, flaw) in cases {
        let mut reader = Unpacker::new(bytes);
        let first = loop {
            match reader.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{bytes:?} is read to its end"),
                Err(flaw) => break flaw,
            }
        };
        assert_eq!(first, flaw, "{bytes:?}");
    }
    for cut in 1..good.len() {
        assert_eq!(Unpacker::new(&good[..cut]).next(), Err(Flaw::Short), "cut at {cut}");
    }
}

#[test]
fn an_answer_is_the_page_it_was() {
    for page in [page(), ListPage::default(), ListPage { next: None, ..page() }] {
        let answer = Answer { stretch: u32::MAX, asked: 9, page };
        let mut bytes = Vec::new();
        Answer::write(&mut bytes, (answer.stretch, answer.asked), &answer.page);
        assert_eq!(Answer::decode(&bytes), Ok(answer));
    }
}

#[test]
fn what_was_asked_is_told_apart() {
    let start = |after, token| PageStart { after, token };
    let all = [
        asked("", start(None, None)),
        asked("p", start(None, None)),
        asked("", start(Some("p"), None)),
        asked("", start(None, Some("p"))),
        asked("", start(Some(""), None)),
        asked("p", start(Some("p"), None)),
    ];
    for (at, one) in all.iter().enumerate() {
        assert!(!all[..at].contains(one), "{at}");
    }
}

#[test]
fn a_data_set_is_named_by_what_it_is_and_not_by_how_it_is_written() {
    let of = |uri: &str, verified| SourceId::of(&Cloud::default().source(uri).unwrap(), verified);
    let id = |uri: &str| of(uri, true);
    let one = id("s3://bucket/{a,b}/");
    assert_eq!(one, id("s3://bucket/{b,a}/"));
    for other in ["s3://bucket/a/", "s3://bucket/ab/", "s3://other/{a,b}/", "gs://bucket/{a,b}/", "http://h/bucket/a/"]
    {
        assert_ne!(one, id(other), "{other}");
    }
    assert_ne!(one, of("s3://bucket/{a,b}/", false), "a server that proves nothing");
    let name = Name { source: SourceId([0xAB; 16]), kind: NameKind::Whole };
    assert_eq!(name.to_string(), format!("fuelrail-{}.listing", "ab".repeat(16)));
    let journal = Name { kind: NameKind::Journal, ..name }.to_string();
    for name in [name.to_string(), journal, Name { kind: NameKind::New, ..name }.to_string()] {
        assert!(fuelrail_wire::block::SegmentName::parse(&name).is_none(), "{name} is no segment's");
    }
}

/// Tags as a listing lets them in: one that is only said to be weak is none.
fn tag() -> impl Strategy<Value = String> {
    "[!-!#-~é]{1,40}".prop_filter("nothing stands behind W/", |tag| tag != "W/")
}

proptest! {
    #[test]
    fn any_objects_come_out_as_they_were(
        objects in proptest::collection::vec(("[ab/é]{1,12}", 0u64..1 << 42, proptest::option::of(tag())), 0..40)
    ) {
        let mut bytes = Vec::new();
        let mut packer = Packer::default();
        for (key, size, etag) in &objects {
            packer.push(&mut bytes, Object { key, size: *size, etag: etag.as_deref() });
        }
        let mut reader = Unpacker::new(&bytes);
        for (key, size, etag) in &objects {
            let wanted = Object { key, size: *size, etag: etag.as_deref() };
            prop_assert_eq!(reader.next(), Ok(Some(wanted)));
        }
        prop_assert_eq!(reader.next(), Ok(None));
    }
}
