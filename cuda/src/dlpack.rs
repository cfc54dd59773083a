//! DLPack: tensors handed to PyTorch, JAX, CuPy and others without a copy.
//!
//! Owns the layout of DLPack 0.8 (the `DLManagedTensor` without versions, which all consumers read) and the wrapper that keeps a batch
//! until the consumer calls its deleter. Never touches the elements.

use core::ffi::c_void;

use fuelrail::{Batch, Dtype};
use fuelrail_base::Result;

use crate::batch::{DeviceBatch, RawStream};

/// `DLDevice`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct DlDevice {
    /// `kDLCPU` 1, `kDLCUDA` 2, `kDLCUDAHost` 3.
    pub kind: i32,
    /// The device's number; 0 for host memory.
    pub ordinal: i32,
}

/// `DLDataType`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct DlDataType {
    /// `kDLUInt` 1.
    pub code: u8,
    /// Bits of an element.
    pub bits: u8,
    /// 1: not a vector type.
    pub lanes: u16,
}

/// `DLTensor`.
#[derive(Debug)]
#[repr(C)]
pub struct DlTensor {
    /// The first element, where the device sees it.
    pub elements: *mut c_void,
    /// Their device.
    pub device: DlDevice,
    /// Number of dimensions.
    pub dimensions: i32,
    /// Element type.
    pub dtype: DlDataType,
    /// Lengths of the dimensions.
    pub shape: *mut i64,
    /// Null: dense, the last dimension fastest.
    pub strides: *mut i64,
    /// 0.
    pub byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct DlManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// DLPack's codes of types: `kDLUInt` and `kDLFloat`.
fn element(dtype: Dtype) -> DlDataType {
    DlDataType { code: if dtype == Dtype::U8 { 1 } else { 2 }, bits: dtype.bytes() as u8 * 8, lanes: 1 }
}

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;

/// How the memory of a host batch is presented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostKind {
    /// Plain memory (`kDLCPU`).
    Plain,
    /// Registered with CUDA (`kDLCUDAHost`): the caller must keep a [`Pinned`](crate::Pinned) of it that lives longer.
    Registered,
}

/// An exported tensor that has not been handed over yet. Dropping it drops the batch.
#[derive(Debug)]
pub struct ManagedTensor(*mut DlManagedTensor);

// SAFETY: it owns what it points to, which is a batch and plain numbers, all of which may change threads.
unsafe impl Send for ManagedTensor {}

/// The managed tensor first, so that a pointer to it is a pointer to all.
#[repr(C)]
struct Holder<T> {
    managed: DlManagedTensor,
    shape: [i64; 4],
    kept: T,
}

impl ManagedTensor {
    fn new<T: Send>(
        elements: *mut c_void,
        device: DlDevice,
        (shape, dtype): (&[i64], Dtype),
        kept: T,
    ) -> ManagedTensor {
        let mut lengths = [0; 4];
        lengths[..shape.len()].copy_from_slice(shape);
        let tensor = DlTensor {
            elements,
            device,
            dimensions: shape.len() as i32,
            dtype: element(dtype),
            shape: core::ptr::null_mut(),
            strides: core::ptr::null_mut(),
            byte_offset: 0,
        };
        let managed = DlManagedTensor { tensor, context: core::ptr::null_mut(), deleter: Some(give_back::<T>) };
        let holder = Box::into_raw(Box::new(Holder { managed, shape: lengths, kept }));
        // SAFETY: the holder was just made and has no other owner; the shape stays where it is until the deleter frees the box.
        unsafe {
            (*holder).managed.tensor.shape = (&raw mut (*holder).shape).cast();
            (*holder).managed.context = holder.cast();
        }
        ManagedTensor(holder.cast())
    }

    /// The exported tensor.
    #[must_use]
    pub fn tensor(&self) -> &DlTensor {
        // SAFETY: the holder lives until the deleter is called, which only `drop` does as long as this is not handed over.
        unsafe { &(*self.0).tensor }
    }

    /// Hands it over: a `DLManagedTensor *`, whose deleter the receiver calls once, from any thread.
    #[must_use]
    pub fn into_raw(self) -> *mut c_void {
        let raw = self.0.cast();
        core::mem::forget(self);
        raw
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: it was not handed over, so its deleter has not been called.
        unsafe {
            if let Some(deleter) = (*self.0).deleter {
                deleter(self.0);
            }
        }
    }
}

