//! What the library promises its callers: batches without a copy, models that learn, and ranks that stay together, here as threads.
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "old versions of tch take slices where new ones take any list"
)]

use crate::common::{digits, meeting_port};
use crate::skip::skip_or_fail;
use fuelrail::{Decode, Loader, SampleId, State};
use fuelrail_base::Result;
use fuelrail_bucket::{Bucket, BucketConfig, Source};
use fuelrail_tch::models::{Depth, TransformerConfig, lenet, resnet, transformer};
use fuelrail_tch::{
    Backend, Checkpoint, Classifier, End, Event, Fed, Feed, Group, Judged, Outcome, Policy, Precision, Ranks, Rate,
    Reason, Reducer, Slow, SwitchConfig, Task, TensorBatch, TrainConfig, Trainer, Vault, tensor_of_bytes,
    torch_version,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tch::nn::{self, OptimizerConfig, VarStore};
use tch::{Device, Kind as Element, Tensor};

fn loader(uri: &str, decode: bool, batch: u32) -> Loader {
    let builder = Loader::builder(uri).batch_size(batch).shards(1).pin(false).shuffle(false);
    let builder = builder.memory_limit("64MB".parse().unwrap());
    if decode { builder.decode(Decode::exact(28, 28, 1)) } else { builder }.build().unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(&tensor.to_kind(Element::Double).contiguous().view([-1])).unwrap()
}

#[test]
fn a_batch_becomes_a_tensor_where_it_lies() {
    let bucket = digits(64, 3);
    let mut loader = loader(&bucket.url("training/"), true, 16);
    let (begins, length) = loader.memory().span();
    let batch = loader.next_batch().unwrap().unwrap();
    let (pixels, labels) = (batch.bytes().to_vec(), batch.labels().to_vec());
    let batch = TensorBatch::over(batch).unwrap();
    let at = batch.bytes.data_ptr().addr();
    assert!((begins.addr()..begins.addr() + length).contains(&at), "a copy");
    assert_eq!(batch.bytes.size(), [16, 28, 28, 1]);
    assert_eq!(numbers(&batch.bytes), pixels.iter().map(|&b| f64::from(b)).collect::<Vec<_>>());
    assert_eq!(numbers(&batch.labels), labels.iter().map(|&l| f64::from(l)).collect::<Vec<_>>());
}

#[test]
fn its_memory_goes_home_with_the_last_graph_that_needs_it() {
    let bucket = digits(64, 3);
    for (keep, at_home) in
        [("nothing", true), ("tensor", false), ("view", false), ("graph", false), ("spent graph", true)]
    {
        let mut loader = loader(&bucket.url("training/"), true, 16);
        let batch = TensorBatch::over(loader.next_batch().unwrap().unwrap()).unwrap();
        let weight = Tensor::ones(&[28, 28, 1], (Element::Float, Device::Cpu)).set_requires_grad(true);
        // The gradient of the weight needs the pixels as they are.
        let loss = (&weight * &batch.bytes).sum(Element::Float);
        let kept = match keep {
            "tensor" => vec![batch.bytes.shallow_clone()],
            "view" => vec![batch.bytes.get(3)],
            "graph" => vec![loss.shallow_clone()],
            "spent graph" => {
                loss.backward();
                vec![loss.shallow_clone()]
            }
            _ => Vec::new(),
        };
        drop((batch, loss));
        assert_eq!(loader.close().slots, u64::from(!at_home), "{keep}");
        drop(kept);
    }
}

/// A bucket of files of these sizes; the bytes of file `n` are all `n`.
fn files(folder: &Path, sizes: &[usize]) -> Bucket {
    for (n, &size) in sizes.iter().enumerate() {
        std::fs::write(folder.join(format!("{n:03}.bin")), vec![n as u8; size]).unwrap();
    }
    let source = Source::Directory(folder.to_owned());
    Bucket::start(BucketConfig { source, ..BucketConfig::default() }).unwrap()
}

#[test]
fn samples_of_one_length_come_as_rows() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = files(folder.path(), &[24; 8]);
    let batch = loader(&bucket.url(""), false, 8).next_batch().unwrap().unwrap();
    let batch = TensorBatch::over(batch).unwrap();
    let rows = batch.rows(24).unwrap();
    assert_eq!(rows.size(), [8, 24]);
    for n in 0..8 {
        assert_eq!(numbers(&rows.get(n)), vec![n as f64; 24]);
    }
    assert!(batch.rows(23).is_none());
    let folder = tempfile::tempdir().unwrap();
    let bucket = files(folder.path(), &[24, 24, 25, 24]);
    let batch = loader(&bucket.url(""), false, 4).next_batch().unwrap().unwrap();
    assert!(TensorBatch::over(batch).unwrap().rows(24).is_none(), "one is longer");
}

