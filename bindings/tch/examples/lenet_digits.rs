//! LeNet on `digits`: the smallest whole trainer, alone or as one rank of many, on any device.
//!
//! ```console
//! $ fuelrail serve digits --port 9000 &
//! $ cargo run --release --package fuelrail-tch --example lenet_digits -- \
//!     http://127.0.0.1:9000/bucket/training/ --decode 28x28x1 --epochs 2 --checkpoint target/lenet_digits
//! ```

#![forbid(unsafe_code)]

use fuelrail_tch::{Classifier, models::lenet, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    run(std::env::args_os(), |variables, facts| {
        let model = lenet(&variables.root(), 1, facts.classes.len() as i64);
        Ok(Box::new(Classifier::new(model, &[0.5], &[0.5], facts.device)))
    })
}
