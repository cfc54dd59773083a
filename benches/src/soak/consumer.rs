//! The consumer of a soak: takes batches from one loader after another, records each in the ledger, samples the process
//! between them and drives the bucket's faults.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use fuelrail::{Batch, ByteSize, Config, Error, Kind, Listed, Loader, LoaderBuilder, Overrides, Result, State, Taken};
use fuelrail_base::prng::Prng;

use super::Gauge;
use super::bucket::{Phases, Served, Server};
use super::ledger::{Ledger, Objects};
use super::report::{Flatness, Moment, Slope, SoakReport, Totals};
use crate::harness::tool::positive;
use crate::harness::{Stop, Transport};
use crate::line::ring;
use fuelrail_cli::machine::Machine;

/// A fault in the soak itself, which its verdict must detect.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Canary {
    /// Batches are kept when a loader is closed.
    Leases,
    /// Memory is leaked at every measurement.
    Memory,
    /// A descriptor is leaked at every measurement.
    Descriptors,
    /// One batch is never recorded.
    Lost,
    /// One object is expected to hold other bytes.
    Bytes,
}

const EXAMPLES: &str = "Examples:
  cargo x bench soak
  cargo x bench soak --minutes 5 --ring poll --json soak.json
  cargo x bench soak --minutes 10 --transport tls --seed 7 --set cache_limit_bytes=0

An embedded bucket in a process of its own serves objects of a KiB to some MiB over real sockets and misbehaves in phases of a few \
seconds drawn from the seed: answers of 500 and 503, connections reset, cut and closed, wrong lengths, stray entity tags, \
garbage, stalls, trickles, and moments in which no one accepts connections. A loader with a cache and a disk reads them without end; its consumer \
hurries, holds batches, works slowly, pauses, and now and then closes the loader and goes on from its state. Every batch is checked: order, bytes, \
exactly once.

Memory is flat when the median of the last tenth is above that of the second tenth, and the least-squares line through the second half \
grows, by no more than 2 % or 16 MiB; moments soon after an opening are left out. Its slope is judged once the 95 % interval is narrower than 8 MiB/h: \
the upper end may be 8 MiB/h at most. Exit code 1 when anything does not hold.";

/// Soak a loader: a long run at full speed under random faults; memory flat, nothing leaked, no sample lost
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Soaking {
    /// How long [default: 30]
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = |text: &str| positive(text, "min"))]
    pub minutes: Option<Duration>,
    /// How long, in seconds
    #[arg(long, value_name = "N", value_parser = |text: &str| positive(text, "s"))]
    pub seconds: Option<Duration>,
    /// Go on for so long at most, until the slope of memory is known well enough to be judged [default: no longer than asked]
    #[arg(long, value_name = "N", value_parser = |text: &str| positive(text, "min"))]
    pub max_minutes: Option<Duration>,
    /// Back-end of the ring: auto, uring, poll, tokio-uring or glommio
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ring)]
    pub ring: String,
    /// Transport between loader and bucket
    #[arg(long, value_enum, default_value = "plain")]
    pub transport: Transport,
    /// Seed of the order, the faults and the pauses of the consumer
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Share of the full data set (280 MiB)
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    pub scale: f64,
    /// Where the objects are written, to be removed at the end [default: the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
    /// A setting of the loader over the soak's, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = fuelrail_cli::bench::setting)]
    pub settings: Vec<(String, String)>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<String>,
    /// Leak or lose something on purpose: the verdict must find it
    #[arg(long, value_enum, hide = true)]
    pub canary: Option<Canary>,
    /// A bucket without faults: the verdict says that none came
    #[arg(long, hide = true)]
    pub calm: bool,
    /// Growth of memory that is allowed in any case
    #[arg(long, hide = true, value_name = "SIZE", default_value = "16MiB")]
    pub tolerance: ByteSize,
    /// This program, which is the bucket, too
    #[arg(skip)]
    pub program: PathBuf,
    #[arg(skip)]
    pub stop: Stop,
}

fn share(text: &str) -> Result<f64> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 100.0);
    share.ok_or_else(|| Error::new(Kind::Usage, format!("`{text}` is not a percentage above 0 and up to 100")))
}

impl Soaking {
    /// Least duration of the soak.
    pub fn time(&self) -> Duration {
        self.seconds.or(self.minutes).unwrap_or(Duration::from_mins(30))
    }