/// # Safety
/// `managed` is the first field of a `Holder<T>` made by `ManagedTensor::new`, and this is called for it once.
unsafe extern "C" fn give_back<T>(managed: *mut DlManagedTensor) {
    if !managed.is_null() {
        // SAFETY: the caller's promise; the context is the holder's own pointer, with the right to all of it.
        drop(unsafe { Box::from_raw((*managed).context.cast::<Holder<T>>()) });
    }
}

impl DeviceBatch {
    /// Exports the batch for work on `stream`, which waits for it. The deleter marks the end of its use on that stream.
    ///
    /// # Errors
    /// `Environment` when the stream is refused.
    pub fn into_dlpack(mut self, stream: RawStream) -> Result<ManagedTensor> {
        self.move_to(stream)?;
        let elements = core::ptr::without_provenance_mut(self.pointer() as usize);
        let device = DlDevice { kind: CUDA, ordinal: self.device().cast_signed() };
        let (shape, dtype) = (self.shape().to_owned(), self.dtype());
        Ok(ManagedTensor::new(elements, device, (&shape, dtype), self))
    }
}

impl ManagedTensor {
    /// Exports a batch in host memory: decoded samples in their four dimensions, others as bytes in one. The deleter gives its
    /// memory back to the loader.
    #[must_use]
    pub fn from_host(mut batch: Batch, kind: HostKind) -> ManagedTensor {
        let (shape, dtype) = match batch.shape() {
            Some(shape) => (shape.dims().map(|n| n as i64).to_vec(), shape.dtype),
            None => (vec![batch.bytes().len() as i64], Dtype::U8),
        };
        let device = DlDevice { kind: if kind == HostKind::Plain { CPU } else { CUDA_HOST }, ordinal: 0 };
        ManagedTensor::new(batch.bytes_mut().as_mut_ptr().cast(), device, (&shape, dtype), batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use std::sync::Arc;

    #[test]
    fn the_layout_is_that_of_dlpack_0_8() {
        assert_eq!((size_of::<DlDevice>(), size_of::<DlDataType>()), (8, 4));
        assert_eq!((offset_of!(DlDataType, bits), offset_of!(DlDataType, lanes)), (1, 2));
        assert_eq!(size_of::<DlTensor>(), 48);
        assert_eq!((offset_of!(DlTensor, elements), offset_of!(DlTensor, device)), (0, 8));
        assert_eq!((offset_of!(DlTensor, dimensions), offset_of!(DlTensor, dtype)), (16, 20));
        assert_eq!((offset_of!(DlTensor, shape), offset_of!(DlTensor, strides)), (24, 32));
        assert_eq!(offset_of!(DlTensor, byte_offset), 40);
        assert_eq!((offset_of!(DlManagedTensor, context), offset_of!(DlManagedTensor, deleter)), (48, 56));
        assert_eq!((size_of::<DlManagedTensor>(), offset_of!(Holder<u64>, managed)), (64, 0));
    }

    #[test]
    fn whoever_is_left_with_it_gives_it_back_once() {
        let host = DlDevice { kind: CPU, ordinal: 0 };
        let kept = Arc::new(());
        let tensor = ManagedTensor::new(core::ptr::null_mut(), host, (&[2, 3, 5], Dtype::F32), Arc::clone(&kept));
        assert_eq!((tensor.tensor().dimensions, tensor.tensor().dtype.code, tensor.tensor().dtype.bits), (3, 2, 32));
        // SAFETY: the shape has as many lengths as there are dimensions and lives as long as the tensor.
        assert_eq!(unsafe { core::slice::from_raw_parts(tensor.tensor().shape, 3) }, [2, 3, 5]);
        drop(tensor);
        assert_eq!(Arc::strong_count(&kept), 1, "never handed over: drop gives back");
        let tensor = ManagedTensor::new(core::ptr::null_mut(), host, (&[], Dtype::U8), Arc::clone(&kept));
        let raw = tensor.into_raw().cast::<DlManagedTensor>();
        assert_eq!(Arc::strong_count(&kept), 2, "handed over: it is the receiver's");
        // SAFETY: what a receiver does, once.
        unsafe { (*raw).deleter.unwrap()(raw) };
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
