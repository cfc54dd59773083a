//! Asynchronous steps: rank 0 keeps the parameters; every rank brings its gradients when it has them and takes the parameters as they are then.
//!
//! A gradient's age is the number of updates since its parameters were taken; one older than `staleness_max` is thrown away and counted, so
//! that a straggler can lag as far as it likes and its word loses its weight. Rank 0 has one thread per other rank, which waits for that rank's
//! gradients over the group's point-to-point messages, and trains itself. Owns the messages and the keeper.

use super::{End, Trainer};
use crate::exchange::{floats, floats_of};
use crate::feed::Feed;
use crate::ffi::Group;
use crate::notice::Notice;
use crate::optimiser::Optimiser;
use crate::rate::Rate;
use crate::switch::{Mode, asynchronous_rate};
use fuelrail::State;
use fuelrail_base::{Error, Kind, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tch::{Device, Tensor, no_grad};

const GRADIENTS: u16 = 1;
const WORD: u16 = 2;
const PARAMETERS: u16 = 3;
const ANSWER: u16 = 4;

/// What a rank says with its gradients.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    samples: f64,
    /// Updates that its parameters had seen.
    updates: f64,
    /// It was told to stop.
    stop: f64,
    /// It will not come again: its feed has ended.
    last: f64,
}

impl Word {
    fn to_tensor(self) -> Result<Tensor> {
        floats(&[self.samples, self.updates, self.stop, self.last])
    }

    fn of(tensor: &Tensor) -> Word {
        let numbers = floats_of(tensor);
        Word { samples: numbers[0], updates: numbers[1], stop: numbers[2], last: numbers[3] }
    }
}

/// What rank 0 says with its parameters.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Answer {
    /// Updates they have seen.
    updates: f64,
    /// Samples of all ranks so far.
    samples: f64,
    /// Do not come again.
    over: f64,
    /// Gradients thrown away so far.
    stale: f64,
    rate: f64,
}

impl Answer {
    fn to_tensor(self) -> Result<Tensor> {
        floats(&[self.updates, self.samples, self.over, self.stale, self.rate])
    }

    fn of(tensor: &Tensor) -> Answer {
        let numbers = floats_of(tensor);
        Answer { updates: numbers[0], samples: numbers[1], over: numbers[2], stale: numbers[3], rate: numbers[4] }
    }
}

/// The parameters that count, and how far training is.
struct Kept {
    parameters: Tensor,
    optimiser: Optimiser,
    updates: u64,
    samples: u64,
    total: u64,
    stale: u64,
    stop: bool,
    rate: Rate,
    world: usize,
    staleness_max: u64,
    /// Why a rank's thread gave up.
    failed: Option<Error>,
}

impl Kept {
    /// Takes one rank's gradients in; the parameters and the answer are what it goes on with.
    fn take(&mut self, gradients: &mut Tensor, word: Word) -> Answer {
        self.stop |= word.stop > 0.0;
        let rate = asynchronous_rate(self.rate.at(self.samples as f64 / self.total.max(1) as f64), self.world);
        let over = self.stop || self.samples >= self.total;
        if word.samples > 0.0 && !over {
            if self.updates.saturating_sub(word.updates as u64) > self.staleness_max {
                self.stale += 1;
            } else {
                self.optimiser.step(&mut self.parameters, gradients, word.samples, rate);
                self.updates += 1;
            }
            // Thrown away or not, the samples have been used up.
            self.samples += word.samples as u64;
        }
        let over = self.stop || self.samples >= self.total || word.last > 0.0;
        Answer {
            updates: self.updates as f64,
            samples: self.samples as f64,
            over: f64::from(u8::from(over)),
            stale: self.stale as f64,
            rate,
        }
    }
}

type Keeper = Arc<Mutex<Kept>>;

