//! Predictors fitted to measurements and validated on models (networks) that they never saw.
//!
//! A small set of named forms is fitted by least squares of the relative error. Two ways to predict compete: the form with the smallest
//! error when each model is left out in turn, and the mean of all forms weighted by the inverse of that squared error (Bates and Granger,
//! Operational Research Quarterly 1969). Which of them, and with which weights, is decided without the model that is scored (nested
//! validation: Varma and Simon, BMC Bioinformatics 2006). Intervals come from the errors on models left out (Barber et al.,
//! "Predictive inference with the jackknife+", Annals of Statistics 2021).

mod forms;

use std::cell::RefCell;
use std::collections::BTreeMap;

use fuelrail_base::Result;
use serde::Serialize;

use self::forms::{CHECKPOINT, CLUSTER, Features, Fitted, Form, STEP, Shape, bottleneck, queue};
use crate::table::Table;
use crate::usage;

/// Share of new models whose measurement an interval should hold.
pub const COVERAGE: f64 = 0.9;
/// Models are left out in at most so many parts, because the work grows with their cube; and with the rows.
const PARTS_MAX: usize = 20;
const ROWS_FEW: usize = 400;
const PARTS_OF_MANY_ROWS: usize = 8;
/// Most workers of a cluster.
const WORKERS_MAX: f64 = 1000.0;
/// An interval of no width holds a measurement that rounding moved.
const ROUNDING: f64 = 1.0 + 1e-9;
/// Models are left out so deep: one is scored, one gives the interval, one the weights.
const DEPTH: usize = 3;

/// What a table is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Seconds a training step, from `gflops`, `tensors` and `parameters`.
    StepTime,
    /// Seconds to save a checkpoint, from `checkpoint_mb`.
    CheckpointTime,
    /// Steps per second of a cluster, from `workers`, `parameter_servers` and the model's speed on one worker.
    ClusterSpeed,
}

/// A predictor with its validation.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What is predicted.
    pub target: Target,
    /// The form chosen.
    pub form: String,
    /// Mean of |predicted / measured - 1| over all rows, each predicted without any row of its model.
    pub leave_one_model_out_mape: f64,
    /// Share of rows whose interval, made without their model, holds the measurement.
    pub interval_coverage: f64,
    /// Mean of (high - low) / predicted.
    pub interval_mean_width: f64,
    /// The model predicted worst.
    pub worst_model: String,
    /// Every form tried, with the error it has alone.
    pub forms: Vec<Tried>,
    /// Where workers saturate, model by model; of clusters only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub saturation: Vec<Saturation>,
    /// The rows in order, as validated.
    pub rows: Vec<Scored>,
    #[serde(skip)]
    predictor: Predictor,
}

/// A form, fitted to all rows.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// The form.
    pub form: &'static str,
    /// As [`Report::leave_one_model_out_mape`], of this form alone.
    pub leave_one_model_out_mape: f64,
    /// Its weight in the prediction.
    pub weight: f64,
    /// Its coefficients a, b, … in order.
    pub coefficients: Vec<f64>,
}

/// A row with what was predicted for it.
#[derive(Clone, Debug, Serialize)]
pub struct Scored {
    /// Its model.
    pub model: String,
    /// What was measured: seconds, or steps per second.
    pub measured: f64,
    /// What was predicted without the model.
    #[serde(flatten)]
    pub predicted: Estimate,
}

/// How one model's speed saturates: fitted to its own rows.
#[derive(Clone, Debug, Serialize)]
pub struct Saturation {
    /// The model.
    pub model: String,
    /// Seconds of the parameter server a step.
    pub server_s_per_step: f64,
    /// Steps per second that no number of workers exceeds at one server; absent where the measurements end far below.
    pub steps_per_s_max: Option<f64>,
    /// Mean relative error when each of its rows is predicted from its others.
    pub leave_one_row_out_mape: f64,
}

