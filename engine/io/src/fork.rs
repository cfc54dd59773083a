//! Detects a fork. Rings and pinned memory do not survive one: the child shares the parent's ring but not its memory.
//!
//! Every child of libc's `fork` increments a counter, so a check costs one load and no system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use fuelrail_base::{Error, Kind, Result};

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Detects that the process is not the one it was made in.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    forks: u32,
    pid: u32,
}

impl Default for ForkGuard {
    fn default() -> ForkGuard {
        ForkGuard::new()
    }
}

impl ForkGuard {
    /// A guard for this process.
    #[must_use]
    pub fn new() -> ForkGuard {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler is a function of this program, alive as long as the process; all it does is one
            // atomic addition, which is allowed between fork and exec.
            let rc = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            assert_eq!(rc, 0, "no memory left to register a fork handler");
        });
        ForkGuard { forks: FORKS.load(Ordering::Relaxed), pid: std::process::id() }
    }

    /// Whether this is still the process the guard was made in.
    #[must_use]
    pub fn holds(&self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// The same as an error.
    ///
    /// # Errors
    /// `Environment` in a child made by `fork` since.
    pub fn check(&self) -> Result<()> {
        if self.holds() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Environment,
            format!("process {} is a fork of {}, in which the loader was opened", std::process::id(), self.pid),
        )
        .with_hint("open the loader after the fork, or start workers with spawn or forkserver instead of fork"))
    }
}
