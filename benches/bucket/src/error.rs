//! The crate's error: what went wrong, why, and what to do about it. It holds text only, so it can cross threads.

use core::fmt;

/// What went wrong, by whose move it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument, script or configuration makes no sense. The caller's move.
    Usage,
    /// The operating system refused: address in use, folder unreadable, disk full.
    System,
    /// Bytes differ from what the data set says they must be.
    Mismatch,
    /// The key names no object of the data set.
    NotFound,
}

/// An error with its cause and, where there is one, its cure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    kind: ErrorKind,
    cause: String,
    cure: Option<String>,
}

/// Shorthand used in this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, cause: impl Into<String>) -> Error {
        Error { kind, cause: cause.into(), cure: None }
    }

    pub(crate) fn usage(cause: impl Into<String>) -> Error {
        Error::new(ErrorKind::Usage, cause)
    }

    pub(crate) fn system(doing: impl fmt::Display, error: &std::io::Error) -> Error {
        Error::new(ErrorKind::System, format!("{doing}: {error}"))
    }

    pub(crate) fn cure(mut self, cure: impl Into<String>) -> Error {
        self.cure = Some(cure.into());
        self
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        match &self.cure {
            Some(cure) => write!(f, "; {cure}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for Error {}
