//! JPEG, by `zune-jpeg`: baseline and progressive; YCbCr, RGB, grey, CMYK and YCCK. Orientation in EXIF is not applied.
//!
//! The decoder would rather show half a picture than none. A trainer must know instead: a file without its end is refused
//! before it is decoded, and what is wrong inside the pixels is an error.

use super::picture::{Header, Picture, Pixels, too_large, undecodable};
use fuelrail_base::{Error, Result};
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// What comes first in every file.
pub(super) const SIGNATURE: [u8; 3] = [0xFF, 0xD8, 0xFF];
const END: [u8; 2] = [0xFF, 0xD9];
const SIDE_MAX: usize = u16::MAX as usize;

pub(super) struct Jpeg<'a> {
    decoder: JpegDecoder<ZCursor<&'a [u8]>>,
    header: Header,
    pixels: Pixels,
}

impl<'a> Jpeg<'a> {
    /// Reads as far as the pixels. `grey` where colour is not wanted.
    pub(super) fn open(bytes: &'a [u8], grey: bool) -> Result<Jpeg<'a>> {
        if !has_end(bytes) {
            return Err(undecodable("the JPEG ends before its end marker: it is truncated"));
        }
        // Oddities between the headers are common and harmless.
        let lenient = DecoderOptions::default().set_max_width(SIDE_MAX).set_max_height(SIDE_MAX).set_strict_mode(false);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), lenient);
        decoder.decode_headers().map_err(|e| failed(&e))?;
        let (width, height) = decoder.dimensions().ok_or_else(|| undecodable("the JPEG says no size"))?;
        let header = Header { width: width as u32, height: height as u32 };
        if let Some(error) = too_large(header.width, header.height) {
            return Err(error);
        }
        let pixels = match decoder.input_colorspace() {
            Some(ColorSpace::Luma) => Pixels::Grey,
            Some(ColorSpace::YCbCr) if grey => Pixels::Grey,
            Some(ColorSpace::YCbCr | ColorSpace::RGB | ColorSpace::CMYK | ColorSpace::YCCK) => Pixels::Rgb,
            other => return Err(undecodable(&format!("the JPEG's colours are not known: {other:?}"))),
        };
        let out = if pixels == Pixels::Grey { ColorSpace::Luma } else { ColorSpace::RGB };
        // Inside the pixels nothing is forgiven: what is lost would be filled with grey.
        decoder.set_options(lenient.set_strict_mode(true).jpeg_set_out_colorspace(out));
        Ok(Jpeg { decoder, header, pixels })
    }
}

impl Picture for Jpeg<'_> {
    fn header(&self) -> Header {
        self.header
    }

    fn pixels(&self) -> Pixels {
        self.pixels
    }

    fn decode_into(&mut self, out: &mut [u8]) -> Result<()> {
        self.decoder.decode_into(out).map_err(|e| failed(&e))
    }
}

/// Whether the end marker comes behind the start of the pixels. It cannot be among them; a thumbnail in the headers has one
/// of its own.
fn has_end(bytes: &[u8]) -> bool {
    bytes.ends_with(&END) || pixels_at(bytes).is_some_and(|at| bytes[at..].windows(END.len()).any(|pair| pair == END))
}

/// Where the first scan begins: behind the segments, whose lengths are walked.
fn pixels_at(bytes: &[u8]) -> Option<usize> {
    const SCAN: u8 = 0xDA;
    let mut at = 2;
    loop {
        match *bytes.get(at..at + 4)? {
            [0xFF, 0xFF, ..] => at += 1,
            [0xFF, SCAN, ..] => return Some(at),
            [0xFF, _, high, low] => at += 2 + usize::from(u16::from_be_bytes([high, low])),
            _ => at += 1,
        }
    }
}

fn failed(error: &DecodeErrors) -> Error {
    match error {
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => {
            undecodable("the JPEG ends before its last pixel: it is truncated")
        }
        DecodeErrors::Unsupported(scheme) => {
            undecodable(&format!("the JPEG is of a kind nobody here reads: {scheme:?}"))
                .cure("encode it anew as baseline or progressive JPEG, or leave it out with bad_samples = skip")
        }
        other => undecodable(&format!("the JPEG is damaged: {other}")),
    }
}
