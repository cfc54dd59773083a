//! The reducer: gradients summed over the ranks while the backward pass runs. The algorithm is described in `shim/reducer.cpp`.

use super::group::LOST;
use super::{Group, check};
use fuelrail_base::Result;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;
use tch::Tensor;

unsafe extern "C" {
    fn fr_reducer_new(
        group: *mut c_void,
        parameters: *const *mut c_void,
        count: usize,
        bucket_bytes: usize,
        tail_length: usize,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fr_reducer_free(reducer: *mut c_void);
    fn fr_reducer_buckets(reducer: *const c_void) -> usize;
    fn fr_reducer_flat(reducer: *mut c_void, gradients: bool, out: *mut *mut c_void) -> *mut c_char;
    fn fr_reducer_begin(reducer: *mut c_void) -> *mut c_char;
    fn fr_reducer_arm(reducer: *mut c_void);
    fn fr_reducer_finish(reducer: *mut c_void, tail: *mut f64, tail_length: usize, waited_us: *mut u64) -> *mut c_char;
}

/// Sums gradients over the ranks of a group.
#[derive(Debug)]
pub struct Reducer {
    handle: *mut c_void,
    tail_length: usize,
    /// Outlives the handle, which points to it.
    _group: Option<Arc<Group>>,
}

// SAFETY: the handle's state is guarded by its own lock against torch's backward threads; our calls come one at a time, through `&mut`.
unsafe impl Send for Reducer {}

impl Reducer {
    /// For these parameters, in the order in which the forward pass uses them. Without a group there is one rank and nothing to sum.
    /// `tail_length`: how many numbers of the caller's travel with the last bucket.
    ///
    /// # Errors
    /// `Environment` when there are no parameters, or they are of several kinds or on several devices.
    pub fn new(
        group: Option<Arc<Group>>,
        parameters: &mut [Tensor],
        bucket_bytes: usize,
        tail_length: usize,
    ) -> Result<Reducer> {
        let pointers: Vec<*mut c_void> = parameters.iter_mut().map(|p| p.as_mut_ptr().cast()).collect();
        let of = group.as_ref().map_or(ptr::null_mut(), |group| group.handle());
        let mut handle = ptr::null_mut();
        // SAFETY: the shim takes references of its own to the parameters; the group is kept by the Arc until the handle is freed.
        let failed = unsafe {
            fr_reducer_new(of, pointers.as_ptr(), pointers.len(), bucket_bytes, tail_length, &raw mut handle)
        };
        check("preparing the parameters for training", failed)?;
        Ok(Reducer { handle, tail_length, _group: group })
    }

    /// Number of buckets.
    #[must_use]
    pub fn buckets(&self) -> usize {
        // SAFETY: reads one number of a live handle.
        unsafe { fr_reducer_buckets(self.handle) }
    }

    fn flat(&self, gradients: bool) -> Result<Tensor> {
        let mut made = ptr::null_mut();
        // SAFETY: writes one pointer to an owned tensor, which tch frees; its storage is counted by torch.
        unsafe {
            check("taking the flat tensors", fr_reducer_flat(self.handle, gradients, &raw mut made))?;
            Ok(Tensor::from_ptr(made.cast()))
        }
    }

    /// All parameters in one tensor, of which each is a view: writing it writes the model.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub fn flat_parameters(&self) -> Result<Tensor> {
        self.flat(false)
    }

    /// All gradients in one tensor, laid out alike.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub fn flat_gradients(&self) -> Result<Tensor> {
        self.flat(true)
    }

    /// Begins a step: gradients become zero.
    ///
    /// # Errors
    /// `Environment` for what torch says.
    pub fn begin(&mut self) -> Result<()> {
        // SAFETY: a live handle, borrowed alone.
        check("clearing the gradients", unsafe { fr_reducer_begin(self.handle) })
    }

    /// Announces the step's last backward pass: complete buckets are sent while it runs.
    pub fn arm(&mut self) {
        // SAFETY: a live handle, borrowed alone.
        unsafe { fr_reducer_arm(self.handle) }
    }

    /// Ends a step: afterwards every parameter's gradient and `tail` are sums over all ranks. Returns the time this took, which is what
    /// the backward pass did not hide.
    ///
    /// # Errors
    /// `Environment` when another rank died or did not come in time.
    ///
    /// # Panics
    /// When `tail` has not the length given at the start.
    pub fn finish(&mut self, tail: &mut [f64]) -> Result<Duration> {
        assert_eq!(tail.len(), self.tail_length, "a step's tail has the length the reducer was made with");
        let mut waited = 0;
        // SAFETY: a live handle, borrowed alone; `tail` is read and written until the call returns.
        let failed = unsafe { fr_reducer_finish(self.handle, tail.as_mut_ptr(), tail.len(), &raw mut waited) };
        check("summing gradients over the ranks", failed).map_err(|error| error.with_hint(LOST))?;
        Ok(Duration::from_micros(waited))
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: made by `fr_reducer_new`, freed once; hooks that a graph still holds find its flag expired and do nothing.
        unsafe { fr_reducer_free(self.handle) }
    }
}
