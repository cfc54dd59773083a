//! A bucket that serves nothing is waited for when a loader starts, too: a cluster that is restarted meets seconds without name service,
//! refused connections and 503. Commands at a prompt set no limit, and learn within seconds.

use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_io::monotonic_now;
use fuelrail_plan::retry::{Retry, RetryConfig, Tries, Verdict};
use fuelrail_wire::Endpoint;
use std::cell::Cell;
use std::time::Instant;

/// Silence after which is told what is waited for.
pub(crate) const TELL_AFTER: Duration = Duration::from_secs(5);
/// No ceiling of a pause grows beyond this: the end of an outage is to be seen soon.
const PAUSE_US_MAX: u64 = 5_000_000;

/// How long a server is waited for.
pub(crate) struct Waiting {
    server: String,
    /// `None` leaves it to the attempts.
    pub(crate) limit: Option<Duration>,
    /// When it last served something.
    since: Cell<Instant>,
    told: Cell<bool>,
}

impl Waiting {
    pub(crate) fn new(server: &Endpoint, limit: Option<Duration>) -> Waiting {
        Waiting { server: server.authority(), limit, since: Cell::new(Instant::now()), told: Cell::new(false) }
    }

    /// The server has served something: the limit starts anew.
    pub(crate) fn served(&self) {
        self.since.set(Instant::now());
    }

    /// How attempts follow each other, of which there are `attempts_max` where nothing is waited for.
    pub(crate) fn retry(&self, attempts_max: u32) -> RetryConfig {
        let config = RetryConfig { attempts_max, ..RetryConfig::default() };
        match self.limit {
            None => config,
            Some(_) => RetryConfig { attempts_max: u32::MAX, cap_us: PAUSE_US_MAX, ..config },
        }
    }

    /// Whether what has failed like this is tried again, however often it was. Tells of it once it has lasted.
    pub(crate) fn goes_on(&self, error: &Error) -> bool {
        let is_down = matches!(error.kind(), Kind::Network | Kind::Throttled | Kind::Server | Kind::Stalled);
        let lasted = self.since.get().elapsed();
        let goes_on = is_down && self.limit.is_some_and(|limit| lasted < limit);
        if goes_on && lasted >= TELL_AFTER {
            self.tell(error.cause());
        }
        goes_on
    }

    /// Says, once, what is waited for.
    pub(crate) fn tell(&self, why: &str) {
        if !self.told.replace(true) {
            let (server, secs) = (&self.server, self.limit.unwrap_or_default().as_secs());
            tracing::warn!("{server} serves nothing ({why}): waiting for it, {secs} s at most (outage_limit)");
        }
    }
}

/// Does `work` again for as long as it fails because a server is down, within `limit`.
///
/// # Errors
/// What `work` returned last.
pub(crate) fn outlast<T>(server: &Endpoint, limit: Option<Duration>, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let (waiting, mut tries) = (Waiting::new(server, limit), Tries::default());
    let mut retry = Retry::new(waiting.retry(1), monotonic_now().0)?;
    loop {
        let error = match work() {
            Err(error) if waiting.goes_on(&error) => error,
            done => return done,
        };
        match retry.verdict(&mut tries, error.kind(), None) {
            Verdict::After(pause) => std::thread::sleep(pause),
            Verdict::GiveUp => return Err(error),
        }
    }
}
