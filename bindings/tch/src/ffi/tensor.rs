//! Tensors over memory that is not torch's, and torch's current CUDA stream.

use super::{check, code_of};
use fuelrail::{Batch, Dtype};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_cuda::{DeviceBatch, RawStream};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;
use tch::{Device, Kind as Element, Tensor};

unsafe extern "C" {
    fn fr_tensor_over(
        memory: *mut c_void,
        sizes: *const i64,
        dimensions: usize,
        kind: c_int,
        cuda: c_int,
        release: extern "C" fn(*mut c_void),
        context: *mut c_void,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fr_add_scaled(tensor: *mut c_void, other: *const c_void, factor: f64) -> *mut c_char;
    fn fr_moved(tensor: *const c_void, cuda: c_int, out: *mut *mut c_void) -> *mut c_char;
    fn fr_later_new(tensor: *const c_void, out: *mut *mut c_void) -> *mut c_char;
    fn fr_later_free(later: *mut c_void);
    fn fr_later_read(later: *mut c_void, timeout_ms: i64, out: *mut f64, length: usize) -> *mut c_char;
    fn fr_current_stream(cuda: c_int, out: *mut *mut c_void) -> *mut c_char;
}

/// Drops the keeper of a tensor's memory. Called once by torch, on any thread, when nothing refers to the memory any more.
extern "C" fn release<K>(context: *mut c_void) {
    // SAFETY: `context` is the box that `tensor_over` gave away for this one call; `K: Send`, so any thread may drop it.
    drop(unsafe { Box::from_raw(context.cast::<K>()) });
}

/// A dense tensor of `sizes` elements of `kind` that begins at `memory`, on CUDA device `cuda` or in the host's memory. `keeper` is dropped
/// when the last tensor, view or autograd graph that refers to the memory is gone.
///
/// # Errors
/// `Usage` when `bytes` is not what the sizes need, `Environment` for what torch says.
///
/// # Safety
/// `memory` must be `bytes` long on that device, initialised, aligned for `kind`, and stay so until `keeper` is dropped; nobody else may
/// write it meanwhile. Torch may write it: it must not be shared with anyone who relies on its content.
pub(crate) unsafe fn tensor_over<K: Send + 'static>(
    memory: *mut u8,
    bytes: usize,
    sizes: &[i64],
    kind: Element,
    cuda: Option<usize>,
    keeper: K,
) -> Result<Tensor> {
    let need = sizes.iter().try_fold(kind.elt_size_in_bytes(), |n, &size| n.checked_mul(usize::try_from(size).ok()?));
    if need != Some(bytes) {
        return Err(Error::new(Kind::Usage, format!("a tensor of {sizes:?} elements of {kind:?} over {bytes} bytes")));
    }
    if !memory.addr().is_multiple_of(kind.elt_size_in_bytes()) {
        return Err(Error::new(Kind::Usage, format!("memory at {memory:?} is not aligned for {kind:?}")));
    }
    let (context, mut made) = (Box::into_raw(Box::new(keeper)), ptr::null_mut());
    let device = cuda.map_or(-1, |device| c_int::try_from(device).expect("a device's number is small"));
    // SAFETY: the sizes are read during the call only; the memory is the caller's promise until `keeper` is dropped, which is what
    // `release` does, once, after the tensor's storage is gone.
    let failed = unsafe {
        fr_tensor_over(
            memory.cast(),
            sizes.as_ptr(),
            sizes.len(),
            code_of(kind),
            device,
            release::<K>,
            context.cast(),
            &raw mut made,
        )
    };
    if let Err(error) = check("making a tensor over a batch", failed) {
        release::<K>(context.cast());
        return Err(error);
    }
    // SAFETY: the shim made an owned tensor on the heap, as tch's own C++ does; tch frees it.
    Ok(unsafe { Tensor::from_ptr(made.cast()) })
}

/// `tensor += factor * other`, rounded once, as torch's own optimisers do it.
pub(crate) fn add_scaled(tensor: &mut Tensor, other: &Tensor, factor: f64) -> Result<()> {
    // SAFETY: both tensors are borrowed until the call returns.
    let failed = unsafe { fr_add_scaled(tensor.as_mut_ptr().cast(), other.as_ptr().cast(), factor) };
    check("adding to a tensor", failed)
}

fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::U8 => Element::Uint8,
        Dtype::F16 => Element::Half,
        Dtype::F32 => Element::Float,
    }
}

