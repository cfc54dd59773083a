//! Runs scenarios: a bucket in this process, what reads it in processes of their own, and the table of the result.
//!
//! Owns the order of runs, the folders they write to, which it removes, and the shape of the result. Never prints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuelrail::{ByteSize, Error, Kind, Overrides, Result};
use fuelrail_base::prng::Prng;
use fuelrail_bucket::{Bucket, BucketConfig, FaultKind, Source};
use fuelrail_cli::machine::Machine;
use serde::Serialize;

use super::between::{Between, Standing};
use super::figures::{Figures, TICKS_PER_S, Tick, add, add_phases, evaluate, means, ticks, value};
use super::processes::{Reader, Steps, Task};
use super::{Against, BucketPlan, Column, ReadPlan, Run, Scenario, TrainPlan, filled, text_of};
use crate::harness::tool::embedded;
use crate::harness::{Spread, Stop, tool};

pub(crate) struct Runner {
    pub(crate) scenario: Scenario,
    /// Settings of all loaders over those of the scenario.
    pub(crate) settings: Overrides,
    pub(crate) folder: PathBuf,
    /// This program, which is its own readers.
    pub(crate) program: PathBuf,
    pub(crate) trainer: Option<PathBuf>,
    /// Longest time of one run of the trainer.
    pub(crate) limit: Duration,
    pub(crate) stop: Stop,
}

/// One run in one round: all its figures, and of phases the requests served in every tenth of a second.
#[derive(Serialize)]
pub(crate) struct RunResult {
    pub(crate) run: String,
    pub(crate) round: u32,
    pub(crate) figures: Figures,
    served: Vec<f64>,
}

/// A row of the table: values by the titles of columns, without those that no round has.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) run: String,
    pub(crate) values: BTreeMap<String, Spread>,
}

/// The result. `config` is the scenario as it was run; `facts` are the texts of the trainer's outcome, such as its version of torch.
#[derive(Serialize)]
pub(crate) struct Report {
    schema: u32,
    question: &'static str,
    pub(crate) name: String,
    pub(crate) machine: Machine,
    pub(crate) config: Scenario,
    settings: Overrides,
    pub(crate) facts: BTreeMap<String, String>,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
    runs: Vec<RunResult>,
    wall_s: f64,
}

impl Runner {
    /// Runs the scenario. `watch` is called with the result of each.
    pub(crate) fn run(self, name: &str, watch: &mut dyn FnMut(&RunResult)) -> Result<Report> {
        let (begun, scenario) = (Instant::now(), &self.scenario);
        let (rounds, count) = (scenario.rounds, scenario.runs.len());
        if rounds == 0 || count == 0 {
            let cause = format!("{rounds} rounds of {count} runs are nothing to measure");
            return Err(
                Error::new(Kind::Usage, cause).with_hint("give at least 1 round, and with --only a part of a name")
            );
        }
        let (mut runs, mut facts, mut store) = (Vec::new(), BTreeMap::new(), None);
        for round in 1..=rounds {
            let common = self.folder()?;
            let mut order: Vec<&Run> = scenario.runs.iter().collect();
            let first = (round - 1) as usize % count;
            order.rotate_left(if scenario.rotate { first } else { 0 });
            for run in order {
                let named = |error: Error| match error.kind() {
                    Kind::Cancelled | Kind::Usage => error,
                    kind => Error::new(kind, format!("{}, round {round}: {error}", run.name)),
                };
                let store = Store::of(&self, &run.bucket, &mut store)?;
                let execution = Execution::new(&self, run, store, (round, common.path()))?;
                let (figures, served) = execution.run(&mut facts).map_err(named)?;
                let ran = RunResult { run: run.name.clone(), round, figures, served };
                watch(&ran);
                runs.push(ran);
            }
        }
        let columns = scenario.columns.clone();
        let rows = scenario.runs.iter().map(|run| row(&columns, run, &runs)).collect();
        runs.iter_mut().for_each(|ran| ran.figures.retain(|figure, _| scenario.keeps(figure)));
        Ok(Report {
            schema: 1,
            question: "scenario",
            name: name.to_owned(),
            machine: Machine::here(),
            config: self.scenario,
            settings: self.settings,
            facts,
            columns,
            rows,
            runs,
            wall_s: begun.elapsed().as_secs_f64(),
        })
    }