fn lock(keeper: &Keeper) -> MutexGuard<'_, Kept> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one other rank until it is told not to come again.
fn serve(keeper: &Keeper, group: &Group, rank: usize, elements: i64) -> Result<()> {
    let host = (tch::Kind::Float, Device::Cpu);
    let (mut gradients, mut word) = (Tensor::zeros([elements], host), floats(&[0.0; 4])?);
    loop {
        group.receive(&mut gradients, rank, GRADIENTS)?;
        group.receive(&mut word, rank, WORD)?;
        let (mut parameters, answer) = {
            let mut kept = lock(keeper);
            let answer = kept.take(&mut gradients, Word::of(&word));
            (kept.parameters.copy(), answer)
        };
        group.send(&mut parameters, rank, PARAMETERS)?;
        group.send(&mut answer.to_tensor()?, rank, ANSWER)?;
        if answer.over > 0.0 {
            return Ok(());
        }
    }
}

impl Trainer<'_> {
    /// Trains asynchronously until the work is done or somebody was told to stop. Afterwards all ranks have the same parameters again.
    pub(super) fn run_asynchronously(&mut self, feed: &mut dyn Feed) -> Result<Option<End>> {
        let Some(group) = self.group.clone() else {
            return Err(Error::new(Kind::Usage, "asynchronous training needs other ranks"));
        };
        group.must_send_from_threads()?;
        let order = feed.order();
        let outcome = if group.rank() == 0 { self.keep(feed, &group, &order) } else { self.bring(feed, &group) };
        let stopped = outcome?;
        self.share_parameters()?;
        if !stopped {
            return Ok(Some(End::Done));
        }
        if self.vault.is_somewhere() {
            self.save(self.order_after(&order))?;
        }
        let given = self.notice.as_ref().and_then(Notice::given);
        Ok(Some(End::Stopped(given.unwrap_or_else(|| "another rank was told to stop".into()))))
    }

    /// Where the order stands when so many samples are used up. Ranks are at places of their own: what is saved is how far they are together.
    fn order_after(&self, order: &State) -> State {
        let per_epoch = order.samples.max(1);
        State { epoch: self.progress.samples / per_epoch, position: self.progress.samples % per_epoch, ..order.clone() }
    }

    /// Rank 0: keeps the parameters, serves the others, and trains.
    fn keep(&mut self, feed: &mut dyn Feed, group: &Arc<Group>, order: &State) -> Result<bool> {
        let parameters = self.reducer.flat_parameters()?.to_device(Device::Cpu).copy();
        let elements = parameters.numel() as i64;
        let optimiser = std::mem::replace(
            &mut self.optimiser,
            Optimiser::new(self.config.rule, &Tensor::zeros([0], (tch::Kind::Float, Device::Cpu))),
        );
        let keeper = Arc::new(Mutex::new(Kept {
            parameters,
            optimiser: optimiser.on(Device::Cpu),
            updates: 0,
            samples: self.progress.samples,
            total: self.total(),
            stale: 0,
            stop: false,
            rate: self.config.rate,
            world: group.world(),
            staleness_max: self.config.staleness_max,
            failed: None,
        }));
        let mut threads = Vec::new();
        for rank in 1..group.world() {
            let (keeper, group) = (Arc::clone(&keeper), Arc::clone(group));
            let thread = std::thread::Builder::new().name(format!("fuelrail-keep-{rank}"));
            let spawned = thread.spawn(move || {
                if let Err(error) = serve(&keeper, &group, rank, elements) {
                    let mut kept = lock(&keeper);
                    kept.stop = true;
                    kept.failed.get_or_insert(error);
                }
            });
            threads.push(spawned.map_err(|e| Error::new(Kind::Environment, format!("starting a thread: {e}")))?);
        }
        let trained = self.train_beside(
            feed,
            order,
            |gradients, word| {
                let mut kept = lock(&keeper);
                let answer = kept.take(gradients, word);
                Ok((kept.parameters.copy(), answer))
            },
            Some(&keeper),
        );
        if trained.is_err() {
            lock(&keeper).stop = true;
        }
        for thread in threads {
            // A thread that panicked has poisoned nothing that is used from here on.
            let _ = thread.join();
        }
        let mut kept = lock(&keeper);
        let failed = kept.failed.take();
        (self.progress.samples, self.progress.stale) = (kept.samples, kept.stale);
        let stopped = kept.stop;
        let place = Optimiser::new(self.config.rule, &Tensor::zeros([0], (tch::Kind::Float, Device::Cpu)));
        self.optimiser = std::mem::replace(&mut kept.optimiser, place).on(self.device);
        let mut own = self.reducer.flat_parameters()?;
        no_grad(|| own.copy_(&kept.parameters));
        trained?;
        failed.map_or(Ok(stopped), Err)
    }

    /// Another rank: brings gradients, takes parameters.
    fn bring(&mut self, feed: &mut dyn Feed, group: &Arc<Group>) -> Result<bool> {
        let elements = self.reducer.flat_parameters()?.numel() as i64;
        let mut parameters = Tensor::zeros([elements], (tch::Kind::Float, Device::Cpu));
        let mut answer = floats(&[0.0; 5])?;
        let order = feed.order();
        self.train_beside(
            feed,
            &order,
            |gradients, word| {
                group.send(gradients, 0, GRADIENTS)?;
                group.send(&mut word.to_tensor()?, 0, WORD)?;
                group.receive(&mut parameters, 0, PARAMETERS)?;
                group.receive(&mut answer, 0, ANSWER)?;
                Ok((parameters.shallow_clone(), Answer::of(&answer)))
            },
            None,
        )?;
        Ok(self.progress.samples < self.total())
    }

    /// Trains on this rank's batches; `exchange` brings gradients and gives parameters.
    fn train_beside(
        &mut self,
        feed: &mut dyn Feed,
        order: &State,
        mut exchange: impl FnMut(&mut Tensor, Word) -> Result<(Tensor, Answer)>,
        keeper: Option<&Keeper>,
    ) -> Result<()> {
        let mut updates = 0.0;
        loop {
            let begun = Instant::now();
            self.reducer.begin()?;
            let mut passes = self.passes(feed, false)?;
            self.dawdle(begun, &passes);
            let stop = self.notice.as_ref().is_some_and(|notice| notice.given().is_some());
            let word = Word {
                samples: passes.samples,
                updates,
                stop: f64::from(u8::from(stop)),
                last: f64::from(u8::from(passes.batches == 0)),
            };
            let exchanged = Instant::now();
            let mut gradients = self.reducer.flat_gradients()?.to_device(Device::Cpu);
            let (parameters, answer) = exchange(&mut gradients, word)?;
            let mut own = self.reducer.flat_parameters()?;
            no_grad(|| own.copy_(&parameters));
            passes.time.all_reduce = exchanged.elapsed();
            updates = answer.updates;
            self.progress.step += u64::from(passes.batches > 0);
            (self.progress.samples, self.progress.stale) = (answer.samples as u64, answer.stale as u64);
            if passes.samples > 0.0 {
                self.progress.loss = passes.loss / passes.samples;
            }
            passes.time.wall = begun.elapsed();
            self.tell(&passes, passes.right / passes.asked.max(1.0), answer.rate, Mode::Asynchronous);
            if answer.over > 0.0 {
                return Ok(());
            }
            if let Some(keeper) = keeper.filter(|_| self.time_to_save()) {
                self.save_kept(keeper, order)?;
            }
        }
    }

    /// Saves what is kept while the others go on. The keeper waits for the copy, not for the disk.
    fn save_kept(&mut self, keeper: &Keeper, order: &State) -> Result<()> {
        {
            let kept = lock(keeper);
            let mut own = self.reducer.flat_parameters()?;
            no_grad(|| own.copy_(&kept.parameters));
            self.progress.samples = kept.samples;
            self.optimiser = kept.optimiser.copied();
        }
        self.save_alone(self.order_after(order))
    }
}