#[test]
fn rows_that_lie_unevenly_are_brought_together() {
    let bytes = Tensor::arange(20, (Element::Int64, Device::Cpu)).to_kind(Element::Uint8);
    let labels = Tensor::zeros(&[3], (Element::Int64, Device::Cpu));
    let ids = [0, 1, 2].map(SampleId).to_vec();
    let (spans, labels_here) = (vec![0..2, 4..6, 10..12], labels.shallow_clone());
    let batch = TensorBatch { bytes, spans, labels, labels_here, ids, epoch: 0, seq: 0, weights: None };
    assert_eq!(numbers(&batch.rows(2).unwrap()), [0.0, 1.0, 4.0, 5.0, 10.0, 11.0]);
}

/// Ten steps on one batch; the first and the last loss.
fn learn(variables: &VarStore, mut loss: impl FnMut() -> Tensor) -> (f64, f64) {
    let mut optimiser = nn::Sgd::default().build(variables, 0.05).unwrap();
    let first = loss().double_value(&[]);
    (0..10).for_each(|_| optimiser.backward_step(&loss()));
    (first, loss().double_value(&[]))
}

#[test]
fn a_resnet_learns() {
    tch::manual_seed(1);
    let variables = VarStore::new(Device::Cpu);
    let model = resnet(&variables.root(), Depth::Resnet18, 5);
    let (input, labels) = (
        Tensor::randn(&[4, 3, 32, 32], (Element::Float, Device::Cpu)),
        Tensor::arange(4, (Element::Int64, Device::Cpu)),
    );
    assert_eq!(model.forward_t(&input, true).size(), [4, 5]);
    let (first, last) = learn(&variables, || model.forward_t(&input, true).cross_entropy_for_logits(&labels));
    assert!(last < 0.5 * first, "{first} to {last}");
    let deep = VarStore::new(Device::Cpu);
    let scores = resnet(&deep.root(), Depth::Resnet50, 7).forward_t(&input.narrow(1, 0, 1), true);
    assert_eq!(scores.size(), [4, 7]);
}

#[test]
fn a_transformer_learns_and_does_not_look_ahead() {
    tch::manual_seed(1);
    let variables = VarStore::new(Device::Cpu);
    let config = TransformerConfig { vocabulary: 11, tokens: 8, width: 16, heads: 2, layers: 2 };
    let model = transformer(&variables.root(), config);
    let tokens = Tensor::randint(11, &[3, 8], (Element::Int64, Device::Cpu));
    let scores = model.forward_t(&tokens, true);
    assert_eq!(scores.size(), [3, 8, 11]);
    let other = tokens.copy();
    let _ = other.select(1, 7).fill_(0).select(0, 0).fill_(5);
    let again = model.forward_t(&other, true);
    assert_eq!(
        numbers(&scores.narrow(1, 0, 7)),
        numbers(&again.narrow(1, 0, 7)),
        "the last token is unseen by the others"
    );
    let asked = tokens.roll(&[-1], &[1]).view([-1]);
    let (first, last) =
        learn(&variables, || model.forward_t(&tokens, true).view([-1, 11]).cross_entropy_for_logits(&asked));
    assert!(last < 0.9 * first, "{first} to {last}");
}

/// Batches at hand, each after a pause.
struct Given(VecDeque<TensorBatch>, Duration);

