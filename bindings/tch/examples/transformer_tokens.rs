//! A small transformer on `tokens`: every object is one sequence of little-endian `u16` tokens.
//!
//! ```console
//! $ fuelrail serve tokens --count 4000 --shard-size 258 --port 9000 &
//! $ cargo run --release --package fuelrail-tch --example transformer_tokens -- http://127.0.0.1:9000/bucket/
//! ```

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "an example talks to people")]

use fuelrail::{Loader, Result};
use fuelrail_tch::models::{TransformerConfig, transformer};
use fuelrail_tch::{Decay, Event, HostFeed, LanguageModel, Rate, TrainConfig, Trainer};
use tch::{Device, nn::VarStore};

const TOKENS: usize = 129;
const VOCABULARY: i64 = 512;

fn main() -> Result<()> {
    let uri = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:9000/bucket/".into());
    let loader = Loader::builder(&uri).batch_size(32).build()?;
    let variables = VarStore::new(Device::Cpu);
    let sizes = TransformerConfig { vocabulary: VOCABULARY, tokens: TOKENS as i64, width: 64, heads: 4, layers: 2 };
    let model = transformer(&variables.root(), sizes);
    let task = LanguageModel::new(model, TOKENS, VOCABULARY, Device::Cpu);
    let config = TrainConfig {
        epoch_samples: loader.samples(),
        rule: "adamw".parse()?,
        rate: Rate { peak: 1e-3, warm_up: 0.05, decay: Decay::Cosine },
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(&task, &variables, None, config)?.listener(|event| {
        if let Event::Step(step) = event
            && step.step.is_multiple_of(10)
        {
            println!("step {} loss {:.4} nats per token", step.step, step.loss);
        }
    });
    let outcome = trainer.run(&mut HostFeed::new(loader))?;
    println!("{}", outcome.meter);
    Ok(())
}
