//! `ls`, `get` and `put`: listings, manifests, single objects.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Stdio;

use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

use super::{Ended, bench_read, bucket_of, fuelrail, program, unhedged, utf8};

#[test]
fn ls_names_every_object_in_key_order() {
    let set = DataSet::digits(1_234, 1);
    let bucket = bucket_of(&set, "");
    let keys: Vec<String> = (0..set.len()).map(|index| set.key(index)).collect();
    assert_eq!(fuelrail(&["ls", &bucket.url("")]).done().lines().collect::<Vec<_>>(), keys);

    let long = fuelrail(&["ls", "--long", &bucket.url("training/0/")]).done();
    let wanted = format!("{:>14}  {}  {}", set.size(0), set.etag(0), set.key(0));
    assert_eq!(long.lines().next(), Some(wanted.as_str()));

    let json = fuelrail(&["ls", "--json", &bucket.url("")]).json();
    assert_eq!(
        (&json["schema"], &json["count"], &json["bytes"]),
        (&1.into(), &1_234.into(), &set.total_bytes().into())
    );
    let last = &json["objects"][1_233];
    assert_eq!((&last["key"], &last["etag"]), (&set.key(1_233).into(), &set.etag(1_233).into()));
}

#[test]
fn a_listing_that_is_kept_is_used_again() {
    let bucket = bucket_of(&DataSet::digits(33_000, 1), "");
    let dir = tempfile::tempdir().unwrap();
    let count = |more: &[&str]| {
        let uri = bucket.url("");
        let told = fuelrail(&[&["ls", &uri, "--count", "--json", "--listing-dir", utf8(dir.path())], more].concat());
        let said = told.err.clone();
        assert_eq!(told.json()["count"], 33_000);
        said
    };
    assert!(count(&[]).contains("33000 objects saved in"));
    assert!(count(&[]).contains("33000 objects, listed"));
    let old = count(&["--listing-max-age-s", "0"]);
    assert!(old.contains("listing the bucket again"), "{old}");
}

#[test]
fn one_machine_lists_for_all_through_the_bucket() {
    let (bucket, store) = (bucket_of(&DataSet::digits(40_000, 1), ""), bucket_of(&DataSet::digits(1, 1), ""));
    let machines = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let user = format!("fuelrail-{}", rustix::process::getuid().as_raw());
    let [first, second] = machines.each_ref().map(|dir| dir.path().join(&user));
    let count = |dir: &tempfile::TempDir| {
        let told = fuelrail(&["ls", &bucket.url(""), "--count", "--json", "--listing-dir", utf8(dir.path())]);
        let said = told.err.clone();
        assert_eq!(told.json()["count"], 40_000);
        said
    };
    count(&machines[0]);
    fs::DirBuilder::new().mode(0o700).create(&second).unwrap();
    assert_eq!(fuelrail(&["cp", utf8(&first), &store.url("listings/")]).code, 0);
    assert_eq!(fuelrail(&["cp", &store.url("listings/"), utf8(&second)]).code, 0);
    let said = count(&machines[1]);
    assert!(said.contains("40000 objects, listed"), "{said}");
}

