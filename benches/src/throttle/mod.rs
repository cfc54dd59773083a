//! The question behind `cargo x bench throttle`: how soon a loader finds the rate that a bucket allows, how well it holds it, how
//! two processes share it with and without a directory in common, how soon they notice that the limit is gone, and what they ask of
//! a bucket that serves nothing at all for a minute.
//!
//! Owns the bucket, the order of runs and what is read off the books. Judges nothing: it tells what came.

mod judge;
mod reader;

pub use judge::{OutageRun, ThrottleRun};
pub use reader::read_throttled;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use fuelrail::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, Counters, DataSet, FaultKind, Script, Source};
use serde::Serialize;

use crate::embedded;
use crate::harness::Stop;
use fuelrail_cli::machine::Machine;
use judge::{Books, TICK, Tick};
use reader::Reader;

/// How long is read before an outage begins.
const BEFORE_S: u64 = 5;

/// What to ask.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// Objects in the bucket, a few hundred bytes each: more than a run reads.
    pub objects: u64,
    /// Requests a second that the bucket allows.
    pub requests_per_s: u32,
    /// Wait before every answer, µs.
    pub latency_us: u64,
    /// How long the limit holds, s.
    pub limited_s: u64,
    /// How long is read after it is lifted or the outage is over, s.
    pub lifted_s: u64,
    /// How long the bucket serves nothing, s; 0 leaves the outages out.
    pub outage_s: u64,
    /// This program, which is its own readers.
    pub program: PathBuf,
    /// Who may interrupt it.
    pub stop: Stop,
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
pub struct ThrottleReport {
    /// Version of this document.
    pub schema: u32,
    /// The machine.
    pub machine: Machine,
    /// Requests a second that the bucket allowed.
    pub requests_per_s: u32,
    /// Wait before every answer, µs.
    pub latency_us: u64,
    /// One process; two with a directory in common; two without.
    pub runs: Vec<ThrottleRun>,
    /// A bucket that refuses everything, one that fails at everything.
    pub outages: Vec<OutageRun>,
}

/// Asks the question.
///
/// # Errors
/// `Environment` when a process cannot be started or the bucket cannot listen, `Cancelled` when asked to stop.
pub fn throttle(question: &Throttle, say: &mut dyn FnMut(&str)) -> Result<ThrottleReport> {
    let (mut runs, mut outages) = (Vec::new(), Vec::new());
    for (processes, shared, name) in [(1, false, "one"), (2, true, "two, sharing"), (2, false, "two, apart")] {
        say(&format!("{name}: {} s of a limit, {} s without", question.limited_s, question.lifted_s));
        runs.push(limited(question, processes, shared)?);
    }
    for (answers, script, kind) in [
        ("503 Slow Down", "slowdown=1.0,per_key_max=1000000", FaultKind::Slowdown),
        ("500 Internal Error", "error=1.0,per_key_max=1000000", FaultKind::Error),
    ] {
        if question.outage_s > 0 {
            say(&format!("an outage of {} s: {answers}", question.outage_s));
            outages.push(outage(question, answers, script, kind)?);
        }
    }
    let (requests_per_s, latency_us) = (question.requests_per_s, question.latency_us);
    Ok(ThrottleReport { schema: 1, machine: Machine::here(), requests_per_s, latency_us, runs, outages })
}

/// A bucket, and who reads from it.
struct Stage<'q> {
    question: &'q Throttle,
    bucket: Bucket,
    readers: Vec<Reader>,
    /// Removed with it.
    _folder: tempfile::TempDir,
}

impl<'q> Stage<'q> {
    /// Starts the readers, which list the bucket and wait.
    fn new(question: &'q Throttle, processes: usize, shared: bool) -> Result<Stage<'q>> {
        let source = Source::Generated(DataSet::digits(question.objects, 0));
        let script = script(&quiet(question))?;
        let bucket = embedded::start(BucketConfig { source, script, ..BucketConfig::default() })?;
        let folder = tempfile::tempdir()
            .map_err(|error| Error::new(Kind::Environment, format!("making a directory: {error}")))?;
        let dir = shared.then(|| folder.path());
        let readers: Vec<Reader> = (0..processes)
            .map(|seed| Reader::start(&question.program, &bucket.url(""), seed, dir))
            .collect::<Result<_>>()?;
        while !readers.iter().all(Reader::is_ready) {
            question.stop.check()?;
            std::thread::sleep(TICK);
        }
        Ok(Stage { question, bucket, readers, _folder: folder })
    }

    /// Lets them read, and looks at the books at every tick. `changes` tells at which ticks the bucket changes, and to what.
    fn play(&mut self, ticks: usize, changes: &[(usize, String)], refusals: FaultKind) -> Result<Books> {
        for reader in &mut self.readers {
            reader.go()?;
        }
        let (begun, mut books) = (Instant::now(), Books::default());
        for tick in 0..=ticks {
            if let Some((_, text)) = changes.iter().find(|(at, _)| *at == tick) {
                set(&self.bucket, text)?;
            }
            self.question.stop.check()?;
            std::thread::sleep((TICK * tick as u32).saturating_sub(begun.elapsed()));
            books.ticks.push(self.look(refusals));
        }
        Ok(books)
    }

    fn look(&self, refusals: FaultKind) -> Tick {
        let counters: Counters = self.bucket.counters();
        let refused = counters.injected(refusals);
        let per_reader = self.readers.iter().map(Reader::served).collect();
        Tick { served: counters.get_requests.saturating_sub(refused), refused, per_reader }
    }
}

fn limited(question: &Throttle, processes: usize, shared: bool) -> Result<ThrottleRun> {
    let mut stage = Stage::new(question, processes, shared)?;
    let lifted = judge::ticks(question.limited_s);
    let limit = format!("{},slowdown_rps={}", quiet(question), question.requests_per_s);
    let changes = [(0, limit), (lifted, quiet(question))];
    let all = lifted + judge::ticks(question.lifted_s);
    let books = stage.play(all, &changes, FaultKind::SlowdownRate)?;
    Ok(judge::limited(&books, f64::from(question.requests_per_s), lifted, shared))
}

fn outage(question: &Throttle, answers: &str, faults: &str, kind: FaultKind) -> Result<OutageRun> {
    let mut stage = Stage::new(question, 1, false)?;
    let (down, up) = (judge::ticks(BEFORE_S), judge::ticks(BEFORE_S + question.outage_s));
    let changes = [(down, format!("{},{faults}", quiet(question))), (up, quiet(question))];
    let books = stage.play(up + judge::ticks(question.lifted_s), &changes, kind)?;
    let went_on = stage.readers.iter_mut().all(Reader::is_reading);
    Ok(judge::outage(&books, (down, up), answers, question.outage_s, went_on))
}

fn quiet(question: &Throttle) -> String {
    format!("latency=fixed:{}us", question.latency_us)
}

fn script(text: &str) -> Result<Script> {
    text.parse().map_err(|error: fuelrail_bucket::Error| Error::new(Kind::Usage, error.to_string()))
}

fn set(bucket: &Bucket, text: &str) -> Result<()> {
    bucket.set_script(script(text)?).map_err(|error| Error::new(Kind::Usage, error.to_string()))
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle {
            objects: 400_000,
            requests_per_s: 1_000,
            latency_us: 5_000,
            limited_s: 30,
            lifted_s: 8,
            outage_s: 60,
            program: PathBuf::new(),
            stop: Stop::default(),
        }
    }
}

/// Least time that a limit has to hold: the first ten seconds are for finding the rate.
pub const LIMITED_LEAST: Duration = Duration::from_secs(13);
