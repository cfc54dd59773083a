use super::*;
use proptest::prelude::*;

const SOURCE: [u8; 16] = [3; 16];

fn span(object: u32, offset: u64, length: u64) -> Field<'static> {
    Field::Span(Span { object, offset, length })
}

fn fields<B: AsRef<[u8]>>(index: &Index<B>, record: u64) -> Vec<(String, Field<'_>)> {
    let record = index.record(record).expect("a record");
    record.fields().map(|(name, field)| (name.to_owned(), field)).collect()
}

fn three_places() -> IndexBuilder {
    let mut builder = IndexBuilder::new(Format::WebDataset, SOURCE, 9);
    builder.describe(b"{}".to_vec());
    let [jpg, txt] = ["jpg", "txt"].map(|name| builder.field(name, Place::Near).unwrap());
    builder.push(b"a/1", &[(jpg, span(0, 512, 5 << 32)), (txt, span(0, (5 << 32) + 1536, 3))]).unwrap();
    builder.push(b"a/2", &[(txt, span(1, 512, 7))]).unwrap();
    let json = builder.field("json", Place::SideCar).unwrap();
    let label = builder.field("label", Place::Value).unwrap();
    builder.push(b"", &[(jpg, span(2, 9000, 0)), (json, span(8, 0, 77)), (txt, span(2, 0, 9000))]).unwrap();
    builder.push(b"b", &[(label, Field::Value(b"cat")), (jpg, span(8, OFFSETS_END - 8, 7))]).unwrap();
    builder
}

#[test]
fn records_read_as_they_were_pushed() {
    let bytes = three_places().to_bytes();
    let index = Index::open(bytes).unwrap();
    assert_eq!((index.len(), index.format(), index.source()), (4, Format::WebDataset, SOURCE));
    assert_eq!(index.description(), b"{}");
    assert_eq!(index.fields().map(|(name, _)| name).collect::<Vec<_>>(), ["jpg", "txt", "json", "label"]);
    assert_eq!(
        fields(&index, 0),
        [("jpg".into(), span(0, 512, 5 << 32)), ("txt".into(), span(0, (5 << 32) + 1536, 3))]
    );
    assert_eq!(fields(&index, 1), [("txt".into(), span(1, 512, 7))]);
    let third = [("jpg".into(), span(2, 9000, 0)), ("txt".into(), span(2, 0, 9000)), ("json".into(), span(8, 0, 77))];
    assert_eq!(fields(&index, 2), third);
    assert_eq!(index.record(3).unwrap().field(3), Some(Field::Value(b"cat")));
    assert_eq!(index.record(3).unwrap().field(4), None);
    assert!(index.record(4).is_none());
    let keys: Vec<_> = index.iter().map(|record| record.key().unwrap()).collect();
    assert_eq!(keys, [&b"a/1"[..], b"a/2", b"", b"b"]);
}

#[test]
fn an_index_is_extended_by_the_records_of_others() {
    let other = Index::open(three_places().to_bytes()).unwrap();
    let mut whole = IndexBuilder::new(Format::WebDataset, SOURCE, 9);
    whole.describe(b"{}".to_vec());
    whole.extend(&other).unwrap();
    assert_eq!(whole.to_bytes(), three_places().to_bytes());
    whole.extend(&other).unwrap();
    let twice = Index::open(whole.to_bytes()).unwrap();
    assert_eq!((twice.len(), fields(&twice, 7)), (8, fields(&other, 3)));
    assert_eq!(twice.record(6).unwrap().key(), Some(&b""[..]));
    // Where another field is the first, the long one does not fit.
    let mut short = IndexBuilder::new(Format::WebDataset, SOURCE, 9);
    short.field("txt", Place::Near).unwrap();
    let error = short.extend(&other).unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("field 'jpg'"), "{error}");
}

#[test]
fn the_format_is_pinned() {
    let mut builder = IndexBuilder::new(Format::Mds, SOURCE, 2);
    builder.push(b"key", &[(0, span(1, 0x0102_0304_0506, 0x0708))]).unwrap();
    let bytes = builder.to_bytes();
    assert_eq!(&bytes[..16], b"fuelrail records");
    let numbers: Vec<u64> = bytes[32..112].as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
    assert_eq!((&bytes[16..32], &numbers[..]), (&SOURCE[..], &[1, 2, 2, 1, 1, 1, 3, 0, 5, 0][..]));
    let body = b"\0\0\0\x01\0\0\0\x06\x05\x04\x03\x02\x01\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x03\0key";
    assert_eq!(&bytes[HEADER_BYTES..], body);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let mut builder = three_places();
    for (fields, says) in [
        (vec![(0, span(0, OFFSETS_END - 1, 1))], "field 'jpg'"),
        (vec![(0, span(9, 0, 1))], "of object 9 do not fit an index as near"),
        (vec![(0, span(0, 0, 1)), (1, span(0, 1, 1 << 32))], "field 'txt': 4294967296 bytes from 1 on of object 0"),
        (vec![(0, span(0, 0, 1)), (1, span(0, 1 << 32, 1))], "field 'txt'"),
        (vec![(0, span(0, 0, 10)), (1, span(0, 5, 1))], "field 'txt'"),
        (vec![(0, span(0, 0, 10)), (1, span(1, 10, 1))], "field 'txt'"),
        (vec![(2, span(1, 1, 1))], "as side-car"),
        (vec![(3, Field::Value(&vec![0; 1 << 24]))], "16777216 bytes do not fit an index as value"),
    ] {
        let error = builder.push(b"k", &fields).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(says), "{error}");
    }
    assert!(builder.push(&[0; KEY_BYTES_MAX + 1], &[(0, span(0, 0, 1))]).is_err());
    assert_eq!(builder.len(), 4);
    (4..FIELDS_MAX).for_each(|n| assert!(builder.field(&n.to_string(), Place::Near).is_ok()));
    let error = builder.field("more", Place::Near).unwrap_err();
    assert!(error.to_string().contains("'more': an index holds at most 64"), "{error}");
    assert!(builder.field("jpg", Place::Value).unwrap_err().to_string().contains("two fields"));
    assert_eq!(Index::open(builder.to_bytes()).unwrap().len(), 4);
}

