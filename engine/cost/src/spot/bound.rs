//! What no policy can beat: the least cost with the whole trace known.

use super::job::Job;

/// Steps of the search for the multiplier.
const STEPS: u32 = 30;

/// A lower bound of the cost of a job on this stretch of a trace, for one who knows it in advance.
///
/// Lagrange's relaxation of "all the work is done": hours of work earn a reward, the best way through the ticks comes from dynamic
/// programming over what runs and how much of its changeover is left, and the reward that gives the largest bound is searched for. It is
/// below the best schedule by less than one tick's price and what a single spell of machines adds.
#[must_use]
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

/// Cost and hours of work of the way that minimises cost minus reward.
fn cheapest(job: &Job, tick_hours: f64, window: &[bool], reward: f64) -> (f64, f64) {
    // Ticks of changeover that do no work, and what the tick after them does.
    let idle = (job.changeover_hours / tick_hours) as usize;
    let first_hours = (idle + 1) as f64 * tick_hours - job.changeover_hours;
    // States: nothing; then spot and on demand, each by the ticks it has run, up to idle + 1.
    let kinds = [(1, job.spot_price), (1 + idle + 2, job.on_demand_price)];
    let states = 1 + 2 * (idle + 2);
    let nowhere = (f64::INFINITY, 0.0, 0.0);
    // The objective, the cost and the work so far.
    let (mut ways, mut next) = (vec![nowhere; states], vec![nowhere; states]);
    ways[0] = (0.0, 0.0, 0.0);
    for available in window {
        next.fill(nowhere);
        let idle_best = ways.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or(nowhere);
        next[0] = idle_best;
        for (kind, (base, price)) in kinds.into_iter().enumerate() {
            if kind == 0 && !available {
                continue;
            }
            // A new machine starts from the best of all states, a running one goes on.
            for run in 0..idle + 2 {
                let from = (run > 0).then(|| ways[base + run - 1]);
                let stays = (run == idle + 1).then(|| ways[base + run]);
                let way = if run == 0 {
                    idle_best
                } else {
                    from.into_iter().chain(stays).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or(nowhere)
                };
                let hours = match run {
                    _ if run < idle => 0.0,
                    _ if run == idle => first_hours,
                    _ => tick_hours,
                };
                let cost = price * tick_hours;
                next[base + run] = (way.0 + cost - reward * hours, way.1 + cost, way.2 + hours);
            }
        }
        core::mem::swap(&mut ways, &mut next);
    }
    let best = ways.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or(nowhere);
    (best.1, best.2)
}
