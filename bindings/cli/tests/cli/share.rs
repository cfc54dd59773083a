//! `share`: one read for several commands that read.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fuelrail::{Batch, Loader};
use fuelrail_bucket::DataSet;

use super::{SMALL, bench_read, bucket_of, fuelrail, program, unhedged, utf8};

/// A process that reads for others.
struct Shared {
    child: Child,
    lines: BufReader<ChildStderr>,
}

impl Shared {
    fn start(uri: &str, dir: &Path, args: &[&str]) -> Shared {
        let mut command = program();
        command.args(["share", uri, "--json", "--share-dir"]).arg(dir).args(SMALL).args(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut shared = Shared { lines: BufReader::new(child.stderr.take().unwrap()), child };
        shared.hears("serving");
        shared
    }

    /// Reads its lines up to one with this text.
    fn hears(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it ended before it said '{text}'");
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    fn end(self) -> serde_json::Value {
        let mut told = self.ends();
        assert_eq!(told.len(), 1, "one document and nothing else");
        told.remove(0)
    }

    /// The documents of all passes.
    fn ends(mut self) -> Vec<serde_json::Value> {
        let told = serde_json::Deserializer::from_reader(self.child.stdout.take().unwrap());
        let told = told.into_iter().map(Result::unwrap).collect();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        told
    }

    /// Waits until it has the memory of so many passes.
    fn has_memories(&self, passes: usize) {
        let begun = Instant::now();
        let fds = format!("/proc/{}/fd", self.child.id());
        let lent = |entry: &std::fs::DirEntry| {
            std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:fuelrail"))
        };
        while std::fs::read_dir(&fds).unwrap().filter(|entry| entry.as_ref().is_ok_and(lent)).count() != passes {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never had {passes}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // For a test that fails half-way; a program that has ended cannot be killed, and need not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn commands_that_read_in_one_order_share_a_pass() {
    let (set, dir) = (DataSet::digits(200, 3), tempfile::tempdir().unwrap());
    let bucket = bucket_of(&set, "");
    let uri = bucket.url("");
    let alone = bench_read(&uri, &["--batch-size", "8", "--json"]).json();
    bucket.reset_counters();
    let config = unhedged(dir.path());
    let shared = Shared::start(&uri, dir.path(), &["--batch-size", "8", "--jobs", "3", "--config", &config]);
    let share_dir = dir.path().to_str().unwrap();
    let args = ["--batch-size", "8", "--json", "--shared-read", "--share-dir", share_dir];
    let args = [&["bench", "read", &uri], &SMALL[..], &args].concat();
    std::thread::scope(|scope| {
        let jobs = [(); 3].map(|()| scope.spawn(|| fuelrail(&args).json()));
        for job in jobs {
            let read = job.join().unwrap();
            assert_eq!((&read["content_hash"], &read["requests"]), (&alone["content_hash"], &0.into()));
            assert_eq!(read["samples"], 200);
        }
    });
    let told = shared.end();
    assert_eq!((&told["stats"]["samples"], &told["stats"]["slots"]), (&200.into(), &0.into()), "{told}");
    assert_eq!(bucket.counters().get_requests, 200);
}

#[test]
fn a_job_of_a_stopped_process_says_so_and_goes_on_alone_and_that_process_then_frees_its_memory() {
    let (set, dir) = (DataSet::digits(1200, 3), tempfile::tempdir().unwrap());
    let bucket = bucket_of(&set, "");
    let uri = bucket.url("");
    let shared = Shared::start(&uri, dir.path(), &["--batch-size", "4"]);
    let (tell, told) = mpsc::channel();
    let job = Loader::builder(&uri).batch_size(4).shards(1).pin(false).memory_limit("64MiB".parse().unwrap());
    let job = job.share_dir(dir.path()).shared_read(true);
    let job = job.stall_after(Duration::from_secs(2)).watchdog_after(Duration::from_millis(500));
    let mut job = job.on_stall(move |text| drop(tell.send(text.to_owned()))).build().unwrap();
    let held = job.next_batch().unwrap().unwrap();
    assert!(held.is_borrowed(), "{:?}", job.notices());
    // It has sent a few of the 300 batches.
    shared.signal("-STOP");
    let mut times = [0; 1200];
    let mut count = |batch: &Batch, job: &Loader| {
        for sample in batch.samples() {
            set.verify(job.key(sample.id), sample.bytes).unwrap();
            times[sample.id.0 as usize] += 1;
        }
    };
    count(&held, &job);
    while let Some(batch) = job.next_batch() {
        count(&batch.unwrap(), &job);
    }
    assert_eq!(times, [1; 1200], "each sample once");
    assert!(job.stats().requests > 0, "it has read alone");
    let told: Vec<String> = told.try_iter().collect();
    let named = format!("process {} (socket", shared.child.id());
    let said = |text: &String| text.contains(&named) && text.contains("has not answered for");
    assert!(told.iter().any(said), "{told:?}");
    shared.signal("-CONT");
    drop((job, held));
    assert_eq!(shared.end()["stats"]["slots"], 0);
}

#[test]
fn a_job_that_comes_late_has_a_pass_of_its_own_whose_memory_and_place_are_free_after_it() {
    let (set, dir) = (DataSet::digits(1200, 3), tempfile::tempdir().unwrap());
    let bucket = bucket_of(&set, "");
    let uri = bucket.url("");
    let config = unhedged(dir.path());
    let args = ["--batch-size", "4", "--passes-max", "2", "--config", &config];
    let mut shared = Shared::start(&uri, dir.path(), &args);
    let first = Loader::builder(&uri).batch_size(4).shards(1).pin(false).memory_limit("64MiB".parse().unwrap());
    let mut first = first.share_dir(dir.path()).shared_read(true).build().unwrap();
    // More than a job may hold: the first of them has come back.
    (0..100).for_each(|_| drop(first.next_batch().unwrap().unwrap()));
    shared.has_memories(1);
    let share_dir = dir.path().to_str().unwrap();
    for _ in 0..2 {
        let late = bench_read(&uri, &["--batch-size", "4", "--json", "--shared-read", "--share-dir", share_dir]).json();
        assert_eq!((&late["samples"], &late["requests"]), (&1200.into(), &0.into()));
        shared.hears("a further pass for a job at position 0 of epoch 0");
        shared.has_memories(1);
    }
    let of_the_pass = |batch: &fuelrail::Result<Batch>| batch.as_ref().is_ok_and(|batch| batch.is_borrowed());
    assert_eq!(first.by_ref().filter(of_the_pass).count(), 200);
    drop(first);
    let told = shared.ends();
    assert_eq!(told.len(), 3, "{told:?}");
    for pass in &told {
        assert_eq!((&pass["stats"]["requests"], &pass["stats"]["slots"]), (&1200.into(), &0.into()), "{pass}");
    }
    assert_eq!(bucket.counters().get_requests, 3 * 1200);
}

#[test]
fn one_that_stays_serves_the_next_jobs_too() {
    let (set, dir) = (DataSet::digits(40, 3), tempfile::tempdir().unwrap());
    let bucket = bucket_of(&set, "");
    let uri = bucket.url("");
    let mut shared = Shared::start(&uri, dir.path(), &["--stay"]);
    let share_dir = dir.path().to_str().unwrap();
    // Each comes as soon as the one before has gone, while the data set is listed again.
    for _ in 0..3 {
        let read = bench_read(&uri, &["--json", "--shared-read", "--share-dir", share_dir]).json();
        assert_eq!((&read["samples"], &read["requests"]), (&40.into(), &0.into()));
    }
    // It has listed again already, without this one.
    shared.hears("serving");
    fuelrail::put(&bucket.url("one-more"), b"x").unwrap();
    let read = |more: &[&str]| {
        let args = [&["--json", "--shared-read", "--share-dir", share_dir], more].concat();
        let read = bench_read(&uri, &args).json();
        (read["samples"].as_u64().unwrap(), read["requests"].as_u64().unwrap())
    };
    assert_eq!(read(&[]), (41, 0), "it lists again for a job that has listed other objects");
    assert_eq!(read(&["--batch-size", "3"]), (41, 41), "one that is set otherwise reads alone");
    shared.signal("-TERM");
    assert_eq!(shared.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_relative_share_dir_is_meant_from_here() {
    let (bucket, dir) = (bucket_of(&DataSet::digits(5, 3), ""), tempfile::tempdir().unwrap());
    let uri = bucket.url("");
    let args = ["bench", "read", &uri, "--share-dir", "sh", "--listing-dir", "listings"];
    let output = program().args(args).args(SMALL).current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(dir.path().join("listings").is_dir());
}

#[test]
fn a_signal_ends_it_while_it_waits_for_the_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args(["share", "http://127.0.0.1:1/bucket/", "--share-dir", utf8(dir.path())]).args(SMALL);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("127.0.0.1:1 serves nothing")));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn another_setting_is_refused_and_ctrl_c_ends_it() {
    let (set, dir) = (DataSet::digits(40, 3), tempfile::tempdir().unwrap());
    let bucket = bucket_of(&set, "");
    let uri = bucket.url("");
    let mut shared = Shared::start(&uri, dir.path(), &["--seed", "1"]);
    let share_dir = dir.path().to_str().unwrap();
    let refused = bench_read(&uri, &["--seed", "2", "--shared-read", "--share-dir", share_dir]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("seed is 2 here, and 1 at the process that reads"), "{}", refused.err);
    shared.hears("is refused: seed");
    shared.signal("-INT");
    let told: serde_json::Value = serde_json::from_reader(shared.child.stdout.take().unwrap()).unwrap();
    assert_eq!((&told["stats"]["batches"], shared.child.wait().unwrap().code()), (&0.into(), Some(130)));
    let alone = bench_read(&uri, &["--json", "--shared-read", "--share-dir", share_dir]);
    assert!(alone.err.contains("this job reads alone"), "{}", alone.err);
}
