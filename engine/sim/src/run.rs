//! A whole run: life after life until the end, and the checks over all of them.

use crate::canary::Canary;
use crate::check::Journal;
use crate::check::{self, Step};
use crate::check::{Checked, Checker, Inspector, Violation};
use crate::counters::Counters;
use crate::dataset::DataSet;
use crate::report::SimReport;
use crate::scenario::Scenario;
use crate::world::{Account, Ending, Life};
use fuelrail_base::{BatchSeq, Duration, Error, Kind, panic_text};
use fuelrail_plan::run::{Cursor, Run, RunConfig};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Plays the scenario. Never fails: what went wrong stands in the report.
pub fn run(scenario: &Scenario) -> SimReport {
    play(scenario.clone(), None)
}

/// Plays a scenario for its figures.
///
/// # Errors
/// `Environment` when a check fails: a bug of the engine.
pub(crate) fn run_sound(scenario: &Scenario) -> fuelrail_base::Result<SimReport> {
    let report = run(scenario);
    if report.is_sound() {
        return Ok(report);
    }
    Err(Error::new(Kind::Environment, format!("the simulation is unsound: {report}")).with_hint("report it"))
}

/// Plays the scenario with a bug planted; the scenario is changed as far as the bug needs to show.
pub fn run_with_canary(scenario: &Scenario, canary: Canary) -> SimReport {
    let mut scenario = scenario.clone();
    canary.prepare(&mut scenario);
    play(scenario, Some(canary))
}

fn play(scenario: Scenario, canary: Option<Canary>) -> SimReport {
    let mut tally = Tally::default();
    // A panic of the engine is one more thing the simulator reports with its seed. The tally holds plain numbers, so
    // whatever was unwound over has left nothing half done in it that matters.
    let outcome = catch_unwind(AssertUnwindSafe(|| lives(&scenario, canary, &mut tally)));
    let violations = match outcome {
        Ok(Ok(())) => Vec::new(),
        Ok(Err(violation)) => vec![violation],
        Err(panic) => vec![Violation::new(Checker::Panic, panic_text(&*panic))],
    };
    SimReport {
        schema: 1,
        seed: scenario.seed,
        canary,
        virtual_s: tally.virtual_time.as_secs_f64(),
        events: tally.events,
        lives: tally.lives,
        samples: tally.journal.len(),
        batch_wait_s_max: tally.longest_wait.as_secs_f64(),
        epoch_s: tally.epoch_s,
        counters: tally.counters,
        faults: tally.faults,
        content_hash: format!("{:032x}", tally.journal.hash()),
        raised: tally.raised,
        verdict: if violations.is_empty() { "sound" } else { "unsound" },
        violations,
        scenario,
    }
}

/// What adds up over the lives.
#[derive(Default)]
struct Tally {
    journal: Journal,
    counters: Counters,
    faults: BTreeMap<String, u64>,
    virtual_time: Duration,
    longest_wait: Duration,
    epoch_s: Vec<f64>,
    events: u64,
    lives: u64,
    raised: Option<String>,
}

fn lives(scenario: &Scenario, canary: Option<Canary>, tally: &mut Tally) -> Checked<()> {
    let objects = Rc::new(DataSet::new(scenario.seed, &scenario.sizes));
    let inspector = Inspector { scenario, objects: &objects };
    let (mut start, mut machine) = (Cursor::default(), None);
    for (number, shape) in scenario.lives.iter().enumerate() {
        tally.lives += 1;
        let runs =
            (0..shape.world).map(|rank| new_run(scenario, shape.world, rank, start)).collect::<Result<Vec<_>, _>>();
        let runs = runs.map_err(refused)?;
        let steps = check::steps(scenario, &runs[0], shape.world, start);
        arithmetic(&runs, &steps)?;
        let mut life =
            Life::new(scenario, number, &objects, &runs, &steps, machine.as_ref(), canary).map_err(refused)?;
        let outcome = life.play();
        tally.add(&life.account());
        let whole = life.taken().map(Vec::len).min().unwrap_or(0);
        for (at, step) in steps[..whole].iter().enumerate() {
            tally.journal.step(step.epoch, life.taken().flat_map(|rank| rank[at].iter().copied()));
        }
        machine = Some(life.into_world());
        match outcome? {
            Ending::Finished => break,
            Ending::Raised(error) => {
                tally.raised = Some(error);
                return inspector.joined(&tally.journal, false);
            }
            Ending::Failed(cause) => return Err(Violation::new(Checker::Panic, cause)),
            Ending::Killed(steps) => start = resume_at(&runs[0], start, steps, canary),
        }
    }
    inspector.joined(&tally.journal, true)
}

