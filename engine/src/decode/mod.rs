//! Decoding as a stage after the shards: turns batches of pictures or sounds into dense batches of numbers, on its own
//! threads, directly in the slot that is delivered.
//!
//! The settings are `Decode`; one file becomes one sample in `picture`, `cut`, `png`, `jpeg` and `sound`; the stage is `stage`
//! and `pool`. It never fetches and never reorders: batches enter and leave in the order of their numbers.

mod cut;
mod facts;
mod function;
#[cfg(feature = "decode")]
mod jpeg;
mod output;
#[cfg_attr(not(feature = "decode"), path = "absent.rs")]
mod picture;
#[cfg(feature = "decode")]
mod png;
mod pool;
#[cfg(feature = "decode")]
mod sound;
mod stage;

#[cfg(feature = "decode")]
pub use picture::PictureDecoder;

use core::fmt;
use core::str::FromStr;

use fuelrail_base::limits::{PICTURE_PIXELS_MAX, SAMPLE_SIDE_MAX, SOUND_FRAMES_MAX};
use fuelrail_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

pub use self::facts::DecodeStats;
pub(crate) use self::facts::Facts;
pub use self::function::{DecodeFunction, KeptBytes, Undecoded};
pub use self::output::{Dtype, PerChannel, PixelLayout};
pub(crate) use self::stage::{DecodeStage, Supply};

/// The pixel format and size of every sample; of sound, which is a row of frames, their number and channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decode {
    /// Rows; 1 of sound.
    pub height: u32,
    /// Pixels per row, or frames of sound.
    pub width: u32,
    /// Bytes per pixel: 1 for grey, 3 for RGB; of sound channels, 1 or 2.
    pub channels: u32,
    /// How pictures of another size are fitted to this one.
    pub fit: Fit,
    /// Mirrors half of the samples left to right, drawn by seed, epoch and sample.
    pub flip: bool,
    /// The type of the numbers.
    pub dtype: Dtype,
    /// The order of the dimensions.
    pub layout: PixelLayout,
    /// Subtracted from pixels of 0 to 1; 0 without one. Not of bytes.
    pub mean: Option<PerChannel>,
    /// What the difference from the mean is divided by; 1 without one. Not of bytes.
    pub std: Option<PerChannel>,
}

impl Decode {
    /// Pictures of exactly this size, never mirrored.
    #[must_use]
    pub fn exact(height: u32, width: u32, channels: u32) -> Decode {
        let (fit, dtype, layout) = (Fit::Exact, Dtype::U8, PixelLayout::Nhwc);
        Decode { height, width, channels, fit, flip: false, dtype, layout, mean: None, std: None }
    }

    /// The size and channels, without fit and flip.
    pub(crate) fn shape(&self) -> PixelShape {
        let Decode { height, width, channels, .. } = *self;
        PixelShape { height, width, channels }
    }

    /// Bytes of one sample.
    #[must_use]
    pub fn sample_bytes(&self) -> u64 {
        self.pixel_bytes() * self.dtype.bytes() as u64
    }

    /// What is subtracted from each channel, and what it is divided by.
    fn normalisation(&self) -> [[f32; 3]; 2] {
        [self.mean.map_or([0.0; 3], PerChannel::values), self.std.map_or([1.0; 3], PerChannel::values)]
    }

    /// Bytes of one sample before its numbers become those of `dtype`.
    fn pixel_bytes(&self) -> u64 {
        u64::from(self.height) * u64::from(self.width) * u64::from(self.channels)
    }

    /// Checks what is beside the shape.
    pub(crate) fn validate(&self) -> Result<()> {
        let normalised = self.mean.is_some() || self.std.is_some();
        let (cause, hint) = if normalised && self.dtype == Dtype::U8 {
            ("decode_mean and decode_std with decode_dtype = u8".to_owned(), "use decode_dtype = f16 or f32")
        } else if let Some(std) = self.std.filter(|std| std.values().iter().any(|&value| value <= 0.0)) {
            (format!("decode_std is '{std}'"), "give the deviation of pixels of 0 to 1, such as 0.229,0.224,0.225")
        } else {
            return self.shape().validate();
        };
        Err(Error::new(Kind::Usage, cause).with_hint(hint))
    }
}

/// Rows, pixels per row and bytes per pixel, or 1, frames and channels of sound; written `HEIGHTxWIDTHxCHANNELS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PixelShape {
    /// Rows.
    pub height: u32,
    /// Pixels per row.
    pub width: u32,
    /// Bytes per pixel: 1 for grey, 3 for RGB.
    pub channels: u32,
}

impl PixelShape {
    /// Checks the sides and channels against the limits.
    pub(crate) fn validate(&self) -> Result<()> {
        // One row may be sound.
        let is_row = self.height == 1;
        let across = if is_row { SOUND_FRAMES_MAX } else { SAMPLE_SIDE_MAX };
        let cause = if !(1..=SAMPLE_SIDE_MAX).contains(&self.height) || !(1..=across).contains(&self.width) {
            format!(
                "decode is '{self}': sides are 1 to {SAMPLE_SIDE_MAX} pixels, a row of sound 1 to {SOUND_FRAMES_MAX} frames"
            )
        } else if !([1, 3].contains(&self.channels) || is_row && self.channels == 2) {
            format!("decode is '{self}': {} channels", self.channels)
        } else {
            return Ok(());
        };
        Err(Error::new(Kind::Usage, cause).with_hint(SHAPE))
    }
}

