//! One thread that leads the bucket through its phases and keeps at hand what it has served.
//!
//! Owns the server, which ends with it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuelrail::{Error, Kind, Result};

use super::phases::{Phase, Phases};
use super::server::{Order, Served, Server};

/// How often the bucket is asked what it has served.
const LOOK: Duration = Duration::from_millis(250);

/// What is known of the bucket.
#[derive(Clone, Default, Debug)]
pub(super) struct Seen {
    /// The phase it is in.
    pub(super) phase: String,
    pub(super) served: Served,
    /// Why it leads no more, when it had to end.
    pub(super) error: Option<Error>,
}

/// The thread. Dropping it ends it and the bucket.
#[derive(Debug)]
pub(super) struct Weather {
    seen: Arc<Mutex<Seen>>,
    /// Its end is the sign to end.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Weather {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Environment` when there can be no thread.
    pub(super) fn start(mut server: Server, mut phases: Phases) -> Result<Weather> {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (end, ended) = channel();
        let shown = Arc::clone(&seen);
        let lead = move || {
            let failed = loop {
                match phase(&mut server, &phases.next_phase(), &shown, &ended) {
                    Ok(true) => {}
                    Ok(false) => break None,
                    Err(error) => break Some(error),
                }
            };
            show(&shown, |seen| seen.error = failed);
        };
        let thread = std::thread::Builder::new().name("soak-weather".into()).spawn(lead);
        let thread = thread.map_err(|error| Error::new(Kind::Environment, format!("starting a thread: {error}")))?;
        Ok(Weather { seen, end: Some(end), thread: Some(thread) })
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the phases and the bucket, and tells what it has served.
    ///
    /// # Errors
    /// Why the bucket could not be led to the end.
    pub(super) fn stop(mut self) -> Result<Served> {
        self.end = None;
        let thread = self.thread.take().expect("it is joined once");
        thread.join().map_err(|_| Error::new(Kind::Environment, "the thread of the phases panicked"))?;
        let seen = self.seen();
        seen.error.map_or(Ok(seen.served), Err)
    }
}

impl Drop for Weather {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// Plays one phase. False when it is time to end.
fn phase(server: &mut Server, phase: &Phase, shown: &Mutex<Seen>, ended: &Receiver<()>) -> Result<bool> {
    let begun = Instant::now();
    show(shown, |seen| seen.phase = phase.name.to_owned());
    server.order(&Order::Play(phase.script.clone()))?;
    if let Some(away) = phase.away {
        server.order(&Order::Away(away.as_millis() as u64))?;
    }
    loop {
        let left = phase.lasts.saturating_sub(begun.elapsed());
        let over = ended.recv_timeout(left.min(LOOK)) != Err(RecvTimeoutError::Timeout);
        let served = server.order(&Order::Tell)?;
        show(shown, |seen| seen.served = served);
        if over {
            return Ok(false);
        }
        if left.is_zero() {
            return Ok(true);
        }
    }
}

fn show(shown: &Mutex<Seen>, change: impl FnOnce(&mut Seen)) {
    change(&mut shown.lock().unwrap_or_else(PoisonError::into_inner));
}
