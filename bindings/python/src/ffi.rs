//! What hands out addresses: the buffer protocol and DLPack; and what ends calls of Python functions on other threads.
//!
//! Both keep the memory they point into alive by owning a [`Memory`]: the object behind a buffer by its reference count, a DLPack tensor
//! until its consumer calls the deleter. The memory is never written to while it is shared.

use fuelrail::{Batch, Dtype, KeptBytes, Shape};
use fuelrail_cuda::RawStream;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PySystemExit};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyMemoryView};
use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Memory that others are given addresses into. It does not move while its owner does.
pub(crate) enum Memory {
    /// Bytes of a batch, which lie where they lie until the last holder of the batch is gone.
    Batch(Arc<Batch>, Range<usize>),
    /// Bytes of a batch that is being decoded.
    Kept(KeptBytes),
    Bytes(Vec<u8>),
    Ids(Vec<u64>),
    Labels(Vec<i32>),
    Weights(Vec<f32>),
}

impl Memory {
    /// Its address, its number of items, the length of one, and what `struct` calls its type.
    fn items(&self) -> (*const c_void, usize, usize, &'static CStr) {
        match self {
            Memory::Batch(batch, range) => (batch.bytes()[range.clone()].as_ptr().cast(), range.len(), 1, c"B"),
            Memory::Kept(bytes) => (bytes.as_ptr().cast(), bytes.len(), 1, c"B"),
            Memory::Bytes(bytes) => (bytes.as_ptr().cast(), bytes.len(), 1, c"B"),
            Memory::Ids(ids) => (ids.as_ptr().cast(), ids.len(), 8, c"Q"),
            Memory::Labels(labels) => (labels.as_ptr().cast(), labels.len(), 4, c"i"),
            Memory::Weights(weights) => (weights.as_ptr().cast(), weights.len(), 4, c"f"),
        }
    }
}

/// Copies an object's bytes, without the GIL where they are in one piece.
///
/// # Errors
/// `BufferError` where there are more or fewer bytes than asked for.
pub(crate) fn copy_out(py: Python<'_>, from: &PyBuffer<u8>, to: &mut [u8]) -> PyResult<()> {
    if !from.is_c_contiguous() || from.item_count() != to.len() {
        return from.copy_to_slice(py, to);
    }
    // SAFETY: the buffer has that many bytes in one piece, and its object keeps them where they are until `from` is released; `to` is this
    // call's alone. A thread of the program that writes to an array it has returned gets a mixture of its bytes, as with any copy.
    py.detach(|| unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from.buf_ptr().cast(), to.len()) });
    Ok(())
}

/// The number by which the interpreter knows this thread.
pub(crate) fn thread_number() -> c_ulong {
    // SAFETY: it only asks the system for the number of the calling thread.
    unsafe { ffi::PyThread_get_thread_ident() }
}

/// Raises `SystemExit` in a thread as soon as it runs Python code.
pub(crate) fn raise_exit_in(py: Python<'_>, thread: c_ulong) {
    let exit = py.get_type::<PySystemExit>();
    // SAFETY: the interpreter is attached, and takes a reference of its own to the class. Of a thread that it does not know it does nothing.
    unsafe { ffi::PyThreadState_SetAsyncExc(thread.cast_signed(), exit.as_ptr()) };
}

