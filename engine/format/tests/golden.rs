//! Shards that the packages of the field wrote, read as those packages read them. `data/make.py` made both.

use fuelrail_format::{Field, Format, Index, IndexBuilder, Scan, fuzz, mds, tar, tfrecord};
use std::fmt::Write as _;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub(crate) fn read(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn expected(name: &str) -> String {
    String::from_utf8(read(&format!("{name}.expected"))).expect("text")
}

/// Lines as `make.py` writes them: record, key, field, bytes, XXH3-64.
fn lines<'a>(records: impl IntoIterator<Item = (&'a str, Vec<(&'a str, &'a [u8])>)>) -> String {
    let mut lines = String::new();
    for (number, (key, mut fields)) in records.into_iter().enumerate() {
        fields.sort();
        for (field, bytes) in fields {
            writeln!(lines, "{number}\t{key}\t{field}\t{}\t{:016x}", bytes.len(), xxh3_64(bytes)).unwrap();
        }
    }
    lines
}

pub(crate) fn index(format: Format, object: &[u8], mut scan: impl Scan, extra: usize) -> Index<Vec<u8>> {
    let mut builder = IndexBuilder::new(format, [0; 16], 1);
    fuzz::scanned(&mut scan, object, extra, &mut builder).expect("a sound shard");
    Index::open(builder.to_bytes()).expect("a sound index")
}

/// The fields of records that are ranges of one object.
pub(crate) fn ranges(index: &Index<Vec<u8>>, object: &[u8]) -> String {
    let bytes = |field| match field {
        Field::Span(span) => &object[span.offset as usize..(span.offset + span.length) as usize],
        Field::Value(_) => unreachable!("a range"),
    };
    let key = |key: Option<_>| core::str::from_utf8(key.unwrap_or_default()).expect("a key of text");
    lines(
        index
            .iter()
            .map(|record| (key(record.key()), record.fields().map(|(name, field)| (name, bytes(field))).collect())),
    )
}

#[test]
fn tars_read_as_webdataset_reads_them() {
    for name in ["webdataset.tar", "ustar.tar", "gnu.tar", "pax.tar"] {
        let object = read(name);
        for extra in [0, 1000, usize::MAX] {
            let scan = tar::Scan::new(0, object.len() as u64);
            let index = index(Format::WebDataset, &object, scan, extra);
            assert_eq!(ranges(&index, &object), expected(name), "{name}, {extra} bytes more");
        }
    }
}

#[test]
fn mds_reads_as_the_streaming_package_reads_it() {
    let set = mds::DataSet::parse(&read("mds/index.json")).unwrap();
    let shards: Vec<Vec<u8>> =
        set.shards.iter().map(|shard| read(&format!("mds/{}", shard.stored().basename))).collect();
    let mut builder = set.index([0; 16], shards.len() as u32);
    for (number, (listed, bytes)) in set.shards.iter().zip(&shards).enumerate() {
        assert_eq!(listed.raw.hashes["xxh3_64"], format!("{:016x}", xxh3_64(bytes)));
        let mut scan = mds::Scan::new(number as u32, bytes.len() as u64, listed, &set.columns).unwrap();
        fuzz::scanned(&mut scan, bytes, number, &mut builder).unwrap();
    }
    let index = Index::open(builder.to_bytes()).unwrap();
    let sample = |field| match field {
        Some(Field::Span(span)) => {
            &shards[span.object as usize][span.offset as usize..(span.offset + span.length) as usize]
        }
        _ => unreachable!("a range"),
    };
    let records = index.iter().map(|record| {
        let fields = set.columns.split(sample(record.field(0))).unwrap();
        (
            "",
            fields
                .map(|(column, bytes)| {
                    assert!(column.encoding.view(bytes).is_some(), "{}", column.name);
                    (&*column.name, bytes)
                })
                .collect(),
        )
    });
    assert_eq!(lines(records), expected("mds"));
}

