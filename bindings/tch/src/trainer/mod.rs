//! The data-parallel trainer: the same model on every rank, each with its share of every step's samples.
//!
//! A step's gradients are sums over samples, summed over ranks and divided by the number of samples of all: an uneven last step, a rank with
//! no sample at all, and any number of ranks give the mean over the same samples. Owns the loop; what a step is lies in `synchronous` and
//! `asynchronous`, what is saved in `saving`.

mod asynchronous;
mod evaluation;
mod saving;
mod steps;
mod synchronous;

use crate::checkpoint::{Vault, Writer};
use crate::feed::Feed;
use crate::ffi::{Group, Reducer, caught};
use crate::meter::{Meter, StepTime};
use crate::notice::Notice;
use crate::optimiser::{LossScale, Optimiser, Precision, Rate, Rule};
use crate::switch::{Mode, Reason, Slow, Switch, SwitchConfig, slow};
use crate::task::Task;
use clap::{Args, FromArgMatches};
pub use evaluation::Score;
use fuelrail::State;
use fuelrail_base::{Error, Kind, Result};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use steps::{Late, Progress, Tail, named_parameters, views};
use tch::nn::VarStore;
use tch::{Device, Tensor, no_grad};

/// How to train. The defaults are those of the command line.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct TrainConfig {
    /// Samples of an epoch, all ranks together.
    #[arg(skip)]
    pub epoch_samples: u64,
    /// Seed of the order, of weights and of dropout
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Epochs
    #[arg(long, default_value_t = 1)]
    pub epochs: u64,
    /// Batches of a rank that make up one step
    #[arg(long, default_value_t = 1)]
    pub accumulate: usize,
    /// sgd, adam or adamw, with what differs from PyTorch's defaults after it (momentum of sgd: 0.9): sgd,weight_decay=5e-4,nesterov=true or
    /// adamw,beta1=0.9,beta2=0.95,epsilon=1e-8,weight_decay=0.1. Weights decay, biases and norms do not
    #[arg(long = "optimiser", value_name = "OPTIMISER", default_value = "sgd", value_parser = |text: &str| text.parse::<Rule>())]
    pub rule: Rule,
    /// Average the parameters over the steps, with this share of the average kept at each (0.999): evaluations go by the average, and
    /// checkpoints have both; 0 does not
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub ema: f64,
    /// Longest gradient: a longer one is shortened to it; 0 leaves all as they are
    #[arg(long, default_value_t = 0.0)]
    pub clip_norm: f64,
    /// Its learning rate.
    #[command(flatten)]
    pub rate: Rate,
    /// What passes compute in
    #[arg(long, value_enum, default_value_t = Precision::Auto)]
    pub precision: Precision,
    /// Bytes of gradients summed over the ranks at a time
    #[arg(long, default_value_t = 25 << 20)]
    pub bucket_bytes: usize,
    /// A checkpoint every so many steps; without, only at the end and on a notice
    #[arg(long = "checkpoint-every", value_name = "N", default_value_t = 0)]
    pub checkpoint_every_steps: u64,
    /// And every so many seconds
    #[arg(long, default_value_t = 0.0)]
    pub checkpoint_every_s: f64,
    /// When to go asynchronous.
    #[command(flatten)]
    pub switch: SwitchConfig,
    /// Asynchronous: throw gradients away whose parameters have had more updates since
    #[arg(long, default_value_t = 64)]
    pub staleness_max: u64,
    /// Read the numbers of a step while the next one runs; without, on GPUs only.
    #[arg(skip)]
    pub read_late: Option<bool>,
    /// For trials: slow a rank down, everywhere or between two shares of the work, RANK=FACTOR or RANK=FACTOR@FROM..TO; may be given more often
    #[arg(long, value_name = "RANK=FACTOR[@FROM..TO]", value_parser = slow)]
    pub slow: Vec<Slow>,
}

impl Default for TrainConfig {
    fn default() -> TrainConfig {
        let matches = TrainConfig::augment_args(clap::Command::new("defaults")).try_get_matches_from(["defaults"]);
        matches.and_then(|matches| TrainConfig::from_arg_matches(&matches)).expect("all arguments can be left out")
    }
}

