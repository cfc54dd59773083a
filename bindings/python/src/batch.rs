//! `fuelrail.Batch`: samples delivered together, read where the engine put them.

use crate::error::usage;
use crate::ffi::{self, Memory, View};
use fuelrail::{Dtype, Shape};
use pyo3::exceptions::{PyBufferError, PyIndexError, PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyMemoryView};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

/// A batch. It and every view of it hold its memory; when the last of them is gone, the loader has the memory back.
#[pyclass(frozen, module = "fuelrail", weakref)]
pub(crate) struct Batch(Mutex<Option<Arc<fuelrail::Batch>>>);

/// `kDLCPU` of DLPack, and the only device of it.
const CPU: (i32, i32) = (1, 0);

impl Batch {
    pub(crate) fn new(batch: fuelrail::Batch) -> Batch {
        Batch(Mutex::new(Some(Arc::new(batch))))
    }

    fn held(&self, py: Python<'_>) -> PyResult<Arc<fuelrail::Batch>> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        held.ok_or_else(|| usage(py, "the batch was released", "read it before release()"))
    }

    /// The batch, which has a sample `i`.
    fn with(&self, py: Python<'_>, i: isize) -> PyResult<(Arc<fuelrail::Batch>, usize)> {
        let batch = self.held(py)?;
        match usize::try_from(i) {
            Ok(at) if at < batch.len() => Ok((batch, at)),
            _ => Err(no_sample(i, batch.len())),
        }
    }

    fn dense(&self, py: Python<'_>) -> PyResult<(Arc<fuelrail::Batch>, Shape)> {
        let batch = self.held(py)?;
        let cause = "the samples are not decoded, and of different lengths; set decode, such as \"224x224x3\"";
        let shape = batch.shape().ok_or_else(|| PyBufferError::new_err(cause))?;
        Ok((batch, shape))
    }
}

/// The error for a sample that a batch of `count` does not have.
pub(crate) fn no_sample(i: isize, count: usize) -> PyErr {
    PyIndexError::new_err(format!("sample {i} of a batch of {count}: they are numbered from 0, and not from the end"))
}

/// The name of a field, which a batch is indexed by.
pub(crate) fn field_name(of: &Bound<'_, PyAny>) -> PyResult<String> {
    let hint = "a batch is indexed by the name of a field, batch[\"jpg\"]; a sample is batch.sample(i), for i in range(len(batch))";
    of.extract::<String>().map_err(|_| PyTypeError::new_err(hint))
}

/// Bytes of a batch as a view: without a copy where they lie in it.
fn viewed<'py>(
    py: Python<'py>,
    batch: &Arc<fuelrail::Batch>,
    bytes: Cow<'_, [u8]>,
) -> PyResult<Bound<'py, PyMemoryView>> {
    let whole = batch.bytes().as_ptr_range();
    let memory = match bytes {
        Cow::Borrowed([]) => Memory::Bytes(Vec::new()),
        Cow::Borrowed(part) if whole.contains(&part.as_ptr()) => {
            let from = part.as_ptr() as usize - whole.start as usize;
            Memory::Batch(Arc::clone(batch), from..from + part.len())
        }
        // What the index has itself, and numbers that are made of what the record has.
        bytes => Memory::Bytes(bytes.into_owned()),
    };
    View::over(py, memory)
}

/// Fields by their names: a view each, or a list of views where several have one name.
pub(crate) fn by_name<'a, 'py>(
    py: Python<'py>,
    fields: impl Iterator<Item = (&'a str, PyResult<Bound<'py, PyMemoryView>>)>,
) -> PyResult<Bound<'py, PyDict>> {
    let named = PyDict::new(py);
    for (name, view) in fields {
        let view = view?;
        match named.get_item(name)? {
            None => named.set_item(name, view)?,
            Some(more) if more.is_instance_of::<PyList>() => more.cast::<PyList>()?.append(view)?,
            Some(first) => named.set_item(name, PyList::new(py, [first, view.into_any()])?)?,
        }
    }
    Ok(named)
}

/// One field of each sample, which some may lack.
///
/// # Errors
/// `KeyError` where all do.
pub(crate) fn column<'py>(
    py: Python<'py>,
    field: &str,
    views: impl Iterator<Item = Option<PyResult<Bound<'py, PyMemoryView>>>>,
) -> PyResult<Bound<'py, PyList>> {
    let views = views.map(Option::transpose).collect::<PyResult<Vec<_>>>()?;
    if views.is_empty() || views.iter().any(Option::is_some) {
        return PyList::new(py, views);
    }
    Err(PyKeyError::new_err(field.to_owned()))
}

