//! Numbers of a step that are read while the next one runs are the same as those read at once, and what goes by them happens as it should.

use crate::common::digits;
use crate::library::ranks;
use fuelrail::{Decode, Loader};
use fuelrail_base::Result;
use fuelrail_bucket::Bucket;
use fuelrail_tch::models::lenet;
use fuelrail_tch::{
    Classifier, Decay, Event, Group, HostFeed, Judged, Rate, Task, TensorBatch, TrainConfig, Trainer, Vault,
};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor, no_grad};

/// Knows how many batches it was given.
struct Counted(Classifier, Cell<u64>);

impl Task for Counted {
    fn judge(&self, batch: &TensorBatch, training: bool) -> Result<Judged> {
        self.1.set(self.1.get() + 1);
        self.0.judge(batch, training)
    }
}

#[derive(PartialEq, Debug, Default)]
struct Ran {
    /// All that was told of each step, to the last bit.
    steps: Vec<String>,
    /// Samples after each epoch.
    epochs: Vec<u64>,
    parameters: Vec<f32>,
}

/// Three epochs of seven steps, the last of them a small one. Also: how many steps were told of while a later one had begun.
fn run(bucket: &Bucket, group: Option<Arc<Group>>, late: bool, vault: Vault) -> (Ran, usize) {
    let (rank, world) = group.as_ref().map_or((0, 1), |group| (group.rank() as u32, group.world() as u32));
    let loader = Loader::builder(bucket.url("training/")).decode(Decode::exact(28, 28, 1)).batch_size(32 / world);
    let loader = loader.rank(rank).world(world).epochs(3).shards(1).pin(false).memory_limit("64MB".parse().unwrap());
    let variables = VarStore::new(Device::Cpu);
    let task = Classifier::new(lenet(&variables.root(), 1, 10), &[0.5], &[0.5], Device::Cpu);
    let task = Counted(task, Cell::new(0));
    for mut variable in variables.trainable_variables() {
        // Ranks are threads here, and random numbers are the process's.
        let numbers = (Tensor::arange(variable.numel() as i64, (Kind::Float, Device::Cpu)) * 0.7).sin() * 0.1;
        no_grad(|| variable.copy_(&numbers.view(&variable.size()[..])));
    }
    let config = TrainConfig {
        epoch_samples: 200,
        epochs: 3,
        rate: Rate { peak: 0.1, warm_up: 0.1, decay: Decay::Cosine },
        checkpoint_every_steps: 3,
        read_late: Some(late),
        ..TrainConfig::default()
    };
    let (ran, behind) = (RefCell::new(Ran::default()), Cell::new(0));
    let trainer = Trainer::new(&task, &variables, group, config).unwrap().vault(vault);
    let mut trainer = trainer.listener(|event| {
        if let Event::Step(report) = event {
            behind.set(behind.get() + usize::from(task.1.get() > report.step));
            let numbers = [report.loss, report.accuracy, report.rate].map(f64::to_bits);
            let what = (report.step, report.epoch, report.samples, numbers, &report.ids);
            ran.borrow_mut().steps.push(format!("{what:?}"));
        }
    });
    let mut loader = loader;
    if trainer.resume().unwrap() {
        task.1.set(trainer.steps());
        loader = loader.resume(trainer.order().unwrap().clone());
    }
    let mut feed = HostFeed::new(loader.build().unwrap());
    let mut after_epoch = |trainer: &mut Trainer<'_>, _: &dyn fuelrail_tch::Feed| {
        ran.borrow_mut().epochs.push(trainer.samples());
        Ok(())
    };
    trainer.run_with(&mut feed, &mut after_epoch).unwrap();
    drop(trainer);
    let mut ran = ran.into_inner();
    let all = variables.trainable_variables();
    ran.parameters = all.iter().flat_map(|one| Vec::<f32>::try_from(&one.contiguous().view([-1])).unwrap()).collect();
    (ran, behind.get())
}

#[test]
fn every_step_is_told_as_if_it_were_read_at_once() {
    let bucket = digits(200, 3);
    let (at_once, behind) = run(&bucket, None, false, Vault::default());
    assert_eq!((at_once.steps.len(), &at_once.epochs[..], behind), (21, &[200, 400, 600][..], 0));
    let (late, behind) = run(&bucket, None, true, Vault::default());
    assert_eq!(late, at_once);
    assert!(behind >= 3 * 3, "only {behind} steps were read late");
    let both = |late| ranks(2, |_, group| run(&bucket, Some(group), late, Vault::default()));
    let (at_once, late) = (both(false), both(true));
    for (at_once, late) in at_once.iter().zip(&late) {
        assert_eq!(late.0, at_once.0);
        assert!(late.1 >= 3 * 3 && at_once.1 == 0);
    }
    assert_eq!(late[0].0.parameters, late[1].0.parameters);
}

#[test]
fn a_checkpoint_asked_for_by_a_step_that_is_read_late_is_whole() {
    let (bucket, folder) = (digits(200, 3), tempfile::tempdir().unwrap());
    let vault = || Vault::open(&[folder.path().display().to_string()], 100).unwrap();
    let (unbroken, _) = run(&bucket, None, true, vault());
    // Asked for by the third step, and saved when that was read: after the fourth.
    let fourth = folder.path().join("step-000000000004.safetensors");
    assert!(fourth.is_file());
    for entry in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap).filter(|entry| entry.path() != fourth) {
        std::fs::remove_file(entry.path()).unwrap();
    }
    let (resumed, _) = run(&bucket, None, true, vault());
    assert_eq!(resumed.parameters, unbroken.parameters);
    assert_eq!(resumed.steps, unbroken.steps[4..]);
}