impl TrainConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// `Usage` naming the field and what to write.
    pub fn validate(&self) -> Result<()> {
        let Rate { peak, warm_up, .. } = self.rate;
        let SwitchConfig { after, straggler, .. } = self.switch;
        let slow = self.slow.iter().map(|slow| slow.factor).find(|factor| !(1.0..f64::INFINITY).contains(factor));
        let fields = [
            (self.accumulate > 0, "accumulate is 0".into(), "a step needs at least one batch"),
            (self.epochs > 0, "epochs is 0".into(), "ask for at least one epoch"),
            (
                self.epoch_samples > 0,
                "the data set is empty".into(),
                "look at the URI: fuelrail ls shows what is there",
            ),
            (peak > 0.0 && peak.is_finite(), format!("the learning rate is {peak}"), "choose one above 0"),
            ((0.0..1.0).contains(&warm_up), format!("warm_up is {warm_up}"), "give a share of the work, 0 to below 1"),
            ((0.0..=1.0).contains(&after), format!("switch_after is {after}"), "give a share of the work, 0 to 1"),
            (
                straggler == 0.0 || straggler > 1.0,
                format!("straggler is {straggler}"),
                "give how many times the median is too slow, above 1",
            ),
            (
                (0.0..1.0).contains(&self.ema) && (self.ema == 0.0 || (after == 1.0 && straggler == 0.0)),
                format!("ema is {} with switch_after = {after}, straggler = {straggler}", self.ema),
                "give a share of 0 to below 1, and leave switch_after at 1 and straggler at 0: only steps of all ranks are averaged",
            ),
            (slow.is_none(), format!("slow is {}", slow.unwrap_or(1.0)), "give a factor of 1 or more"),
            (
                self.clip_norm >= 0.0 && self.clip_norm.is_finite(),
                format!("clip_norm is {}", self.clip_norm),
                "give a length of 0 or more",
            ),
        ];
        match fields.into_iter().find(|(good, ..)| !good) {
            Some((_, cause, cure)) => Err(Error::new(Kind::Usage, cause).with_hint(cure)),
            None => Ok(()),
        }
    }
}

/// What one step did, reported to the listener.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Optimiser steps done, this one included; asynchronously this rank's own.
    pub step: u64,
    /// The epoch it began in.
    pub epoch: u64,
    /// Samples that are done, all ranks together: trained on, or left out as bad.
    pub samples: u64,
    /// Mean loss over the step's samples; of all ranks, asynchronously of this one.
    pub loss: f64,
    /// Share of right answers.
    pub accuracy: f64,
    /// Learning rate.
    pub rate: f64,
    /// How it was done.
    pub mode: Mode,
    /// This rank's samples, in order.
    pub ids: Vec<u64>,
    /// Where its time went.
    #[serde(skip)]
    pub time: StepTime,
}

/// What the trainer reports while it runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step is done.
    Step(&'a StepReport),
    /// A checkpoint is written, in so much time, at these places.
    Saved(&'a [String], Duration),
    /// Steps are done in another way from here on; the change took this long.
    Switched(Reason, Duration),
    /// A problem that training survives.
    Notice(&'a str),
}

/// How a run ended.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// All epochs are done.
    Done,
    /// A notice stopped it; where it has a vault, it has saved a checkpoint, and can be resumed.
    Stopped(String),
}

/// What a run was.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// Optimiser steps in all, over all resumptions.
    pub steps: u64,
    /// Samples in all, over all ranks and resumptions.
    pub samples: u64,
    /// Of them, those of synchronous steps.
    pub synchronous: u64,
    /// Mean loss of the last step.
    pub loss: f64,
    /// Where time went.
    pub meter: Meter,
    /// Seconds that switches took, if there was one.
    pub switch_s: Option<f64>,
    /// Why it was last switched.
    pub switch_reason: Option<Reason>,
    /// Gradients discarded because they were too stale.
    pub stale: u64,
}

type Listener<'l> = Box<dyn FnMut(Event<'_>) + 'l>;

/// Trains a task.
pub struct Trainer<'l> {
    task: &'l dyn Task,
    variables: &'l VarStore,
    /// In the order of the forward pass, with names.
    parameters: Vec<(String, Tensor)>,
    group: Option<Arc<Group>>,
    config: TrainConfig,
    device: Device,
    reducer: Reducer,
    optimiser: Optimiser,
    /// The parameters' average over the steps, laid out as they are.
    average: Option<Tensor>,
    scale: LossScale,
    switch: Switch,
    vault: Vault,
    writer: Writer,
    /// How many checkpoints in a row could not be written, and why the last could not.
    unwritten: Option<(u32, Error)>,
    notice: Option<Notice>,
    listener: Listener<'l>,
    progress: Progress,
    late: Late,
    meter: Meter,
}