/// The memory of a batch as a tensor of bytes, or of what it was decoded to, which holds the batch until it is gone.
pub(crate) fn batch_tensor(mut batch: Batch, sizes: &[i64]) -> Result<Tensor> {
    let kind = element(batch.shape().map_or(Dtype::U8, |shape| shape.dtype));
    let memory = batch.bytes_mut();
    let (at, len) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the bytes lie in the loader's arena, which the batch keeps mapped; they do not move with it, and only the tensor knows the batch
    // until it is dropped, which is when the memory returns to the loader.
    unsafe { tensor_over(at, len, sizes, kind, None, batch) }
}

/// The same for a batch on a CUDA device, and its labels. Dropping the last tensor of both marks its end on the stream it was taken with.
pub(crate) fn device_tensors(batch: DeviceBatch) -> Result<(Tensor, Tensor)> {
    let batch = Arc::new(batch);
    let (sizes, bytes, kind) = (batch.shape().to_vec(), batch.bytes(), element(batch.dtype()));
    let at = ptr::with_exposed_provenance_mut(batch.pointer() as usize);
    let (device, labels) = (batch.device() as usize, batch.labels().len());
    let labels_at = ptr::with_exposed_provenance_mut(batch.labels_pointer() as usize);
    // SAFETY: the buffer is the batch's until it is dropped, which is when the last tensor goes; the stream torch works on was made to wait for
    // the copy when the batch was taken, and is the one on which the buffer's end is marked.
    unsafe {
        let labels =
            tensor_over(labels_at, labels * 8, &[labels as i64], Element::Int64, Some(device), Arc::clone(&batch))?;
        Ok((tensor_over(at, bytes, &sizes, kind, Some(device), batch)?, labels))
    }
}

/// The tensor on this device. From the host's memory it goes there after what the device is doing, and the host does not wait.
pub(crate) fn moved(tensor: &Tensor, device: Device) -> Result<Tensor> {
    let mut made = ptr::null_mut();
    let cuda = match device {
        Device::Cuda(number) => c_int::try_from(number).unwrap_or(-1),
        _ => -1,
    };
    // SAFETY: the tensor is read by what the call puts on the device's stream, which torch keeps alive for it; writes one pointer to an owned
    // tensor, which tch frees.
    unsafe {
        check("moving a tensor to its device", fr_moved(tensor.as_ptr().cast(), cuda, &raw mut made))?;
        Ok(Tensor::from_ptr(made.cast()))
    }
}

/// Numbers being copied from a device to the host, after the work that was queued on the device before.
#[derive(Debug)]
pub(crate) struct Later {
    handle: *mut c_void,
    length: usize,
}

impl Later {
    /// Starts to copy a tensor's numbers to the host.
    pub(crate) fn new(tensor: &Tensor) -> Result<Later> {
        let mut handle = ptr::null_mut();
        // SAFETY: the tensor is read by what the call puts on its device's stream, which torch keeps alive for it; writes one pointer.
        check("reading a step's numbers", unsafe { fr_later_new(tensor.as_ptr().cast(), &raw mut handle) })?;
        Ok(Later { handle, length: tensor.numel() })
    }

    /// Waits for them, at most `patience`.
    pub(crate) fn read(self, patience: Duration) -> Result<Vec<f64>> {
        let mut numbers = vec![0.0; self.length];
        let patience = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX);
        // SAFETY: a live handle; writes so many numbers until it returns.
        let failed = unsafe { fr_later_read(self.handle, patience, numbers.as_mut_ptr(), numbers.len()) };
        check("reading a step's numbers", failed)?;
        Ok(numbers)
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        // SAFETY: made by `fr_later_new`, freed once; torch keeps page-locked memory until the copy into it has ended.
        unsafe { fr_later_free(self.handle) }
    }
}

/// Torch's current stream, for a feed.
pub(crate) fn feed_stream(cuda: usize) -> Result<RawStream> {
    let stream = current_stream(cuda)?;
    // SAFETY: torch's streams live as long as the process; ones of the caller's, under a guard, as long as the guard's contract says.
    Ok(unsafe { RawStream::from_raw(stream) })
}

