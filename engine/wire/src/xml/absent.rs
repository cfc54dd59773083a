//! Stands in for `walk` in a build without clouds, where nothing but errors are XML.

use super::Visit;
use fuelrail_base::{Error, Kind, Result};

pub(crate) fn walk(_: &[u8], _: &mut impl Visit) -> Result<()> {
    Err(Error::new(Kind::Protocol, "this build does not read XML").with_hint("build it with the feature `clouds`"))
}
