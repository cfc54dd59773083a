//! `cp` and `cat`: trees and single objects, both ways, and what is left when they are cut short.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use fuelrail_bucket::{Bucket, DataSet};

use super::{bucket_of, fuelrail, fuelrail_with, program, utf8};

/// Every object of the set, in the folder under its key after `below`.
fn assert_copied(set: &DataSet, below: &str, folder: &Path) {
    for index in 0..set.len() {
        let key = set.key(index);
        let file = folder.join(key.strip_prefix(below).expect("all keys lie below"));
        set.verify(&key, &fs::read(&file).unwrap()).unwrap();
    }
    assert_eq!(count(folder), set.len(), "and nothing else");
}

/// Files in a folder and all below it.
fn count(folder: &Path) -> u64 {
    let items = fs::read_dir(folder).unwrap().map(|item| item.unwrap().path());
    items.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
}

#[test]
fn a_prefix_becomes_a_folder_and_a_folder_a_prefix() {
    let set = DataSet::digits(300, 1);
    let bucket = bucket_of(&set, "reset=0.05@100");
    let dir = tempfile::tempdir().unwrap();
    let (down, again) = (dir.path().join("down"), dir.path().join("again"));
    let done = fuelrail(&["cp", &bucket.url("training/"), utf8(&down), "--json"]).json();
    assert_eq!((&done["objects"], &done["bytes"]), (&300.into(), &set.total_bytes().into()));
    assert_copied(&set, "training/", &down);

    let done = fuelrail(&["cp", utf8(&down), &bucket.url("copied"), "--json"]).json();
    assert_eq!((&done["objects"], &done["failed"]), (&300.into(), &serde_json::json!([])));
    assert_eq!(fuelrail(&["cp", &bucket.url("copied/"), utf8(&again)]).code, 0);
    assert_copied(&set, "training/", &again);

    // What is there is skipped: of the files, and of the objects.
    fs::remove_file(again.join(set.key(7).strip_prefix("training/").unwrap())).unwrap();
    let done = fuelrail(&["cp", &bucket.url("copied/"), utf8(&again), "--resume", "--json"]).json();
    assert_eq!((&done["objects"], &done["skipped"]), (&1.into(), &299.into()));
    let done = fuelrail(&["cp", utf8(&again), &bucket.url("copied/"), "--resume", "--json"]).json();
    assert_eq!((&done["objects"], &done["skipped"]), (&0.into(), &300.into()));
}

#[test]
fn what_a_trainer_sets_loses_and_changes_no_object() {
    let set = DataSet::digits(300, 1);
    let (bucket, dir) = (bucket_of(&set, ""), tempfile::tempdir().unwrap());
    for (name, value) in [
        ("FUELRAIL_DROP_LAST", "true"),
        ("FUELRAIL_DECODE", "28x28x1"),
        ("FUELRAIL_FORMAT", "webdataset"),
        ("FUELRAIL_MIXTURE", "0/=1"),
    ] {
        let folder = dir.path().join(name);
        let variables = [(name, value), ("FUELRAIL_SHARDS", "1"), ("FUELRAIL_MEMORY_LIMIT", "64MiB")];
        let done = fuelrail_with(&variables, &["cp", &bucket.url("training/"), utf8(&folder), "--json"]).json();
        assert_eq!((&done["objects"], &done["failed"]), (&300.into(), &serde_json::json!([])), "{name}");
        assert_copied(&set, "training/", &folder);
    }
}

