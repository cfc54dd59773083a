//! How a command fails: with an error to report, or because the reader of its output has closed it.
//!
//! Owns the conversion of other crates' errors to the one error type, and from there to exit codes.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use fuelrail::{Error, Kind};

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
