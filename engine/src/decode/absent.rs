//! In the place of `picture` in a build that does not decode. Settings that want it are refused before any of this is called.

use super::Decode;
use super::cut::Occasion;
use super::format::undecodable;
use fuelrail_base::Result;

pub(super) struct Easel;

impl Easel {
    pub(super) fn new(_: Decode) -> Easel {
        Easel
    }

    pub(super) fn paint(&mut self, _: &[u8], _: Occasion, _: &mut [u8]) -> Result<()> {
        Err(undecodable("this build does not decode"))
    }
}
