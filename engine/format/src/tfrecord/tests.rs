use super::*;
use crate::fuzz::scanned;
use crate::{Field, Format, Index, Span};
use proptest::prelude::*;

fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

fn read(file: &[u8], extra: usize) -> Result<Index<Vec<u8>>> {
    let mut builder = IndexBuilder::new(Format::TfRecord, [0; 16], 1).without_keys();
    scanned(&mut Scan::new(0, file.len() as u64), file, extra, &mut builder)?;
    Index::open(builder.to_bytes())
}

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

fn entry(name: &str, feature: &[u8]) -> Vec<u8> {
    field(1, &[field(1, name.as_bytes()), field(2, feature)].concat())
}

fn values(example: &[u8], name: &str) -> Option<String> {
    let mut reader = Example::default();
    let features = reader.read(example).unwrap();
    features.get(name).map(|feature| format!("{:?}", feature.values().collect::<Vec<_>>()))
}

#[test]
fn messages_of_another_kind_are_no_examples() {
    let features = field(1, &entry("a", &field(1, &field(1, b"x"))));
    assert!(Example::default().read(&features).is_ok());
    let sequence = [features, field(2, &entry("frames", b""))].concat();
    for other in [&sequence[..], b"hi", b"05"] {
        assert!(Example::default().read(other).is_err(), "{other:?}");
    }
}

#[test]
fn frames_are_found_and_checked() {
    let file = [frame(b""), frame(b"abc"), frame(&[7; 1000])].concat();
    for extra in [0, 10, 5000] {
        let index = read(&file, extra).unwrap();
        let frames: Vec<Span> = index
            .iter()
            .map(|record| match record.field(0) {
                Some(Field::Span(span)) => span,
                _ => panic!("a range"),
            })
            .collect();
        assert_eq!(frames.iter().map(|span| span.length).collect::<Vec<_>>(), [16, 19, 1016]);
        let data = |span: &Span| check(&file[span.offset as usize..][..span.length as usize]).unwrap();
        assert_eq!(data(&frames[1]), b"abc");
    }
    assert!(read(b"", 0).unwrap().is_empty());
}

#[test]
fn flaws_are_typed_errors_with_their_place() {
    let file = [frame(b"abc"), frame(b"defg")].concat();
    let mut length = file.clone();
    length[19] ^= 1;
    let mut data = file.clone();
    data[32] ^= 1;
    let lying = [&file[..], &u64::MAX.to_le_bytes(), &masked_crc(&u64::MAX.to_le_bytes()).to_le_bytes()].concat();
    for (file, kind, says) in [
        (&length, Kind::Mismatch, "at byte 19: the checksum of a record's length does not match"),
        (&lying, Kind::Undecodable, "at byte 39: the object is truncated: a frame ends at byte 18446744073709551615"),
        (&b"\x1F\x8B\x08\0\0\0\0\0\0\0\0\0".to_vec(), Kind::Usage, "compressed as a whole"),
        (&b"\x78\x9C\x08\0\0\0\0\0\0\0\0\0".to_vec(), Kind::Usage, "compressed as a whole"),
    ] {
        let error = read(file, 1000).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(says), "{says}: {error}");
    }
    for extra in [0, 1000] {
        assert_eq!(read(&data, extra).unwrap().len(), 2, "data is checked by its reader");
    }
    assert_eq!(check(&data[19..]).unwrap_err().kind(), Kind::Mismatch);
    assert_eq!(check(&file[19..38]).unwrap_err().kind(), Kind::Undecodable);
    assert_eq!(check(&file).unwrap_err().kind(), Kind::Undecodable);
    for cut in (0..file.len()).filter(|cut| ![0, 19].contains(cut)) {
        let error = read(&file[..cut], 1000).unwrap_err();
        assert!(error.kind() == Kind::Undecodable && error.to_string().contains("truncated"), "{cut}: {error}");
    }
}

