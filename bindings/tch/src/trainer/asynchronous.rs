//! Asynchronous steps: rank 0 keeps the parameters; every rank brings its gradients when it has them and takes the parameters as they are then.
//!
//! A gradient's age is the number of updates since its parameters were taken; one older than `staleness_max` is thrown away and counted, so
//! that a straggler can lag as far as it likes and its word loses its weight. Rank 0 has one thread per other rank, which waits for that rank's
//! gradients over the group's point-to-point messages, and trains itself. Owns the messages and the keeper.

use super::{End, Progress, Trainer};
use crate::exchange::floats_of;
use crate::feed::Feed;
use crate::ffi::Group;
use crate::notice::Notice;
use crate::optimiser::Optimiser;
use crate::rate::Rate;
use crate::switch::Mode;
use fuelrail::State;
use fuelrail_base::{Error, Kind, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tch::{Device, Tensor, no_grad};

const GRADIENTS: u16 = 1;
const WORD: u16 = 2;
const PARAMETERS: u16 = 3;
const ANSWER: u16 = 4;

/// How often a rank that has no samples left asks how far the others are.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// What a rank says with its gradients.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    samples: f64,
    /// Updates that its parameters had seen.
    updates: f64,
    /// It was told to stop.
    stop: f64,
    /// Its feed has ended: it brings nothing any more, and comes to hear how the others get on.
    last: f64,
    /// Its gradients are numbers, not an overflow of half precision.
    finite: f64,
}

impl Word {
    fn to_tensor(self) -> Tensor {
        Tensor::from_slice(&[self.samples, self.updates, self.stop, self.last, self.finite])
    }

