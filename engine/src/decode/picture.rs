//! Turns one object's bytes into one sample: detects the format by its first bytes, then converts to the
//! requested channels and size. Decodes directly into the sample's place where no conversion is needed.
//!
//! Owns one thread's scratch memory. Never uses a header's sizes before they are checked against the limits.

use super::cut::{Cut, DrawKey, cut};
use super::output::Numbers;
use super::{Decode, Picture, Pixels, jpeg, png, sound, undecodable};
use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use fuelrail_base::limits::PICTURE_BYTES_KEPT;
use fuelrail_base::{Error, Kind, Result, SampleId};
use turbojpeg::Decompressor;

/// Decodes one picture after the other, for the fuzzer and benchmarks.
pub struct PictureDecoder(SampleDecoder);

impl PictureDecoder {
    /// For samples like this.
    #[must_use]
    pub fn new(wanted: Decode) -> PictureDecoder {
        PictureDecoder(SampleDecoder::new(wanted))
    }

    /// Decodes an object's bytes into `out`, which is as long as a sample, with the draws of sample 0 in an epoch. Returns the
    /// left edge, top, width and height of the part taken, in pixels of the picture.
    ///
    /// # Errors
    /// `Undecodable`, without the object's name.
    pub fn decode(&mut self, bytes: &[u8], epoch: u64, out: &mut [u8]) -> Result<[u32; 4]> {
        let cut = self.0.decode_sample(bytes, DrawKey { seed: 0, epoch, id: SampleId(0) }, out)?;
        Ok([cut.left, cut.top, cut.width, cut.height])
    }
}

/// One thread's decoder and scratch memory.
pub(super) struct SampleDecoder {
    wanted: Decode,
    /// The sample's pixels before they become the numbers that are delivered, where these are others.
    numbers: Option<Numbers>,
    pixels: Vec<u8>,
    /// The picture as decoded, whole or scaled, and after conversion to the requested channels.
    decoded: Vec<u8>,
    converted: Vec<u8>,
    /// JPEG's decoder, and what it reads of the file.
    jpeg: Option<Decompressor>,
    file: Vec<u8>,
    resizer: Resizer,
}

impl SampleDecoder {
    pub(super) fn new(wanted: Decode) -> SampleDecoder {
        let (pixels, decoded, converted, file) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (numbers, resizer) = (Numbers::new(wanted), Resizer::new());
        SampleDecoder { wanted, numbers, pixels, decoded, converted, jpeg: None, file, resizer }
    }

    /// Decodes the object's bytes into `out`, which must be exactly as long as a sample. Returns the part it took.
    ///
    /// # Errors
    /// `Undecodable`, without the object's name.
    pub(super) fn decode_sample(&mut self, bytes: &[u8], draw_key: DrawKey, out: &mut [u8]) -> Result<Cut> {
        if sound::is_sound(bytes) {
            return sound::decode(&self.wanted, bytes, draw_key, out);
        }
        let decoded = match self.numbers.take() {
            None => self.decode_pixels(bytes, draw_key, out),
            Some(numbers) => {
                let mut pixels = core::mem::take(&mut self.pixels);
                let decoded =
                    self.decode_pixels(bytes, draw_key, sized(&mut pixels, self.wanted.pixel_bytes() as usize));
                if decoded.is_ok() {
                    numbers.write(&pixels, out);
                }
                (self.numbers, self.pixels) = (Some(numbers), pixels);
                decoded
            }
        };
        self.free_oversized();
        decoded
    }

    fn decode_pixels(&mut self, bytes: &[u8], draw_key: DrawKey, out: &mut [u8]) -> Result<Cut> {
        if self.wanted.channels == 2 {
            let shape = self.wanted.shape();
            return Err(undecodable(&format!("it is no sound, and decode = {shape} asks for sound of two channels")));
        }
        if bytes.starts_with(&png::SIGNATURE) {
            png::open(bytes).and_then(|picture| self.finish(picture, (|_, _, _| 8, png::decode), draw_key, out))
        } else if bytes.starts_with(&jpeg::SIGNATURE) {
            let (mut decoder, mut file) = (self.jpeg.take(), core::mem::take(&mut self.file));
            let opened = jpeg::open(bytes, self.wanted.channels == 1, &mut decoder, &mut file);
            let decoded = opened.and_then(|picture| self.finish(picture, (jpeg::narrow, jpeg::decode), draw_key, out));
            // One that has failed may be stuck in that file's headers.
            (self.jpeg, self.file) = (decoder.filter(|_| decoded.is_ok()), file);
            decoded
        } else {
            Err(unknown(bytes))
        }
    }

