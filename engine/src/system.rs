//! What the operating system may refuse, said in one way: threads and files.

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

/// The error for a thread that the system refuses.
pub(crate) fn no_thread(name: &str, error: &std::io::Error) -> Error {
    Error::from_io(Kind::Environment, format_args!("starting the thread {name}"), error)
        .with_hint("raise the limit of threads (ulimit -u, or pids.max of the cgroup)")
}

/// An error of a file or directory that the engine keeps something in.
pub(crate) fn refused(path: &Path, doing: &str, error: &std::io::Error) -> Error {
    let failed = Error::from_io(Kind::File, format_args!("{doing} {}", path.display()), error);
    match failed.hint() {
        Some(_) => failed,
        None => failed.with_hint("look at the kernel's log (dmesg), or use another disk"),
    }
}