impl Feed for Given {
    fn next(&mut self) -> Option<Result<Fed>> {
        let batch = self.0.pop_front()?;
        std::thread::sleep(self.1);
        Some(Ok(Fed { batch, data_wait: Duration::ZERO, ready: true }))
    }

    fn order(&self) -> State {
        let (order, listing) = ("global".into(), String::new());
        let importance = None;
        State { version: 1, seed: 0, shuffle: false, order, samples: 64, listing, epoch: 0, position: 0, importance }
    }
}

/// `count` batches of four samples of three bytes; the label is their sum.
fn sums(count: u64, first: u64) -> Given {
    Given((0..count).map(|n| batch_of_sums(first + 4 * n)).collect(), Duration::ZERO)
}

fn batch_of_sums(first: u64) -> TensorBatch {
    let rows: Vec<u8> = (0..4).flat_map(|i| [first + i, 2 * i, 3]).map(|n| (n % 7) as u8).collect();
    let labels: Vec<i64> = rows.chunks(3).map(|row| row.iter().map(|&b| i64::from(b)).sum()).collect();
    let ids = (first..first + 4).map(SampleId).collect();
    let labels = Tensor::from_slice(&labels);
    TensorBatch {
        bytes: tensor_of_bytes(rows, &[4, 3], Element::Uint8).unwrap(),
        spans: Vec::new(),
        labels: labels.shallow_clone(),
        labels_here: labels,
        ids,
        epoch: 0,
        seq: 0,
        weights: None,
    }
}

/// Learns three numbers, all of which are 1; one judgement can be made infinite.
struct Summing {
    weight: Tensor,
    judged: Cell<u64>,
    infinite: Option<u64>,
}

impl Summing {
    fn new(variables: &VarStore, infinite: Option<u64>) -> Summing {
        Summing { weight: variables.root().zeros("weight", &[3]), judged: Cell::new(0), infinite }
    }
}

impl Task for Summing {
    fn judge(&self, batch: &TensorBatch, _: bool) -> Result<Judged> {
        self.judged.set(self.judged.get() + 1);
        let found = (batch.bytes.to_kind(Element::Float) * &self.weight).sum_dim_intlist(
            Some([1_i64].as_slice()),
            false,
            Element::Float,
        );
        let wrong = found - &batch.labels;
        let factor = if self.infinite == Some(self.judged.get()) { f64::INFINITY } else { 1.0 };
        let losses = &wrong * &wrong * factor;
        let right = wrong.abs().lt(0.5).sum(Element::Float);
        Ok(Judged { losses, right, near: None, answers: 1.0 })
    }
}

fn config(samples: u64) -> TrainConfig {
    TrainConfig {
        epoch_samples: samples,
        rate: Rate { peak: 0.005, ..TrainConfig::default().rate },
        ..TrainConfig::default()
    }
}

#[test]
fn bf16_trains_on_the_cpu() {
    tch::manual_seed(1);
    let variables = VarStore::new(Device::Cpu);
    let task = Classifier::new(lenet(&variables.root(), 1, 10), &[0.5], &[0.5], Device::Cpu);
    let bucket = digits(64, 3);
    let mut loader = loader(&bucket.url("training/"), true, 64);
    let batch = TensorBatch::over(loader.next_batch().unwrap().unwrap()).unwrap();
    let again = |_| TensorBatch {
        bytes: batch.bytes.shallow_clone(),
        labels: batch.labels.shallow_clone(),
        labels_here: batch.labels_here.shallow_clone(),
        spans: batch.spans.clone(),
        ids: batch.ids.clone(),
        epoch: 0,
        seq: 0,
        weights: None,
    };
    let config = TrainConfig { precision: Precision::Bf16, rate: TrainConfig::default().rate, ..config(64 * 30) };
    let losses = RefCell::new(Vec::new());
    let mut trainer = Trainer::new(&task, &variables, None, config).unwrap().listener(|event| {
        if let Event::Step(report) = event {
            losses.borrow_mut().push(report.loss);
        }
    });
    trainer.run(&mut Given((0..30).map(again).collect(), Duration::ZERO)).unwrap();
    let losses = losses.borrow();
    assert!(losses.len() == 30 && losses[29] < 0.5 * losses[0], "{losses:?}");
    assert!(variables.trainable_variables().iter().all(|v| v.kind() == Element::Float));
}

