//! Predictors on published measurements, whole models left out.

use fuelrail_base::Kind;
use fuelrail_base::prng::Prng;
use fuelrail_cost::fit::{Report, fit};
use fuelrail_cost::table::Table;

fn report(text: &str) -> Report {
    fit(&Table::read(text).unwrap()).unwrap()
}

#[test]
fn step_time_of_a_model_never_seen() {
    let report = report(include_str!("data/k80_step_time.csv"));
    assert!(report.leave_one_model_out_mape <= 0.041 && report.interval_coverage >= 0.85, "{report:?}");
    assert_eq!(report.rows.len(), 20);
    // ResNet-32, which is in the table: 0.218 s.
    let known = report.predict(&[1.6587, 104.0, 1_857_722.0]).unwrap();
    assert!((0.2..0.24).contains(&known.value) && known.low < 0.218 && known.high > 0.218, "{known:?}");
    assert!(report.predict(&[1.0]).unwrap_err().to_string().contains("give GFLOPS,TENSORS,PARAMETERS"));
}

#[test]
fn checkpoint_time_of_a_model_never_seen() {
    let report = report(include_str!("data/checkpoint_time.csv"));
    assert!(report.leave_one_model_out_mape <= 0.079 && report.interval_coverage >= 0.85, "{report:?}");
}

#[test]
fn speed_of_a_cluster() {
    let report = report(include_str!("data/k80_cluster_speed.csv"));
    assert!(report.leave_one_model_out_mape <= 0.03, "{report:?}");
}

/// A faster device behind the same server: the workers of every model queue at it.
#[test]
fn a_cluster_that_saturates() {
    let mut text = "model,workers,parameter_servers,steps_per_s_median,samples\n".to_owned();
    for (model, step_s, server_s) in
        [("a", 0.015, 0.006), ("b", 0.02, 0.006), ("c", 0.03, 0.007), ("d", 0.3, 0.012), ("e", 0.11, 0.009)]
    {
        for workers in 1..=8 {
            // Constant times: a sharper knee than the queue's.
            let speed = (f64::from(workers) / step_s).min(1.0 / server_s);
            text.push_str(&format!("{model},{workers},1,{speed},40\n"));
        }
    }
    let report = report(&text);
    assert!(report.leave_one_model_out_mape <= 0.08, "{report:?}");
    let fastest = &report.saturation[0];
    assert!(fastest.steps_per_s_max.is_some_and(|most| (150.0..190.0).contains(&most)), "{fastest:?}");
    assert_eq!(report.saturation[3].steps_per_s_max, None, "the slowest stays far below");
    // Three workers of a new model with a step of 0.1 s are far from the server's limit.
    let three = report.predict(&[3.0, 0.1, 1.0]).unwrap();
    assert!(three.low < 30.0 && three.high > 28.0 && (26.0..31.0).contains(&three.value), "{three:?}");
}

/// Devices of other laws, 3 % of noise: the error is little more than the noise, and intervals hold what they say.
#[test]
fn step_times_of_devices_that_were_not_measured() {
    let laws: [fn(f64, f64) -> f64; 5] = [
        |g, n| 0.01 + 3e-4 * n + 0.012 * g,
        |g, n| n * 3e-4f64.hypot(0.014 * g / n) + 0.005,
        |g, n| (n * 5e-4).max(0.015 * g) + 0.01,
        |g, n| 0.02 * g.powf(0.6) * n.powf(0.3),
        |g, n| (0.049 * g + 8.3e-4 * n + 0.041 * g.sqrt()) / 6.0,
    ];
    let measured = Table::read(include_str!("data/k80_step_time.csv")).unwrap();
    for (seed, law) in (0u64..).zip(laws) {
        let mut prng = Prng::new(seed);
        let mut text = "model,gflops,tensors,parameters,step_s_mean\n".to_owned();
        for row in measured.rows() {
            let [gflops, tensors, parameters] =
                ["gflops", "tensors", "parameters"].map(|name| row.positive(name).unwrap());
            // A sum of uniform numbers, with a deviation of 3 %.
            let noise: f64 = (0..12).map(|_| prng.unit() - 0.5).sum::<f64>() * 0.03;
            let step_s = law(gflops, tensors) * noise.exp();
            text.push_str(&format!("{},{gflops},{tensors},{parameters},{step_s}\n", row.text("model").unwrap()));
        }
        let report = report(&text);
        let (error, coverage) = (report.leave_one_model_out_mape, report.interval_coverage);
        assert!(error <= 0.041 && coverage >= 0.8, "law {seed}: {error} {coverage}");
    }
}

