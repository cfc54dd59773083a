//! Our policy: what is known of availability is a weight for each of a grid of two-state chains, and the action is the one that costs
//! least in the mean over them.
//!
//! For every chain, dynamic programming over time, work left, availability and machine gives the cost of every action from there on
//! (Puterman, "Markov Decision Processes", 1994). The weights follow from what was seen since the start, by Bayes' rule. To average the
//! costs of actions over the weights, as if all became known after this step, is the QMDP rule (Littman, Cassandra and Kaelbling, ICML
//! 1995); availability is seen whatever runs, so that nothing is lost by not exploring.

use super::job::{Job, Machine, View};

/// Steps of time up to the deadline.
const STEPS: usize = 240;
const WORK_STEPS: usize = 192;
/// Mean spells of the chains, as shares of the deadline: a factor of three apart.
const SPELLS: [f64; 6] = [1.0 / 121.5, 1.0 / 40.5, 1.0 / 13.5, 1.0 / 4.5, 1.0 / 1.5, 2.0];
/// What an hour of work that is missing at the deadline costs, in hours on demand. Any large number: the safety net sees to it that none is.
const MISSING: f64 = 10.0;
const MACHINES: [Machine; 3] = [Machine::None, Machine::Spot, Machine::OnDemand];

/// A two-state chain by its mean spells, hours.
#[derive(Clone, Copy, Debug)]
struct Chain {
    up_hours: f64,
    down_hours: f64,
}

impl Chain {
    /// Probability that a machine is available in `hours`, given whether one is now.
    fn available(&self, now: bool, hours: f64) -> f64 {
        let (lost, found) = (1.0 / self.up_hours, 1.0 / self.down_hours);
        let share = found / (lost + found);
        let memory = (-(lost + found) * hours).exp();
        if now { share + (1.0 - share) * memory } else { share * (1.0 - memory) }
    }
}

/// The costs from every state of every chain.
#[derive(Debug)]
pub(super) struct Table {
    job: Job,
    chains: Vec<Chain>,
    /// By chain, step of time, availability, machine, step of work.
    costs: Vec<f32>,
    step_hours: f64,
    work_hours: f64,
}

/// The policy during one run.
#[derive(Clone, Debug)]
pub(super) struct Learned<'t> {
    table: &'t Table,
    tick_hours: f64,
    weights: Vec<f64>,
    before: Option<bool>,
}

impl Table {
    pub(super) fn new(job: &Job) -> Table {
        let spell =
            |up: f64, down: f64| Chain { up_hours: up * job.deadline_hours, down_hours: down * job.deadline_hours };
        let chains: Vec<Chain> = SPELLS.iter().flat_map(|up| SPELLS.iter().map(|down| spell(*up, *down))).collect();
        let step_hours = job.deadline_hours / STEPS as f64;
        let work_hours = (job.job_hours + 2.0 * job.changeover_hours) / WORK_STEPS as f64;
        let costs = vec![0.0; chains.len() * (STEPS + 1) * 6 * (WORK_STEPS + 1)];
        let mut table = Table { job: *job, chains, costs, step_hours, work_hours };
        for chain in 0..table.chains.len() {
            table.fill(chain);
        }
        table
    }

    fn place(&self, chain: usize, step: usize, available: bool, machine: Machine) -> usize {
        (((chain * (STEPS + 1) + step) * 2 + usize::from(available)) * 3 + machine as usize) * (WORK_STEPS + 1)
    }

    fn fill(&mut self, chain: usize) {
        for step in (0..=STEPS).rev() {
            for available in [false, true] {
                for machine in MACHINES {
                    let place = self.place(chain, step, available, machine);
                    for work in 0..=WORK_STEPS {
                        let left_hours = work as f64 * self.work_hours;
                        let cost = if step == STEPS {
                            left_hours * MISSING * self.job.on_demand_price
                        } else {
                            let elapsed_hours = step as f64 * self.step_hours;
                            let view = View { elapsed_hours, left_hours, pending_hours: 0.0, available, machine };
                            let actions = MACHINES.into_iter().filter(|action| available || *action != Machine::Spot);
                            actions.map(|action| self.action_cost(chain, &view, action)).fold(f64::INFINITY, f64::min)
                        };
                        self.costs[place + work] = cost as f32;
                    }
                }
            }
        }
    }