#[test]
fn an_overflow_of_half_precision_skips_the_step_and_halves_the_scale() {
    if !half_on_the_cpu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let variables = VarStore::new(Device::Cpu);
    let task = Summing::new(&variables, Some(2));
    let config = TrainConfig { precision: Precision::Half, ..config(16) };
    let weights = RefCell::new(Vec::new());
    let vault = Vault::open(&[folder.path().display().to_string()], 1).unwrap();
    let mut trainer = Trainer::new(&task, &variables, None, config).unwrap().vault(vault.clone()).listener(|event| {
        if let Event::Step(_) = event {
            weights.borrow_mut().push(numbers(&task.weight));
        }
    });
    trainer.run(&mut sums(4, 0)).unwrap();
    let weights = weights.borrow();
    assert_eq!(weights.len(), 4);
    assert!(weights[0].iter().any(|w| *w != 0.0));
    assert_eq!(weights[1], weights[0], "a step of infinite gradients changes nothing");
    assert!(weights[3] != weights[1] && weights[3].iter().all(|w| w.is_finite()), "{weights:?}");
    let saved = vault.newest().unwrap().bytes.unwrap();
    assert_eq!(Checkpoint::about(&saved).unwrap().loss_scale, 32_768.0);
}

/// Torch 1 knows no half precision on a CPU.
fn half_on_the_cpu() -> bool {
    let knows = !torch_version().starts_with("1.");
    if !knows {
        skip_or_fail("torch-2", "torch 1 knows no half precision on a CPU");
    }
    knows
}

fn meet(rank: usize, world: usize, port: u16, patience: Duration) -> Arc<Group> {
    let ranks = Ranks { rank, world, port, ..Ranks::default() };
    Group::join(&ranks, Backend::Gloo, Device::Cpu, patience).unwrap().unwrap()
}

/// Every rank as a thread of its own.
pub(crate) fn ranks<T: Send>(world: usize, rank: impl Fn(usize, Arc<Group>) -> T + Sync) -> Vec<T> {
    patient_ranks(Duration::from_secs(60), world, rank)
}

