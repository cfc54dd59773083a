//! Cancellation, from Ctrl-C to every thread that waits.
//!
//! Owns one flag. Never ends anything itself: everything that waits looks at it and returns, and what was started is
//! tidied up on the way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuelrail::{Error, Kind, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// A flag that many hold: once raised, every wait of the harness ends with `Cancelled`.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
}

impl Stop {
    /// Requests a stop.
    pub fn ask(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// `Cancelled` once a stop was requested.
    pub fn check(&self) -> Result<()> {
        if self.flag.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Cancelled, "interrupted"));
        }
        Ok(())
    }
}

/// A flag that Ctrl-C and SIGTERM raise, so that everything started is taken down on the way out.
///
/// # Errors
/// `Environment` when the signals cannot be listened to.
pub fn stop_on_signals() -> Result<Stop> {
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop.flag))
            .map_err(|error| Error::from_io(Kind::Environment, "listening for signals", error))?;
    }
    Ok(stop)
}
