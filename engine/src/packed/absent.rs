//! Shards that have to be unpacked, in a build without the feature `formats`: there are none.

use crate::records::{Format, Read};
use fuelrail_base::Result;
use fuelrail_flow::{ByteRange, Listing};

/// The shards of a data set that have to be unpacked.
#[derive(Debug)]
pub(crate) enum PackedShards {}

/// What is unpacked together.
#[derive(Debug)]
pub(crate) struct Part {
    pub first: u64,
    pub ranges: Vec<ByteRange>,
}

impl PackedShards {
    pub(crate) fn find(_: Option<Format>, _: &Listing, _: &[String], _: Read<'_>) -> Result<Option<PackedShards>> {
        Ok(None)
    }

    pub(crate) fn parts(&self) -> &[Part] {
        match *self {}
    }

    pub(crate) fn unpacked(&self, _: &Part, _: Vec<Vec<u8>>) -> Result<Vec<u8>> {
        match *self {}
    }
}