/// The same, each of which waits so long for the others.
fn patient_ranks<T: Send>(patience: Duration, world: usize, rank: impl Fn(usize, Arc<Group>) -> T + Sync) -> Vec<T> {
    let (port, all_met) = (meeting_port(), Barrier::new(world));
    let one = |n| {
        let group = meet(n, world, port, patience);
        // Who left while another still connects would end that one's meeting.
        all_met.wait();
        rank(n, group)
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..world).map(|n| scope.spawn(move || one(n))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn every_rank_hears_the_losses_of_all() {
    let losses = |rank: u64| vec![(SampleId(7 + rank), 0.25); 2 * rank as usize];
    let heard = ranks(3, |rank, group| group.gather_losses(&losses(rank as u64)).unwrap());
    assert_eq!(heard, vec![(0..3).flat_map(losses).collect::<Vec<_>>(); 3]);
    let heard = ranks(2, |_, group| group.gather_losses(&[]).unwrap());
    assert_eq!(heard, vec![Vec::new(); 2]);
}

/// One rank of an asynchronous run over `batches` of its own: how it ended, and its parameters.
fn beside(group: Arc<Group>, config: TrainConfig, batches: u64, vault: Vault) -> (Outcome, Vec<f64>) {
    let variables = VarStore::new(Device::Cpu);
    let task = Summing::new(&variables, None);
    let first = 100 * group.rank() as u64;
    let config = TrainConfig { switch: SwitchConfig { after: 0.0, ..SwitchConfig::default() }, ..config };
    let mut trainer = Trainer::new(&task, &variables, Some(group), config).unwrap().vault(vault);
    let outcome = trainer.run(&mut sums(batches, first)).unwrap();
    (outcome, numbers(&task.weight))
}

#[test]
fn asynchronous_ranks_end_with_the_same_parameters() {
    for precision in [Precision::Full, Precision::Half] {
        if precision == Precision::Half && !half_on_the_cpu() {
            continue;
        }
        let ended = ranks(2, |_, group| beside(group, TrainConfig { precision, ..config(400) }, 100, Vault::default()));
        assert_eq!(ended[0].1, ended[1].1);
        assert!(ended[0].1.iter().all(|w| (w - 1.0).abs() < 0.5), "{precision:?}: {:?}", ended[0].1);
        for (outcome, _) in ended {
            assert!(outcome.end == End::Done && outcome.switch_s.is_some(), "{outcome:?}");
            assert!((400..408).contains(&outcome.samples), "{outcome:?}");
        }
    }
}

/// Three ranks, the second of which is slow in a part of the work: why each switched, how many samples each took, how it ended, and its parameters.
fn lagging(switch: SwitchConfig) -> Vec<(Vec<Reason>, u64, Outcome, Vec<f64>)> {
    ranks(3, |rank, group| {
        let variables = VarStore::new(Device::Cpu);
        let task = Summing::new(&variables, None);
        let slow = vec![Slow { rank: 1, factor: 40.0, during: 0.2..0.4 }];
        let switch = SwitchConfig { straggler: 6.0, straggler_steps: 5, ..switch };
        let config = TrainConfig { switch, slow, staleness_max: 1000, ..config(2400) };
        let (reasons, taken) = (RefCell::new(Vec::new()), Cell::new(0));
        let mut trainer = Trainer::new(&task, &variables, Some(group), config).unwrap().listener(|event| match event {
            Event::Switched(reason, _) => reasons.borrow_mut().push(reason),
            Event::Step(step) => taken.set(taken.get() + step.ids.len() as u64),
            _ => {}
        });
        let Given(batches, _) = sums(600, 3000 * rank as u64);
        let outcome = trainer.run(&mut Given(batches, Duration::from_micros(500))).unwrap();
        drop(trainer);
        (reasons.into_inner(), taken.get(), outcome, numbers(&task.weight))
    })
}

#[test]
fn steps_are_synchronous_again_when_no_rank_lags_any_more() {
    // Beside a busy machine others may lag, too, and the work be over before the slow one is seen to have caught up.
    let mut tries = (0..3).map(|_| lagging(SwitchConfig::default()));
    let ended = tries.find(|ended| ended.iter().all(|(reasons, ..)| reasons.len() > 1)).expect("one of three recovers");
    for (reasons, _, outcome, weights) in &ended {
        assert_eq!(reasons[..2], [Reason::Straggler(1), Reason::Recovered], "{reasons:?}");
        assert_eq!(weights, &ended[0].3, "the momentum is that of rank 0 on all ranks, too");
        assert!(outcome.end == End::Done && (500..2400).contains(&outcome.synchronous), "{outcome:?}");
    }
    let taken: u64 = ended.iter().map(|(_, taken, ..)| taken).sum();
    assert_eq!(taken, ended[0].2.samples, "no batch is lost where steps become synchronous again");
    assert!(ended[1].1 < ended[0].1, "the slow rank did less");
}

#[test]
fn the_others_go_on_without_a_rank_that_lags_until_the_synchronous_share_is_done() {
    let ended = lagging(SwitchConfig { after: 0.5, policy: Policy::Elastic, ..SwitchConfig::default() });
    for (reasons, _, outcome, weights) in &ended {
        assert_eq!(reasons[..], [Reason::LeftOut(1), Reason::Share], "{reasons:?}");
        assert_eq!(weights, &ended[0].3);
        assert!(outcome.end == End::Done && (1200..1212).contains(&outcome.synchronous), "{outcome:?}");
    }
    // 480 samples, and the five steps in which it was seen to lag; then its part of the second half.
    assert!((160..1000).contains(&ended[1].1) && ended[1].1 + 200 < ended[0].1, "{ended:?}");
}

#[test]
fn a_rank_without_samples_waits_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let vault = Vault::open(&[folder.path().display().to_string()], 1).unwrap();
    for ends_early in [0, 1] {
        let ended = ranks(2, |rank, group| {
            let batches = if rank == ends_early { 2 } else { 100 };
            beside(group, config(80), batches, vault.clone())
        });
        assert_eq!(ended[0].1, ended[1].1);
        for (outcome, _) in &ended {
            assert!(outcome.end == End::Done && outcome.samples == 80, "{outcome:?}");
        }
        let saved = vault.newest().unwrap().bytes.unwrap();
        assert_eq!(Checkpoint::about(&saved).unwrap().samples, 80);
    }
    // When nobody has any left, that is the end too.
    let ended = ranks(2, |_, group| beside(group, config(800), 3, Vault::default()).0);
    assert!(ended.iter().all(|outcome| outcome.end == End::Done && outcome.samples == 24), "{ended:?}");
}

#[test]
fn a_checkpoint_may_take_longer_to_write_or_read_than_ranks_wait_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (source, script) = (Source::Directory(folder.path().to_owned()), "latency=fixed:15s".parse().unwrap());
    let bucket = Bucket::start(BucketConfig { source, script, writable: true, ..BucketConfig::default() }).unwrap();
    let [saved, best] = ["saved/", "best/"].map(|prefix| Vault::open(&[bucket.url(prefix)], 1).unwrap());
    let ended = patient_ranks(Duration::from_secs(10), 2, |rank, group| {
        let variables = VarStore::new(Device::Cpu);
        let task = Summing::new(&variables, None);
        let mut trainer = Trainer::new(&task, &variables, Some(group), config(16)).unwrap().vault(saved.clone());
        assert!(!trainer.resume().unwrap(), "its place is empty");
        let mut feed = sums(2, 100 * rank as u64);
        let outcome = trainer.run(&mut feed).unwrap();
        (outcome.end, trainer.save_best(Some(&best), feed.order(), 0.5).unwrap().unwrap().len())
    });
    assert_eq!(ended, [(End::Done, 1), (End::Done, 0)]);
    let written = ["saved", "best"].map(|name| std::fs::read_dir(folder.path().join(name)).unwrap().count());
    assert_eq!(written, [1, 1]);
}

