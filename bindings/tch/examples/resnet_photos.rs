//! ResNet-18 or -50 on `photos`, as one of however many ranks the launcher started, with an option of its own.
//!
//! ```console
//! $ fuelrail serve photos --count 2000 --port 9000 &
//! $ torchrun --no-python --nproc-per-node 2 target/release/examples/resnet_photos http://127.0.0.1:9000/bucket/train/ --depth resnet18 \
//!     --decode 64x64x3 --set decode_fit=random-crop --batch-size 16 --warm-up 0.1 --decay cosine \
//!     --optimiser sgd,weight_decay=1e-4,nesterov=true --checkpoint target/resnet_photos --checkpoint-every 20
//! ```

#![forbid(unsafe_code)]

use fuelrail_tch::models::{Depth, resnet};
use fuelrail_tch::{Classifier, run_with};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
struct Options {
    /// How deep the network is
    #[arg(long, value_enum, default_value_t = Depth::Resnet18)]
    depth: Depth,
}

fn main() -> ExitCode {
    run_with(std::env::args_os(), |variables, facts, options: &Options| {
        let model = resnet(&variables.root(), options.depth, facts.classes.len() as i64);
        let (mean, spread) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        Ok(Box::new(Classifier::new(model, &mean, &spread, facts.device).label_smoothing(0.1)))
    })
}
