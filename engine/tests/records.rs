//! Records of shards as samples: tar archives written by GNU tar, through the engine, in batches with fields.

use crate::common::pictures::{png, scene};
use crate::common::{folder, kept_in, loader, loader_at};
use ::png::{BitDepth, ColorType};
use fuelrail::{BadSamples, Decode, Format, Kind, LoaderBuilder, NO_LABEL, SampleId, State};
use fuelrail_bucket::{Bucket, BucketConfig, Source, Tls};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

type Fields = BTreeMap<String, Vec<u8>>;

fn some(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * (n + 3)) >> 3) as u8).collect()
}

/// Archives all files of a folder.
pub(crate) fn archive(path: &Path, files: &Path) {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "-cf"]).arg(path).arg("-C").arg(files).arg(".");
    assert!(tar.status().unwrap().success());
}

/// Shards of so many records, archived by GNU tar; one record is longer than the pieces that shards are scanned in, some lack a field.
fn shards(dir: &Path, shards: usize, records: usize) -> BTreeMap<String, Fields> {
    let mut all = BTreeMap::new();
    for shard in 0..shards {
        let files = tempfile::tempdir().unwrap();
        for n in shard * records..(shard + 1) * records {
            let mut fields = Fields::from([("bin".into(), some(n, if n == 7 { 9 << 20 } else { n * 377 % 60_000 }))]);
            fields.insert("cls".into(), format!("{}\n", n % 10).into_bytes());
            if !n.is_multiple_of(3) {
                fields.insert("seg.json".into(), format!("{{\"n\": {n}}}").into_bytes());
            }
            let key = format!("./train/{}{n:06}", if n % 16 == 0 { "deep/".repeat(40) } else { String::new() });
            for (name, bytes) in &fields {
                let path = files.path().join(format!("{key}.{name}"));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
            all.insert(key, fields);
        }
        let path = dir.join(format!("shard-{shard:06}.tar"));
        archive(&path, files.path());
    }
    fs::write(dir.join("README"), "no shard").unwrap();
    all
}

fn read(builder: LoaderBuilder, wanted: &BTreeMap<String, Fields>) -> Vec<String> {
    let mut loader = builder.build().unwrap();
    let mut order = Vec::new();
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        for (i, sample) in batch.samples().enumerate() {
            let key = loader.record_key(sample.id).into_owned();
            let fields: Fields = batch.fields(i).map(|(name, bytes)| (name.to_owned(), bytes.into_owned())).collect();
            assert!(fields == wanted[&key], "{key}");
            assert_eq!(batch.field(i, "bin").as_deref(), Some(&*fields["bin"]));
            assert_eq!(batch.field(i, "seg.json").is_some(), fields.contains_key("seg.json"));
            assert_eq!(batch.field(i, "none"), None);
            let label: u32 = String::from_utf8_lossy(&fields["cls"]).trim().parse().unwrap();
            assert!([label, NO_LABEL].contains(&sample.label), "{key}: {}", sample.label);
            order.push(key);
        }
    }
    order
}

#[test]
fn every_record_of_tar_shards_comes_once_with_its_fields_from_a_bucket_and_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let all = shards(dir.path(), 3, 50);
    let bucket = folder(dir.path(), "");
    let tar = |builder: LoaderBuilder| builder.format(Format::WebDataset).batch_size(16);
    let shuffled = read(tar(loader(&bucket)).label_field("cls"), &all);
    assert_ne!(shuffled, all.keys().cloned().collect::<Vec<_>>());
    let in_order = read(tar(loader_at(dir.path().to_str().unwrap())).shuffle(false), &all);
    for order in [&shuffled, &in_order] {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().eq(all.keys()), "{order:?}");
    }
    let mut labelled = tar(loader(&bucket)).label_field("cls").shuffle(false).build().unwrap();
    let batch = labelled.next_batch().unwrap().unwrap();
    assert!(batch.labels().iter().all(|label| *label < 10), "{:?}", batch.labels());
}

