//! Command-line arguments as settings of a loader, and how a bucket is reached.

use std::path::{Path, PathBuf};

use clap::Args;
use fuelrail::{Access, BadSamples, ByteSize, Config, Format, Kind, LoaderBuilder, Overrides, Result};
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Outcome, usage};

/// The fields that were given, by their names; what is absent or skipped is left to environment, file and default.
pub(crate) fn given(arguments: &impl Serialize) -> Overrides {
    let fields = serde_json::to_value(arguments).expect("arguments are plain structures");
    let text = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    fields.as_object().into_iter().flatten().filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

/// The configuration: what was given over the environment over the file over the defaults.
pub(crate) fn load(file: Option<&Path>, given: &Overrides) -> Outcome<Config> {
    // The user names the file: one that cannot be read is a usage error.
    Config::load(file, fuelrail::environment_variables()?, given).map_err(|error| match error.kind() {
        Kind::File => usage(error.cause(), "give a TOML file that can be read"),
        _ => error.into(),
    })
}

/// Reads every object, or every record of `format`, once and in order. Ignores trainer settings (ranks, order, decoding, spill) from the
/// environment.
pub(crate) fn once(mut config: Config, format: Option<Format>) -> LoaderBuilder {
    if format != config.format {
        config = config.without_format();
    }
    (config.epochs, config.rank, config.world, config.format) = (1, 0, 1, format);
    (config.order, config.decode, config.peers, config.disk) = Default::default();
    config.order.shuffle = false;
    config.bad_samples = BadSamples::Raise;
    (config.audit, config.metrics_listen, config.label_field) = (None, None, None);
    (config.classes, config.fields) = (Vec::new(), Vec::new());
    if format != Some(Format::Objects) {
        config.side_cars.clear();
    }
    config.network.shared_read = false;
    config.memory.cache_limit = ByteSize(0);
    LoaderBuilder::new(config)
}

/// Objects longer than this come in pieces, …
pub(crate) const WHOLE_BYTES: u64 = 64 << 20;
/// … of this length.
pub(crate) const PIECE_BYTES: u64 = 8 << 20;
/// A batch holds about so much, and at most so many samples.
const BATCH_BYTES: u64 = 64 << 20;
const BATCH_SAMPLES_MAX: u64 = 256;

/// How many samples of at most so many bytes make a batch.
pub(crate) fn batch_samples(longest: u64) -> u32 {
    (BATCH_BYTES / longest.max(1)).clamp(1, BATCH_SAMPLES_MAX) as u32
}

/// Reads a size as the bytes it has.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn bytes(text: &str) -> Result<u64> {
    text.parse::<ByteSize>().map(|size| size.0)
}

/// A path from the root: in a setting a relative one is refused, because ranks may start elsewhere; of a command it is meant from here.
///
/// # Errors
/// An empty path.
pub(crate) fn from_here(text: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(text)
}

/// The folder or prefix that was named, as the engine reads it.
pub(crate) fn located(text: &str) -> Outcome<String> {
    if text.contains("://") {
        return Ok(text.to_owned());
    }
    let path = std::path::absolute(text)
        .map_err(|error| usage(format!("'{text}' is not a path: {error}"), "name a folder or a URI"))?;
    let slash = if path.is_dir() && !text.ends_with('/') { "/" } else { "" };
    Ok(format!("{}{slash}", path.display()))
}

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