    fn folder(&self) -> Result<tempfile::TempDir> {
        let made = tempfile::Builder::new().prefix("fuelrail-scenario").tempdir_in(&self.folder);
        made.map_err(|error| Error::new(Kind::File, format!("making a folder in {}: {error}", self.folder.display())))
    }
}

impl Scenario {
    fn keeps(&self, figure: &str) -> bool {
        let texts = self.columns.iter().flat_map(|column| [Some(&column.of), column.base.as_ref()]).flatten();
        let mut words = texts.flat_map(|text| text.split_whitespace());
        words.any(|word| word == figure) || self.keep.iter().any(|end| figure.ends_with(end.as_str()))
    }
}

fn row(columns: &[Column], run: &Run, runs: &[RunResult]) -> Row {
    let in_round = |column: &Column, ran: &RunResult| {
        let own = value(&column.of, &ran.figures)?;
        let Some(against) = column.against else { return Some(own) };
        let is_baseline = |other: &&RunResult| other.round == ran.round && Some(&other.run) == run.against.as_ref();
        let baseline = runs.iter().find(is_baseline)?;
        let base = value(column.base.as_ref().unwrap_or(&column.of), &baseline.figures)?;
        match against {
            Against::Ratio => (base != 0.0).then(|| own / base),
            Against::Difference => Some(own - base),
        }
    };
    let values = columns.iter().filter_map(|column| {
        let rounds = runs.iter().filter(|ran| ran.run == run.name);
        Some((column.title.clone(), Spread::of(rounds.filter_map(|ran| in_round(column, ran)))?))
    });
    Row { run: run.name.clone(), values: values.collect() }
}

/// A bucket. Runs that follow each other and read the same objects have the same one: what a disk keeps belongs to its address.
struct Store {
    plan: BucketPlan,
    bucket: Bucket,
    bytes: u64,
    _folder: tempfile::TempDir,
}

impl Store {
    /// The previous run's, where that has the same objects.
    fn of<'s>(runner: &Runner, plan: &BucketPlan, last: &'s mut Option<Store>) -> Result<&'s Store> {
        let plan = BucketPlan { script: String::new(), ..plan.clone() };
        if last.as_ref().is_none_or(|store| store.plan != plan) {
            let folder = runner.folder()?;
            let (source, bytes) = source(&plan, folder.path())?;
            *last = Some(Store { bucket: bucket(source, plan.threads)?, plan, bytes, _folder: folder });
        }
        Ok(last.as_ref().expect("there is one by now"))
    }
}

fn bucket(source: Source, threads: Option<usize>) -> Result<Bucket> {
    let plain = BucketConfig::default();
    embedded(BucketConfig { source, threads: threads.unwrap_or(plain.threads), ..plain })
}

/// Time that all readers of a run have before one of them is stopped, or the proxy's fault begins.
const BEFORE_STOP: Duration = Duration::from_secs(1);
/// What ranks that keep blocks for each other on this machine know each other by, in a file of the run's folder.
const SECRET: &str = "a-scenario-hides-nothing-0123";

/// One run: its bucket, and what its texts may name.
struct Execution<'r> {
    runner: &'r Runner,
    run: &'r Run,
    store: &'r Store,
    names: Vec<(&'static str, String)>,
    _folder: tempfile::TempDir,
}