    fn of(tensor: &Tensor) -> Word {
        let [samples, updates, stop, last, finite] = floats_of(tensor);
        Word { samples, updates, stop, last, finite }
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
    fn to_tensor(self) -> Tensor {
        Tensor::from_slice(&[self.updates, self.samples, self.over, self.stale, self.rate])
    }

    fn of(tensor: &Tensor) -> Answer {
        let [updates, samples, over, stale, rate] = floats_of(tensor);
        Answer { updates, samples, over, stale, rate }
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
    /// Which ranks' feeds have ended.
    ended: Vec<bool>,
    rate: Rate,
    staleness_max: u64,
    /// Why a rank's thread gave up.
    failed: Option<Error>,
}

impl Kept {
    /// Takes one rank's gradients in; the parameters and the answer are what it goes on with.
    fn take(&mut self, rank: usize, gradients: &mut Tensor, word: Word) -> Answer {
        self.stop |= word.stop > 0.0;
        self.ended[rank] = word.last > 0.0;
        // The batch of one rank stands alone now, so the rate of the batch of all is shared out. Momentum stays.
        let rate = self.rate.at(self.samples as f64 / self.total.max(1) as f64) / self.ended.len() as f64;
        if word.samples > 0.0 && !self.over() {
            if self.updates.saturating_sub(word.updates as u64) > self.staleness_max {
                self.stale += 1;
            } else if word.finite > 0.0 {
                self.optimiser.step(&mut self.parameters, gradients, word.samples, rate);
                self.updates += 1;
            }
            // Thrown away or not, the samples have been used up.
            self.samples += word.samples as u64;
        }
        Answer {
            updates: self.updates as f64,
            samples: self.samples as f64,
            over: f64::from(u8::from(self.over())),
            stale: self.stale as f64,
            rate,
        }
    }

    fn over(&self) -> bool {
        self.stop || self.samples >= self.total || self.ended.iter().all(|&ended| ended)
    }

    /// Ends the work because of an error; the first one counts.
    fn fail(&mut self, error: Error) {
        self.stop = true;
        self.failed.get_or_insert(error);
    }
}

type Keeper = Mutex<Kept>;

fn lock(keeper: &Keeper) -> MutexGuard<'_, Kept> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one other rank until it is told not to come again.
fn serve(keeper: &Keeper, group: &Group, rank: usize, elements: i64) -> Result<()> {
    let host = (tch::Kind::Float, Device::Cpu);
    let (mut gradients, mut word) = (Tensor::zeros(&[elements], host), Tensor::from_slice(&[0.0; 5]));
    loop {
        group.receive(&mut gradients, rank, GRADIENTS)?;
        group.receive(&mut word, rank, WORD)?;
        let (mut parameters, answer) = {
            let mut kept = lock(keeper);
            let answer = kept.take(rank, &mut gradients, Word::of(&word));
            (kept.parameters.copy(), answer)
        };
        group.send(&mut parameters, rank, PARAMETERS)?;
        group.send(&mut answer.to_tensor(), rank, ANSWER)?;
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
        let stopped = if group.rank() == 0 { self.keep(feed, &group, &order)? } else { self.bring(feed, &group)? };
        self.share_parameters()?;
        let stopped = self.agree(&group, stopped)?;
        if !stopped {
            return Ok(Some(End::Done));
        }
        if self.vault.is_somewhere() {
            self.save(self.order_after(&order), None)?;
        }
        let given = self.notice.as_ref().and_then(Notice::given);
        Ok(Some(End::Stopped(given.unwrap_or_else(|| "another rank was told to stop".into()))))
    }

    /// All ranks take rank 0's word for how far they are and how it ended: what follows must be the same on every rank.
    fn agree(&mut self, group: &Group, stopped: bool) -> Result<bool> {
        let Progress { step, saved_step, samples, stale, .. } = self.progress;
        let counts = [u64::from(stopped), step, saved_step, samples, stale].map(|count| count as f64);
        let mut said = Tensor::from_slice(&counts);
        group.broadcast(&mut said, 0)?;
        let [stopped, step, saved_step, samples, stale] = floats_of(&said).map(|count| count as u64);
        self.progress = Progress { step, saved_step, samples, stale, ..self.progress.clone() };
        Ok(stopped > 0)
    }

    /// Where the order stands when so many samples are used up. Ranks are at places of their own: what is saved is how far they are together.
    fn order_after(&self, order: &State) -> State {
        let per_epoch = order.samples.max(1);
        State { epoch: self.progress.samples / per_epoch, position: self.progress.samples % per_epoch, ..order.clone() }
    }

    /// Rank 0: keeps the parameters, serves the others, and trains.
    fn keep(&mut self, feed: &mut dyn Feed, group: &Group, order: &State) -> Result<bool> {
        let keeper = &Mutex::new(self.kept(group.world())?);
        let elements = lock(keeper).parameters.numel() as i64;
        let trained = std::thread::scope(|scope| {
            for rank in 1..group.world() {
                let thread = std::thread::Builder::new().name(format!("fuelrail-keep-{rank}"));
                let spawned = thread.spawn_scoped(scope, move || {
                    if let Err(error) = serve(keeper, group, rank, elements) {
                        lock(keeper).fail(error);
                    }
                });
                if let Err(error) = spawned {
                    lock(keeper).fail(Error::from_io(Kind::Environment, "starting a thread", error));
                }
            }
            let exchange = |gradients: &mut Tensor, word| {
                let mut kept = lock(keeper);
                let answer = kept.take(0, gradients, word);
                Ok((kept.parameters.copy(), answer))
            };
            self.train_beside(feed, order, exchange, Some(keeper)).inspect_err(|_| lock(keeper).stop = true)
        });
        let mut kept = lock(keeper);
        let failed = kept.failed.take();
        (self.progress.samples, self.progress.stale) = (kept.samples, kept.stale);
        self.optimiser = kept.optimiser.copied_to(self.device);
        let mut own = self.reducer.flat_parameters()?;
        no_grad(|| own.copy_(&kept.parameters));
        trained?;
        failed.map_or(Ok(kept.stop), Err)
    }

    /// What rank 0 keeps from here on: the parameters as they are, and the optimiser with its state.
    fn kept(&self, world: usize) -> Result<Kept> {
        let parameters = self.reducer.flat_parameters()?.to_device(Device::Cpu).copy();
        Ok(Kept {
            parameters,
            optimiser: self.optimiser.copied_to(Device::Cpu),
            updates: 0,
            samples: self.progress.samples,
            total: self.total(),
            stale: 0,
            stop: false,
            ended: vec![false; world],
            rate: self.config.rate,
            staleness_max: self.config.staleness_max,
            failed: None,
        })
    }

    /// Another rank: brings gradients, takes parameters. Whether all was stopped is rank 0's to say.
    fn bring(&mut self, feed: &mut dyn Feed, group: &Group) -> Result<bool> {
        let elements = self.reducer.flat_parameters()?.numel() as i64;
        let mut parameters = Tensor::zeros(&[elements], (tch::Kind::Float, Device::Cpu));
        let mut answer = Tensor::from_slice(&[0.0; 5]);
        let order = feed.order();
        self.train_beside(
            feed,
            &order,
            |gradients, word| {
                group.send(gradients, 0, GRADIENTS)?;
                group.send(&mut word.to_tensor(), 0, WORD)?;
                group.receive(&mut parameters, 0, PARAMETERS)?;
                group.receive(&mut answer, 0, ANSWER)?;
                Ok((parameters.shallow_clone(), Answer::of(&answer)))
            },
            None,
        )?;
        Ok(false)
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
            if passes.batches == 0 {
                std::thread::sleep(ASK_AGAIN);
            }
            let stop = self.notice.as_ref().is_some_and(|notice| notice.given().is_some());
            let exchanged = Instant::now();
            let (mut gradients, finite) = self.own_gradients()?;
            let word = Word {
                samples: passes.samples,
                updates,
                stop: f64::from(u8::from(stop)),
                last: f64::from(u8::from(passes.batches == 0)),
                finite: f64::from(u8::from(finite)),
            };
            let (parameters, answer) = exchange(&mut gradients, word)?;
            let mut own = self.reducer.flat_parameters()?;
            no_grad(|| own.copy_(&parameters));
            passes.time.all_reduce = exchanged.elapsed();
            updates = answer.updates;
            (self.progress.samples, self.progress.stale) = (answer.samples as u64, answer.stale as u64);
            if passes.samples > 0.0 {
                self.progress.loss = passes.loss / passes.samples;
            }
            if passes.batches > 0 {
                self.progress.step += 1;
                passes.time.wall = begun.elapsed();
                self.tell(&passes, passes.right / passes.asked.max(1.0), answer.rate, Mode::Asynchronous);
            }
            if answer.over > 0.0 {
                return Ok(());
            }
            if let Some(keeper) = keeper.filter(|_| self.time_to_save()) {
                self.save_kept(keeper, order)?;
            }
        }
    }

    /// This rank's gradients in the host's memory without the loss's scale, and whether they are finite where they could have overflown. The
    /// scale follows from that, on every rank for itself.
    fn own_gradients(&mut self) -> Result<(Tensor, bool)> {
        let gradients = self.reducer.flat_gradients()?.to_device(Device::Cpu);
        if !self.scale.moves() {
            return Ok((gradients, true));
        }
        let finite = gradients.sum(tch::Kind::Double).double_value(&[]).is_finite();
        let gradients = gradients / self.scale.scale();
        self.scale.look(finite);
        Ok((gradients, finite))
    }

    /// Saves what is kept while the others go on. The keeper waits for the copy, not for the disk.
    fn save_kept(&mut self, keeper: &Keeper, order: &State) -> Result<()> {
        {
            let kept = lock(keeper);
            let mut own = self.reducer.flat_parameters()?;
            no_grad(|| own.copy_(&kept.parameters));
            self.progress.samples = kept.samples;
            self.optimiser = kept.optimiser.copied_to(Device::Cpu);
        }
        self.save_alone(self.order_after(order))
    }
}
