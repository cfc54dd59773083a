//! Arguments of every command that reads a bucket without a loader: server, TLS verification and credentials.

use std::path::PathBuf;

use clap::Args;
use fuelrail::Access;
use serde::Serialize;

use crate::failure::Outcome;
use crate::settings::given;

/// How a bucket is reached
#[derive(Args, Serialize, Clone, Debug, Default)]
pub(crate) struct Trust {
    /// Under https, trust the authorities in FILE (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Under https, disable certificate verification (insecure; prints a warning)
    #[arg(long, conflicts_with = "ca_file")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
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
    /// Pay for the requests, where the bucket requires that of the requester
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    requester_pays: bool,
}

impl Trust {
    pub(crate) fn access(&self, uri: &str) -> Outcome<Access> {
        Ok(Access::load(uri, fuelrail::environment_variables()?, &given(self))?)
    }
}
