//! `fuelrail.Loader`: the engine's loader as an iterator and a context manager.

use crate::batch::Batch;
use crate::device::{DeviceBatch, feed_config};
use crate::engine::{Engine, Next};
use crate::error::{kept, raised, usage};
use crate::known::Known;
use crate::settings::config;
use crate::transform::{self, Held};
use crate::{values, warnings};
use fuelrail::internal::ForkGuard;
use fuelrail::{LoaderBuilder, SampleId, State};
use fuelrail_cuda::FeedConfig;
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::PyDict;
use serde_json::json;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a wait goes on before signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Batches on a device without `device_depth`.
const DEVICE_DEPTH: u64 = 3;

/// Streams a bucket into batches, in an order that is a function of the seed. An iterator and a context manager.
///
/// Parameters
/// ----------
/// uri : str
///     `s3://BUCKET/PREFIX`, `gs://…`, `az://ACCOUNT/CONTAINER/PREFIX`, `http://HOST:PORT/BUCKET/PREFIX`, or a folder.
/// batch_size : int, default 64
///     Samples per batch and rank.
/// epochs : int, default 1
///     Epochs of the whole run, counted from epoch 0 also when resuming.
/// seed : int, default 0
///     Seed of the order.
/// shuffle : bool, default True
///     Shuffled epochs, or key order.
/// rank, world : int, default 0 and 1
///     This rank, and how many share each epoch.
/// memory_limit : int or str, optional
///     All buffers together, such as `"2GiB"`; half of the cgroup's limit or of the machine without one.
/// cache_limit : int or str, default 0
///     RAM cache inside that.
/// spill_dirs : sequence of paths, default ()
///     Directories on local disks for what RAM has no room for.
/// format : str, optional
///     `"webdataset"`, `"mds"`, `"tfrecord"` or `"tokens"`: samples are records of shards. Without one every object is a sample.
/// decode : str, optional
///     `"224x224x3"`: PNG and JPEG become pixels of this shape.
/// fields : sequence of str, optional
///     With `decode`, the other fields of a record that come with its pixels: with `["txt"]` there is `batch["txt"]`.
/// decode_with : callable, optional
///     Called with the samples of a batch in the place of our decoders, on a thread of the engine's: `decode_with(samples, ids, epoch)`, a
///     list of read-only memoryviews, a list of their ids, and the epoch. Returns an array or tensor of what `decode`, `decode_dtype` and `decode_layout`
///     say for so many samples, or one for each. What it raises follows `bad_samples`.
/// device : str or int, optional
///     `"cuda:0"`: batches are copied to this GPU, from memory registered with it, while the ones before are used, and come as `DeviceBatch`.
/// device_depth : int, default 3
///     Batches on the device at a time, in use or on their way.
/// state : dict or str, optional
///     What `state_dict()` gave, or its JSON: the run goes on there.
/// **settings
///     Any other setting by its name. What is not given, or None, is read from `FUELRAIL_*` variables.
///
/// Raises
/// ------
/// UsageError
///     For a setting that does not exist or a value that is wrong.
/// BudgetError
///     For a memory limit below what is needed, which it names.
/// Error
///     Where the bucket cannot be listed, or the machine refuses.
#[pyclass(frozen, module = "fuelrail", weakref)]
pub(crate) struct Loader {
    builder: LoaderBuilder,
    feed: Option<FeedConfig>,
    /// `None` when closed.
    engine: Mutex<Option<Engine>>,
    /// Held while the engine is waited for, so that a thread that waits for batches in slices lets another one in between.
    turn: Mutex<()>,
    /// Looked at before locks: in a forked child, the thread that holds one may not exist.
    guard: ForkGuard,
    /// Read while another thread waits for a batch, and after closing.
    known: Mutex<Known>,
    /// `decode_with`.
    function: Held,
}

/// Does it on a thread of its own, so that Ctrl-C ends the wait: for a server that does not answer, a function that does not return.
fn apart<T: Send + 'static>(py: Python<'_>, work: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    let (tell, mut told) = channel();
    // Nobody listens after Ctrl-C: what was made is dropped there.
    let working = move || drop(tell.send(work()));
    let started = py.detach(|| std::thread::Builder::new().name("fuelrail-apart".into()).spawn(working));
    started.map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
    loop {
        let (receiver, made) = py.detach(move || {
            let made = told.recv_timeout(LOOK_EVERY);
            (told, made)
        });
        told = receiver;
        let waits = matches!(made, Err(RecvTimeoutError::Timeout));
        let looked = warnings::log(py).and_then(|()| if waits { py.check_signals() } else { Ok(()) });
        if let Err(error) = looked {
            // With the GIL, threads that end would wait for it.
            py.detach(move || drop((told, made)));
            return Err(error);
        }
        match made {
            Ok(made) => return Ok(made),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a thread of fuelrail panicked"));
            }
        }
    }
}

