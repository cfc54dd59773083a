//! Stands in for `bucket` in a build without clouds.

use super::cache::{KeptListing, ListingDir};
use crate::proxy::Route;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::Source;

pub(super) fn list(
    _: &Route,
    _: &Source,
    _: Option<&ListingDir>,
    _: &mut (impl FnMut(u64) + Send),
) -> Result<KeptListing> {
    Err(Error::new(Kind::Usage, "this build does not list buckets")
        .with_hint("build it with the feature `clouds`, or name the objects in a manifest"))
}

/// Looks nothing up: where the bucket has moved, the first read says so.
pub(super) fn look_up(_: &Route) -> Result<()> {
    Ok(())
}
