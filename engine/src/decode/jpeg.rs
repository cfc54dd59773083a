//! JPEG through `zune-jpeg`: baseline and progressive; YCbCr, RGB, grey, CMYK and YCCK. EXIF orientation is not applied.
//!
//! The decoder prefers half a picture to an error; training needs the error. A file without an end marker is rejected
//! before it is decoded, and damage inside the pixel data is an error, as is a file with fewer pixels than its header
//! says (see `until_the_end`).

use super::{Picture, Pixels, check_size, undecodable};
use fuelrail_base::{Error, Result};
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// The first bytes of every file.
pub(super) const SIGNATURE: [u8; 3] = [0xFF, 0xD8, 0xFF];
const END: [u8; 2] = [0xFF, 0xD9];
const SIDE_MAX: usize = u16::MAX as usize;

pub(super) type Jpeg<'a> = Picture<JpegDecoder<ZCursor<&'a [u8]>>>;

/// Reads the headers, up to the pixels. `grey` drops colour; `scratch` holds a rewritten form of the file.
pub(super) fn open<'a>(bytes: &'a [u8], grey: bool, scratch: &'a mut Vec<u8>) -> Result<Jpeg<'a>> {
    let outline = Outline::of(bytes);
    if let Some(kind) = outline.frame.and_then(foreign) {
        return Err(unread(kind));
    }
    if outline.finer_later {
        return Err(unread("its first component is subsampled"));
    }
    let Some(end) = outline.end(bytes) else {
        return Err(undecodable("the JPEG ends before its end marker: it is truncated"));
    };
    let bytes = if outline.is_one_stretch() { until_the_end(bytes, end, scratch) } else { bytes };
    // Irregularities between the headers are common and harmless.
    let lenient = DecoderOptions::default().set_max_width(SIDE_MAX).set_max_height(SIDE_MAX).set_strict_mode(false);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), lenient);
    decoder.decode_headers().map_err(|e| failed(&e))?;
    let (width, height) = decoder.dimensions().ok_or_else(|| undecodable("the JPEG header has no size"))?;
    let (width, height) = (width as u32, height as u32);
    check_size(width, height)?;
    let pixels = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => Pixels::Grey,
        Some(ColorSpace::YCbCr) if grey => Pixels::Grey,
        Some(ColorSpace::YCbCr | ColorSpace::RGB | ColorSpace::CMYK | ColorSpace::YCCK) => Pixels::Rgb,
        other => return Err(undecodable(&format!("unsupported JPEG colour space: {other:?}"))),
    };
    let out = if pixels == Pixels::Grey { ColorSpace::Luma } else { ColorSpace::RGB };
    // Inside the pixel data every error counts: the decoder would fill what is missing with grey.
    decoder.set_options(lenient.set_strict_mode(true).jpeg_set_out_colorspace(out));
    Ok(Picture { width, height, pixels, decoder })
}

/// Decodes into `out`, whose length must be what size and pixel kind give.
pub(super) fn decode(picture: &mut Jpeg<'_>, out: &mut [u8]) -> Result<()> {
    picture.decoder.decode_into(out).map_err(|e| failed(&e))
}

/// What a walk over the headers finds, without decoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Outline {
    /// The frame's marker: how the picture is encoded.
    frame: Option<u8>,
    /// Where the first scan begins.
    pixels_at: Option<usize>,
    /// The first scan holds all components, without interruption.
    whole_scan: bool,
    restarts: bool,
    /// A later component is sampled more finely than the first: no encoder does that, and the decoder panics.
    finer_later: bool,
}

impl Outline {
    fn of(bytes: &[u8]) -> Outline {
        let mut outline = Outline::default();
        let (mut at, mut components) = (2, None);
        while let Some(&[first, marker, high, low]) = bytes.get(at..at + 4) {
            match (first, marker) {
                (0xFF, 0xDA) => {
                    outline.pixels_at = Some(at);
                    outline.whole_scan = components.is_some() && bytes.get(at + 4).copied() == components;
                    break;
                }
                // Fill bytes, and irregularities between the headers.
                (0xFF, 0x00 | 0xFF) | (..=0xFE, _) => at += 1,
                _ => {
                    // Huffman tables, the JPG extension and arithmetic conditioning have numbers among those of the frames.
                    if (0xC0..=0xCF).contains(&marker) && ![0xC4, 0xC8, 0xCC].contains(&marker) {
                        outline.frame = Some(marker);
                        components = bytes.get(at + 9).copied();
                        let samplings = bytes.get(at + 10..).unwrap_or_default().chunks_exact(3).map(|about| about[1]);
                        let mut samplings = samplings.take(usize::from(components.unwrap_or(0)));
                        let first = samplings.next().unwrap_or(0);
                        outline.finer_later = samplings.any(|other| other >> 4 > first >> 4 || other & 15 > first & 15);
                    }
                    outline.restarts |= marker == 0xDD;
                    at += 2 + usize::from(u16::from_be_bytes([high, low])).max(2);
                }
            }
        }
        outline
    }

    /// Returns the position of the first end marker after the start of the pixels. Pixel data cannot contain one; a
    /// thumbnail in the headers has its own.
    fn end(&self, bytes: &[u8]) -> Option<usize> {
        let from = self.pixels_at?;
        memchr::memmem::find(&bytes[from..], &END).map(|at| from + at)
    }

    /// Whether all pixels lie in one stretch between the headers and the end marker.
    fn is_one_stretch(&self) -> bool {
        matches!(self.frame, Some(0xC0 | 0xC1)) && self.whole_scan && !self.restarts
    }
}

/// Returns the file up to its end marker, followed by one bits. A decoder that meets the marker before the last pixel goes on
/// with zeroes, which decode as valid pixels; a run of ones is no valid code, so it fails. Of a sound file it reads at most a
/// few bytes past the last pixel, and encoders pad the last byte with ones too.
fn until_the_end<'a>(bytes: &[u8], end: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    scratch.clear();
    scratch.extend_from_slice(&bytes[..end]);
    // A 0xFF byte is followed by a zero, so that it is not read as a marker.
    scratch.extend_from_slice([[0xFF, 0]; 32].as_flattened());
    scratch.extend_from_slice(&END);
    scratch
}

/// Names a frame type that the decoder does not support.
fn foreign(frame: u8) -> Option<&'static str> {
    match frame {
        0xC0..=0xC2 => None,
        0xC3 => Some("lossless"),
        0xC5..=0xC7 => Some("hierarchical"),
        _ => Some("with arithmetic coding"),
    }
}

fn failed(error: &DecodeErrors) -> Error {
    match error {
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => {
            undecodable("the JPEG ends before its last pixel: it is truncated")
        }
        DecodeErrors::Unsupported(kind) => unread(&format!("{kind:?}")),
        other => undecodable(&format!("the JPEG is damaged: {other}")),
    }
}

fn unread(kind: &str) -> Error {
    undecodable(&format!("unsupported JPEG: {kind}"))
        .with_hint("re-encode it as baseline or progressive JPEG, or skip it with bad_samples = skip")
}