    /// Longest duration of the soak, while the slope of memory is not known well enough to be judged.
    fn time_max(&self) -> Duration {
        self.max_minutes.unwrap_or_default().max(self.time())
    }

    /// Over TLS the bucket never goes away: it would return with another certificate.
    pub(super) fn is_tls(&self) -> bool {
        self.transport == Transport::Tls
    }

    /// A fraction of the duration, within bounds: short soaks must run every phase, too.
    fn share(&self, of: u32, least_ms: u64, most_ms: u64) -> Duration {
        (self.time() / of).clamp(Duration::from_millis(least_ms), Duration::from_millis(most_ms))
    }

    fn reopen_every(&self) -> Duration {
        self.share(20, 400, 60_000)
    }

    pub(super) fn config(&self, server: &Server, objects: &Objects) -> Result<Config> {
        let mut given: Overrides = [
            ("uri", server.url.clone()),
            ("batch_size", "8".to_owned()),
            ("seed", self.seed.to_string()),
            // Effectively endless for a soak.
            ("epochs", u32::MAX.to_string()),
            ("memory_limit_bytes", (384u64 << 20).to_string()),
            // A quarter of the objects fits into the cache, half onto the disk.
            ("cache_limit_bytes", (64u64 << 20).to_string()),
            ("spill_dirs", objects.spilled().display().to_string()),
            ("spill_limit_bytes", (128u64 << 20).to_string()),
            ("spill_floor_bytes", "1".to_owned()),
            // Some stalls last for ever; ten seconds each would leave little time at full speed.
            ("stall_after_ms", "2000".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        given.extend(server.tls.ca_file.iter().map(|path| ("ca_file".to_owned(), path.display().to_string())));
        given.push(("ring".to_owned(), self.ring.clone()));
        given.extend(self.settings.iter().cloned());
        Config::load(None, [], &given)
    }
}

pub(super) struct Consumer<'a> {
    soaking: &'a Soaking,
    config: Config,
    listing: Vec<Listed>,
    ledger: Ledger<'a>,
    pace: Pace,
    loader: Option<Loader>,
    opened: Instant,
    begun: Instant,
    held: Vec<Batch>,
    totals: Totals,
    moments: Vec<Moment>,
    slope_known: bool,
    stalls: Arc<Mutex<Vec<String>>>,
    ring: String,
    leaked: (Vec<Batch>, Vec<Vec<u8>>, Vec<File>),
    lost: bool,
}

impl<'a> Consumer<'a> {
    pub(super) fn new(
        soaking: &'a Soaking,
        config: Config,
        listing: Vec<Listed>,
        objects: &'a Objects,
    ) -> Result<Consumer<'a>> {
        let now = Instant::now();
        Ok(Consumer {
            soaking,
            ledger: Ledger::new(&objects.all, &config)?,
            config,
            listing,
            pace: Pace::new(soaking.seed, soaking.share(40, 100, 5_000)),
            loader: None,
            opened: now,
            begun: now,
            held: Vec::new(),
            totals: Totals::default(),
            moments: Vec::new(),
            slope_known: false,
            stalls: Arc::default(),
            ring: String::new(),
            leaked: Default::default(),
            lost: false,
        })
    }

    /// Takes batches until the time is over, and longer while the slope of memory cannot be judged.
    pub(super) fn read(&mut self, server: &mut Server, watch: &mut dyn FnMut(&Moment)) -> Result<()> {
        self.open(None)?;
        let Soaking { seed, calm, .. } = *self.soaking;
        let mean = self.soaking.share(60, 150, 4_000);
        let mut phases = Phases::new(seed, mean, !calm, !self.soaking.is_tls());
        let (mut phase_at, mut look_at, mut kind) = (self.begun, self.begun, "");
        let mut reopen_at = self.begun + self.soaking.reopen_every();
        let goes_on = |elapsed: Duration, slope_known: bool| {
            elapsed < self.soaking.time() || elapsed < self.soaking.time_max() && !slope_known
        };
        while goes_on(self.begun.elapsed(), self.slope_known) {
            self.soaking.stop.check()?;
            self.take()?;
            let now = Instant::now();
            if now >= phase_at {
                let phase = phases.next_phase();
                server.play(&phase)?;
                (phase_at, kind) = (now + phase.lasts, phase.kind);
            }
            if now >= reopen_at {
                reopen_at = now + self.soaking.reopen_every().mul_f64(0.5 + self.pace.draw.unit());
                let state = self.reopened_from()?;
                self.open(Some(state))?;
            }
            if now >= look_at {
                look_at = now + self.soaking.share(150, 50, 5_000);
                let moment = self.moment(kind, server.served()?);
                watch(&moment);
                self.moments.push(moment);
                self.slope_known = self.slope().is_some_and(|slope| slope.is_known());
                self.tend_canary()?;
            }
        }
        Ok(())
    }

