//! The thread that writes a checkpoint while training goes on. Owns it, and knows nothing of trainers.

use fuelrail_base::{Error, Kind, Result};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The places that have a checkpoint, and notices of those that refused.
pub(super) type Written = Result<(Vec<String>, Vec<String>)>;

/// Writes one checkpoint at a time.
#[derive(Debug, Default)]
pub(super) struct Writer(Option<(JoinHandle<()>, Receiver<Written>, Instant)>);

impl Writer {
    pub(super) fn is_busy(&self) -> bool {
        self.0.is_some()
    }

    /// Begins to write. Only when it is not busy.
    pub(super) fn begin(&mut self, write: impl FnOnce() -> Written + Send + 'static) -> Result<()> {
        debug_assert!(!self.is_busy(), "one at a time");
        let (begun, (tell, told)) = (Instant::now(), channel());
        let thread = std::thread::Builder::new().name("fuelrail-save".into()).spawn(move || drop(tell.send(write())));
        let thread = thread.map_err(|e| Error::from_io(Kind::Environment, "starting a thread to save with", e))?;
        self.0 = Some((thread, told, begun));
        Ok(())
    }

    /// What became of the one under way, and how long it took; waits for that where it is to. `None` where there is none.
    pub(super) fn ended(&mut self, wait: bool) -> Option<(Written, Duration)> {
        let (_, told, begun) = self.0.as_ref()?;
        let (written, took) = match told.try_recv() {
            Ok(written) => (Some(written), begun.elapsed()),
            Err(TryRecvError::Empty) if !wait => return None,
            Err(_) => (told.recv().ok(), begun.elapsed()),
        };
        let (thread, ..) = self.0.take()?;
        let _ = thread.join();
        let written = written.unwrap_or_else(|| Err(Error::new(Kind::Program, "the thread that saves panicked")));
        Some((written, took))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.ended(true));
    }
}
