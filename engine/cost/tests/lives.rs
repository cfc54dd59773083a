//! Lives of spot machines, what to do on a notice, and why a run is slow.

use fuelrail_base::prng::Prng;
use fuelrail_cost::diagnosis::{Cause, Part, Shares, diagnose};
use fuelrail_cost::lives::curves;
use fuelrail_cost::notice::Notice;
use fuelrail_cost::table::Table;
use proptest::prelude::*;

const HEAD: &str = "region,device,age_hours,ended";

fn curve(rows: &str) -> fuelrail_cost::lives::Curve {
    curves(&Table::read(&format!("{HEAD}\n{rows}")).unwrap()).unwrap().remove(0)
}

#[test]
fn the_product_limit_is_the_textbooks() {
    // Remission times of 21 patients on 6-MP (Freireich 1963), whose curve every textbook has.
    let lives = "6,1 6,1 6,1 6,0 7,1 9,0 10,1 10,0 11,0 13,1 16,1 17,0 19,0 20,0 22,1 23,1 25,0 32,0 32,0 34,0 35,0";
    let rows: Vec<String> = lives.split(' ').map(|life| format!("a,b,{life}")).collect();
    let curve = curve(&rows.join("\n"));
    assert_eq!((curve.lives, curve.ended, curve.hourly), (21, 9, None));
    let alive: Vec<f64> = curve.ages.iter().map(|age| ((1.0 - age.ended) * 1e4).round() / 1e4).collect();
    assert_eq!(alive, [0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482, 0.4482]);
    assert_eq!(curve.ages.last().map(|age| age.hours), Some(35.0), "the highest age that was seen");
    let last = curve.ages[6];
    // Greenwood's standard error there is 0.1346.
    assert!((last.high - last.ended - 1.645 * 0.1346).abs() < 1e-3, "{last:?}");
}

#[test]
fn the_hour_of_the_day_is_found_through_ages() {
    let mut prng = Prng::new(5);
    let mut rows = String::from("region,device,age_hours,ended,started_hour");
    for _ in 0..4000 {
        // Three times the hazard from 9 to 17; lives are cut at 30 hours.
        let start = prng.unit() * 24.0;
        let (mut age, mut ended) = (0.0, 0);
        while age < 30.0 && ended == 0 {
            let hour = (start + age) % 24.0;
            let hazard = if (9.0..17.0).contains(&hour) { 0.06 } else { 0.02 };
            ended = u32::from(prng.chance(hazard * 0.1));
            age += 0.1;
        }
        rows.push_str(&format!("\nus,k80,{age},{ended},{start}"));
    }
    let curves = curves(&Table::read(&rows).unwrap()).unwrap();
    let hourly = curves[0].hourly.unwrap();
    let mean = |hours: std::ops::Range<usize>| hours.clone().map(|h| hourly[h]).sum::<f64>() / hours.len() as f64;
    let ratio = mean(10..16) / mean(18..24);
    assert!((2.4..3.6).contains(&ratio), "{ratio}: {hourly:?}");
}

#[test]
fn a_bad_table_of_lives_names_the_line() {
    for (text, said) in [
        ("region,device,age_hours\na,b,1", "columns region,device,age_hours,ended"),
        ("region,device,age_hours,ended\na,b,1,1\na,b,-1,1", "line 3: age_hours is '-1'"),
        ("region,device,age_hours,ended\na,b,1,perhaps", "line 2: ended is 'perhaps'"),
        ("region,device,age_hours,ended,started_hour\na,b,1,1,24", "line 2: started_hour is '24'"),
        ("region,device,age_hours,ended\n", "no rows"),
    ] {
        let error = Table::read(text).and_then(|table| curves(&table)).unwrap_err();
        assert!(error.cause().contains(said) && error.hint().is_some(), "{said}: {error}");
    }
}

const NOTICE: Notice = Notice { lead_s: 120.0, unsaved_s: 600.0, saving_s: 5.0 };

#[test]
fn a_notice_is_used_as_long_as_saving_is_safe() {
    let go_on = NOTICE.go_on_s().unwrap();
    assert!((80.0..115.0).contains(&go_on), "most of two minutes: {go_on}");
    let slow = Notice { saving_s: 40.0, ..NOTICE }.go_on_s().unwrap();
    assert!(slow < go_on - 40.0, "{slow}");
    assert_eq!(Notice { saving_s: 3000.0, ..NOTICE }.go_on_s(), None, "it would never be whole");
    let little = Notice { unsaved_s: 0.5, ..NOTICE }.go_on_s().unwrap();
    assert!(little > go_on, "less to lose: {little}");
}

const FAST: Shares =
    Shares { wall_s: 0.020, data_wait_s: 0.0, compute_s: 0.018, all_reduce_s: 0.002, decode_share: 0.0 };

#[test]
fn each_cause_of_a_slow_run_is_named() {
    let cause = |ranks: &[Shares]| diagnose([0.018, 0.022], ranks).and_then(|found| found.cause);
    assert_eq!(cause(&[FAST, FAST]), None);
    let all = |change: Shares| cause(&[change, change]);
    let waits = Shares { wall_s: 0.06, data_wait_s: 0.04, ..FAST };
    assert_eq!(all(waits), Some(Cause::All(Part::Bucket)));
    assert_eq!(all(Shares { decode_share: 0.9, ..waits }), Some(Cause::All(Part::Decode)));
    assert_eq!(all(Shares { wall_s: 0.06, compute_s: 0.058, ..FAST }), Some(Cause::All(Part::Device)));
    assert_eq!(all(Shares { wall_s: 0.06, all_reduce_s: 0.042, ..FAST }), Some(Cause::Network));
    let held = Shares { wall_s: 0.06, all_reduce_s: 0.042, ..FAST };
    let late = Shares { wall_s: 0.06, compute_s: 0.058, ..FAST };
    assert_eq!(cause(&[held, late, held]), Some(Cause::Straggler { rank: 1, by: Part::Device }));
    let starved = Shares { wall_s: 0.06, data_wait_s: 0.04, ..FAST };
    assert_eq!(cause(&[starved, held]), Some(Cause::Straggler { rank: 0, by: Part::Bucket }));
    let said = diagnose([0.018, 0.022], &[held, late]).unwrap().to_string();
    assert!(
        said.contains("60.0 ms a step, not 18.0 to 22.0")
            && said.contains("rank 1, slower than the others by the device"),
        "{said}"
    );
    assert_eq!(cause(&[]), None);
    let unexplained = diagnose([0.018, 0.022], &[Shares { wall_s: 0.06, data_wait_s: 0.003, ..FAST }; 2]).unwrap();
    assert_eq!(unexplained.cause, None, "{unexplained}");
    assert!(unexplained.to_string().ends_with("no part of it stands out"), "{unexplained}");
}

proptest! {
    #[test]
    fn any_numbers_are_answered(parts in prop::collection::vec(0.0f64..10.0, 4), lead_s in 0.0f64..1e4, saving_s in 0.0f64..1e4) {
        let rank = Shares { wall_s: 40.0, data_wait_s: parts[0], compute_s: parts[1] + parts[2], all_reduce_s: parts[3], decode_share: 1.0 };
        prop_assert!(diagnose([0.0, 1.0], &[rank, FAST]).is_some());
        let go_on = Notice { lead_s, saving_s, ..NOTICE }.go_on_s();
        prop_assert!(go_on.is_none_or(|s| (0.0..=lead_s).contains(&s)));
    }
}