#[pymethods]
impl Batch {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.held(py)?.len())
    }

    /// Numbers of the samples in the data set's listing: uint64.
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        View::over(py, Memory::Ids(self.held(py)?.ids().iter().map(|id| id.0).collect()))
    }

    /// Classes of the samples: int32, -1 where a sample has none.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        // No label is all ones.
        View::over(py, Memory::Labels(self.held(py)?.labels().iter().map(|label| label.cast_signed()).collect()))
    }

    /// What to multiply each sample's loss by: float32, all 1 unless epochs are drawn by importance.
    #[getter]
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        View::over(py, Memory::Weights(self.held(py)?.weights().to_vec()))
    }

    /// Keys of the samples' records or objects.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let batch = self.held(py)?;
        PyList::new(py, (0..batch.len()).map(|i| batch.key(i)))
    }

    /// The epoch, from 0.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.held(py)?.epoch())
    }

    /// The step in the epoch, or in what is left of it after a resume, from 0.
    #[getter]
    fn step(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.held(py)?.step())
    }

    /// (samples, height, width, channels) of a decoded batch, (samples, channels, height, width) where decode_layout is nchw, else None.
    #[getter]
    fn shape(&self, py: Python<'_>) -> PyResult<Option<(usize, usize, usize, usize)>> {
        let shape = self.held(py)?.shape();
        Ok(shape.map(|shape| shape.dims().into()))
    }

    /// Bytes of sample `i`, or of one of its fields: a read-only memoryview of uint8, without a copy.
    ///
    /// Raises IndexError where there is no such sample, KeyError where it has no such field.
    #[pyo3(signature = (i, field=None))]
    fn sample<'py>(&self, py: Python<'py>, i: isize, field: Option<&str>) -> PyResult<Bound<'py, PyMemoryView>> {
        let (batch, i) = self.with(py, i)?;
        let Some(name) = field else { return viewed(py, &batch, batch.sample(i).into()) };
        let found = batch.field(i, name).ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
        viewed(py, &batch, found)
    }

    /// All fields of sample `i` by name, with `decode` those that `fields` names: a view each, or a list of views where several fields have one
    /// name.
    fn fields<'py>(&self, py: Python<'py>, i: isize) -> PyResult<Bound<'py, PyDict>> {
        let (batch, i) = self.with(py, i)?;
        by_name(py, batch.fields(i).map(|(name, bytes)| (name, viewed(py, &batch, bytes))))
    }

    /// One field of every sample: a list of views, with None for samples that lack it.
    ///
    /// Raises KeyError where no sample has it; with `decode` also for one that `fields` does not name, and for the decoded one, which is
    /// `numpy()`.
    fn __getitem__<'py>(&self, py: Python<'py>, field: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let (batch, field) = (self.held(py)?, field_name(field)?);
        column(py, &field, (0..batch.len()).map(|i| Some(viewed(py, &batch, batch.field(i, &field)?))))
    }

    /// The pixels of a decoded batch as a read-only NumPy array of `shape`, without a copy: uint8, float16 or float32 by `decode_dtype`.
    ///
    /// Raises BufferError where samples are not decoded.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (batch, shape) = self.dense(py)?;
        let all = viewed(py, &batch, batch.bytes().into())?;
        let dtype = match shape.dtype {
            Dtype::U8 => "uint8",
            Dtype::F16 => "float16",
            Dtype::F32 => "float32",
        };
        let numbers = py.import("numpy")?.call_method1("asarray", (all,))?.call_method1("view", (dtype,))?;
        numbers.call_method1("reshape", (shape.dims(),))
    }

    /// The same for `numpy.asarray(batch)`.
    ///
    /// Raises BufferError where samples are not decoded, ValueError where another dtype is asked for without a copy.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numbers = self.numpy(py)?;
        let made = if copy == Some(true) { "array" } else { "asarray" };
        let made = py.import("numpy")?.call_method1(made, (&numbers, dtype))?;
        if copy == Some(false) && !made.is(&numbers) {
            return Err(PyValueError::new_err("another dtype needs a copy"));
        }
        Ok(made)
    }

    /// A DLPack capsule of the pixels of a decoded batch, on the CPU: versioned and marked read-only from `max_version` (1, 0) on.
    ///
    /// Raises BufferError where samples are not decoded, and for other devices.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("a batch is in the CPU's memory, which has no streams"));
        }
        if dl_device.is_some_and(|device| device != CPU) {
            return Err(PyBufferError::new_err("a batch is in the CPU's memory; copy the tensor to the device"));
        }
        let (batch, shape) = self.dense(py)?;
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        // Without a version it cannot be marked read-only, and a write to borrowed memory would end the process.
        let copied = copy == Some(true) || !versioned && batch.is_borrowed();
        let memory = if copied {
            Memory::Bytes(py.detach(|| batch.bytes().to_vec()))
        } else {
            let all = 0..batch.bytes().len();
            Memory::Batch(batch, all)
        };
        ffi::capsule(py, memory, shape, versioned)
    }

    /// (kDLCPU, 0).
    fn __dlpack_device__(&self) -> (i32, i32) {
        CPU
    }

    /// Lets go of the memory: the loader has it back when the last view is gone, too.
    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.release();
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Ok(batch) = self.held(py) else { return "<fuelrail.Batch, released>".into() };
        let bytes = fuelrail::ByteSize(batch.payload_bytes());
        format!("<fuelrail.Batch: epoch {}, step {}, {} samples, {bytes}>", batch.epoch(), batch.step(), batch.len())
    }
}
