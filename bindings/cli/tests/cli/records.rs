//! `records`, and `bench read` of shards: what the formats' own packages wrote, through the real program.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fuelrail_bucket::DataSet;
use xxhash_rust::xxh3::Xxh3;

use super::{bench_read, bucket_of, fuelrail, fuelrail_with, utf8};

/// Files that the formats' own packages wrote.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/format/tests/data").join(name)
}

/// A folder with one archive in it, and what its records are: key, field, length, hash.
fn archive() -> (tempfile::TempDir, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(golden("webdataset.tar"), dir.path().join("webdataset.tar")).unwrap();
    let expected = fs::read_to_string(golden("webdataset.tar.expected")).unwrap();
    (dir, expected.lines().map(|line| line.split_once('\t').unwrap().1.to_owned()).collect())
}

#[test]
fn every_field_of_every_record_is_a_line() {
    let (dir, mut expected) = archive();
    let ended = fuelrail(&["records", utf8(dir.path()), "--memory-limit", "64MiB"]);
    let mut lines: Vec<&str> = ended.out.lines().collect();
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected, "the format is told from the name");
    assert!(ended.err.contains("5 records, 14 fields"), "{}", ended.err);
    let named = fuelrail(&["records", utf8(&golden("mds")), "--format", "mds", "--memory-limit", "64MiB", "--json"]);
    let first: serde_json::Value = serde_json::from_str(named.out.lines().next().unwrap()).unwrap();
    assert_eq!((&first["record"], first["bytes"].is_u64(), first["xxh3"].is_string()), (&"0".into(), true, true));
    let refused = fuelrail(&["records", utf8(dir.path()), "--format", "parquet"]);
    assert!(
        refused.code == 2 && refused.err.contains("no object of the data set ends with .parquet"),
        "{}",
        refused.err
    );
}

#[test]
fn what_a_trainer_sets_leaves_no_record_out() {
    let (dir, _) = archive();
    let tar = dir.path().join("webdataset.tar");
    for args in [vec!["records", utf8(dir.path()), "--memory-limit", "64MiB"], vec!["inspect", "--json", utf8(&tar)]] {
        let plain = fuelrail(&args).done();
        for (name, value) in [
            ("FUELRAIL_DROP_LAST", "true"),
            ("FUELRAIL_WORLD", "2"),
            ("FUELRAIL_EPOCHS", "2"),
            ("FUELRAIL_DECODE", "8x8x3"),
        ] {
            assert_eq!(fuelrail_with(&[(name, value)], &args).done(), plain, "{name}");
        }
    }
}

/// The lines of `NAME.expected`, with the records' numbers as their keys.
fn numbered(name: &str) -> Vec<String> {
    let expected = fs::read_to_string(golden(name)).unwrap();
    expected.lines().map(|line| line.replacen("\t\t", "\t", 1)).collect()
}

#[test]
fn rows_of_parquet_are_records_and_only_the_columns_that_are_named_are_read() {
    let (dir, mut expected) = (tempfile::tempdir().unwrap(), numbered("rows.parquet.expected"));
    fs::copy(golden("rows-snappy.parquet"), dir.path().join("train.parquet")).unwrap();
    let args = ["records", utf8(dir.path()), "--memory-limit", "64MiB"];
    let ended = fuelrail(&args);
    let mut lines: Vec<&str> = ended.out.lines().collect();
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected, "the format is told from the name");
    let asked = fuelrail(&[&args[..], &["--fields", "image,label"]].concat()).done();
    let is_asked = |line: &&String| ["image.bytes", "image.path", "label"].contains(&line.split('\t').nth(1).unwrap());
    let mut lines: Vec<&str> = asked.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, expected.iter().filter(is_asked).collect::<Vec<_>>());
    // From a bucket that resets connections.
    let bucket = bucket_of(&DataSet::digits(10, 1), "reset=0.2@100,only=hf/*");
    fuelrail(&["put", utf8(&golden("rows-none.parquet")), &bucket.url("hf/0.parquet")]).done();
    let served = fuelrail(&["records", &bucket.url("hf/"), "--memory-limit", "64MiB"]).done();
    assert_eq!(served.lines().collect::<BTreeSet<_>>(), expected.iter().map(|line| &**line).collect());
    // A column that is damaged does not matter where it is not read.
    let mut bytes = fs::read(golden("rows-snappy.parquet")).unwrap();
    bytes[4..14].fill(0xFF);
    fs::write(dir.path().join("train.parquet"), &bytes).unwrap();
    assert_eq!(fuelrail(&[&args[..], &["--fields", "label"]].concat()).done().lines().count(), 10);
    let damaged = fuelrail(&args);
    assert!(damaged.code != 0 && damaged.err.contains("train.parquet"), "{}", damaged.err);
    let missing = fuelrail(&[&args[..], &["--fields", "nothing"]].concat());
    assert!(missing.code == 2 && missing.err.contains("'nothing'"), "{}", missing.err);
    // Files are one after another.
    for name in ["a", "b"] {
        fs::copy(golden("rows-zstd.parquet"), dir.path().join(format!("{name}.parquet"))).unwrap();
    }
    fs::remove_file(dir.path().join("train.parquet")).unwrap();
    let both = fuelrail(&[&args[..], &["--fields", "i32"]].concat()).done();
    let keys: Vec<&str> = both.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(keys, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
    // The footer is longer than the first read of it: it has an unknown field of 100 000 bytes.
    let bytes = fs::read(golden("rows-none.parquet")).unwrap();
    let (rest, tail) = bytes.split_at(bytes.len() - 8);
    let length = u32::from_le_bytes(*tail.first_chunk().unwrap()) + 6 + 100_000;
    let field =
        [&[0x08, 0xC8, 0x01, 0xA0, 0x8D, 0x06], &[7; 100_000][..], &[0], &length.to_le_bytes(), b"PAR1"].concat();
    fs::write(dir.path().join("a.parquet"), [&rest[..rest.len() - 1], &field].concat()).unwrap();
    assert_eq!(fuelrail(&[&args[..], &["--fields", "i32"]].concat()).done(), both);
    fs::copy(golden("lists.parquet"), dir.path().join("c.parquet")).unwrap();
    let mixed = fuelrail(&args);
    assert!(mixed.code == 2 && mixed.err.contains("c.parquet"), "{}", mixed.err);
}

