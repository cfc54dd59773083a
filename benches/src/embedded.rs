//! The embedded bucket, started for a question. Owns nothing.

use fuelrail::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig};

pub(crate) fn start(config: BucketConfig) -> Result<Bucket> {
    Bucket::start(config).map_err(|error| Error::new(Kind::Environment, format!("the embedded bucket: {error}")))
}