/// A number with its interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Estimate {
    /// The prediction.
    #[serde(rename = "predicted")]
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Fits the predictor that a table's columns ask for: `gflops`, `tensors`, `parameters` and `step_s_mean`; or `checkpoint_mb` and `save_s`;
/// or `workers`, `parameter_servers` and `steps_per_s_median`; each with `model`.
///
/// # Errors
/// `Usage` for other columns, cells that are no numbers above zero (with their line), too few models (4 to 6), and numbers that no form fits.
pub fn fit(table: &Table) -> Result<Report> {
    let has_columns =
        |target: &Target| table.has(target.facts().columns) && table.has(&["model", target.facts().value]);
    match [Target::StepTime, Target::CheckpointTime, Target::ClusterSpeed].into_iter().find(has_columns) {
        Some(target) => Problem::new(target, table)?.report(),
        None => usage(
            format!("no predictor is fitted to the columns {}", table.columns()),
            "give model,gflops,tensors,parameters,step_s_mean or model,checkpoint_mb,save_s or \
             model,workers,parameter_servers,steps_per_s_median",
        ),
    }
}

/// What is fixed for a target.
struct Facts {
    /// Columns that are known beforehand.
    columns: &'static [&'static str],
    /// The column that is predicted.
    value: &'static str,
    forms: &'static [Form],
    /// What a prediction is asked for with.
    numbers: &'static str,
}

impl Target {
    fn facts(self) -> Facts {
        let (columns, value, forms, numbers): (&[&str], _, _, _) = match self {
            Target::StepTime => {
                (&["gflops", "tensors", "parameters"], "step_s_mean", STEP, "GFLOPS,TENSORS,PARAMETERS")
            }
            Target::CheckpointTime => (&["checkpoint_mb"], "save_s", CHECKPOINT, "MEGABYTES"),
            Target::ClusterSpeed => {
                (&["workers", "parameter_servers"], "steps_per_s_median", CLUSTER, "WORKERS,STEP_S,SERVERS")
            }
        };
        Facts { columns, value, forms, numbers }
    }
}

/// Rows of measurements, and the forms that are fitted to them.
struct Problem {
    target: Target,
    forms: &'static [Form],
    models: Vec<String>,
    /// Models are left out in so many parts.
    parts: usize,
    rows: Vec<Measured>,
    /// Of every form with a searched coefficient, by part: the squared errors of each coefficient tried.
    searched: Vec<Vec<Vec<f64>>>,
    /// All forms, by the parts that they were fitted without, in order: the order in which parts are left out does not matter.
    fits: RefCell<BTreeMap<Vec<usize>, Vec<Option<Fitted>>>>,
}

struct Measured {
    model: usize,
    features: Features,
    /// By form.
    columns: Vec<Vec<f64>>,
    value: f64,
}

/// All forms, fitted to some parts.
#[derive(Clone, Debug, Default)]
struct Predictor {
    fitted: Vec<Option<Fitted>>,
    weights: Vec<f64>,
    forms: &'static [Form],
    /// Models that it is fitted to.
    models: usize,
    /// The same without each part, with how wrong it was about the part's rows, as logarithms.
    without: Vec<(Predictor, Vec<f64>)>,
}

// A form is a constant: there is nothing of it to show but its name.
impl core::fmt::Debug for Form {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

impl Problem {
    fn new(target: Target, table: &Table) -> Result<Problem> {
        let Facts { columns, value, forms, .. } = target.facts();
        // A model's speed on one worker is known before; rows of more workers are predicted.
        let mut alone = BTreeMap::new();
        for row in table.rows().filter(|_| target == Target::ClusterSpeed) {
            if row.positive("workers")? == 1.0 && row.positive("parameter_servers")? == 1.0 {
                alone.insert(row.text("model"), 1.0 / row.positive(value)?);
            }
        }
        let (mut models, mut rows): (Vec<String>, Vec<Measured>) = Default::default();
        let mut known = BTreeMap::new();
        for row in table.rows() {
            let given = columns.iter().map(|column| row.positive(column)).collect::<Result<Vec<_>>>()?;
            let measured = row.positive(value)?;
            let features = match (&given[..], alone.get(&row.text("model"))) {
                (&[gflops, tensors, parameters], _) => [gflops, tensors, parameters / 1e6],
                _ if target == Target::CheckpointTime => [given[0], 0.0, 0.0],
                (_, Some(step_s)) => [
                    workers(given[0]).map_err(|error| error.within(format!("line {}", row.line())))?,
                    *step_s,
                    given[1],
                ],
                (_, None) => {
                    return usage(
                        format!("line {}: the model has no row with 1 worker and 1 parameter server", row.line()),
                        "add one: the speed of more workers is predicted from that of one",
                    );
                }
            };
            if target == Target::ClusterSpeed && features[0] == 1.0 {
                continue;
            }
            let name = row.text("model").unwrap_or_default();
            let model = *known.entry(name).or_insert_with(|| {
                models.push(name.to_owned());
                models.len() - 1
            });
            let columns = forms.iter().map(|form| form.columns(&features)).collect();
            rows.push(Measured { model, features, columns, value: measured });
        }
        let least = DEPTH + forms.iter().map(Form::rows_min).min().unwrap_or(1);
        if models.len() < least {
            return usage(
                format!("the table has {} models to predict", models.len()),
                format!("measure at least {least}: whole models are left out to validate the others"),
            );
        }
        let parts = models.len().min(if rows.len() <= ROWS_FEW { PARTS_MAX } else { PARTS_OF_MANY_ROWS });
        let mut problem =
            Problem { target, forms, models, parts, rows, searched: Vec::new(), fits: RefCell::default() };
        let of_part = |index: usize, part| {
            let rows: Vec<_> = problem.of(part).map(|row| (&row.columns[index][..], row.value)).collect();
            forms[index].searched(&rows)
        };
        let of_form = |index| (0..parts).map(|part| of_part(index, part)).collect();
        problem.searched = (0..forms.len()).map(of_form).collect();
        Ok(problem)
    }