/// The object behind a memoryview.
#[pyclass(frozen, module = "fuelrail._fuelrail")]
pub(crate) struct View {
    memory: Memory,
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

impl View {
    /// A read-only memoryview over this memory.
    pub(crate) fn over(py: Python<'_>, memory: Memory) -> PyResult<Bound<'_, PyMemoryView>> {
        let (_, items, item, _) = memory.items();
        let view = View { memory, shape: [items.cast_signed()], strides: [item.cast_signed()] };
        PyMemoryView::from(Bound::new(py, view)?.as_any())
    }
}

#[pymethods]
impl View {
    /// # Safety
    /// `view` is null or points to a `Py_buffer` that may be written to: the interpreter's part of the protocol.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: the interpreter hands in a buffer to fill, which lives for the call.
        let Some(view) = (unsafe { view.as_mut() }) else {
            return Err(PyBufferError::new_err("no buffer to fill"));
        };
        view.obj = null_mut();
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("samples are read-only; copy them to change them"));
        }
        let this = slf.get();
        let (address, items, item, format) = this.memory.items();
        // What is asked for by flags is given; pointers are into `this`, which `obj` keeps alive until the buffer is released, and which is
        // not changed: the protocol's types lack the word const.
        let asked = |flag: c_int| flags & flag == flag;
        view.buf = address.cast_mut();
        view.len = (items * item).cast_signed();
        view.itemsize = item.cast_signed();
        view.readonly = 1;
        view.ndim = 1;
        view.format = if asked(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { null_mut() };
        view.shape = if asked(ffi::PyBUF_ND) { this.shape.as_ptr().cast_mut() } else { null_mut() };
        view.strides = if asked(ffi::PyBUF_STRIDES) { this.strides.as_ptr().cast_mut() } else { null_mut() };
        view.suboffsets = null_mut();
        view.internal = null_mut();
        view.obj = slf.into_ptr();
        Ok(())
    }
}

/// `DLTensor` of DLPack 1.0.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: (i32, i32),
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// Frees a tensor of this kind.
type Deleter<T> = unsafe extern "C" fn(*mut T);

/// `DLManagedTensor`: what consumers from before version 1.0 take. It cannot say that it is read-only.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<Deleter<Managed>>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<Deleter<Versioned>>,
    flags: u64,
    tensor: Tensor,
}

/// A kind of managed tensor.
trait Kind: Sized {
    /// The capsule's name until a consumer takes the tensor and renames it.
    const NAME: &'static CStr;

    fn of(tensor: Tensor, flags: u64, deleter: Deleter<Self>) -> Self;

    fn tensor(&mut self) -> &mut Tensor;
}

impl Kind for Managed {
    const NAME: &'static CStr = c"dltensor";

