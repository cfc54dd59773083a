use super::{KEY, SHARD_BYTES_MAX, Value, Writer, mds as write};
use crate::fuzz::scanned;
use crate::index::{Field, IndexBuilder, Record};
use crate::{Format, Index, Scan, mds, tar, tfrecord};
use fuelrail_base::Kind;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

/// A record to be written: its key, and its fields with their bytes.
type Plain = (String, Vec<(String, Vec<u8>)>);

fn shards(format: Format, limit: u64, records: &[Plain]) -> (Vec<(Vec<u8>, u64)>, Option<write::Columns>) {
    let mut writer = Writer::new(format, limit, None).unwrap();
    let mut shards = Vec::new();
    for (key, fields) in records {
        let fields: Vec<_> = fields.iter().map(|(name, bytes)| (name.as_str(), Value::Bytes(bytes))).collect();
        if !writer.push(Some(key), &fields).unwrap() {
            shards.push((writer.finish().to_vec(), writer.records()));
            writer.clear();
            assert!(writer.push(Some(key), &fields).unwrap(), "the first record always fits");
        }
    }
    shards.push((writer.finish().to_vec(), writer.records()));
    for (shard, records) in &shards {
        assert!(shard.len() as u64 <= limit || *records == 1, "{} bytes of {records} records", shard.len());
    }
    (shards, writer.columns().cloned())
}

fn index(format: Format, scan: &mut impl Scan, shard: &[u8]) -> Index<Vec<u8>> {
    let mut index = IndexBuilder::new(format, [0; 16], 1);
    if format != Format::WebDataset {
        index = index.without_keys();
    }
    scanned(scan, shard, 1000, &mut index).unwrap();
    Index::open(index.to_bytes()).unwrap()
}

fn first<'s>(record: &Record<'_>, shard: &'s [u8]) -> &'s [u8] {
    let Some(Field::Span(span)) = record.field(0) else { panic!("a range") };
    &shard[span.offset as usize..(span.offset + span.length) as usize]
}

fn text(bytes: &[u8]) -> String {
    core::str::from_utf8(bytes).unwrap().to_owned()
}

fn of_tar(shards: &[(Vec<u8>, u64)]) -> Vec<Plain> {
    let mut found = Vec::new();
    for (shard, records) in shards {
        assert!(shard.len().is_multiple_of(512) && shard.ends_with(&[0; 1024]));
        let index = index(Format::WebDataset, &mut tar::Scan::new(0, shard.len() as u64), shard);
        assert_eq!(index.len(), *records);
        for record in index.iter() {
            let bytes = |field: Field<'_>| match field {
                Field::Span(span) => shard[span.offset as usize..(span.offset + span.length) as usize].to_vec(),
                Field::Value(_) => unreachable!("a range"),
            };
            let mut fields: Vec<_> = record.fields().map(|(name, field)| (name.to_owned(), bytes(field))).collect();
            fields.sort_unstable();
            found.push((text(record.key().unwrap()), fields));
        }
    }
    found
}

/// Takes the key out of the fields.
fn keyed(mut fields: Vec<(String, Vec<u8>)>) -> Plain {
    let at = fields.iter().position(|(name, _)| name == KEY).unwrap();
    let (_, key) = fields.remove(at);
    (text(&key), fields)
}

fn of_mds(shards: &[(Vec<u8>, u64)], columns: &write::Columns) -> Vec<Plain> {
    let named: Vec<_> =
        (0..shards.len()).map(|n| (format!("s-{n}"), format!("{:016x}", xxh3_64(&shards[n].0)))).collect();
    let listed = shards.iter().zip(&named);
    let listed = listed.map(|((shard, records), (name, xxh3))| (&**name, shard.len() as u64, *records, &**xxh3));
    let set = mds::DataSet::parse(&columns.index(listed)).unwrap();
    let mut found = Vec::new();
    for ((shard, _), listed) in shards.iter().zip(&set.shards) {
        assert_eq!(listed.raw.hashes["xxh3_64"], format!("{:016x}", xxh3_64(shard)));
        let mut scan = mds::Scan::new(0, shard.len() as u64, listed, &set.columns).unwrap();
        for record in index(Format::Mds, &mut scan, shard).iter() {
            let fields = set.columns.split(first(&record, shard)).unwrap();
            let plain = |(column, bytes): (&mds::Column, &[u8])| {
                let number = || i64::from_le_bytes(bytes.try_into().unwrap()).to_string().into_bytes();
                (column.name.clone(), if column.size.is_some() { number() } else { bytes.to_vec() })
            };
            found.push(keyed(fields.map(plain).collect()));
        }
    }
    found
}

