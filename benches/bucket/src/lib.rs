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

mod alarm;
mod bucket;
mod counters;
mod dataset;
mod error;
mod pace;
mod random;
mod script;
mod server;
mod store;
mod tls;

pub use bucket::{Bucket, BucketConfig};
pub use counters::Counters;
pub use dataset::{DataSet, SetKind, Written};
pub use error::{Error, ErrorKind, Result};
pub use script::{Fault, FaultKind, Latency, Script};
pub use server::AccessKey;
pub use store::{Source, UploadLimits};
pub use tls::{Certificate, Tls};
