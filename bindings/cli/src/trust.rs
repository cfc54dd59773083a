//! The arguments of every command that may meet a server over TLS.

use std::path::PathBuf;

use clap::Args;
use fuelrail::Tls;

/// How the certificate of an https server is judged
#[derive(Args, Debug, Default)]
pub(crate) struct Trust {
    /// Under https, believe the authorities in FILE (PEM) instead of the system's
    #[arg(long, value_name = "FILE", env = "FUELRAIL_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// Under https, believe any certificate: for trials only, and every use says so
    #[arg(long, conflicts_with = "ca_file")]
    tls_insecure: bool,
}

impl Trust {
    pub(crate) fn tls(&self) -> Tls {
        Tls { ca_file: self.ca_file.clone(), insecure: self.tls_insecure }
    }
}
