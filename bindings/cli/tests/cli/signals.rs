//! What Ctrl-C and SIGTERM end, whatever a command waits for, and what stays behind: nothing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fuelrail_bucket::{Bucket, DataSet};
use tempfile::TempDir;

use super::{Ended, bucket_of, program, utf8};

/// A command under way.
struct Running(Option<Child>);

impl Running {
    fn start(args: &[&str]) -> Running {
        let child = program().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Running(Some(child.unwrap()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is there until it has ended")
    }

    fn is_over(&mut self) -> bool {
        self.child().try_wait().unwrap().is_some()
    }

    /// Waits while it runs.
    fn until(mut self, is_so: impl Fn() -> bool) -> Running {
        while !is_so() {
            std::thread::sleep(Duration::from_millis(1));
            assert!(!self.is_over(), "it should not end before");
        }
        self
    }

    fn send(&mut self, signal: &str) {
        let id = self.child().id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success());
    }

    /// How it ends by a signal: a while before a server that does not answer would be given up, after half a minute.
    fn ended(mut self, signal: &str) -> Ended {
        self.send(signal);
        let begun = Instant::now();
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(1));
            assert!(begun.elapsed() < Duration::from_secs(20), "the signal does not end it");
        }
        self.outcome()
    }

    fn outcome(mut self) -> Ended {
        Ended::new(self.0.take().expect("it is there").wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // For a test that fails half-way.
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Files below a folder, but not folders.
fn files(folder: &Path) -> Vec<String> {
    let items = fs::read_dir(folder).unwrap().map(|item| item.unwrap().path());
    items.flat_map(|path| if path.is_dir() { files(&path) } else { vec![utf8(&path).to_owned()] }).collect()
}

#[test]
fn a_server_that_does_not_answer_holds_no_command() {
    let set = DataSet::digits(5, 1);
    let bucket = bucket_of(&set, "latency=fixed:60s");
    let [up, down] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let file = up.path().join("file");
    fs::write(&file, "x").unwrap();
    let below = |name: &str| utf8(down.path()).to_owned() + name;
    let (one, all) = (bucket.url(&set.key(0)), bucket.url("training/"));
    for (signal, code, args) in [
        ("INT", 130, &["cp", &all, &below("/tree")][..]),
        ("TERM", 143, &["pack", &all, &below("/shards"), "--format", "webdataset"]),
        ("INT", 130, &["get", &one, "-o", &below("/one")]),
        ("TERM", 143, &["cp", &one, &below("/")]),
        ("INT", 130, &["put", utf8(&file), &bucket.url("k")]),
        ("TERM", 143, &["cp", utf8(up.path()), &bucket.url("up/")]),
    ] {
        bucket.reset_counters();
        let ended = Running::start(args).until(|| bucket.counters().requests() > 0).ended(signal);
        assert!(ended.code == code && ended.err.contains("interrupted"), "{args:?}: {} {}", ended.code, ended.err);
        assert_eq!(files(down.path()), Vec::<String>::new(), "{args:?}");
    }
}

#[test]
fn a_transfer_that_stalls_is_ended_and_leaves_no_part_of_a_file() {
    let set = DataSet::tokens(3, 4, 300_000);
    let bucket = bucket_of(&set, "stall=1@100000,per_key_max=999");
    let dir = tempfile::tempdir().unwrap();
    let get = Running::start(&["get", &bucket.url(&set.key(1)), "-o", utf8(&dir.path().join("one"))]);
    let is_begun = || files(dir.path()).iter().any(|file| fs::metadata(file).is_ok_and(|part| part.len() > 0));
    assert_eq!(get.until(is_begun).ended("INT").code, 130);
    assert_eq!(files(dir.path()), Vec::<String>::new());

    bucket.reset_counters();
    let copy = Running::start(&["cp", &bucket.url(""), utf8(dir.path())]);
    let ended = copy.until(|| bucket.counters().get_requests > 0).ended("INT");
    assert!(ended.code == 130 && ended.err.contains("interrupted"), "{} {}", ended.code, ended.err);
    assert_eq!(files(dir.path()), Vec::<String>::new());
}

/// Parts are refused for longer than any test lasts.
const REFUSED: &str = "slowdown=1.0,retry_after=60,per_key_max=99,only=*?partNumber=*";

/// A bucket that refuses parts, and a folder with a file that is put in parts.
fn refused_parts() -> (Bucket, TempDir, PathBuf) {
    let (bucket, dir) = (bucket_of(&DataSet::digits(1, 1), REFUSED), tempfile::tempdir().unwrap());
    let file = dir.path().join("long");
    File::create(&file).unwrap().set_len(65 << 20).unwrap();
    (bucket, dir, file)
}

#[test]
fn an_upload_in_parts_is_aborted() {
    let (bucket, dir, file) = refused_parts();
    for (count, args) in
        [(1, ["put", utf8(&file), &bucket.url("k")]), (2, ["cp", utf8(dir.path()), &bucket.url("up/")])]
    {
        bucket.reset_counters();
        let ended = Running::start(&args).until(|| bucket.counters().part_requests > 0).ended("INT");
        assert_eq!(ended.code, 130, "{count}: {}", ended.err);
        assert_eq!((bucket.counters().uploads_open, bucket.counters().abort_requests), (0, 1), "{count}");
    }
}

#[test]
fn the_second_signal_ends_at_once() {
    let (bucket, _dir, file) = refused_parts();
    let put = Running::start(&["put", utf8(&file), &bucket.url("k")]);
    let mut put = put.until(|| bucket.counters().part_requests > 0);
    // Now the server takes longer to abort the upload than it is given.
    bucket.set_script("latency=fixed:60s".parse().unwrap()).unwrap();
    while !put.is_over() {
        put.send("INT");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = put.outcome();
    assert_eq!((ended.code, ended.err.as_str()), (130, ""), "it has not come to say anything");
}
