//! Scenarios: what can be said of them beforehand, and what the loader's closed form says is the limit.

use fuelrail_cost::compare::plan;
use fuelrail_cost::loader::{Limit, Loader};
use fuelrail_cost::scenario::{Bucket, Cluster, Data, Fact, Machine, Model, Scenario};
use proptest::prelude::*;

fn price(value: f64, of: &str) -> Fact {
    let text = |text: &str| text.to_owned();
    Fact { value, unit: format!("USD/{of}"), date: text("2026-11-01"), region: text("a"), source: text("made up") }
}

/// 100 hours of work for one worker, and clusters of one machine.
fn scenario(revoked_within_24h: f64, clusters: &[(u32, bool, bool)]) -> Scenario {
    let cluster = |(workers, spot, synchronous): &(u32, bool, bool)| Cluster {
        name: format!("{workers} {spot} {synchronous}"),
        machine: "machine".to_owned(),
        workers: *workers,
        spot: *spot,
        standby: 0,
        servers: 0,
        server_machine: None,
        synchronous: *synchronous,
        speedup: f64::from(*workers),
        accuracy: None,
    };
    Scenario {
        name: "test".to_owned(),
        currency: "USD".to_owned(),
        deadline_hours: Some(1000.0),
        budget: None,
        start_hour: None,
        data: Data { samples: 1e5, sample_bytes: 1e4, epochs: 36.0 },
        model: Model {
            name: "model".to_owned(),
            batch: 100.0,
            step_s: 10.0,
            step_s_interval: None,
            checkpoint_s: 20.0,
            core_s_per_gb: 1.0,
        },
        bucket: Bucket {
            latency_s: 0.05,
            connections: 64.0,
            block_bytes: 1e6,
            gb_per_s: 1.0,
            requests_per_s: 1000.0,
            storage: price(0.0, "GB-month"),
            requests: price(0.0, "million requests"),
            egress: price(0.0, "GB"),
        },
        machines: vec![Machine {
            name: "machine".to_owned(),
            on_demand: price(1.0, "hour"),
            spot: Some(price(0.25, "hour")),
            ram_gb: 1.0,
            disk_gb: 0.0,
            disk_gb_per_s: 0.0,
            cores: 4.0,
            start_s: 80.0,
            replacement_s: 90.0,
            warm_replacement_s: Some(20.0),
            revoked_within_24h: Some(revoked_within_24h),
            revoked_by_age: Vec::new(),
            lives: None,
            hourly: None,
        }],
        clusters: clusters.iter().map(cluster).collect(),
    }
}

#[test]
fn what_is_never_revoked_takes_its_work() {
    let plan = plan(&scenario(0.0, &[(1, false, true), (1, true, true), (4, true, false)]), 50, 1).unwrap();
    let hours = |index: usize| plan.clusters[index].hours;
    let one = (36.0 * 10_000.0 + 80.0 + 20.0) / 3600.0;
    for (index, wanted) in [(0, one), (1, one), (2, (36.0 * 2_500.0 + 100.0) / 3600.0)] {
        assert!(
            (hours(index).mean - wanted).abs() < 1e-6 && (hours(index).low - wanted).abs() < 1e-6,
            "{:?}",
            hours(index)
        );
    }
    let (verdict, why) = (plan.verdict.unwrap(), plan.why_not_cheaper);
    assert_eq!(verdict, "1 true true", "four asynchronous workers are no equal");
    assert!(!why.contains("4 true false") || why.contains("asynchronous"), "{why}");
}

#[test]
fn what_is_as_fast_and_costs_more_is_not_on_the_front() {
    let plan = plan(&scenario(0.0, &[(1, false, true), (1, true, true)]), 1, u64::MAX).unwrap();
    assert_eq!([0, 1].map(|index| plan.clusters[index].on_pareto_front), [false, true]);
}

