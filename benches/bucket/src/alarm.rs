//! Sleeping to a tenth of a millisecond. Tokio's timers tick in milliseconds and round up, which would add one per cent
//! to a scripted 55 ms and double a scripted one. One thread waits for the earliest deadline and wakes its tasks.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// A deadline, and who sleeps until then.
type Sleeper = (Instant, oneshot::Sender<()>);

/// The alarm thread's entrance; the thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Alarm {
    sleepers: mpsc::Sender<Sleeper>,
}

impl Alarm {
    pub(crate) fn start() -> Result<Alarm> {
        let (sleepers, incoming) = mpsc::channel();
        std::thread::Builder::new()
            .name("bucket-alarm".to_owned())
            .spawn(move || run(&incoming))
            .map_err(|e| Error::system("starting the alarm thread", &e))?;
        Ok(Alarm { sleepers })
    }

    /// Waits until `deadline`.
    pub(crate) async fn sleep_until(&self, deadline: Instant) {
        let (wake, woken) = oneshot::channel();
        // Neither fails: the thread lives as long as this sender, and wakes whom it was given.
        let _ = self.sleepers.send((deadline, wake));
        let _ = woken.await;
    }
}

fn run(incoming: &mpsc::Receiver<Sleeper>) {
    // The number tells equal deadlines apart.
    let mut sleepers: BTreeMap<(Instant, u64), oneshot::Sender<()>> = BTreeMap::new();
    for number in 0u64.. {
        while let Some(first) = sleepers.first_entry().filter(|first| first.key().0 <= Instant::now()) {
            // A sleeper that was dropped needs no waking.
            let _ = first.remove().send(());
        }
        let next = match sleepers.first_key_value() {
            Some(((deadline, _), _)) => incoming.recv_timeout(deadline.saturating_duration_since(Instant::now())),
            None => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok((deadline, wake)) => drop(sleepers.insert((deadline, number), wake)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