/// The first shard has long records, the second short ones, the third is long and damaged between them in the second round.
#[test]
fn of_long_records_the_headers_alone_are_read_and_what_is_damaged_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let tar = |name: &str, lengths: &[usize]| {
        let files = tempfile::tempdir().unwrap();
        for (n, length) in lengths.iter().enumerate() {
            fs::write(files.path().join(format!("{name}-{n:03}.bin")), some(n, *length)).unwrap();
            fs::write(files.path().join(format!("{name}-{n:03}.cls")), "1").unwrap();
        }
        archive(&dir.path().join(format!("{name}.tar")), files.path());
    };
    tar("a", &[3 << 20; 6]);
    tar("b", &[60 << 10; 100]);
    let bucket = folder(dir.path(), "");
    let built = || loader(&bucket).format(Format::WebDataset).batch_size(2).shuffle(false).build();
    let loader = built().unwrap();
    let keys: Vec<String> = (0..106).map(|n| loader.record_key(SampleId(n)).into_owned()).collect();
    let wanted = (0..6).map(|n| format!("./a-{n:03}")).chain((0..100).map(|n| format!("./b-{n:03}")));
    assert_eq!(keys, wanted.collect::<Vec<_>>());
    let found = loader.notices().iter().find(|notice| notice.contains("106 records found by reading")).cloned();
    let found = found.unwrap_or_else(|| panic!("{:?}", loader.notices()));
    // Six megabytes of the second shard, and a few headers of each.
    assert!(found.contains("reading 6.") && found.contains("MiB in"), "{found}");
    let read: Vec<_> = loader.flat_map(|batch| batch.unwrap().ids().to_vec()).collect();
    assert_eq!(read.len(), 106);

    tar("c", &[3 << 20; 6]);
    let path = dir.path().join("c.tar");
    let mut bytes = fs::read(&path).unwrap();
    let second = bytes.windows(9).position(|nine| nine == b"c-003.bin").unwrap();
    bytes[second + 150] ^= 0x55;
    fs::write(&path, bytes).unwrap();
    let bucket = folder(dir.path(), "");
    let error = self::loader(&bucket).format(Format::WebDataset).batch_size(2).build().unwrap_err();
    assert!(error.kind() == Kind::Undecodable && error.to_string().contains("c.tar"), "{error}");
}

#[test]
fn a_run_over_records_goes_on_on_another_number_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    shards(dir.path(), 2, 40);
    let bucket = folder(dir.path(), "");
    let rank = |rank, world, state: Option<&State>| {
        let builder = loader(&bucket).format(Format::WebDataset).batch_size(4).rank(rank).world(world);
        state.cloned().into_iter().fold(builder, LoaderBuilder::resume).build().unwrap()
    };
    let (mut seen, mut state) = (Vec::new(), None);
    for (world, batches) in [(2, 3), (3, 2), (1, usize::MAX)] {
        let mut last = None;
        for number in 0..world {
            let mut loader = rank(number, world, state.as_ref());
            for batch in std::iter::from_fn(|| loader.next_batch()).take(batches) {
                seen.extend(batch.unwrap().ids().iter().map(|id| id.0));
            }
            last = Some(loader.state());
        }
        state = last;
    }
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..80), "{seen:?}");
    let whole = loader(&bucket).resume(state.unwrap()).build().unwrap_err();
    assert_eq!(whole.kind(), Kind::Usage, "objects are another data set than their records");
}

