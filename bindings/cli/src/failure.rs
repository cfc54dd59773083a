//! How a command ends early: with an error to report, because the reader of its output has closed it, or because it is asked to stop.
//!
//! Owns the conversion of other crates' errors to the one error type.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fuelrail::{Error, Kind, Result};

/// Why a command stopped early.
#[derive(Debug)]
pub enum Failure {
    /// An error, not yet printed.
    Error(Error),
    /// The reader of standard output has closed it (`fuelrail ls … | head`): not an error.
    ReaderGone,
}

/// What a command comes to.
pub type Outcome<T = ExitCode> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

impl From<fuelrail_bucket::Error> for Failure {
    fn from(error: fuelrail_bucket::Error) -> Failure {
        Failure::Error(of_bucket(&error))
    }
}

/// An error of the embedded bucket or its generator, in the one error type.
pub(crate) fn of_bucket(error: &fuelrail_bucket::Error) -> Error {
    use fuelrail_bucket::ErrorKind;
    let kind = match error.kind() {
        ErrorKind::Usage => Kind::Usage,
        // A port that is taken or not ours, threads that cannot be started: the machine says no.
        ErrorKind::System => Kind::Environment,
        ErrorKind::NotFound => Kind::NotFound,
        _ => Kind::Mismatch,
    };
    Error::new(kind, error.to_string())
}

/// Wrong use of the command line.
pub fn usage(cause: impl Into<String>, cure: impl Into<String>) -> Failure {
    Failure::Error(Error::new(Kind::Usage, cause).with_hint(cure))
}

/// A local file that could not be read or written.
pub fn file(doing: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Error(Error::from_io(Kind::File, format_args!("{doing} {}", path.display()), error))
}

/// Standard output that could not be written.
pub fn output(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::ReaderGone;
    }
    Failure::Error(Error::from_io(Kind::File, "writing to standard output", error))
}

/// A flag that many hold: once raised, every wait of the harness ends with `Cancelled`.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    /// Uploads under way.
    uploads: Arc<AtomicUsize>,
}

impl Stop {
    /// Requests a stop.
    pub fn ask(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// `Cancelled` once a stop was requested.
    pub fn check(&self) -> Result<()> {
        if self.is_asked() { Err(interrupted()) } else { Ok(()) }
    }

    /// Whether a stop was requested.
    pub fn is_asked(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Whether an upload is under way.
    pub(crate) fn is_uploading(&self) -> bool {
        self.uploads.load(Ordering::Relaxed) > 0
    }

    /// Runs an upload, which is given the time to remove its parts when a signal ends the command.
    pub(crate) fn uploading<T>(&self, upload: impl FnOnce() -> T) -> T {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        let uploaded = upload();
        self.uploads.fetch_sub(1, Ordering::Relaxed);
        uploaded
    }
}

pub(crate) fn interrupted() -> Error {
    Error::new(Kind::Cancelled, "interrupted")
}