    fn part(&self, row: &Measured) -> usize {
        row.model % self.parts
    }

    /// Rows of the parts that are not left out.
    fn without(&self, out: &[usize]) -> impl Iterator<Item = &Measured> {
        let out = out.to_vec();
        self.rows.iter().filter(move |row| !out.contains(&self.part(row)))
    }

    fn of(&self, part: usize) -> impl Iterator<Item = &Measured> {
        self.rows.iter().filter(move |row| self.part(row) == part)
    }

    /// The parts but those left out.
    fn parts(&self, out: &[usize]) -> Vec<usize> {
        (0..self.parts).filter(|part| !out.contains(part)).collect()
    }

    fn fit(&self, out: &[usize]) -> Vec<Option<Fitted>> {
        let mut key = out.to_vec();
        key.sort_unstable();
        let fit = |(index, form): (usize, &Form)| {
            let rows: Vec<_> = self.without(out).map(|row| (&row.columns[index][..], row.value)).collect();
            form.fit(&rows, self.parts(out).into_iter().map(|part| &self.searched[index][part]))
        };
        let fit = || self.forms.iter().enumerate().map(fit).collect();
        self.fits.borrow_mut().entry(key).or_insert_with(fit).clone()
    }

    /// Mean of a function of predicted over measured, by form, each part left out in turn besides `out`: infinite where a form cannot be fitted.
    fn scores(&self, out: &[usize], of: fn(f64) -> f64) -> Vec<f64> {
        let (mut sums, mut count) = (vec![0.0; self.forms.len()], 0.0);
        for part in self.parts(out) {
            let fitted = self.fit(&[out, &[part]].concat());
            for row in self.of(part) {
                count += 1.0;
                for (index, (form, fitted)) in self.forms.iter().zip(&fitted).enumerate() {
                    let ratio = fitted.as_ref().map(|f| form.predict(f, &row.columns[index]) / row.value);
                    sums[index] += ratio.map_or(f64::INFINITY, of);
                }
            }
        }
        sums.iter().map(|sum| sum / count).collect()
    }

    /// The predictors of `scores`, by way of predicting, without intervals.
    fn predictors(&self, out: &[usize]) -> [Predictor; 2] {
        let (scores, fitted) = (self.scores(out, |ratio| ratio.ln().powi(2)), self.fit(out));
        let usable = |index: usize| fitted[index].is_some() && scores[index].is_finite();
        let inverse: Vec<f64> =
            (0..scores.len()).map(|index| if usable(index) { 1.0 / scores[index].max(1e-12) } else { 0.0 }).collect();
        let best = (0..scores.len()).filter(|index| usable(*index)).min_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        let alone = (0..scores.len()).map(|index| f64::from(u8::from(Some(index) == best))).collect();
        let sum: f64 = inverse.iter().sum();
        let mean = inverse.iter().map(|weight| weight / sum.max(f64::MIN_POSITIVE)).collect();
        let models = (0..self.models.len()).filter(|model| !out.contains(&(model % self.parts))).count();
        let (forms, without) = (self.forms, Vec::new());
        let predictor =
            |weights| Predictor { fitted: fitted.clone(), weights, forms, models, without: without.clone() };
        [alone, mean].map(predictor)
    }

