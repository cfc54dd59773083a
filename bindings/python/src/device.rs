//! `fuelrail.DeviceBatch`: samples on a GPU, which frameworks take by DLPack.

use crate::batch::{by_name, column, field_name, no_sample};
use crate::error::{raised, usage};
use crate::ffi::{self, Element, Memory, Numbers, View};
use fuelrail::{OtherFields, SampleId};
use fuelrail_cuda::{FeedConfig, RawStream};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyMemoryView, PyTuple};
use std::sync::{Arc, Mutex, PoisonError};

/// `kDLCUDA` of DLPack.
const CUDA: i32 = 2;

/// The feed that `device` names: `"cuda"`, `"cuda:1"`, a number, or a `torch.device`.
pub(crate) fn feed_config(device: &Bound<'_, PyAny>, depth: usize) -> PyResult<FeedConfig> {
    let text: String = device.str()?.extract()?;
    let number = match text.strip_prefix("cuda") {
        Some("") => Ok(0),
        Some(rest) => rest.strip_prefix(':').unwrap_or("none").parse(),
        None => text.parse(),
    };
    let hint = "name a GPU as \"cuda:0\", or leave device out";
    let device = number.map_err(|_| usage(device.py(), format!("device is '{text}'"), hint))?;
    Ok(FeedConfig { device, depth, ..FeedConfig::default() })
}

/// Gives the key of a sample's record or object.
pub(crate) type Keys = Arc<dyn Fn(SampleId) -> String + Send + Sync>;

/// A batch on the device, until its last tensor is gone.
struct Lease {
    batch: fuelrail_cuda::DeviceBatch,
    /// A tensor of it was handed out: its stream marks the end of all.
    is_exported: bool,
}

/// What can be read of a batch without the device.
pub(crate) struct Facts {
    ids: Vec<u64>,
    labels: Vec<i32>,
    weights: Vec<f32>,
    epoch: u64,
    step: u64,
    shape: Vec<i64>,
    device: u32,
    offsets: Vec<u64>,
    lens: Vec<u64>,
    keys: Keys,
    other_fields: OtherFields,
}

/// A batch on a GPU, without a copy for `torch.from_dlpack(batch)` and others that read DLPack. Its memory is one of `device_depth` buffers: the
/// loader has it back when the batch and the tensors made of it are gone, and work submitted to their stream is done.
#[pyclass(frozen, module = "fuelrail", weakref)]
pub(crate) struct DeviceBatch {
    lease: Mutex<Option<Arc<Mutex<Lease>>>>,
    facts: Facts,
}

/// The labels of a batch on its GPU: int64, -1 where a sample has none. For `torch.from_dlpack(batch.labels_on_device)`.
#[pyclass(frozen, module = "fuelrail")]
pub(crate) struct DeviceLabels {
    lease: Arc<Mutex<Lease>>,
    count: i64,
    device: u32,
}

/// What a consumer of DLPack asks for.
type Asked = (Option<i64>, Option<(u32, u32)>, Option<(i32, i32)>, Option<bool>);

impl DeviceBatch {
    pub(crate) fn new(batch: fuelrail_cuda::DeviceBatch, weights: Vec<f32>, keys: Keys) -> DeviceBatch {
        let facts = Facts {
            ids: batch.ids().iter().map(|id| id.0).collect(),
            labels: batch.labels().iter().map(|label| label.cast_signed()).collect(),
            weights,
            epoch: batch.epoch(),
            step: batch.step(),
            shape: batch.shape().to_vec(),
            device: batch.device(),
            offsets: batch.offsets().iter().map(|at| *at as u64).collect(),
            lens: batch.lens().iter().map(|len| *len as u64).collect(),
            keys,
            other_fields: batch.other_fields().clone(),
        };
        DeviceBatch { lease: Mutex::new(Some(Arc::new(Mutex::new(Lease { batch, is_exported: false })))), facts }
    }

    fn held(&self, py: Python<'_>) -> PyResult<Arc<Mutex<Lease>>> {
        let held = self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone();
        held.ok_or_else(|| usage(py, "the batch was released", "read it before release()"))
    }
}

/// A capsule of the numbers, or the labels, of a batch, for work on the stream that is asked for.
fn export<'py>(
    py: Python<'py>,
    lease: &Arc<Mutex<Lease>>,
    labels: Option<i64>,
    (stream, max_version, dl_device, copy): Asked,
) -> PyResult<Bound<'py, PyCapsule>> {
    let refused = |cause: &str| Err(PyBufferError::new_err(cause.to_owned()));
    let mut held = lease.lock().unwrap_or_else(PoisonError::into_inner);
    let device = (CUDA, held.batch.device().cast_signed());
    if dl_device.is_some_and(|asked| asked != device) {
        return refused("the batch is on a GPU; copy the tensor to another device");
    }
    if copy == Some(true) {
        return refused("a copy on the device is made of the tensor: tensor.clone()");
    }
    let stream = match stream {
        None | Some(0 | 1) => RawStream::LEGACY,
        // The consumer takes care of the order itself.
        Some(-1) => held.batch.stream(),
        Some(handle) => ffi::stream(handle as usize),
    };
    if held.is_exported && stream != held.batch.stream() {
        return refused("the batch is in use on another stream; make all tensors of a batch on one");
    }
    if let Err(error) = held.batch.move_to(stream) {
        // Python may let another thread run, which waits for this with the GIL.
        drop(held);
        return Err(raised(py, &error));
    }
    held.is_exported = true;
    let (batch, bytes) = (&held.batch, held.batch.dtype().bytes());
    let shape = labels.map_or_else(|| batch.shape().to_vec(), |count| vec![count]);
    let (address, element, bytes) = match labels {
        None => (batch.pointer(), Element::of(batch.dtype()), bytes),
        Some(_) => (batch.labels_pointer(), Element::Signed, 8),
    };
    let numbers = Numbers { address: address as usize, device, element, bytes, dims: &shape };
    ffi::device_capsule(py, &numbers, Arc::clone(lease), max_version.is_some_and(|(major, _)| major >= 1))
}

