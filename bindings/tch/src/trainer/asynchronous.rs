//! Asynchronous steps: rank 0 is the parameter server; every rank pushes gradients when it has them and pulls the present parameters.
//!
//! A gradient's age is the number of updates since its parameters were taken; one older than `staleness_max` is discarded and counted, so
//! that a straggler can lag without limit and its gradients do no harm. Rank 0 has one thread per other rank, which waits for that rank's
//! gradients over the group's point-to-point messages, and trains itself. Owns the messages and the server.

use super::{End, Progress, Trainer};
use crate::feed::Feed;
use crate::ffi::{Group, floats_of};
use crate::notice::Notice;
use crate::optimiser::{LossScale, Optimiser, Rate};
use crate::switch::{Mode, Reason, Switch};
use fuelrail::State;
use fuelrail_base::{Error, Kind, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tch::{Device, Tensor, no_grad};

const GRADIENTS: u16 = 1;
const PUSH: u16 = 2;
const PARAMETERS: u16 = 3;
const REPLY: u16 = 4;

/// How often a rank that has no samples left asks for the others' progress.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What a rank sends with its gradients.
#[derive(Clone, Copy, Debug, Default)]
struct Push {
    samples: f64,
    /// Updates that its parameters had seen.
    updates: f64,
    /// It has a notice to stop.
    stop: f64,
    /// Its feed has ended: it pushes no gradients any more, only asks for the others' progress.
    last: f64,
    /// Its gradients are finite: half precision has not overflowed.
    finite: f64,
    /// Seconds of its own work in this step.
    own_s: f64,
}

impl Push {
    fn to_tensor(self) -> Tensor {
        Tensor::from_slice(&[self.samples, self.updates, self.stop, self.last, self.finite, self.own_s])
    }

    fn of(tensor: &Tensor) -> Push {
        let [samples, updates, stop, last, finite, own_s] = floats_of(tensor);
        Push { samples, updates, stop, last, finite, own_s }
    }
}

/// What rank 0 sends with its parameters.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Reply {
    /// Updates they have seen.
    updates: f64,
    /// Samples of all ranks so far.
    samples: f64,
    /// The work is done, or goes on synchronously: push no more.
    over: f64,
    /// Gradients discarded so far.
    stale: f64,
    rate: f64,
}

impl Reply {
    fn to_tensor(self) -> Tensor {
        Tensor::from_slice(&[self.updates, self.samples, self.over, self.stale, self.rate])
    }

    fn of(tensor: &Tensor) -> Reply {
        let [updates, samples, over, stale, rate] = floats_of(tensor);
        Reply { updates, samples, over, stale, rate }
    }
}

/// State of the parameter server: the authoritative parameters, and the progress of training.
struct ServerState {
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
    /// Decides when to go on synchronously, where a rank that lags is why steps are asynchronous.
    switch: Option<Switch>,
    /// No rank lags any more.
    recovered: bool,
    /// Why a rank's thread failed.
    failed: Option<Error>,
}

