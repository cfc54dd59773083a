//! Copies a data set to the first GPU, again and again, and says how fast that went: one line of JSON a round, each round with a loader and a
//! feed of its own.
//!
//! ```console
//! $ fuelrail serve volumes --scale 0.05 --count 48 --port 9000 &
//! $ cargo run --release --package fuelrail-cuda --example feed_rate -- http://127.0.0.1:9000/bucket/ 8 10 1
//! ```

#![forbid(unsafe_code)]

use fuelrail::{Error, Kind, Loader, Result};
use fuelrail_cuda::{Feed, FeedConfig, RawStream};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// URI, samples of a batch, seconds of a round, rounds.
fn arguments() -> Option<(String, u32, f64, u32)> {
    let mut words = std::env::args().skip(1);
    let mut next = || words.next();
    Some((next()?, next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?))
}

fn main() -> ExitCode {
    let Some((uri, batch, seconds, rounds)) = arguments() else {
        eprintln!("error: usage: feed_rate URI BATCH_SIZE SECONDS ROUNDS");
        return ExitCode::from(Kind::Usage.exit_code());
    };
    let lasting = Duration::from_secs_f64(seconds);
    match (0..rounds).try_for_each(|_| round(&uri, batch, lasting)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:?}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn round(uri: &str, batch: u32, lasting: Duration) -> Result<()> {
    let begun = Instant::now();
    let builder = Loader::builder(uri).batch_size(batch).epochs(1_000_000).memory_limit("1GB".parse()?);
    let mut feed = Feed::start(builder.build()?, FeedConfig::default())?;
    let opened = begun.elapsed();
    while begun.elapsed() < lasting.max(opened * 2) {
        // Nothing is computed: a batch is done with as soon as it is there.
        let Some(batch) = feed.next(RawStream::LEGACY).transpose()? else { break };
        drop(batch);
    }
    let stats = feed.stats();
    let closing = Instant::now();
    if feed.close().is_none() {
        return Err(Error::new(Kind::Environment, "the feed did not end: copies were still on their way"));
    }
    let written = writeln!(
        std::io::stdout(),
        "{{\"batches\": {}, \"bytes\": {}, \"copy_gbps\": {:.3}, \"copy_s_max\": {:.6}, \"data_wait_s\": {:.3}, \"landed\": {:.3}, \
         \"open_s\": {:.3}, \"close_s\": {:.3}, \"seconds\": {:.3}, \"rss_bytes\": {}}}",
        stats.batches,
        stats.copied_bytes,
        stats.copied_bytes as f64 / stats.copy_s.max(1e-9) / 1e9,
        stats.copy_s_max,
        stats.data_wait_s,
        stats.landed,
        opened.as_secs_f64(),
        closing.elapsed().as_secs_f64(),
        begun.elapsed().as_secs_f64(),
        resident_bytes(),
    );
    written.map_err(|e| Error::from_io(Kind::File, "writing to the standard output", e))
}

/// Memory of this process that is resident.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}
