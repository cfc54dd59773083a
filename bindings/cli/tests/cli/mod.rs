//! Every command end to end: the real program, against an embedded bucket on loopback.
mod bench;
mod cache;
mod hardship;
mod inspect;
mod objects;
mod questions;
mod refusals;
mod rivals;
mod seccomp;
mod serve;
mod soak;
mod tune;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fuelrail");

/// Settings that keep a loader small beside other tests: one shard, not bound to a core, little memory.
const SMALL: [&str; 6] = ["--shards", "1", "--pin", "false", "--memory-limit", "64MiB"];

/// How the program ended and what it said.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl Ended {
    fn new(output: Output) -> Ended {
        let text = |bytes| String::from_utf8(bytes).expect("the program speaks UTF-8");
        let code = output.status.code().expect("the program ends by itself");
        Ended { code, out: text(output.stdout), err: text(output.stderr) }
    }

    /// The output, of a program that must have succeeded.
    fn done(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }

    /// The JSON document on the output of a program that must have succeeded.
    fn json(self) -> Value {
        serde_json::from_str(&self.done()).expect("one JSON document and nothing else")
    }
}

/// The program with nothing of this process's settings.
fn program() -> Command {
    cleared(Command::new(PROGRAM))
}

fn cleared(mut command: Command) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FUELRAIL_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs the program to its end, which must come within a minute: a program that hangs is a failure, not a hanging test.
fn fuelrail(args: &[&str]) -> Ended {
    let mut command = cleared(Command::new("timeout"));
    let ended = Ended::new(command.arg("60").arg(PROGRAM).args(args).output().expect("coreutils are there"));
    assert_ne!(ended.code, 124, "hangs: {args:?}\n{}", ended.err);
    ended
}

/// `fuelrail bench read URI` with small settings and these.
fn bench_read(uri: &str, args: &[&str]) -> Ended {
    fuelrail(&[&["bench", "read", uri], &SMALL[..], args].concat())
}

fn bucket_of(set: &DataSet, script: &str) -> Bucket {
    let config = BucketConfig {
        source: Source::Generated(set.clone()),
        script: script.parse().unwrap(),
        ..BucketConfig::default()
    };
    Bucket::start(config).unwrap()
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// XXH3-128 over all objects of the set in key order.
fn key_order_hash(set: &DataSet) -> String {
    let mut hash = Xxh3::new();
    (0..set.len()).for_each(|index| hash.update(&set.content(index)));
    format!("{:032x}", hash.digest128())
}
