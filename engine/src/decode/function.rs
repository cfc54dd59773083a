//! Samples decoded by a function of the program's own, on the same threads, into the same dense batches.

use crate::records::Records;
use fuelrail_base::{Result, SampleId};
use fuelrail_io::Slot;
use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// What a function of the program decodes: an object, or the field of a record that `decode_field` names.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Undecoded<'a> {
    /// The sample's place in the sorted listing.
    pub id: SampleId,
    /// The epoch it comes in: with the id and a seed, what augmentation is drawn from, so that a resumed run draws the same.
    pub epoch: u64,
    /// Its bytes, as the bucket has them.
    pub bytes: &'a [u8],
    /// The memory of the batch. `bytes` lie in it, unless they were computed from it.
    pub(super) raw: &'a Arc<Slot>,
    /// Where it is a record, all of its bytes and what finds fields in them.
    pub(super) record: Option<(&'a Records, &'a [u8])>,
}

impl fmt::Debug for Undecoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of sample {} in epoch {}", self.bytes.len(), self.id.0, self.epoch)
    }
}

impl<'a> Undecoded<'a> {
    /// Another field of its record, such as the boxes of a picture that is to be cropped. `None` where there is none of this name, or the
    /// sample is an object.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        self.record.and_then(|(records, bytes)| records.field(self.id, name, bytes))
    }

    /// Its bytes, to be used after the call, without a copy. While any of them exist the memory of the whole batch stays in use.
    #[must_use]
    pub fn keep(&self) -> KeptBytes {
        let whole = self.raw.as_ptr_range();
        if !whole.contains(&self.bytes.as_ptr()) {
            return KeptBytes(Kept::Made(self.bytes.into()));
        }
        let from = self.bytes.as_ptr() as usize - whole.start as usize;
        KeptBytes(Kept::InBatch(Arc::clone(self.raw), from..from + self.bytes.len()))
    }
}

/// Bytes of a sample that outlive the call of the function: see [`Undecoded::keep`].
#[derive(Clone)]
pub struct KeptBytes(Kept);

#[derive(Clone)]
enum Kept {
    /// In the memory of their batch.
    InBatch(Arc<Slot>, Range<usize>),
    /// A copy, of bytes that were computed.
    Made(Arc<[u8]>),
}

impl Deref for KeptBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kept::InBatch(slot, range) => &slot[range.clone()],
            Kept::Made(bytes) => bytes,
        }
    }
}

impl fmt::Debug for KeptBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

type Function = dyn Fn(&[Undecoded<'_>], &mut [u8]) -> Result<()> + Send + Sync;

/// A shared function that decodes samples. Equal to its clones only.
#[derive(Clone)]
pub struct DecodeFunction {
    function: Arc<Function>,
    /// It takes all samples of a batch at once.
    pub(super) takes_batches: bool,
}

// Settings may be read after a panic; what the function keeps is up to it.
impl UnwindSafe for DecodeFunction {}
impl RefUnwindSafe for DecodeFunction {}

impl DecodeFunction {
    /// Shares `function`: it fills all of a sample's place, which holds what the sample before left there.
    pub fn new(function: impl Fn(Undecoded<'_>, &mut [u8]) -> Result<()> + Send + Sync + 'static) -> DecodeFunction {
        let each = move |samples: &[Undecoded<'_>], out: &mut [u8]| function(samples[0], out);
        DecodeFunction { function: Arc::new(each), takes_batches: false }
    }

    /// As [`DecodeFunction::new`], of a function that takes all samples of a batch, in their order, and fills the places of all, one after
    /// another. Where it fails it is called again with each sample alone, to know which to leave out; but an error of kind `Program` is its own and
    /// no sample's: under `raise` it ends the run as it is.
    pub fn of_batches(
        function: impl Fn(&[Undecoded<'_>], &mut [u8]) -> Result<()> + Send + Sync + 'static,
    ) -> DecodeFunction {
        DecodeFunction { function: Arc::new(function), takes_batches: true }
    }

    pub(super) fn decode(&self, samples: &[Undecoded<'_>], out: &mut [u8]) -> Result<()> {
        (self.function)(samples, out)
    }
}

impl PartialEq for DecodeFunction {
    fn eq(&self, other: &DecodeFunction) -> bool {
        Arc::ptr_eq(&self.function, &other.function)
    }
}

impl Eq for DecodeFunction {}

impl fmt::Debug for DecodeFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DecodeFunction")
    }
}