impl<'l> Trainer<'l> {
    /// A trainer of this model. All ranks get the parameters of rank 0.
    ///
    /// # Errors
    /// `Usage` for the configuration, `Environment` when another rank is missing.
    pub fn new(
        task: &'l dyn Task,
        variables: &'l VarStore,
        group: Option<Arc<Group>>,
        mut config: TrainConfig,
    ) -> Result<Trainer<'l>> {
        config.validate()?;
        let device = variables.device();
        let capability = |n: usize| Some(fuelrail_cuda::Device::all().ok()?.get(n)?.capability);
        config.precision = config.precision.on(if let Device::Cuda(n) = device { capability(n) } else { None });
        let parameters = named_parameters(variables)?;
        let mut tensors: Vec<Tensor> = parameters.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
        let world = group.as_ref().map_or(1, |group| group.world());
        let reducer = Reducer::new(group.clone(), &mut tensors, config.bucket_bytes, Tail::length(world))?;
        let flat = reducer.flat_parameters()?;
        // Biases, and the scales of norms, are not drawn to zero.
        let decays = flat.zeros_like();
        for (_, mut part) in views(&decays, &flat, &parameters).into_iter().filter(|(_, part)| part.dim() > 1) {
            let _ = part.fill_(1.0);
        }
        let mut trainer = Trainer {
            task,
            variables,
            parameters,
            optimiser: Optimiser::new(&config.rule, config.clip_norm, &flat, decays),
            average: None,
            scale: LossScale::new(config.precision, None),
            switch: Switch::new(config.switch, world),
            group,
            config,
            device,
            reducer,
            vault: Vault::default(),
            writer: Writer::default(),
            unwritten: None,
            notice: None,
            listener: Box::new(|_| {}),
            progress: Progress::new(),
            late: Late::default(),
            meter: Meter::default(),
        };
        // Where something of every step must be known before the next one, it is read at once.
        let may_be_late = !trainer.switch.may_switch() && !trainer.scale.moves();
        trainer.late.on = may_be_late && trainer.config.read_late.unwrap_or(device != Device::Cpu);
        trainer.share_parameters()?;
        // Of what all ranks begin with.
        let begins = (trainer.config.ema > 0.0).then(|| trainer.reducer.flat_parameters()).transpose()?;
        trainer.average = begins.map(|parameters| no_grad(|| parameters.detach().copy()));
        Ok(trainer)
    }

    /// Saves to, and resumes from, this vault.
    #[must_use]
    pub fn vault(mut self, vault: Vault) -> Trainer<'l> {
        self.vault = vault;
        self
    }

    /// Stops when this notice is given.
    #[must_use]
    pub fn notice(mut self, notice: Notice) -> Trainer<'l> {
        self.notice = Some(notice);
        self
    }

    /// Reports every event to `listener`.
    #[must_use]
    pub fn listener(mut self, listener: impl FnMut(Event<'_>) + 'l) -> Trainer<'l> {
        self.listener = Box::new(listener);
        self
    }

    /// Sets the samples of an epoch, all ranks together, once [`Loader::epoch_samples`](fuelrail::Loader::epoch_samples) tells them.
    ///
    /// # Errors
    /// `Usage` for 0.
    pub fn set_epoch_samples(&mut self, samples: u64) -> Result<()> {
        self.config.epoch_samples = samples;
        self.config.validate()
    }

    /// Whether loaders must be able to go on beyond this rank's share of the epochs, because steps may become asynchronous.
    pub fn may_switch(&self) -> bool {
        self.switch.may_switch()
    }

    /// The order to continue from, if a checkpoint was resumed.
    pub fn order(&self) -> Option<&State> {
        self.progress.order.as_ref()
    }

    /// The scores that belong to [`order`](Trainer::order), where epochs are drawn by importance.
    pub fn scores(&self) -> Option<&[u8]> {
        self.progress.scores.as_deref()
    }

    /// Optimiser steps done.
    pub fn steps(&self) -> u64 {
        self.progress.step
    }

    fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, |group| group.rank())
    }

    fn world(&self) -> usize {
        self.group.as_ref().map_or(1, |group| group.world())
    }

    /// Samples that are done so far, all ranks together: trained on, or left out by the policy for bad samples.
    pub fn samples(&self) -> u64 {
        self.progress.samples
    }

    /// Samples of the whole run.
    fn total(&self) -> u64 {
        self.config.epoch_samples.saturating_mul(self.config.epochs)
    }

    /// Takes the count of samples from the order: it passes what is left out, too, and where an epoch ends does not depend on how many
    /// ranks there were before. Not once ranks are at positions of their own, nor before the numbers of the last step are read.
    fn follow_order(&mut self, feed: &dyn Feed) {
        if !self.progress.apart && self.late.unread.is_none() && feed.follows_order() {
            let (order, per_epoch) = (feed.order(), self.config.epoch_samples);
            self.progress.samples = order.epoch * per_epoch + order.position.min(per_epoch);
        }
    }

    /// Share of the work that is done.
    fn done(&self) -> f64 {
        (self.progress.samples + self.late.foreseen()) as f64 / self.total().max(1) as f64
    }

    /// Share of the work that was done in synchronous steps.
    fn synchronous_share(&self) -> f64 {
        self.progress.synchronous as f64 / self.total().max(1) as f64
    }

    /// All ranks take the parameters and buffers of rank 0.
    fn share_parameters(&mut self) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let mut flat = self.reducer.flat_parameters()?;
        no_grad(|| group.broadcast(&mut flat, 0))?;
        for (_, mut buffer) in self.buffers() {
            no_grad(|| group.broadcast(&mut buffer, 0))?;
        }
        Ok(())
    }

    /// What the model keeps besides parameters (running statistics), by name.
    fn buffers(&self) -> Vec<(String, Tensor)> {
        let mut all: Vec<(String, Tensor)> = self.variables.variables().into_iter().collect();
        all.retain(|(name, _)| !self.parameters.iter().any(|(parameter, _)| parameter == name));
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Trains to the end of the epochs, or to a notice.
    ///
    /// # Errors
    /// What the feed, the model, the checkpoints or the other ranks report; `Program` where losses or parameters stay infinite or NaN. The last
    /// checkpoint stays.
    pub fn run(&mut self, feed: &mut dyn Feed) -> Result<Outcome> {
        self.run_with(feed, &mut |_, _| Ok(()))
    }

    /// The same, and calls `after_epoch` with this trainer and the feed after every epoch; also at once where the run goes on at the end of
    /// one, after which it may have been stopped before that was done.
    ///
    /// # Errors
    /// As [`run`](Trainer::run), and what `after_epoch` reports.
    pub fn run_with(
        &mut self,
        feed: &mut dyn Feed,
        after_epoch: &mut dyn FnMut(&mut Trainer<'l>, &dyn Feed) -> Result<()>,
    ) -> Result<Outcome> {
        let ran = caught(|| self.train(feed, after_epoch));
        ran.map_err(|error| match error.kind() {
            Kind::Program => error.within(format_args!("step {}", self.progress.step + 1)),
            _ => error,
        })
    }

    fn train(
        &mut self,
        feed: &mut dyn Feed,
        after_epoch: &mut dyn FnMut(&mut Trainer<'l>, &dyn Feed) -> Result<()>,
    ) -> Result<Outcome> {
        // Dropout differs from rank to rank, and goes on where it was after a resumption.
        if self.progress.order.is_none() {
            tch::manual_seed(seed_of(self.config.seed, 0, self.rank()));
        } else if self.switch.is_done(self.synchronous_share()) {
            // Where a rank that lagged was why steps were asynchronous, it is to be seen again.
            self.progress.mode = Mode::Asynchronous;
        }
        self.follow_order(feed);
        let mut epochs = self.progress.samples / self.config.epoch_samples;
        if epochs > 0
            && self.progress.order.is_some()
            && self.progress.samples.is_multiple_of(self.config.epoch_samples)
        {
            after_epoch(self, feed)?;
        }
        let end = loop {
            if self.progress.samples >= self.total() {
                break self.read_rest(feed)?.unwrap_or(End::Done);
            }
            let ended = match self.progress.mode {
                Mode::Synchronous => self.synchronous_step(feed)?,
                Mode::Asynchronous => self.run_asynchronously(feed)?,
            };
            if let Some(end) = ended {
                break end;
            }
            self.follow_order(feed);
            let done = self.progress.samples / self.config.epoch_samples;
            if done > epochs {
                epochs = done;
                after_epoch(self, feed)?;
            }
        };
        self.check_parameters()?;
        if self.may_save() && self.progress.saved_step < self.progress.step {
            self.save(self.order_of(feed), feed.reporter())?;
        }
        if self.vault.is_somewhere() {
            self.wait_until_saved()?;
        }
        self.hand_over(feed);
        if let Some(group) = &self.group {
            group.barrier()?;
        }
        let Progress { step, samples, synchronous, loss, switched, stale, .. } = self.progress;
        let (switch_reason, switch_s) = switched.unzip();
        Ok(Outcome { end, steps: step, samples, synchronous, loss, meter: self.meter, switch_s, switch_reason, stale })
    }
}

/// A seed of its own for every rank and place of a run.
fn seed_of(seed: u64, step: u64, rank: usize) -> i64 {
    let mixed = fuelrail_base::prng::mix64(seed ^ fuelrail_base::prng::mix64(step.wrapping_add((rank as u64) << 48)));
    i64::from_ne_bytes(mixed.to_ne_bytes())
}