#[test]
fn damaged_indexes_are_errors() {
    let bytes = three_places().to_bytes();
    for cut in 0..bytes.len() {
        assert_eq!(Index::open(&bytes[..cut]).unwrap_err().kind(), Kind::Undecodable, "{cut}");
        let mut flipped = bytes.clone();
        flipped[cut] ^= 1;
        assert!(Index::open(flipped).is_err(), "byte {cut}");
    }
    assert!(Index::open([&bytes[..], b"x"].concat()).is_err());
    // A writer with other ideas makes the checksums right.
    let sound = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let hash = xxh3_64(&bytes[HEADER_BYTES..]);
        bytes[112..120].copy_from_slice(&hash.to_le_bytes());
        let hash = xxh3_64(&bytes[..120]);
        bytes[120..128].copy_from_slice(&hash.to_le_bytes());
        Index::open(bytes)
    };
    assert!(sound(&bytes).is_ok());
    for at in 40..bytes.len() {
        for value in [0, 1, 0x7F, 0x80, 0xFF] {
            let mut other = bytes.clone();
            other[at] = value;
            let Ok(index) = sound(&other) else { continue };
            index.iter().for_each(|record| assert!(record.fields().count() <= 64 && record.key() != Some(b"none")));
        }
    }
}

#[test]
fn an_index_takes_its_own_memory_and_a_piece() {
    for (count, further, keys) in [(200_000, 0, true), (100_000, 3, false)] {
        let mut size = 0;
        let counted = allocation_counter::measure(|| {
            let mut builder = IndexBuilder::new(Format::WebDataset, SOURCE, 1);
            if !keys {
                builder = builder.without_keys();
            }
            (0..=further).for_each(|n| drop(builder.field(&n.to_string(), Place::Near)));
            for n in 0..count {
                let all: [_; 4] = core::array::from_fn(|field| (field, span(0, n * 4000 + 1000 * field as u64, 900)));
                builder.push(&n.to_le_bytes(), &all[..=further]).unwrap();
            }
            size = builder.bytes();
            let per_record = 16 + 8 * further as u64;
            assert!(keys || size <= 128 + count * per_record, "{size}");
        });
        assert!(counted.bytes_max < size + (4 << 20), "{} bytes for an index of {size}", counted.bytes_max);
    }
}

#[test]
fn reading_allocates_nothing() {
    let index = Index::open(three_places().to_bytes()).unwrap();
    let counted = allocation_counter::measure(|| {
        let bytes = index.iter().flat_map(|record| record.fields()).map(|(name, field)| match field {
            Field::Span(span) => name.len() as u64 + span.length,
            Field::Value(value) => value.len() as u64,
        });
        assert!(bytes.sum::<u64>() > 9000);
        assert_eq!(index.record(3).unwrap().key(), Some(&b"b"[..]));
    });
    assert_eq!(counted.count_total, 0);
}

proptest! {
    #[test]
    fn any_records_read_as_they_were_pushed(
        records in proptest::collection::vec((
            proptest::collection::vec(any::<u8>(), 0..20),
            0..5_u32, 0..1_u64 << 40, proptest::option::of(0..1_u64 << 40),
            proptest::option::of((-0x7FFF_FFFF..0x7FFF_FFFF_i64, 0..u32::MAX)),
            proptest::option::of((0..5_u32, 0..u32::MAX)),
            proptest::option::of(proptest::collection::vec(any::<u8>(), 0..100)),
        ), 0..100)
    ) {
        let mut builder = IndexBuilder::new(Format::Manifest, SOURCE, 5);
        let places = [Place::Near, Place::Near, Place::SideCar, Place::Value];
        for (number, place) in places.into_iter().enumerate() {
            builder.field(&number.to_string(), place).unwrap();
        }
        let mut expected = Vec::new();
        for (key, object, offset, length, near, side_car, value) in &records {
            let mut fields = Vec::new();
            fields.extend(length.map(|length| (0, span(*object, *offset, length))));
            if let Some((delta, bytes)) = near {
                let from = if *delta < 0 { *offset } else { offset + length.unwrap_or(0) };
                let at = from.saturating_add_signed(if length.is_some() { *delta } else { 0 });
                // A field that would begin before the object begins before the first field all the same.
                fields.push((1, span(*object, if *delta < 0 { at.min(offset.saturating_sub(1)) } else { at }, u64::from(*bytes))));
            }
            fields.extend(side_car.map(|(object, bytes)| (2, span(object, 0, u64::from(bytes)))));
            fields.extend(value.as_deref().map(|value| (3, Field::Value(value))));
            if length == &Some(0) || offset == &0 { fields.retain(|(number, _)| *number != 1); }
            builder.push(key, &fields).unwrap();
            expected.push((key.clone(), fields));
        }
        let index = Index::open(builder.to_bytes()).unwrap();
        prop_assert_eq!(index.len(), expected.len() as u64);
        for (record, (key, fields)) in index.iter().zip(&expected) {
            prop_assert_eq!(record.key(), Some(&key[..]));
            let read: Vec<_> = (0..4).filter_map(|n| Some((n, record.field(n)?))).collect();
            prop_assert_eq!(&read, fields);
        }
    }
}