    /// Pairs of seconds and the chosen gauge value, at the settled moments.
    fn points(&self, of: fn(&Gauge) -> u64) -> Vec<(f64, f64)> {
        let settled = self.moments.iter().filter(|moment| moment.settled);
        settled.map(|moment| (moment.at_s, of(&moment.gauge) as f64)).collect()
    }

    fn slope(&self) -> Option<Slope> {
        Slope::of(&self.points(|gauge| gauge.rss_heap_bytes))
    }

    fn open(&mut self, state: Option<State>) -> Result<()> {
        let stalls = Arc::clone(&self.stalls);
        let builder = LoaderBuilder::new(self.config.clone()).listing(self.listing.clone());
        let mut builder = builder.on_stall(move |text| {
            stalls.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
        });
        if let Some(state) = state {
            builder = builder.resume(state);
        }
        self.loader = Some(builder.build()?);
        self.opened = Instant::now();
        self.ledger.reopened()
    }

    fn next_batch(&mut self) -> Result<Batch> {
        let loader = self.loader.as_mut().expect("one is open while batches are taken");
        loader.next_batch().ok_or_else(|| Error::new(Kind::Cancelled, "the run came to an end"))?
    }

    /// Takes a batch if one arrives soon; returns without one otherwise, as phases and measurements are due meanwhile.
    fn take(&mut self) -> Result<()> {
        const PATIENCE: Duration = Duration::from_millis(50);
        let loader = self.loader.as_mut().expect("one is open while batches are taken");
        let batch = match loader.next_batch_within(PATIENCE)? {
            Taken::Batch(batch) => batch,
            Taken::NotYet => return Ok(()),
            Taken::Over => return Err(Error::new(Kind::Cancelled, "the run came to an end")),
        };
        if self.soaking.canary == Some(Canary::Lost) && !self.lost {
            self.lost = true;
            return Ok(());
        }
        self.ledger.take(&batch);
        self.held.push(batch);
        let work = self.pace.work();
        let over = self.held.len().saturating_sub(self.pace.keeps);
        self.held.drain(..over);
        std::thread::sleep(work);
        Ok(())
    }

    /// Closes the loader in mid-run and returns the state that the next one resumes from, after a round trip through JSON.
    fn reopened_from(&mut self) -> Result<State> {
        let leaks = self.soaking.canary == Some(Canary::Leases);
        let kept = if leaks || self.pace.draw.chance(0.5) { Some(self.next_batch()?) } else { None };
        let state = self.loader.as_ref().expect("one is open while batches are taken").state().to_json();
        if let Some(batch) = kept {
            self.ledger.take(&batch);
            if leaks { &mut self.leaked.0 } else { &mut self.held }.push(batch);
        }
        self.close();
        self.totals.reopened += 1;
        State::from_json(&state)
    }

    /// Closes the loader, if one is open, and counts what it leaked. Batches that outlive it must keep their bytes.
    pub(super) fn close(&mut self) {
        let Some(loader) = self.loader.take() else { return };
        let (stats, state) = (loader.stats(), loader.state());
        self.totals.add(&stats);
        self.totals.expected = state.epoch * state.samples + state.position;
        self.ring = stats.ring;
        self.config.clone_from(loader.config());
        let remains = loader.close();
        self.totals.operations_left += remains.operations;
        self.totals.slots_left += remains.slots.saturating_sub(self.held.len() as u64);
        for batch in self.held.drain(..) {
            self.ledger.check_bytes(&batch);
        }
    }

    fn moment(&self, phase: &str, served: Served) -> Moment {
        let stats = self.loader.as_ref().map(Loader::stats).unwrap_or_default();
        // A generous bound for the time in which a loader touches its memory.
        let settles_after = (self.soaking.reopen_every() / 3).min(Duration::from_secs(10));
        Moment {
            at_s: self.begun.elapsed().as_secs_f64(),
            settled: self.opened.elapsed() >= settles_after,
            gauge: Gauge::beside(self.loader.iter().map(|loader| loader.memory().span())),
            slots: stats.slots,
            operations: stats.operations,
            leases: self.held.len() as u64,
            samples: self.ledger.samples,
            gb: self.ledger.bytes as f64 / 1e9,
            retries: self.totals.retries + stats.retries,
            reopened: self.totals.reopened,
            phase: phase.to_owned(),
            faults: served.faults,
        }
    }

