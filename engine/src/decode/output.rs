//! Turns a sample's bytes of colour into the numbers that are delivered: their type, order and normalisation.

use core::fmt;
use core::str::FromStr;

use fuelrail_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::Decode;

/// The type of a decoded sample's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Bytes, 0 to 255.
    #[default]
    U8,
    /// IEEE 754 half precision; 0 to 1 unless normalised.
    F16,
    /// IEEE 754 single precision; 0 to 1 unless normalised.
    F32,
}

fuelrail_base::named!(Dtype, "a decode_dtype": U8 = "u8", F16 = "f16", F32 = "f32");

impl Dtype {
    /// Bytes of one number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Dtype::U8 => 1,
            Dtype::F16 => 2,
            Dtype::F32 => 4,
        }
    }
}

/// The order of a decoded batch's dimensions in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PixelLayout {
    /// Samples × rows × pixels × channels.
    #[default]
    Nhwc,
    /// Samples × channels × rows × pixels, as PyTorch's layers take them.
    Nchw,
}

fuelrail_base::named!(PixelLayout, "a decode_layout": Nhwc = "nhwc", Nchw = "nchw");

/// A number for each channel, of pixels from 0 to 1; written `0.485,0.456,0.406`, or `0.5` for all channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerChannel([u32; 3]);

impl PerChannel {
    /// Red, green and blue; grey is the first.
    #[must_use]
    pub fn new(values: [f32; 3]) -> PerChannel {
        PerChannel(values.map(f32::to_bits))
    }

    /// What it was made of.
    #[must_use]
    pub fn values(self) -> [f32; 3] {
        self.0.map(f32::from_bits)
    }
}

impl fmt::Display for PerChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [red, green, blue] = self.values();
        if red == green && green == blue { write!(f, "{red}") } else { write!(f, "{red},{green},{blue}") }
    }
}

impl FromStr for PerChannel {
    type Err = Error;

    fn from_str(text: &str) -> Result<PerChannel> {
        let number = |part: &str| part.trim().parse().ok().filter(|number: &f32| number.is_finite());
        match text.split(',').map(number).collect::<Option<Vec<f32>>>().as_deref() {
            Some(&[all]) => Ok(PerChannel::new([all; 3])),
            Some(&[red, green, blue]) => Ok(PerChannel::new([red, green, blue])),
            _ => Err(Error::new(Kind::Usage, format!("'{text}' is not a number for each channel"))
                .with_hint("write one number, or three as in 0.485,0.456,0.406")),
        }
    }
}

/// What each of the 256 values of each channel becomes.
pub(super) struct Numbers {
    wanted: Decode,
    /// The bytes of each number, of which the type has the first.
    table: Box<[[[u8; 4]; 256]; 3]>,
}

impl Numbers {
    /// `None` where samples are delivered as they are decoded.
    pub(super) fn new(wanted: Decode) -> Option<Numbers> {
        if (wanted.dtype, wanted.layout) == Default::default() {
            return None;
        }
        let [mean, std] = wanted.normalisation();
        let mut table = Box::new([[[0; 4]; 256]; 3]);
        for (channel, numbers) in table.iter_mut().enumerate() {
            for (value, bytes) in (0..=u8::MAX).zip(numbers) {
                let number = (f32::from(value) / 255.0 - mean[channel]) / std[channel];
                match wanted.dtype {
                    Dtype::U8 => bytes[0] = value,
                    Dtype::F16 | Dtype::F32 => write_number(wanted.dtype, number, bytes),
                }
            }
        }
        Some(Numbers { wanted, table })
    }

    /// Writes the sample's `pixels`, row by row, to `out`.
    pub(super) fn write(&self, pixels: &[u8], out: &mut [u8]) {
        match self.wanted.dtype {
            Dtype::U8 => self.write_as::<1>(pixels, out),
            Dtype::F16 => self.write_as::<2>(pixels, out),
            Dtype::F32 => self.write_as::<4>(pixels, out),
        }
    }

    fn write_as<const BYTES: usize>(&self, pixels: &[u8], out: &mut [u8]) {
        let channels = self.wanted.channels as usize;
        let plane = pixels.len() / channels * BYTES;
        for (channel, table) in self.table[..channels].iter().enumerate() {
            let (first, step) = match self.wanted.layout {
                PixelLayout::Nhwc => (channel * BYTES, channels * BYTES),
                PixelLayout::Nchw => (channel * plane, BYTES),
            };
            let places = out[first..].chunks_mut(step);
            for (place, pixel) in places.zip(pixels.chunks_exact(channels)) {
                place[..BYTES].copy_from_slice(&table[usize::from(pixel[channel])][..BYTES]);
            }
        }
    }
}

/// Writes a number in half precision to the first two bytes, or in single to the first four.
pub(super) fn write_number(dtype: Dtype, number: f32, to: &mut [u8]) {
    match dtype {
        Dtype::F16 => to[..2].copy_from_slice(&half(number).to_ne_bytes()),
        Dtype::U8 | Dtype::F32 => to[..4].copy_from_slice(&number.to_ne_bytes()),
    }
}

/// The bits of a finite number in half precision, rounded to the nearest, ties to even.
fn half(number: f32) -> u16 {
    let sign = (number.to_bits() >> 16 & 0x8000) as u16;
    let size = number.abs();
    let bits = if size >= 65_520.0 {
        0x7C00
    } else if size < 2f32.powi(-14) {
        // Subnormal: multiples of 2^-24.
        (size * 2f32.powi(24)).round_ties_even() as u16
    } else {
        let bits = size.to_bits();
        let rounded = bits + 0xFFF + (bits >> 13 & 1);
        // The exponents' biases are 127 and 15.
        ((rounded >> 13) - (112 << 10)) as u16
    };
    sign | bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_the_nearest() {
        let known = [
            (0.0, 0),
            (-1.0, 0xBC00),
            (1.0, 0x3C00),
            (0.1, 0x2E66),
            (1.0 / 255.0, 0x1C04),
            (-2.117_904, 0xC03C),
            (65_504.0, 0x7BFF),
            (65_520.0, 0x7C00),
            (6.0e-8, 1),
            (1.0 + 1.0 / 2048.0, 0x3C00),
            (1.0 + 3.0 / 2048.0, 0x3C02),
        ];
        for (number, bits) in known {
            assert_eq!(half(number), bits, "{number}");
        }
    }

    #[test]
    fn numbers_for_channels_read_back_and_wrong_ones_are_refused() {
        for text in ["0.5", "0.485,0.456,0.406"] {
            assert_eq!(text.parse::<PerChannel>().unwrap().to_string(), text);
        }
        for text in ["", "0.1,0.2", "1,2,3,4", "a", "NaN", "inf"] {
            assert_eq!(text.parse::<PerChannel>().unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }
}
