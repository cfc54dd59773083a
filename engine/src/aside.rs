//! Where the control plane runs: a thread of its own for one piece of asynchronous work.
//!
//! Callers may be inside another runtime, which must not be disturbed. Owns nothing that outlives a call.

use fuelrail_base::{Error, Kind, Result};

/// Runs `work` on a thread of this name and waits for it.
///
/// # Errors
/// `Environment` when the thread or its runtime is refused; what `work` returns.
pub(crate) fn run_aside<T: Send>(name: &str, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let spawned = std::thread::Builder::new().name(name.into()).spawn_scoped(scope, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|e| Error::new(Kind::Environment, format!("starting tokio: {e}")))?;
            runtime.block_on(work())
        });
        let joined =
            spawned.map_err(|e| Error::new(Kind::Environment, format!("starting the thread {name}: {e}")))?.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
