//! Monte-Carlo over revocations: time and cost of every cluster of a scenario, and which is the cheapest at equal accuracy.

use fuelrail_base::Result;
use fuelrail_base::prng::Prng;
use serde::Serialize;

use crate::lives::Lifetimes;
use crate::loader::{Limit, Loader, over};
use crate::scenario::{Cluster, Machine, Scenario};
use crate::{HOUR_S, ONE_IN_TWENTY, usage};

/// Share of the runs that must meet the deadline and the budget.
const SURE: f64 = 0.95;
/// Revocations after which a run is given up: it makes no progress.
const REVOCATIONS_MAX: u32 = 20_000;
const HOURS_A_MONTH: f64 = 730.0;
const GB: f64 = 1e9;

/// A mean, and where nine of ten runs lie.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// One in twenty is below.
    pub low: f64,
    /// One in twenty is above.
    pub high: f64,
}

/// What a cluster comes to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Its name.
    pub cluster: String,
    /// Whether its accuracy is that of one worker.
    pub equal_accuracy: bool,
    /// As measured, where the scenario says it.
    pub accuracy: Option<f64>,
    /// From the first machine's start to the end.
    pub hours: Spread,
    /// All that is paid.
    pub cost: Spread,
    /// Of the mean cost: machines.
    pub machines_cost: f64,
    /// Of the mean cost: requests.
    pub requests_cost: f64,
    /// Of the mean cost: the data set in the bucket.
    pub storage_cost: f64,
    /// Of the mean cost: bytes out of the bucket.
    pub egress_cost: f64,
    /// Mean number of machines taken away.
    pub revocations: f64,
    /// Work between two checkpoints, seconds; absent where a revocation loses no work.
    pub checkpoint_interval_s: Option<f64>,
    /// Seconds of the first epoch and of each later one, without revocations.
    pub epoch_s: [f64; 2],
    /// What limits it.
    pub limit: Limit,
    /// Whether all its runs end and no other such cluster of equal accuracy is as fast and as cheap in the mean, and better in one.
    pub on_pareto_front: bool,
    /// Share of runs that ended by the deadline.
    pub deadline_met: f64,
    /// Share of runs within the budget.
    pub budget_met: f64,
    /// The first run's workers.
    pub timeline: Vec<Stay>,
}

/// A worker at work in a run, from one machine's first step to its end or the run's.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Stay {
    /// Which worker.
    pub worker: usize,
    /// Its first step, hours from the run's start.
    pub from_hours: f64,
    /// Its end, hours from the run's start.
    pub to_hours: f64,
    /// Whether the machine was taken away; otherwise the run ended.
    pub revoked: bool,
}

/// A scenario, played.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plan {
    /// Its name.
    pub scenario: String,
    /// Of all costs.
    pub currency: String,
    /// Runs of each cluster.
    pub runs: u32,
    /// Clusters in the order of the file.
    pub clusters: Vec<Outcome>,
    /// The cheapest cluster at equal accuracy that meets deadline and budget in 95 % of its runs.
    pub verdict: Option<String>,
    /// Why none is cheaper.
    pub why_not_cheaper: String,
}

/// Plays a scenario `runs` times.
///
/// # Errors
/// As [`Scenario::validate`]; `Usage` for no runs or more than 100 000.
pub fn plan(scenario: &Scenario, runs: u32, seed: u64) -> Result<Plan> {
    scenario.validate()?;
    if !(1..=100_000).contains(&runs) {
        return usage(format!("{runs} runs"), "give 1 to 100000");
    }
    let outcome =
        |(cluster, index): (&Cluster, u64)| outcome(scenario, cluster, runs, &mut Prng::new(seed.wrapping_add(index)));
    let mut clusters = scenario.clusters.iter().zip(0..).map(outcome).collect::<Result<Vec<_>>>()?;
    let points: Vec<(f64, f64)> =
        clusters.iter().filter(|c| c.on_pareto_front).map(|c| (c.hours.mean, c.cost.mean)).collect();
    for cluster in clusters.iter_mut().filter(|cluster| cluster.on_pareto_front) {
        let own = (cluster.hours.mean, cluster.cost.mean);
        let is_better = |other: &(f64, f64)| other.0 <= own.0 && other.1 <= own.1 && *other != own;
        cluster.on_pareto_front = !points.iter().any(is_better);
    }
    let (verdict, why_not_cheaper) = verdict(scenario, &clusters);
    let (scenario, currency) = (scenario.name.clone(), scenario.currency.clone());
    Ok(Plan { scenario, currency, runs, clusters, verdict, why_not_cheaper })
}

