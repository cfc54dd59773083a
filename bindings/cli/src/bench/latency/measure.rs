//! The question behind `fuelrail bench latency`: how long a bucket takes to answer, and how long a trainer waits for a sample.
//!
//! Two things can be timed. *GETs*: ranges of a given size over plain keep-alive connections, the bucket's own latency.
//! *Samples*: batches of one sample through the loader, asked for at given moments, the trainer's wait; look-ahead is part of
//! it, which is the point of a loader.
//!
//! Owns the runs. The rule from when on a latency counts is in `drive.rs`.

use std::time::{Duration, Instant};

use fuelrail::{ByteSize, Config, Error, Kind, Listed, LoaderBuilder, Result};

use super::drive::{Clock, Measured, Queue};
use super::get::{Aim, Caller};
use super::histogram::{Latencies, LatencyResult};
use crate::stop::Stop;

pub use super::drive::Load;

/// What is timed.
#[derive(Clone, Debug)]
pub enum Timed {
    /// GETs of the first so many bytes of objects; of whole objects without a size.
    Gets {
        /// Where the keys begin.
        uri: String,
        /// Bytes of a GET.
        bytes: Option<u64>,
        /// Connections, each with one request under way at most.
        connections: usize,
    },
    /// Batches of one sample from a loader with this configuration; its batch size and epochs are set here.
    Samples(Box<Config>),
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What is timed.
    pub timed: Timed,
    /// How requests come.
    pub load: Load,
    /// Requests measured.
    pub requests: u64,
    /// Requests before those, sent in a closed loop.
    pub warm_up: u64,
    /// Seed of random arrivals.
    pub seed: u64,
    /// Who may interrupt it.
    pub stop: Stop,
}

/// Most connections.
const CONNECTIONS_MAX: usize = 1024;

/// Latencies of a run: its summary, and the histograms for `.hgrm` files (response, then service).
///
/// # Errors
/// `Usage` for settings that make no sense, the error of the first request that fails, `Cancelled` when asked to stop.
pub fn run(run: &Run, listing: &[Listed]) -> Result<(LatencyResult, [Latencies; 2])> {
    let (name, how, all, elapsed) = match &run.timed {
        Timed::Gets { uri, bytes, connections } => {
            let name =
                bytes.map_or_else(|| "GET of whole objects".into(), |bytes| format!("GET of {}", ByteSize(bytes)));
            let (all, elapsed) = gets(run, &Aim::new(uri, listing, *bytes)?, *connections)?;
            (name, format!("{connections} connections"), all, elapsed)
        }
        Timed::Samples(config) => {
            let (all, elapsed) = samples(run, config, listing)?;
            ("sample from the loader".to_owned(), "one consumer".to_owned(), all, elapsed)
        }
    };
    let load = match run.load {
        Load::Closed => "closed loop".to_owned(),
        Load::Constant(rate) => format!("open loop, {rate}/s evenly"),
        Load::Poisson(rate) => format!("open loop, {rate}/s at random"),
    };
    let result = LatencyResult {
        name,
        load: format!("{load}, {how}"),
        intended_per_s: run.load.intended_per_s(),
        achieved_per_s: run.requests as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE),
        warm_up: run.warm_up,
        response: all.response.summary(),
        service: all.service.summary(),
    };
    Ok((result, [all.response, all.service]))
}

fn gets(run: &Run, aim: &Aim, connections: usize) -> Result<(Measured, Duration)> {
    if !(1..=CONNECTIONS_MAX).contains(&connections) {
        return Err(Error::new(Kind::Usage, format!("connections = {connections} is outside 1 to {CONNECTIONS_MAX}")));
    }
    let mut callers = Vec::new();
    for _ in 0..connections {
        callers.push(Caller::dial(aim)?);
    }
    if run.warm_up > 0 {
        together(&mut callers, &Queue::new(Load::Closed, run.warm_up, run.seed)?, &run.stop)?;
    }
    let measured = together(&mut callers, &Queue::new(run.load, run.requests, run.seed)?, &run.stop)?;
    let ended = measured.ended;
    Ok((measured, ended))
}

/// All connections at work on one queue, each on a thread of its own.
fn together(callers: &mut [Caller<'_>], queue: &Queue, stop: &Stop) -> Result<Measured> {
    let clock = Wall { start: Instant::now() };
    let failed = Stop::default();
    let go_on = || stop.check().and_then(|()| failed.check());
    let all: Vec<Result<Measured>> = std::thread::scope(|scope| {
        let work = |caller| {
            let (failed, clock, go_on) = (&failed, &clock, &go_on);
            move || work_of(caller, queue, clock, go_on).inspect_err(|_| failed.ask())
        };
        let threads: Vec<_> = callers.iter_mut().map(|caller| scope.spawn(work(caller))).collect();
        let panicked = || Error::new(Kind::Environment, "a load thread panicked: a bug of the harness");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    let mut sum = Measured::default();
    let mut cancelled = None;
    for measured in all {
        match measured {
            Ok(measured) => {
                sum.response.merge(&measured.response);
                sum.service.merge(&measured.service);
                sum.ended = sum.ended.max(measured.ended);
            }
            // The one that failed tells why; the others only stopped for it.
            Err(error) if error.kind() == Kind::Cancelled => cancelled = Some(error),
            Err(error) => return Err(error),
        }
    }
    cancelled.map_or(Ok(sum), Err)
}

fn work_of(caller: &mut Caller<'_>, queue: &Queue, clock: &Wall, go_on: impl Fn() -> Result<()>) -> Result<Measured> {
    queue.work(clock, |number| caller.ask(number), go_on)
}

fn samples(run: &Run, config: &Config, listing: &[Listed]) -> Result<(Measured, Duration)> {
    let total = run.warm_up + run.requests;
    let epochs = total.div_ceil((listing.len() as u64).max(1)).max(1);
    let config = Config { batch_size: 1, epochs, ..config.clone() };
    let mut loader = LoaderBuilder::new(config).listing(listing.to_vec()).build()?;
    let mut ask = |_| match loader.next_batch() {
        Some(batch) => batch.map(drop),
        None => Err(Error::new(Kind::Usage, "the set has no samples")),
    };
    let go_on = || run.stop.check();
    if run.warm_up > 0 {
        let clock = Wall { start: Instant::now() };
        Queue::new(Load::Closed, run.warm_up, run.seed)?.work(&clock, &mut ask, go_on)?;
    }
    let clock = Wall { start: Instant::now() };
    let measured = Queue::new(run.load, run.requests, run.seed)?.work(&clock, &mut ask, go_on)?;
    let ended = measured.ended;
    Ok((measured, ended))
}

/// The real clock, from a run's start.
struct Wall {
    start: Instant,
}

/// The scheduler wakes a sleeper late; the rest of a wait is spent looking at the clock.
const SPIN: Duration = Duration::from_micros(100);

impl Clock for Wall {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep_until(&self, moment: Duration) {
        let left = moment.saturating_sub(self.now());
        if left > SPIN {
            std::thread::sleep(left - SPIN);
        }
        while self.now() < moment {
            std::hint::spin_loop();
        }
    }
}
