//! What the operating system may refuse, said in one way: threads and files; and random numbers.

use std::fmt::{Debug, Display};
use std::fs::DirBuilder;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use fuelrail_base::{Error, Kind, Result, canary};
use fuelrail_flow::Consumer;
use fuelrail_io::OwnDirectory;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Starts a thread of this name.
///
/// # Errors
/// `Environment` when the system refuses it.
pub(crate) fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work).map_err(|e| no_thread(name, &e))
}

/// Starts a thread of this name whose error or panic fails the run, since batches that it held would never arrive. `what` it is stands in the
/// message.
///
/// # Errors
/// As [`spawn`].
pub(crate) fn spawn_guarded(
    run: &Arc<Consumer>,
    name: &str,
    what: &'static str,
    work: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<JoinHandle<()>> {
    let run = Arc::clone(run);
    spawn(name, canary::inherited(move || _ = run.failure.guard(what, work)))
}

/// The error for a thread that the system refuses.
pub(crate) fn no_thread(name: &str, error: &std::io::Error) -> Error {
    Error::from_io(Kind::Environment, format_args!("starting the thread {name}"), error)
        .with_hint("raise the limit of threads (ulimit -u, or pids.max of the cgroup)")
}

/// A number that no other process draws, of this machine or another.
pub(crate) fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The process has no descriptor left.
pub(crate) const EMFILE: i32 = 24;
/// The system has none.
const ENFILE: i32 = 23;

/// The error where no further file can be open, with what to do; `None` for any other.
pub(crate) fn no_more_files(doing: impl Display, error: &std::io::Error) -> Option<Error> {
    let hint = match error.raw_os_error()? {
        EMFILE => "raise the limit of open files (ulimit -n)",
        ENFILE => "raise the system's limit of open files (sysctl fs.file-max)",
        _ => return None,
    };
    Some(Error::from_io(Kind::Environment, doing, error).with_hint(hint))
}

/// An error of a file or directory that the engine keeps something in; `Environment` where no further file can be open.
pub(crate) fn refused(path: &Path, doing: &str, error: &std::io::Error) -> Error {
    let doing = format!("{doing} {}", path.display());
    let failed = no_more_files(&doing, error).unwrap_or_else(|| Error::from_io(Kind::File, doing, error));
    let hint = "look at the kernel's log (dmesg), or use another disk";
    if failed.hint().is_some() { failed } else { failed.with_hint(hint) }
}

/// Opens this user's directory in `dir`, which a setting names, and makes what of the two is missing: `dir` with a notice, and only in a
/// directory that is there, since a path to a file system that is not mounted would fill another disk.
///
/// # Errors
/// `File` naming what is missing, a file, or another user's.
pub(crate) fn own_directory(setting: &str, dir: &Path, notices: &mut Vec<String>) -> Result<OwnDirectory> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => notices.push(format!("{setting}: made {}", dir.display())),
        Err(error) if !dir.is_dir() => return Err(not_made(dir, &error)),
        Err(_) => {}
    }
    OwnDirectory::open(dir)
}

/// Writes a file in the place of what is there, whole or not at all.
///
/// # Errors
/// What the disk refuses; what was there stays then.
#[cfg(any(feature = "clouds", feature = "formats"))]
pub(crate) fn replace_file(own: &OwnDirectory, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    // Containers that share a directory have the same process ids.
    let new = format!("{name}-{:x}-{:x}", std::process::id(), random_number());
    let written = own.make_file(&new)?.write_all(bytes);
    written.and_then(|()| own.rename(&new, name)).inspect_err(|_| drop(own.remove(&new)))
}

fn not_made(dir: &Path, error: &std::io::Error) -> Error {
    let failed = |cause: String, hint: &str| Error::new(Kind::File, cause).with_hint(hint);
    if let Some(file) = dir.ancestors().find(|path| path.exists()).filter(|path| !path.is_dir()) {
        let cause = format!("{} is a file, not a directory", file.display());
        return failed(cause, "name a directory, or move the file away");
    }
    match dir.parent().filter(|above| error.kind() == ErrorKind::NotFound && !above.exists()) {
        Some(above) => failed(
            format!("{} does not exist, so that {} is not made in it", above.display(), dir.display()),
            "mount its file system, or make it: of a path only the last directory is made",
        ),
        None => refused(dir, "making", error),
    }
}

/// Prints the warnings and errors that this library gives to `tracing` to standard error, a line `fuelrail: warning: …` each. Without it,
/// and without a subscriber of the program's own, they are lost; where the program has set one already, nothing changes.
pub fn print_warnings() {
    // If standard error is closed, there is nowhere to report.
    on_warning(|text| drop(writeln!(std::io::stderr().lock(), "fuelrail: warning: {text}")));
}

/// Calls `act` with each warning and error that this library gives to `tracing`, on the thread that gives it. Where the program has set a
/// subscriber already, nothing changes.
pub fn on_warning(act: impl Fn(&str) + Send + Sync + 'static) {
    drop(tracing::subscriber::set_global_default(Handler(act)));
}

struct Handler<F>(F);

impl<F: Fn(&str) + Send + Sync + 'static> Subscriber for Handler<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("fuelrail")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(&self.0));
    }

    // There are no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Message<'a, F>(&'a F);

impl<F: Fn(&str)> Visit for Message<'_, F> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            (self.0)(&format!("{value:?}"));
        }
    }
}
