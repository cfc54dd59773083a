//! `fuelrail plan fit`: a predictor fitted to measurements, and how wrong it is about models that it never saw.

use std::path::PathBuf;

use clap::Args;
use fuelrail_cost::fit::{Estimate, Report, fit};
use fuelrail_cost::table::Table as Measurements;

use serde::Serialize;

use super::input::{percent, read};
use crate::failure::Outcome;
use crate::screen::{JsonTo, Table};

const EXAMPLES: &str = "Examples:
  fuelrail plan fit steps.csv
  fuelrail plan fit steps.csv --predict 1.66,104,1857722
  fuelrail plan fit checkpoints.csv --json

Columns: model,gflops,tensors,parameters,step_s_mean for the time of a step; model,checkpoint_mb,save_s for that of a checkpoint; \
model,workers,parameter_servers,steps_per_s_median for the speed of a cluster. Others are ignored. Errors and intervals (90 %) are of models \
left out as a whole; which form predicts is decided without them, too.";

/// Fit step, checkpoint or cluster times to measurements
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Fit {
    /// The measurements, CSV with a header line
    file: PathBuf,
    /// Predict for a model that was not measured: GFLOPS,TENSORS,PARAMETERS; MEGABYTES; or WORKERS,STEP_S,SERVERS
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    predict: Vec<f64>,
    /// Print the result as one JSON document, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    report: Report,
    /// Of what `--predict` asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    prediction: Option<Estimate>,
}

pub(crate) fn run(args: &Fit) -> Outcome {
    let report = read(&args.file, |text| fit(&Measurements::read(text)?))?;
    let prediction = if args.predict.is_empty() { None } else { Some(report.predict(&args.predict)?) };
    let document = Document { report, prediction };
    JsonTo::asked(args.json.as_deref()).show(&document, || text(&document))
}

fn text(Document { report, prediction }: &Document) -> String {
    let facts = Table::facts([
        ("form", report.form.clone()),
        ("error", format!("{} in the mean, of models left out", percent(report.leave_one_model_out_mape))),
        ("intervals", format!("hold {} of {} rows", percent(report.interval_coverage), report.rows.len())),
        ("width", format!("{} in the mean", percent(report.interval_mean_width))),
        ("worst", report.worst_model.clone()),
    ]);
    let mut forms = Table::new(&[0, 1]);
    forms.row(["error", "weight", "form"]);
    for tried in &report.forms {
        // Too few rows for its coefficients.
        let error = tried.leave_one_model_out_mape;
        let error = if error.is_finite() { percent(error) } else { "not fitted".to_owned() };
        forms.row([error, format!("{:.3}", tried.weight), tried.form.to_owned()]);
    }
    let mut limits = Table::new(&[1, 2]);
    if !report.saturation.is_empty() {
        limits.row(["model", "steps/s at most", "error"]);
    }
    for saturation in &report.saturation {
        let most = saturation.steps_per_s_max.map_or_else(|| "not seen".to_owned(), |most| format!("{most:.2}"));
        limits.row([saturation.model.clone(), most, percent(saturation.leave_one_row_out_mape)]);
    }
    let predicted = prediction.map_or_else(String::new, |Estimate { value, low, high }| {
        format!("prediction  {value:.4} ({low:.4} to {high:.4})\n")
    });
    let tables = [facts.text(), forms.text(), limits.text(), predicted];
    tables.into_iter().filter(|table| !table.is_empty()).collect::<Vec<_>>().join("\n")
}
