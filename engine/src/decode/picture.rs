//! Turns one object's bytes into one sample's pixels: detects the format by its first bytes, then converts to the
//! requested channels and size. Decodes directly into the sample's place where no conversion is needed.
//!
//! Owns one thread's scratch memory. Never uses a header's sizes before they are checked against the limits.

use super::cut::{Cut, Occasion, cut};
use super::{Decode, Picture, Pixels, jpeg, png, undecodable};
use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use fuelrail_base::limits::PICTURE_BYTES_KEPT;
use fuelrail_base::{Error, Kind, Result, SampleId};

/// Decodes one object's bytes into a sample, for the fuzzer.
pub(crate) fn decoded(wanted: Decode, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = vec![0; wanted.sample_bytes() as usize];
    Easel::new(wanted).paint(bytes, Occasion { seed: 0, epoch: 0, id: SampleId(0) }, &mut out)?;
    Ok(out)
}

/// One thread's decoder and scratch memory.
pub(super) struct Easel {
    wanted: Decode,
    /// The whole picture as decoded, and after conversion to the requested channels.
    decoded: Vec<u8>,
    converted: Vec<u8>,
    /// A rewritten form of the file, for decoders that need one.
    file: Vec<u8>,
    resizer: Resizer,
}

impl Easel {
    pub(super) fn new(wanted: Decode) -> Easel {
        Easel { wanted, decoded: Vec::new(), converted: Vec::new(), file: Vec::new(), resizer: Resizer::new() }
    }

    /// Decodes the object's bytes into `out`, which must be exactly as long as a sample.
    ///
    /// # Errors
    /// `Undecodable`, without the object's name.
    pub(super) fn paint(&mut self, bytes: &[u8], occasion: Occasion, out: &mut [u8]) -> Result<()> {
        let painted = if bytes.starts_with(&png::SIGNATURE) {
            png::open(bytes).and_then(|picture| self.finish(picture, png::decode, occasion, out))
        } else if bytes.starts_with(&jpeg::SIGNATURE) {
            let mut file = core::mem::take(&mut self.file);
            let opened = jpeg::open(bytes, self.wanted.channels == 1, &mut file);
            let painted = opened.and_then(|picture| self.finish(picture, jpeg::decode, occasion, out));
            self.file = file;
            painted
        } else {
            Err(unknown(bytes))
        };
        self.tidy_up();
        painted
    }

    fn finish<D>(
        &mut self,
        mut picture: Picture<D>,
        decode: impl FnOnce(&mut Picture<D>, &mut [u8]) -> Result<()>,
        occasion: Occasion,
        out: &mut [u8],
    ) -> Result<()> {
        let Easel { wanted, decoded, converted, resizer, .. } = self;
        let Picture { width, height, pixels, .. } = picture;
        let cut = cut(wanted, width, height, occasion).ok_or_else(|| wrong_size(wanted, width, height))?;
        let is_whole = (cut.width, cut.height) == (width, height);
        let fits = is_whole && (width, height) == (wanted.width, wanted.height);
        let channels = wanted.channels as usize;
        let matches = pixels.bytes() == channels;
        if fits && matches {
            decode(&mut picture, out)?;
        } else {
            let count = width as usize * height as usize;
            let source = sized(decoded, count * pixels.bytes());
            decode(&mut picture, source)?;
            let source = match (fits, matches) {
                (true, _) => {
                    convert(pixels, source, channels, out);
                    None
                }
                (false, true) => Some(&*source),
                (false, false) => {
                    let whole = sized(converted, count * channels);
                    convert(pixels, source, channels, whole);
                    Some(&*whole)
                }
            };
            if let Some(source) = source {
                resize(resizer, wanted, (source, width, height), &cut, out)?;
            }
        }
        if cut.flip {
            mirror(out, wanted.width as usize * channels, channels);
        }
        Ok(())
    }

    /// Frees scratch memory that one large picture left oversized.
    fn tidy_up(&mut self) {
        for scratch in [&mut self.decoded, &mut self.converted, &mut self.file] {
            if scratch.capacity() > PICTURE_BYTES_KEPT {
                *scratch = Vec::new();
            }
        }
        if self.resizer.size_of_internal_buffers() > PICTURE_BYTES_KEPT {
            self.resizer.reset_internal_buffers();
        }
    }
}

/// Returns the first `bytes` of scratch memory, growing it if needed. The contents are arbitrary.
fn sized(scratch: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if scratch.len() < bytes {
        scratch.resize(bytes, 0);
    }
    &mut scratch[..bytes]
}

/// Cuts the part out and resizes it into `out`, with a filter as wide as the reduction needs (bilinear, antialiased).
fn resize(
    resizer: &mut Resizer,
    wanted: &Decode,
    (source, width, height): (&[u8], u32, u32),
    cut: &Cut,
    out: &mut [u8],
) -> Result<()> {
    let odd = |what: &dyn core::fmt::Display| undecodable(&format!("it cannot be resized: {what}"));
    let kind = if wanted.channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
    let source = ImageRef::new(width, height, source, kind).map_err(|e| odd(&e))?;
    let part = CroppedImage::new(&source, cut.left, cut.top, cut.width, cut.height).map_err(|e| odd(&e))?;
    let mut target = Image::from_slice_u8(wanted.width, wanted.height, out, kind).map_err(|e| odd(&e))?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).use_alpha(false);
    resizer.resize(&part, &mut target, &options).map_err(|e| odd(&e))
}

/// Converts a decoder's pixels to grey or RGB. Alpha is dropped.
fn convert(pixels: Pixels, from: &[u8], channels: usize, to: &mut [u8]) {
    let pairs = from.chunks_exact(pixels.bytes()).zip(to.chunks_exact_mut(channels));
    match (pixels, channels) {
        (Pixels::Grey | Pixels::GreyAlpha, _) => pairs.for_each(|(from, to)| to.fill(from[0])),
        (_, 1) => pairs.for_each(|(from, to)| to[0] = luma(from[0], from[1], from[2])),
        _ => pairs.for_each(|(from, to)| to.copy_from_slice(&from[..3])),
    }
}

/// Luma by ITU-R BT.601, in the integers that Pillow uses.
fn luma(red: u8, green: u8, blue: u8) -> u8 {
    ((u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000) >> 16) as u8
}

fn mirror(out: &mut [u8], row_bytes: usize, channels: usize) {
    for row in out.chunks_exact_mut(row_bytes) {
        let pixels = row_bytes / channels;
        for left in 0..pixels / 2 {
            let right = pixels - 1 - left;
            for channel in 0..channels {
                row.swap(left * channels + channel, right * channels + channel);
            }
        }
    }
}

fn wrong_size(wanted: &Decode, width: u32, height: u32) -> Error {
    let cause = format!(
        "it is {height} pixels high and {width} wide, decode = {} wants {} and {}",
        wanted.shape(),
        wanted.height,
        wanted.width
    );
    Error::new(Kind::Undecodable, cause)
        .with_hint("use decode_fit = center-crop or random-crop, or skip it with bad_samples = skip")
}

fn unknown(bytes: &[u8]) -> Error {
    let first: String = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let begins = if first.is_empty() { "it is empty".into() } else { format!("it starts with {first}") };
    Error::new(Kind::Undecodable, format!("it is neither PNG nor JPEG: {begins}"))
        .with_hint("leave decode empty to get objects as they are, or skip this one with bad_samples = skip")
}