#[test]
fn a_manifest_reads_back_and_stands_in_for_the_listing() {
    let set = DataSet::digits(120, 2);
    let bucket = bucket_of(&set, "");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set.jsonl");
    let told = fuelrail(&["ls", &bucket.url(""), "--manifest", utf8(&path)]);
    assert!(told.err.contains("120 objects"), "{}", told.err);
    assert_eq!(told.done(), "", "the keys are in the file, not on the screen");
    let objects = fuelrail::read_manifest(&path).unwrap();
    assert_eq!(objects.len(), 120);
    for (index, object) in (0..).zip(&objects) {
        assert_eq!((&object.key, object.size), (&set.key(index), set.size(index)));
    }
    let inspected = fuelrail(&["inspect", "--json", utf8(&path)]).json();
    let file = &inspected["files"][0];
    assert_eq!((&file["kind"], &file["bytes"]), (&"manifest".into(), &set.total_bytes().into()));

    let listed = bench_read(&bucket.url(""), &["--json"]).json();
    bucket.reset_counters();
    let config = unhedged(dir.path());
    let given = bench_read(&bucket.url(""), &["--json", "--config", &config, "--manifest", utf8(&path)]).json();
    assert_eq!(listed["content_hash"], given["content_hash"]);
    assert_eq!((bucket.counters().list_requests, bucket.counters().get_requests), (0, 120));
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let bucket = bucket_of(&DataSet::digits(12_000, 3), "");
    for args in [vec!["ls"], vec!["ls", "--json"]] {
        let mut child =
            program().args(args).arg(bucket.url("")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // More than a pipe holds is on its way; one byte is enough for us.
        let mut one = [0];
        child.stdout.take().unwrap().read_exact(&mut one).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
    }
    let big = bucket_of(&DataSet::tokens(1, 3, 4 << 20), "");
    let get =
        program().args(["get", &big.url("shard_000000.bin")]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut get = get.unwrap();
    let mut one = [0];
    get.stdout.take().unwrap().read_exact(&mut one).unwrap();
    let ended = get.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn get_brings_the_object_whole_through_breaks() {
    let set = DataSet::tokens(2, 4, 300_000);
    let bucket = bucket_of(&set, "reset=0.5@1000,truncate=0.5@250000,per_key_max=2");
    let uri = bucket.url(&set.key(1));
    let raw = program().args(["get", &uri]).output().unwrap();
    assert_eq!(raw.status.code(), Some(0), "{}", String::from_utf8_lossy(&raw.stderr));
    set.verify(&set.key(1), &raw.stdout).unwrap();
    assert_eq!(bucket.counters().faults_total(), 2);

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one.bin");
    let json = fuelrail(&["get", &uri, "-o", utf8(&file), "--json"]).json();
    assert_eq!((&json["bytes"], &json["file"]), (&300_000.into(), &utf8(&file).into()));
    set.verify(&set.key(1), &fs::read(&file).unwrap()).unwrap();
    assert_eq!(files_in(dir.path()), 1);
}

#[test]
fn get_leaves_nothing_of_what_it_could_not_bring() {
    let bucket = bucket_of(&DataSet::digits(10, 5), "");
    let dir = tempfile::tempdir().unwrap();
    let ended = fuelrail(&["get", &bucket.url("training/no.png"), "-o", utf8(&dir.path().join("no.png"))]);
    assert_eq!(ended.code, 1);
    assert!(ended.err.starts_with("error: object 'training/no.png': "), "{}", ended.err);
    assert_eq!(files_in(dir.path()), 0);
}

#[test]
fn put_brings_a_file_that_ls_shows_and_get_brings_back() {
    let bucket = bucket_of(&DataSet::digits(3, 5), "");
    let dir = tempfile::tempdir().unwrap();
    let (file, back) = (dir.path().join("model.bin"), dir.path().join("back.bin"));
    let content: Vec<u8> = (0..700_001u32).map(|i| ((i * 7) >> 3) as u8).collect();
    fs::write(&file, &content).unwrap();
    let json = fuelrail(&["put", utf8(&file), &bucket.url("models/1.bin"), "--json"]).json();
    assert_eq!((&json["bytes"], &json["schema"]), (&700_001.into(), &1.into()));
    let listed = fuelrail(&["ls", "--json", &bucket.url("models/")]).json();
    assert_eq!((&listed["objects"][0]["key"], &listed["objects"][0]["etag"]), (&"models/1.bin".into(), &json["etag"]));
    assert_eq!(fuelrail(&["get", &bucket.url("models/1.bin"), "-o", utf8(&back)]).code, 0);
    assert_eq!(fs::read(&back).unwrap(), content);
    // A URI that ends like a folder gets the file's name.
    let told = fuelrail(&["put", utf8(&file), &bucket.url("more/")]);
    assert!(told.code == 0 && told.err.contains("more/model.bin"), "{}", told.err);
    assert_eq!(fuelrail(&["ls", &bucket.url("more/")]).done(), "more/model.bin\n");
}

#[test]
fn put_if_new_leaves_what_is_there() {
    let bucket = bucket_of(&DataSet::digits(3, 5), "");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "first").unwrap();
    assert_eq!(fuelrail(&["put", "--if-new", utf8(&file), &bucket.url("k")]).code, 0);
    fs::write(&file, "second").unwrap();
    let ended = fuelrail(&["put", "--if-new", utf8(&file), &bucket.url("k")]);
    assert!(ended.code == 1 && ended.err.contains("'k'") && ended.err.contains("exists already"), "{}", ended.err);
    assert_eq!(fuelrail(&["get", &bucket.url("k")]).done(), "first");
}

#[test]
fn put_that_cannot_be_says_why() {
    let bucket = bucket_of(&DataSet::digits(3, 5), "");
    let dir = tempfile::tempdir().unwrap();
    let ended = fuelrail(&["put", utf8(&dir.path().join("absent")), &bucket.url("k")]);
    assert!(ended.code == 1 && ended.err.contains("absent"), "{}", ended.err);
    // A file of the system without a length.
    let ended = fuelrail(&["put", "/proc/cpuinfo", &bucket.url("k")]);
    assert!(ended.code == 1 && ended.err.contains("/proc/cpuinfo"), "{}", ended.err);
    let ended = fuelrail(&["put", utf8(dir.path()), &bucket.url("k")]);
    assert!(ended.code == 2 && ended.err.contains("not a regular file"), "{}", ended.err);

    // A key is not made up of a name that is none.
    let odd = dir.path().join(OsStr::from_bytes(b"odd\xFF"));
    fs::write(&odd, "x").unwrap();
    let ended = Ended::new(program().arg("put").arg(&odd).arg(bucket.url("up/")).output().unwrap());
    assert!(ended.code == 2 && ended.err.contains("is not UTF-8"), "{}", ended.err);
    fs::remove_file(&odd).unwrap();

    let config = BucketConfig { source: Source::Directory(dir.path().to_owned()), ..BucketConfig::default() };
    let closed = Bucket::start(config).unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "x").unwrap();
    let ended = fuelrail(&["put", utf8(&file), &closed.url("k")]);
    assert!(ended.code == 1 && ended.err.contains("AccessDenied") && ended.err.contains("--writable"), "{}", ended.err);
    assert_eq!(files_in(dir.path()), 1);
}

fn files_in(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}
