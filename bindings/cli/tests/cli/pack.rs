//! `pack`: what goes in comes out, the same bytes every time, also after a stop; and what is refused.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use fuelrail_bucket::DataSet;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::program::{Ended, cleared};
use super::{PROGRAM, bucket_of, fuelrail, program, utf8};

const SMALL: [&str; 2] = ["--memory-limit", "64MiB"];

fn pack(source: &str, target: &str, args: &[&str]) -> Ended {
    fuelrail(&[&["pack", source, target], &SMALL[..], args].concat())
}

/// Files by name.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    dir
}

/// Two classes of records of three fields.
fn photos(records: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for class in ["ant", "bee"] {
        fs::create_dir(dir.path().join(class)).unwrap();
        for n in 0..records {
            let file = |field: &str| dir.path().join(format!("{class}/{n:04}.{field}"));
            fs::write(file("jpg"), vec![n as u8; 37 * (n % 50)]).unwrap();
            fs::write(file("json"), format!("{{\"n\":{n}}}")).unwrap();
            fs::write(file("seg.PNG"), vec![7; n % 3]).unwrap();
        }
    }
    dir
}

/// The bytes of all files of a folder but `pack.json`.
fn shards(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|item| item.unwrap().path());
    let named = files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()));
    named.filter(|(name, _)| name != "pack.json").collect()
}

/// What `records` says: by key and field the hash. In MDS and TFRecord the key is a field, and integers have 8 bytes.
fn records(target: &str, format: &str) -> BTreeMap<(String, String), String> {
    let lines = fuelrail(&["records", target, "--format", format, "--memory-limit", "64MiB", "--json"]).done();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |line: &Value| ((text(&line["record"]), text(&line["field"])), text(&line["xxh3"]));
    lines.iter().map(of).collect()
}

