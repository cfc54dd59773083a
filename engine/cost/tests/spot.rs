//! Policies for spot machines on the families of traces.

use fuelrail_base::Kind;
use fuelrail_cost::spot::{Job, Played, Player, Policy, Trace};

use proptest::prelude::*;

use crate::traces::{FAMILIES, GAP_SECONDS, trace};

const JOB: Job =
    Job { job_hours: 48.0, deadline_hours: 60.0, changeover_hours: 0.2, spot_price: 0.3, on_demand_price: 1.0 };
const ALL: [Policy; 3] = [Policy::Greedy, Policy::UniformProgress, Policy::Ours];

fn family(index: usize) -> Trace {
    let counts: Vec<f64> = trace(index).into_iter().map(f64::from).collect();
    Trace::new(GAP_SECONDS, &counts).unwrap()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

#[test]
fn ours_costs_less_than_uniform_progress_and_no_deadline_is_missed() {
    // 300 starts, which `engine/docs/PLAN.md` reports, take a while without optimisation.
    const STARTS: u32 = 40;
    let player = Player::new(JOB, &ALL).unwrap();
    let mut ratios = Vec::new();
    for (index, (name, ..)) in FAMILIES.into_iter().enumerate() {
        let Played { runs, bounds } = player.play(&family(index), STARTS, 7).unwrap();
        assert!(runs.iter().flatten().all(|run| run.deadline_met), "{name}");
        for runs in &runs {
            assert!(runs.iter().zip(&bounds).all(|(run, bound)| run.cost >= *bound - 1e-6), "{name}");
        }
        let [_, uniform, ours] = [0, 1, 2].map(|policy| mean(runs[policy].iter().map(|run| run.cost)));
        assert!(ours <= uniform, "{name}: {ours} against {uniform}");
        ratios.push(ours / uniform);
    }
    let ratio = mean(ratios.into_iter());
    assert!(ratio <= 0.95, "{ratio}");
}

#[test]
fn simple_traces_cost_what_can_be_said_beforehand() {
    let player = Player::new(JOB, &ALL).unwrap();
    let cost = |counts: &[f64]| {
        let Played { runs, bounds } = player.play(&Trace::new(3600.0, counts).unwrap(), 1, 0).unwrap();
        (runs.iter().map(|runs| runs[0].cost).collect::<Vec<_>>(), bounds[0])
    };
    let near = |value: f64, wanted: f64| (value - wanted).abs() < 1e-6;
    // Always spot: the job and one changeover. Never: on demand, which no policy can avoid.
    let (costs, bound) = cost(&[1.0; 60]);
    assert!(costs.iter().all(|cost| near(*cost, 0.3 * 48.2)) && bound <= costs[0], "{costs:?} {bound}");
    let (costs, bound) = cost(&[0.0; 60]);
    assert!(costs.iter().all(|cost| *cost < 52.0 && *cost >= 48.2 - 1e-6) && bound <= 48.2, "{costs:?} {bound}");
}

#[test]
fn jobs_and_traces_that_make_no_sense_say_what_to_do() {
    let trace = Trace::new(600.0, &[1.0; 100]).unwrap();
    let refused = |job: Job, trace: &Trace, starts| {
        let error = Player::new(job, &ALL[..2]).and_then(|player| player.play(trace, starts, 0)).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.hint().is_some(), "{error}");
        error.to_string()
    };
    assert!(refused(JOB, &trace, 1).contains("the trace has 16.7 hours"));
    assert!(refused(Job { deadline_hours: 48.1, ..JOB }, &trace, 1).contains("later deadline"));
    assert!(refused(Job { spot_price: -0.3, ..JOB }, &trace, 1).contains("the spot price is -0.3"));
    assert!(refused(Job { on_demand_price: 1e300, ..JOB }, &trace, 1).contains("from 1e-9 to 1e9"));
    assert!(refused(Job { changeover_hours: f64::NAN, ..JOB }, &trace, 1).contains("changeover"));
    assert!(refused(Job { job_hours: 1.0, deadline_hours: 2.0, ..JOB }, &trace, 0).contains("0 starts"));
    assert!(refused(JOB, &Trace::new(1e-6, &[1.0]).unwrap(), 1).contains("gap_seconds"));
    for (gap, counts) in [(600.0, &[][..]), (0.0, &[1.0]), (600.0, &[1.0, -1.0]), (600.0, &[f64::NAN])] {
        assert_eq!(Trace::new(gap, counts).unwrap_err().kind(), Kind::Usage);
    }
}

/// A million ticks without slack, a thousand of them changeover: no sum of ticks may drift, and no work grow with their product.
#[test]
fn long_traces_of_short_ticks() {
    let job = Job { job_hours: 999.0, deadline_hours: 1000.0, changeover_hours: 1.0, ..JOB };
    let player = Player::new(job, &ALL[..2]).unwrap();
    let Played { runs, bounds } = player.play(&Trace::new(3.6, &[1.0; 1_000_000]).unwrap(), 1, 0).unwrap();
    for run in runs.iter().flatten() {
        assert!(run.deadline_met && run.cost >= bounds[0] - 1e-6, "{run:?} {bounds:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(8)))]
    #[test]
    fn every_deadline_that_can_be_met_is_met(
        spells in prop::collection::vec((1usize..40, any::<bool>()), 1..20),
        gap_seconds in 60.0f64..7200.0,
        job_hours in 0.5f64..20.0,
        slack in 0.0f64..1.0,
        changeover_hours in 0.0f64..1.5,
        spot_price in 0.05f64..1.5,
        seed in any::<u64>(),
    ) {
        let mut counts: Vec<f64> = spells.iter().flat_map(|(ticks, up)| vec![f64::from(u8::from(*up)); *ticks]).collect();
        let deadline_hours = (job_hours + changeover_hours) * (1.0 + slack) + 1e-6;
        let ticks = (deadline_hours * 3600.0 / gap_seconds).ceil() as usize;
        counts.resize(counts.len() + ticks, 0.0);
        let job = Job { job_hours, deadline_hours, changeover_hours, spot_price, on_demand_price: 1.0 };
        // Ours takes a table of costs for every job: one case in eight says as much of the safety net.
        let policies = if seed % 8 == 0 { &ALL[..] } else { &ALL[..2] };
        let player = Player::new(job, policies).unwrap();
        let played = player.play(&Trace::new(gap_seconds, &counts).unwrap(), 3, seed).unwrap();
        for (run, bound) in played.runs.iter().flat_map(|runs| runs.iter().zip(&played.bounds)) {
            prop_assert!(run.deadline_met, "{run:?}");
            prop_assert!(run.cost >= bound - 1e-6, "{run:?} below {bound}");
            prop_assert!(run.spot_hours + run.on_demand_hours >= job_hours - 1e-6);
        }
    }
}
