//! Why a run has failed, for all of its threads to see.
//!
//! The first cause wins. Setting it wakes every thread that may be asleep, and each then ends by itself: a run in which one thread
//! is missing cannot go on.

use fuelrail_base::{Error, Kind, Result, panic_text};
use fuelrail_io::Waker;
use fuelrail_plan::planner::GivenUp;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Why a run has failed. Shared by its shards, its decoding threads and its consumer.
#[derive(Debug, Default)]
pub struct Failure {
    cause: OnceLock<Error>,
    sleepers: Mutex<Vec<Waker>>,
}

impl Failure {
    /// Why the run has failed; `None` while it has not.
    pub fn cause(&self) -> Option<&Error> {
        self.cause.get()
    }

    /// Registers a waker that a failure calls. Check [`cause`](Failure::cause) afterwards, and before every sleep.
    pub fn wakes(&self, waker: &Waker) {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).push(waker.clone());
    }

    /// Runs a thread's `work`; an error or a panic of it fails the run, and returns `None`.
    pub fn guard<T>(&self, thread: impl Display, work: impl FnOnce() -> Result<T>) -> Option<T> {
        let cause = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(done)) => return Some(done),
            Ok(Err(error)) => error.within(thread),
            Err(panic) => Error::new(Kind::Environment, format!("{thread} panicked: {}", panic_text(&*panic)))
                .with_hint(
                    "this is a bug of the loader: report it with the backtrace above, and resume from the last state",
                ),
        };
        if self.cause.set(cause).is_ok() {
            self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Waker::wake);
        }
        None
    }
}

/// What a fetch that was given up ends with.
pub(crate) fn given_up(last: Option<Error>, why: GivenUp) -> Error {
    let (kind, cause) = last.as_ref().map_or((Kind::Network, "none was made"), |error| (error.kind(), error.cause()));
    match why {
        GivenUp::Tried => {
            let last = last.unwrap_or_else(|| Error::new(Kind::Cancelled, "the fetch was given up"));
            if last.hint().is_some() { last } else { last.with_hint(GIVEN_UP) }
        }
        GivenUp::Unserved(time) => {
            Error::new(kind, format!("nothing was served for {} s; the last attempt: {cause}", time.as_secs()))
                .with_hint("look at the bucket, and resume from the last state; outage_limit_s says how long to wait")
        }
        GivenUp::Late(time) => {
            Error::new(kind, format!("it kept failing for {} s; the last attempt: {cause}", time.as_secs())).with_hint(
                "others are served: look at this object, or at the network path to it; request_limit_s says how long to try",
            )
        }
    }
}

/// The hint where every attempt failed in a way that can be temporary.
const GIVEN_UP: &str =
    "look at the server's logs and at what is between (proxies, load balancers), or raise attempts_max";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_wins_and_wakes_all() {
        let (failure, waker) = (Failure::default(), Waker::sleeper());
        failure.wakes(&waker);
        assert_eq!(failure.guard("shard 0", || Ok(7)), Some(7));
        assert!(failure.cause().is_none() && !waker.is_notified());
        let error = || Err::<(), _>(Error::new(Kind::File, "the disk is gone").with_hint("look at it"));
        assert_eq!(failure.guard("shard 1", error), None);
        assert!(waker.is_notified());
        assert_eq!(failure.guard("shard 2", || -> Result<()> { panic!("later") }), None);
        let cause = failure.cause().unwrap();
        assert_eq!((cause.kind(), cause.to_string().as_str()), (Kind::File, "shard 1: the disk is gone; look at it"));
    }

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let failure = Failure::default();
        let number = 3;
        failure.guard("shard 2", || -> Result<()> { panic!("slot {number} is out") });
        let text = failure.cause().unwrap().to_string();
        assert!(text.starts_with("shard 2 panicked: slot 3 is out; "), "{text}");
    }
}