    /// The way of predicting with the smaller error on parts left out, with what its intervals come from.
    fn chosen(&self, out: &[usize]) -> Predictor {
        let mut without: [Vec<(Predictor, Vec<f64>)>; 2] = Default::default();
        for part in self.parts(out) {
            for (way, predictor) in self.predictors(&[out, &[part]].concat()).into_iter().enumerate() {
                let miss = |row: &Measured| (predictor.predict(&row.columns) / row.value).ln().abs();
                let misses = self.of(part).map(miss).collect();
                without[way].push((predictor, misses));
            }
        }
        let squares = |way: &[(Predictor, Vec<f64>)]| -> f64 {
            way.iter().flat_map(|(_, misses)| misses).map(|miss| miss * miss).sum()
        };
        let ([alone, mean], [of_alone, of_mean]) = (self.predictors(out), without);
        match squares(&of_mean) < squares(&of_alone) {
            true => Predictor { without: of_mean, ..mean },
            false => Predictor { without: of_alone, ..alone },
        }
    }

    fn report(self) -> Result<Report> {
        let predictors: Vec<Predictor> = (0..self.parts).map(|part| self.chosen(&[part])).collect();
        let scored = |row: &Measured| {
            let (model, predictor) = (self.models[row.model].clone(), &predictors[self.part(row)]);
            Scored { model, measured: row.value, predicted: predictor.estimate(&row.columns) }
        };
        let rows: Vec<Scored> = self.rows.iter().map(scored).collect();
        let mean = |of: &dyn Fn(&Scored) -> f64| rows.iter().map(of).sum::<f64>() / rows.len() as f64;
        let error = |row: &Scored| (row.predicted.value / row.measured - 1.0).abs();
        let predictor = self.chosen(&[]);
        let is_number = |row: &Scored| [row.predicted.low, row.predicted.high].iter().all(|end| end.is_finite());
        let worst = rows.iter().max_by(|a, b| error(a).total_cmp(&error(b)));
        let Some(worst_model) = worst.filter(|_| rows.iter().all(is_number)).map(|row| row.model.clone()) else {
            return usage("no form fits the table", "look for numbers that are far too large or too small");
        };
        Ok(Report {
            target: self.target,
            form: predictor.name(),
            leave_one_model_out_mape: mean(&error),
            interval_coverage: mean(&|row| {
                let Estimate { low, high, .. } = row.predicted;
                f64::from(u8::from(low <= row.measured * ROUNDING && row.measured <= high * ROUNDING))
            }),
            interval_mean_width: mean(&|row| (row.predicted.high - row.predicted.low) / row.predicted.value),
            worst_model,
            forms: self.tried(&predictor),
            saturation: if self.target == Target::ClusterSpeed { self.saturation() } else { Vec::new() },
            rows,
            predictor,
        })
    }

    /// Every form with its own error on models left out.
    fn tried(&self, predictor: &Predictor) -> Vec<Tried> {
        let errors = self.scores(&[], |ratio| (ratio - 1.0).abs());
        let tried = |(index, form): (usize, &Form)| Tried {
            form: form.name,
            leave_one_model_out_mape: errors[index],
            weight: predictor.weights[index],
            coefficients: predictor.fitted[index].as_ref().map_or_else(Vec::new, |fitted| fitted.coefficients.clone()),
        };
        self.forms.iter().enumerate().map(tried).collect()
    }

