//! A soak from its objects to its verdict: loader after loader over one bucket, batch after batch into the books.
//!
//! Owns the loader at hand and the batches it holds. Never prints. One thread takes batches and looks at the process between
//! them, another reads what the bucket says.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fuelrail::{Batch, Config, Error, Kind, Listed, Loader, LoaderBuilder, Overrides, Result, State, list_with};
use fuelrail_plan::run::{Cursor, RunConfig};

use super::gauge::Gauge;
use super::judge::{Criterion, Flatness, Slope};
use super::ledger::Ledger;
use super::mood::{Mood, Whim};
use super::objects::{Object, Objects};
use super::report::{Moment, SCHEMA, SoakReport, Totals};
use super::server::{Address, Seen, Server, Serving};
use crate::harness::Stop;
use fuelrail_cli::machine::Machine;

/// A fault of the soak's own making, which its verdict must find.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Canary {
    /// Batches are kept when a loader is closed.
    Leases,
    /// Memory is kept at every moment.
    Memory,
    /// A descriptor is kept at every moment.
    Descriptors,
    /// A batch is never booked.
    Lost,
    /// An object is expected to hold something else.
    Bytes,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Soaking {
    /// How long at least.
    pub time: Duration,
    /// How long at most, while the slope of memory is not known well enough to be judged.
    pub time_max: Duration,
    /// Seed of order, faults and whims.
    pub seed: u64,
    /// Share of the objects.
    pub scale: f64,
    /// Where the objects are written; the system's folder for temporary files when none is given.
    pub folder: Option<PathBuf>,
    /// Settings of the loader over the soak's.
    pub settings: Overrides,
    /// Whether over TLS. The bucket then never goes away: it would come back with another certificate.
    pub tls: bool,
    /// This program, which is the bucket, too.
    pub program: PathBuf,
    /// Whether the bucket misbehaves; without, the verdict says that no fault came.
    pub faults: bool,
    /// Growth of memory that is allowed in any case.
    pub tolerance_bytes: u64,
    /// A fault of its own.
    pub canary: Option<Canary>,
    /// Who may interrupt it.
    pub stop: Stop,
}

impl Soaking {
    /// A soak of this length with everything at its default.
    #[must_use]
    pub fn new(time: Duration, program: PathBuf) -> Soaking {
        Soaking {
            time,
            time_max: time,
            seed: 0,
            scale: 1.0,
            folder: None,
            settings: Overrides::new(),
            tls: false,
            program,
            faults: true,
            tolerance_bytes: 16 << 20,
            canary: None,
            stop: Stop::default(),
        }
    }

    /// A share of the time, within bounds: short soaks meet everything, too.
    fn share(&self, of: u32, least_ms: u64, most_ms: u64) -> Duration {
        (self.time / of).clamp(Duration::from_millis(least_ms), Duration::from_millis(most_ms))
    }

    fn look_every(&self) -> Duration {
        self.share(150, 50, 5_000)
    }

    fn reopen_every(&self) -> Duration {
        self.share(20, 400, 60_000)
    }

    /// How long a loader takes to touch its memory, generously.
    fn settles_after(&self) -> Duration {
        (self.reopen_every() / 3).min(Duration::from_secs(10))
    }

