//! LeNet on `digits`: the smallest whole trainer, one rank.
//!
//! ```console
//! $ fuelrail serve digits --port 9000 &
//! $ cargo run --release --package fuelrail-tch --example lenet_digits -- http://127.0.0.1:9000/bucket/training/
//! ```

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "an example talks to people")]

use fuelrail::{Decode, Loader, Result};
use fuelrail_tch::{Classifier, Event, HostFeed, TrainConfig, Trainer, models::lenet};
use tch::{Device, nn::VarStore};

fn main() -> Result<()> {
    let uri = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:9000/bucket/training/".into());
    let loader = Loader::builder(&uri).decode(Decode::exact(28, 28, 1)).batch_size(64).epochs(2).build()?;
    let variables = VarStore::new(Device::Cpu);
    let model = lenet(&variables.root(), 1, loader.classes().len() as i64);
    let task = Classifier::new(model, &[0.5], &[0.5], Device::Cpu);
    let config = TrainConfig { epoch_samples: loader.samples(), epochs: 2, ..TrainConfig::default() };
    let mut trainer = Trainer::new(&task, &variables, None, config)?.listener(|event| {
        if let Event::Step(step) = event
            && step.step.is_multiple_of(50)
        {
            println!("step {} loss {:.4} accuracy {:.3}", step.step, step.loss, step.accuracy);
        }
    });
    let outcome = trainer.run(&mut HostFeed::new(loader))?;
    println!("{}", outcome.meter);
    Ok(())
}