fn build(py: Python<'_>, builder: LoaderBuilder, feed: Option<FeedConfig>) -> PyResult<(Engine, Known)> {
    let built = apart(py, move || {
        let loader = builder.build()?;
        let known = Known::of(&loader);
        Ok((Engine::start(loader, feed.as_ref())?, known))
    })?;
    built.map_err(|error: fuelrail::Error| raised(py, &error))
}

impl Loader {
    /// What `work` makes of the engine, without the GIL.
    fn with_engine<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Engine) -> T + Send) -> PyResult<T> {
        let done = py.detach(|| {
            self.guard.check()?;
            let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            drop(turn);
            Ok(engine.as_mut().map(work))
        });
        done.map_err(|error| raised(py, &error))?.ok_or_else(|| closed(py))
    }

    /// Holders call nothing of Python's, which may let another thread run that waits for this with the GIL.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its function runs while it is waited for, so that this would wait for itself.
    fn refuse_inside(&self, py: Python<'_>, what: &str) -> PyResult<()> {
        if !self.function.is_called_here() {
            return Ok(());
        }
        let hint = "call it where the batches are used: here it would wait for the function that calls it";
        Err(usage(py, format!("{what} of a loader inside its own decode_with"), hint))
    }

    /// The next batch within [`LOOK_EVERY`]. What ended the run is told again.
    fn take(&self, engine: &mut Engine) -> fuelrail::Result<Next> {
        let next = engine.next_within(LOOK_EVERY);
        match &next {
            Ok(Next::Batch(batch)) => self.known().took((batch.seq(), batch.ids()), engine.state()),
            Ok(Next::OnDevice(batch)) => self.known().took((batch.seq(), batch.ids()), batch.state().cloned()),
            Ok(Next::NotYet) => {}
            Ok(Next::Over) => self.known().ended()?,
            Err(error) => self.known().failed = Some(kept(error)),
        }
        next
    }

    fn dict_of<'py>(&self, py: Python<'py>, state: &State) -> PyResult<Bound<'py, PyAny>> {
        let reporter = self.known().reporter.clone();
        let scores = reporter.map(|reporter| py.detach(|| reporter.scores(state))).transpose();
        let scores = scores.map_err(|error| raised(py, &error))?;
        values::state_dict(py, state, scores.as_deref())
    }

    /// What the losses of a batch on the device are multiplied by.
    fn weights(&self, batch: &fuelrail_cuda::DeviceBatch) -> Vec<f32> {
        let reporter = self.known().reporter.clone();
        reporter.map_or_else(|| vec![1.0; batch.len()], |reporter| reporter.weights(batch.epoch(), batch.ids()))
    }
}

impl Drop for Loader {
    /// Threads that end may need the GIL first.
    fn drop(&mut self) {
        let engine = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if transform::is_stuck() {
            // Its threads would be waited for at the end of the process, for ever.
            std::mem::forget(engine);
            return;
        }
        let _ = Python::try_attach(|py| py.detach(|| drop(engine)));
    }
}

fn closed(py: Python<'_>) -> PyErr {
    usage(py, "the loader is closed", "make a new one, with state= what its state_dict() gives to go on")
}