#[test]
fn the_constant_hazard_of_a_table_by_age_is_the_same_hazard() {
    let constant = scenario(0.5, &[(2, true, true)]);
    let mut by_age = constant.clone();
    by_age.machines[0].revoked_within_24h = None;
    by_age.machines[0].revoked_by_age =
        (1..=48).map(|hour| [f64::from(hour), 1.0 - 0.5f64.powf(f64::from(hour) / 24.0)]).collect();
    let [first, second] = [constant, by_age].map(|scenario| plan(&scenario, 800, 3).unwrap().clusters.remove(0));
    // 50 hours, two workers, half of them lost a day.
    let expected = 2.0 * 2f64.ln() / 24.0 * first.hours.mean;
    assert!((first.revocations / expected - 1.0).abs() < 0.1, "{} against {expected}", first.revocations);
    assert!((second.revocations / first.revocations - 1.0).abs() < 0.1, "{second:?}");
    // Young's interval: the square root of twice 20 s times the mean between losses.
    let mean_s: f64 = 24.0 * 3600.0 / 2f64.ln() / 2.0;
    assert!((first.checkpoint_interval_s.unwrap() - (40.0 * mean_s).sqrt()).abs() < 1e-6);
}

#[test]
fn lives_that_were_seen_are_the_hazard() {
    let constant = scenario(0.5, &[(2, true, true)]);
    let mut prng = fuelrail_base::prng::Prng::new(9);
    let mut rows = String::from("region,device,age_hours,ended,started_hour");
    for _ in 0..3000 {
        // Half of them live longer than a day; all are seen for two days at most.
        let life = -(1.0 - prng.unit()).ln() * 24.0 / 2f64.ln();
        rows.push_str(&format!("\na,machine,{},{},{}", life.min(48.0), u32::from(life < 48.0), prng.unit() * 24.0));
    }
    let curves = fuelrail_cost::lives::curves(&fuelrail_cost::table::Table::read(&rows).unwrap()).unwrap();
    let mut seen = constant.clone();
    let machine = &mut seen.machines[0];
    assert!(machine.take_lives(&curves).unwrap_err().cause().contains("both lives and a share"));
    machine.revoked_within_24h = None;
    machine.take_lives(&curves).unwrap();
    assert!(machine.revoked_by_age.len() <= 96 && machine.hourly.is_some());
    let [first, second] = [constant, seen].map(|scenario| plan(&scenario, 800, 3).unwrap().clusters.remove(0));
    assert!((second.revocations / first.revocations - 1.0).abs() < 0.1, "{} {}", first.revocations, second.revocations);
    let stays = &second.timeline;
    assert!(stays.iter().filter(|stay| !stay.revoked).count() == 2, "two workers are there at the end: {stays:?}");
    assert!(stays.iter().all(|stay| stay.from_hours <= stay.to_hours && stay.worker < 2));
    let mut elsewhere = scenario(0.0, &[(1, true, true)]).machines.remove(0);
    elsewhere.revoked_within_24h = None;
    elsewhere.name = "P100".to_owned();
    let error = elsewhere.take_lives(&curves).unwrap_err();
    assert!(
        error.cause().contains("no lives of P100 in 'a'") && error.hint().unwrap().contains("machine in a"),
        "{error}"
    );
}

#[test]
fn a_cluster_that_makes_no_progress_ends_and_does_not_win() {
    let mut hopeless = scenario(0.99, &[(400, true, true), (1, false, true)]);
    hopeless.machines[0].replacement_s = 36_000.0;
    let plan = plan(&hopeless, 2, 0).unwrap();
    assert_eq!((plan.clusters[0].deadline_met, plan.verdict.as_deref()), (0.0, Some("1 false true")));
    assert_eq!([0, 1].map(|index| plan.clusters[index].on_pareto_front), [false, true]);
    hopeless.deadline_hours = None;
    hopeless.clusters.truncate(1);
    let why = fuelrail_cost::compare::plan(&hopeless, 2, 0).unwrap().why_not_cheaper;
    assert!(why.contains("makes no progress"), "{why}");
}