const SHAPE: &str = "write HEIGHTxWIDTHxCHANNELS with 1 (grey) or 3 (RGB) channels, such as 28x28x1, or 1xFRAMESxCHANNELS of sound; empty delivers the objects' bytes";

impl fmt::Display for PixelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.height, self.width, self.channels)
    }
}

impl FromStr for PixelShape {
    type Err = Error;

    fn from_str(text: &str) -> Result<PixelShape> {
        let numbers: Option<Vec<u32>> = text.split('x').map(|part| part.parse().ok()).collect();
        let Some([height, width, channels]) = numbers.as_deref() else {
            return Err(Error::new(Kind::Usage, format!("decode is '{text}'")).with_hint(SHAPE));
        };
        let shape = PixelShape { height: *height, width: *width, channels: *channels };
        shape.validate().map(|()| shape)
    }
}

/// How a picture is fitted to the requested size, or a sound to the requested length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fit {
    /// A picture of another size, or a sound of another length, is a bad sample.
    #[default]
    Exact,
    /// The picture is resized so that its shorter side covers, and the centre is cut out; so is that of a longer sound, and silence is put
    /// after a shorter one.
    CenterCrop,
    /// A part of 8 to 100 % of the area, with an aspect ratio from 3:4 to 4:3, is drawn by seed, epoch and sample and
    /// resized; of a longer sound, where the part begins.
    RandomCrop,
}

fuelrail_base::named!(
    Fit,
    "a decode_fit":
    Exact = "exact",
    CenterCrop = "center-crop",
    RandomCrop = "random-crop",
);

/// The shape of a decoded batch: contiguous numbers of one type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// Samples in the batch.
    pub samples: usize,
    /// Rows per sample.
    pub height: usize,
    /// Pixels per row.
    pub width: usize,
    /// Numbers per pixel.
    pub channels: usize,
    /// The type of the numbers.
    #[serde(default)]
    pub dtype: Dtype,
    /// The order of the dimensions.
    #[serde(default)]
    pub layout: PixelLayout,
}

impl Shape {
    /// Of so many samples, each as `decode` says.
    #[must_use]
    pub fn new(samples: usize, decode: &Decode) -> Shape {
        Shape {
            samples,
            height: decode.height as usize,
            width: decode.width as usize,
            channels: decode.channels as usize,
            dtype: decode.dtype,
            layout: decode.layout,
        }
    }

    /// The lengths of the four dimensions, as they lie in memory: those of `layout`.
    #[must_use]
    pub fn dims(&self) -> [usize; 4] {
        let Shape { samples, height, width, channels, .. } = *self;
        match self.layout {
            PixelLayout::Nhwc => [samples, height, width, channels],
            PixelLayout::Nchw => [samples, channels, height, width],
        }
    }
}

/// The pixel layout that a decoder produces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pixels {
    Grey,
    GreyAlpha,
    Rgb,
    RgbAlpha,
    /// Cyan, magenta, yellow and black, inverted.
    Cmyk,
}

impl Pixels {
    fn bytes(self) -> usize {
        match self {
            Pixels::Grey => 1,
            Pixels::GreyAlpha => 2,
            Pixels::Rgb => 3,
            Pixels::RgbAlpha | Pixels::Cmyk => 4,
        }
    }
}

/// A picture whose header has been read.
struct Picture<D> {
    pub width: u32,
    pub height: u32,
    pub pixels: Pixels,
    pub decoder: D,
}

/// The error for an object that is no decodable picture or sound.
fn undecodable(cause: &str) -> Error {
    Error::new(Kind::Undecodable, cause).with_hint("repair or remove the object, or skip it with bad_samples = skip")
}

/// Rejects a header whose size is beyond the limits.
fn check_size(width: u32, height: u32) -> Result<()> {
    if u64::from(width) * u64::from(height) <= PICTURE_PIXELS_MAX {
        return Ok(());
    }
    let limit = format!("more than {PICTURE_PIXELS_MAX} are not decoded");
    Err(undecodable(&format!("its header says {width} × {height} pixels; {limit}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_read_back_and_wrong_ones_are_refused_with_a_cure() {
        let shape: PixelShape = "28x30x1".parse().unwrap();
        assert_eq!(shape, PixelShape { height: 28, width: 30, channels: 1 });
        assert_eq!(shape.to_string(), "28x30x1");
        assert_eq!(Decode::exact(28, 30, 1).sample_bytes(), 840);
        for bad in
            ["28", "28x28", "28x28x2", "28x28x4", "0x28x1", "28x0x1", "28x99999x3", "axbxc", "28x28x1x1", "-1x2x3"]
        {
            let error = bad.parse::<PixelShape>().unwrap_err();
            assert!(error.kind() == Kind::Usage && error.to_string().contains("HEIGHTxWIDTHxCHANNELS"), "{error}");
        }
    }
}
