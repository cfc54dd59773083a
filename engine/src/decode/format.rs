//! Shared by all formats: header limits, pixel kinds, and the error for an object that cannot be decoded.

use fuelrail_base::limits::PICTURE_PIXELS_MAX;
use fuelrail_base::{Error, Kind, Result};

/// The pixel layout that a decoder produces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pixels {
    Grey,
    GreyAlpha,
    Rgb,
    RgbAlpha,
}

impl Pixels {
    pub(super) fn bytes(self) -> usize {
        self as usize + 1
    }
}

/// A picture whose header has been read.
pub(super) struct Picture<D> {
    pub width: u32,
    pub height: u32,
    pub pixels: Pixels,
    pub decoder: D,
}

/// The error for an object that is not a decodable picture.
pub(super) fn undecodable(cause: &str) -> Error {
    Error::new(Kind::Undecodable, cause).with_hint("repair or remove the object, or skip it with bad_samples = skip")
}

/// Rejects a header whose size is beyond the limits.
pub(super) fn check_size(width: u32, height: u32) -> Result<()> {
    if u64::from(width) * u64::from(height) <= PICTURE_PIXELS_MAX {
        return Ok(());
    }
    let limit = format!("more than {PICTURE_PIXELS_MAX} are not decoded");
    Err(undecodable(&format!("its header says {width} × {height} pixels; {limit}")))
}
