//! Every command end to end: the real program, against an embedded bucket on loopback.
mod bench;
mod cache;
mod cp;
mod errors;
mod inspect;
mod objects;
mod pack;
mod plan;
mod program;
mod records;
mod refusals;
mod seccomp;
mod serve;
mod share;
mod signals;
mod tune;

use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use program::{Ended, cleared, fuelrail, fuelrail_with, utf8};
use std::path::Path;
use std::process::Command;
use xxhash_rust::xxh3::Xxh3;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fuelrail");

/// Settings that keep a loader small beside other tests: one shard, not bound to a core, little memory.
const SMALL: [&str; 6] = ["--shards", "1", "--pin", "false", "--memory-limit", "64MiB"];

/// The program with nothing of this process's settings.
fn program() -> Command {
    cleared(Command::new(PROGRAM))
}

/// `fuelrail bench read URI` with small settings and these.
fn bench_read(uri: &str, args: &[&str]) -> Ended {
    fuelrail(&[&["bench", "read", uri], &SMALL[..], args].concat())
}

/// A file of settings for tests that count requests: on a busy machine a late one would be sent twice.
fn unhedged(dir: &Path) -> String {
    let config = dir.join("unhedged.toml");
    std::fs::write(&config, "hedge_percent = 0").unwrap();
    utf8(&config).to_owned()
}

fn bucket_of(set: &DataSet, script: &str) -> Bucket {
    let config = BucketConfig {
        source: Source::Generated(set.clone()),
        script: script.parse().unwrap(),
        ..BucketConfig::default()
    };
    Bucket::start(config).unwrap()
}

/// XXH3-128 over all objects of the set in key order.
fn key_order_hash(set: &DataSet) -> String {
    let mut hash = Xxh3::new();
    (0..set.len()).for_each(|index| hash.update(&set.content(index)));
    format!("{:032x}", hash.digest128())
}