struct Run {
    hours: f64,
    revocations: u32,
    is_done: bool,
}

fn outcome(scenario: &Scenario, cluster: &Cluster, runs: u32, prng: &mut Prng) -> Result<Outcome> {
    let machine = scenario.machine(cluster, &cluster.machine)?;
    let loader = loader(scenario, cluster, machine);
    let epochs = scenario.data.epochs;
    let (first_s, later_s) = loader.epochs_s();
    // Of a run that is not slower or faster than the step time says.
    let work_s = |factor: f64| Loader { compute_s: loader.compute_s * factor, ..loader }.run_s(epochs);
    let lifetimes = Lifetimes::of(machine, cluster.spot);
    let checkpoint_s = scenario.model.checkpoint_s;
    // Young (CACM 1974), Daly (FGCS 2006): the interval at which saving costs as much as what a loss redoes.
    let between_s = lifetimes.mean_s.map(|mean_s| mean_s / f64::from(cluster.workers));
    let interval_s = between_s.filter(|_| cluster.synchronous).map(|between_s| (2.0 * checkpoint_s * between_s).sqrt());
    let mut timeline = Vec::new();
    let played: Vec<Run> = (0..runs)
        .map(|run| {
            let work_s = work_s(step_factor(scenario, prng));
            let any_hour = |prng: &mut Prng| if lifetimes.knows_hours() { prng.unit() * 24.0 } else { 0.0 };
            let start_hour = scenario.start_hour.unwrap_or_else(|| any_hour(prng));
            let crew = Crew { cluster, machine, lifetimes: &lifetimes, checkpoint_s, interval_s, start_hour };
            crew.run(work_s, prng, &mut |stay| timeline.extend((run == 0).then_some(stay)))
        })
        .collect();
    let server = cluster.server_machine.as_ref().filter(|_| cluster.servers > 0);
    let server_price =
        server.map(|server| scenario.machine(cluster, server)).transpose()?.map_or(0.0, |m| m.on_demand.value);
    let worker = machine.spot.as_ref().filter(|_| cluster.spot).unwrap_or(&machine.on_demand);
    let hourly =
        f64::from(cluster.workers + cluster.standby) * worker.value + f64::from(cluster.servers) * server_price;
    let (ram, disk) = loader.held();
    let set_gb = scenario.data.samples * scenario.data.sample_bytes / GB;
    let read_gb = set_gb * over(epochs, 1.0, 1.0 - ram - disk);
    let bucket = &scenario.bucket;
    let requests_cost = read_gb * GB / bucket.block_bytes / 1e6 * bucket.requests.value;
    let egress_cost = read_gb * bucket.egress.value;
    let storage_hourly = set_gb * bucket.storage.value / HOURS_A_MONTH;
    let cost = |run: &Run| run.hours * (hourly + storage_hourly) + requests_cost + egress_cost;
    let share =
        |holds: &dyn Fn(&Run) -> bool| played.iter().filter(|run| holds(run)).count() as f64 / played.len() as f64;
    let hours = Spread::of(played.iter().map(|run| run.hours).collect());
    Ok(Outcome {
        cluster: cluster.name.clone(),
        equal_accuracy: cluster.synchronous,
        accuracy: cluster.accuracy,
        cost: Spread::of(played.iter().map(cost).collect()),
        machines_cost: hours.mean * hourly,
        storage_cost: hours.mean * storage_hourly,
        hours,
        requests_cost,
        egress_cost,
        revocations: played.iter().map(|run| f64::from(run.revocations)).sum::<f64>() / played.len() as f64,
        checkpoint_interval_s: interval_s,
        epoch_s: [first_s, later_s],
        limit: loader.limit(epochs),
        // Unless another one is better, which `plan` sees.
        on_pareto_front: cluster.synchronous && played.iter().all(|run| run.is_done),
        deadline_met: share(&|run| run.is_done && scenario.deadline_hours.is_none_or(|hours| run.hours <= hours)),
        budget_met: share(&|run| run.is_done && scenario.budget.is_none_or(|budget| cost(run) <= budget)),
        timeline,
    })
}