#[test]
fn pictures_in_records_are_decoded_and_keep_their_labels() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let picture = scene(20, 10, 3);
    for n in 0..9 {
        let bytes =
            if n == 4 { b"no picture".to_vec() } else { png(20, 10, ColorType::Rgb, BitDepth::Eight, &picture) };
        fs::write(files.path().join(format!("{n}.png")), bytes).unwrap();
        fs::write(files.path().join(format!("{n}.cls")), n.to_string()).unwrap();
    }
    archive(&dir.path().join("a.tar"), files.path());
    let builder =
        || loader_at(dir.path().to_str().unwrap()).format(Format::WebDataset).decode(Decode::exact(10, 20, 3));
    let mut loader = builder().label_field("cls").bad_samples(BadSamples::Skip).build().unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    let mut labels = batch.labels().to_vec();
    labels.sort_unstable();
    assert_eq!(labels, [0, 1, 2, 3, 5, 6, 7, 8]);
    assert!(batch.samples().all(|sample| sample.bytes == picture) && batch.field(0, "png").is_none());
    assert!(loader.record_key(batch.left_out()[0].0).ends_with('4'), "{:?}", batch.left_out());
    let unknown = builder().decode_field("jpg").build().unwrap_err();
    assert!(unknown.to_string().contains("decode_field is 'jpg', and the records have cls, png"), "{unknown}");
}

#[test]
fn what_is_no_archive_and_what_holds_no_record_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let refused = || loader_at(dir.path().to_str().unwrap()).format(Format::WebDataset).build().unwrap_err();
    fs::write(dir.path().join("a.bin"), "x").unwrap();
    assert_eq!(refused().kind(), Kind::Usage);
    shards(dir.path(), 1, 3);
    let whole = fs::read(dir.path().join("shard-000000.tar")).unwrap();
    for (name, bytes) in [("cut.tar", &whole[..whole.len() / 3]), ("other.tar", &b"no archive at all"[..])] {
        fs::write(dir.path().join(name), bytes).unwrap();
        let error = refused();
        assert!(error.kind() == Kind::Undecodable && error.to_string().contains(name), "{error}");
        fs::remove_file(dir.path().join(name)).unwrap();
    }
}

/// Files that the formats' own packages wrote, and what is in them.
pub(crate) fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("format/tests/data").join(name)
}

#[test]
fn what_the_packages_wrote_is_read_byte_for_byte() {
    for (name, format) in [
        ("webdataset.tar", Format::WebDataset),
        ("gnu.tar", Format::WebDataset),
        ("pax.tar", Format::WebDataset),
        ("ustar.tar", Format::WebDataset),
        ("mds", Format::Mds),
        #[cfg(feature = "parquet")]
        ("rows-snappy.parquet", Format::Parquet),
        #[cfg(feature = "parquet")]
        ("rows-gzip.parquet", Format::Parquet),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let place = if golden(name).is_dir() { golden(name) } else { dir.path().to_owned() };
        if golden(name).is_file() {
            fs::copy(golden(name), place.join(name)).unwrap();
        }
        let bucket = folder(&place, "");
        let mut loader = loader(&bucket).format(format).shuffle(false).batch_size(3).build().unwrap();
        let mut lines = Vec::new();
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            for (i, id) in batch.ids().iter().enumerate() {
                let key =
                    if matches!(format, Format::Mds | Format::Parquet) { "".into() } else { loader.record_key(*id) };
                let line = |(field, bytes): (&str, std::borrow::Cow<'_, [u8]>)| {
                    format!("{}\t{key}\t{field}\t{}\t{:016x}", id.0, bytes.len(), xxhash_rust::xxh3::xxh3_64(&bytes))
                };
                lines.extend(batch.fields(i).map(line));
            }
        }
        let expected = if format == Format::Parquet { "rows.parquet" } else { name };
        let expected = fs::read_to_string(golden(&format!("{expected}.expected"))).unwrap();
        let mut expected: Vec<&str> = expected.lines().collect();
        lines.sort_unstable();
        expected.sort_unstable();
        assert_eq!(lines, expected, "{name}");
    }
}