fn of_tfrecord(shards: &[(Vec<u8>, u64)]) -> Vec<Plain> {
    let (mut found, mut example) = (Vec::new(), tfrecord::Example::default());
    for (shard, _) in shards {
        let index = index(Format::TfRecord, &mut tfrecord::Scan::new(0, shard.len() as u64), shard);
        for record in index.iter() {
            let features = example.read(tfrecord::check(first(&record, shard)).unwrap()).unwrap();
            let plain = |feature: tfrecord::Feature<'_>| match feature.values().next().unwrap() {
                tfrecord::Value::Bytes(bytes) => bytes.to_vec(),
                tfrecord::Value::Int(number) => number.to_string().into_bytes(),
                tfrecord::Value::Float(_) => unreachable!("none is written"),
            };
            found.push(keyed(features.iter().map(|(name, feature)| (name.to_owned(), plain(feature))).collect()));
        }
    }
    found
}

#[cfg(feature = "parquet")]
fn of_parquet(shards: &[(Vec<u8>, u64)]) -> Vec<Plain> {
    let mut found = Vec::new();
    for (shard, records) in shards {
        let file = crate::parquet::File::open(shard, shard.len() as u64, &[]).unwrap();
        assert_eq!(file.groups().map(|group| group.rows).sum::<u64>(), *records);
        crate::parquet::tests::rows(&file, shard, &mut |fields| {
            let plain = |(name, bytes): &(&str, &[u8])| {
                let digits = || i64::from_le_bytes((*bytes).try_into().unwrap()).to_string().into_bytes();
                ((*name).to_owned(), if *name == "cls" { digits() } else { bytes.to_vec() })
            };
            found.push(keyed(fields.iter().map(plain).collect()));
            Ok(())
        })
        .unwrap();
    }
    found
}

fn some_records() -> impl Strategy<Value = Vec<Plain>> {
    let record = (0..100_000_u32, proptest::collection::vec(any::<u8>(), 0..2000), "\\PC{0,40}", any::<i32>());
    let record = record.prop_map(|(salt, bytes, words, class)| {
        let fields = [("cls", class.to_string().into_bytes()), ("seg.png", bytes), ("txt", words.into_bytes())];
        (salt, fields.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec())
    });
    proptest::collection::vec(record, 1..30).prop_map(|records| {
        let long = "länger/".repeat(17);
        let folder = |salt: u32| if salt.is_multiple_of(3) { long.as_str() } else { "a.b/" };
        records
            .into_iter()
            .enumerate()
            .map(|(n, (salt, fields))| (format!("{}{salt:05}-{n}", folder(salt)), fields))
            .collect()
    })
}

proptest! {
    #[test]
    fn what_is_written_reads_back(records in some_records(), limit in 1_u64..20_000) {
        let (tars, _) = shards(Format::WebDataset, limit, &records);
        prop_assert_eq!(of_tar(&tars), records.clone());
        let (of, columns) = shards(Format::Mds, limit, &records);
        prop_assert_eq!(of_mds(&of, &columns.unwrap()), records.clone());
        let (frames, _) = shards(Format::TfRecord, limit, &records);
        prop_assert_eq!(of_tfrecord(&frames), records.clone());
        #[cfg(feature = "parquet")]
        prop_assert_eq!(of_parquet(&shards(Format::Parquet, limit, &records).0), records);
    }
}

#[test]
fn the_bytes_stay_the_same() {
    let fields = |n: u8| vec![("cls".to_owned(), vec![b'0' + n]), ("jpg".to_owned(), vec![n; 700])];
    let records = [("a/1".to_owned(), fields(1)), (format!("{}é", "b/".repeat(60)), fields(2))];
    let hashes = [Format::WebDataset, Format::Mds, Format::TfRecord].map(|format| {
        let (shards, _) = shards(format, 1 << 20, &records);
        (shards[0].0.len(), format!("{:016x}", xxh3_64(&shards[0].0)))
    });
    let pinned = [(8192, "f80ce6094111d904"), (1768, "5993ba098efe5973"), (1660, "db29372db302bc09")];
    assert_eq!(hashes, pinned.map(|(len, hash)| (len, hash.to_owned())));
}

#[cfg(feature = "parquet")]
#[test]
fn row_groups_of_parquet_have_about_one_length_and_the_bytes_stay_the_same() {
    let sizes = [5 << 20, 2 << 20, 2 << 20, 9 << 20, 10, 20];
    let fields = |n: usize| vec![("cls".to_owned(), n.to_string().into()), ("jpg".to_owned(), vec![n as u8; sizes[n]])];
    let records: Vec<Plain> = (0..sizes.len()).map(|n| (n.to_string(), fields(n))).collect();
    let (shards, _) = shards(Format::Parquet, 1 << 30, &records);
    let file = crate::parquet::File::open(&shards[0].0, shards[0].0.len() as u64, &[]).unwrap();
    assert_eq!(file.groups().map(|group| group.rows).collect::<Vec<_>>(), [2, 1, 1, 2]);
    assert_eq!(of_parquet(&shards), records);
    assert_eq!((shards[0].0.len(), &*format!("{:016x}", xxh3_64(&shards[0].0))), (18_875_410, "1306f3f4bde491e7"));
}

