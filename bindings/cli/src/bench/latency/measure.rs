//! The measurement behind `fuelrail bench latency`: how long a bucket takes to answer, and how long a trainer waits for a sample.
//!
//! Two things can be timed. *GETs*: of whole objects or of their first bytes, over kept connections of the engine's own client, the
//! bucket's latency. *Samples*: batches of one sample through the loader, asked for at given moments, the trainer's wait;
//! look-ahead is part of it, which is the point of a loader.
//!
//! Owns the runs. The rule from when on a latency counts is in `drive.rs`.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use fuelrail::internal::{GetConnection, Gets};
use fuelrail::{Access, ByteSize, Config, Error, Kind, Listed, LoaderBuilder, Result};

use super::drive::{Clock, Measured, Queue};
use super::histogram::{Latencies, LatencyResult};
use crate::stop::Stop;

pub use super::drive::Load;

/// What is timed.
#[derive(Clone, Debug)]
pub enum Timed {
    /// GETs of the first so many bytes of objects; of whole objects without a size.
    Gets {
        /// How the bucket is reached.
        access: Box<Access>,
        /// The bucket, with any prefix.
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
    let (name, how, all) = match &run.timed {
        Timed::Gets { access, uri, bytes, connections } => {
            let what = bytes.map_or_else(|| "whole objects".into(), |bytes| ByteSize(bytes).to_string());
            let all = gets(run, listing, (access, uri), *bytes, *connections)?;
            (format!("GET of {what}"), format!("{connections} connections"), all)
        }
        Timed::Samples(config) => {
            ("sample from the loader".to_owned(), "one consumer".to_owned(), samples(run, config, listing)?)
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
        achieved_per_s: run.requests as f64 / all.ended.as_secs_f64().max(f64::MIN_POSITIVE),
        warm_up: run.warm_up,
        response: all.response.summary(),
        service: all.service.summary(),
    };
    Ok((result, [all.response, all.service]))
}

fn gets(
    run: &Run,
    listing: &[Listed],
    (access, uri): (&Access, &str),
    bytes: Option<u64>,
    connections: usize,
) -> Result<Measured> {
    if !(1..=CONNECTIONS_MAX).contains(&connections) {
        return Err(Error::new(Kind::Usage, format!("connections = {connections} is outside 1 to {CONNECTIONS_MAX}")));
    }
    let fit: Vec<&Listed> = listing.iter().filter(|object| object.size >= bytes.unwrap_or(1).max(1)).collect();
    let Some(first) = fit.first() else {
        return Err(Error::new(Kind::Usage, "no object is that large").with_hint("give a smaller --size"));
    };
    let gets = Gets::open(access, uri, &first.key)?;
    let mut open = (0..connections).map(|_| gets.connect()).collect::<Result<Vec<_>>>()?;
    let ask = |connection: &mut GetConnection<'_>, number: u64| {
        let object = fit[(number % fit.len() as u64) as usize];
        let (came, due) = (connection.get(&object.key, bytes)?, bytes.unwrap_or(object.size));
        // Any other length is not the latency of this GET.
        let cause = || format!("the server sent {came} bytes, requested were {due}");
        let cure = "check the manifest, and that the server supports range requests";
        if came == due {
            Ok(())
        } else {
            Err(Error::new(Kind::Protocol, cause()).with_hint(cure).with_object(&object.key))
        }
    };
    phases(run, |queue| together(&mut open, queue, &run.stop, ask))
}

/// The warm-up in a closed loop, then what is measured.
fn phases(run: &Run, mut work: impl FnMut(&Queue) -> Result<Measured>) -> Result<Measured> {
    if run.warm_up > 0 {
        work(&Queue::new(Load::Closed, run.warm_up, run.seed)?)?;
    }
    work(&Queue::new(run.load, run.requests, run.seed)?)
}

/// All connections at work on one queue, each on a thread of its own.
fn together<C: Send>(
    connections: &mut [C],
    queue: &Queue,
    stop: &Stop,
    ask: impl Fn(&mut C, u64) -> Result<()> + Sync,
) -> Result<Measured> {
    let clock = Instant::now();
    let failed = Stop::default();
    let go_on = || stop.check().and_then(|()| failed.check());
    let work =
        |connection: &mut C| queue.work(&clock, |number| ask(connection, number), go_on).inspect_err(|_| failed.ask());
    let all: Vec<Result<Measured>> = std::thread::scope(|scope| {
        let threads: Vec<_> = connections.iter_mut().map(|one| scope.spawn(|| work(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
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

fn samples(run: &Run, config: &Config, listing: &[Listed]) -> Result<Measured> {
    let total = run.warm_up + run.requests;
    let epochs = total.div_ceil((listing.len() as u64).max(1)).max(1);
    let builder = LoaderBuilder::new(config.clone()).batch_size(1).epochs(epochs);
    let mut loader = builder.listing(listing.to_vec()).build()?;
    let mut ask = |_| match loader.next_batch() {
        Some(batch) => batch.map(drop),
        None => Err(Error::new(Kind::Usage, "the data set has no samples")),
    };
    phases(run, |queue| queue.work(&Instant::now(), &mut ask, || run.stop.check()))
}

/// The scheduler wakes a sleeper late; the rest of a wait is spent looking at the clock.
const SPIN: Duration = Duration::from_micros(100);

/// The real clock: a run's start.
impl Clock for Instant {
    fn now(&self) -> Duration {
        self.elapsed()
    }

    fn sleep_until(&self, moment: Duration) {
        let left = moment.saturating_sub(self.elapsed());
        if left > SPIN {
            std::thread::sleep(left - SPIN);
        }
        while self.elapsed() < moment {
            std::hint::spin_loop();
        }
    }
}
