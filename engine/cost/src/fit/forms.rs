//! Forms of a model and how each is fitted. Errors are relative: a step of 0.1 s counts as much as one of 1 s.

/// Smallest prediction, as a share of the smallest measurement: a sum may fall below zero far from what was measured.
const FLOOR: f64 = 0.01;
/// Keeps normal equations solvable where two columns of a table say the same.
const JITTER: f64 = 1e-9;

/// Coefficients of a curve that are tried: a step of 4 % from a hundred-thousandth to ten.
const SEARCHED: usize = 350;

fn searched_at(step: usize) -> f64 {
    1e-5 * 1.04f64.powi(step as i32)
}

/// What is known of a row before it is measured. Step time: GFLOPs, tensors, million parameters. Checkpoint time: megabytes. Cluster:
/// workers, seconds a step of one worker, parameter servers.
pub(crate) type Features = [f64; 3];

/// A form: a name, and how a prediction comes from the features.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
}

pub(crate) enum Shape {
    /// A sum of these columns, each times a coefficient.
    Sum(fn(&Features) -> Vec<f64>),
    /// The exponential of such a sum, with a small ridge (one thousandth of the rows) on standardised columns but the first, which is 1.
    Exponential(fn(&Features) -> Vec<f64>),
    /// A roofline (Williams, Waterman and Patterson, CACM 2009): a + b max(gflops, c tensors). A fast device waits for its host, which
    /// starts one tensor's work after the other.
    Roof,
    /// A function of the features and one coefficient above zero, which is searched for.
    Curve(fn(&Features, f64) -> f64),
}

pub(crate) const STEP: &[Form] = &[
    Form { name: "a + b gflops", shape: Shape::Sum(|f| vec![1.0, f[0]]) },
    Form { name: "a + b gflops + c tensors", shape: Shape::Sum(|f| vec![1.0, f[0], f[1]]) },
    Form { name: "a + b gflops + c tensors + d parameters", shape: Shape::Sum(|f| vec![1.0, f[0], f[1], f[2]]) },
    // Small layers use a device worse than large ones, so that time grows more slowly than work.
    Form { name: "a gflops + b tensors + c sqrt(gflops)", shape: Shape::Sum(|f| vec![f[0], f[1], f[0].sqrt()]) },
    Form {
        name: "a + b gflops + c tensors + d sqrt(gflops tensors)",
        shape: Shape::Sum(|f| vec![1.0, f[0], f[1], (f[0] * f[1]).sqrt()]),
    },
    // The step as a sum over layers, each a fixed part and a concave function of its work.
    Form {
        name: "tensors (a + b x + c sqrt(x)), x = gflops / tensors",
        shape: Shape::Sum(|f| vec![f[0], f[1], (f[0] * f[1]).sqrt()]),
    },
    Form { name: "a + b max(gflops, c tensors)", shape: Shape::Roof },
    Form {
        name: "exp(a + b ln gflops + c ln tensors)",
        shape: Shape::Exponential(|f| vec![1.0, f[0].ln(), f[1].ln()]),
    },
    Form {
        name: "exp(quadratic in ln gflops, ln tensors)",
        shape: Shape::Exponential(|f| {
            let (x, y) = (f[0].ln(), f[1].ln());
            vec![1.0, x, y, x * x, y * y, x * y]
        }),
    },
];

pub(crate) const CHECKPOINT: &[Form] = &[
    Form { name: "a", shape: Shape::Sum(|_| vec![1.0]) },
    Form { name: "a + b megabytes", shape: Shape::Sum(|f| vec![1.0, f[0]]) },
    Form { name: "a + b sqrt(megabytes)", shape: Shape::Sum(|f| vec![1.0, f[0].sqrt()]) },
    Form { name: "a + b megabytes + c sqrt(megabytes)", shape: Shape::Sum(|f| vec![1.0, f[0], f[0].sqrt()]) },
    Form { name: "exp(a + b ln megabytes)", shape: Shape::Exponential(|f| vec![1.0, f[0].ln()]) },
];

/// Steps per second of `w` workers, of which one alone takes `s` seconds a step.
pub(crate) const CLUSTER: &[Form] = &[
    Form { name: "w / s", shape: Shape::Curve(|f, _| f[0] / f[1]) },
    Form { name: "w^a / s", shape: Shape::Curve(|f, a| f[0].powf(a) / f[1]) },
    Form { name: "w / s / (1 + a (w - 1))", shape: Shape::Curve(|f, a| f[0] / f[1] / (1.0 + a * (f[0] - 1.0))) },
    Form { name: "min(w / s, servers / a)", shape: Shape::Curve(bottleneck) },
    Form { name: "min(w / s, servers / (a sqrt(s)))", shape: Shape::Curve(|f, a| bottleneck(f, a * f[1].sqrt())) },
    Form { name: "min(w / s, servers / (a s))", shape: Shape::Curve(|f, a| bottleneck(f, a * f[1])) },
    Form { name: "queue at a server of a seconds a step", shape: Shape::Curve(queue) },
    Form {
        name: "queue at a server of a sqrt(s) seconds a step",
        shape: Shape::Curve(|f, a| queue(f, a * f[1].sqrt())),
    },
    Form { name: "queue at a server of a s seconds a step", shape: Shape::Curve(|f, a| queue(f, a * f[1])) },
];