/// An epoch as one worker sees it.
fn loader(scenario: &Scenario, cluster: &Cluster, machine: &Machine) -> Loader {
    let Scenario { data, model, bucket, .. } = scenario;
    let workers = f64::from(cluster.workers);
    Loader {
        epoch_bytes: data.samples * data.sample_bytes / workers,
        block_bytes: bucket.block_bytes,
        latency_s: bucket.latency_s,
        connections: bucket.connections,
        bucket_rate: bucket.gb_per_s * GB,
        request_rate: bucket.requests_per_s / workers,
        ram_bytes: machine.ram_gb * GB,
        disk_bytes: if machine.disk_gb_per_s > 0.0 { machine.disk_gb * GB } else { 0.0 },
        disk_rate: machine.disk_gb_per_s * GB,
        cores: machine.cores,
        core_s_per_byte: model.core_s_per_gb / GB,
        compute_s: data.samples / model.batch * model.step_s / cluster.speedup,
    }
}

/// How much slower than predicted a step of this run is: log-normal on either side, as the interval says.
fn step_factor(scenario: &Scenario, prng: &mut Prng) -> f64 {
    let Some([low, high]) = scenario.model.step_s_interval else { return 1.0 };
    // Box and Muller.
    let normal = (-2.0 * (1.0 - prng.unit()).ln()).sqrt() * (core::f64::consts::TAU * prng.unit()).cos();
    let end = if normal < 0.0 { scenario.model.step_s / low } else { high / scenario.model.step_s };
    (end.ln() / ONE_IN_TWENTY * normal).exp()
}

/// A cluster, ready to be played.
struct Crew<'c> {
    cluster: &'c Cluster,
    machine: &'c Machine,
    lifetimes: &'c Lifetimes<'c>,
    checkpoint_s: f64,
    interval_s: Option<f64>,
    /// Hour of the day at which the run starts.
    start_hour: f64,
}

