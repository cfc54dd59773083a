//! ResNet-18 or -50 on `photos`, as one of however many ranks the launcher started: random crops, cosine rate, checkpoints, resumption.
//!
//! ```console
//! $ fuelrail serve photos --count 2000 --port 9000 &
//! $ torchrun --no-python --nproc-per-node 2 target/release/examples/resnet_photos http://127.0.0.1:9000/bucket/train/ resnet18 64
//! ```

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "an example talks to people")]

use fuelrail::{Decode, Fit, Loader, Result, classes_of, list};
use fuelrail_tch::models::{Depth, resnet};
use fuelrail_tch::{
    Backend, Classifier, Decay, Event, Group, HostFeed, Notice, Ranks, Rate, TrainConfig, Trainer, Vault,
};
use std::time::Duration;
use tch::{Device, nn::VarStore};

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let uri = words.next().unwrap_or_else(|| "http://127.0.0.1:9000/bucket/train/".into());
    let depth = if words.next().is_some_and(|word| word == "resnet50") { Depth::Resnet50 } else { Depth::Resnet18 };
    let side: u32 = words.next().and_then(|text| text.parse().ok()).unwrap_or(64);
    let ranks = Ranks::of(|name| std::env::var(name).ok())?;
    let group = Group::join(&ranks, Backend::Gloo, Device::Cpu, Duration::from_secs(120))?;
    let listing = list(&uri, |_| {})?;
    let classes = classes_of(&uri, listing.iter().map(|object| object.key.as_str()))?.len() as i64;

    tch::manual_seed(0);
    let variables = VarStore::new(Device::Cpu);
    let model = resnet(&variables.root(), depth, classes);
    let task = Classifier::new(model, &[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225], Device::Cpu);
    let config = TrainConfig {
        epoch_samples: listing.len() as u64,
        rate: Rate { peak: 0.05, warm_up: 0.1, decay: Decay::Cosine },
        checkpoint_every_steps: 20,
        ..TrainConfig::default()
    };
    let rank = ranks.rank;
    let mut trainer = Trainer::new(&task, &variables, group, config)?
        .vault(Vault::open(&["target/resnet_photos".into()], 2)?)
        .notice(Notice::listen(None)?)
        .listener(move |event| match event {
            Event::Step(step) if rank == 0 => println!("step {} loss {:.4}", step.step, step.loss),
            Event::Saved(places, _) => println!("checkpoint {}", places.join(", ")),
            _ => {}
        });
    trainer.resume()?;

    let (rank, world) = (ranks.rank as u32, ranks.world as u32);
    let decode = Decode { fit: Fit::RandomCrop, flip: true, ..Decode::exact(side, side, 3) };
    let mut builder = Loader::builder(uri).batch_size(16).rank(rank).world(world).decode(decode).listing(listing);
    if let Some(order) = trainer.order() {
        builder = builder.resume(order.clone());
    }
    let outcome = trainer.run(&mut HostFeed::new(builder.build()?))?;
    println!("rank {rank}: {}", outcome.meter);
    Ok(())
}
