//! What every rival is told on its command line: what to read, and how the harness wants it read.
//!
//! Owns those options. Never reads the files they name.

use std::path::PathBuf;

use clap::Args;

use crate::bucket::Bucket;
use crate::flaw::Result;

/// The options.
#[derive(Args, Debug)]
pub(crate) struct Set {
    /// Where the objects are: http[s]://HOST:PORT/BUCKET/
    #[arg(long)]
    pub(crate) uri: String,
    /// The objects, as key<TAB>size lines
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: PathBuf,
    /// Objects per batch
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) batch_size: usize,
    /// Memory the bytes are placed in, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 20)]
    pub(crate) arena: usize,
    /// Chooses the order
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// The authorities to trust, as PEM, instead of the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Connections, or requests at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) connections: u16,
}

impl Set {
    /// The bucket that is read.
    ///
    /// # Errors
    /// When the URI is none of a bucket.
    pub(crate) fn bucket(&self) -> Result<Bucket> {
        Ok(Bucket { ca_file: self.ca_file.clone(), ..self.uri.parse()? })
    }
}
