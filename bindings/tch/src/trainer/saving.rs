//! From a running trainer to a checkpoint and back: model, optimiser, random states of all ranks, position of the order.

use super::steps::views;
use super::{Event, Trainer, seed_of};
use crate::checkpoint::{About, Checkpoint, Found, Vault, Writer, Written};
use crate::feed::Feed;
use crate::ffi::{Group, bytes_of, random_state, set_random_state, tensor_of_bytes};
use fuelrail::{Reporter, State};
use fuelrail_base::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tch::{Device, Kind as Element, Tensor, no_grad};

/// The loader's scores, where its order is drawn by importance: as the loader wrote them.
const SCORES: &str = "loader.scores";

/// How long a rank hands over at most: the others wait for it, and the shortest notices are of 30 s.
const HAND_OVER_MAX: Duration = Duration::from_secs(20);

/// How many times the others' patience a checkpoint may take to be written or read, while they wait.
const PATIENCES_MAX: u32 = 10;

/// What the average of the parameters is called.
const AVERAGE: &str = "average";

/// One rank's random states: of which device, and the bytes.
type RandomStates = Vec<(String, Vec<u8>)>;

/// Waits until a checkpoint of rank 0 is written, or read. Four times within the others' patience it tells them that this goes on, so that none
/// gives it up; after ten times their patience all do. Returns what became of it, and whether the others were told.
fn awaited<T>(
    writer: &mut Writer<T>,
    what: &str,
    group: Option<&Group>,
    listener: &mut dyn FnMut(Event<'_>),
) -> (Option<(Result<T>, Duration)>, Result<()>) {
    let Some(group) = group.filter(|group| group.world() > 1) else { return (writer.ended(Duration::MAX), Ok(())) };
    let mut quarters = 0_u32;
    loop {
        let ended = writer.ended(group.patience() / 4);
        let mut busy = Tensor::from_slice(&[i64::from(writer.is_busy())]);
        let told = group.broadcast(&mut busy, 0);
        if told.is_err() || busy.int64_value(&[0]) == 0 {
            return (ended, told);
        }
        quarters += 1;
        let waited_s = (group.patience() / 4 * quarters).as_secs_f64();
        if quarters == 4 * PATIENCES_MAX {
            writer.abandon();
            let cause = format!("rank 0 has not {what} a checkpoint in {waited_s:.0} s");
            let hint = "look at its disk, or the way to its bucket; where that is only slow, raise --timeout-s";
            return (None, Err(Error::new(Kind::File, cause).with_hint(hint)));
        }
        if writer.is_busy() && quarters.is_multiple_of(4) {
            listener(Event::Notice(&format!("the checkpoint is still being {what}, {waited_s:.0} s")));
        }
    }
}

/// What rank 0 did, there; on the others whether it did it.
fn heard_of<T>(group: Option<&Group>, what: &str, own: Result<T>) -> Result<T> {
    let Some(group) = group else { return own };
    let mut failed = Tensor::from_slice(&[i64::from(own.is_err())]);
    let told = group.broadcast(&mut failed, 0);
    // What went wrong here says more than that the others did not hear of it.
    let own = own?;
    told?;
    if failed.int64_value(&[0]) == 0 {
        return Ok(own);
    }
    Err(Error::new(Kind::File, format!("rank 0 could not {what} the checkpoint")).with_hint("its output says why"))
}

impl Trainer<'_> {
    /// Saves a checkpoint of now; all ranks take part, rank 0 copies it and writes while training goes on. An earlier one is written first.
    pub(super) fn save(&mut self, order: State, reporter: Option<Reporter>) -> Result<()> {
        let states = self.random_states()?;
        self.wait_for_writer()?;
        let begun = if self.rank() == 0 { self.begin_saving(order, reporter, states) } else { Ok(()) };
        self.tell_whether_saved(begun)?;
        (self.progress.saved, self.progress.saved_step) = (Instant::now(), self.progress.step);
        Ok(())
    }

    /// Waits until what was saved is written, and tells every rank whether it was.
    pub(super) fn wait_until_saved(&mut self) -> Result<()> {
        let told = self.wait_for_writer();
        let written = self.unwritten.take().map_or(Ok(()), |(_, error)| Err(error));
        if told.is_err() {
            return written.and(told);
        }
        self.tell_whether_saved(written)
    }

    fn wait_for_writer(&mut self) -> Result<()> {
        let (ended, told) = awaited(&mut self.writer, "written", self.group.as_deref(), &mut *self.listener);
        self.hear_of_saving(ended);
        told
    }

    /// Where this rank was told to stop and others were not, hands what it keeps over to them: they wait for it.
    pub(super) fn hand_over(&mut self, feed: &dyn Feed) {
        let told = self.notice.as_ref().filter(|notice| notice.given().is_some());
        let Some(told) = told.filter(|_| (1..self.world()).contains(&self.progress.told)) else { return };
        let within = told.left().unwrap_or(HAND_OVER_MAX).min(HAND_OVER_MAX);
        let said = match feed.hand_over(within) {
            None => return,
            Some(Err(error)) => format!("nothing was handed over: {error}"),
            Some(Ok(handed)) => {
                let rest = if handed.complete { "" } else { "; the time was too short for the rest" };
                format!("handed over {} blocks, {:.1} MB{rest}", handed.blocks, handed.bytes as f64 / 1e6)
            }
        };
        (self.listener)(Event::Notice(&said));
    }

    fn tell_whether_saved(&self, own: Result<()>) -> Result<()> {
        heard_of(self.group.as_deref(), "write", own)
    }

    /// Begins to write the state of now; an earlier one is written. One that could not be written does not end a run; two in a row do.
    fn begin_saving(&mut self, order: State, reporter: Option<Reporter>, states: Vec<RandomStates>) -> Result<()> {
        if let Some((2.., error)) = &self.unwritten {
            return Err(error.clone());
        }
        let (vault, checkpoint) = (self.vault.clone(), self.checkpoint(order, reporter, states)?);
        self.writer.begin(move || vault.save(&checkpoint))
    }

    /// Tells what became of the checkpoint that was being written, if it has ended.
    pub(super) fn hear_of_saving(&mut self, ended: Option<(Written, Duration)>) {
        match ended {
            None => {}
            Some((Ok((places, notices)), took)) => {
                notices.iter().for_each(|notice| (self.listener)(Event::Notice(notice)));
                self.progress.saving_s = took.as_secs_f64();
                (self.listener)(Event::Saved(&places, took));
                self.unwritten = None;
            }
            Some((Err(error), _)) => {
                (self.listener)(Event::Notice(&format!("a checkpoint could not be written: {error}")));
                self.unwritten = Some((self.unwritten.take().map_or(0, |(times, _)| times) + 1, error));
            }
        }
    }

    /// Rank 0 alone, while the others do something else.
    pub(super) fn save_alone(&mut self, order: State) -> Result<()> {
        let states = vec![self.own_random_states()?];
        self.begin_saving(order, None, states)?;
        (self.progress.saved, self.progress.saved_step) = (Instant::now(), self.progress.step);
        Ok(())
    }

    /// Writes the model of now, as one that had this accuracy, to the vault of rank 0, where it gives one; returns the places that have it. All
    /// ranks call it, and wait.
    ///
    /// # Errors
    /// `Environment` when another rank is lost, `File` when it takes ten times as long as ranks wait for each other; what the vault reports lies
    /// within, on rank 0.
    pub fn save_best(&mut self, vault: Option<&Vault>, order: State, accuracy: f64) -> Result<Result<Vec<String>>> {
        let mut writer = Writer::default();
        let begin = |vault: Vault| {
            let mut checkpoint = self.checkpoint(order, None, vec![self.own_random_states()?])?;
            checkpoint.about.accuracy = Some(accuracy);
            writer.begin(move || vault.save(&checkpoint))
        };
        let begun = vault.filter(|_| self.rank() == 0).cloned().map(begin);
        let (ended, told) = awaited(&mut writer, "written", self.group.as_deref(), &mut *self.listener);
        told?;
        let written = begun.transpose().and_then(|_| ended.map(|(written, _)| written).transpose());
        Ok(written.map(|written| written.unwrap_or_default().0))
    }

    /// Training has failed, on all ranks, and going on does not mend it.
    pub(super) fn diverged(&self, what: &str) -> Error {
        let from = match self.progress.saved_step {
            0 => "begin anew".to_owned(),
            saved => format!("start again: it goes on from the checkpoint of step {saved}"),
        };
        let cause = format!("training has diverged: {what}, on {} rank(s)", self.world());
        Error::new(Kind::Program, cause).with_hint(format!("lower the learning rate (--rate), and {from}"))
    }

    /// Parameters that are infinite or NaN are an error. Waits for the device.
    pub(super) fn check_parameters(&self) -> Result<()> {
        let parameters = self.reducer.flat_parameters()?;
        // NaN is both the least and the greatest.
        let ends = no_grad(|| [parameters.min(), parameters.max()]);
        let is_finite = ends.iter().all(|end| end.double_value(&[]).is_finite());
        if is_finite { Ok(()) } else { Err(self.diverged("parameters are infinite or NaN")) }
    }

    /// A copy of all that a run needs to go on, or an error where it could not.
    fn checkpoint(&self, order: State, reporter: Option<Reporter>, states: Vec<RandomStates>) -> Result<Checkpoint> {
        self.check_parameters()?;
        let mut tensors = BTreeMap::new();
        if let Some(reporter) = reporter {
            let bytes = reporter.scores(&order)?;
            let length = bytes.len() as i64;
            tensors.insert(SCORES.to_owned(), tensor_of_bytes(bytes, &[length], Element::Uint8)?);
        }
        let copy = |tensor: &Tensor| no_grad(|| tensor.detach().to_device(Device::Cpu).copy());
        for (name, tensor) in self.parameters.iter().chain(&self.buffers()) {
            tensors.insert(format!("model.{name}"), copy(tensor));
        }
        let parameters = self.reducer.flat_parameters()?;
        let average = self.average.iter().map(|flat| (AVERAGE.to_owned(), flat));
        let state = self.optimiser.state().map(|(slot, flat)| (format!("optimiser.{slot}"), flat));
        for (kind, flat) in state.chain(average) {
            for (name, view) in views(flat, &parameters, &self.parameters) {
                tensors.insert(format!("{kind}.{name}"), copy(&view));
            }
        }
        for (rank, states) in states.into_iter().enumerate() {
            for (device, bytes) in states {
                let length = bytes.len() as i64;
                tensors.insert(format!("random.{device}.{rank}"), tensor_of_bytes(bytes, &[length], Element::Uint8)?);
            }
        }
        let about = About {
            step: self.progress.step,
            samples: self.progress.samples,
            synchronous: Some(self.progress.synchronous),
            mode: self.progress.mode,
            rule_steps: self.optimiser.steps(),
            loss_scale: self.scale.scale(),
            scale_steps: self.scale.good(),
            world: self.world(),
            seed: self.config.seed,
            ..About::of(order, self.optimiser.rule())
        };
        Ok(Checkpoint { about, tensors })
    }

    fn own_random_states(&self) -> Result<RandomStates> {
        let mut states = vec![("cpu".to_owned(), bytes_of(&random_state(None)?)?)];
        if let Device::Cuda(device) = self.device {
            states.push(("cuda".to_owned(), bytes_of(&random_state(Some(device))?)?));
        }
        Ok(states)
    }

    /// Of every rank, in order.
    fn random_states(&self) -> Result<Vec<RandomStates>> {
        let own = self.own_random_states()?;
        let Some(group) = &self.group else { return Ok(vec![own]) };
        let mut all = vec![Vec::new(); group.world()];
        for (device, bytes) in own {
            for (rank, bytes) in group.gather_bytes(&bytes)?.into_iter().enumerate() {
                all[rank].push((device.clone(), bytes));
            }
        }
        Ok(all)
    }

    /// What is newest in the vault of rank 0, there; nothing on the others, which wait for it.
    pub(crate) fn newest(&mut self, vault: &Vault) -> Result<Found> {
        let (mut reader, vault) = (Writer::default(), vault.clone());
        let begun = if self.rank() == 0 { reader.begin(move || vault.newest()) } else { Ok(()) };
        let (ended, told) = awaited(&mut reader, "read", self.group.as_deref(), &mut *self.listener);
        if told.is_err() {
            reader.abandon();
        }
        told?;
        let found = begun.and_then(|()| ended.map_or_else(|| Ok(Found::default()), |(found, _)| found));
        heard_of(self.group.as_deref(), "read", found)
    }

    /// Resumes from the newest checkpoint of the vault, if there is one: rank 0 reads it, all ranks get it. Returns whether there was one.
    ///
    /// # Errors
    /// `Usage` when it belongs to another model, optimiser or seed; what the vault and the other ranks report.
    pub fn resume(&mut self) -> Result<bool> {
        let found = self.newest(&self.vault.clone())?;
        for notice in &found.notices {
            (self.listener)(Event::Notice(notice));
        }
        let bytes = found.bytes.unwrap_or_default();
        let bytes = match &self.group {
            Some(group) => group.broadcast_bytes(bytes, 0)?,
            None => bytes,
        };
        if bytes.is_empty() {
            return Ok(false);
        }
        let checkpoint = Checkpoint::from_bytes(&bytes)?;
        self.restore(&checkpoint)?;
        Ok(true)
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let about = &checkpoint.about;
        let differs = |what: &str| {
            Error::new(Kind::Usage, format!("the checkpoint was saved with another {what}"))
                .with_hint("resume with the options that saved it, or give another --checkpoint")
        };
        if about.seed != self.config.seed {
            return Err(differs(&format!("seed, {}", about.seed)));
        }
        if about.rule.slots() != self.optimiser.rule().slots() {
            return Err(differs("optimiser"));
        }
        for (name, tensor) in self.parameters.iter().chain(&self.buffers()) {
            let saved = checkpoint.tensor(&format!("model.{name}"), &tensor.size())?;
            no_grad(|| tensor.detach().copy_(&saved.to_device(self.device)));
        }
        self.optimiser.set_steps(about.rule_steps);
        let parameters = self.reducer.flat_parameters()?;
        for (slot, flat) in self.optimiser.state() {
            for (name, mut view) in views(flat, &parameters, &self.parameters) {
                let saved = checkpoint.tensor(&format!("optimiser.{slot}.{name}"), &view.size())?;
                no_grad(|| view.copy_(&saved.to_device(self.device)));
            }
        }
        for (name, mut view) in self.average.iter().flat_map(|flat| views(flat, &parameters, &self.parameters)) {
            // One that was saved without an average begins with what it has.
            let saved = checkpoint.tensor(&format!("{AVERAGE}.{name}"), &view.size());
            let saved = saved.or_else(|_| checkpoint.tensor(&format!("model.{name}"), &view.size()))?;
            no_grad(|| view.copy_(&saved.to_device(self.device)));
        }
        self.scale =
            crate::optimiser::LossScale::new(self.config.precision, Some((about.loss_scale, about.scale_steps)));
        self.progress.step = about.step;
        self.progress.saved_step = about.step;
        self.progress.samples = about.samples;
        self.progress.synchronous = about.synchronous.unwrap_or(about.samples);
        self.progress.order = Some(about.order.clone());
        self.progress.scores = checkpoint.tensors.get(SCORES).map(bytes_of).transpose()?;
        self.restore_random_state(checkpoint)
    }

    /// Restores this rank's random state; a rank without one in the checkpoint starts its own.
    fn restore_random_state(&self, checkpoint: &Checkpoint) -> Result<()> {
        let rank = self.rank();
        tch::manual_seed(seed_of(self.config.seed, self.progress.step, rank));
        if let Some(state) = checkpoint.tensors.get(&format!("random.cpu.{rank}")) {
            set_random_state(None, state)?;
        }
        if let (Device::Cuda(device), Some(state)) =
            (self.device, checkpoint.tensors.get(&format!("random.cuda.{rank}")))
        {
            set_random_state(Some(device), state)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::Backend;
    use crate::ranks::Ranks;

    #[test]
    fn a_checkpoint_that_is_never_written_is_given_up_on_all_ranks() {
        // Below the ephemeral ports, and not one that another test uses at the same time.
        let port = 10_000 + (std::process::id() * 4 % 7_200) as u16;
        let rank = |rank: usize| {
            let ranks = Ranks { rank, world: 2, port, ..Ranks::default() };
            let group = Group::join(&ranks, Backend::Gloo, Device::Cpu, Duration::from_secs(4)).unwrap().unwrap();
            let (hold, held) = std::sync::mpsc::channel::<()>();
            let mut writer = Writer::<()>::default();
            if rank == 0 {
                let never_ends = move || {
                    let _ = held.recv();
                    Ok(())
                };
                writer.begin(never_ends).unwrap();
            }
            let mut notices = 0;
            let (ended, told) = awaited(&mut writer, "written", Some(&group), &mut |_| notices += 1);
            drop(hold);
            assert!(ended.is_none() && !writer.is_busy());
            (told.unwrap_err().to_string(), notices)
        };
        let rank = &rank;
        let ended =
            std::thread::scope(|scope| [0, 1].map(|n| scope.spawn(move || rank(n))).map(|one| one.join().unwrap()));
        let said = "rank 0 has not written a checkpoint in 40 s";
        assert!(ended.iter().all(|(error, _)| error.contains(said)), "{ended:?}");
        assert_eq!(ended.map(|(_, notices)| notices), [9, 0]);
    }
}