#[test]
fn compressed_shards_of_mds_are_read() {
    for name in ["mds-zstd", "mds-gz"] {
        let ended = fuelrail(&["records", utf8(&golden(name)), "--format", "mds", "--memory-limit", "64MiB"]);
        let hash = |bytes: &[u8]| format!("{}\t{:016x}", bytes.len(), xxhash_rust::xxh3::xxh3_64(bytes));
        let lines = |n: usize| {
            let (number, text) = (hash(&(n as i64).to_le_bytes()), hash("é".repeat(n * 40).as_bytes()));
            format!("{n}\tn\t{number}\n{n}\ttext\t{text}\n")
        };
        assert_eq!(ended.done(), (0..6).map(lines).collect::<String>(), "{name}");
    }
    // An index that lies about the length of what is inside.
    let dir = tempfile::tempdir().unwrap();
    let index = fs::read_to_string(golden("mds-zstd/index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let stored = index["shards"][0]["zip_data"]["basename"].as_str().unwrap();
    fs::copy(golden("mds-zstd").join(stored), dir.path().join(stored)).unwrap();
    for (bytes, says) in [(100_u64, "decompressed"), (1 << 31, "decompressed"), (1 << 40, "4 GiB")] {
        let mut lie = index.clone();
        lie["shards"][0]["raw_data"]["bytes"] = bytes.into();
        fs::write(dir.path().join("index.json"), lie.to_string()).unwrap();
        let ended = fuelrail(&["records", utf8(dir.path()), "--format", "mds", "--memory-limit", "64MiB"]);
        assert!(ended.code != 0 && ended.err.contains(says) && ended.err.contains(stored), "{}", ended.err);
    }
}

#[test]
fn a_reading_of_shards_hashes_the_fields_that_are_named() {
    let (dir, lines) = archive();
    let read = |more: &[&str]| {
        bench_read(utf8(dir.path()), &[&["--format", "webdataset", "--shuffle", "false", "--json"], more].concat())
            .json()
    };
    let (all, labels) = (read(&[]), read(&["--fields", "cls"]));
    assert_eq!((&all["samples"], &labels["samples"]), (&5.into(), &5.into()));
    // The package's writer gave each record its number as its label.
    let digits = lines.iter().filter(|line| line.contains("\tcls\t")).count();
    let mut hash = Xxh3::new();
    (0..digits).for_each(|n| hash.update(n.to_string().as_bytes()));
    assert_eq!(labels["content_hash"], format!("{:032x}", hash.digest128()));
    assert_ne!(all["content_hash"], labels["content_hash"]);
}

#[test]
fn windows_of_tokens_are_records() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = |from: u16, to: u16| (from..to).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    for (name, bytes) in [("a.bin", tokens(0, 10)), ("b.bin", tokens(20, 23)), ("c.bin", Vec::new())] {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let run = |more: &[&str]| {
        let args = ["records", utf8(dir.path()), "--format", "tokens", "--memory-limit", "64MiB"];
        fuelrail(&[&args[..], more].concat())
    };
    let expected = |windows: &[(u16, u16)]| -> String {
        let line = |(at, (from, to)): (usize, &(u16, u16))| {
            let bytes = tokens(*from, *to);
            format!("{at}\ttokens\t{}\t{:016x}\n", bytes.len(), xxhash_rust::xxh3::xxh3_64(&bytes))
        };
        windows.iter().enumerate().map(line).collect()
    };
    assert_eq!(run(&[]).done(), expected(&[(0, 10), (20, 23)]), "files");
    assert_eq!(run(&["--token-window", "4"]).done(), expected(&[(0, 4), (4, 8)]));
    assert_eq!(run(&["--token-window", "4", "--token-stride", "3"]).done(), expected(&[(0, 4), (3, 7), (6, 10)]));
    for (more, says) in [(&["--token-window", "99"][..], "no record"), (&["--token-bytes", "4"], "b.bin")] {
        let refused = run(more);
        assert!(refused.code != 0 && refused.err.contains(says) && refused.err.contains("hint: "), "{}", refused.err);
    }
}