    fn config(&self, address: &Address) -> Result<Config> {
        let mut given: Overrides = [
            ("uri", address.url.clone()),
            ("batch_size", "8".to_owned()),
            ("seed", self.seed.to_string()),
            // Without end, as far as a soak can see.
            ("epochs", u32::MAX.to_string()),
            ("memory_limit_bytes", (384u64 << 20).to_string()),
            ("cache_limit_bytes", (64u64 << 20).to_string()),
            // Some stalls are for ever; ten seconds each would leave little of full speed.
            ("stall_after_ms", "2000".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        given.extend(address.ca_file.iter().map(|path| ("ca_file".to_owned(), path.display().to_string())));
        given.extend(self.settings.iter().cloned());
        Config::load(None, [], &given)
    }
}

/// Soaks. `watch` hears of every moment.
///
/// # Errors
/// `File` when the objects cannot be written, `Environment` when the bucket cannot be started, `Usage` for settings that do not
/// exist. What goes wrong after that is in the verdict.
pub fn soak(soaking: &Soaking, watch: &mut dyn FnMut(&Moment)) -> Result<SoakReport> {
    let mut objects = Objects::write(soaking.folder.as_deref(), soaking.scale, soaking.seed)?;
    if soaking.canary == Some(Canary::Bytes) {
        objects.spoil();
    }
    let serving = Serving {
        folder: objects.folder(),
        tls: soaking.tls,
        calm: !soaking.faults,
        seed: soaking.seed,
        phase_ms: soaking.share(60, 150, 4_000).as_millis() as u64,
    };
    let start =
        |calm: bool| Server::start(&soaking.program, &Serving { calm: calm || serving.calm, ..serving.clone() });
    // What a process opens once is open after a first loader, whose bucket is gone before this process is looked at.
    let (server, address) = start(true)?;
    drop(LoaderBuilder::new(soaking.config(&address)?).build()?);
    drop(server);
    let before = Gauge::here();
    let (server, address) = start(false)?;
    let config = soaking.config(&address)?;
    let listing = list_with(&address.tls(), &address.url, |_| {})?;
    objects.check(&listing)?;
    let mut reader = Reader::new(soaking, &config, &listing, objects.all())?;
    let failure = reader.read(&server, watch).err();
    reader.close();
    let served = server.stop();
    let after = settled(before);
    let mut report = reader.report(before, after, &objects);
    match served {
        Ok(served) => {
            report.totals.served_requests = served.requests;
            report.totals.absences = served.absences;
            report.totals.faults = served.faults;
        }
        Err(error) => report.notices.push(error.to_string()),
    }
    report.criteria = criteria(soaking, &report, failure.as_ref());
    Ok(report)
}

/// The process once it has come to rest: the kernel closes what a ring or a thread held a moment after it is gone.
fn settled(before: Gauge) -> Gauge {
    const PATIENCE: Duration = Duration::from_secs(5);
    let begun = Instant::now();
    loop {
        let now = Gauge::here();
        let home = now.descriptors <= before.descriptors && now.threads <= before.threads;
        if home || begun.elapsed() >= PATIENCE {
            return now;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What the watchdog said.
#[derive(Default)]
struct Silence {
    count: AtomicU64,
    first: Mutex<Option<String>>,
}

/// The consumer.
struct Reader<'a> {
    soaking: &'a Soaking,
    config: &'a Config,
    listing: &'a [Listed],
    ledger: Ledger<'a>,
    mood: Mood,
    loader: Option<Loader>,
    opened: Instant,
    begun: Instant,
    held: Vec<Batch>,
    totals: Totals,
    moments: Vec<Moment>,
    slope_known: bool,
    silence: Arc<Silence>,
    effective: Config,
    ring: String,
    /// What canaries keep.
    hoard: (Vec<Batch>, Vec<Vec<u8>>, Vec<File>),
    lost: bool,
}

impl<'a> Reader<'a> {
    fn new(
        soaking: &'a Soaking,
        config: &'a Config,
        listing: &'a [Listed],
        objects: &'a [Object],
    ) -> Result<Reader<'a>> {
        let run = RunConfig {
            samples: objects.len() as u64,
            seed: config.seed,
            order: config.order.parse()?,
            shuffle: config.shuffle,
            world: config.world,
            rank: config.rank,
            batch_size: config.batch_size,
            drop_last: config.drop_last,
            epochs: config.epochs,
            start: Cursor::default(),
        };
        let mood = Mood::new(soaking.seed, soaking.share(40, 100, 5_000), soaking.reopen_every());
        let now = Instant::now();
        Ok(Reader {
            soaking,
            config,
            listing,
            ledger: Ledger::new(objects, run)?,
            mood,
            loader: None,
            opened: now,
            begun: now,
            held: Vec::new(),
            totals: Totals::default(),
            moments: Vec::new(),
            slope_known: false,
            silence: Arc::default(),
            effective: config.clone(),
            ring: String::new(),
            hoard: Default::default(),
            lost: false,
        })
    }

    /// Takes batches until the time is over.
    fn read(&mut self, server: &Server, watch: &mut dyn FnMut(&Moment)) -> Result<()> {
        self.open(None)?;
        let mut look_at = Instant::now();
        while self.goes_on() {
            self.soaking.stop.check()?;
            self.one()?;
            if self.mood.reopens() {
                let state = self.reopened_from()?;
                self.open(Some(state))?;
            }
            if Instant::now() >= look_at {
                look_at = Instant::now() + self.soaking.look_every();
                let seen = server.seen();
                if seen.ended {
                    return Err(Error::new(Kind::Environment, "the soak's bucket has ended"));
                }
                let moment = self.moment(seen);
                watch(&moment);
                self.moments.push(moment);
                self.slope_known = self.slope().is_some_and(|slope| slope.is_known());
                self.tend_canary()?;
            }
        }
        Ok(())
    }

    /// Until the time is over, and longer while memory's slope cannot be judged.
    fn goes_on(&self) -> bool {
        let elapsed = self.begun.elapsed();
        elapsed < self.soaking.time || elapsed < self.soaking.time_max && !self.slope_known
    }

    /// Seconds and what is read off the gauge, at the moments that count.
    fn points(&self, of: fn(&Gauge) -> u64) -> Vec<(f64, f64)> {
        let settled = self.moments.iter().filter(|moment| moment.settled);
        settled.map(|moment| (moment.at_s, of(&moment.gauge) as f64)).collect()
    }

    fn slope(&self) -> Option<Slope> {
        Slope::of(&self.points(|gauge| gauge.rss_heap_bytes))
    }

    fn open(&mut self, state: Option<State>) -> Result<()> {
        let silence = Arc::clone(&self.silence);
        let builder = LoaderBuilder::new(self.config.clone()).listing(self.listing.to_vec()).on_stall(move |text| {
            silence.count.fetch_add(1, Ordering::Relaxed);
            silence.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| text.to_owned());
        });
        let builder = match state {
            Some(state) => builder.resume(state),
            None => builder,
        };
        let loader = builder.build()?;
        self.effective = loader.config().clone();
        self.loader = Some(loader);
        self.opened = Instant::now();
        self.ledger.reopened()
    }

    /// Takes one batch as the mood is.
    fn one(&mut self) -> Result<()> {
        let loader = self.loader.as_mut().expect("one is open while batches are taken");
        let batch = loader.next_batch().ok_or_else(|| Error::new(Kind::Cancelled, "the run came to an end"))??;
        if self.soaking.canary == Some(Canary::Lost) && !self.lost {
            self.lost = true;
            return Ok(());
        }
        self.ledger.take(&batch);
        match self.mood.whim() {
            Whim::Hold(count) => {
                self.held.push(batch);
                let over = self.held.len().saturating_sub(count);
                self.held.drain(..over);
            }
            Whim::Slow(work) | Whim::Pause(work) => {
                self.held.clear();
                std::thread::sleep(work);
            }
            Whim::Hurry => self.held.clear(),
        }
        Ok(())
    }

    /// Closes the loader in the middle and gives the state that the next one goes on from, by way of its text.
    fn reopened_from(&mut self) -> Result<State> {
        let loader = self.loader.as_mut().expect("one is open while batches are taken");
        let kept = if self.mood.keeps_one() || self.soaking.canary == Some(Canary::Leases) {
            Some(loader.next_batch().ok_or_else(|| Error::new(Kind::Cancelled, "the run came to an end"))??)
        } else {
            None
        };
        let state = loader.state().to_json();
        if let Some(batch) = kept {
            self.ledger.take(&batch);
            let hoards = self.soaking.canary == Some(Canary::Leases);
            if hoards { &mut self.hoard.0 } else { &mut self.held }.push(batch);
        }
        self.close();
        self.totals.reopened += 1;
        State::from_json(&state)
    }

    /// Closes the loader, if one is open, and books what it left. Batches that outlive it must keep their bytes.
    fn close(&mut self) {
        let Some(loader) = self.loader.take() else { return };
        let (stats, state) = (loader.stats(), loader.state());
        self.totals.add(&stats);
        self.totals.expected = state.epoch * state.samples + state.position;
        self.ring.clone_from(&stats.ring);
        let remains = loader.close();
        self.totals.operations_left += remains.operations;
        self.totals.slots_left += remains.slots.saturating_sub(self.held.len() as u64);
        for batch in self.held.drain(..) {
            self.ledger.check_bytes(&batch);
        }
    }

    fn moment(&self, seen: Seen) -> Moment {
        let stats = self.loader.as_ref().map(Loader::stats).unwrap_or_default();
        Moment {
            at_s: self.begun.elapsed().as_secs_f64(),
            settled: self.opened.elapsed() >= self.soaking.settles_after(),
            gauge: Gauge::beside(self.loader.iter().map(|loader| loader.memory().span())),
            slots: stats.slots,
            operations: stats.operations,
            leases: self.held.len() as u64,
            samples: self.ledger.samples,
            gb: self.ledger.bytes as f64 / 1e9,
            retries: self.totals.retries + stats.retries,
            reopened: self.totals.reopened,
            phase: seen.phase,
            faults: seen.served.faults,
        }
    }

    fn tend_canary(&mut self) -> Result<()> {
        /// So many moments keep as much as may be lost.
        const MOMENTS: u64 = 6;
        match self.soaking.canary {
            Some(Canary::Memory) => {
                let bytes = self.tolerance_bytes() / MOMENTS;
                self.hoard.1.push(vec![1; bytes as usize]);
            }
            Some(Canary::Descriptors) => {
                let failed = |error| Error::new(Kind::Environment, format!("/dev/null: {error}"));
                self.hoard.2.push(File::open("/dev/null").map_err(failed)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Growth that is allowed in any case. In less than a minute, loaders are not open for long enough to touch their arena:
    /// how much of it they did cannot be told from a leak.
    fn tolerance_bytes(&self) -> u64 {
        const MINUTE: Duration = Duration::from_secs(60);
        let arena = if self.soaking.time < MINUTE { self.effective.memory_limit_bytes } else { 0 };
        self.soaking.tolerance_bytes + arena
    }

    fn report(self, before: Gauge, after: Gauge, objects: &Objects) -> SoakReport {
        let points = self.points(Gauge::rss_bytes);
        let slope = self.slope();
        let tolerance_bytes = self.tolerance_bytes();
        let stalls = self.silence.count.load(Ordering::Relaxed);
        let mut notices = self.ledger.told.clone();
        notices.extend(self.silence.first.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let machine = Machine::here();
        if !machine.optimised {
            notices.push("an unoptimised build: its speed means nothing".to_owned());
        }
        if self.soaking.tls {
            notices.push("over TLS the bucket never goes away: it would come back with another certificate".to_owned());
        }
        let totals = Totals {
            samples: self.ledger.samples,
            bytes: self.ledger.bytes,
            epochs: self.ledger.cursor().epoch,
            wrong: self.ledger.wrong,
            stalls,
            ..self.totals
        };
        SoakReport {
            schema: SCHEMA,
            question: "soak".to_owned(),
            criteria: Vec::new(),
            memory: Flatness::of(&points, tolerance_bytes),
            slope,
            totals,
            before,
            after,
            moments: self.moments,
            objects: objects.all().len() as u64,
            object_bytes: objects.total_bytes(),
            seed: self.soaking.seed,
            asked_s: self.soaking.time.as_secs_f64(),
            wall_s: self.begun.elapsed().as_secs_f64(),
            notices,
            config: self.effective,
            ring: self.ring,
            machine,
        }
    }
}

/// What had to be true, each with its numbers.
fn criteria(soaking: &Soaking, report: &SoakReport, failure: Option<&Error>) -> Vec<Criterion> {
    let totals = &report.totals;
    let faults = totals.faults.values().sum::<u64>() + totals.absences;
    let ended = match failure {
        None => format!("{:.0} s of {:.0} s", report.wall_s, report.asked_s),
        Some(error) => format!("ended after {:.1} s of {:.0} s: {error}", report.wall_s, report.asked_s),
    };
    let (before, after) = (report.before, report.after);
    let at_end = format!("after the last loader {} MiB", after.rss_bytes() >> 20);
    let home = |name: &str, before: u64, after: u64| {
        Criterion::new(name, after <= before, format!("{before} before the first loader, {after} after the last"))
    };
    let reopened = format!("over {} closings", totals.reopened + 1);
    vec![
        Criterion::new("time", failure.is_none() && report.wall_s >= soaking.time.as_secs_f64(), ended),
        Criterion::new("faults", faults > 0, format!("{faults} injected, {} retries", totals.retries)),
        Criterion::judged("memory", report.memory.map(|m| (Some(m.holds()), format!("{}; {at_end}", m.text())))),
        Criterion::judged("slope", report.slope.map(|slope| (slope.holds(), slope.text()))),
        home("descriptors", before.descriptors, after.descriptors),
        home("threads", before.threads, after.threads),
        Criterion::new(
            "operations",
            totals.operations_left == 0,
            format!("{} left in the rings {reopened}", totals.operations_left),
        ),
        Criterion::new("slots", totals.slots_left == 0, format!("{} not home {reopened}", totals.slots_left)),
        Criterion::new(
            "samples",
            totals.samples == totals.expected && totals.samples > 0,
            format!("{} delivered of {} due, {} whole epochs", totals.samples, totals.expected, totals.epochs),
        ),
        Criterion::new("wrong", totals.wrong == 0, format!("{} came wrong", totals.wrong)),
        Criterion::new("stalls", totals.stalls == 0, format!("{} times nothing moved", totals.stalls)),
    ]
}