#[test]
fn where_rank_0_cannot_read_the_checkpoint_all_ranks_say_so() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("step-000000000003.safetensors"), "torn").unwrap();
    let vault = Vault::open(&[folder.path().display().to_string()], 1).unwrap();
    let ended = ranks(2, |_, group| {
        let variables = VarStore::new(Device::Cpu);
        let task = Summing::new(&variables, None);
        let mut trainer = Trainer::new(&task, &variables, Some(group), config(16)).unwrap().vault(vault.clone());
        trainer.resume().unwrap_err().to_string()
    });
    assert!(ended[0].contains("none of 1 checkpoints is whole"), "{}", ended[0]);
    assert!(ended[1].contains("rank 0 could not read the checkpoint"), "{}", ended[1]);
}

#[test]
fn after_a_rank_is_lost_nothing_is_in_flight_and_no_step_begins() {
    ranks(2, |rank, group| {
        if rank == 1 {
            return;
        }
        let mut parameters: Vec<Tensor> =
            (0..4).map(|_| Tensor::ones(&[1000], (Element::Float, Device::Cpu)).set_requires_grad(true)).collect();
        let mut reducer = Reducer::new(Some(group), &mut parameters, 4000, 1).unwrap();
        assert_eq!(reducer.buckets(), 4);
        reducer.begin().unwrap();
        reducer.arm(&Tensor::from_slice(&[1.0])).unwrap();
        parameters
            .iter()
            .fold(Tensor::zeros(&[1], (Element::Float, Device::Cpu)), |sum, p| sum + p.sum(Element::Float))
            .backward();
        let error = reducer.finish().unwrap_err();
        assert!(error.to_string().contains("another rank has died"), "{error}");
        assert!(reducer.begin().unwrap_err().to_string().contains("an earlier step has failed"));
    });
}
