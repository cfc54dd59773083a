//! What a heavy tail costs, and what hedging gives back: the question behind `cargo x bench tail`.
//!
//! Three lives in turn, each with a bucket and a loader of its own: a bucket without a tail; one where 1 % of answers take 50 times as
//! long and 0.1 % never end, not hedged; the same, hedged. A consumer takes a step of its own after every batch. Measured: the time
//! of an epoch, the time inside `next_batch`, and the requests the bucket counted beyond those that were needed.
//! Owns the order of lives and the figures over rounds. The bucket runs in this process: the figures are times, not costs.

use std::time::{Duration, Instant};

use fuelrail::{Error, Kind, Loader, Result, Stats};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Fault, FaultKind, Latency, Script, Source};
use serde::Serialize;

use crate::embedded;
use crate::harness::{Spread, Stop};
use fuelrail_cli::machine::Machine;

/// Of a thousand answers of a bucket with a tail, so many take [`SLOWER`] times as long …
const SLOW: f64 = 0.01;
/// … and so many never end.
const STUCK: f64 = 0.001;
const SLOWER: u64 = 50;
/// Seed of the objects.
const SET: u64 = 1;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Tail {
    /// Objects, and their length.
    pub objects: u64,
    /// Bytes of each.
    pub object_bytes: u64,
    /// Samples per batch.
    pub batch_size: u32,
    /// Epochs of each life.
    pub epochs: u64,
    /// What an answer takes at least; half as much again at most.
    pub latency: Duration,
    /// What the consumer takes for a batch.
    pub step: Duration,
    /// Most requests sent twice in the third life, per cent.
    pub hedge_percent: u32,
    /// Silence after which a connection is given up.
    pub stall_after: Duration,
    /// Rounds measured.
    pub rounds: u32,
    /// Who may interrupt it.
    pub stop: Stop,
}

impl Default for Tail {
    fn default() -> Tail {
        Tail {
            objects: 10_000,
            object_bytes: 100_000,
            batch_size: 64,
            epochs: 2,
            latency: Duration::from_millis(20),
            step: Duration::from_millis(60),
            hedge_percent: 2,
            stall_after: Duration::from_secs(10),
            rounds: 3,
            stop: Stop::default(),
        }
    }
}

/// The three lives of a round, in turn.
pub const TAIL_LIVES: [&str; 3] = ["no tail", "tail", "tail, hedged"];

/// One life.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TailLife {
    /// Which: one of [`TAIL_LIVES`].
    pub life: String,
    /// The round, from 1.
    pub round: u32,
    /// Time of an epoch, s.
    pub epoch_s: f64,
    /// Time inside `next_batch`: the median, µs.
    pub wait_us_p50: u64,
    /// … 99 of 100 are shorter.
    pub wait_us_p99: u64,
    /// … 999 of 1000.
    pub wait_us_p999: u64,
    /// … the longest.
    pub wait_us_max: u64,
    /// Requests the bucket counted.
    pub requests: u64,
    /// … beyond one for every sample, per cent of these.
    pub extra_percent: f64,
    /// Requests tried again because they failed.
    pub retries: u64,
    /// Requests sent twice.
    pub hedges: u64,
    /// … that won.
    pub hedges_won: u64,
    /// Payload that came twice, per cent.
    pub wasted_percent: f64,
}

/// A figure of one kind of life over all rounds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TailRow {
    /// Which: one of [`TAIL_LIVES`].
    pub life: String,
    /// Time of an epoch, s.
    pub epoch_s: Spread,
    /// … over that without a tail in the same round.
    pub epoch_ratio: Spread,
    /// 999 of 1000 batches were waited for no longer, ms.
    pub wait_ms_p999: Spread,
    /// Requests beyond those needed, per cent.
    pub extra_percent: Spread,
}

/// The whole answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TailReport {
    /// Version of this structure.
    pub schema: u32,
    /// One of each kind of life.
    pub rows: Vec<TailRow>,
    /// Every life, in order.
    pub lives: Vec<TailLife>,
    /// Objects.
    pub objects: u64,
    /// Bytes of each.
    pub object_bytes: u64,
    /// Samples per batch.
    pub batch_size: u32,
    /// Epochs of each life.
    pub epochs: u64,
    /// What an answer takes at least, ms; half as much again at most.
    pub latency_ms: f64,
    /// What the consumer takes for a batch, ms.
    pub step_ms: f64,
    /// Most requests sent twice, per cent.
    pub hedge_percent: u32,
    /// The whole question, s.
    pub wall_s: f64,
    /// Where it was measured.
    pub machine: Machine,
}