#[test]
fn examples_have_their_features_and_one_with_a_wrong_checksum_is_a_bad_sample() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(golden("examples.tfrecord")).unwrap();
    fs::write(dir.path().join("a.tfrecord"), &bytes).unwrap();
    let builder = || loader_at(dir.path().to_str().unwrap()).format(Format::TfRecord).shuffle(false);
    let mut loader = builder().build().unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    assert_eq!((batch.len(), loader.record_key(batch.ids()[2]).as_ref()), (4, "2"));
    let names: Vec<&str> = batch.fields(1).map(|(name, _)| name).collect();
    assert!(!names.is_empty() && names.iter().all(|name| batch.field(1, name).is_some()), "{names:?}");
    drop((batch, loader));
    // The last byte of the first record's data, then a byte of its length.
    let data = 12 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    bytes[data - 1] ^= 1;
    fs::write(dir.path().join("a.tfrecord"), &bytes).unwrap();
    let error = builder().build().unwrap().next_batch().unwrap().unwrap_err();
    assert!(error.kind() == Kind::Mismatch && error.to_string().contains("a.tfrecord"), "{error}");
    for policy in [BadSamples::Skip, BadSamples::Quarantine] {
        let mut loader = builder().bad_samples(policy).epochs(2).build().unwrap();
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            let (left_out, error) = &batch.left_out()[0];
            assert_eq!((batch.len(), left_out.0, error.kind()), (3, 0, Kind::Mismatch), "{error}");
        }
        assert_eq!(loader.stats().left_out, 2);
    }
    bytes[0] ^= 1;
    fs::write(dir.path().join("a.tfrecord"), &bytes).unwrap();
    let error = builder().bad_samples(BadSamples::Skip).build().unwrap_err();
    assert!(error.kind() == Kind::Mismatch && error.to_string().contains("a.tfrecord"), "{error}");
}

#[test]
fn side_cars_are_fields_of_the_record_whose_key_is_theirs_but_for_the_extension() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..30 {
        fs::create_dir_all(dir.path().join(format!("{}", n % 3))).unwrap();
        let path = |extension: &str| dir.path().join(format!("{}/{n:02}.{extension}", n % 3));
        fs::write(path(if n % 4 == 0 { "png" } else { "JPG" }), some(n, 500 + n)).unwrap();
        if n != 7 {
            fs::write(path("cls"), format!("{}\n", n % 5)).unwrap();
        }
        fs::write(path("Json"), format!("{{\"n\": {n}}}")).unwrap();
    }
    fs::write(dir.path().join("alone.json"), "{}").unwrap();
    let bucket = folder(dir.path(), "");
    let builder = || loader(&bucket).format(Format::Objects).side_cars(["json", ".cls"]).batch_size(4);
    let mut loader = builder().label_field("cls").epochs(2).build().unwrap();
    assert_eq!(loader.samples(), 31);
    let mut times = [0; 30];
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        for (i, sample) in batch.samples().enumerate() {
            let key = loader.record_key(sample.id).into_owned();
            let Some((_, number)) = key.split_once('/') else {
                assert_eq!((key.as_str(), batch.field(i, "json").as_deref()), ("alone", Some(&b"{}"[..])));
                continue;
            };
            let n: usize = number.parse().unwrap();
            times[n] += 1;
            assert_eq!(
                batch.field(i, if n.is_multiple_of(4) { "png" } else { "jpg" }).as_deref(),
                Some(&*some(n, 500 + n))
            );
            assert_eq!(batch.field(i, "json").as_deref(), Some(format!("{{\"n\": {n}}}").as_bytes()));
            assert_eq!(
                (batch.field(i, "cls").is_some(), sample.label),
                if n == 7 { (false, NO_LABEL) } else { (true, n as u32 % 5) }
            );
        }
    }
    assert!(times.iter().all(|times| *times == 2), "{times:?}");
    assert!((30..=60).contains(&loader.stats().requests), "side-cars are read at start alone");
    let error = loader_at("/data/").format(Format::WebDataset).side_cars(["json"]).build().unwrap_err();
    assert!(error.to_string().contains("format is webdataset"), "{error}");
}

