//! The arguments of every command that asks a bucket without a loader: which server a URI means, how it is judged, and who asks.

use std::path::PathBuf;

use clap::Args;
use fuelrail::{Access, Overrides};

use crate::failure::Outcome;

/// How a bucket is reached
#[derive(Args, Debug, Default)]
pub(crate) struct Trust {
    /// Under https, believe the authorities in FILE (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Under https, disable certificate verification (insecure; prints a warning)
    #[arg(long, conflicts_with = "ca_file")]
    tls_insecure: bool,
    /// The region of an s3:// bucket [default: AWS_REGION, else us-east-1]
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// The server that s3://, gs:// and az:// mean, http[s]://HOST[:PORT] [default: AWS_ENDPOINT_URL, else the cloud's own]
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Where requests name the bucket: auto, path or virtual
    #[arg(long, value_name = "HOW")]
    addressing: Option<String>,
    /// Use the keys of this profile of the AWS files
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Sign nothing (true), or also what goes to a plain http or https URI (false)
    #[arg(long, value_name = "BOOL")]
    anonymous: Option<bool>,
    /// Pay for the requests, where the bucket's owner wants that of who asks
    #[arg(long)]
    requester_pays: bool,
}

impl Trust {
    pub(crate) fn access(&self, uri: &str) -> Outcome<Access> {
        Ok(Access::load(uri, fuelrail::environment_variables()?, &self.overrides())?)
    }

    /// What was given, by the names of settings.
    pub(crate) fn overrides(&self) -> Overrides {
        let given = [
            ("ca_file", self.ca_file.as_ref().map(|path| path.display().to_string())),
            ("tls_insecure", self.tls_insecure.then(|| "true".to_owned())),
            ("region", self.region.clone()),
            ("endpoint", self.endpoint.clone()),
            ("addressing", self.addressing.clone()),
            ("profile", self.profile.clone()),
            ("anonymous", self.anonymous.map(|anonymous| anonymous.to_string())),
            ("requester_pays", self.requester_pays.then(|| "true".to_owned())),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}