/// Steps per second of workers that queue at their parameter servers, which share `server_s` seconds of work a step: mean value
/// analysis of a closed queue (Reiser and Lavenberg, J. ACM 1980). It saturates at `servers / server_s`.
pub(crate) fn queue(features: &Features, server_s: f64) -> f64 {
    let [workers, step_s, servers] = *features;
    let service_s = (server_s / servers).min(step_s);
    let (mut queued, mut speed) = (0.0, 0.0);
    for worker in 1..=workers as u64 {
        let response_s = service_s * (1.0 + queued);
        speed = worker as f64 / (step_s - service_s + response_s);
        queued = speed * response_s;
    }
    speed
}

/// The two asymptotes of that queue: a server whose times hardly vary saturates more sharply.
pub(crate) fn bottleneck(features: &Features, server_s: f64) -> f64 {
    let [workers, step_s, servers] = *features;
    (workers / step_s).min(servers / server_s.min(step_s * servers))
}

#[derive(Clone, Debug)]
pub(crate) struct Fitted {
    /// Of the columns as they are, without their scale.
    pub(crate) coefficients: Vec<f64>,
    floor: f64,
}

impl Form {
    /// Rows that must be left to fit it.
    pub(crate) fn rows_min(&self) -> usize {
        match self.shape {
            Shape::Sum(columns) | Shape::Exponential(columns) => columns(&[1.0; 3]).len() + 1,
            Shape::Roof => 3,
            Shape::Curve(_) => 1,
        }
    }

    /// The columns of a row, to be computed once.
    pub(crate) fn columns(&self, features: &Features) -> Vec<f64> {
        match self.shape {
            Shape::Sum(columns) | Shape::Exponential(columns) => columns(features),
            Shape::Roof | Shape::Curve(_) => features.to_vec(),
        }
    }

    /// The squared errors of a curve on rows of features and measurements, for each coefficient that is tried: they add up over rows.
    pub(crate) fn searched(&self, rows: &[(&[f64], f64)]) -> Vec<f64> {
        let Shape::Curve(curve) = self.shape else { return Vec::new() };
        let squares = |a: f64| -> f64 {
            rows.iter().map(|(f, measured)| (curve(&[f[0], f[1], f[2]], a) / measured - 1.0).powi(2)).sum()
        };
        (0..SEARCHED).map(|step| squares(searched_at(step))).collect()
    }

    /// Fits the form to rows of columns and measurements, with what was `searched` on them, or not where there are too few.
    pub(crate) fn fit<'s>(
        &self,
        rows: &[(&[f64], f64)],
        searched: impl Iterator<Item = &'s Vec<f64>>,
    ) -> Option<Fitted> {
        rows.first()?;
        let floor = FLOOR * rows.iter().map(|(_, measured)| *measured).fold(f64::INFINITY, f64::min);
        let coefficients = match self.shape {
            Shape::Sum(_) => relative(rows.iter().map(|(columns, measured)| (columns.to_vec(), *measured)))?.0,
            Shape::Roof => {
                let fit = |knee: f64| {
                    let columns = |f: &[f64]| vec![1.0, f[0].max(knee * f[1])];
                    let (fitted, squares) = relative(rows.iter().map(|(f, measured)| (columns(f), *measured)))?;
                    Some((squares, vec![fitted[0], fitted[1], knee]))
                };
                // The knee is between the rows: 32 ratios from the least to the most work of a tensor.
                let ratios = || rows.iter().map(|(f, _)| f[0] / f[1]);
                let (low, high) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
                let tried = (0..32).filter_map(|step| fit(low * (high / low).powf(f64::from(step) / 31.0)));
                tried.min_by(|x, y| x.0.total_cmp(&y.0))?.1
            }
            Shape::Exponential(_) => exponential(rows)?,
            Shape::Curve(_) => {
                let mut sums = [0.0; SEARCHED];
                searched.for_each(|of_part| sums.iter_mut().zip(of_part).for_each(|(sum, squares)| *sum += squares));
                vec![searched_at((0..SEARCHED).min_by(|x, y| sums[*x].total_cmp(&sums[*y]))?)]
            }
        };
        coefficients.iter().all(|value| value.is_finite()).then_some(Fitted { coefficients, floor })
    }

    pub(crate) fn predict(&self, fitted: &Fitted, columns: &[f64]) -> f64 {
        let predicted = match self.shape {
            Shape::Sum(_) => dot(columns, &fitted.coefficients),
            Shape::Roof => {
                fitted.coefficients[0] + fitted.coefficients[1] * columns[0].max(fitted.coefficients[2] * columns[1])
            }
            Shape::Exponential(_) => dot(columns, &fitted.coefficients).exp(),
            Shape::Curve(curve) => curve(&[columns[0], columns[1], columns[2]], fitted.coefficients[0]),
        };
        // The comparison holds for no number that is not one.
        if predicted > fitted.floor { predicted.min(f64::MAX) } else { fitted.floor }
    }
}

