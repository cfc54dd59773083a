//! Stands in for `picture` in a build without decoding. Configurations that ask for decoding are rejected before this is called.

use super::cut::{Cut, DrawKey};
use super::{Decode, undecodable};
use fuelrail_base::Result;

pub(super) struct SampleDecoder;

impl SampleDecoder {
    pub(super) fn new(_: Decode) -> SampleDecoder {
        SampleDecoder
    }

    pub(super) fn decode_sample(&mut self, _: &[u8], _: DrawKey, _: &mut [u8]) -> Result<Cut> {
        Err(undecodable("this build does not decode"))
    }
}
