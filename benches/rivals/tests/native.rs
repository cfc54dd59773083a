//! The native clients against the embedded bucket: every byte arrives and lies in the arena where it belongs, refusals are
//! told in one line, and the command-line tools deliver what they say.

use crate::skip::skip_or_fail;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source, Tls};
use serde_json::Value;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_128;

/// A served data set and its manifest.
struct Stand {
    set: DataSet,
    bucket: Bucket,
    manifest: PathBuf,
    folder: TempDir,
}

impl Stand {
    fn of(set: DataSet, script: &str) -> Stand {
        Stand::with(set, BucketConfig { script: script.parse().unwrap(), ..BucketConfig::default() })
    }

    fn with(set: DataSet, config: BucketConfig) -> Stand {
        let bucket = Bucket::start(BucketConfig { source: Source::Generated(set.clone()), ..config }).unwrap();
        let folder = TempDir::new().unwrap();
        let manifest = folder.path().join("set.tsv");
        let lines: String = (0..set.len()).map(|n| format!("{}\t{}\n", set.key(n), set.size(n))).collect();
        std::fs::write(&manifest, lines).unwrap();
        Stand { set, bucket, manifest, folder }
    }

    fn bytes(&self) -> u64 {
        self.set.total_bytes()
    }

    fn hash(&self) -> String {
        let all = (0..self.set.len()).map(|n| xxh3_128(&self.set.content(n)));
        format!("{:032x}", all.fold(0u128, u128::wrapping_add))
    }

    fn start(&self, rival: &str, more: &[&str]) -> Rival {
        start(rival, &self.bucket.url(""), &self.manifest, more)
    }
}

/// A running contestant. Killed when a test leaves it.
struct Rival {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

fn start(rival: &str, uri: &str, manifest: &Path, more: &[&str]) -> Rival {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fuelrail-rival"))
        .args([rival, "--uri", uri, "--batch-size", "4", "--seed", "3", "--arena", "1048576", "--manifest"])
        .arg(manifest)
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let answers = BufReader::new(child.stdout.take().unwrap());
    Rival { child, answers }
}

impl Rival {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn go(&mut self) -> Value {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        serde_json::from_str(&self.line()).unwrap()
    }

