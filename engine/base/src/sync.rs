//! Synchronisation primitives: the standard library's, and under `cfg(loom)` those of a model checker, which tries every order that
//! the memory model allows. `cargo x prove models` sets that for our crates and runs the tests named `models`.
//!
//! Only lock-free hand-offs between threads use these; other code uses the standard library's.

#[cfg(not(loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, atomic};

#[cfg(loom)]
mod model;
#[cfg(loom)]
pub use model::{Condvar, Mutex, MutexGuard, OnceLock, atomic, rtrb, trial};

use crate::Duration;
use std::sync::PoisonError;

/// Sleeps on `condvar` while `asleep` holds, at most `limit`: under a model checker without limit, so that a lost wake-up is seen.
pub fn sleep_while<'a>(
    condvar: &Condvar,
    guard: MutexGuard<'a, ()>,
    limit: Duration,
    mut asleep: impl FnMut() -> bool,
) -> MutexGuard<'a, ()> {
    #[cfg(not(loom))]
    return condvar.wait_timeout_while(guard, limit, |_| asleep()).unwrap_or_else(PoisonError::into_inner).0;
    #[cfg(loom)]
    {
        let (mut guard, _) = (guard, limit);
        while asleep() {
            guard = condvar.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        guard
    }
}
