//! The average of the parameters, the best model of a run, and answers among the five best.

use crate::common::{Job, digits, trainer, words};
use fuelrail::{Decode, Loader};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use fuelrail_tch::models::lenet;
use fuelrail_tch::{Checkpoint, Classifier, Event, HostFeed, TrainConfig, Trainer, Vault};
use serde_json::Value;
use std::cell::RefCell;
use std::path::Path;
use tch::nn::VarStore;
use tch::{Device, Tensor, no_grad};

const KEPT: f64 = 0.8;

fn flat(variables: &VarStore) -> Tensor {
    let all = variables.trainable_variables();
    Tensor::cat(&all.iter().map(|one| one.detach().contiguous().view([-1])).collect::<Vec<_>>(), 0)
}

/// Trains for two epochs of five steps with a checkpoint every third; returns the average that was followed from outside, and the trained
/// parameters before and after an evaluation.
fn run(bucket: &Bucket, folder: &Path) -> (Tensor, [Tensor; 2]) {
    let loader = || {
        let loader = Loader::builder(bucket.url("training/")).decode(Decode::exact(28, 28, 1)).batch_size(32);
        loader.epochs(2).shards(1).pin(false).memory_limit("64MB".parse().unwrap())
    };
    tch::manual_seed(1);
    let variables = VarStore::new(Device::Cpu);
    let task = Classifier::new(lenet(&variables.root(), 1, 10), &[0.5], &[0.5], Device::Cpu);
    let config = TrainConfig {
        epoch_samples: 160,
        epochs: 2,
        ema: KEPT,
        checkpoint_every_steps: 3,
        read_late: Some(false),
        ..TrainConfig::default()
    };
    let followed = RefCell::new(flat(&variables));
    let vault = Vault::open(&[folder.display().to_string()], 100).unwrap();
    let trainer = Trainer::new(&task, &variables, None, config).unwrap().vault(vault);
    let mut trainer = trainer.listener(|event| {
        if let Event::Step(_) = event {
            let moved = &*followed.borrow() * KEPT + flat(&variables) * (1.0 - KEPT);
            drop(followed.replace(moved));
        }
    });
    let mut begun = loader();
    if trainer.resume().unwrap() {
        begun = begun.resume(trainer.order().unwrap().clone());
    }
    trainer.run(&mut HostFeed::new(begun.build().unwrap())).unwrap();
    let before = flat(&variables);
    let score = trainer.evaluate(&mut HostFeed::new(loader().epochs(1).build().unwrap())).unwrap();
    assert!(score.samples == 160 && score.accuracy_of_five.unwrap() >= score.accuracy, "{score:?}");
    let after = flat(&variables);
    drop(trainer);
    (followed.into_inner(), [before, after])
}

/// The average that the newest checkpoint holds, laid out as `variables` of the same model.
fn saved(folder: &Path) -> Tensor {
    let vault = Vault::open(&[folder.display().to_string()], 100).unwrap();
    let checkpoint = Checkpoint::from_bytes(&vault.newest().unwrap().bytes.unwrap()).unwrap();
    let variables = VarStore::new(Device::Cpu);
    let _ = lenet(&variables.root(), 1, 10);
    for (name, mut variable) in variables.variables() {
        let average = &checkpoint.tensors[&format!("average.{name}")];
        no_grad(|| variable.copy_(&average.view(&variable.size()[..])));
    }
    flat(&variables)
}

#[test]
fn the_average_follows_the_steps_is_evaluated_and_goes_on_after_a_resumption() {
    let (bucket, folder) = (digits(160, 3), tempfile::tempdir().unwrap());
    let (followed, [before, after]) = run(&bucket, folder.path());
    assert_eq!(before, after, "an evaluation leaves the trained parameters as they were");
    let unbroken = saved(folder.path());
    let apart = (&unbroken - &followed).abs().max().double_value(&[]);
    assert!(apart < 1e-6, "{apart} apart");
    assert!((&unbroken - &before).abs().max().double_value(&[]) > 1e-4, "the average is not the last step");
    // From the checkpoint of the sixth step on.
    for entry in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
        if !entry.file_name().to_string_lossy().contains("000006") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    drop(run(&bucket, folder.path()));
    assert_eq!(saved(folder.path()), unbroken);
}

#[test]
fn only_steps_of_all_ranks_are_averaged() {
    let mut config = TrainConfig { epoch_samples: 1, ema: 0.9, ..TrainConfig::default() };
    assert!(config.validate().is_ok());
    config.switch.after = 0.5;
    assert!(config.validate().unwrap_err().to_string().contains("switch_after"));
    config = TrainConfig { epoch_samples: 1, ema: 1.0, ..TrainConfig::default() };
    assert!(config.validate().is_err());
}

#[test]
fn the_model_of_the_best_epoch_is_kept() {
    // One sample cannot be had, and an epoch ends all the same.
    let (source, script) = (Source::Generated(DataSet::digits(320, 3)), "missing_keys=*/00007.png".parse().unwrap());
    let bucket = Bucket::start(BucketConfig { source, script, ..BucketConfig::default() }).unwrap();
    let (test, folder) = (digits(200, 4), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let text = format!(
        "{} --set bad_samples=skip --eval-uri {} --eval-every-epoch --best {} --decode 28x28x1 --global-batch-size 32 --epochs 4 --rate 0.1 --decay one-cycle --json {}",
        bucket.url("training/"),
        test.url("training/"),
        folder.join("best").display(),
        folder.join("out.json").display()
    );
    let ended = Job::start(2, folder, &words(&text)).done();
    let report: Value = serde_json::from_slice(&std::fs::read(folder.join("out.json")).unwrap()).unwrap();
    let epochs = report["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 4);
    assert_eq!(report["outcome"]["samples"], 4 * 320);
    let best = epochs.iter().map(|epoch| epoch["score"]["accuracy"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!(report["score"]["accuracy_of_five"].as_f64().unwrap() >= best, "{report}");
    let bytes = Vault::open(&[folder.join("best").display().to_string()], 1).unwrap().newest().unwrap().bytes.unwrap();
    let about = Checkpoint::about(&bytes).unwrap();
    assert_eq!(about.accuracy, Some(best));
    let first = epochs.iter().find(|epoch| epoch["score"]["accuracy"].as_f64() == Some(best)).unwrap();
    assert_eq!(Some(about.samples), first["samples"].as_u64());
    assert!(ended[0].output.contains("best so far: accuracy") && !ended[1].output.contains("best so far"));
    assert_eq!(std::fs::read_dir(folder.join("best")).unwrap().count(), 1);
}

#[test]
fn the_best_model_and_checkpoints_do_not_share_a_place() {
    let (bucket, folder) = (digits(64, 3), tempfile::tempdir().unwrap());
    let (uri, place) = (bucket.url("training/"), folder.path().display().to_string());
    let text = format!(
        "{uri} --eval-uri {uri} --eval-every-epoch --best {place} --checkpoint {place}/../{}/ --decode 28x28x1",
        folder.path().file_name().unwrap().display()
    );
    let output = trainer(&words(&text)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--best and --checkpoint name the same place"), "{said}");
}