#[test]
fn a_standby_replaces_warm_and_is_paid() {
    let mut both = scenario(0.9, &[(4, true, true), (4, true, true)]);
    both.clusters[1].standby = 2;
    both.machines[0].replacement_s = 1800.0;
    let plan = plan(&both, 200, 0).unwrap();
    let [cold, warm] = [0, 1].map(|index| &plan.clusters[index]);
    assert!(warm.hours.mean < cold.hours.mean, "{warm:?} {cold:?}");
    assert!((warm.machines_cost / warm.hours.mean - 1.5).abs() < 1e-9, "six machines at a quarter");
    assert!(warm.on_pareto_front || cold.on_pareto_front);
}

#[test]
fn the_verdict_says_why_not_cheaper() {
    let mut late = scenario(0.3, &[(1, true, true), (4, true, true), (4, true, false)]);
    late.deadline_hours = Some(40.0);
    let in_time = plan(&late, 100, 0).unwrap();
    assert_eq!(in_time.verdict.as_deref(), Some("4 true true"));
    let why = in_time.why_not_cheaper;
    assert!(why.contains("'1 true true' costs") && why.contains("misses the deadline in 100 %"), "{why}");
    assert!(why.contains("asynchronous") && why.contains("limited by compute"), "{why}");
    late.budget = Some(1.0);
    let none = plan(&late, 100, 0).unwrap();
    assert!(none.verdict.is_none() && none.why_not_cheaper.contains("budget"), "{}", none.why_not_cheaper);
    assert!(plan(&late, 0, 0).is_err());
}

const LOADER: Loader = Loader {
    epoch_bytes: 1e11,
    block_bytes: 1e6,
    latency_s: 0.05,
    connections: 100.0,
    bucket_rate: 4e9,
    request_rate: 1e5,
    ram_bytes: 0.0,
    disk_bytes: 0.0,
    disk_rate: 1e9,
    cores: 16.0,
    core_s_per_byte: 1e-9,
    compute_s: 1.0,
};

#[test]
fn each_resource_can_be_the_limit() {
    assert_eq!(LOADER.limit(10.0), Limit::Latency);
    assert_eq!(Loader { connections: 1000.0, ..LOADER }.limit(10.0), Limit::Bandwidth);
    assert_eq!(Loader { compute_s: 1000.0, ..LOADER }.limit(10.0), Limit::Compute);
    assert_eq!(Loader { request_rate: 100.0, ..LOADER }.limit(10.0), Limit::Requests);
    assert_eq!(Loader { cores: 1.0, ..LOADER }.limit(10.0), Limit::Cores);
    assert_eq!(Loader { ram_bytes: 5e10, ..LOADER }.limit(10.0), Limit::Ram);
    assert_eq!(Loader { disk_bytes: 1e11, disk_rate: 3e9, ..LOADER }.limit(100.0), Limit::Disk);
    // F = 1 / (x / C + (1 - x) / S).
    let half = Loader { disk_bytes: 5e10, ..LOADER };
    assert!((half.rate(half.held()) - 1.0 / (0.5 / 1e9 + 0.5 / 2e9)).abs() < 1.0);
    assert!((LOADER.epochs_s().0 - 50.0).abs() < 1e-9, "latency: 100 blocks in 50 ms");
}

proptest! {
    #[test]
    fn more_of_anything_never_slows_an_epoch(
        ram in 0.0f64..2e11, disk in 0.0f64..2e11, connections in 1.0f64..1000.0, compute_s in 0.0f64..200.0, epochs in 0.5f64..50.0,
    ) {
        // The disk is faster than the bucket, as a cache should be.
        let loader = Loader { ram_bytes: ram, disk_bytes: disk, disk_rate: 3e10, connections, compute_s, ..LOADER };
        let (first, later) = loader.epochs_s();
        prop_assert!(first.is_finite() && later <= first + 1e-9 && later >= compute_s - 1e-9);
        for better in [
            Loader { ram_bytes: ram * 2.0, ..loader },
            Loader { connections: connections * 2.0, ..loader },
            Loader { compute_s: compute_s / 2.0, ..loader },
            Loader { cores: loader.cores * 2.0, ..loader },
        ] {
            let (better_first, better_later) = better.epochs_s();
            prop_assert!(better_first <= first + 1e-9 && better_later <= later + 1e-9);
        }
        prop_assert!(Limit::ALL.contains(&loader.limit(epochs)));
    }
}