impl<'r> Execution<'r> {
    fn new(runner: &'r Runner, run: &'r Run, store: &'r Store, (round, common): (u32, &Path)) -> Result<Execution<'r>> {
        let own = runner.folder()?;
        tool::write(&own.path().join("secret"), SECRET)?;
        let folder = |path: &Path| path.display().to_string();
        let names = vec![("round", round.to_string()), ("dir", folder(own.path())), ("common", folder(common))];
        let execution = Execution { runner, run, store, names, _folder: own };
        execution.set_script(&run.bucket.script)?;
        store.bucket.reset_counters();
        Ok(execution)
    }

    fn set_script(&self, text: &str) -> Result<()> {
        let set = filled(text, &self.names).parse().and_then(|script| self.store.bucket.set_script(script));
        set.map_err(|error| Error::new(Kind::Usage, error.to_string()))
    }

    fn run(&self, facts: &mut BTreeMap<String, String>) -> Result<(Figures, Vec<f64>)> {
        let mut figures = self.run.facts.clone();
        let mut served = Vec::new();
        figures.insert("set_bytes".to_owned(), self.store.bytes as f64);
        figures.insert("set_objects".to_owned(), self.run.bucket.set.len() as f64);
        if let Some(plan) = &self.run.read {
            figures.insert("epochs".to_owned(), plan.epochs as f64);
            served = self.read(plan, &mut figures)?;
        }
        if let Some(plan) = &self.run.train {
            let (trained, texts) = self.train(plan)?;
            figures.extend(trained);
            facts.extend(texts);
        }
        add(&mut figures, "bucket", &self.store.bucket.counters());
        Ok((figures, served))
    }

    fn settings(&self, process: u32) -> Overrides {
        let names = [&self.names[..], &[("process", process.to_string())]].concat();
        let size = |word: &str| match word.strip_suffix('%') {
            Some(percent) => Some(percent.parse::<f64>().ok()? / 100.0 * self.store.bytes as f64),
            None => word.parse().ok().or_else(|| Some(word.parse::<ByteSize>().ok()?.0 as f64)),
        };
        let settings = self.run.settings.iter().map(|(name, value)| {
            let text = filled(&text_of(value), &names);
            let bytes = if text.contains('%') { evaluate(&text, size) } else { None };
            (name.clone(), bytes.map_or(text, |bytes| (bytes as u64).to_string()))
        });
        settings.chain(self.runner.settings.iter().cloned()).collect()
    }

    fn train(&self, plan: &TrainPlan) -> Result<(Figures, BTreeMap<String, String>)> {
        let trainer = self.runner.trainer.as_ref().ok_or_else(|| Error::new(Kind::NotFound, "there is no trainer"))?;
        let test = bucket(Source::Generated(plan.test.clone()), self.run.bucket.threads)?;
        let uri = |bucket: &Bucket| bucket.url(&self.run.bucket.prefix);
        let mut options = vec![uri(&self.store.bucket), "--eval-uri".to_owned(), uri(&test)];
        options.extend(filled(&plan.options, &self.names).split_whitespace().map(str::to_owned));
        for (name, value) in self.settings(0) {
            options.extend(["--set".to_owned(), format!("{name}={value}")]);
        }
        super::processes::train(trainer, plan.ranks, options, self.runner.limit, &self.runner.stop)
    }

    /// Reads; returns the requests served in every tick of the phases.
    fn read(&self, plan: &ReadPlan, figures: &mut Figures) -> Result<Vec<f64>> {
        let (mut readers, steps) = (Vec::new(), Arc::<Steps>::default());
        let between = plan.between.as_ref().map(Between::stand).transpose()?;
        for process in 0..plan.processes {
            let uri = ("uri".to_owned(), self.store.bucket.url(&self.run.bucket.prefix));
            let task = Task { settings: [self.settings(process), vec![uri]].concat(), plan: plan.clone() };
            // A wrong setting is an error of usage here, not of a process that failed.
            task.config()?;
            readers.push(Reader::start(&self.runner.program, &task, &steps)?);
        }
        self.wait(|| readers.iter().all(|reader| reader.progress().ready || reader.progress().ended))?;
        readers.iter().try_for_each(Reader::begin)?;
        let stopped = plan.stopped.and_then(|stopped| readers.get(stopped as usize));
        if stopped.is_some() || between.is_some() {
            std::thread::sleep(BEFORE_STOP);
            stopped.map_or(Ok(()), Reader::stop)?;
            between.iter().for_each(Standing::begin);
        }
        // That one ends no more.
        let goes_on = |(process, _): &(usize, &Reader)| Some(*process as u32) != plan.stopped;
        let going = || readers.iter().enumerate().filter(goes_on).map(|(_, reader)| reader);
        let failed =
            |reader: &&Reader| reader.progress().ended && (reader.progress().epochs.len() as u64) < plan.epochs;
        let failures = || going().filter(failed).count();
        let sums = self.run_phases(&readers)?;
        if self.run.phases.is_empty() {
            self.wait(|| failures() > 0 || going().all(|reader| reader.progress().ended))?;
            if failures() > 0 {
                return Err(Error::new(Kind::Environment, "a reader failed: its error is printed above"));
            }
        }
        figures.insert("failed".to_owned(), failures() as f64);
        let of_all: Vec<Figures> = going().map(|reader| reader.progress().with_epochs()).collect();
        figures.extend(means(&of_all));
        add_phases(figures, &self.run.phases, &sums);
        Ok(sums.windows(2).map(|pair| pair[1].served - pair[0].served).collect())
    }

    fn wait(&self, over: impl Fn() -> bool) -> Result<()> {
        while !over() {
            self.runner.stop.check()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Changes the bucket from phase to phase, and samples all counters at every tick.
    fn run_phases(&self, readers: &[Reader]) -> Result<Vec<Tick>> {
        let (begun, mut sums) = (Instant::now(), Vec::new());
        for phase in &self.run.phases {
            self.set_script(phase.script.as_ref().unwrap_or(&self.run.bucket.script))?;
            for _ in 0..ticks(phase.seconds) + usize::from(sums.is_empty()) {
                let due = Duration::from_secs_f64(sums.len() as f64 / TICKS_PER_S);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
                self.runner.stop.check()?;
                sums.push(self.sample(readers));
            }
        }
        Ok(sums)
    }

    fn sample(&self, readers: &[Reader]) -> Tick {
        let counters = self.store.bucket.counters();
        let refusals = [FaultKind::Slowdown, FaultKind::SlowdownRate, FaultKind::Error];
        let refused: u64 = refusals.into_iter().map(|kind| counters.injected(kind)).sum();
        let served = counters.get_requests.saturating_sub(refused) as f64;
        let of = |reader: &Reader| value("requests - throttled", &reader.progress().now).unwrap_or(0.0);
        Tick { served, refused: refused as f64, readers: readers.iter().map(of).collect() }
    }
}

/// Classes of digits.
const CLASSES: u64 = 10;

/// The objects and their bytes. A harder set, which has fewer digits of some classes and some in the folder of another class, is written
/// into `folder`.
fn source(plan: &BucketPlan, folder: &Path) -> Result<(Source, u64)> {
    let set = &plan.set;
    if plan.missing == 0.0 && plan.wrong == 0.0 {
        return Ok((Source::Generated(set.clone()), set.total_bytes()));
    }
    let mut bytes = 0;
    for (index, class) in chosen(plan) {
        let path = folder.join(format!("training/{class}/{index:05}.png"));
        let content = set.content(index);
        tool::write(&path, &content)?;
        bytes += content.len() as u64;
    }
    Ok((Source::Directory(folder.to_owned()), bytes))
}

/// Indices of its digits, and the class each is labelled with.
pub(super) fn chosen(plan: &BucketPlan) -> Vec<(u64, u64)> {
    let mut prng = Prng::new(plan.set.seed);
    let draws = (0..plan.set.len()).map(|index| (index, prng.unit(), prng.unit(), prng.below(CLASSES - 1)));
    let kept = draws.filter(|(index, kept, ..)| plan.set.class(*index) < CLASSES / 2 || *kept >= plan.missing);
    let label = |(index, _, wrong, other)| {
        let class = plan.set.class(index);
        (index, if wrong < plan.wrong { (class + 1 + other) % CLASSES } else { class })
    };
    kept.map(label).collect()
}