#[test]
fn what_would_not_be_read_back_is_refused() {
    let refused = |format, key: Option<&str>, fields: &[(&str, Value<'_>)], says: &str| {
        let mut writer = Writer::new(format, 1 << 20, None).unwrap();
        assert!(writer.push(Some("first"), &[("cls", Value::Int(1)), ("txt", Value::Text("é"))]).unwrap());
        let before = writer.bytes.clone();
        let error = writer.push(key, fields).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(says), "'{says}' in {error}");
        assert!(writer.bytes == before && writer.records() == 1, "{says}: the shard is as it was");
    };
    let bytes = Value::Bytes(b"x");
    for key in ["a.b", "", "/abs", "a/../b", "__meta__/a", "a\0b", "a."] {
        refused(Format::WebDataset, Some(key), &[("jpg", bytes)], "cannot be a member");
    }
    refused(Format::WebDataset, Some("a"), &[], "it has no field");
    refused(Format::WebDataset, Some("first"), &[("jpg", bytes)], "the record before it has the same key");
    refused(Format::WebDataset, None, &[("jpg", bytes)], "no key");
    refused(Format::WebDataset, Some("a"), &[("jpg", bytes), ("JPG", bytes)], "two fields named 'jpg'");
    refused(Format::TfRecord, Some("a"), &[("jpg", bytes), ("jpg", bytes)], "two fields named 'jpg'");
    refused(Format::TfRecord, Some("a"), &[(KEY, bytes)], "two fields named '__key__'");
    refused(Format::Mds, Some("a"), &[("cls", bytes), ("txt", bytes)], "'cls' is not an integer");
    refused(Format::Mds, Some("a"), &[("cls", Value::Int(1)), ("txt", Value::Bytes(b"\xFF"))], "'txt' is not text");
    refused(
        Format::Mds,
        Some("a"),
        &[("cls", Value::Int(1))],
        "it has the fields __key__, cls, and the first record __key__, cls, txt",
    );
    let mut tokens = Writer::new(Format::Tokens, 1 << 20, None).unwrap();
    for (name, value) in [("txt", Value::Bytes(b"text")), ("a.json", Value::Bytes(b"[1]")), ("cls", Value::Int(7))] {
        let error = tokens.push(Some("a"), &[(name, value)]).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("one field of numbers"), "{name}: {error}");
    }
    assert!(tokens.push(Some("a"), &[("bin", bytes)]).unwrap());
    assert!(tokens.push(None, &[("txt", Value::Bytes(b"\xFF"))]).unwrap());
    assert_eq!(tokens.finish(), b"x\xFF");
    for (format, limit) in [(Format::Manifest, 1), (Format::Mds, 0), (Format::Mds, SHARD_BYTES_MAX + 1)] {
        assert_eq!(Writer::new(format, limit, None).unwrap_err().kind(), Kind::Usage);
    }
}

#[test]
fn identifiers_stay_as_they_are() {
    let record = |n: usize, id: &str| (n.to_string(), vec![("id".to_owned(), id.as_bytes().to_vec())]);
    for ids in [["a1", "007"], ["007", "8"], ["+7", "-0"]] {
        let records = [record(0, ids[0]), record(1, ids[1])];
        let (of, columns) = shards(Format::Mds, 1 << 20, &records);
        assert_eq!(of_mds(&of, &columns.unwrap()), records);
        assert_eq!(of_tfrecord(&shards(Format::TfRecord, 1 << 20, &records).0), records);
        #[cfg(feature = "parquet")]
        assert_eq!(of_parquet(&shards(Format::Parquet, 1 << 20, &records).0), records);
    }
    let mut writer = Writer::new(Format::Mds, 1 << 20, None).unwrap();
    writer.push(Some("0"), &[("id", Value::Bytes(b"8\n"))]).unwrap();
    let error = writer.push(Some("1"), &[("id", Value::Bytes(b"007"))]).unwrap_err().to_string();
    assert!(error.contains("'id' is not an integer"), "{error}");
}

#[test]
fn slashes_of_field_names_become_dots_in_an_archive() {
    let mut writer = Writer::new(Format::WebDataset, 1 << 20, None).unwrap();
    writer.push(Some("1"), &[("image/encoded", Value::Bytes(b"x")), ("label", Value::Int(-7))]).unwrap();
    let shard = (writer.finish().to_vec(), 1);
    let fields = [("image.encoded", "x"), ("label", "-7")].map(|(name, text)| (name.to_owned(), text.into()));
    assert_eq!(of_tar(&[shard]), [("1".to_owned(), fields.to_vec())]);
}