/// A tensor that owns these bytes, without a copy.
///
/// # Errors
/// `Usage` when they are not what the sizes need, `Environment` for what torch says.
pub fn tensor_of_bytes(bytes: Vec<u8>, sizes: &[i64], kind: Element) -> Result<Tensor> {
    // A vector of bytes may begin anywhere; wider elements get a place that suits them.
    if !bytes.as_ptr().addr().is_multiple_of(kind.elt_size_in_bytes()) {
        let words = bytes.len().div_ceil(8);
        let mut aligned = vec![0_u64; words];
        let (at, len) = (aligned.as_mut_ptr().cast::<u8>(), bytes.len());
        // SAFETY: `aligned` has room for `len` bytes and nobody else has it; the two do not overlap. It is moved into the tensor's keeper,
        // which leaves its heap memory where it is until the keeper is dropped.
        return unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), at, len);
            tensor_over(at, len, sizes, kind, None, aligned)
        };
    }
    let mut bytes = bytes;
    let (at, len) = (bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the vector moves into the keeper; its heap memory stays where it is until the keeper is dropped, and only the tensor knows it.
    unsafe { tensor_over(at, len, sizes, kind, None, bytes) }
}

/// Torch's current stream on this CUDA device, as the driver's handle. Null is the default stream.
pub(crate) fn current_stream(cuda: usize) -> Result<*mut c_void> {
    let mut stream = ptr::null_mut();
    let device = c_int::try_from(cuda).unwrap_or(-1);
    // SAFETY: writes one pointer, which is read after the call.
    check("getting torch's stream", unsafe { fr_current_stream(device, &raw mut stream) })?;
    Ok(stream)
}

/// The first numbers of a tensor of floats.
pub(crate) fn floats_of<const N: usize>(tensor: &Tensor) -> [f64; N] {
    core::array::from_fn(|i| tensor.double_value(&[i as i64]))
}

/// The bytes of a tensor, wherever it is.
pub(crate) fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let flat = tensor.to_device(Device::Cpu).contiguous();
    let mut bytes = vec![0; flat.numel() * flat.kind().elt_size_in_bytes()];
    flat.f_copy_data_u8(&mut bytes, flat.numel())
        .map_err(|e| Error::new(Kind::Environment, format!("reading a tensor: {e}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Keeper(Box<[f32]>, Arc<AtomicUsize>);

    impl Drop for Keeper {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn over(freed: &Arc<AtomicUsize>, sizes: &[i64], elements: usize) -> Result<Tensor> {
        let mut keeper = Keeper(vec![1.5; elements].into(), Arc::clone(freed));
        let at = keeper.0.as_mut_ptr().cast();
        // SAFETY: the boxed slice stays where it is when the keeper moves, until the keeper is dropped.
        unsafe { tensor_over(at, elements * 4, sizes, Element::Float, None, keeper) }
    }

    #[test]
    fn the_keeper_stays_as_long_as_a_graph_needs_the_memory() {
        let freed = Arc::new(AtomicUsize::new(0));
        let tensor = over(&freed, &[4, 8], 32).unwrap();
        let weight = Tensor::ones(&[8, 1], (Element::Float, tch::Device::Cpu)).set_requires_grad(true);
        let loss = tensor.matmul(&weight).sum(Element::Float);
        drop(tensor);
        assert_eq!(freed.load(Ordering::SeqCst), 0, "the backward pass still needs the input");
        loss.backward();
        assert_eq!(weight.grad().double_value(&[0, 0]), 6.0);
        drop(loss);
        assert_eq!(freed.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused_and_the_keeper_is_let_go() {
        let freed = Arc::new(AtomicUsize::new(0));
        for sizes in [&[4_i64, 9][..], &[-4, -8], &[i64::MAX, i64::MAX]] {
            assert_eq!(over(&freed, sizes, 32).unwrap_err().kind(), Kind::Usage);
        }
        assert_eq!(freed.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn bytes_become_a_tensor_wherever_they_begin() {
        for offset in 0..4 {
            let numbers = [1.0_f32, -2.0, 3.5];
            let mut bytes = Vec::with_capacity(64);
            bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
            let bytes = [vec![0; offset], bytes].concat()[offset..].to_vec();
            let tensor = tensor_of_bytes(bytes, &[3], Element::Float).unwrap();
            assert_eq!(Vec::<f32>::try_from(&tensor).unwrap(), numbers);
        }
    }

    #[test]
    fn without_cuda_streams_are_a_clear_error() {
        assert_eq!(current_stream(0).unwrap_err().kind(), Kind::Environment);
    }
}
