//! Stands in for the page of metrics in a build without clouds: an error where it is asked for.

use crate::config::Config;
use crate::decode::Facts;
use crate::memory::MemoryStats;
use crate::stats::Tally;
use crate::watch::Shards;
use fuelrail_base::{Error, Kind, Result};
use std::sync::Arc;

/// There is none.
pub(crate) enum Metrics {}

impl Metrics {
    pub(crate) fn start(config: &Config, _: Shards, _: Option<&Arc<Facts>>, _: MemoryStats) -> Result<Option<Metrics>> {
        if config.metrics_listen.is_none() {
            return Ok(None);
        }
        Err(Error::new(Kind::Usage, "this build shows no metrics").with_hint("build it with the feature `clouds`"))
    }

    pub(crate) fn take(&self, _: Tally) {
        match *self {}
    }
}