fn hash(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

#[test]
fn every_field_is_in_the_shards_of_every_format() {
    let photos = photos(40);
    let out = tempfile::tempdir().unwrap();
    for (format, extension) in [("webdataset", "tar"), ("mds", "mds"), ("tfrecord", "tfrecord"), ("parquet", "parquet")]
    {
        let target = out.path().join(format);
        let args = ["--format", format, "--shard-size", "16KiB", "--json"];
        let done = pack(utf8(photos.path()), utf8(&target), &args).json();
        assert_eq!((&done["records"], &done["skipped"]), (&80.into(), &0.into()));
        assert!(done["shards"].as_u64().unwrap() > 2, "{done}");
        assert!(target.join(format!("shard-000001.{extension}")).exists());
        let found = records(utf8(&target), format);
        for (number, class) in ["ant", "bee"].into_iter().enumerate() {
            for n in 0..40 {
                let key = format!("{class}/{n:04}");
                // In the order of the listing, which is that of these loops.
                let record = if format == "webdataset" { key.clone() } else { (number * 40 + n).to_string() };
                let has = |field: &str, bytes: &[u8]| {
                    assert_eq!(found[&(record.clone(), field.to_owned())], hash(bytes), "{format} {key} {field}");
                };
                for (field, file) in [("jpg", "jpg"), ("json", "json"), ("seg.png", "seg.PNG")] {
                    has(field, &fs::read(photos.path().join(format!("{key}.{file}"))).unwrap());
                }
                if format == "webdataset" {
                    has("cls", number.to_string().as_bytes());
                } else {
                    has("cls", &(number as i64).to_le_bytes());
                    has("__key__", key.as_bytes());
                }
            }
        }
    }
    let listed = Command::new("tar").arg("-tf").arg(out.path().join("webdataset/shard-000000.tar")).output().unwrap();
    assert!(listed.status.success() && listed.stderr.is_empty());
    assert!(
        String::from_utf8(listed.stdout)
            .unwrap()
            .starts_with("ant/0000.jpg\nant/0000.json\nant/0000.seg.png\nant/0000.cls\n")
    );
}

#[test]
fn shards_become_shards_of_another_format_and_back() {
    let (photos, out) = (photos(30), tempfile::tempdir().unwrap());
    let at = |name: &str| utf8(&out.path().join(name)).to_owned();
    let more = ["--shard-size", "30KiB"];
    pack(utf8(photos.path()), &at("a"), &[&["--format", "webdataset"], &more[..]].concat()).done();
    let turned = |from: &str, from_format: &str, to: &str, format: &str, args: &[&str]| {
        let args = [&["--source-format", from_format, "--format", format], &more[..], args].concat();
        pack(&format!("{}/", at(from)), &at(to), &args).done();
    };
    turned("a", "webdataset", "b", "mds", &["--shuffle", "--seed", "3"]);
    turned("b", "mds", "c", "tfrecord", &[]);
    turned("c", "tfrecord", "d", "webdataset", &["--shuffle", "--seed", "9"]);
    assert_eq!(records(&at("a"), "webdataset"), records(&at("d"), "webdataset"));
    assert_ne!(shards(&out.path().join("a")), shards(&out.path().join("d")), "in another order");
    // Goes on after the shards that are there.
    let before = shards(&out.path().join("d"));
    let manifest = out.path().join("d/pack.json");
    let mut half: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    half["complete"] = false.into();
    half["shards"].as_array_mut().unwrap().truncate(1);
    fs::write(&manifest, half.to_string()).unwrap();
    fs::remove_file(out.path().join("d/shard-000001.tar")).unwrap();
    turned("c", "tfrecord", "d", "webdataset", &["--shuffle", "--seed", "9"]);
    assert_eq!(shards(&out.path().join("d")), before);
    // A manifest that does not fit the source is no reason to panic.
    half["shards"][0]["records"] = u64::MAX.into();
    fs::write(&manifest, half.to_string()).unwrap();
    let args = ["--source-format", "tfrecord", "--format", "webdataset", "--shuffle", "--seed", "9"];
    let refused = pack(&at("c"), &at("d"), &[&args[..], &more].concat());
    assert!(
        refused.code != 0 && refused.err.contains("is not below 60") && refused.err.contains("hint: "),
        "{}",
        refused.err
    );
    // The golden shards of the package itself, whose records have no keys and columns of all types.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/format/tests/data/mds");
    let args = ["--source-format", "mds", "--format", "webdataset"];
    pack(utf8(&golden), &at("golden"), &args).done();
    let found = records(&at("golden"), "webdataset");
    let field = |name: &str| &found[&("000000001".to_owned(), name.to_owned())];
    assert_eq!((field("i16"), field("u64")), (&hash(b"-100"), &hash(&(2_u64.pow(63) + 1).to_le_bytes())));
    assert_eq!((field("int"), field("text")), (&hash(b"10000000000"), &hash("é".repeat(40).as_bytes())));
}

#[test]
fn numbers_of_one_field_become_arrays_of_tokens() {
    let (source, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let documents: Vec<Vec<u8>> =
        (0..9_u16).map(|n| (0..n * 100).flat_map(|at| (at * n).to_le_bytes()).collect()).collect();
    for (n, tokens) in documents.iter().enumerate() {
        fs::write(source.path().join(format!("{n}.ids")), tokens).unwrap();
        fs::write(source.path().join(format!("{n}.txt")), "text").unwrap();
    }
    let target = utf8(&out.path().join("tokens")).to_owned();
    let tokens = ["--format", "tokens", "--shard-size", "3KB"];
    let refused = pack(utf8(source.path()), &format!("{target}-refused"), &tokens);
    assert!(refused.code == 2 && refused.err.contains("in `fields`"), "{}", refused.err);
    pack(utf8(source.path()), &target, &[&tokens[..], &["--fields", "ids"]].concat()).done();
    let written = shards(&out.path().join("tokens"));
    assert!(written.len() > 2 && written.keys().all(|name| name.ends_with(".tokens")), "{:?}", written.keys());
    assert_eq!(written.into_values().collect::<Vec<_>>().concat(), documents.concat());
    let windows = ["records", &target, "--format", "tokens", "--token-window", "64"];
    assert!(!fuelrail(&windows).done().is_empty(), "the manifest beside them is no array");
}

#[test]
fn rows_of_parquet_become_shards_and_shards_become_parquet() {
    let (photos, out) = (photos(30), tempfile::tempdir().unwrap());
    let at = |name: &str| utf8(&out.path().join(name)).to_owned();
    let small = ["--shard-size", "30KiB"];
    pack(utf8(photos.path()), &at("a"), &[&["--format", "webdataset"], &small[..]].concat()).done();
    let parquet = ["--source-format", "webdataset", "--format", "parquet", "--shuffle", "--seed", "3"];
    for name in ["b", "c"] {
        pack(&format!("{}/", at("a")), &at(name), &[&parquet[..], &small].concat()).done();
    }
    let written = shards(&out.path().join("b"));
    assert!(written.len() > 1 && written.keys().all(|name| name.ends_with(".parquet")), "{:?}", written.keys());
    assert_eq!(written, shards(&out.path().join("c")), "the same bytes");
    let back = ["--source-format", "parquet", "--format", "webdataset"];
    let again = || pack(&format!("{}/", at("b")), &at("d"), &[&back[..], &small].concat());
    again().done();
    assert_eq!(records(&at("a"), "webdataset"), records(&at("d"), "webdataset"));
    // Goes on after the shards that are there.
    let (before, manifest) = (shards(&out.path().join("d")), out.path().join("d/pack.json"));
    let mut half: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    half["complete"] = false.into();
    half["shards"].as_array_mut().unwrap().truncate(1);
    fs::write(&manifest, half.to_string()).unwrap();
    fs::remove_file(out.path().join("d/shard-000001.tar")).unwrap();
    again().done();
    assert_eq!(shards(&out.path().join("d")), before);
    // What pyarrow and the streaming package wrote, compressed; integers and texts keep their types, and nulls are no fields.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/format/tests/data");
    let source = out.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::copy(golden.join("rows-gzip.parquet"), source.join("0.parquet")).unwrap();
    let fields = ["--fields", "image.bytes,label,text"];
    pack(utf8(&source), &at("e"), &[&back[..], &fields].concat()).done();
    let found = records(&at("e"), "webdataset");
    let field = |record: u64, name: &str| found.get(&(format!("{record:09}"), name.to_owned()));
    assert_eq!((field(7, "label"), field(7, "text")), (Some(&hash(b"3")), Some(&hash("é".repeat(7).as_bytes()))));
    assert!(field(0, "image.bytes") == Some(&hash(b"")) && field(5, "text").is_none() && found.len() == 29);
    let zipped = ["--source-format", "mds", "--format", "parquet"];
    pack(utf8(&golden.join("mds-zstd")), &at("f"), &zipped).done();
    let found = records(&at("f"), "parquet");
    assert_eq!(found[&("5".to_owned(), "n".to_owned())], hash(&5_u64.to_le_bytes()));
    let shuffled = pack(utf8(&source), &at("g"), &[&back[..], &["--shuffle"]].concat());
    assert!(shuffled.code == 2 && shuffled.err.contains("in their own order"), "{}", shuffled.err);
}

#[test]
fn a_bucket_is_packed_into_a_bucket_with_the_same_bytes_every_time() {
    let set = DataSet::digits(400, 1);
    let bucket = bucket_of(&set, "reset=0.05@100,only=training/*");
    let out = tempfile::tempdir().unwrap();
    let args = ["--format", "webdataset", "--shard-size", "40KiB", "--shuffle", "--seed", "7", "--json"];
    let done = pack(&bucket.url("training/"), &bucket.url("packed"), &args).json();
    assert_eq!(&done["records"], &400);
    let again = pack(&bucket.url("training/"), &bucket.url("packed"), &args).json();
    assert_eq!((&again["skipped"], &again["shards"]), (&done["shards"], &done["shards"]));
    pack(&bucket.url("training/"), utf8(&out.path().join("a")), &args).done();
    let copy = out.path().join("b");
    assert_eq!(fuelrail(&["cp", &bucket.url("packed/"), utf8(&copy)]).code, 0);
    assert_eq!(shards(&out.path().join("a")), shards(&copy));
    let found = records(utf8(&copy), "webdataset");
    for index in 0..set.len() {
        let key = set.key(index);
        let key = key.strip_prefix("training/").unwrap().strip_suffix(".png").unwrap().to_owned();
        let label = key.split('/').next().unwrap().to_owned();
        assert_eq!(found[&(key.clone(), "png".to_owned())], hash(&set.content(index)));
        assert_eq!(found[&(key, "cls".to_owned())], hash(label.as_bytes()));
    }
    let refused = pack(&bucket.url("training/"), &bucket.url("training/packed"), &args);
    assert!(refused.code == 2 && refused.err.contains("the target lies inside the source"), "{}", refused.err);
    // An entity tag that changed is no proof of damage: the bytes are.
    let shard = fs::read(copy.join("shard-000001.tar")).unwrap();
    let file = out.path().join("file");
    for (bytes, skipped) in [(shard.clone(), 0), (vec![0; shard.len()], 1)] {
        fs::write(&file, bytes).unwrap();
        fuelrail(&["put", utf8(&file), &bucket.url("packed/shard-000001.tar")]).done();
        let again = pack(&bucket.url("training/"), &bucket.url("packed"), &args).json();
        assert_eq!(again["skipped"].as_u64().unwrap() + skipped, done["shards"].as_u64().unwrap());
    }
}

#[test]
fn what_is_missing_or_damaged_is_written_again_and_nothing_else() {
    let (photos, out) = (photos(60), tempfile::tempdir().unwrap());
    for format in ["webdataset", "mds", "tfrecord", "parquet"] {
        let target = out.path().join(format);
        let run = |more: &[&str]| {
            let args = ["--format", format, "--shard-size", "15KiB", "--shuffle", "--seed", "5", "--json"];
            pack(utf8(photos.path()), utf8(&target), &[&args[..], more].concat())
        };
        let done = run(&[]).json();
        let all = done["shards"].as_u64().unwrap();
        assert!(all > 4, "{done}");
        let before = shards(&target);
        let name = |n: usize| before.keys().filter(|name| name.starts_with("shard-")).nth(n).unwrap();
        fs::remove_file(target.join(name(1))).unwrap();
        let mut flipped = before[name(3)].clone();
        flipped[1000] ^= 1;
        fs::write(target.join(name(3)), flipped).unwrap();
        let again = run(&[]).json();
        assert_eq!(again["skipped"], all - 2, "{again}");
        assert_eq!(shards(&target), before);
        // A manifest that does not fit the source is no reason to panic, or to write.
        let manifest = fs::read_to_string(target.join("pack.json")).unwrap();
        let mut edited: Value = serde_json::from_str(&manifest).unwrap();
        (edited["complete"], edited["shards"][2]["records"]) = (false.into(), u64::MAX.into());
        fs::write(target.join("pack.json"), edited.to_string()).unwrap();
        let refused = run(&[]);
        assert!(refused.code == 1 && refused.err.contains("pack.json has 18446744073709551615"), "{}", refused.err);
        fs::write(target.join("pack.json"), manifest).unwrap();
        // Shards of something else do not mix with them.
        for (more, says) in
            [(&["--seed", "6"][..], "seed 5 there, 6 now"), (&["--shard-size", "1MiB"], "shard_bytes_max 15360")]
        {
            let refused = run_over(&target, photos.path(), format, more);
            assert!(
                refused.code != 0 && refused.err.contains(says) && refused.err.contains("hint: "),
                "{}",
                refused.err
            );
        }
        assert_eq!(shards(&target), before);
    }
    fs::write(photos.path().join("bee/new.jpg"), "x").unwrap();
    let refused = run_over(&out.path().join("mds"), photos.path(), "mds", &[]);
    assert!(refused.code != 0 && refused.err.contains("made of something else"), "{}", refused.err);
}

/// The same settings as in the test above, but for these.
fn run_over(target: &Path, source: &Path, format: &str, more: &[&str]) -> Ended {
    let has = |name: &str| more.contains(&name);
    let mut args = vec!["--format", format, "--shuffle"];
    args.extend(if has("--seed") { &[][..] } else { &["--seed", "5"] });
    args.extend(if has("--shard-size") { &[][..] } else { &["--shard-size", "15KiB"] });
    pack(utf8(source), utf8(target), &[&args[..], more].concat())
}

#[test]
fn a_killed_run_leaves_whole_shards_and_goes_on_to_the_same_bytes() {
    let set = DataSet::tokens(2_000, 3, 5_000);
    // Slow until the run is killed.
    let bucket = bucket_of(&set, "latency=fixed:300ms");
    let dir = tempfile::tempdir().unwrap();
    let (killed, whole) = (dir.path().join("killed"), dir.path().join("whole"));
    let url = bucket.url("");
    let args = ["--format", "tfrecord", "--shard-size", "200KiB", "--shuffle", "--memory-limit", "64MiB"];
    let count = || {
        fs::read_dir(&killed).map_or(0, |items| {
            items.flatten().filter(|item| item.path().extension().is_some_and(|e| e == "tfrecord")).count()
        })
    };
    let mut command = program();
    let mut run = command.args(["pack", &url, utf8(&killed)]).args(args).stderr(Stdio::null()).spawn().unwrap();
    while count() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert_eq!(run.try_wait().unwrap(), None, "killed too late: it should not be done before");
    }
    run.kill().unwrap();
    assert_eq!(run.wait().unwrap().signal(), Some(9));
    bucket.set_script("".parse().unwrap()).unwrap();
    let left = shards(&killed).into_iter().filter(|(name, _)| name.starts_with("shard-"));
    let left: BTreeMap<_, _> = left.collect();
    fs::write(killed.join(".fuelrail-new-4194305-0"), "what a process that is gone was writing").unwrap();
    let done = pack(&url, utf8(&killed), &[&args[..5], &["--json"]].concat()).json();
    let skipped = done["skipped"].as_u64().unwrap();
    assert!(skipped >= 1 && skipped < done["shards"].as_u64().unwrap(), "{done}");
    pack(&url, utf8(&whole), &args[..5]).done();
    assert_eq!(shards(&killed), shards(&whole), "and nothing else is left there");
    assert!(left.iter().all(|(name, bytes)| shards(&whole)[name] == *bytes), "no shard was there in part");
    assert_eq!(fs::read(killed.join("pack.json")).unwrap(), fs::read(whole.join("pack.json")).unwrap());
}

#[test]
fn a_full_disk_leaves_whole_shards_and_an_error_that_says_so() {
    let photos = photos(100);
    fs::write(photos.path().join("bee/9999.jpg"), vec![1; 100_000]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (full, whole) = (dir.path().join("full"), dir.path().join("whole"));
    // No file may be longer than 64 blocks of 512 or 1024 bytes: all shards are shorter but the last one, which one record makes longer.
    let run = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    let mut command = cleared(Command::new("sh"));
    command.args(["-c", run, PROGRAM, "pack", utf8(photos.path()), utf8(&full), "--format", "webdataset"]);
    let ended = Ended::new(command.args(["--shard-size", "20KiB", "--memory-limit", "64MiB"]).output().unwrap());
    assert!(ended.code == 1 && ended.err.contains("File too large") && ended.err.contains("hint: "), "{}", ended.err);
    let left = shards(&full);
    let done =
        pack(utf8(photos.path()), utf8(&full), &["--format", "webdataset", "--shard-size", "20KiB", "--json"]).json();
    assert!(left.len() > 2 && done["skipped"] == left.len(), "{done}");
    pack(utf8(photos.path()), utf8(&whole), &["--format", "webdataset", "--shard-size", "20KiB"]).done();
    assert_eq!(shards(&full), shards(&whole));
    assert!(
        left.iter().all(|(name, bytes)| shards(&whole)[name] == *bytes),
        "neither a part of a shard nor an unfinished file"
    );
}

#[test]
fn an_object_that_cannot_be_read_is_named_and_the_rest_goes_on_later() {
    let set = DataSet::digits(1200, 1);
    let missing = set.key(1100);
    let (bad, good) = (bucket_of(&set, &format!("missing_keys={missing}")), bucket_of(&set, ""));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    let args = ["--format", "mds", "--shard-size", "20KiB", "--json"];
    let ended = pack(&bad.url("training/"), utf8(&target), &args);
    assert!(ended.code != 0 && ended.err.contains(&missing), "{}", ended.err);
    let left = shards(&target);
    assert!(!left.contains_key("index.json") && !left.is_empty(), "only whole shards, and no index of them yet");
    let done = pack(&good.url("training/"), utf8(&target), &args).json();
    assert_eq!((&done["records"], &done["skipped"]), (&1200.into(), &left.len().into()));
    assert!(left.iter().all(|(name, bytes)| shards(&target)[name] == *bytes));
    assert_eq!(records(utf8(&target), "mds").len(), 3600);
}

#[test]
fn two_records_of_one_key_and_two_fields_of_one_name_are_refused() {
    let out = tempfile::tempdir().unwrap();
    let target = utf8(&out.path().join("out")).to_owned();
    let refused = |source: &Path, args: &[&str], says: &str| {
        let ended = pack(utf8(source), &target, args);
        assert!(
            ended.code != 0 && ended.err.contains(says) && ended.err.contains("hint: "),
            "'{says}' in {}",
            ended.err
        );
        assert!(!Path::new(&target).exists(), "nothing is written");
    };
    let case = folder(&[("a/1.jpg", b"1"), ("a/1.JPG", b"2")]);
    refused(case.path(), &["--format", "webdataset"], "two objects are the field 'jpg' of record 'a/1'");
    let first = folder(&[("a/1.jpg", b"1")]);
    let shards = tempfile::tempdir().unwrap();
    for name in ["0", "1"] {
        let tar = shards.path().join(name);
        pack(utf8(first.path()), utf8(&tar), &["--format", "webdataset"]).done();
        fs::rename(tar.join("shard-000000.tar"), shards.path().join(format!("{name}.tar"))).unwrap();
        fs::remove_dir_all(tar).unwrap();
    }
    refused(shards.path(), &["--source-format", "webdataset", "--format", "mds"], "two records have the key 'a/1'");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let source = folder(&[("a/1.jpg", b"1"), ("b/1", b"22"), (".hidden", b""), ("b/2.jpg", b"")]);
    let out = tempfile::tempdir().unwrap();
    let (from, to) = (utf8(source.path()), utf8(&out.path().join("out")).to_owned());
    let refused = |source: &str, target: &str, args: &[&str], says: &str| {
        let ended = pack(source, target, args);
        assert!(
            ended.code != 0 && ended.err.contains(says) && ended.err.contains("hint: "),
            "'{says}' in {}",
            ended.err
        );
    };
    refused(from, &to, &["--format", "manifest"], "manifest is not written");
    refused(from, &to, &["--format", "mds", "--shard-size", "3GiB"], "outside 1 byte to 2 GiB");
    refused(from, &to, &["--format", "mds", "--source-format", "parquet"], "ends with .parquet");
    refused(from, &to, &["--format", "mds", "--seed", "1"], "--shuffle");
    refused(from, &to, &["--format", "mds"], "it has the fields");
    refused(
        utf8(folder(&[(".hidden", b"")]).path()),
        &format!("{to}-2"),
        &["--format", "mds"],
        "the source has no record",
    );
    refused("/no/such/folder", &to, &["--format", "mds"], "no file or folder");
    refused(from, &format!("{from}/out"), &["--format", "mds"], "the target lies inside the source");
    refused(
        from,
        &format!("{from}/x/../../{}/y", source.path().file_name().unwrap().to_str().unwrap()),
        &["--format", "mds"],
        "inside",
    );
    refused(from, utf8(photos(1).path()), &["--format", "mds"], "no pack.json");
    fs::remove_dir_all(&to).unwrap();
    let done = pack(from, &to, &["--format", "webdataset", "--json"]);
    assert!(done.err.contains("1 objects were skipped"), "{}", done.err);
    assert_eq!(done.json()["records"], 3);
    let found = records(&to, "webdataset");
    let field = |key: &str, name: &str| found[&(key.to_owned(), name.to_owned())].clone();
    assert_eq!((field("b/1", "data"), field("b/2", "cls"), field("b/2", "jpg")), (hash(b"22"), hash(b"1"), hash(b"")));
}

#[test]
fn objects_of_one_key_are_one_record_whatever_is_listed_between_them() {
    let files = ["a/1", "a/1-x.jpg", "a/1.d/1.jpg", "a/1.jpg", "a/1.tar.gz", "a/10.jpg"];
    let source = folder(&files.map(|file| (file, file.as_bytes())));
    let out = tempfile::tempdir().unwrap();
    let done = pack(utf8(source.path()), utf8(&out.path().join("out")), &["--format", "webdataset", "--json"]).json();
    assert_eq!(done["records"], 4);
    let found = records(utf8(&out.path().join("out")), "webdataset");
    let of_1: Vec<&str> = found.keys().filter(|(key, _)| key == "a/1").map(|(_, field)| field.as_str()).collect();
    assert_eq!((of_1, found.len()), (vec!["data", "jpg", "tar.gz"], files.len()), "no class: all lie in one folder");
    assert!(files.iter().all(|file| found.values().any(|xxh3| *xxh3 == hash(file.as_bytes()))));
}
