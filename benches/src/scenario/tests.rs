//! Scenario files, the arithmetic of figures, and the harder set.

use super::figures::{Figures, Tick, add, add_phases, means, value};
use super::runner::chosen;
use super::*;

#[test]
fn every_scenario_is_one_and_names_are_replaced() {
    for (name, text) in SCENARIOS {
        let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!scenario.runs.iter().any(|run| run.name.contains('{')), "{name}");
    }
    let tiers = Scenario::find("tiers").unwrap().scaled(0.02);
    let run = &tiers.runs[7];
    assert_eq!((tiers.runs.len(), run.name.as_str(), run.facts["capacity"]), (15, "lru, 50 %", 50.0));
    let of = |name: &str| run.settings[name].as_str();
    assert_eq!((of("cache_limit_bytes"), of("spill_policy")), (Some("50% * 0.2"), Some("lru")));
    assert_eq!((run.bucket.set.count, run.read.as_ref().unwrap().processes), (400, 1));
    let refused = Scenario::find("no-such").unwrap_err();
    assert!(refused.kind() == Kind::Usage && refused.to_string().contains("spill-reads"), "{refused}");
}

/// Sums over ticks of what comes in each.
fn sums(ticks: usize, served: impl Fn(usize) -> u32, refused: impl Fn(usize) -> u32) -> Vec<Tick> {
    let mut all = vec![Tick { readers: vec![0.0; 2], ..Tick::default() }];
    for tick in 1..=ticks {
        let last = all[tick - 1].clone();
        let served = last.served + f64::from(served(tick));
        let refused = last.refused + f64::from(refused(tick));
        all.push(Tick { served, refused, readers: vec![served / 4.0, served * 3.0 / 4.0] });
    }
    all
}

fn phase(name: &str, seconds: f64, holds: Option<f64>, reaches: Option<&str>) -> Phase {
    Phase { name: name.into(), seconds, script: None, holds, reaches: reaches.map(Into::into) }
}

fn of(phases: &[Phase], sums: &[Tick]) -> Figures {
    let mut figures = Figures::new();
    add_phases(&mut figures, phases, sums);
    figures
}

#[test]
fn a_limit_that_is_found_after_two_seconds_and_left_one_second_late() {
    let served = |tick| match tick {
        ..=20 => 0,
        21..=210 => 10,
        _ => 40,
    };
    let phases = [phase("limited", 20.0, Some(100.0), None), phase("lifted", 5.0, None, Some("200"))];
    let figures = of(&phases, &sums(250, served, |tick| u32::from(tick > 100)));
    assert_eq!(figures["limited.converged_s"], 1.8, "a tenth of two seconds may still be missing");
    assert_eq!((figures["limited.settled_per_s"], figures["limited.lowest_per_s"]), (100.0, 100.0));
    assert_eq!((figures["limited.settled_refused"], figures["limited.refused"]), (100.0, 100.0));
    assert_eq!((figures["limited.share.0"], figures["limited.share.1"]), (0.25, 0.75));
    assert_eq!(figures["lifted.reached_s"], 1.2, "two ticks of 40 and three of 10 are not yet twice the limit");
}

#[test]
fn a_rate_never_found_has_no_figure_and_an_outage_counts_its_requests() {
    let never = of(&[phase("a", 20.0, Some(100.0), Some("1e9"))], &sums(200, |tick| (tick % 40) as u32 / 2, |_| 1));
    assert!(!never.contains_key("a.converged_s") && !never.contains_key("a.reached_s"), "{never:?}");
    assert!(never["a.lowest_per_s"] < 90.0, "{never:?}");
    let down = |tick: usize| (50..150).contains(&(tick - 1));
    let served = |tick| if down(tick) { 0 } else { 20 };
    let refused = |tick| u32::from(down(tick) && tick % 10 == 0);
    let reaches = "before.settled_per_s / 2";
    let phases = [("before", 5.0, None), ("outage", 10.0, None), ("after", 5.0, Some(reaches))];
    let phases = phases.map(|(name, seconds, reaches)| phase(name, seconds, None, reaches));
    let figures = of(&phases, &sums(200, served, refused));
    let found = (figures["before.settled_per_s"], figures["outage.refused"], figures["after.reached_s"]);
    assert_eq!(found, (200.0, 10.0, 0.5));
}

#[test]
fn columns_are_sums_of_products_of_what_is_known() {
    let mut figures = Figures::new();
    add(&mut figures, "x", &serde_json::json!({"a": 6, "b": [{"c": 1.5}], "d": null, "e": "7"}));
    let known: Vec<&str> = figures.keys().map(String::as_str).collect();
    assert_eq!(known, ["x.a", "x.b.0.c"]);
    assert_eq!(value("x.a / x.b.0.c * 10 - 2 * x.a + 1", &figures), Some(29.0));
    assert_eq!(["x.d", "x.a +", "x.a x.a 1", "x.a / 0"].map(|text| value(text, &figures)), [None; 4]);
    let other = Figures::from([("x.a".to_owned(), 8.0)]);
    assert_eq!(means(&[figures, other]), Figures::from([("x.a".to_owned(), 7.0)]));
}

#[test]
fn some_classes_are_rare_and_some_labels_wrong() {
    let scenario = Scenario::find("importance").unwrap().scaled(2.0);
    let harder = scenario.runs.iter().find(|run| run.name == "harder, on").unwrap();
    let (digits, chosen) = (&harder.bucket.set, chosen(&harder.bucket));
    let of = |class: u64| chosen.iter().filter(|(index, _)| digits.class(*index) == class).count();
    assert!((0..5).all(|class| of(class) == 400));
    assert!((5..10).all(|class| (15..70).contains(&of(class))));
    let wrong = chosen.iter().filter(|(index, said)| digits.class(*index) != *said).count() as f64;
    let share = wrong / chosen.len() as f64;
    assert!((0.07..0.13).contains(&share), "{share}");
}
