use super::*;
use crate::bytes::Dtype;
use crate::fuzz::scanned;
use crate::{Field, Format, Index};
use std::io::Write as _;

fn index_json(samples: u32, bytes: usize, rest: &str) -> String {
    format!(
        r#"{{"version":2,"shards":[{{"version":2,"format":"mds","samples":{samples},"compression":null,"zip_data":null,
        "hashes":[],"raw_data":{{"basename":"s.mds","bytes":{bytes},"hashes":{{}}}},{rest}}}]}}"#
    )
}

const COLUMNS: &str = r#""column_names":["a","n"],"column_encodings":["str","int"],"column_sizes":[null,8]"#;

fn shard(samples: &[&str]) -> Vec<u8> {
    let encoded: Vec<Vec<u8>> = samples
        .iter()
        .enumerate()
        .map(|(n, text)| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes(), &(n as u64).to_le_bytes()].concat())
        .collect();
    let mut bytes = (samples.len() as u32).to_le_bytes().to_vec();
    let mut at = 4 + 4 * (samples.len() as u32 + 1) + 2;
    bytes.extend(at.to_le_bytes());
    for sample in &encoded {
        at += sample.len() as u32;
        bytes.extend(at.to_le_bytes());
    }
    bytes.extend(b"{}");
    bytes.extend(encoded.concat());
    bytes
}

fn read(json: &str, shard: &[u8], extra: usize) -> Result<(DataSet, Index<Vec<u8>>)> {
    let set = DataSet::parse(json.as_bytes())?;
    let mut index = set.index([0; 16], 1);
    scanned(&mut Scan::new(0, shard.len() as u64, &set.shards[0], &set.columns)?, shard, extra, &mut index)?;
    Ok((set, Index::open(index.to_bytes())?))
}

#[test]
fn samples_split_into_columns_without_allocating() {
    let bytes = shard(&["", "abc", "é"]);
    for extra in [0, 3, 4000] {
        let (set, index) = read(&index_json(3, bytes.len(), COLUMNS), &bytes, extra).unwrap();
        assert_eq!((index.len(), index.format()), (3, Format::Mds));
        let columns = Columns::parse(index.description()).unwrap();
        assert_eq!(columns, set.columns);
        let counted = allocation_counter::measure(|| {
            for (record, (text, number)) in index.iter().zip([("", 0), ("abc", 1), ("é", 2)]) {
                let Some(Field::Span(span)) = record.field(0) else { panic!("a range") };
                let sample = &bytes[span.offset as usize..(span.offset + span.length) as usize];
                let mut values =
                    columns.split(sample).unwrap().map(|(column, bytes)| (&*column.name, column.encoding.view(bytes)));
                assert_eq!(values.next(), Some(("a", Some(Value::Text(text)))));
                let Some(("n", Some(Value::Array(array)))) = values.next() else { panic!("a number") };
                assert_eq!((array.shape().count(), array.data), (0, &i64::to_le_bytes(number)[..]));
                assert_eq!(values.next(), None);
            }
        });
        assert_eq!(counted.count_total, 0);
    }
}