impl Crew<'_> {
    /// Plays one run. A lost worker stops a synchronous cluster, which loses the work since its last checkpoint; it only slows an
    /// asynchronous one.
    fn run(&self, work_s: f64, prng: &mut Prng, see: &mut dyn FnMut(Stay)) -> Run {
        let Machine { start_s, replacement_s, warm_replacement_s, .. } = *self.machine;
        let replaced_s =
            warm_replacement_s.filter(|_| self.cluster.standby > 0).unwrap_or(replacement_s) + self.checkpoint_s;
        let mut end_of = |from_s: f64| from_s + self.lifetimes.draw_s(self.start_hour + from_s / HOUR_S, prng);
        let mut workers: Vec<(f64, f64)> = (0..self.cluster.workers).map(|_| (start_s, end_of(start_s))).collect();
        let stay = |worker: usize, from_s: f64, to_s: f64, revoked: bool| {
            let [from_hours, to_hours] = [from_s, to_s].map(|seconds| seconds / HOUR_S);
            Stay { worker, from_hours, to_hours, revoked }
        };
        let saving = self.interval_s.map_or(1.0, |interval_s| interval_s / (interval_s + self.checkpoint_s));
        let (mut now_s, mut done_s, mut revocations) = (start_s, 0.0, 0);
        loop {
            let there = workers.iter().filter(|(back_s, _)| *back_s <= now_s).count();
            let speed = match self.cluster.synchronous {
                true if there < workers.len() => 0.0,
                true => saving,
                false => there as f64 / workers.len() as f64,
            };
            let next_s = workers
                .iter()
                .map(|(back_s, end_s)| if *back_s > now_s { *back_s } else { *end_s })
                .fold(f64::INFINITY, f64::min);
            let end_s = now_s + (work_s - done_s) / speed;
            if speed > 0.0 && end_s <= next_s {
                let there = workers.iter().enumerate().filter(|(_, (back_s, _))| *back_s <= end_s);
                there.for_each(|(worker, (back_s, _))| see(stay(worker, *back_s, end_s, false)));
                // The last checkpoint is the result.
                return Run { hours: (end_s + self.checkpoint_s) / HOUR_S, revocations, is_done: true };
            }
            done_s += speed * (next_s - now_s);
            now_s = next_s;
            for (number, worker) in workers.iter_mut().enumerate().filter(|(_, (_, end_s))| *end_s <= now_s) {
                revocations += 1;
                see(stay(number, worker.0, now_s, true));
                let back_s = now_s + replaced_s;
                *worker = (back_s, end_of(back_s));
                done_s = self.interval_s.map_or(done_s, |interval_s| (done_s / interval_s).floor() * interval_s);
            }
            if revocations > REVOCATIONS_MAX {
                return Run { hours: now_s / HOUR_S, revocations, is_done: false };
            }
        }
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        Spread { mean: values.iter().sum::<f64>() / values.len() as f64, low: at(0.05), high: at(0.95) }
    }
}

/// The cheapest that will do, and why those that cost less will not.
fn verdict(scenario: &Scenario, outcomes: &[Outcome]) -> (Option<String>, String) {
    let will_do =
        |outcome: &&Outcome| outcome.equal_accuracy && outcome.deadline_met >= SURE && outcome.budget_met >= SURE;
    let cheapest = outcomes.iter().filter(will_do).min_by(|a, b| a.cost.mean.total_cmp(&b.cost.mean));
    let reason = |outcome: &Outcome| {
        let price = format!("'{}' costs {:.2} {}", outcome.cluster, outcome.cost.mean, scenario.currency);
        let missed =
            |share: f64, what: &str| format!("{price} but {what} in {:.0} % of the runs", (1.0 - share) * 100.0);
        let late = if scenario.deadline_hours.is_some() { "misses the deadline" } else { "makes no progress" };
        let accuracies =
            outcome.accuracy.zip(outcomes.iter().find(|other| other.equal_accuracy).and_then(|other| other.accuracy));
        match accuracies {
            Some((own, equal)) if !outcome.equal_accuracy => {
                format!("{price} but reaches an accuracy of {own} against {equal}")
            }
            _ if !outcome.equal_accuracy => format!("{price} but is asynchronous, which costs accuracy"),
            _ if outcome.deadline_met < SURE => missed(outcome.deadline_met, late),
            _ => missed(outcome.budget_met, "misses the budget"),
        }
    };
    let Some(best) = cheapest else {
        let all: Vec<String> = outcomes.iter().map(reason).collect();
        return (None, format!("No cluster will do: {}.", all.join("; ")));
    };
    let less: Vec<String> = outcomes.iter().filter(|outcome| outcome.cost.mean < best.cost.mean).map(reason).collect();
    let less = if less.is_empty() { "No cluster costs less".to_owned() } else { less.join("; ") };
    (Some(best.cluster.clone()), format!("{less}. '{}' is limited by {}.", best.cluster, best.limit))
}