#[test]
fn side_cars_of_two_objects_are_refused_naming_both() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.cls", "a.jpg", "a.png", "b.jpg", "b.png"] {
        fs::write(dir.path().join(name), "1").unwrap();
    }
    let builder = || loader_at(dir.path().to_str().unwrap()).format(Format::Objects);
    let error = builder().side_cars(["cls"]).build().unwrap_err();
    assert!(error.kind() == Kind::Usage && error.object().is_some_and(|key| key.ends_with("a.png")), "{error}");
    assert!(error.to_string().contains("a.jpg'") && error.to_string().contains("in side_cars"), "{error}");
    assert_eq!(builder().side_cars(["cls", "png"]).build().unwrap().samples(), 2);
    fs::remove_file(dir.path().join("a.png")).unwrap();
    assert_eq!(builder().side_cars(["cls"]).build().unwrap().samples(), 3, "those of b have none");
}

#[test]
fn shards_that_are_missing_or_of_another_format_are_refused_by_name() {
    let refused = |uri: &Path, format| loader_at(uri.to_str().unwrap()).format(format).build().unwrap_err().to_string();
    let parquet = refused(&golden("mds"), Format::Parquet);
    assert!(
        parquet.contains(if cfg!(feature = "parquet") { "ends with .parquet" } else { "reads no Parquet" }),
        "{parquet}"
    );
    let dir = tempfile::tempdir().unwrap();
    fs::copy(golden("mds/index.json"), dir.path().join("index.json")).unwrap();
    let missing = refused(dir.path(), Format::Mds);
    assert!(missing.contains("shard.00000.mds"), "{missing}");
    fs::remove_file(dir.path().join("index.json")).unwrap();
    fs::write(dir.path().join("other"), "x").unwrap();
    assert!(refused(dir.path(), Format::Mds).contains("index.json"));
}

#[test]
fn an_index_is_kept_while_the_objects_are_the_same_and_damage_costs_another_pass() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let all = shards(dir.path(), 2, 12);
    let bucket = folder(dir.path(), "");
    let run = || {
        let builder = loader(&bucket).format(Format::WebDataset).listing_dir(kept.path());
        builder.build().unwrap().notices().iter().any(|line| line.contains("24 records found by reading"))
    };
    assert!(run() && !run(), "the second run finds the index of the first");
    let builder = || loader(&bucket).format(Format::WebDataset).listing_dir(kept.path()).batch_size(5);
    assert_eq!(read(builder(), &all).len(), 24);
    let index = || kept_in(kept.path()).into_iter().find(|path| path.to_string_lossy().ends_with("records")).unwrap();
    let good = fs::read(index()).unwrap();
    let own = |builder: LoaderBuilder| builder.build().unwrap().stats().memory.tables_bytes;
    let alone = own(loader(&bucket).format(Format::WebDataset).batch_size(5));
    assert_eq!(alone - own(builder()), good.len() as u64, "it is mapped, and no process has one of its own");
    for at in (0..good.len()).step_by(97) {
        let mut rotten = good.clone();
        rotten[at] ^= 0x10;
        fs::write(index(), if at % 2 == 0 { &rotten } else { &good[..at] }).unwrap();
        assert!(run(), "damaged at {at}");
    }
    fs::write(dir.path().join("shard-000002.tar"), fs::read(dir.path().join("shard-000001.tar")).unwrap()).unwrap();
    let more = builder().build().unwrap();
    assert!(
        more.samples() == 36 && more.notices().iter().any(|line| line.contains("36 records found")),
        "{:?}",
        more.notices()
    );
}

