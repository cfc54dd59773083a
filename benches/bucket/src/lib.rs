//! An embedded bucket: an S3-like HTTP/1.1 server in the process that tests and measures a client, serving a folder or a
//! generated data set, and misbehaving on script.
//!
//! ```
//! use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
//!
//! let set = DataSet::digits(100, 7);
//! let bucket = Bucket::start(BucketConfig {
//!     source: Source::Generated(set.clone()),
//!     script: "latency=uniform:1ms..5ms,reset=0.01@512".parse()?,
//!     ..BucketConfig::default()
//! })?;
//! println!("serving {} objects at {}", set.len(), bucket.url("training/"));
//! assert_eq!(bucket.counters().requests(), 0);
//! # Ok::<(), fuelrail_bucket::Error>(())
//! ```
//!
//! Paths (`/bucket/key`) and virtual hosts (`bucket.localhost`): `GET` with `Range`, `If-Match`, `If-None-Match` and `If-Range`,
//! `HEAD`, `PUT` (also `aws-chunked`, also as a copy), `DELETE`, ListObjectsV2 at `GET /bucket?list-type=2`, ListBuckets at `GET /`.
//! Uploads in parts: S3's multipart (and so the one of Google's XML interface), Azure's blocks. Checksums that a `PUT` brings
//! are checked, signatures where a key is set. Keep-alive and pipelining work.
//!
//! Every byte of a generated set is a pure function ([`DataSet::content`], [`DataSet::verify`]), so a reader checks what it
//! got without a second copy. Every drawn fault is a pure function of the script's seed, the key and the attempt.

#![forbid(unsafe_code)]

mod bucket;
mod counters;
mod dataset;
mod pace;
mod random;
mod script;
mod server;
mod store;
mod tls;

pub use bucket::{Bucket, BucketConfig};
pub use counters::Counters;
pub use dataset::{DataSet, SetKind, Written};
pub use script::{Fault, FaultKind, Latency, Script};
pub use server::AccessKey;
pub use store::{Source, UploadLimits};
pub use tls::{Certificate, Tls};

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