    /// The queue of each model, from its own rows.
    fn saturation(&self) -> Vec<Saturation> {
        let curves = [Shape::Curve(queue), Shape::Curve(bottleneck)].map(|shape| Form { name: "one model", shape });
        let fit = |form: &Form, rows: &[(&[f64], f64)]| form.fit(rows, [&form.searched(rows)].into_iter());
        let of_model = |(model, name): (usize, &String)| {
            let rows: Vec<(&[f64], f64)> =
                self.rows.iter().filter(|row| row.model == model).map(|row| (&row.features[..], row.value)).collect();
            let errors = |form: &Form| {
                let error = |out: usize| {
                    let mut others = rows.clone();
                    let (columns, measured) = others.remove(out);
                    Some((form.predict(&fit(form, &others)?, columns) / measured - 1.0).abs())
                };
                (0..rows.len()).map(error).sum::<Option<f64>>()
            };
            let tried = curves.iter().filter_map(|form| Some((errors(form)? / rows.len() as f64, form)));
            let (error, form) = tried.min_by(|a, b| a.0.total_cmp(&b.0))?;
            let server_s = fit(form, &rows)?.coefficients[0];
            let fastest = rows.iter().map(|(features, speed)| speed / features[2]).fold(0.0, f64::max);
            Some(Saturation {
                model: name.clone(),
                server_s_per_step: server_s,
                steps_per_s_max: Some(1.0 / server_s).filter(|most| *most < 4.0 * fastest),
                leave_one_row_out_mape: error,
            })
        };
        self.models.iter().enumerate().filter_map(of_model).collect()
    }
}

impl Predictor {
    fn predict(&self, columns: &[Vec<f64>]) -> f64 {
        let logarithm = |(index, form): (usize, &Form)| match (&self.fitted[index], self.weights[index]) {
            (Some(fitted), weight) if weight > 0.0 => weight * form.predict(fitted, &columns[index]).ln(),
            _ => 0.0,
        };
        // Without a form that could be fitted it is no number, which no report holds.
        let has_form = self.weights.iter().any(|weight| *weight > 0.0);
        if has_form { self.forms.iter().enumerate().map(logarithm).sum::<f64>().exp() } else { f64::NAN }
    }

    fn estimate(&self, columns: &[Vec<f64>]) -> Estimate {
        let ends = |sign: f64| {
            let of_part = |(predictor, misses): &(Predictor, Vec<f64>)| {
                let centre = predictor.predict(columns).ln();
                misses.iter().map(|miss| sign * centre + miss).collect::<Vec<_>>()
            };
            let mut ends: Vec<f64> = self.without.iter().flat_map(of_part).collect();
            ends.sort_by(f64::total_cmp);
            // The finite-sample level, by models: rows of one are not independent.
            let models = self.models as f64;
            let level = (((models + 1.0) * COVERAGE).ceil() / models).min(1.0);
            let place = (level * ends.len() as f64).ceil() as usize;
            ends.get(place.saturating_sub(1)).map_or(f64::INFINITY, |end| (sign * end).exp())
        };
        let value = self.predict(columns);
        Estimate { value, low: ends(-1.0).min(value), high: ends(1.0).max(value) }
    }

    fn name(&self) -> String {
        let heaviest =
            (0..self.weights.len()).max_by(|a, b| self.weights[*a].total_cmp(&self.weights[*b])).unwrap_or(0);
        let (name, weight) = (self.forms[heaviest].name, self.weights[heaviest]);
        if weight == 1.0 {
            name.to_owned()
        } else {
            format!("weighted mean of {} forms, mostly {name}", self.forms.len())
        }
    }
}

impl Report {
    /// Predicts for a model that was not measured: its GFLOPs, tensors and parameters; its megabytes; or workers, seconds a step of one
    /// worker, and parameter servers.
    ///
    /// # Errors
    /// `Usage` for another count of numbers, and numbers that are not above zero.
    pub fn predict(&self, features: &[f64]) -> Result<Estimate> {
        let names = self.target.facts().numbers;
        let wrong = || usage(format!("{features:?} is no {names}"), format!("give {names}, numbers above 0"));
        let are_right = features.iter().all(|value| value.is_finite() && *value > 0.0);
        let features = match (self.target, features) {
            _ if !are_right => return wrong(),
            (Target::StepTime, &[gflops, tensors, parameters]) => [gflops, tensors, parameters / 1e6],
            (Target::CheckpointTime, &[megabytes]) => [megabytes, 0.0, 0.0],
            (Target::ClusterSpeed, &[count, step_s, servers]) => [workers(count)?, step_s, servers],
            _ => return wrong(),
        };
        Ok(self
            .predictor
            .estimate(&self.predictor.forms.iter().map(|form| form.columns(&features)).collect::<Vec<_>>()))
    }
}

fn workers(count: f64) -> Result<f64> {
    match count {
        _ if count.fract() == 0.0 && count <= WORKERS_MAX => Ok(count),
        _ => usage(format!("{count} workers"), format!("give whole numbers up to {WORKERS_MAX}")),
    }
}
