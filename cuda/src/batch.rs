//! A batch on the device, and the streams it is used on.
//!
//! Owns one device buffer until it is dropped; then an event on the consumer's stream marks its last use, and the buffer is
//! written again only after that event.

use core::ffi::c_void;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use fuelrail::{Dtype, OtherFields, SampleId, State};
use fuelrail_base::{Error, Kind, Result};

use crate::driver::CUstream;
use crate::ring::{BatchInfo, Ring, Token};

/// The handle that means the calling thread's default stream.
const PER_THREAD: usize = 2;

/// A stream of the consumer: a `CUstream`, which is also what the CUDA runtime and PyTorch call a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawStream(CUstream);

// SAFETY: a stream's handle may be used by any thread; the driver locks.
unsafe impl Send for RawStream {}
// SAFETY: as above.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// The legacy default stream, which other streams wait for unless they were made not to.
    pub const LEGACY: RawStream = RawStream(core::ptr::null_mut());

    /// A stream by its handle.
    ///
    /// # Safety
    /// It is null, `CU_STREAM_LEGACY`, or a stream of the feed's device that is not destroyed before every batch taken
    /// or released with it is dropped. While it is being captured into a graph, CUDA refuses it with an error.
    #[must_use]
    pub unsafe fn from_raw(handle: *mut c_void) -> RawStream {
        RawStream(handle.cast())
    }

    /// The handle.
    #[must_use]
    pub fn as_raw(self) -> *mut c_void {
        self.0.cast()
    }

    pub(crate) fn handle(self) -> CUstream {
        self.0
    }

    /// Refuses the default stream of a thread, which is another one where the batch is dropped.
    pub(crate) fn check(self) -> Result<()> {
        if self.0.addr() != PER_THREAD {
            return Ok(());
        }
        let cause = "a batch is asked for on CU_STREAM_PER_THREAD, which is another stream on every thread";
        Err(Error::new(Kind::Usage, cause).with_hint("make a stream, or take RawStream::LEGACY"))
    }
}

/// Samples delivered together, on the device. Work on the stream it was taken with sees all its bytes. Dropping it records its
/// end on that stream; buffers are few, so drop it when its last kernel is launched.
pub struct DeviceBatch {
    ring: Arc<Ring>,
    /// Gone when dropped.
    token: Option<Token>,
    stream: RawStream,
}

impl DeviceBatch {
    /// The token's batch, which `stream` has been made to wait for.
    pub(crate) fn new(ring: Arc<Ring>, token: Token, stream: RawStream) -> DeviceBatch {
        DeviceBatch { ring, token: Some(token), stream }
    }

    fn info(&self) -> &BatchInfo {
        &self.token().info
    }

    fn token(&self) -> &Token {
        self.token.as_ref().expect("the token is there until the batch is dropped")
    }

    /// The device's number.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.ring.ordinal
    }

    /// Where the bytes begin on the device.
    #[must_use]
    pub fn pointer(&self) -> u64 {
        self.ring.cell(self.token().cell).memory.handle()
    }

    /// Bytes copied, those between samples included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.info().bytes
    }

    /// Dimensions of the numbers at [`pointer`](DeviceBatch::pointer), dense: samples, rows, columns, channels, or samples,
    /// channels, rows, columns, when decoded, else all bytes in one.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        &self.info().shape
    }

    /// The type of those numbers.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.info().dtype
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.info().ids.len()
    }

    /// No samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.info().ids.is_empty()
    }

    /// Which samples, in order.
    #[must_use]
    pub fn ids(&self) -> &[SampleId] {
        &self.info().ids
    }

    /// Their classes, in order.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        &self.info().labels
    }

    /// In the host's memory, the fields that came with decoded samples.
    #[must_use]
    pub fn other_fields(&self) -> &OtherFields {
        &self.info().other_fields
    }

    /// Where their classes begin on the device, `i64` each, -1 for a sample without one; they arrive with the bytes.
    #[must_use]
    pub fn labels_pointer(&self) -> u64 {
        self.pointer() + self.ring.labels_at as u64
    }

    /// Where each sample begins: bytes after [`pointer`](DeviceBatch::pointer).
    #[must_use]
    pub fn offsets(&self) -> &[usize] {
        &self.info().offsets
    }

    /// Length of each sample on the device, bytes.
    #[must_use]
    pub fn lens(&self) -> &[usize] {
        &self.info().lens
    }

    /// The epoch it belongs to, from 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.info().epoch
    }

    /// The global step within the epoch, from 0.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.info().step
    }

    /// Number of the batch in this run of this rank, from 0.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.info().seq
    }

    /// Samples that could not be loaded, with the reason.
    #[must_use]
    pub fn left_out(&self) -> &[(SampleId, Error)] {
        &self.info().left_out
    }

    /// The state of the run after this batch: save it when the batch is trained on.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.info().state.as_ref()
    }

    /// The stream whose work may use it.
    #[must_use]
    pub fn stream(&self) -> RawStream {
        self.stream
    }

    /// Moves it to another stream, which waits for the work submitted to the old one and marks the end instead of it.
    ///
    /// # Errors
    /// `Environment` when the stream is refused; then the batch stays with the old one.
    pub fn move_to(&mut self, stream: RawStream) -> Result<()> {
        if stream == self.stream {
            return Ok(());
        }
        stream.check()?;
        let consumer_done = &self.ring.cell(self.token().cell).consumer_done;
        let _entered = self.ring.context.enter()?;
        // SAFETY: both streams are what `RawStream::from_raw` promises.
        unsafe {
            consumer_done.record(self.stream.handle())?;
            consumer_done.make_wait(stream.handle())?;
        }
        self.stream = stream;
        Ok(())
    }
}

impl Drop for DeviceBatch {
    fn drop(&mut self) {
        let Some(token) = self.token.take() else { return };
        if self.ring.context.check_fork().is_err() {
            // The buffer is the parent's.
            return;
        }
        // SAFETY: the stream is what `RawStream::from_raw` promises.
        let marked = (self.ring.context.enter())
            .and_then(|_entered| unsafe { self.ring.cell(token.cell).consumer_done.record(self.stream.handle()) });
        self.ring.tally.come_back();
        match marked {
            Ok(()) => {
                self.ring.cell(token.cell).was_held.store(true, Ordering::Release);
                self.ring.give_back(token);
            }
            Err(error) => {
                // When the consumer's work on the buffer ends is unknown: it is neither written again nor freed.
                self.ring.kept.store(true, Ordering::Release);
                let text = format!("marking the end of batch {} on the consumer's stream: {error}", token.info.seq);
                self.ring.fail(Error::new(Kind::Environment, text));
            }
        }
    }
}

impl core::fmt::Debug for DeviceBatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeviceBatch")
            .field("device", &self.device())
            .field("seq", &self.seq())
            .field("samples", &self.len())
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}
