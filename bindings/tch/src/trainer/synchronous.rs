//! A bulk-synchronous step: every rank's gradients of the same parameters, summed, one update.
//!
//! Its numbers are read while the next one runs, so that a device always has work in its queue. All ranks read those of the same step at the
//! same point, because what they do together follows from them.

use super::steps::{Passes, SAMPLES, Tail, Unread};
use super::{End, Event, StepReport, Trainer};
use crate::feed::{Fed, Feed};
use crate::ffi::{LOST, Later, moved};
use crate::switch::{Mode, Reason};
use fuelrail::Reporter;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_cost::notice::Notice as Decision;
use std::time::{Duration, Instant};
use tch::{Device, Kind as Element, Tensor, no_grad};

/// Longest wait for a step of a single rank.
const PATIENCE: Duration = Duration::from_secs(600);

/// After so many steps in a row whose loss is infinite or NaN a run ends. Steps that are left out for the loss's scale have finite losses.
const BAD_STEPS_MAX: u32 = 20;
/// Samples that a notice of such a loss names.
const NAMED_MAX: usize = 8;

impl Trainer<'_> {
    /// One step. Returns the end when there is one.
    pub(super) fn synchronous_step(&mut self, feed: &mut dyn Feed) -> Result<Option<End>> {
        let begun = Instant::now();
        self.reducer.begin()?;
        let left_out = self.switch.leaves_out(self.rank());
        let mut passes = if left_out { Passes::default() } else { self.passes(feed, true)? };
        if passes.batches == 0 && !left_out {
            // Every rank has the same number of batches: all end here.
            return Ok(Some(self.read_rest(feed)?.unwrap_or(End::Done)));
        }
        if !passes.armed {
            self.arm(&mut passes)?;
        }
        self.inject_delay(begun, &passes);
        self.late.own_s = passes.own_since(begun).as_secs_f64();
        passes.time.all_reduce = self.reducer.finish()?;
        let numbers = Later::new(&self.reducer.tail()?)?;
        // The rate is for the batch of all ranks together.
        let rate = self.config.rate.at(self.done()) * self.switch.present();
        let mut step = Unread { numbers, passes, rate, step: self.progress.step + 1 };
        if self.late.on && feed.reporter().is_none() {
            let alone = self.group.is_none().then_some(step.passes.samples);
            self.update(alone, rate)?;
            self.progress.step = step.step;
            return self.leave_unread(feed, step, begun);
        }
        let all = self.wait_for(step.numbers)?;
        self.update(Some(all.samples), rate)?;
        self.progress.step = step.step;
        if let Some(reporter) = feed.reporter() {
            self.report_losses(&step.passes, &reporter)?;
        }
        step.passes.time.wall = begun.elapsed();
        self.count(&all, &step.passes, rate, step.step)?;
        self.after_step(feed, &all, step.passes.given)
    }

    /// Reads the step before, and leaves this one to be read by the next; at an end of an epoch, a stop or a checkpoint reads both.
    fn leave_unread(&mut self, feed: &mut dyn Feed, mut step: Unread, begun: Instant) -> Result<Option<End>> {
        let before = self.late.unread.take().map(|before| self.read(before)).transpose()?;
        let (begins, ends) = self.epoch_turns(feed);
        let asked = before.filter(|before| before.stop > 0.0 || before.save > 0.0);
        if !(begins || ends) && asked.is_none() {
            step.passes.time.wall = begun.elapsed();
            self.late.unread = Some(step);
            return Ok(None);
        }
        let given = step.passes.given.take();
        let mut all = self.wait_for(step.numbers)?;
        step.passes.time.wall = begun.elapsed();
        self.count(&all, &step.passes, step.rate, step.step)?;
        if ends {
            // The next epoch's first step says how many its steps have.
            self.late.samples = 0;
        }
        if let Some(before) = asked {
            (all.stop, all.save) = (all.stop + before.stop, all.save + before.save);
        }
        self.after_step(feed, &all, given)
    }

    /// Hands the step's numbers to the reducer, which sums gradients from now on as the backward pass yields them.
    fn arm(&mut self, passes: &mut Passes) -> Result<()> {
        passes.given = self.noticed();
        let mut tail = Tail {
            samples: passes.samples,
            asked: passes.asked,
            stop: f64::from(u8::from(passes.given.is_some())),
            save: f64::from(u8::from(self.rank() == 0 && self.time_to_save())),
            saving_s: if self.rank() == 0 { self.progress.saving_s } else { 0.0 },
            own_s: vec![0.0; self.world()],
            ..Tail::default()
        };
        tail.own_s[self.rank()] = self.late.own_s;
        let device = self.device;
        let none = || Tensor::zeros([1], (Element::Double, device));
        let [loss, right] =
            [&passes.loss, &passes.right].map(|sum| sum.as_ref().map_or_else(none, Tensor::shallow_clone));
        let numbers = tail.to_tensor(self.rank(), &loss, &right, device)?;
        passes.armed = true;
        self.reducer.arm(&numbers)
    }

    /// Forward and backward over this rank's batches of the step. `together`: gradients are summed over the ranks while the last pass runs.
    pub(super) fn passes(&mut self, feed: &mut dyn Feed, together: bool) -> Result<Passes> {
        let mut passes = Passes::default();
        for pass in 0..self.config.accumulate {
            let Some(fed) = feed.next() else { break };
            let Fed { batch, data_wait, ready } = fed?;
            passes.time.data_wait += data_wait;
            passes.time.ready = ready && (pass == 0 || passes.time.ready);
            passes.batches += 1;
            passes.seq = batch.seq;
            passes.epoch = if pass == 0 { batch.epoch } else { passes.epoch };
            if batch.is_empty() {
                continue;
            }
            let cast = self.config.precision.cast(self.device)?;
            let judged = self.task.judge(&batch, true)?;
            drop(cast);
            let weights = batch.weights.as_ref().map(|weights| moved(weights, self.device)).transpose()?;
            let weighted = weights.map(|weights| &judged.losses * weights);
            let total = weighted.as_ref().unwrap_or(&judged.losses).sum(Element::Float);
            passes.samples += batch.len() as f64;
            passes.asked += judged.answers * batch.len() as f64;
            passes.ids.extend(&batch.ids);
            passes.count(&total, &judged.right);
            if feed.reporter().is_some() {
                passes.losses.push(judged.losses.detach());
            }
            if together && pass + 1 == self.config.accumulate {
                self.arm(&mut passes)?;
            }
            (&total * self.scale.scale()).backward();
        }
        Ok(passes)
    }

    /// Injects the delays of the option `slow`, for trials.
    pub(super) fn inject_delay(&self, begun: Instant, passes: &Passes) {
        let now = self.config.slow.iter().filter(|slow| slow.rank == self.rank() && slow.during.contains(&self.done()));
        std::thread::sleep(passes.own_since(begun).mul_f64(now.map(|slow| slow.factor).product::<f64>() - 1.0));
    }

    /// The notice to stop, when it is time to act on it: where the machine stays for a known time after a notice, training goes on until the
    /// moment of least expected loss.
    pub(super) fn noticed(&mut self) -> Option<String> {
        let notice = self.notice.as_ref()?;
        let (given, saving_s) = (notice.given()?, self.progress.saving_s);
        let Some(lead) = notice.lead().filter(|_| saving_s > 0.0 && self.vault.is_somewhere()) else {
            return Some(given);
        };
        let now = Instant::now();
        if self.progress.stop_at.is_none() {
            let lead_s = lead.as_secs_f64();
            let unsaved_s = self.progress.saved.elapsed().as_secs_f64();
            let go_on_s = Decision { lead_s, unsaved_s, saving_s }.go_on_s();
            self.progress.stop_at = Some(now + lead.min(Duration::from_secs_f64(go_on_s.unwrap_or(lead_s))));
            let said = go_on_s.map_or_else(
                || format!("saving takes {saving_s:.1} s, longer than the machine stays: training goes on without"),
                |s| format!("a checkpoint in {s:.1} s loses least: one takes {saving_s:.1} s, the machine stays {lead_s:.0} s"),
            );
            (self.listener)(Event::Notice(&format!("{given}; {said}")));
        }
        self.progress.stop_at.filter(|at| now >= *at).map(|_| given)
    }

    /// Changes the parameters along the gradients of so many samples; without a number, of as many as the reducer's tail has on the device.
    fn update(&mut self, samples: Option<f64>, rate: f64) -> Result<()> {
        let (mut parameters, mut gradients) = (self.reducer.flat_parameters()?, self.reducer.flat_gradients()?);
        let Some(samples) = samples else {
            let share = self.reducer.tail()?.get(SAMPLES).clamp_min(1.0).reciprocal();
            let _ = no_grad(|| gradients.g_mul_(&share));
            self.optimiser.step(&mut parameters, &mut gradients, 1.0, rate)?;
            self.follow(&parameters);
            return Ok(());
        };
        let finite = !self.scale.moves() || gradients.sum(Element::Double).double_value(&[]).is_finite();
        if finite && samples > 0.0 {
            self.optimiser.step(&mut parameters, &mut gradients, samples * self.scale.scale(), rate)?;
            self.follow(&parameters);
        }
        self.scale.look(finite);
        Ok(())
    }

    /// Moves the average of the parameters towards what a step has made of them.
    fn follow(&mut self, parameters: &Tensor) {
        let kept = self.config.ema;
        if let Some(average) = &mut self.average {
            let _ = no_grad(|| average.lerp_(parameters, 1.0 - kept));
        }
    }

    /// Whether there is a place for checkpoints, and the last loss was finite: the parameters behind one that was not may be finite, and no good.
    pub(super) fn may_save(&self) -> bool {
        self.vault.is_somewhere() && self.progress.bad_steps == 0
    }

    pub(super) fn time_to_save(&self) -> bool {
        // An interval is skipped rather than waited for.
        if !self.may_save() || self.writer.is_busy() {
            return false;
        }
        let (steps, seconds) = (self.config.checkpoint_every_steps, self.config.checkpoint_every_s);
        // Counted from before the step that is being done.
        let by_steps = steps > 0 && (self.progress.step + 1).is_multiple_of(steps);
        by_steps || (seconds > 0.0 && self.progress.saved.elapsed() >= Duration::from_secs_f64(seconds))
    }

    pub(super) fn tell(&mut self, passes: &Passes, step: u64, accuracy: f64, rate: f64, mode: Mode) {
        let ended = self.writer.ended(Duration::ZERO);
        self.hear_of_saving(ended);
        self.meter.count(&passes.time);
        let report = StepReport {
            step,
            epoch: passes.epoch,
            samples: self.progress.samples,
            loss: self.progress.loss,
            accuracy,
            rate,
            mode,
            ids: passes.ids.iter().map(|id| id.0).collect(),
            time: passes.time,
        };
        (self.listener)(Event::Step(&report));
    }

    /// Acts on the sums of all ranks: a stop, a checkpoint, the switch. All see the same numbers.
    pub(super) fn after_step(&mut self, feed: &mut dyn Feed, all: &Tail, given: Option<String>) -> Result<Option<End>> {
        if all.stop > 0.0 {
            self.progress.told = all.stop as usize;
            if self.may_save() {
                self.save(self.order_of(feed), feed.reporter())?;
            }
            return Ok(Some(End::Stopped(given.unwrap_or_else(|| "another rank was told to stop".into()))));
        }
        if all.save > 0.0 {
            self.save(self.order_of(feed), feed.reporter())?;
        }
        if let Some(reason) = self.switch.look(self.synchronous_share(), &all.own_s) {
            self.switch_for(reason)?;
        }
        Ok(None)
    }

    /// Reports the losses of all ranks' samples to this rank's loader, where its order goes by importance.
    fn report_losses(&self, passes: &Passes, reporter: &Reporter) -> Result<()> {
        let read = |losses: &Tensor| Vec::<f32>::try_from(&losses.to_device(Device::Cpu));
        let own = passes.losses.iter().map(read).collect::<std::result::Result<Vec<_>, _>>();
        let own = own.map_err(|e| Error::new(Kind::Environment, format!("reading losses: {e}")))?.concat();
        let own: Vec<(SampleId, f32)> = passes.ids.iter().copied().zip(own).collect();
        let all = match &self.group {
            None => own,
            Some(group) => group.gather_losses(&own)?,
        };
        let (ids, losses): (Vec<SampleId>, Vec<f32>) = all.into_iter().unzip();
        reporter.report(passes.seq, &ids, &losses)
    }

    fn switch_for(&mut self, reason: Reason) -> Result<()> {
        let begun = Instant::now();
        // The ranks' parameters are the same already, and rank 0 has the momentum: nothing moves.
        match reason {
            Reason::LeftOut(_) => self.progress.apart = true,
            _ => self.progress.mode = Mode::Asynchronous,
        }
        if let Some(group) = &self.group {
            group.barrier()?;
        }
        self.switched(reason, begun.elapsed());
        Ok(())
    }

    pub(super) fn switched(&mut self, reason: Reason, took: Duration) {
        let before = self.progress.switched.map_or(0.0, |(_, took)| took);
        self.progress.switched = Some((reason, before + took.as_secs_f64()));
        (self.listener)(Event::Switched(reason, took));
    }

    /// Whether the step just done is the first of an epoch, and whether an epoch ends in it: such a step is read at once, so that counts are exact.
    pub(super) fn epoch_turns(&mut self, feed: &dyn Feed) -> (bool, bool) {
        let (order, begins) = (feed.order(), self.late.samples == 0);
        // A step of several batches may take the last ones of an epoch and the first ones of the next.
        let crosses = !begins && order.epoch != self.late.epoch;
        self.late.epoch = order.epoch;
        (begins, crosses || order.position == 0 || order.position >= self.config.epoch_samples)
    }

    /// Waits for a step's numbers, as long as for other ranks.
    pub(super) fn wait_for(&self, numbers: Later) -> Result<Tail> {
        let patience = self.group.as_ref().map_or(PATIENCE, |group| group.patience());
        let hint = if self.world() > 1 { LOST } else { "look at `nvidia-smi` and `dmesg | grep Xid`" };
        Ok(Tail::of(&numbers.read(patience).map_err(|error| error.with_hint(hint))?))
    }

    /// Waits for a step's numbers, counts them and tells the listener.
    pub(super) fn read(&mut self, step: Unread) -> Result<Tail> {
        let all = self.wait_for(step.numbers)?;
        self.count(&all, &step.passes, step.rate, step.step)?;
        Ok(all)
    }

    /// Counts a step's numbers and tells the listener. Too many bad losses are an error, on all ranks at the same step.
    pub(super) fn count(&mut self, all: &Tail, passes: &Passes, rate: f64, step: u64) -> Result<()> {
        self.late.samples = all.samples as u64;
        self.progress.samples += all.samples as u64;
        self.progress.synchronous += all.samples as u64;
        if self.rank() != 0 {
            self.progress.saving_s = all.saving_s;
        }
        self.progress.loss = if all.samples > 0.0 { all.loss / all.samples } else { self.progress.loss };
        self.tell(passes, step, all.right / all.asked.max(1.0), rate, Mode::Synchronous);
        self.watch_losses(all.loss, all.own_loss[self.rank()], passes, step)
    }

    /// Looks at the sum of a step's losses and this rank's part of it. The first bad one is told of with samples, the others by their number.
    pub(super) fn watch_losses(&mut self, all: f64, own: f64, passes: &Passes, step: u64) -> Result<()> {
        if !own.is_finite() && !self.scale.moves() {
            self.progress.bad_losses += 1;
            let notice = match self.progress.bad_losses {
                1 => {
                    let ids: Vec<u64> = passes.ids.iter().take(NAMED_MAX).map(|id| id.0).collect();
                    let more = match passes.ids.len() - ids.len() {
                        0 => String::new(),
                        more => format!(" and {more} more"),
                    };
                    Some(format!("the loss of step {step} is {own}; samples of this rank: {ids:?}{more}"))
                }
                bad => bad.is_power_of_two().then(|| format!("{bad} steps had such losses by step {step}")),
            };
            notice.iter().for_each(|notice| (self.listener)(Event::Notice(notice)));
        }
        self.progress.bad_steps = if all.is_finite() { 0 } else { self.progress.bad_steps + 1 };
        if self.progress.bad_steps < BAD_STEPS_MAX {
            return Ok(());
        }
        let what = format!("the losses of {BAD_STEPS_MAX} steps in a row, to step {step}, were infinite or NaN");
        Err(self.diverged(&what))
    }

    /// Reads the last step, if it is unread, at the end of the samples.
    pub(super) fn read_rest(&mut self, feed: &mut dyn Feed) -> Result<Option<End>> {
        let Some(mut step) = self.late.unread.take() else { return Ok(None) };
        let given = step.passes.given.take();
        let all = self.read(step)?;
        self.after_step(feed, &all, given)
    }
}