#[pymethods]
impl Loader {
    #[new]
    #[pyo3(
        signature = (uri, *, batch_size=None, decode_with=None, device=None, device_depth=None, state=None, **settings),
        text_signature = "(uri, *, batch_size=None, epochs=1, seed=0, shuffle=True, rank=0, world=1, memory_limit=None, \
                          cache_limit=0, spill_dirs=(), format=None, decode=None, decode_with=None, device=None, device_depth=3, state=None, **settings)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are the keywords of the class")]
    fn new(
        py: Python<'_>,
        uri: &Bound<'_, PyAny>,
        batch_size: Option<&Bound<'_, PyAny>>,
        decode_with: Option<Py<PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
        device_depth: Option<&Bound<'_, PyAny>>,
        state: Option<&Bound<'_, PyAny>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Loader> {
        let mut builder = LoaderBuilder::new(config(uri, batch_size, settings)?);
        if device.is_none() {
            // The variable of a `for` loop has the last batch while the next one is taken. One on a device is copied.
            builder = builder.batches_held(1);
        }
        if decode_with.as_ref().is_some_and(|function| !function.bind(py).is_callable()) {
            return Err(PyTypeError::new_err("decode_with is called with samples, ids and epoch: pass a function"));
        }
        let function = decode_with.map(Held::new);
        if let Some(function) = function.clone() {
            let hint = "say with decode what it returns for a sample, as in \"224x224x3\"";
            let decode = builder.config().decoded().ok_or_else(|| usage(py, "decode_with without decode", hint))?;
            let policy = builder.config().bad_samples;
            builder = builder.decode_with(decode, transform::function(function, decode, policy));
        }
        let depth = device_depth.map(|depth| values::whole(depth, "device_depth")).transpose()?;
        let feed = device.map(|device| feed_config(device, depth.unwrap_or(DEVICE_DEPTH) as usize)).transpose()?;
        let starting = match state {
            Some(state) => values::resume(builder.clone(), values::state(state)?),
            None => builder.clone(),
        };
        let (engine, known) = build(py, starting, feed.clone())?;
        let (engine, turn, guard) = (Mutex::new(Some(engine)), Mutex::default(), ForkGuard::new());
        let function = function.unwrap_or_default();
        Ok(Loader { builder, feed, known: Mutex::new(known), engine, turn, guard, function })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.function.traverse(&visit)
    }

    fn __clear__(&self) {
        self.function.clear();
    }

    fn __iter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if slf.get().known().begins_again() {
            let text = "this loader is at its end: the loop gets no batch; make a new one, or set epochs";
            warnings::warn(slf.py(), text)?;
        }
        Ok(slf)
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.refuse_inside(py, "next()")?;
        loop {
            // Before a batch is taken: should a handler raise, none is lost.
            warnings::log(py)?;
            match self.with_engine(py, |engine| self.take(engine))? {
                Ok(Next::Batch(batch)) => return Ok(Some(Bound::new(py, Batch::new(batch))?.into_any())),
                Ok(Next::OnDevice(batch)) => {
                    let (weights, keys) = (self.weights(&batch), Arc::clone(&self.known().keys));
                    return Ok(Some(Bound::new(py, DeviceBatch::new(batch, weights, keys))?.into_any()));
                }
                Ok(Next::NotYet) => py.check_signals()?,
                Ok(Next::Over) => return Ok(None),
                Err(error) => return Err(raised(py, &error)),
            }
        }
    }

    /// Batches of this rank in this run, from where it starts or resumes.
    fn __len__(&self) -> usize {
        usize::try_from(self.known().batches).unwrap_or(usize::MAX)
    }

    /// Where the run stands after the last batch: a small dict, the same on every rank, for any number of ranks.
    ///
    /// Where epochs are drawn by importance it also holds `scores`, text of 5 to 11 bytes a sample.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let state = self.known().state.clone();
        self.dict_of(py, &state)
    }

    /// Where it stood before the batch that was taken last.
    fn _state_before<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let state = self.known().before.clone();
        self.dict_of(py, &state)
    }

    /// Reports the losses of one step, by which the next epochs are drawn: after every step, in order. Without importance sampling it
    /// only looks at its arguments.
    ///
    /// Parameters
    /// ----------
    /// ids : sequence of int, (samples,)
    ///     The ids of a batch; on several ranks those of all ranks' batches of the step, in any order, on each of them. NumPy arrays,
    ///     tensors on any device, memoryviews and lists.
    /// losses : sequence of float, (samples,)
    ///     A finite loss for each.
    ///
    /// Raises
    /// ------
    /// UsageError
    ///     For numbers of ids and losses that differ, losses that are not finite, ids of no sample or of no batch that waits for its
    ///     losses, and a report that comes after its draw. Nothing is recorded then.
    fn report(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, losses: &Bound<'_, PyAny>) -> PyResult<()> {
        let ids: Vec<u64> = values::numbers(ids, "ids", "one whole number for each sample")?;
        let losses: Vec<f64> = values::numbers(losses, "losses", "one number for each sample")?;
        if ids.len() != losses.len() {
            let cause = format!("{} losses for {} samples", losses.len(), ids.len());
            return Err(usage(py, cause, "report one loss for each sample: reduction=\"none\" in torch"));
        }
        if let Some((id, loss)) = ids.iter().zip(&losses).find(|(_, loss)| !loss.is_finite()) {
            return Err(usage(py, format!("the loss of sample {id} is {loss}"), "report finite losses"));
        }
        let due = self.known().due(&ids, self.builder.config().world);
        let Some((reporter, step)) = due.map_err(|(cause, hint)| usage(py, cause, hint))? else { return Ok(()) };
        let ids: Vec<SampleId> = ids.into_iter().map(SampleId).collect();
        let losses: Vec<f32> = losses.into_iter().map(|loss| loss as f32).collect();
        py.detach(|| reporter.report(step, &ids, &losses)).map_err(|error| raised(py, &error))
    }

    /// Goes on from a state. Only before the first batch is taken.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        self.guard.check().map_err(|error| raised(py, &error))?;
        if self.known().has_begun {
            let cause = "load_state_dict after the first batch was taken";
            return Err(usage(py, cause, "call it before, or make a loader with state="));
        }
        let (state, scores) = values::state(state)?;
        // Refused before what is good is closed; it is not made anew before that, because there may not be memory for two.
        let check = Arc::clone(&self.known().check);
        py.detach(|| check(&state, scores.as_deref())).map_err(|error| raised(py, &error))?;
        let builder = values::resume(self.builder.clone(), (state, scores));
        self.close(py)?;
        let (engine, known) = build(py, builder, self.feed.clone())?;
        let mut place = self.engine.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        // Before the engine's lock is released: the next batch that is taken updates `known`.
        *self.known() = known;
        let other = place.replace(engine);
        drop(place);
        py.detach(|| drop(other));
        Ok(())
    }

    /// Counters and latencies so far, by name; names end in their unit. With `device` those of the copies are under `device`, and waits of the
    /// program are there.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        warnings::log(py)?;
        let (stats, feed) = self.with_engine(py, |engine| engine.stats())?;
        let stats = values::dict(py, &stats)?;
        if let Some(feed) = feed {
            let device = json!({
                "batches": feed.batches, "copies": feed.copies, "copied_bytes": feed.copied_bytes, "copy_s": feed.copy_s,
                "copy_s_max": feed.copy_s_max, "data_wait_s": feed.data_wait_s, "readiness": feed.readiness,
                "landed": feed.landed, "held": feed.held,
            });
            stats.set_item("device", values::dict(py, &device)?)?;
        }
        Ok(stats)
    }

    /// Hands over what this rank keeps for the others (`peers`), when its machine is about to be taken away: what is used first goes first, for
    /// at most so many seconds, after Ctrl-C in the background, until the loader is closed. Returns how many `blocks` and `bytes` others have fetched, how many `failed`, and whether that was all
    /// (`complete`). Save a checkpoint first, and end soon: the others no longer ask this rank for what it kept.
    fn hand_over<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Bound<'py, PyAny>> {
        let within = Duration::try_from_secs_f64(seconds)
            .map_err(|e| usage(py, format!("hand_over({seconds}): {e}"), "say how many seconds the machine stays"))?;
        let hand_over = self.with_engine(py, |engine| engine.handing_over())?;
        let hand_over = hand_over.map_err(|error| raised(py, &error))?;
        let handed = apart(py, move || hand_over(within))?;
        values::dict(py, &handed.map_err(|error| raised(py, &error))?)
    }

    /// Stops the threads and gives the memory back: all of it at once, when no batch and no view of one is left. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.refuse_inside(py, "close()")?;
        if !self.guard.holds() {
            // In a forked child, the thread that holds the lock may not exist.
            py.detach(|| drop(self.engine.try_lock().ok().and_then(|mut engine| engine.take())));
            return warnings::log(py);
        }
        let open = py.detach(|| {
            let turn = self.turn.lock();
            let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            drop(turn);
            self.known().is_open = false;
            engine.take()
        });
        match open {
            Some(open) => apart(py, move || drop(open)),
            None => warnings::log(py),
        }
    }

    /// The epoch that the next batch belongs to.
    #[getter]
    fn epoch(&self) -> u64 {
        self.known().state.epoch
    }

    /// Batches of this rank in a whole epoch.
    #[getter]
    fn batches_per_epoch(&self) -> u64 {
        let config = self.builder.config();
        self.known().epoch_samples.div_ceil(u64::from(config.batch_size) * u64::from(config.world))
    }

    /// Whether epochs are drawn by the losses that `report` is given.
    #[getter]
    fn takes_losses(&self) -> bool {
        self.known().reporter.is_some()
    }

    /// Samples in the data set.
    #[getter]
    fn samples(&self) -> u64 {
        self.known().samples
    }

    /// Names of the classes; labels index them.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.known().classes.clone()
    }

    /// What is not as fast or as safe as it could be, each with cause and cure; what happens to disks and other ranks is added as it does.
    #[getter]
    fn notices(&self) -> Vec<String> {
        self.known().notices()
    }

    /// The key of a sample's record or object.
    fn record_key(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<String> {
        let id = values::whole(id, "the id of a sample")?;
        let (samples, is_open, keys) = {
            let known = self.known();
            (known.samples, known.is_open, Arc::clone(&known.keys))
        };
        if id >= samples {
            return Err(PyIndexError::new_err(format!("sample {id} of {samples}")));
        }
        if !is_open {
            return Err(closed(py));
        }
        Ok(keys(SampleId(id)))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let (config, known) = (self.builder.config(), self.known());
        let (uri, state) = (&config.uri, &known.state);
        format!(
            "<fuelrail.Loader '{uri}': {} samples, {} batches of {}, rank {} of {}, at epoch {} position {}{}>",
            known.samples,
            known.batches,
            config.batch_size,
            config.rank,
            config.world,
            state.epoch,
            state.position,
            if known.is_open { "" } else { ", closed" }
        )
    }
}
