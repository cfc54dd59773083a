//! `fuelrail.Loader`: the engine's loader as an iterator and a context manager.

use crate::batch::Batch;
use crate::error::{raised, usage};
use crate::{values, warnings};
use fuelrail::{Config, LoaderBuilder, Overrides, SampleId, State, Taken};
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::PyDict;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a wait goes on before signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Streams a bucket into batches, in an order that is a function of the seed. An iterator and a context manager.
///
/// Parameters
/// ----------
/// uri : str
///     `s3://BUCKET/PREFIX`, `gs://…`, `az://ACCOUNT/CONTAINER/PREFIX`, `http://HOST:PORT/BUCKET/PREFIX`, or a folder.
/// batch_size : int
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
    /// `None` when closed.
    engine: Mutex<Option<fuelrail::Loader>>,
    /// Read while another thread waits for a batch, and after closing.
    known: Mutex<Known>,
}

/// What a loader is, and where it stands.
struct Known {
    state: State,
    has_begun: bool,
    batches: u64,
    samples: u64,
    classes: Vec<String>,
    notices: Vec<String>,
}

impl Known {
    fn of(engine: &fuelrail::Loader) -> Known {
        Known {
            state: engine.state(),
            has_begun: false,
            batches: engine.batches(),
            samples: engine.samples(),
            classes: engine.classes().to_vec(),
            notices: engine.notices().to_vec(),
        }
    }
}

/// Builds on a thread of its own, so that Ctrl-C ends the wait for a server that does not answer.
fn build(py: Python<'_>, builder: LoaderBuilder) -> PyResult<fuelrail::Loader> {
    let (tell, mut told) = channel();
    // Nobody listens after Ctrl-C: what was built is dropped there.
    let building = move || drop(tell.send(builder.build()));
    let started = std::thread::Builder::new().name("fuelrail-build".into()).spawn(building);
    started.map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
    loop {
        let (receiver, built) = py.detach(move || {
            let built = told.recv_timeout(LOOK_EVERY);
            (told, built)
        });
        told = receiver;
        warnings::log(py)?;
        match built {
            Ok(built) => return built.map_err(|error| raised(py, &error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(PyRuntimeError::new_err("building the loader panicked")),
        }
    }
}

impl Loader {
    fn engine(&self, py: Python<'_>) -> MutexGuard<'_, Option<fuelrail::Loader>> {
        self.engine.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `act` finds of the engine.
    fn open<T>(&self, py: Python<'_>, act: impl FnOnce(&fuelrail::Loader) -> T) -> PyResult<T> {
        let found = self.engine(py).as_ref().map(act);
        found.ok_or_else(|| closed(py))
    }

    /// The next batch within [`LOOK_EVERY`]. `None` where the loader is closed. Without the GIL.
    fn take(&self) -> Option<fuelrail::Result<Taken>> {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = engine.as_mut()?;
        let taken = engine.next_batch_within(LOOK_EVERY);
        if let Ok(Taken::Batch(_)) = taken {
            let mut known = self.known();
            (known.state, known.has_begun) = (engine.state(), true);
        }
        Some(taken)
    }
}

fn closed(py: Python<'_>) -> PyErr {
    usage(py, "the loader is closed", "make a new one, with state= what its state_dict() gives to go on")
}

#[pymethods]
impl Loader {
    #[new]
    #[pyo3(
        signature = (uri, *, batch_size, state=None, **settings),
        text_signature = "(uri, *, batch_size, epochs=1, seed=0, shuffle=True, rank=0, world=1, memory_limit=None, \
                          cache_limit=0, spill_dirs=(), format=None, decode=None, state=None, **settings)"
    )]
    fn new(
        py: Python<'_>,
        uri: &Bound<'_, PyAny>,
        batch_size: &Bound<'_, PyAny>,
        state: Option<&Bound<'_, PyAny>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Loader> {
        let mut overrides = Overrides::new();
        let mut set = |name: String, value: &Bound<'_, PyAny>| {
            overrides.extend(values::text(value)?.map(|text| (name, text)));
            PyResult::Ok(())
        };
        set("uri".into(), uri)?;
        set("batch_size".into(), batch_size)?;
        settings.into_iter().flatten().try_for_each(|(name, value)| set(name.extract()?, &value))?;
        let environment = fuelrail::environment_variables();
        let config = environment.and_then(|environment| Config::load(None, environment, &overrides));
        let mut builder = LoaderBuilder::new(config.map_err(|error| raised(py, &error))?);
        if let Some(state) = state {
            builder = builder.resume(values::state(state)?);
        }
        let engine = build(py, builder.clone())?;
        Ok(Loader { builder, known: Mutex::new(Known::of(&engine)), engine: Mutex::new(Some(engine)) })
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        loop {
            let taken = py.detach(|| self.take());
            warnings::log(py)?;
            match taken {
                None => return Err(closed(py)),
                Some(Ok(Taken::Batch(batch))) => return Ok(Some(Batch::new(batch))),
                Some(Ok(Taken::NotYet)) => py.check_signals()?,
                Some(Ok(Taken::Over)) => return Ok(None),
                Some(Err(error)) => return Err(raised(py, &error)),
            }
        }
    }

    /// Batches of this rank in this run, from where it starts or resumes.
    fn __len__(&self) -> usize {
        usize::try_from(self.known().batches).unwrap_or(usize::MAX)
    }

    /// Where the run stands behind the last batch: a small dict, the same on every rank, for any number of ranks.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let state = self.known().state.clone();
        values::dict(py, &state)
    }

    /// Goes on from a state. Only before the first batch is taken.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.known().has_begun {
            let cause = "load_state_dict after the first batch was taken";
            return Err(usage(py, cause, "call it before, or make a loader with state="));
        }
        let builder = self.builder.clone().resume(values::state(state)?);
        self.close(py)?;
        let engine = build(py, builder)?;
        *self.known() = Known::of(&engine);
        *self.engine(py) = Some(engine);
        Ok(())
    }

    /// Counters and latencies so far, by name; names end in their unit.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        warnings::log(py)?;
        let stats = py.detach(|| {
            let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            engine.as_ref().map(fuelrail::Loader::stats)
        });
        values::dict(py, &stats.ok_or_else(|| closed(py))?)
    }

    /// Stops the threads and gives the memory back, but for what batches and views still hold. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine(py).take();
        py.detach(|| drop(engine));
        warnings::log(py)
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
        let (samples, step) = (self.known().samples, u64::from(config.batch_size) * u64::from(config.world));
        if config.order.drop_last { samples / step } else { samples.div_ceil(step) }
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

    /// What is not as fast or as safe as it could be, each with cause and cure.
    #[getter]
    fn notices(&self) -> Vec<String> {
        self.known().notices.clone()
    }

    /// The key of a sample's record or object.
    fn record_key(&self, py: Python<'_>, id: u64) -> PyResult<String> {
        let samples = self.known().samples;
        if id >= samples {
            return Err(PyIndexError::new_err(format!("sample {id} of {samples}")));
        }
        self.open(py, |engine| engine.record_key(SampleId(id)).into_owned())
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

    fn __repr__(&self, py: Python<'_>) -> String {
        let (config, is_open) = (self.builder.config(), self.engine(py).is_some());
        let known = self.known();
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
            if is_open { "" } else { ", closed" }
        )
    }
}
