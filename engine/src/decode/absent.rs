//! Stands in for `picture` in a build without decoding. Configurations that ask for decoding are rejected before this is called.

use super::cut::{Cut, Occasion};
use super::{Decode, undecodable};
use fuelrail_base::Result;

pub(super) struct Easel;

impl Easel {
    pub(super) fn new(_: Decode) -> Easel {
        Easel
    }

    pub(super) fn paint(&mut self, _: &[u8], _: Occasion, _: &mut [u8]) -> Result<Cut> {
        Err(undecodable("this build does not decode"))
    }
}
