//! Ctrl-C and SIGTERM: what they ask to stop, what ends although it waits, and the exit code that tells of them.
//!
//! Owns the thread that hears signals.

use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use fuelrail::{Error, Kind, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;

use crate::failure::{Outcome, Stop, interrupted};
use crate::whole::remove_unfinished;

/// The signal that came; 0 before one has.
static SIGNAL: AtomicU8 = AtomicU8::new(0);
/// Signals so soon after the first are of the same request: a launcher hands on what the terminal has sent already.
const SAME_REQUEST: Duration = Duration::from_millis(300);

/// Whether a signal has asked this process to end.
pub(crate) fn is_signalled() -> bool {
    SIGNAL.load(Ordering::Relaxed) != 0
}

/// The exit code of an error. Where a signal ended the command, the one by which shells say so.
pub(crate) fn exit_code(error: &Error) -> u8 {
    match SIGNAL.load(Ordering::Relaxed) {
        signal if signal != 0 && error.kind() == Kind::Cancelled => 128 + signal,
        _ => error.kind().exit_code(),
    }
}

/// A flag that Ctrl-C and SIGTERM raise, so that everything started is taken down on the way out. A second one ends the process at once.
///
/// # Errors
/// `Environment` when the signals cannot be listened to.
pub fn stop_on_signals() -> Result<Stop> {
    let refused = |error: io::Error| Error::from_io(Kind::Environment, "listening for signals", error);
    let (stop, mut signals) = (Stop::default(), Signals::new([SIGINT, SIGTERM]).map_err(refused)?);
    let asked = stop.clone();
    let listener = Builder::new().name("fuelrail-signal".into()).spawn(move || {
        let mut first = None::<Instant>;
        for signal in signals.forever() {
            if first.get_or_insert_with(Instant::now).elapsed() > SAME_REQUEST {
                remove_unfinished();
                exit(128 + signal);
            }
            SIGNAL.store(signal as u8, Ordering::Relaxed);
            asked.ask();
        }
    });
    listener.map_err(refused)?;
    Ok(stop)
}

/// How often is looked whether a command has ended or is to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a command may take to end by itself after a signal, …
const GRACE: Duration = Duration::from_secs(1);
/// … and as long as an upload is under way: parts without an object would cost.
const UPLOAD_GRACE: Duration = Duration::from_secs(10);
/// As much as a main thread has.
const STACK_BYTES: usize = 8 << 20;

/// Runs `work` on a thread of its own, which is left where it is once `look`, called from time to time, returns an error.
pub(crate) fn apart<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
    mut look: impl FnMut() -> Result<()>,
) -> Result<T> {
    let (ends, ended) = sync_channel(1);
    // The receiver is gone once the thread was left.
    let spawned = Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(move || drop(ends.send(work())));
    let worker = spawned.map_err(|error| Error::from_io(Kind::Environment, "starting a thread", error))?;
    loop {
        match ended.recv_timeout(LOOK_EVERY) {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Timeout) => look()?,
            Err(RecvTimeoutError::Disconnected) => {
                resume_unwind(worker.join().expect_err("it ends with an outcome or a panic"))
            }
        }
    }
}

/// Runs a command that Ctrl-C and SIGTERM end soon whatever it waits for, a server that does not answer included.
pub(crate) fn interruptible(work: impl FnOnce(&Stop) -> Outcome + Send + 'static) -> Outcome {
    let (stop, mut signalled) = (stop_on_signals()?, None::<Instant>);
    let theirs = stop.clone();
    let look = || {
        let grace = if stop.is_uploading() { UPLOAD_GRACE } else { GRACE };
        if !is_signalled() || signalled.get_or_insert_with(Instant::now).elapsed() <= grace {
            return Ok(());
        }
        remove_unfinished();
        Err(interrupted())
    };
    apart("fuelrail-command", move || work(&theirs), look)?
}