    /// Ends it and returns how, with what it said on standard error.
    fn end(mut self) -> (bool, String) {
        drop(self.child.stdin.take());
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut said).unwrap();
        (self.child.wait().unwrap().success(), said.trim_end().to_owned())
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // Both fail when it has ended already, which is what every test hopes for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn native_clients_place_every_byte_in_every_pass() {
    let small = Stand::of(DataSet::digits(300, 5), "");
    let photos = Stand::of(DataSet::photos(20, 5), "");
    for rival in ["hyper", "object-store"] {
        for (stand, more) in [
            (&small, &["--connections", "1"][..]),
            (&small, &["--connections", "8"]),
            // Objects in several requests at once, more connections than objects, and more bytes than the arena holds.
            (&photos, &["--connections", "32", "--range", "10000"]),
        ] {
            let mut contestant = stand.start(rival, &[more, &["--hash"]].concat());
            assert_eq!(contestant.line(), "ready", "{rival} {more:?}");
            for _ in 0..2 {
                let passed = contestant.go();
                assert_eq!(passed["bytes"], stand.bytes(), "{rival} {more:?}");
                assert_eq!(passed["objects"], stand.set.len(), "{rival} {more:?}");
                assert_eq!(passed["hash"], stand.hash(), "{rival} {more:?}");
                let (first, wall) = (passed["first_batch_us"].as_f64().unwrap(), passed["wall_s"].as_f64().unwrap());
                assert!(first > 0.0 && first <= wall * 1e6, "{rival} {more:?}: {passed}");
                assert!(passed["settings"].as_str().unwrap().contains("arena of 1 MiB"), "{passed}");
            }
            assert_eq!(contestant.end(), (true, String::new()), "{rival} {more:?}");
        }
    }
}

#[test]
fn keys_follow_the_address_they_are_below() {
    let stand = Stand::of(DataSet::digits(30, 12), "");
    // The set's keys begin with `training/`: told in the address instead of the manifest, they are the same objects.
    let below: String =
        (0..30).map(|n| (stand.set.key(n), stand.set.size(n))).fold(String::new(), |lines, (key, size)| {
            format!("{lines}{}\t{size}\n", key.strip_prefix("training/").expect("digits lie there"))
        });
    std::fs::write(&stand.manifest, below).unwrap();
    for rival in ["hyper", "object-store"] {
        for prefix in ["training/", "training"] {
            let mut contestant = start(rival, &stand.bucket.url(prefix), &stand.manifest, &["--hash"]);
            assert_eq!(contestant.line(), "ready", "{rival}");
            assert_eq!(contestant.go()["hash"], stand.hash(), "{rival} {prefix}");
            assert!(contestant.end().0, "{rival}");
        }
    }
}

#[test]
fn native_clients_read_over_tls_from_whom_they_trust() {
    let config = || BucketConfig { tls: Some(Tls::SelfSigned), ..BucketConfig::default() };
    let stand = Stand::with(DataSet::digits(60, 11), config());
    let stranger = Stand::with(DataSet::digits(1, 11), config());
    let file = |stand: &Stand| {
        let path = stand.folder.path().join("authority.pem");
        std::fs::write(&path, stand.bucket.authority().unwrap()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (trusted, other) = (file(&stand), file(&stranger));
    for rival in ["hyper", "object-store"] {
        let mut contestant = stand.start(rival, &["--hash", "--ca-file", &trusted]);
        assert_eq!(contestant.line(), "ready", "{rival}");
        let passed = contestant.go();
        assert_eq!((&passed["hash"], &passed["objects"]), (&stand.hash().into(), &60.into()), "{rival}");
        assert!(contestant.end().0, "{rival}");
    }
    // object_store retries what bare hyper gives up at once, so only hyper is asked to refuse.
    let mut contestant = stand.start("hyper", &["--ca-file", &other]);
    assert_eq!(contestant.line(), "ready");
    contestant.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(contestant.line(), "");
    let (well, said) = contestant.end();
    assert!(!well && said.contains("certificate"), "{said}");
}

#[test]
fn bytes_are_counted_when_they_are_dropped() {
    let stand = Stand::of(DataSet::digits(50, 6), "");
    for rival in ["hyper", "object-store"] {
        let mut contestant = stand.start(rival, &["--placing", "drop"]);
        assert_eq!(contestant.line(), "ready");
        let passed = contestant.go();
        assert_eq!((&passed["bytes"], &passed["objects"]), (&stand.bytes().into(), &50.into()));
        assert!(passed["hash"].is_null() && passed["settings"].as_str().unwrap().contains("bytes dropped"), "{passed}");
        assert!(contestant.end().0);
    }
}

#[test]
fn a_failing_server_ends_a_pass_with_one_line() {
    let stand = Stand::of(DataSet::digits(10, 7), "error=1.0");
    let mut contestant = stand.start("hyper", &[]);
    assert_eq!(contestant.line(), "ready");
    contestant.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(contestant.line(), "");
    let (well, said) = contestant.end();
    assert!(!well && said.lines().count() == 1 && said.contains("GET /bucket/"), "{said}");
    let mut confused = stand.start("hyper", &[]);
    confused.child.stdin.as_mut().unwrap().write_all(b"stop\n").unwrap();
    assert!(confused.end().1.contains("expected `go`, got \"stop"));
}

#[test]
fn objects_that_are_not_as_long_as_listed_end_a_pass() {
    let stand = Stand::of(DataSet::tokens(1, 7, 1000), "");
    for (size, told) in [(999, "more than the 999 bytes asked for"), (1001, "1000 of 1001 bytes came")] {
        std::fs::write(&stand.manifest, format!("{}\t{size}\n", stand.set.key(0))).unwrap();
        let mut contestant = stand.start("hyper", &[]);
        assert_eq!(contestant.line(), "ready");
        contestant.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let (well, said) = contestant.end();
        assert!(!well && said.contains(told), "{said}");
    }
}

#[test]
fn wrong_arguments_are_refused_before_ready() {
    let stand = Stand::of(DataSet::digits(10, 8), "");
    let url = stand.bucket.url("");
    let absent = stand.manifest.with_file_name("absent.tsv");
    let secret = url.replacen("http:", "https:", 1);
    for (uri, manifest, more, told) in [
        ("ftp://h/b", &stand.manifest, &[][..], "write http://HOST:PORT/BUCKET/"),
        (&url, &absent, &[], "absent.tsv"),
        (&url, &stand.manifest, &["--arena", "1000"], "give a larger --arena"),
        (&url, &stand.manifest, &["--batch-size", "0"], "a batch of 0 objects"),
        (&url, &stand.manifest, &["--placing", "drop", "--hash"], "cannot be hashed"),
        (&secret, &stand.manifest, &[], "--ca-file FILE"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fuelrail-rival"));
        command.args(["hyper", "--uri", uri]).arg("--manifest").arg(manifest).args(more);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(told), "{told}: {said}");
        assert!(output.stdout.is_empty() && said.lines().count() == 1, "{told}: {said}");
    }
}

#[test]
fn curl_reads_everything_once() {
    if !installed("curl") {
        return;
    }
    let stand = Stand::of(DataSet::digits(40, 9), "");
    for connections in ["1", "8"] {
        let mut contestant = stand.start("curl", &["--connections", connections]);
        assert_eq!(contestant.line(), "ready");
        let passed = contestant.go();
        assert_eq!((&passed["bytes"], &passed["objects"]), (&stand.bytes().into(), &40.into()), "{passed}");
        assert!(passed["settings"].as_str().unwrap().contains("/dev/null"), "{passed}");
        assert!(contestant.end().0);
    }
    assert_eq!(stand.bucket.counters().requests(), 80);
}

#[test]
fn wrk_reads_for_a_while_and_counts() {
    if !installed("wrk") {
        return;
    }
    let stand = Stand::of(DataSet::digits(40, 10), "");
    let mut contestant = stand.start("wrk", &["--connections", "2", "--duration", "1"]);
    assert_eq!(contestant.line(), "ready");
    let passed = contestant.go();
    let (objects, bytes) = (passed["objects"].as_u64().unwrap(), passed["bytes"].as_u64().unwrap());
    // What is under way when the time is up was asked for and is not counted.
    let asked = stand.bucket.counters().requests();
    assert!(objects > 0 && objects <= asked && asked <= objects + 4, "{passed}, {asked} asked");
    let (low, high) = (objects / 40 * stand.bytes(), (objects / 40 + 1) * stand.bytes());
    assert!((low..=high).contains(&bytes), "{passed}");
    assert!(contestant.end().0);
}

fn installed(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").output().is_ok();
    if !there {
        skip_or_fail(tool, "it is not installed");
    }
    there
}
