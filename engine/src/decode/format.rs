//! What every format has in common: a header that is compared with the limits before it is believed, pixels, and the error
//! of an object that is not the picture that was asked for.

use fuelrail_base::limits::PICTURE_PIXELS_MAX;
use fuelrail_base::{Error, Kind};

/// What a decoder makes of a pixel.
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

/// An object that is not the picture that was asked for.
pub(super) fn undecodable(cause: &str) -> Error {
    Error::new(Kind::Undecodable, cause).cure("mend or remove the object, or leave it out with bad_samples = skip")
}

/// A header that is not believed.
pub(super) fn too_large(width: u32, height: u32) -> Option<Error> {
    let pixels = u64::from(width) * u64::from(height);
    (pixels > PICTURE_PIXELS_MAX).then(|| {
        undecodable(&format!(
            "its header says {width} × {height} pixels; more than {PICTURE_PIXELS_MAX} are not decoded"
        ))
    })
}