    /// Mean cost to the end, when the next step is spent on `action`.
    fn action_cost(&self, chain: usize, view: &View, action: Machine) -> f64 {
        // A changeover is work that the machine does, too.
        let pending = if action == view.machine { view.pending_hours } else { self.job.changeover_hours };
        let (price, left_hours) = match action {
            Machine::None => (0.0, view.left_hours),
            Machine::Spot => (self.job.spot_price, view.left_hours + pending),
            Machine::OnDemand => (self.job.on_demand_price, view.left_hours + pending),
        };
        if left_hours <= 0.0 {
            return 0.0;
        }
        let paid = if action == Machine::None { 0.0 } else { self.step_hours.min(left_hours) };
        let after_hours = left_hours - paid;
        let then = |available: bool| {
            // A spot machine that is gone is no machine.
            let machine = if action == Machine::Spot && !available { Machine::None } else { action };
            self.cost(chain, view.elapsed_hours + self.step_hours, available, machine, after_hours)
        };
        let probability = self.chains[chain].available(view.available, self.step_hours);
        price * paid + probability * then(true) + (1.0 - probability) * then(false)
    }

    /// Mean cost from a state, interpolated linearly between the steps.
    fn cost(&self, chain: usize, elapsed_hours: f64, available: bool, machine: Machine, left_hours: f64) -> f64 {
        let (step, step_share) = split(elapsed_hours / self.step_hours, STEPS);
        let (work, work_share) = split(left_hours / self.work_hours, WORK_STEPS);
        let at = |step: usize| {
            let place = self.place(chain, step, available, machine) + work;
            f64::from(self.costs[place]) * (1.0 - work_share) + f64::from(self.costs[place + 1]) * work_share
        };
        if step_share < 1e-9 { at(step) } else { at(step) * (1.0 - step_share) + at(step + 1) * step_share }
    }
}

/// The step at or before a position, at most `last - 1`, and the share of the way to the next.
fn split(place: f64, last: usize) -> (usize, f64) {
    let place = place.clamp(0.0, last as f64);
    let whole = (place as usize).min(last - 1);
    (whole, place - whole as f64)
}

impl<'t> Learned<'t> {
    pub(super) fn new(table: &'t Table, tick_hours: f64) -> Learned<'t> {
        Learned { table, tick_hours, weights: vec![1.0 / table.chains.len() as f64; table.chains.len()], before: None }
    }

    /// Learns what is available now, and decides.
    pub(super) fn decide(&mut self, view: &View) -> Machine {
        for (weight, chain) in self.weights.iter_mut().zip(&self.table.chains) {
            // The first one is drawn from the chain's long run.
            let probability = match self.before {
                Some(before) => chain.available(before, self.tick_hours),
                None => chain.available(true, f64::INFINITY),
            };
            *weight *= if view.available { probability } else { 1.0 - probability };
        }
        let sum: f64 = self.weights.iter().sum();
        self.weights.iter_mut().for_each(|weight| *weight = (*weight / sum).max(1e-9));
        self.before = Some(view.available);
        let mean_cost = |action: Machine| -> f64 {
            let likely = self.weights.iter().enumerate().filter(|(_, weight)| **weight > 1e-3);
            likely.map(|(chain, weight)| weight * self.table.action_cost(chain, view, action)).sum()
        };
        let actions = MACHINES.into_iter().filter(|action| view.available || *action != Machine::Spot);
        let costs = actions.map(|action| (mean_cost(action), action));
        costs.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(Machine::OnDemand, |(_, action)| action)
    }
}
