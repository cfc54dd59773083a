//! How a command can end badly: with an error to be told, or because nobody reads its output any more.
//!
//! Owns the way from errors of other rooms to the one error type, and from there to exit codes.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use fuelrail::{Error, Kind};

/// Why a command stopped early.
#[derive(Debug)]
pub enum Failure {
    /// An error, not yet printed.
    Told(Error),
    /// The reader of our standard output has gone (`fuelrail ls … | head`): no error, and nobody to tell.
    ReaderGone,
}

/// What a command comes to.
pub type Outcome<T = ExitCode> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Told(error)
    }
}

impl From<fuelrail_bucket::Error> for Failure {
    fn from(error: fuelrail_bucket::Error) -> Failure {
        Failure::Told(of_bucket(&error))
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
    Failure::Told(Error::new(Kind::Usage, cause).with_hint(cure))
}

/// A local file that could not be read or written.
pub fn file(doing: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Told(Error::from_io(Kind::File, format_args!("{doing} {}", path.display()), error))
}

/// Standard output that could not be written.
pub fn output(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::ReaderGone;
    }
    Failure::Told(Error::from_io(Kind::File, "writing to standard output", error))
}
