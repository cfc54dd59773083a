//! What no policy can beat: the least cost with the whole trace known.

use super::job::Job;

/// Steps of the search for the multiplier.
const STEPS: u32 = 30;

/// A lower bound of the cost of a job on this stretch of a trace, for one who knows it in advance.
///
/// Lagrange's relaxation of "all the work is done": hours of work earn a reward, the best way through the ticks comes from dynamic
/// programming over what runs, and the reward that gives the largest bound is searched for. It is
/// below the best schedule by less than one tick's price and what a single spell of machines adds.
pub fn cost_bound(job: &Job, tick_hours: f64, window: &[bool]) -> f64 {
    let (mut low, mut high) = (0.0, job.on_demand_price * (2.0 + job.changeover_hours / tick_hours));
    let mut best = 0.0f64;
    for _ in 0..STEPS {
        let reward = f64::midpoint(low, high);
        let (cost, worked) = cheapest(job, tick_hours, window, reward);
        best = best.max(cost - reward * worked + reward * job.job_hours);
        if worked < job.job_hours { low = reward } else { high = reward }
    }
    // Ticks are paid whole here, the last one is not.
    (best - job.on_demand_price * tick_hours).max(job.job_hours * job.spot_price.min(job.on_demand_price))
}

/// A way through the ticks so far.
#[derive(Clone, Copy)]
struct Way {
    /// Cost minus reward.
    objective: f64,
    cost: f64,
    worked_hours: f64,
}

impl Way {
    fn and(self, cost: f64, worked_hours: f64, reward: f64) -> Way {
        let objective = self.objective + cost - reward * worked_hours;
        Way { objective, cost: self.cost + cost, worked_hours: self.worked_hours + worked_hours }
    }

    fn or(self, other: Way) -> Way {
        if other.objective < self.objective { other } else { self }
    }
}

/// Cost and hours of work of the way that minimises cost minus reward.
fn cheapest(job: &Job, tick_hours: f64, window: &[bool], reward: f64) -> (f64, f64) {
    // Ticks of changeover that do no work, and what the tick after them does. A machine is not left in between: it would be paid for nothing.
    let idle = (job.changeover_hours / tick_hours) as usize;
    let first_hours = (idle + 1) as f64 * tick_hours - job.changeover_hours;
    // The best way to the start of each tick, and those that end with a machine at work: spot, on demand.
    let mut best = vec![Way { objective: 0.0, cost: 0.0, worked_hours: 0.0 }];
    let mut working = [None; 2];
    // Ticks in a row, up to now, at which a machine was available.
    let mut had = [0, 0];
    for (tick, available) in window.iter().enumerate() {
        let mut next = best[tick];
        for (kind, price) in [job.spot_price, job.on_demand_price].into_iter().enumerate() {
            let is_had = kind == 1 || *available;
            had[kind] = if is_had { had[kind] + 1 } else { 0 };
            let cost = price * tick_hours;
            let stays = working[kind].filter(|_| is_had).map(|way: Way| way.and(cost, tick_hours, reward));
            let starts =
                (had[kind] > idle).then(|| best[tick - idle].and(cost * (idle + 1) as f64, first_hours, reward));
            working[kind] = stays.into_iter().chain(starts).reduce(Way::or);
            next = working[kind].map_or(next, |way| next.or(way));
        }
        best.push(next);
    }
    let last = best[window.len()];
    (last.cost, last.worked_hours)
}