    /// Decodes of an opened picture what its cut needs, in eighths of its size, and makes the sample of it.
    fn finish<D>(
        &mut self,
        mut picture: Picture<D>,
        (narrow, decode): (
            impl FnOnce(&mut Picture<D>, &Cut, &Decode) -> u32,
            impl FnOnce(&mut Picture<D>, u32, &mut [u8]) -> Result<()>,
        ),
        draw_key: DrawKey,
        out: &mut [u8],
    ) -> Result<Cut> {
        let SampleDecoder { wanted, decoded, converted, resizer, .. } = self;
        let Picture { width, height, pixels, .. } = picture;
        let cut = cut(wanted, width, height, draw_key).ok_or_else(|| wrong_size(wanted, width, height))?;
        let is_whole = (cut.width, cut.height) == (width, height);
        let fits = is_whole && (width, height) == (wanted.width, wanted.height);
        let channels = wanted.channels as usize;
        let matches = pixels.bytes() == channels;
        if fits && matches {
            decode(&mut picture, 8, out)?;
        } else {
            let eighths = if fits { 8 } else { narrow(&mut picture, &cut, wanted) };
            let [width, height] = [picture.width, picture.height].map(|side| (side * eighths).div_ceil(8));
            let count = width as usize * height as usize;
            let source = sized(decoded, count * pixels.bytes());
            decode(&mut picture, eighths, source)?;
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
                resize(resizer, wanted, (source, width, height), (&cut, eighths), out)?;
            }
        }
        if cut.flip {
            mirror(out, wanted.width as usize * channels, channels);
        }
        Ok(cut)
    }

    /// Frees scratch memory that one large picture left oversized.
    fn free_oversized(&mut self) {
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

/// Cuts the part out of a picture decoded at `eighths` of its size, and resizes it into `out`, with a filter as wide as the
/// reduction needs (bilinear, antialiased).
fn resize(
    resizer: &mut Resizer,
    wanted: &Decode,
    (source, width, height): (&[u8], u32, u32),
    (cut, eighths): (&Cut, u32),
    out: &mut [u8],
) -> Result<()> {
    let odd = |what: &dyn core::fmt::Display| undecodable(&format!("it cannot be resized: {what}"));
    let kind = if wanted.channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
    let source = ImageRef::new(width, height, source, kind).map_err(|e| odd(&e))?;
    // The pixels that the cut touches, and what it takes of them: nothing beyond its edge counts, as if it were cut out first.
    let (left, right) = (cut.left * eighths, (cut.left + cut.width) * eighths);
    let (top, bottom) = (cut.top * eighths, (cut.top + cut.height) * eighths);
    let (x, y) = (left / 8, top / 8);
    let part = CroppedImage::new(&source, x, y, right.div_ceil(8) - x, bottom.div_ceil(8) - y).map_err(|e| odd(&e))?;
    let share = |eighths: u32| f64::from(eighths) / 8.0;
    let mut target = Image::from_slice_u8(wanted.width, wanted.height, out, kind).map_err(|e| odd(&e))?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).use_alpha(false);
    let options = options.crop(share(left % 8), share(top % 8), share(right - left), share(bottom - top));
    resizer.resize(&part, &mut target, &options).map_err(|e| odd(&e))
}

/// Converts a decoder's pixels to grey or RGB. Alpha is dropped.
fn convert(pixels: Pixels, from: &[u8], channels: usize, to: &mut [u8]) {
    let pairs = from.chunks_exact(pixels.bytes()).zip(to.chunks_exact_mut(channels));
    match (pixels, channels) {
        (Pixels::Grey | Pixels::GreyAlpha, _) => pairs.for_each(|(from, to)| to.fill(from[0])),
        (Pixels::Cmyk, _) => pairs.for_each(|(from, to)| match printed(from) {
            [red, green, blue] if to.len() == 1 => to[0] = luma(red, green, blue),
            rgb => to.copy_from_slice(&rgb),
        }),
        (_, 1) => pairs.for_each(|(from, to)| to[0] = luma(from[0], from[1], from[2])),
        _ => pairs.for_each(|(from, to)| to.copy_from_slice(&from[..3])),
    }
}

/// RGB of four inks, which are stored inverted, as Adobe's programs do: 255 is no ink.
fn printed(inks: &[u8]) -> [u8; 3] {
    [inks[0], inks[1], inks[2]].map(|ink| ((u32::from(ink) * u32::from(inks[3]) + 127) / 255) as u8)
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
    Error::new(Kind::Undecodable, format!("it is none of PNG, JPEG, FLAC and WAV: {begins}"))
        .with_hint("leave decode empty to get objects as they are, or skip this one with bad_samples = skip")
}
