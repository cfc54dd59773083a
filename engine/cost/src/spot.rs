//! Spot machines under a deadline: policies played on traces of availability, and what no policy can beat.
//!
//! A job of so many hours of work runs on one machine at a time. Before a machine works it spends the changeover: start, and restore of the
//! checkpoint. On-demand machines are always available. A policy sees the past and the present, never what comes.

mod bound;
mod job;
mod learned;

use fuelrail_base::Result;
use fuelrail_base::prng::Prng;
use serde::Serialize;

pub use self::bound::cost_bound;
pub use self::job::Job;
use self::job::{Machine, View};
use self::learned::{Learned, Table};
use crate::usage;

/// Most starts that are played on a trace.
pub const STARTS_MAX: u32 = 100_000;

/// A trace of availability.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    tick_hours: f64,
    available: Vec<bool>,
}

/// Decides where the job runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Spot whenever it is available, on demand when the deadline forces it.
    Greedy,
    /// On demand when progress is behind the straight line to the deadline, spot or nothing when it is ahead ("Can't Be Late", NSDI 2024).
    UniformProgress,
    /// The action that costs least in the mean, by what was learnt of availability since the start.
    Ours,
}

fuelrail_base::named!(Policy, "a policy": Greedy = "greedy", UniformProgress = "uniform-progress", Ours = "ours");

/// One job, played to its end.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Run {
    /// Hours paid on demand.
    pub on_demand_hours: f64,
    /// Hours paid for spot.
    pub spot_hours: f64,
    /// From the start to the end of the work.
    pub hours: f64,
    /// Price of all hours.
    pub cost: f64,
    /// Whether it ended by the deadline.
    pub deadline_met: bool,
}

impl Trace {
    /// A trace of `counts` available machines, one number per tick of `gap_seconds`.
    ///
    /// # Errors
    /// `Usage` for an empty trace, and for a tick that is not above zero.
    pub fn new(gap_seconds: f64, counts: &[f64]) -> Result<Trace> {
        if !(gap_seconds.is_finite() && gap_seconds > 0.0) {
            return usage(format!("gap_seconds is {gap_seconds}"), "give the seconds of a tick, above 0");
        }
        if counts.is_empty() {
            return usage("the trace is empty", "give one number of machines per tick under 'data'");
        }
        if let Some(wrong) = counts.iter().position(|count| !(count.is_finite() && *count >= 0.0)) {
            return usage(
                format!("tick {wrong} of the trace, from 0, is {}", counts[wrong]),
                "give 0 or more machines",
            );
        }
        Ok(Trace { tick_hours: gap_seconds / 3600.0, available: counts.iter().map(|count| *count >= 1.0).collect() })
    }

    /// Hours from its first tick to its last.
    pub fn hours(&self) -> f64 {
        self.tick_hours * self.available.len() as f64
    }

    /// Share of ticks at which a machine was available.
    pub fn share(&self) -> f64 {
        self.available.iter().filter(|available| **available).count() as f64 / self.available.len() as f64
    }
}

/// What the policies and the bound come to on one trace: for each start, the run of each policy and the least cost with hindsight.
#[derive(Clone, Debug)]
pub struct Played {
    /// By policy, in the order given; by start.
    pub runs: Vec<Vec<Run>>,
    /// By start.
    pub bounds: Vec<f64>,
}

/// Plays policies on traces: what they need to know of the job is computed once.
#[derive(Debug)]
pub struct Player {
    job: Job,
    policies: Vec<Policy>,
    table: Option<Table>,
}

impl Player {
    /// # Errors
    /// As [`Job::validate`].
    pub fn new(job: Job, policies: &[Policy]) -> Result<Player> {
        job.validate()?;
        let table = policies.contains(&Policy::Ours).then(|| Table::new(&job));
        Ok(Player { job, policies: policies.to_vec(), table })
    }