/// The refusal of `numpy.asarray`, which would make an array of one object.
fn no_array(what: &str) -> PyErr {
    let cure = "torch.from_dlpack(…).cpu().numpy() copies it to the host; without device batches are there";
    PyTypeError::new_err(format!("{what} on a GPU, where NumPy reads nothing: {cure}"))
}

/// A copy of bytes, as a view.
fn held_view<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyMemoryView>> {
    View::over(py, Memory::Bytes(bytes.to_vec()))
}

#[pymethods]
impl DeviceBatch {
    fn __len__(&self) -> usize {
        self.facts.ids.len()
    }

    /// Numbers of the samples in the data set's listing: uint64, in the host's memory.
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        View::over(py, Memory::Ids(self.facts.ids.clone()))
    }

    /// Classes of the samples: int32, -1 where a sample has none, in the host's memory.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        View::over(py, Memory::Labels(self.facts.labels.clone()))
    }

    /// The same on the GPU, int64: they arrive with the samples.
    #[getter]
    fn labels_on_device(&self, py: Python<'_>) -> PyResult<DeviceLabels> {
        let (count, device) = (self.facts.ids.len() as i64, self.facts.device);
        Ok(DeviceLabels { lease: self.held(py)?, count, device })
    }

    /// What to multiply each sample's loss by: float32, all 1 unless epochs are drawn by importance, in the host's memory.
    #[getter]
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        View::over(py, Memory::Weights(self.facts.weights.clone()))
    }

    /// Keys of the samples' records or objects.
    #[getter]
    fn keys(&self) -> Vec<String> {
        self.facts.ids.iter().map(|id| (self.facts.keys)(SampleId(*id))).collect()
    }

    /// The fields of sample `i` that came with what was decoded (`fields`), by name, in the host's memory: a view each, or a list of views
    /// where several fields have one name. Without `decode` there are none here.
    fn fields<'py>(&self, py: Python<'py>, i: isize) -> PyResult<Bound<'py, PyDict>> {
        let count = self.facts.ids.len();
        let at = usize::try_from(i).ok().filter(|at| *at < count);
        let at = at.ok_or_else(|| no_sample(i, count))?;
        by_name(py, self.facts.other_fields.fields(at).map(|(name, bytes)| (name, held_view(py, bytes))))
    }

    /// One field of every sample that came with what was decoded (`fields`), in the host's memory: a list of views, with None for samples that
    /// lack it.
    ///
    /// Raises KeyError where no sample has it, for the one that was decoded, and without `decode`.
    fn __getitem__<'py>(&self, py: Python<'py>, field: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let (Facts { ids, other_fields, .. }, field) = (&self.facts, field_name(field)?);
        column(py, &field, (0..ids.len()).map(|i| Some(held_view(py, other_fields.field(i, &field)?))))
    }

    /// The epoch, from 0.
    #[getter]
    fn epoch(&self) -> u64 {
        self.facts.epoch
    }

    /// The step in the epoch, or in what is left of it after a resume, from 0.
    #[getter]
    fn step(&self) -> u64 {
        self.facts.step
    }

    /// (samples, height, width, channels) of a decoded batch, (samples, channels, height, width) where decode_layout is nchw, else None: then the
    /// tensor is one of bytes.
    #[getter]
    fn shape(&self) -> Option<(i64, i64, i64, i64)> {
        let dims: [i64; 4] = self.facts.shape.as_slice().try_into().ok()?;
        Some(dims.into())
    }

    /// Where each sample begins in the tensor, bytes: uint64.
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        View::over(py, Memory::Ids(self.facts.offsets.clone()))
    }

    /// Length of each sample, bytes: uint64.
    #[getter]
    fn lens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        View::over(py, Memory::Ids(self.facts.lens.clone()))
    }

    /// A DLPack capsule of the numbers, for work on `stream`, which waits for them. All tensors of a batch are for one stream.
    ///
    /// Raises BufferError for another device, a copy, and a second stream.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        export(py, &self.held(py)?, None, (stream, max_version, dl_device, copy))
    }

    /// (kDLCUDA, number of the device).
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CUDA, self.facts.device.cast_signed())
    }

    /// Raises TypeError: NumPy reads no memory of a GPU.
    #[pyo3(signature = (*_args, **_kwargs))]
    fn __array__(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        Err(no_array("the batch is"))
    }

    /// Lets go of the memory: the loader has it back when the last tensor is gone, too.
    fn release(&self) {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.release();
    }

    fn __repr__(&self) -> String {
        let Facts { epoch, step, ids, device, .. } = &self.facts;
        format!("<fuelrail.DeviceBatch on cuda:{device}: epoch {epoch}, step {step}, {} samples>", ids.len())
    }
}

#[pymethods]
impl DeviceLabels {
    fn __len__(&self) -> usize {
        usize::try_from(self.count).unwrap_or_default()
    }

    /// As of the batch.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        export(py, &self.lease, Some(self.count), (stream, max_version, dl_device, copy))
    }

    /// (kDLCUDA, number of the device).
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CUDA, self.device.cast_signed())
    }

    /// As of the batch.
    #[pyo3(signature = (*_args, **_kwargs))]
    fn __array__(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        Err(no_array("labels_on_device are"))
    }
}