#[test]
fn long_objects_and_single_ones_are_copied_too() {
    let set = DataSet::tokens(2, 3, 70 << 20);
    let bucket = bucket_of(&set, "");
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(fuelrail(&["cp", &bucket.url(""), utf8(dir.path())]).code, 0);
    assert_copied(&set, "", dir.path());

    let small = bucket_of(&DataSet::digits(3, 5), "");
    let key = DataSet::digits(3, 5).key(0);
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(fuelrail(&["cp", &small.url(&key), utf8(dir.path())]).code, 0);
    let file = dir.path().join(key.rsplit('/').next().unwrap());
    assert_eq!(fuelrail(&["cp", utf8(&file), &small.url("one%23/")]).code, 0);
    let out = program().args(["cat", &small.url(&key), &small.url(&key)]).output().unwrap();
    assert_eq!(out.stdout, fs::read(&file).unwrap().repeat(2));
    assert_eq!(fuelrail(&["cp", &small.url("one%23/"), utf8(&dir.path().join("named"))]).code, 0);
}

/// Files by name and content in a bucket of their own.
fn served(files: &[(&str, &str)]) -> (tempfile::TempDir, Bucket) {
    let dir = tempfile::tempdir().unwrap();
    let bucket = bucket_of(&DataSet::digits(1, 5), "");
    for (key, content) in files {
        let file = dir.path().join("file");
        fs::write(&file, content).unwrap();
        assert_eq!(fuelrail(&["put", utf8(&file), &bucket.url(key)]).code, 0, "{key}");
    }
    (dir, bucket)
}

