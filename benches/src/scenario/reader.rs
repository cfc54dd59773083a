//! A process that reads a bucket, and its handle in the runner. It lists the bucket, prints a line, waits for a line on its input, reads,
//! and prints all its figures several times a second and at the end of every epoch. Owns the loader, and in the runner the process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuelrail::{Config, Error, Kind, LoaderBuilder, Overrides, Result, Taken};
use serde::{Deserialize, Serialize};

use super::ReadPlan;
use super::figures::{Figures, add};

/// Time between two lines of output.
const INTERVAL: Duration = Duration::from_millis(50);

/// What a reader process is to read, as its only argument.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(super) settings: Overrides,
    pub(super) plan: ReadPlan,
}

impl Task {
    fn epochs(&self) -> u64 {
        self.plan.epochs + u64::from(self.plan.ahead)
    }

    pub(super) fn config(&self) -> Result<Config> {
        let mut config = Config::load(None, [], &self.settings)?;
        config.epochs = self.epochs();
        Ok(config)
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Line {
    epoch_ended: bool,
    figures: Figures,
}

/// Reads; the whole of a reader process.
pub(crate) fn read(task: &Task, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<()> {
    let gone = |error: std::io::Error| environment("writing to the runner", &error);
    let mut print = |line: &Line| {
        let line = serde_json::to_string(line).expect("a plain structure");
        writeln!(output, "{line}").and_then(|()| output.flush()).map_err(gone)
    };
    let mut loader = LoaderBuilder::new(task.config()?).build()?;
    let per_epoch = (loader.batches() / task.epochs()).max(1);
    print(&Line::default())?;
    input.read_line(&mut String::new()).map_err(gone)?;
    let (begun, mut printed, mut batches) = (Instant::now(), Instant::now(), 0);
    while batches < per_epoch * task.plan.epochs {
        let mut epoch_ended = false;
        match loader.next_batch_within(INTERVAL)? {
            Taken::Over => break,
            Taken::NotYet => {}
            Taken::Batch(batch) => {
                // Its memory is free again during the step.
                drop(batch);
                batches += 1;
                epoch_ended = batches.is_multiple_of(per_epoch);
                std::thread::sleep(Duration::from_millis(task.plan.step_ms));
            }
        }
        if epoch_ended || printed.elapsed() >= INTERVAL {
            printed = Instant::now();
            let mut figures = Figures::from([("elapsed_s".to_owned(), begun.elapsed().as_secs_f64())]);
            add(&mut figures, "", &loader.stats());
            print(&Line { epoch_ended, figures })?;
        }
    }
    Ok(())
}

/// A reader process. Dropping it ends the process.
pub(super) struct Reader {
    child: Child,
    input: ChildStdin,
    progress: Arc<Mutex<Progress>>,
}

/// What a reader has printed.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) ready: bool,
    pub(super) ended: bool,
    pub(super) now: Figures,
    pub(super) epochs: Vec<Figures>,
}

impl Progress {
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
    pub(super) fn start(program: &Path, task: &Task) -> Result<Reader> {
        let task = serde_json::to_string(task).expect("a plain structure");
        let mut command = Command::new(program);
        command.args(["scenario-reader", &task]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| environment("starting a reader", &error))?;
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let progress = Arc::<Mutex<Progress>>::default();
        let shared = Arc::clone(&progress);
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(std::result::Result::ok);
            for line in lines.map_while(|line| serde_json::from_str::<Line>(&line).ok()) {
                let mut progress = lock(&shared);
                progress.ready = true;
                progress.epochs.extend(line.epoch_ended.then(|| line.figures.clone()));
                progress.now = line.figures;
            }
            lock(&shared).ended = true;
        });
        Ok(Reader { child, input, progress })
    }

    pub(super) fn begin(&mut self) -> Result<()> {
        self.input.write_all(b"go\n").map_err(|error| environment("starting a reader", &error))
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

fn environment(doing: &str, error: &std::io::Error) -> Error {
    Error::new(Kind::Environment, format!("{doing}: {error}"))
}