impl ServerState {
    /// Applies one rank's gradients; it continues with the parameters and the reply.
    fn take(&mut self, rank: usize, gradients: &mut Tensor, push: Push) -> Result<Reply> {
        self.stop |= push.stop > 0.0;
        self.ended[rank] = push.last > 0.0;
        // The batch of one rank stands alone now, so the rate of the batch of all is shared out. Momentum stays.
        let rate = self.rate.at(self.samples as f64 / self.total.max(1) as f64) / self.ended.len() as f64;
        if push.samples > 0.0 && !self.over() {
            if self.updates.saturating_sub(push.updates as u64) > self.staleness_max {
                self.stale += 1;
            } else if push.finite > 0.0 {
                self.optimiser.step(&mut self.parameters, gradients, push.samples, rate)?;
                self.updates += 1;
            }
            // Discarded or not, the samples have been used up.
            self.samples += push.samples as u64;
            self.recovered |= self.switch.as_mut().is_some_and(|switch| switch.recovered(rank, push.own_s));
        }
        Ok(Reply {
            updates: self.updates as f64,
            samples: self.samples as f64,
            over: f64::from(u8::from(self.over() || self.recovered)),
            stale: self.stale as f64,
            rate,
        })
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

type Server = Mutex<ServerState>;

fn lock(server: &Server) -> MutexGuard<'_, ServerState> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one other rank until the work is done.
fn serve(server: &Server, group: &Group, rank: usize, elements: i64) -> Result<()> {
    let host = (tch::Kind::Float, Device::Cpu);
    let (mut gradients, mut push) = (Tensor::zeros(&[elements], host), Push::default().to_tensor());
    loop {
        group.receive(&mut gradients, rank, GRADIENTS)?;
        group.receive(&mut push, rank, PUSH)?;
        let (mut parameters, reply) = {
            let mut state = lock(server);
            let reply = state.take(rank, &mut gradients, Push::of(&push))?;
            (state.parameters.copy(), reply)
        };
        group.send(&mut parameters, rank, PARAMETERS)?;
        group.send(&mut reply.to_tensor(), rank, REPLY)?;
        if reply.over > 0.0 {
            return Ok(());
        }
    }
}

impl Trainer<'_> {
    /// Trains asynchronously until the work is done, a rank has a notice to stop, or none lags any more where that is why. Afterwards all ranks
    /// have the same parameters again.
    pub(super) fn run_asynchronously(&mut self, feed: &mut dyn Feed) -> Result<Option<End>> {
        let Some(group) = self.group.clone() else {
            return Err(Error::new(Kind::Usage, "asynchronous training needs other ranks"));
        };
        group.must_send_from_threads()?;
        self.progress.apart = true;
        let ended = if group.rank() == 0 { self.serve_and_train(feed, &group)? } else { self.push_pull(feed, &group)? };
        let begun = Instant::now();
        self.share_parameters()?;
        let [stopped, recovered] = self.agree(&group, ended)?;
        if stopped {
            if self.vault.is_somewhere() {
                self.save(self.order_of(feed), None)?;
            }
            let given = self.notice.as_ref().and_then(Notice::given);
            return Ok(Some(End::Stopped(given.unwrap_or_else(|| "another rank was told to stop".into()))));
        }
        if !recovered {
            return Ok(Some(End::Done));
        }
        for (_, tensor) in self.optimiser.state() {
            no_grad(|| group.broadcast(&mut tensor.shallow_clone(), 0))?;
        }
        self.progress.mode = Mode::Synchronous;
        self.switched(Reason::Recovered, begun.elapsed());
        Ok(None)
    }

    /// All ranks take progress and outcome from rank 0: what follows must be the same on every rank.
    fn agree(&mut self, group: &Group, ended: [bool; 2]) -> Result<[bool; 2]> {
        let Progress { step, saved_step, samples, stale, .. } = self.progress;
        let (steps, good) = (self.optimiser.steps(), self.scale.good().into());
        let counts = [step, saved_step, samples, stale, steps, good].map(|count| count as f64);
        let ended = ended.map(|ended| f64::from(u8::from(ended)));
        let mut said = Tensor::from_slice(&[&ended[..], &counts, &[self.scale.scale()]].concat());
        group.broadcast(&mut said, 0)?;
        let [stopped, recovered, counts @ .., scale] = floats_of::<9>(&said);
        let [step, saved_step, samples, stale, steps, good] = counts.map(|count| count as u64);
        self.progress = Progress { step, saved_step, samples, stale, bad_steps: 0, ..self.progress.clone() };
        self.optimiser.set_steps(steps);
        self.scale = LossScale::new(self.config.precision, Some((scale, good as u32)));
        Ok([stopped > 0.0, recovered > 0.0])
    }

    /// The order's position: the feed's. Once ranks are at positions of their own, which are not saved, that of all of them together.
    pub(super) fn order_of(&self, feed: &dyn Feed) -> State {
        let order = feed.order();
        if !self.progress.apart {
            return order;
        }
        let per_epoch = self.config.epoch_samples;
        State { epoch: self.progress.samples / per_epoch, position: self.progress.samples % per_epoch, ..order }
    }

    /// Rank 0: holds the parameters, serves the others, and trains.
    fn serve_and_train(&mut self, feed: &mut dyn Feed, group: &Group) -> Result<[bool; 2]> {
        let server = &Mutex::new(self.server_state(group.world())?);
        let elements = lock(server).parameters.numel() as i64;
        let trained = std::thread::scope(|scope| {
            for rank in 1..group.world() {
                let thread = std::thread::Builder::new().name(format!("fuelrail-keep-{rank}"));
                let spawned = thread.spawn_scoped(scope, move || {
                    if let Err(error) = serve(server, group, rank, elements) {
                        lock(server).fail(error);
                    }
                });
                if let Err(error) = spawned {
                    lock(server).fail(Error::from_io(Kind::Environment, "starting a thread", error));
                }
            }
            let exchange = |gradients: &mut Tensor, push| {
                let mut state = lock(server);
                let reply = state.take(0, gradients, push)?;
                Ok((state.parameters.copy(), reply))
            };
            self.train_beside(feed, exchange, Some(server)).inspect_err(|_| lock(server).stop = true)
        });
        let mut state = lock(server);
        let failed = state.failed.take();
        (self.progress.samples, self.progress.stale) = (state.samples, state.stale);
        self.optimiser = state.optimiser.copied_to(self.device);
        let mut own = self.reducer.flat_parameters()?;
        no_grad(|| own.copy_(&state.parameters));
        trained?;
        failed.map_or(Ok([state.stop, state.recovered && !state.over()]), Err)
    }

    /// The server's first state: the parameters as they are, and the optimiser with its state.
    fn server_state(&self, world: usize) -> Result<ServerState> {
        let parameters = self.reducer.flat_parameters()?.to_device(Device::Cpu).copy();
        Ok(ServerState {
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
            switch: matches!(self.progress.switched, Some((Reason::Straggler(_), _))).then(|| self.switch.clone()),
            recovered: false,
            failed: None,
        })
    }

    /// Another rank: pushes gradients, pulls parameters. Rank 0 decides whether the run was stopped.
    fn push_pull(&mut self, feed: &mut dyn Feed, group: &Group) -> Result<[bool; 2]> {
        let elements = self.reducer.flat_parameters()?.numel() as i64;
        let mut parameters = Tensor::zeros(&[elements], (tch::Kind::Float, Device::Cpu));
        let mut reply = Reply::default().to_tensor();
        self.train_beside(
            feed,
            |gradients, push| {
                group.send(gradients, 0, GRADIENTS)?;
                group.send(&mut push.to_tensor(), 0, PUSH)?;
                group.receive(&mut parameters, 0, PARAMETERS)?;
                group.receive(&mut reply, 0, REPLY)?;
                Ok((parameters.shallow_clone(), Reply::of(&reply)))
            },
            None,
        )?;
        Ok([false; 2])
    }

    /// Trains on this rank's batches; `exchange` pushes gradients and returns parameters.
    fn train_beside(
        &mut self,
        feed: &mut dyn Feed,
        mut exchange: impl FnMut(&mut Tensor, Push) -> Result<(Tensor, Reply)>,
        server: Option<&Server>,
    ) -> Result<()> {
        let mut updates = 0.0;
        loop {
            let begun = Instant::now();
            self.reducer.begin()?;
            let mut passes = self.passes(feed, false)?;
            self.inject_delay(begun, &passes);
            if passes.batches == 0 {
                std::thread::sleep(POLL_INTERVAL);
            }
            let stop = self.noticed().is_some();
            let (own_s, exchanged) = (passes.own_since(begun).as_secs_f64(), Instant::now());
            let (mut gradients, finite) = self.own_gradients()?;
            let push = Push {
                samples: passes.samples,
                updates,
                stop: f64::from(u8::from(stop)),
                last: f64::from(u8::from(passes.batches == 0)),
                finite: f64::from(u8::from(finite)),
                own_s,
            };
            let (parameters, reply) = exchange(&mut gradients, push)?;
            let mut own = self.reducer.flat_parameters()?;
            no_grad(|| own.copy_(&parameters));
            passes.time.all_reduce = exchanged.elapsed();
            updates = reply.updates;
            (self.progress.samples, self.progress.stale) = (reply.samples as u64, reply.stale as u64);
            let [loss, right] =
                [&passes.loss, &passes.right].map(|sum| sum.as_ref().map_or(0.0, |sum| sum.double_value(&[0])));
            if passes.samples > 0.0 {
                self.progress.loss = loss / passes.samples;
            }
            if passes.batches > 0 {
                self.progress.step += 1;
                passes.time.wall = begun.elapsed();
                let step = self.progress.step;
                self.tell(&passes, step, right / passes.asked.max(1.0), reply.rate, Mode::Asynchronous);
                self.watch_losses(loss, loss, &passes, step)?;
            }
            if reply.over > 0.0 {
                return Ok(());
            }
            if let Some(server) = server.filter(|_| self.time_to_save()) {
                self.save_server_state(server, feed)?;
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

    /// Saves the server's state while the others go on. The server waits for the copy, not for the disk.
    fn save_server_state(&mut self, server: &Server, feed: &dyn Feed) -> Result<()> {
        {
            let state = lock(server);
            let mut own = self.reducer.flat_parameters()?;
            no_grad(|| own.copy_(&state.parameters));
            self.progress.samples = state.samples;
            self.optimiser = state.optimiser.copied_to(Device::Cpu);
        }
        self.save_alone(self.order_of(feed))
    }
}
