//! The processes of a scenario. One reads a bucket, and has its handle in the runner: it lists the bucket, prints a line, waits for a line on its input, reads,
//! and prints all its figures several times a second and at the end of every epoch. Owns the loader, and in the runner the process.
//! The other is `fuelrail-train`, of which what it leaves is read.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuelrail::{Config, Error, Kind, Loader, LoaderBuilder, Overrides, Result, Taken};
use fuelrail_cli::failure::Stop;
use fuelrail_cli::train::Ranks;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// It has begun a step, and waits for a line after it.
    step_begun: bool,
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
    let figures = |loader: &Loader, begun: Instant| {
        let mut figures = Figures::from([("elapsed_s".to_owned(), begun.elapsed().as_secs_f64())]);
        add(&mut figures, "", &loader.stats());
        figures
    };
    print(&Line { figures: figures(&loader, Instant::now()), ..Line::default() })?;
    input.read_line(&mut String::new()).map_err(gone)?;
    let (begun, mut printed, mut batches) = (Instant::now(), Instant::now(), 0);
    while batches < per_epoch * task.plan.epochs {
        let (mut epoch_ended, mut step) = (false, Duration::ZERO);
        match loader.next_batch_within(INTERVAL)? {
            Taken::Over => break,
            Taken::NotYet => {}
            Taken::Batch(batch) => {
                // Its memory is free again during the step.
                drop(batch);
                batches += 1;
                epoch_ended = batches.is_multiple_of(per_epoch);
                step = Duration::from_millis(task.plan.step_ms);
            }
        }
        let taken = Instant::now();
        if epoch_ended || printed.elapsed() >= INTERVAL {
            printed = Instant::now();
            print(&Line { epoch_ended, figures: figures(&loader, begun), ..Line::default() })?;
        }
        // Counting, and waiting for each other, is done during the step: what all have taken, all will have computed.
        let keeps_step = task.plan.in_step && !step.is_zero();
        if keeps_step {
            print(&Line { step_begun: true, ..Line::default() })?;
        }
        std::thread::sleep(step.saturating_sub(taken.elapsed()));
        if keeps_step {
            input.read_line(&mut String::new()).map_err(gone)?;
        }
    }
    Ok(())
}

/// Where readers that keep in step wait for each other.
#[derive(Default)]
pub(super) struct Steps {
    /// Begun steps by reader; of one that has gone more than any.
    begun: Mutex<Vec<u64>>,
    moved: Condvar,
}

impl Steps {
    fn join(&self) -> usize {
        let mut begun = lock(&self.begun);
        begun.push(0);
        begun.len() - 1
    }

    /// One more step of `reader`: waits for the others.
    fn wait(&self, reader: usize) {
        let mut begun = lock(&self.begun);
        begun[reader] += 1;
        self.moved.notify_all();
        let own = begun[reader];
        drop(self.moved.wait_while(begun, |begun| begun.iter().any(|other| *other < own)));
    }

    fn leave(&self, reader: usize) {
        lock(&self.begun)[reader] = u64::MAX;
        self.moved.notify_all();
    }
}

/// A reader process. Dropping it ends the process.
pub(super) struct Reader {
    child: Child,
    input: Arc<Mutex<ChildStdin>>,
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
    /// The figures, and how much they grew in the last epoch, as `last.`, and in one from the third on, as `later.`.
    pub(super) fn with_epochs(&self) -> Figures {
        let grown = |prefix: &str, epochs: usize| {
            let before = self.epochs.iter().rev().nth(epochs);
            let of = |(name, now): (&String, &f64)| {
                let before = before.and_then(|before| before.get(name)).unwrap_or(&0.0);
                (format!("{prefix}.{name}"), (now - before) / epochs as f64)
            };
            self.now.iter().map(of).collect::<Figures>()
        };
        let later = self.epochs.len().saturating_sub(2).max(1);
        self.now.clone().into_iter().chain(grown("last", 1)).chain(grown("later", later)).collect()
    }
}