    fn tend_canary(&mut self) -> Result<()> {
        /// This many measurements leak as much as the tolerance allows.
        const MOMENTS: u64 = 6;
        match self.soaking.canary {
            Some(Canary::Memory) => self.leaked.1.push(vec![1; (self.tolerance_bytes() / MOMENTS) as usize]),
            Some(Canary::Descriptors) => {
                let failed = |error| Error::new(Kind::Environment, format!("/dev/null: {error}"));
                self.leaked.2.push(File::open("/dev/null").map_err(failed)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Allowed growth of memory. In less than a minute, loaders are not open long enough to touch their whole arena: how
    /// much they touched cannot be told from a leak.
    fn tolerance_bytes(&self) -> u64 {
        let is_short = self.soaking.time() < Duration::from_secs(60);
        self.soaking.tolerance.0 + if is_short { self.config.memory.limit.map_or(0, |limit| limit.0) } else { 0 }
    }

    /// Builds the result, without criteria and the bucket's counters.
    pub(super) fn report(self, before: Gauge, after: Gauge) -> SoakReport {
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut notices = self.ledger.notices.clone();
        notices.extend(stalls.first().cloned());
        let machine = Machine::here();
        if !machine.optimised {
            notices.push("an unoptimised build: its speed means nothing".to_owned());
        }
        if self.soaking.is_tls() {
            notices.push("over TLS the bucket never goes away: it would come back with another certificate".to_owned());
        }
        SoakReport {
            schema: 1,
            question: "soak".to_owned(),
            criteria: Vec::new(),
            memory: Flatness::of(&self.points(Gauge::rss_bytes), self.tolerance_bytes()),
            slope: self.slope(),
            totals: Totals {
                samples: self.ledger.samples,
                bytes: self.ledger.bytes,
                epochs: self.ledger.cursor.epoch,
                wrong: self.ledger.wrong,
                stalls: stalls.len() as u64,
                ..self.totals
            },
            before,
            after,
            moments: self.moments,
            objects: self.ledger.objects.len() as u64,
            object_bytes: self.ledger.objects.iter().map(|object| object.size).sum(),
            seed: self.soaking.seed,
            asked_s: self.soaking.time().as_secs_f64(),
            wall_s: self.begun.elapsed().as_secs_f64(),
            notices,
            config: self.config,
            ring: self.ring,
            machine,
        }
    }
}

/// The pace of the consumer: as fast as batches come, with occasional periods of slow steps, of held batches, or a pause.
#[derive(Debug)]
struct Pace {
    draw: Prng,
    /// Mean time between such periods; one lasts a quarter of it.
    mean: Duration,
    until: Instant,
    step: Duration,
    keeps: usize,
}

impl Pace {
    fn new(seed: u64, mean: Duration) -> Pace {
        let (draw, until) = (Prng::new(seed ^ 0x3000D), Instant::now() + mean);
        Pace { draw, mean, until, step: Duration::ZERO, keeps: 0 }
    }

    /// How long the consumer works on this batch.
    fn work(&mut self) -> Duration {
        let now = Instant::now();
        if now < self.until {
            return self.step;
        }
        let hurried = self.step.is_zero() && self.keeps == 0;
        (self.step, self.keeps) = (Duration::ZERO, 0);
        if !hurried {
            self.until = now + self.mean.mul_f64(0.5 + self.draw.unit());
            return self.step;
        }
        self.until = now + self.mean / 4;
        match self.draw.below(3) {
            0 => self.keeps = 1 + self.draw.below(2) as usize,
            1 => self.step = Duration::from_millis(1 + self.draw.below(20)),
            // One pause.
            _ => return self.mean.mul_f64(0.25 * self.draw.unit()),
        }
        self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pace_comes_and_goes() {
        let mut pace = Pace::new(3, Duration::from_millis(1));
        let mut seen = [0; 4];
        while seen.contains(&0) {
            let work = pace.work();
            seen[match (work.is_zero(), pace.keeps, pace.step.is_zero()) {
                (_, 1.., _) => 0,
                (true, ..) => 1,
                (false, _, true) => 2,
                _ => 3,
            }] += 1;
            assert!(seen.iter().sum::<u32>() < 100_000, "{seen:?}");
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
