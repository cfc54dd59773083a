//! What the operating system may refuse, said in one way: threads, their runtimes, and files.

use fuelrail_base::{Error, Kind, Result};
use std::path::Path;
use std::thread::{Builder, JoinHandle};

/// Starts a thread of this name.
///
/// # Errors
/// `Environment` when the system refuses it.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(work).map_err(|e| no_thread(name, &e))
}

/// Runs `work` in a runtime of its own on a thread of this name, and waits for it: callers may be inside another runtime.
pub(crate) fn on_thread<T: Send>(name: &str, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let spawned = Builder::new().name(name.into()).spawn_scoped(scope, || runtime()?.block_on(work()));
        let joined = spawned.map_err(|e| no_thread(name, &e))?.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn no_thread(name: &str, error: &std::io::Error) -> Error {
    Error::from_io(Kind::Environment, format_args!("starting the thread {name}"), error)
        .with_hint("raise the limit of threads (ulimit -u, or pids.max of the cgroup)")
}

/// A runtime of this thread alone.
///
/// # Errors
/// `Environment` when the system refuses it.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| Error::from_io(Kind::Environment, "starting tokio", e))
}

/// An error of a file or directory that the engine keeps something in.
pub(crate) fn refused(path: &Path, doing: &str, error: &std::io::Error) -> Error {
    let failed = Error::from_io(Kind::File, format_args!("{doing} {}", path.display()), error);
    match failed.hint() {
        Some(_) => failed,
        None => failed.with_hint("look at the kernel's log (dmesg), or use another disk"),
    }
}