#[test]
fn keys_that_would_leave_the_folder_or_are_no_paths_are_refused_and_the_others_copied() {
    let (dir, bucket) = served(&[("t/a", "1"), ("t/../../b", "2"), ("t/c//d", "3"), ("t/e", "4"), ("t/e/f", "5")]);
    let inner = dir.path().join("x/y");
    let ended = fuelrail(&["cp", &bucket.url("t/"), utf8(&inner), "--json"]);
    assert_ne!(ended.code, 0);
    let done: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let failed: Vec<_> = done["failed"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect();
    assert_eq!(failed.len(), 3, "{done}");
    assert!(failed.contains(&"t/../../b") && failed.contains(&"t/c//d"), "{done}");
    assert!(failed.iter().any(|key| key.starts_with("t/e")), "a file cannot be a folder, too: {done}");
    assert_eq!(fs::read_to_string(inner.join("a")).unwrap(), "1");
    assert!(!dir.path().join("b").exists() && ended.err.contains("was not copied"), "{}", ended.err);
}

/// The keys that a copy could not copy, in their order.
fn failed(document: &str) -> Vec<String> {
    let done: serde_json::Value = serde_json::from_str(document).unwrap();
    done["failed"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn two_keys_never_share_a_file() {
    let bucket = bucket_of(&DataSet::digits(1, 5), "");
    for (key, bytes) in [("t/k", &b"AAAA"[..]), ("t/k/", b"BBBBBBB")] {
        fuelrail::put(&bucket.url(key), bytes).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    for more in [&["--json"][..], &["--json", "--resume"]] {
        let ended = fuelrail(&[&["cp", &bucket.url("t/"), utf8(dir.path())], more].concat());
        assert!(ended.code != 0 && failed(&ended.out) == ["t/k/"], "{}", ended.out);
        assert_eq!(fs::read_to_string(dir.path().join("k")).unwrap(), "AAAA");
    }
}

#[test]
fn a_single_object_is_named_by_its_key_in_a_folder_that_is_made() {
    let bucket = bucket_of(&DataSet::digits(1, 5), "");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("new/er");
    for key in ["t/uni-ä sp", "t/.."] {
        fuelrail::put(&bucket.url(key), b"x").unwrap();
    }
    let to = format!("{}/", folder.display());
    assert_eq!(fuelrail(&["cp", &bucket.url("t/uni-ä sp"), &to]).code, 0);
    assert_eq!(fs::read_to_string(folder.join("uni-ä sp")).unwrap(), "x");
    let ended = fuelrail(&["cp", &bucket.url("t/.."), &to]);
    assert!(ended.code == 2 && ended.err.contains("the name of a file"), "{}", ended.err);
    let ended = fuelrail(&["cp", &bucket.url("t/uni-ä sp"), utf8(&dir.path().join("absent/file"))]);
    assert!(ended.code == 1 && ended.err.contains("absent/file: No such file") && !ended.err.contains(".part"));
    assert_eq!(count(dir.path()), 1);
    // What is not there leaves no folder.
    let none = format!("{}/none/of/", dir.path().display());
    for (key, to) in [("t/absent", &none), ("absent/", &none)] {
        let ended = fuelrail(&["cp", &bucket.url(key), to]);
        assert!(ended.code != 0 && !dir.path().join("none").exists(), "{key}: {}", ended.err);
    }
}

#[test]
fn a_single_object_that_is_there_is_skipped_too() {
    let bucket = bucket_of(&DataSet::digits(1, 5), "");
    let dir = tempfile::tempdir().unwrap();
    let [file, back] = ["file", "back"].map(|name| dir.path().join(name));
    fs::write(&file, "four").unwrap();
    let skipped = |from: &str, to: &str| {
        let told = fuelrail(&["cp", from, to, "--resume", "--json"]).json();
        told["skipped"] == 1
    };
    let (up, down) = (bucket.url("up/"), bucket.url("up/file"));
    assert!(!skipped(utf8(&file), &up) && skipped(utf8(&file), &up) && skipped(utf8(&file), &down));
    assert!(!skipped(&down, utf8(&back)) && skipped(&down, utf8(&back)));
    fs::write(&file, "seven b").unwrap();
    assert!(!skipped(utf8(&file), &up) && !skipped(&down, utf8(&back)));
    assert_eq!(fs::read_to_string(&back).unwrap(), "seven b");
}

#[test]
fn what_no_uri_can_name_goes_up_the_same_way_to_every_server() {
    let bucket = bucket_of(&DataSet::digits(1, 5), "");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("up");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a\nb%0A{c}"), "x").unwrap();
    let endpoint = format!("http://{}", bucket.addr());
    let to_s3 = ["--endpoint", &endpoint, "--anonymous", "true"];
    assert_eq!(fuelrail(&["cp", utf8(&folder), &bucket.url("http")]).code, 0);
    assert_eq!(fuelrail(&[&["cp", utf8(&folder), "s3://bucket/s3"], &to_s3[..]].concat()).code, 0);
    for prefix in ["http", "s3"] {
        let listed = fuelrail::list(&bucket.url(&format!("{prefix}/")), |_| {}).unwrap();
        assert_eq!(listed.iter().map(|object| &*object.key).collect::<Vec<_>>(), [format!("{prefix}/a\nb%0A{{c}}")]);
    }
    // A bucket alone stands for a folder.
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let ended = fuelrail(&[&["cp", utf8(&file), "s3://bucket"], &to_s3[..]].concat());
    assert!(ended.code == 0 && ended.err.contains("s3://bucket/file"), "{}", ended.err);
    assert_eq!(fuelrail(&["cat", &bucket.url("file")]).done(), "x");
}

#[test]
fn what_is_no_object_in_a_folder_is_named_and_the_rest_copied() {
    let bucket = bucket_of(&DataSet::digits(1, 5), "");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("good"), "x").unwrap();
    fs::write(dir.path().join(".fuelrail-Ab0cde.part"), "left by a copy that was killed").unwrap();
    fs::write(dir.path().join(OsStr::from_bytes(b"odd\xFF")), "x").unwrap();
    symlink("nowhere", dir.path().join("link")).unwrap();
    let ended = fuelrail(&["cp", utf8(dir.path()), &bucket.url("up/"), "--json"]);
    let mut failed = failed(&ended.out);
    failed.sort();
    assert!(ended.code != 0 && failed == ["link", "odd\u{FFFD}"], "{}", ended.out);
    assert!(ended.err.contains("the link leads nowhere"), "{}", ended.err);
    assert_eq!(fuelrail(&["ls", &bucket.url("up/")]).done(), "up/good\n");
}

#[test]
fn what_is_no_regular_file_is_skipped_with_a_notice() {
    let bucket = bucket_of(&DataSet::digits(1, 5), "");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("good"), "x").unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    let ended = fuelrail(&["cp", utf8(dir.path()), &bucket.url("up/"), "--json"]);
    assert!(
        ended.err.contains("skipped 1 files that are not regular") && ended.err.contains("'pipe'"),
        "{}",
        ended.err
    );
    let done = ended.json();
    assert_eq!((&done["objects"], &done["failed"]), (&1.into(), &serde_json::json!([])));
}

#[test]
fn many_failures_end_a_copy_that_tells_what_is_left() {
    let bucket = bucket_of(&DataSet::digits(1, 5), "");
    for n in 0..100 {
        fuelrail::put(&bucket.url(&format!("t//{n}")), b"x").unwrap();
    }
    fuelrail::put(&bucket.url("t/good"), b"x").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ended = fuelrail(&["cp", &bucket.url("t/"), utf8(dir.path())]);
    assert!(ended.code != 0 && ended.err.contains("stopped after 100 failures; objects not tried: 1"), "{}", ended.err);
}

#[test]
fn a_pipe_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for command in ["cp", "put"] {
        let ended = fuelrail(&[command, utf8(&pipe), "http://127.0.0.1:1/bucket/k"]);
        assert!(ended.code == 2 && ended.err.contains("not a regular file"), "{command}: {}", ended.err);
    }
}

#[test]
fn a_missing_key_hints_at_the_objects_under_it() {
    let (dir, bucket) = served(&[("up/a", "1")]);
    let ended = fuelrail(&["cp", &bucket.url("up"), utf8(&dir.path().join("d"))]);
    assert!(ended.code == 1 && ended.err.contains("there are objects under 'up/': add the slash"), "{}", ended.err);
    for command in ["get", "cat"] {
        let ended = fuelrail(&[command, &bucket.url("down")]);
        assert!(ended.code == 1 && !ended.err.contains("--manifest"), "{}", ended.err);
    }
}

#[test]
fn a_killed_copy_leaves_whole_files_and_goes_on() {
    let set = DataSet::tokens(4_000, 3, 5_000);
    // Slow until the copy is killed.
    let bucket = bucket_of(&set, "latency=fixed:300ms");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("tree");
    let mut copy = program().args(["cp", &bucket.url(""), utf8(&folder)]).stderr(Stdio::null()).spawn().unwrap();
    while !folder.exists() || count(&folder) < 3 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert_eq!(copy.try_wait().unwrap(), None, "killed too late: it should not be done before");
    }
    copy.kill().unwrap();
    copy.wait().unwrap();
    bucket.set_script("".parse().unwrap()).unwrap();
    let whole = |name: &str| !name.ends_with(".part");
    for item in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
        let name = item.file_name().into_string().unwrap();
        if whole(&name) {
            set.verify(&name, &fs::read(item.path()).unwrap()).unwrap();
        } else {
            fs::remove_file(item.path()).unwrap();
        }
    }
    let done = fuelrail(&["cp", &bucket.url(""), utf8(&folder), "--resume", "--json"]).json();
    assert!(done["skipped"].as_u64().unwrap() >= 1, "{done}");
    assert_copied(&set, "", &folder);
}

#[test]
fn ends_that_cannot_be_copied_are_refused() {
    let refused = |args: &[&str]| {
        let ended = fuelrail(args);
        assert_eq!(ended.code, 2, "{}", ended.err);
        ended.err
    };
    assert!(refused(&["cp", "a", "b"]).contains("neither end is a URI"));
    assert!(refused(&["cp", "s3://a/b", "s3://c/d"]).contains("both ends are URIs"));
    assert!(refused(&["cp", "/tmp", "s3://a/{b,c}/"]).contains("several prefixes"));
}

#[test]
fn completions_name_every_command() {
    let script = fuelrail(&["completions", "bash"]).done();
    assert!(["bench", "cp", "cat", "completions"].iter().all(|name| script.contains(name)), "{script}");
}
