//! The arguments of every command that speaks to a bucket by itself: whom it believes over TLS, and as whom it asks.

use std::path::PathBuf;

use clap::Args;
use fuelrail::{Access, Credentials, Tls};

/// How the certificate of an https server is judged, and who asks
#[derive(Args, Debug, Default)]
pub(crate) struct Trust {
    /// Under https, believe the authorities in FILE (PEM) instead of the system's
    #[arg(long, value_name = "FILE", env = "FUELRAIL_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// Under https, believe any certificate: for trials only, and every use says so
    #[arg(long, conflicts_with = "ca_file")]
    tls_insecure: bool,
    /// Sign requests for this region
    #[arg(long, env = "FUELRAIL_REGION")]
    region: Option<String>,
    /// Use the keys of this profile of the AWS files
    #[arg(long, env = "FUELRAIL_PROFILE")]
    profile: Option<String>,
    /// Sign nothing (true), or also what goes to a plain http or https URI (false)
    #[arg(long, value_name = "BOOL", env = "FUELRAIL_ANONYMOUS")]
    anonymous: Option<bool>,
    /// Pay for the requests, where the bucket's owner wants that of who asks
    #[arg(long)]
    requester_pays: bool,
}

impl Trust {
    pub(crate) fn access(&self) -> Access {
        let credentials = Credentials {
            region: self.region.clone(),
            profile: self.profile.clone(),
            anonymous: self.anonymous,
            requester_pays: self.requester_pays,
            ..Credentials::default()
        };
        Access { tls: Tls { ca_file: self.ca_file.clone(), insecure: self.tls_insecure }, credentials }
    }
}
