//! What C reads of a batch: addresses that stay valid until it is released.

use crate::error::{c_text, usage};
use fuelrail::Result;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

/// Samples delivered together. It holds its memory, which the loader has back when the batch is released.
pub struct Batch {
    pub(crate) engine: fuelrail::Batch,
    /// What does not lie in the batch as C wants it: keys, which end in a NUL, and fields that are made of what the record has. Asking again
    /// takes no more memory. Nothing is removed or changed: addresses stay valid.
    made: Mutex<BTreeMap<Place, Vec<u8>>>,
}

/// A sample, and a field of it, or its key.
type Place = (usize, Option<String>);

impl Batch {
    pub(crate) fn new(engine: fuelrail::Batch) -> Batch {
        Batch { engine, made: Mutex::default() }
    }

    pub(crate) fn sample(&self, i: usize) -> Result<&[u8]> {
        self.has(i).map(|()| self.engine.sample(i))
    }

    /// Address and length of a field, `None` where the sample lacks it.
    pub(crate) fn field(&self, i: usize, name: &str) -> Result<Option<(*const u8, usize)>> {
        self.has(i)?;
        Ok(self.engine.field(i, name).map(|bytes| match bytes {
            // In the batch, or in the index, which the batch holds, too.
            Cow::Borrowed(bytes) => (bytes.as_ptr(), bytes.len()),
            Cow::Owned(bytes) => self.keep((i, Some(name.to_owned())), || bytes),
        }))
    }

    pub(crate) fn key(&self, i: usize) -> Result<*const c_char> {
        self.has(i)?;
        Ok(self.keep((i, None), || c_text(&self.engine.key(i)).into_bytes_with_nul()).0.cast())
    }

    fn has(&self, i: usize) -> Result<()> {
        let samples = self.engine.len();
        let wrong = || usage(format!("sample {i} of a batch of {samples}"), "count from 0 to fuelrail_batch_len");
        if i < samples { Ok(()) } else { Err(wrong()) }
    }

    fn keep(&self, place: Place, make: impl FnOnce() -> Vec<u8>) -> (*const u8, usize) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = made.entry(place).or_insert_with(make);
        (bytes.as_ptr(), bytes.len())
    }
}