#[test]
fn one_of_many_that_start_at_once_finds_the_records_for_all() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    shards(dir.path(), 2, 12);
    let bucket = folder(dir.path(), "latency=fixed:100ms");
    let found = std::thread::scope(|scope| {
        let build = || {
            let builder = loader(&bucket).format(Format::WebDataset).listing_dir(kept.path()).batch_size(4);
            let loader = builder.build().unwrap();
            assert_eq!(loader.samples(), 24);
            loader.notices().iter().filter(|line| line.contains("records found by reading")).count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(build)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!(found, 1);
}

#[test]
fn an_index_of_an_unverified_server_is_not_used_by_a_run_that_verifies() {
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    shards(dir.path(), 1, 6);
    let source = Source::Directory(dir.path().to_owned());
    let bucket = Bucket::start(BucketConfig { source, tls: Some(Tls::SelfSigned), ..BucketConfig::default() }).unwrap();
    let ca = kept.path().join("ca.pem");
    fs::write(&ca, bucket.authority().unwrap()).unwrap();
    let finds = |builder: LoaderBuilder| {
        let loader = builder.format(Format::WebDataset).listing_dir(kept.path()).build().unwrap();
        loader.notices().iter().any(|line| line.contains("6 records found by reading"))
    };
    let (checked, unchecked) = (|| loader(&bucket).ca_file(&ca), || loader(&bucket).tls_insecure(true));
    assert!(finds(unchecked()) && !finds(unchecked()));
    assert!(finds(checked()) && !finds(checked()), "what an unverified server said is not believed");
    assert!(!finds(unchecked()), "each has an index of its own");
}

#[test]
fn a_file_lists_ranges_of_objects_with_fields() {
    let (dir, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let contents: Vec<Vec<u8>> = (0..3).map(|n| some(n, 40_000 + n)).collect();
    let mut lines = (String::from("key,offset,length,cls,note\n"), String::new());
    let mut wanted = BTreeMap::new();
    for (n, bytes) in contents.iter().enumerate() {
        let key = format!("run-{n}.bin");
        fs::write(dir.path().join(&key), bytes).unwrap();
        for (at, (offset, length)) in [(0, 100), (39_000, 1000 + n), (17, 0), (5_000, 20_000)].into_iter().enumerate() {
            let (cls, note) = ((n + at) % 4, format!("\u{e9}, \"{n}\""));
            lines.0 += &format!("{key},{offset},{length},{cls},\"{}\"\n", note.replace('"', "\"\""));
            lines.1 += &format!(
                "{{\"key\":\"{key}\",\"offset\":{offset},\"length\":{length},\"cls\":{cls},\"note\":{}}}\n",
                serde_json::to_string(&note).unwrap()
            );
            wanted.insert((4 * n + at) as u64, (bytes[offset..offset + length].to_vec(), cls as u32, note));
        }
    }
    let bucket = folder(dir.path(), "");
    for (name, text) in [("all.csv", &lines.0), ("all.jsonl", &lines.1)] {
        let file = lists.path().join(name);
        fs::write(&file, text).unwrap();
        let builder = loader(&bucket).format(Format::Manifest).record_file(&file).label_field("cls").batch_size(5);
        let mut loader = builder.clone().build().unwrap();
        let mut seen = BTreeMap::new();
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            for (i, sample) in batch.samples().enumerate() {
                let note = String::from_utf8(batch.field(i, "note").unwrap().into_owned()).unwrap();
                seen.insert(sample.id.0, (batch.field(i, "data").unwrap().into_owned(), sample.label, note));
            }
        }
        assert!(seen == wanted, "{name}");
        let mixed = builder.mixture("run-1=1".parse().ok()).batch_size(4).build().unwrap();
        assert!(
            mixed
                .map(|batch| batch.unwrap().ids().to_vec())
                .collect::<Vec<_>>()
                .concat()
                .iter()
                .all(|id| (4..8).contains(&id.0))
        );
    }
    let file = lists.path().join("bad.csv");
    for (text, cause) in [
        (
            "key,offset,length\nrun-0.bin,39999,9\n",
            "bad.csv: manifest line 2: the 9 bytes from 39999 on go beyond the end",
        ),
        ("key\nrun-7.bin\n", "there is no object 'run-7.bin'"),
        ("key\n", "no record of manifest"),
        ("key\nrun-1.bin\nrun-0.bin\n", "not in the order"),
    ] {
        fs::write(&file, text).unwrap();
        let builder = loader(&bucket).format(Format::Manifest).record_file(&file).mixture("run-1=1".parse().ok());
        let error = builder.build().unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(cause), "{error}");
    }
    let error = loader(&bucket).format(Format::Manifest).build().unwrap_err();
    assert!(error.to_string().contains("record_file"), "{error}");
}