fn refused(error: Error) -> Violation {
    Violation::new(Checker::Errors, format!("a sound configuration was refused: {error}"))
}

fn new_run(scenario: &Scenario, world: u32, rank: u32, start: Cursor) -> fuelrail_base::Result<Run> {
    Run::new(RunConfig {
        samples: scenario.samples,
        seed: scenario.seed,
        order: scenario.order,
        shuffle: scenario.shuffle,
        world,
        rank,
        batch_size: scenario.batch_size,
        drop_last: scenario.drop_last,
        epochs: scenario.epochs,
        start,
    })
}

/// The run's arithmetic agrees with the model: number of batches and every cursor.
fn arithmetic(runs: &[Run], steps: &[Step]) -> Checked<()> {
    for run in runs {
        if run.batches() != steps.len() as u64 {
            let text = format!("{} batches, the model says {}: {:?}", run.batches(), steps.len(), run.config());
            return Err(Violation::new(Checker::Order, text));
        }
        for (seq, step) in steps.iter().enumerate() {
            let cursor = run.cursor_after(BatchSeq(seq as u64));
            if cursor != step.next {
                let text = format!("after batch {seq} go on at {:?}, not at {cursor:?}", step.next);
                return Err(Violation::new(Checker::Order, text));
            }
        }
    }
    Ok(())
}

/// Where the next life starts after `steps` whole steps, as the last saved state says.
fn resume_at(run: &Run, start: Cursor, steps: usize, canary: Option<Canary>) -> Cursor {
    let steps = match canary {
        Some(Canary::SkippedStep) => steps + 1,
        Some(Canary::DoubleStep) => steps.saturating_sub(1),
        _ => steps,
    };
    steps.checked_sub(1).map_or(start, |last| run.cursor_after(BatchSeq(last as u64)))
}

impl Tally {
    fn add(&mut self, life: &Account) {
        self.counters.add(&life.counters);
        self.virtual_time += life.virtual_time;
        self.events += life.events;
        self.longest_wait = self.longest_wait.max(life.longest_wait);
        self.epoch_s.clone_from(&life.epoch_s);
        let mut note = |name: &str, count: u64| {
            if count > 0 {
                *self.faults.entry(name.into()).or_default() += count;
            }
        };
        life.bookkeeping.faults.iter().for_each(|(name, count)| note(name, *count));
        let ring = &life.ring;
        note("ring_short_receive", ring.short_receives);
        note("ring_short_send", ring.short_sends);
        note("ring_reorder", ring.reorders);
        note("ring_transient_errno", ring.transient_errnos);
        note("ring_fatal_errno", ring.fatal_errnos);
        note("ring_delay", ring.delays);
        note("ring_no_memory", ring.no_memory);
        note("ring_no_descriptor", ring.no_descriptor);
        note("ring_overflow", ring.overflows);
        note("disk_short_read", ring.short_reads);
        note("disk_short_write", ring.short_writes);
        note("disk_errno", ring.disk_errnos);
        note("disk_flipped_bit", life.flipped_bits);
        note("power_cut", life.power_cuts);
    }
}