#[test]
fn values_are_read_packed_or_not() {
    let floats = [1.5_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()].concat();
    let unpacked = [&[0x0D][..], &floats[..4], &[0x0D], &floats[4..]].concat();
    for list in [field(1, &floats), unpacked] {
        assert_eq!(values(&field(1, &entry("f", &field(2, &list))), "f").unwrap(), "[Float(1.5), Float(-2.0)]");
    }
    let minus = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
    for list in [field(1, &[&[0x96, 0x01][..], &minus].concat()), [&[0x08, 0x96, 0x01, 0x08][..], &minus].concat()] {
        assert_eq!(values(&field(1, &entry("i", &field(3, &list))), "i").unwrap(), "[Int(150), Int(-1)]");
    }
    let bytes = field(1, &[field(1, b"a"), field(1, b"")].concat());
    assert_eq!(values(&field(1, &entry("b", &bytes)), "b").unwrap(), "[Bytes([97]), Bytes([])]");
    assert_eq!(values(&field(1, &entry("none", b"")), "none").unwrap(), "[]");
    assert_eq!(values(b"", "none"), None);
}

#[test]
fn messages_merge_as_protocol_buffers_do() {
    let int = |n: u8| field(3, &field(1, &[n]));
    // Examples that follow each other are one; of equal names the last counts, of kinds the last, lists of one kind are joined.
    let first = field(1, &[entry("b", &int(1)), entry("a", &int(1)), entry("b", &int(2))].concat());
    let second = field(
        1,
        &[entry("a", &[int(9), field(1, &field(1, b"x")), int(3), int(4)].concat()), field(9, b"unknown")].concat(),
    );
    let example = [first, second].concat();
    assert_eq!(
        (values(&example, "a").unwrap(), values(&example, "b").unwrap()),
        ("[Int(3), Int(4)]".into(), "[Int(2)]".into())
    );
    let mut reader = Example::default();
    let names: Vec<&str> = reader.read(&example).unwrap().iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b"]);
    let without_name = field(1, &field(1, &field(2, &int(5))));
    assert_eq!(values(&without_name, "").unwrap(), "[Int(5)]");
}

#[test]
fn unsound_examples_are_typed_errors() {
    let entry_of = |feature: &[u8]| field(1, &entry("a", feature));
    for example in [
        vec![0x0A, 5],
        vec![0x0B],
        vec![0x02],
        vec![0xFF; 11],
        entry_of(&field(2, &field(1, &[0; 5]))),
        entry_of(&field(3, &field(1, &[0x80]))),
        entry_of(&field(1, &[0x0A, 2, 0])),
        field(1, &field(1, &field(1, b"\xFF"))),
        field(1, &field(1, &[field(2, b""), field(2, b"")].concat())),
    ] {
        assert_eq!(Example::default().read(&example).unwrap_err().kind(), Kind::Undecodable, "{example:?}");
    }
}

#[test]
fn a_warm_reader_allocates_nothing() {
    let features = (0..20).flat_map(|n| entry(&format!("f{n}"), &field(1, &field(1, &[n; 300])))).collect::<Vec<_>>();
    let example = field(1, &features);
    let mut reader = Example::default();
    let mut read =
        || reader.read(&example).unwrap().iter().map(|(_, feature)| feature.bytes().unwrap().len()).sum::<usize>();
    assert_eq!(read(), 6000);
    let counted = allocation_counter::measure(|| assert_eq!(read(), 6000));
    assert_eq!(counted.count_total, 0);
}

proptest! {
    #[test]
    fn any_data_is_framed_and_found(records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20), extra in 0..2000_usize) {
        let file = records.iter().flat_map(|data| frame(data)).collect::<Vec<_>>();
        let index = read(&file, extra).unwrap();
        let found: Vec<Vec<u8>> = index.iter().map(|record| match record.field(0) {
            Some(Field::Span(span)) => check(&file[span.offset as usize..][..span.length as usize]).unwrap().to_vec(),
            _ => panic!("a range"),
        }).collect();
        prop_assert_eq!(found, records);
    }
}
