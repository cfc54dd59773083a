//! A process that reads a bucket, and the runner's hold on it. It lists, tells a line, begins at a line on its input, and tells all its
//! figures several times a second and at the end of every epoch. Owns the loader on one side and the process on the other.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuelrail::{Config, Error, Kind, LoaderBuilder, Overrides, Result, Taken};
use serde::{Deserialize, Serialize};

use super::ReadPlan;
use super::figures::{Figures, add};

/// How often it tells its figures.
const TELLING: Duration = Duration::from_millis(50);

/// What a reader is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(super) settings: Overrides,
    pub(super) plan: ReadPlan,
}

impl Order {
    /// Epochs of its loader.
    fn epochs(&self) -> u64 {
        self.plan.epochs + u64::from(self.plan.ahead)
    }

    /// The configuration of its loader.
    pub(super) fn config(&self) -> Result<Config> {
        Ok(Config { epochs: self.epochs(), ..Config::load(None, [], &self.settings)? })
    }
}

/// What a reader tells.
#[derive(Default, Serialize, Deserialize)]
struct Told {
    epoch_ended: bool,
    figures: Figures,
}

/// The process: reads as ordered.
pub(crate) fn read(order: &Order, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<()> {
    let gone = |error: std::io::Error| environment("telling the runner", &error);
    let mut tell = |told: &Told| {
        let line = serde_json::to_string(told).expect("a plain structure");
        writeln!(output, "{line}").and_then(|()| output.flush()).map_err(gone)
    };
    let mut loader = LoaderBuilder::new(order.config()?).build()?;
    let per_epoch = (loader.batches() / order.epochs()).max(1);
    tell(&Told::default())?;
    input.read_line(&mut String::new()).map_err(gone)?;
    let (begun, mut told_at, mut batches) = (Instant::now(), Instant::now(), 0);
    while batches < per_epoch * order.plan.epochs {
        let mut epoch_ended = false;
        match loader.next_batch_within(TELLING)? {
            Taken::Over => break,
            Taken::NotYet => {}
            Taken::Batch(batch) => {
                // Its memory is free again during the step.
                drop(batch);
                batches += 1;
                epoch_ended = batches.is_multiple_of(per_epoch);
                std::thread::sleep(Duration::from_millis(order.plan.step_ms));
            }
        }
        if epoch_ended || told_at.elapsed() >= TELLING {
            told_at = Instant::now();
            let mut figures = Figures::from([("elapsed_s".to_owned(), begun.elapsed().as_secs_f64())]);
            add(&mut figures, "", &loader.stats());
            tell(&Told { epoch_ended, figures })?;
        }
    }
    Ok(())
}

/// The runner's hold on a reader. Ends it when dropped.
pub(super) struct Reader {
    child: Child,
    orders: ChildStdin,
    heard: Arc<Mutex<Heard>>,
}

/// All a reader has told.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) ready: bool,
    pub(super) ended: bool,
    pub(super) now: Figures,
    /// At the end of every epoch.
    pub(super) epochs: Vec<Figures>,
}

impl Heard {
    /// The figures, and as `last.` how much they grew in the last epoch.
    pub(super) fn with_last_epoch(&self) -> Figures {
        let before = self.epochs.iter().rev().nth(1);
        let grown = |(name, now): (&String, &f64)| {
            let before = before.and_then(|before| before.get(name)).unwrap_or(&0.0);
            (format!("last.{name}"), now - before)
        };
        self.now.iter().map(grown).chain(self.now.clone()).collect()
    }
}

impl Reader {
    pub(super) fn start(program: &Path, order: &Order) -> Result<Reader> {
        let order = serde_json::to_string(order).expect("a plain structure");
        let mut command = Command::new(program);
        command.args(["scenario-reader", &order]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| environment("starting a reader", &error))?;
        let (orders, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let heard = Arc::<Mutex<Heard>>::default();
        let hearing = Arc::clone(&heard);
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(std::result::Result::ok);
            for told in lines.map_while(|line| serde_json::from_str::<Told>(&line).ok()) {
                let mut heard = lock(&hearing);
                heard.ready = true;
                heard.epochs.extend(told.epoch_ended.then(|| told.figures.clone()));
                heard.now = told.figures;
            }
            lock(&hearing).ended = true;
        });
        Ok(Reader { child, orders, heard })
    }

    /// Lets it begin.
    pub(super) fn go(&mut self) -> Result<()> {
        self.orders.write_all(b"go\n").map_err(|error| environment("starting a reader", &error))
    }

    pub(super) fn heard(&self) -> MutexGuard<'_, Heard> {
        lock(&self.heard)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn environment(doing: &str, error: &std::io::Error) -> Error {
    Error::new(Kind::Environment, format!("{doing}: {error}"))
}