    fn of(tensor: Tensor, _: u64, deleter: Deleter<Managed>) -> Managed {
        Managed { tensor, context: null_mut(), deleter: Some(deleter) }
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

impl Kind for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn of(tensor: Tensor, flags: u64, deleter: Deleter<Versioned>) -> Versioned {
        Versioned { version: [1, 0], context: null_mut(), deleter: Some(deleter), flags, tensor }
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

/// What a capsule points to: the tensor, and after it what it points into.
#[repr(C)]
struct Exported<T, M> {
    kind: T,
    shape: [i64; 4],
    strides: [i64; 4],
    memory: M,
}

/// DLPack's number types.
#[derive(Clone, Copy)]
pub(crate) enum Element {
    Signed = 0,
    Unsigned = 1,
    Float = 2,
}

impl Element {
    pub(crate) fn of(dtype: Dtype) -> Element {
        if dtype == Dtype::U8 { Element::Unsigned } else { Element::Float }
    }
}

/// Dense numbers somewhere, which `memory` keeps there.
pub(crate) struct Numbers<'d> {
    /// Where they are, as their device sees it.
    pub(crate) address: usize,
    /// Kind and number of that device, as DLPack has them.
    pub(crate) device: (i32, i32),
    pub(crate) element: Element,
    /// Bytes of a number.
    pub(crate) bytes: usize,
    /// One to four lengths.
    pub(crate) dims: &'d [i64],
}

const CPU: (i32, i32) = (1, 0);
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// The numbers of a decoded batch, dense.
pub(crate) fn capsule(py: Python<'_>, memory: Memory, shape: Shape, versioned: bool) -> PyResult<Bound<'_, PyCapsule>> {
    let (data, items, item, _) = memory.items();
    let (dims, bytes) = (shape.dims(), shape.dtype.bytes());
    assert_eq!(items * item, dims.iter().product::<usize>() * bytes, "the memory is as long as the shape says");
    let flags = if matches!(memory, Memory::Batch(..)) { READ_ONLY } else { IS_COPIED };
    let (element, dims) = (Element::of(shape.dtype), dims.map(|side| side as i64));
    let numbers = Numbers { address: data.expose_provenance(), device: CPU, element, bytes, dims: &dims };
    export_as(py, &numbers, flags, memory, versioned)
}

/// A DLPack capsule of a tensor in device memory. It is not marked read-only: the memory is the consumer's alone until it calls the deleter.
pub(crate) fn device_capsule<'py, M: Send + 'static>(
    py: Python<'py>,
    numbers: &Numbers<'_>,
    memory: M,
    versioned: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    export_as(py, numbers, 0, memory, versioned)
}

/// A stream by its handle.
pub(crate) fn stream(handle: usize) -> RawStream {
    // SAFETY: DLPack's protocol: it is a stream of the tensor's device, and lives until the tensors are given back that were made for it.
    unsafe { RawStream::from_raw(std::ptr::with_exposed_provenance_mut(handle)) }
}

fn export_as<'py, M: Send + 'static>(
    py: Python<'py>,
    numbers: &Numbers<'_>,
    flags: u64,
    memory: M,
    versioned: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    match versioned {
        true => export::<Versioned, M>(py, numbers, flags, memory),
        false => export::<Managed, M>(py, numbers, flags, memory),
    }
}

fn export<'py, T: Kind, M: Send + 'static>(
    py: Python<'py>,
    numbers: &Numbers<'_>,
    flags: u64,
    memory: M,
) -> PyResult<Bound<'py, PyCapsule>> {
    let &Numbers { address, device, element, bytes, dims } = numbers;
    let (mut shape, mut strides, mut step) = ([0; 4], [0; 4], 1);
    for (at, side) in dims.iter().enumerate().rev() {
        (shape[at], strides[at]) = (*side, step);
        step *= side;
    }
    let tensor = Tensor {
        data: std::ptr::with_exposed_provenance_mut(address),
        device,
        ndim: dims.len() as i32,
        code: element as u8,
        bits: bytes as u8 * 8,
        lanes: 1,
        shape: null_mut(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let mut exported = Box::new(Exported { kind: T::of(tensor, flags, delete::<T, M>), shape, strides, memory });
    let (shape, strides) = (exported.shape.as_mut_ptr(), exported.strides.as_mut_ptr());
    let tensor = exported.kind.tensor();
    (tensor.shape, tensor.strides) = (shape, strides);
    let pointer = NonNull::from(Box::leak(exported)).cast::<c_void>();
    // SAFETY: the pointer is to an `Exported<T, M>` on the heap, which begins with its `T`. It lives until `delete::<T, M>` is called: by the
    // consumer that takes the tensor and renames the capsule, or else by the capsule's destructor.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, T::NAME, Some(destroy::<T, M>)) }
}

/// Frees a tensor whose capsule goes before anybody has taken it.
///
/// # Safety
/// The capsule is one of [`export`] with these types, and the interpreter is attached.
unsafe extern "C" fn destroy<T: Kind, M>(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this once, with the capsule that it ends. It still has its name if no consumer has taken the tensor: it is
    // this capsule's alone then.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, T::NAME.as_ptr()) == 1 {
            delete::<T, M>(ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr()).cast::<T>());
        }
    }
}

/// Frees a tensor and lets go of its memory, on any thread, with or without the GIL.
///
/// # Safety
/// `kind` is one that [`export`] made with these types, and this is called once.
unsafe extern "C" fn delete<T: Kind, M>(kind: *mut T) {
    // SAFETY: `kind` is the first field of an `Exported<T, M>` that was leaked from a box, and the caller owns it.
    let Exported { memory, .. } = *unsafe { Box::from_raw(kind.cast::<Exported<T, M>>()) };
    drop(memory);
}