impl Reader {
    pub(super) fn start(program: &Path, task: &Task, steps: &Arc<Steps>) -> Result<Reader> {
        let task = serde_json::to_string(task).expect("a plain structure");
        let mut command = Command::new(program);
        command.args(["scenario-reader", &task]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| environment("starting a reader", &error))?;
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (input, progress) = (Arc::new(Mutex::new(input)), Arc::<Mutex<Progress>>::default());
        let (own_input, shared, steps, reader) =
            (Arc::clone(&input), Arc::clone(&progress), Arc::clone(steps), steps.join());
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(std::result::Result::ok);
            for line in lines.map_while(|line| serde_json::from_str::<Line>(&line).ok()) {
                if line.step_begun {
                    steps.wait(reader);
                    // One that is gone is found where its output ends.
                    let _ = go(&own_input);
                    continue;
                }
                let mut progress = lock(&shared);
                progress.ready = true;
                progress.epochs.extend(line.epoch_ended.then(|| line.figures.clone()));
                progress.now = line.figures;
            }
            steps.leave(reader);
            lock(&shared).ended = true;
        });
        Ok(Reader { child, input, progress })
    }

    pub(super) fn begin(&self) -> Result<()> {
        go(&self.input).map_err(|error| environment("starting a reader", &error))
    }

    /// Stops it, as a machine that hangs does.
    pub(super) fn stop(&self) -> Result<()> {
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process has a number");
        kill_process(process, Signal::STOP).map_err(|error| environment("stopping a reader", &error.into()))
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

fn go(input: &Mutex<ChildStdin>) -> std::io::Result<()> {
    lock(input).write_all(b"go\n")
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn environment(doing: &str, error: &std::io::Error) -> Error {
    Error::new(Kind::Environment, format!("{doing}: {error}"))
}

/// Runs all ranks: their figures, and the texts of the outcome, such as the version of torch. `train_s` is from the first step to the
/// last, of the rank that took longest, with the switch.
pub(super) fn train(
    trainer: &Path,
    ranks: u32,
    mut options: Vec<String>,
    limit: Duration,
    stop: &Stop,
) -> Result<(Figures, BTreeMap<String, String>)> {
    let folder = tempfile::tempdir()
        .map_err(|error| Error::new(Kind::File, format!("making a folder for what ranks leave: {error}")))?;
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| path(name).display().to_string();
    for (option, value) in [
        ("--json", text("outcome.json")),
        ("--step-log", text("log-{rank}")),
        ("--timeout-s", limit.as_secs_f64().to_string()),
    ] {
        options.extend([option.to_owned(), value]);
    }
    let begun = Instant::now();
    Ranks::start(trainer, &options, ranks, folder.path())?.wait(limit, stop).map_err(|error| match error.kind() {
        Kind::Stalled => error.with_hint("train less, or allow more time with --limit"),
        _ => error,
    })?;
    let mut figures = Figures::from([("total_s".to_owned(), begun.elapsed().as_secs_f64())]);
    let outcome = lines(&path("outcome.json"))?.remove(0);
    add(&mut figures, "", &outcome);
    let mut longest_ms = 0.0_f64;
    for rank in 0..ranks {
        let steps = lines(&path(&format!("log-{rank}")))?;
        figures.insert(format!("steps.{rank}"), steps.len() as f64);
        longest_ms = longest_ms.max(steps.iter().filter_map(|step| step["wall_ms"].as_f64()).sum());
    }
    let switch_s = figures.get("outcome.switch_s").copied().unwrap_or(0.0);
    figures.insert("train_s".to_owned(), longest_ms / 1e3 + switch_s);
    let texts = outcome.as_object().into_iter().flatten();
    let facts = texts.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    Ok((figures, facts))
}

/// The documents in a file, one or more.
fn lines(path: &Path) -> Result<Vec<Value>> {
    let name = path.file_name().unwrap_or_default().display();
    let failed = |what: String| Error::new(Kind::Environment, what).with_hint("give a fuelrail-train of this version");
    let text = std::fs::read_to_string(path).map_err(|error| failed(format!("the trainer left no {name}: {error}")))?;
    let documents: std::result::Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&text).into_iter().collect();
    let documents = documents.map_err(|error| failed(format!("the trainer's {name} is not as expected: {error}")))?;
    if documents.is_empty() { Err(failed(format!("the trainer's {name} is empty"))) } else { Ok(documents) }
}