#[test]
fn tables_that_cannot_be_fitted_say_what_to_do() {
    let refused = |text: &str| {
        let error = Table::read(text).and_then(|table| fit(&table)).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.hint().is_some(), "{error}");
        error.to_string()
    };
    assert!(refused("").contains("no rows"));
    assert!(refused("model,save_s\na,1\n").contains("columns model,save_s"));
    assert!(refused("model,checkpoint_mb,save_s\na,1,2\nb,2,-3\n").starts_with("line 3: save_s is '-3'"));
    assert!(refused("model,checkpoint_mb,save_s\na,1\n").starts_with("line 2: 2 cells under 3 columns"));
    // Whatever ends the lines, and with empty ones between them.
    assert!(refused("model,checkpoint_mb,save_s\r\na,1,2\r\nb,2,-3\r\n").starts_with("line 3: save_s"));
    assert!(refused("model,checkpoint_mb,save_s\na,1,2\n\n\nb,2,-3\n").starts_with("line 5: save_s"));
    assert!(refused("model,checkpoint_mb,save_s\na,1,2\n").contains("1 models"));
    let rows = |models: u32| -> String {
        let row = |model: u32| format!("m{model},{},{},1000000,{}\n", 1 + model, 10 + 3 * model, 1 + model * model);
        format!("model,gflops,tensors,parameters,step_s_mean\n{}", (0..models).map(row).collect::<String>())
    };
    assert!(refused(&rows(5)).contains("measure at least 6"));
    let least = report(&rows(6));
    assert!(
        least.rows.iter().all(|row| row.predicted.value > 0.0 && row.predicted.low <= row.predicted.value),
        "{least:?}"
    );
    let no_single = "model,workers,parameter_servers,steps_per_s_median\na,2,1,3\n";
    assert!(refused(no_single).starts_with("line 2: the model has no row with 1 worker"));
}

/// One row of more workers is nothing to learn from, however many models have one of a single worker.
#[test]
fn a_cluster_needs_models_with_more_workers() {
    let text = "model,workers,parameter_servers,steps_per_s_median\na,1,1,3\nb,1,1,4\nc,1,1,5\nd,1,1,6\na,2,1,5.5\n";
    let error = fit(&Table::read(text).unwrap()).unwrap_err();
    assert!(error.to_string().contains("1 models to predict"), "{error}");
}

#[test]
fn a_cluster_that_cannot_be_is_not_predicted() {
    let report = report(include_str!("data/k80_cluster_speed.csv"));
    for workers in [2.5, 0.5, 5000.0] {
        let error = report.predict(&[workers, 0.1, 1.0]).unwrap_err();
        assert!(error.to_string().contains(&format!("{workers} workers")), "{error}");
    }
}

#[test]
fn equal_rows_are_predicted_and_held() {
    let rows: String = (0..8).map(|model| format!("m{model},1,50,1000000,0.1\n")).collect();
    let report = report(&format!("model,gflops,tensors,parameters,step_s_mean\n{rows}"));
    assert_eq!(report.interval_coverage, 1.0, "{report:?}");
}

/// No part of a report is infinite or no number, but the error of a form that could not be fitted.
#[test]
fn numbers_that_no_form_fits_are_refused() {
    for (mb, save_s) in [("e300", "e-300"), ("e-300", "e300"), ("e308", "e-308")] {
        let rows: String = (1..8).map(|model| format!("m{model},{model}{mb},{}{save_s}\n", 1 + model % 2)).collect();
        match Table::read(&format!("model,checkpoint_mb,save_s\n{rows}")).and_then(|table| fit(&table)) {
            Ok(report) => {
                let ends = report.rows.iter().flat_map(|row| [row.predicted.low, row.predicted.high]);
                assert!(ends.chain([report.leave_one_model_out_mape]).all(f64::is_finite), "{report:?}");
            }
            Err(error) => assert!(error.kind() == Kind::Usage && error.hint().is_some(), "{error}"),
        }
    }
}

/// A model more than there are parts: with many models the level of the interval comes down to what it says.
#[test]
fn intervals_of_many_models_hold_what_they_say() {
    let mut prng = Prng::new(5);
    let rows: String = (0..200)
        .map(|model| {
            format!("m{model},{},{}\n", 10 + model, (3.0 + 0.01 * f64::from(model)) * (0.8 + 0.4 * prng.unit()))
        })
        .collect();
    let coverage = report(&format!("model,checkpoint_mb,save_s\n{rows}")).interval_coverage;
    assert!((0.87..0.94).contains(&coverage), "{coverage}");
}