#[test]
fn mds_of_compressed_shards_is_read() {
    for name in ["mds-zstd", "mds-gz"] {
        let set = mds::DataSet::parse(&read(&format!("{name}/index.json"))).unwrap();
        let [shard] = &set.shards[..] else { panic!("one shard") };
        let mut raw = vec![0; shard.raw.bytes as usize];
        set.compression.unwrap().decompress(&read(&format!("{name}/{}", shard.stored().basename)), &mut raw).unwrap();
        assert_eq!(format!("{:016x}", xxh3_64(&raw)), shard.raw.hashes["xxh3_64"], "{name}");
        let index = index(Format::Mds, &raw, mds::Scan::new(0, raw.len() as u64, shard, &set.columns).unwrap(), 0);
        assert_eq!(index.len(), 6);
    }
    assert!(
        mds::DataSet::parse(&read("mds-snappy/index.json")).unwrap_err().to_string().contains("compressed with snappy")
    );
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_reads_as_pyarrow_reads_it() {
    use fuelrail_format::parquet::{self, File};
    use std::collections::BTreeMap;
    for name in ["rows-snappy.parquet", "rows-zstd.parquet", "rows-gzip.parquet", "rows-none.parquet"] {
        let bytes = read(name);
        let size = bytes.len() as u64;
        let open = |fields: &[&str]| {
            let footer = parquet::footer_bytes(&bytes, size).unwrap();
            let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
            File::open(&bytes[(size - footer) as usize..], size, &fields)
        };
        let rows = |file: &File| {
            let mut rows: Vec<Vec<(String, Vec<u8>)>> = Vec::new();
            for (number, group) in file.groups().enumerate() {
                let pieces = group.ranges.iter().map(|range| bytes[range.start as usize..range.end as usize].to_vec());
                let before = rows.len() as u64;
                let take = &mut |fields: &[(&str, &[u8])]| {
                    rows.push(fields.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect());
                    Ok(())
                };
                file.rows(number, pieces.collect(), take).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(rows.len() as u64 - before, group.rows);
            }
            rows
        };
        let all = open(&[]).unwrap();
        assert_eq!(
            all.groups().map(|group| (group.rows, group.ranges.len())).collect::<Vec<_>>(),
            [(4, 1), (4, 1), (2, 1)]
        );
        let read = rows(&all);
        let lent = read.iter().map(|row| ("", row.iter().map(|(name, bytes)| (&**name, &**bytes)).collect()));
        assert_eq!(lines(lent), expected("rows.parquet"), "{name}");
        let kinds: BTreeMap<&str, _> = all.columns().iter().map(|column| (&*column.name, &column.encoding)).collect();
        assert_eq!(kinds["text"].view(b"a"), Some(mds::Value::Text("a")));
        for row in &read {
            assert!(row.iter().all(|(name, bytes)| kinds[&**name].view(bytes).is_some()));
        }
        // Only what is asked for is read.
        let some = open(&["label", "image"]).unwrap();
        let names: Vec<&str> = some.columns().iter().map(|column| &*column.name).collect();
        assert_eq!(names, ["image.bytes", "image.path", "label"]);
        let length = |file: &File| file.groups().flat_map(|group| group.ranges).map(|r| r.end - r.start).sum::<u64>();
        assert!(length(&some) < length(&all), "{} of {}", length(&some), length(&all));
        for (row, whole) in rows(&some).iter().zip(&read) {
            assert!(!row.is_empty() && row.iter().all(|field| whole.contains(field)));
        }
        assert!(open(&["imag"]).unwrap_err().to_string().contains("'imag'"));
    }
}

#[cfg(feature = "parquet")]
#[test]
fn a_page_of_parquet_that_its_checksum_does_not_fit_is_damaged() {
    use fuelrail_format::parquet::File;
    let bytes = read("checksum.parquet");
    let file = File::open(&bytes, bytes.len() as u64, &[]).unwrap();
    let range = file.groups().next().unwrap().ranges[0].clone();
    let column = bytes[range.start as usize..range.end as usize].to_vec();
    let error = file.rows(0, vec![column], &mut |_| Ok(())).unwrap_err();
    assert!(error.kind() == fuelrail_base::Kind::Undecodable && error.to_string().contains("checksum"), "{error}");
}

#[cfg(feature = "parquet")]
#[test]
fn what_is_not_read_of_parquet_is_refused_by_name() {
    use fuelrail_base::{Kind, Result};
    use fuelrail_format::parquet::File;
    let refused = |name: &str, fields: &[&str], says: &str| {
        let bytes = read(name);
        let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
        let rows = |file: File| -> Result<()> {
            let range = file.groups().next().unwrap().ranges[0].clone();
            file.rows(0, vec![bytes[range.start as usize..range.end as usize].to_vec()], &mut |_| Ok(()))
        };
        let error = File::open(&bytes, bytes.len() as u64, &fields).and_then(rows).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.hint().is_some() && error.to_string().contains(says), "{error}");
    };
    refused("lists.parquet", &[], "column 'words' is a list");
    refused("lists.parquet", &["holes"], "row 0 of row group 0: column 'holes': an element of its list is null");
    refused("brotli.parquet", &[], "column 'n' is compressed with BROTLI");
    refused("delta.parquet", &[], "row 0 of row group 0: column 'word': it is encoded as DELTA_BYTE_ARRAY");
}

#[test]
fn tfrecords_read_as_the_tfrecord_package_reads_them() {
    let file = read("examples.tfrecord");
    let index = index(Format::TfRecord, &file, tfrecord::Scan::new(0, file.len() as u64), 0);
    let frame = |field| match field {
        Some(Field::Span(span)) => &file[span.offset as usize..(span.offset + span.length) as usize],
        _ => unreachable!("a range"),
    };
    let data: Vec<&[u8]> = index.iter().map(|record| tfrecord::check(frame(record.field(0))).unwrap()).collect();
    assert_eq!(lines(data.iter().map(|data| ("", vec![("", *data)]))), expected("examples.tfrecord"));
    let mut reader = tfrecord::Example::default();
    for (n, data) in data.iter().enumerate() {
        let features = reader.read(data).unwrap();
        let values = |name| features.get(name).unwrap().values();
        assert_eq!(features.get("image").unwrap().bytes().unwrap().len(), 20 * n);
        assert!(values("label").eq([tfrecord::Value::Int(n as i64)]));
        assert!(values("box").eq([n as f32 / 2.0, -1.5, 3.25].map(tfrecord::Value::Float)));
        assert!(values("ids").eq((-(n as i64)..300).step_by(97).map(tfrecord::Value::Int)));
    }
}