/// Asks the question. `watch` hears of every life that has ended.
///
/// # Errors
/// `Usage` for nothing to measure, `Environment` when there can be no bucket, `Cancelled` when told to stop, and what a loader reports.
pub fn tail(tail: &Tail, watch: &mut dyn FnMut(&TailLife)) -> Result<TailReport> {
    if tail.rounds == 0 || tail.objects == 0 || tail.epochs == 0 || tail.object_bytes == 0 || tail.latency.is_zero() {
        let cause = "there is nothing to measure";
        return Err(Error::new(Kind::Usage, cause).cure("give objects, bytes, epochs, rounds and a latency above zero"));
    }
    let begun = Instant::now();
    let mut lives = Vec::new();
    for round in 1..=tail.rounds {
        for (kind, name) in TAIL_LIVES.into_iter().enumerate() {
            tail.stop.check()?;
            let life = live(tail, name, (kind > 0, kind == 2), round)?;
            watch(&life);
            lives.push(life);
        }
    }
    Ok(TailReport {
        schema: 1,
        rows: TAIL_LIVES.iter().filter_map(|name| row(&lives, name)).collect(),
        lives,
        objects: tail.objects,
        object_bytes: tail.object_bytes,
        batch_size: tail.batch_size,
        epochs: tail.epochs,
        latency_ms: tail.latency.as_secs_f64() * 1e3,
        step_ms: tail.step.as_secs_f64() * 1e3,
        hedge_percent: tail.hedge_percent,
        wall_s: begun.elapsed().as_secs_f64(),
        machine: Machine::here(),
    })
}

fn live(tail: &Tail, name: &str, (heavy, hedged): (bool, bool), round: u32) -> Result<TailLife> {
    let set = DataSet::tokens(tail.objects, SET, tail.object_bytes);
    let bucket = bucket(tail, &set, heavy, round)?;
    let mut loader = Loader::builder(&bucket.url(""))
        .batch_size(tail.batch_size)
        .epochs(tail.epochs)
        .seed(u64::from(round))
        .shards(1)
        .memory_limit("512MiB".parse()?)
        .stall_after_ms(tail.stall_after.as_millis() as u64)
        .hedge_percent(if hedged { tail.hedge_percent } else { 0 })
        .build()?;
    let listed = bucket.counters().get_requests;
    let begun = Instant::now();
    let mut samples = 0;
    while let Some(batch) = loader.next_batch() {
        samples += batch?.len() as u64;
        std::thread::sleep(tail.step);
        tail.stop.check()?;
    }
    let elapsed = begun.elapsed();
    let needed = tail.objects * tail.epochs;
    if samples != needed {
        return Err(Error::new(Kind::Mismatch, format!("{samples} samples came where {needed} were asked for")));
    }
    let (stats, requests): (Stats, u64) = (loader.stats(), bucket.counters().get_requests - listed);
    Ok(TailLife {
        life: name.to_owned(),
        round,
        epoch_s: elapsed.as_secs_f64() / tail.epochs as f64,
        wait_us_p50: stats.batch_wait_us.p50,
        wait_us_p99: stats.batch_wait_us.p99,
        wait_us_p999: stats.batch_wait_us.p999,
        wait_us_max: stats.batch_wait_us.max,
        requests,
        extra_percent: requests.saturating_sub(needed) as f64 * 1e2 / needed as f64,
        retries: stats.retries,
        hedges: stats.hedges,
        hedges_won: stats.hedges_won,
        wasted_percent: stats.wasted_bytes as f64 * 1e2 / stats.bytes.max(1) as f64,
    })
}

fn bucket(tail: &Tail, set: &DataSet, heavy: bool, round: u32) -> Result<Bucket> {
    let min_us = tail.latency.as_micros() as u64;
    let latency = Latency::Uniform { min_us, max_us: min_us * 3 / 2 };
    let slow = Fault::new(FaultKind::Stall, SLOW).at(0).for_ms((SLOWER * min_us).div_ceil(1000));
    let stuck = Fault::new(FaultKind::Stall, STUCK).at(0);
    let script = Script {
        seed: u64::from(round),
        latency,
        faults: if heavy { vec![slow, stuck] } else { Vec::new() },
        faults_per_key_max: u32::MAX,
        ..Script::default()
    };
    let config = BucketConfig { source: Source::Generated(set.clone()), script, ..BucketConfig::default() };
    embedded::start(config)
}

fn row(lives: &[TailLife], name: &str) -> Option<TailRow> {
    let of = |name: &str, figure: fn(&TailLife) -> f64| -> Vec<f64> {
        lives.iter().filter(|life| life.life == name).map(figure).collect()
    };
    let epochs = of(name, |life| life.epoch_s);
    Some(TailRow {
        life: name.to_owned(),
        epoch_ratio: Spread::of_ratios(&epochs, &of(TAIL_LIVES[0], |life| life.epoch_s))?,
        epoch_s: Spread::of(epochs)?,
        wait_ms_p999: Spread::of(of(name, |life| life.wait_us_p999 as f64 / 1e3))?,
        extra_percent: Spread::of(of(name, |life| life.extra_percent))?,
    })
}