#[test]
fn no_samples_are_no_records() {
    let bytes = shard(&[]);
    assert_eq!(read(&index_json(0, bytes.len(), COLUMNS), &bytes, 0).unwrap().1.len(), 0);
    let set = DataSet::parse(br#"{"version":2,"shards":[]}"#).unwrap();
    assert!(set.shards.is_empty() && set.columns.all().is_empty());
}

#[test]
fn lying_shards_are_typed_errors() {
    let bytes = shard(&["x", "yz"]);
    let json = |samples| index_json(samples, bytes.len(), COLUMNS);
    let with = |at: usize, value: u32| {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    for (json, shard, says) in [
        (json(3), bytes.clone(), "at byte 0: the shard holds 2 samples, index.json says 3"),
        (json(2), with(0, u32::MAX), "holds 4294967295 samples"),
        (json(2), with(4, 15), "at byte 4: the first sample begins at byte 15: its offsets end at 16"),
        (json(2), with(4, 1 << 31), "the first sample begins at byte 2147483648"),
        (json(2), with(8, 17), "at byte 8: a sample ends at byte 17: it begins at 18"),
        (json(2), with(8, 29), "at byte 8: a sample has 11 bytes, its columns need 12"),
        (json(2), with(12, 1 << 31), "at byte 12: a sample ends at byte 2147483648"),
        (index_json(2, 5000, COLUMNS), bytes.clone(), "the shard has 45 bytes, index.json says 5000"),
        (index_json(u32::MAX, 8, COLUMNS), [[0xFF; 4], [16, 0, 0, 0]].concat(), "the first sample begins at byte 16"),
    ] {
        let error = read(&json, &shard, 0).unwrap_err();
        assert!(error.kind() == Kind::Undecodable && error.to_string().contains(says), "{says}: {error}");
    }
    for cut in 0..bytes.len() {
        let found = read(&index_json(2, cut, COLUMNS), &bytes[..cut], 0);
        assert_eq!(found.unwrap_err().kind(), Kind::Undecodable, "{cut}");
    }
    let columns = DataSet::parse(json(2).as_bytes()).unwrap().columns;
    for sample in [&b""[..], b"\x01\0\0\0x1234567", b"\x01\0\0\0x12345678+", b"\xFF\xFF\xFF\xFFx12345678"] {
        assert_eq!(columns.split(sample).err().map(|error| error.kind()), Some(Kind::Undecodable));
    }
}

#[test]
fn unsound_and_unsupported_indexes_are_named() {
    let sound = index_json(1, 9, COLUMNS);
    for (from, to, kind, says) in [
        ("{\"version\":2", "{\"version\":1", Kind::Usage, "version 1 is not supported"),
        ("\"mds\"", "\"xsv\"", Kind::Usage, "shard 0 is xsv of version 2"),
        ("\"s.mds\"", "\"../s\"", Kind::Undecodable, "shard 0: the file '../s' lies outside"),
        ("\"s.mds\"", "\"/s\"", Kind::Undecodable, "lies outside"),
        ("\"compression\":null", "\"compression\":\"zstd\"", Kind::Undecodable, "a compression and a compressed file"),
        ("[null,8]", "[8]", Kind::Undecodable, "2 columns have 2 encodings and 1 sizes"),
        ("[null,8]", "[null,-8]", Kind::Undecodable, "index.json: invalid value"),
        ("[\"a\",\"n\"]", "[\"a\",\"a\"]", Kind::Undecodable, "two columns are named 'a'"),
        ("\"samples\":1", "\"samples\":-1", Kind::Undecodable, "index.json: invalid value"),
        ("}]}", "}]", Kind::Undecodable, "EOF"),
    ] {
        assert!(sound.contains(from), "{from}");
        let error = DataSet::parse(sound.replace(from, to).as_bytes()).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(says), "{says}: {error}");
    }
    let zip = r#""zip_data":{"basename":"s.mds.br","bytes":1,"hashes":{}}"#;
    for name in ["br:11", "bz2", "snappy", "lz4"] {
        let json = sound
            .replace("\"compression\":null", &format!("\"compression\":\"{name}\""))
            .replace("\"zip_data\":null", zip);
        let error = DataSet::parse(json.as_bytes()).unwrap_err();
        assert!(
            error.kind() == Kind::Usage && error.to_string().contains(&format!("with {name}, which is not supported")),
            "{error}"
        );
    }
    let one = &sound[sound.find('[').unwrap() + 1..sound.len() - 2];
    let two = format!("{{\"version\":2,\"shards\":[{one},{}]}}", one.replace("\"str\"", "\"bytes\""));
    assert!(DataSet::parse(two.as_bytes()).unwrap_err().to_string().contains("shard 1 has other columns"));
}

#[test]
fn shards_are_decompressed_to_exactly_the_length_that_is_listed() {
    let raw = b"0123456789".repeat(100);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gz.write_all(&raw).unwrap();
    let bomb = zstd::bulk::compress(&vec![0; 100 << 20], 1).unwrap();
    let mut gz_bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gz_bomb.write_all(&vec![0; 10 << 20]).unwrap();
    for (compression, zip, bomb) in [
        (Compression::Zstd, zstd::bulk::compress(&raw, 3).unwrap(), bomb),
        (
            Compression::Zstd,
            zstd::stream::encode_all(&raw[..], 3).unwrap(),
            zstd::stream::encode_all(&vec![0; 50 << 20][..], 1).unwrap(),
        ),
        (Compression::Gz, gz.finish().unwrap(), gz_bomb.finish().unwrap()),
    ] {
        let mut out = vec![0; raw.len()];
        compression.decompress(&zip, &mut out).unwrap();
        assert_eq!(out, raw);
        let error = |shard: &[u8], length: usize| compression.decompress(shard, &mut vec![0; length]).unwrap_err();
        for length in [0, raw.len() - 1, raw.len() + 1] {
            assert_eq!(error(&zip, length).kind(), Kind::Undecodable);
        }
        (0..zip.len()).for_each(|cut| assert_eq!(error(&zip[..cut], raw.len()).kind(), Kind::Undecodable, "{cut}"));
        let counted = allocation_counter::measure(|| assert_eq!(error(&bomb, 1000).kind(), Kind::Undecodable));
        assert!(counted.bytes_max < 1 << 20, "{}", counted.bytes_max);
    }
}

#[test]
fn rows_may_lack_columns_and_samples_of_a_shard_may_not() {
    let texts = [("a", Encoding::Text), ("b", Encoding::Bytes), ("n", Encoding::parse("int64"))];
    let rows = Columns::nullable(texts.iter().map(|(name, encoding)| (*name, encoding))).unwrap();
    let rows = Columns::parse(&rows.description()).unwrap();
    for fields in [&[("a", &b"x"[..]), ("b", b""), ("n", b"12345678")][..], &[("n", b"12345678")], &[("b", b"yz")], &[]]
    {
        let mut row = Vec::new();
        rows.join(fields, &mut row).unwrap();
        let read: Vec<_> = rows.split(&row).unwrap().map(|(column, bytes)| (column.name.as_str(), bytes)).collect();
        assert_eq!(read, fields);
        row.push(0);
        assert_eq!(rows.split(&row).err().unwrap().kind(), Kind::Undecodable);
    }
    // An index.json that says so is not believed.
    let set = DataSet::parse(index_json(1, 99, &format!("{COLUMNS},\"nullable\":true")).as_bytes()).unwrap();
    let sample = [&u32::MAX.to_le_bytes()[..], b"12345678"].concat();
    assert_eq!(set.columns.split(&sample).err().unwrap().kind(), Kind::Undecodable);
}

#[test]
fn encodings_have_views() {
    let view = |encoding: &str, bytes: &[u8]| format!("{:?}", Encoding::parse(encoding).view(bytes));
    for (encoding, bytes, expected) in [
        ("bytes", &b"\xFF"[..], "Some(Bytes([255]))"),
        ("pkl", b"\x80", "Some(Bytes([128]))"),
        ("jpeg", b"\xFF", "Some(Bytes([255]))"),
        ("new thing", b"x", "Some(Bytes([120]))"),
        ("str", b"x", "Some(Text(\"x\"))"),
        ("str", b"\xFF", "None"),
        ("str_decimal", b"1.5", "Some(Text(\"1.5\"))"),
        ("list[png]", b"\0", "Some(Bytes([0]))"),
        ("pil", b"\0", "Some(Bytes([0]))"),
        ("int", b"\xFF", "None"),
        ("ndarray:uint8:2,0", b"x", "Some(Bytes([120]))"),
        ("ndarray:uint8:2", b"x", "None"),
        ("ndarray", b"\x20\x05\x01\x00", "None"),
        ("ndarray", b"\x07\x05\x01\x00x", "None"),
    ] {
        assert_eq!(view(encoding, bytes), expected, "{encoding} {bytes:?}");
    }
    for (encoding, bytes, dtype, shape, elements) in [
        ("int", &[0xFF; 8][..], Dtype::I64, vec![], 8),
        ("uint8", b"x", Dtype::U8, vec![], 1),
        ("float16", b"xy", Dtype::F16, vec![], 2),
        ("ndarray:int16:2,1", &b"abcd"[..], Dtype::I16, vec![2, 1], 4),
        ("ndarray:int16", b"\x05\x02\x00abcd", Dtype::I16, vec![2], 4),
        ("ndarray", b"\x20\x08\x02\x02abcdefghijklmnop", Dtype::U32, vec![2, 2], 16),
    ] {
        let encoding = Encoding::parse(encoding);
        let Some(Value::Array(array)) = encoding.view(bytes) else { panic!("{encoding:?}") };
        assert_eq!((array.dtype, array.shape().collect(), array.data.len()), (dtype, shape, elements));
    }
}