    /// Plays every policy from `starts` random ticks of a trace.
    ///
    /// # Errors
    /// `Usage` for a trace shorter than the deadline, and no starts or too many.
    pub fn play(&self, trace: &Trace, starts: u32, seed: u64) -> Result<Played> {
        let (job, tick_hours) = (&self.job, trace.tick_hours);
        if !(1..=STARTS_MAX).contains(&starts) {
            return usage(format!("{starts} starts"), format!("give 1 to {STARTS_MAX}"));
        }
        let ticks = job.ticks(tick_hours)?;
        let Some(last) = trace.available.len().checked_sub(ticks) else {
            return usage(
                format!("the trace has {:.1} hours, the deadline is after {}", trace.hours(), job.deadline_hours),
                "give a longer trace, or an earlier deadline",
            );
        };
        let mut prng = Prng::new(seed);
        let windows: Vec<&[bool]> = (0..starts)
            .map(|_| prng.below(last as u64 + 1) as usize)
            .map(|start| &trace.available[start..start + ticks])
            .collect();
        let run = |policy: Policy, window: &[bool]| {
            let learned = self.table.as_ref().map(|table| Learned::new(table, tick_hours));
            run(job, tick_hours, window, policy, learned)
        };
        let of_policy = |policy: &Policy| windows.iter().map(|window| run(*policy, window)).collect();
        let bounds = windows.iter().map(|window| cost_bound(job, tick_hours, window)).collect();
        Ok(Played { runs: self.policies.iter().map(of_policy).collect(), bounds })
    }
}

/// Plays one policy to the end of the work.
fn run(job: &Job, tick_hours: f64, window: &[bool], policy: Policy, mut learned: Option<Learned<'_>>) -> Run {
    let mut view = View {
        elapsed_hours: 0.0,
        left_hours: job.job_hours,
        pending_hours: 0.0,
        available: false,
        machine: Machine::None,
    };
    let (mut spot_hours, mut on_demand_hours) = (0.0, 0.0);
    let mut hours = window.len() as f64 * tick_hours;
    for (tick, available) in window.iter().enumerate() {
        // Not a sum, whose rounding would grow with the ticks.
        view.elapsed_hours = tick as f64 * tick_hours;
        view.available = *available;
        if view.machine == Machine::Spot && !available {
            (view.machine, view.pending_hours) = (Machine::None, 0.0);
        }
        let wanted = match (policy, &mut learned) {
            (Policy::Ours, Some(learned)) => learned.decide(&view),
            (Policy::UniformProgress, _) => uniform_progress(job, &view),
            _ if *available => Machine::Spot,
            _ => Machine::None,
        };
        // The safety net of every policy.
        let machine = if job.is_safe(&view, wanted, tick_hours) { wanted } else { Machine::OnDemand };
        if machine != view.machine {
            view.pending_hours = if machine == Machine::None { 0.0 } else { job.changeover_hours };
            view.machine = machine;
        }
        let paid = tick_hours.min(view.pending_hours + view.left_hours);
        match machine {
            Machine::None => {}
            Machine::Spot => spot_hours += paid,
            Machine::OnDemand => on_demand_hours += paid,
        }
        if machine != Machine::None {
            let started = paid.min(view.pending_hours);
            view.pending_hours -= started;
            view.left_hours -= paid - started;
            if view.left_hours <= job.rounding_hours() {
                hours = view.elapsed_hours + paid;
                break;
            }
        }
    }
    let cost = spot_hours * job.spot_price + on_demand_hours * job.on_demand_price;
    let deadline_met = view.left_hours <= job.rounding_hours() && hours <= job.deadline_hours + job.rounding_hours();
    Run { on_demand_hours, spot_hours, hours, cost, deadline_met }
}

/// Uniform progress with its hysteresis: an on-demand machine is kept until progress is ahead by what two changeovers take.
fn uniform_progress(job: &Job, view: &View) -> Machine {
    let progress = job.job_hours - view.left_hours + job.rounding_hours();
    let is_behind = |hours: f64| progress < hours * job.job_hours / job.deadline_hours;
    if view.machine == Machine::OnDemand && is_behind(view.elapsed_hours + 2.0 * job.changeover_hours) {
        return Machine::OnDemand;
    }
    match view.available {
        true => Machine::Spot,
        false if is_behind(view.elapsed_hours) => Machine::OnDemand,
        false => Machine::None,
    }
}