/// Least squares of the relative error: each row divided by its measurement. Coefficients, and the sum of squares.
fn relative(rows: impl Iterator<Item = (Vec<f64>, f64)>) -> Option<(Vec<f64>, f64)> {
    let divided = |(mut columns, measured): (Vec<f64>, f64)| {
        columns.iter_mut().for_each(|value| *value /= measured);
        (columns, 1.0)
    };
    let rows: Vec<_> = rows.map(divided).collect();
    let coefficients = least_squares(&rows, JITTER)?;
    let squares = rows.iter().map(|(x, _)| (dot(x, &coefficients) - 1.0).powi(2)).sum();
    Some((coefficients, squares))
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Least squares of logarithms on standardised columns.
fn exponential(rows: &[(&[f64], f64)]) -> Option<Vec<f64>> {
    let (count, width) = (rows.len() as f64, rows.first()?.0.len());
    let mean = |column: usize| rows.iter().map(|(columns, _)| columns[column]).sum::<f64>() / count;
    let means: Vec<f64> = (0..width).map(mean).collect();
    let deviation = |column: usize| {
        let squares = rows.iter().map(|(columns, _)| (columns[column] - means[column]).powi(2)).sum::<f64>();
        (squares / count).sqrt().max(1e-12)
    };
    let deviations: Vec<f64> = (0..width).map(deviation).collect();
    let level = rows.iter().map(|(_, measured)| measured.ln()).sum::<f64>() / count;
    let standardised = |(columns, measured): &(&[f64], f64)| -> (Vec<f64>, f64) {
        (
            (1..width).map(|column| (columns[column] - means[column]) / deviations[column]).collect(),
            measured.ln() - level,
        )
    };
    let slopes = least_squares(&rows.iter().map(standardised).collect::<Vec<_>>(), 1e-3)?;
    let slopes: Vec<f64> = slopes.iter().zip(&deviations[1..]).map(|(slope, deviation)| slope / deviation).collect();
    Some([vec![level - dot(&slopes, &means[1..])], slopes].concat())
}

/// Coefficients that minimise the squared error plus `ridge` times their own squares, on columns scaled to a mean square of 1: the normal
/// equations by Cholesky's method.
fn least_squares(rows: &[(Vec<f64>, f64)], ridge: f64) -> Option<Vec<f64>> {
    let (count, width) = (rows.len(), rows.first()?.0.len());
    // One row more than coefficients, or the rows say nothing about the error.
    if count <= width {
        return None;
    }
    let scale = |column: usize| {
        (rows.iter().map(|(x, _)| x[column] * x[column]).sum::<f64>() / count as f64).sqrt().max(f64::MIN_POSITIVE)
    };
    let scales: Vec<f64> = (0..width).map(scale).collect();
    let mut matrix = vec![vec![0.0; width]; width];
    let mut right = vec![0.0; width];
    for (x, y) in rows {
        for i in 0..width {
            right[i] += x[i] / scales[i] * y;
            for j in 0..=i {
                matrix[i][j] += x[i] / scales[i] * x[j] / scales[j];
            }
        }
    }
    for i in 0..width {
        matrix[i][i] += ridge * count as f64;
        for j in 0..=i {
            let rest = matrix[i][j] - dot(&matrix[i][..j], &matrix[j][..j]);
            matrix[i][j] = if i == j { rest.sqrt() } else { rest / matrix[j][j] };
        }
        right[i] = (right[i] - dot(&matrix[i][..i], &right[..i])) / matrix[i][i];
    }
    for i in (0..width).rev() {
        let inner: f64 = (i + 1..width).map(|k| matrix[k][i] * right[k]).sum();
        right[i] = (right[i] - inner) / matrix[i][i];
    }
    Some(right.iter().zip(&scales).map(|(value, scale)| value / scale).collect())
}
