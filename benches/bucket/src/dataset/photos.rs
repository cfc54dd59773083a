//! `photos`: JPEGs that decode, with ImageNet-like sizes known without generating anything.
//!
//! A photo is one of a few pictures encoded once per process, padded to its drawn size with `COM` segments of seeded
//! bytes: picture head, comments, picture tail. Larger files get larger pictures, so that decoding costs are realistic.

use std::sync::LazyLock;

use jpeg_encoder::{ColorType, Encoder};

use crate::random::{Draws, exp, fill_words, mix, word};

const KIB: u64 = 1 << 10;
const SIZE_MIN: u64 = 5 * KIB;
const SIZE_MAX: u64 = 500 * KIB;

/// With this median and deviation the mean is 110 KiB.
const MEDIAN_BYTES: f64 = 97.0 * KIB as f64;
const DEVIATION: f64 = 0.5;

/// Bytes before the payload of a `COM` segment: the marker, and a two-byte length that includes itself.
const SEGMENT_HEAD_BYTES: u64 = 4;
const SEGMENT_BYTES_MAX: u64 = 2 + 0xFFFF;

/// Width, height and quality of the pictures, small to large. The smallest must fit `SIZE_MIN` with a segment head.
const FORMATS: [(u16, u16, u8); 4] = [(96, 72, 50), (240, 180, 60), (400, 300, 75), (500, 375, 85)];
const PICTURES_PER_FORMAT: u64 = 4;

struct Picture {
    /// Start of image and the JFIF segment.
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Picture {
    fn len(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64
    }
}

static PICTURES: LazyLock<Vec<Vec<Picture>>> = LazyLock::new(|| {
    FORMATS
        .iter()
        .map(|&(width, height, quality)| {
            (0..PICTURES_PER_FORMAT).map(|variant| paint(width, height, quality, variant)).collect()
        })
        .collect()
});

pub(super) fn size(seed: u64) -> u64 {
    let bytes = MEDIAN_BYTES * exp(DEVIATION * Draws::new(mix(seed ^ 0x517E)).normal());
    (bytes as u64).clamp(SIZE_MIN, SIZE_MAX)
}

pub(super) fn fill(seed: u64, size: u64, stream: u64, offset: u64, out: &mut [u8]) {
    let picture = picture(seed, size);
    let (head_end, tail_start) = (picture.head.len() as u64, size - picture.tail.len() as u64);
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let end = if at < head_end {
            head_end
        } else if at < tail_start {
            tail_start
        } else {
            size
        };
        let (part, after) = rest.split_at_mut(rest.len().min((end - at) as usize));
        if at < head_end {
            part.copy_from_slice(&picture.head[at as usize..at as usize + part.len()]);
        } else if at < tail_start {
            fill_comments(tail_start - head_end, stream, at - head_end, part);
        } else {
            let from = (at - tail_start) as usize;
            part.copy_from_slice(&picture.tail[from..from + part.len()]);
        }
        at += part.len() as u64;
        rest = after;
    }
}

/// Returns the largest picture that leaves room for one segment head; the seed chooses among its format's variants.
fn picture(seed: u64, size: u64) -> &'static Picture {
    let variant = (mix(seed ^ 0xF00D) % PICTURES_PER_FORMAT) as usize;
    PICTURES
        .iter()
        .rev()
        .map(|format| &format[variant])
        .find(|picture| picture.len() + SEGMENT_HEAD_BYTES <= size)
        .expect("a test holds the smallest format below the smallest size")
}

/// Writes the bytes from `offset` on of `total` bytes of comment segments.
fn fill_comments(total: u64, stream: u64, offset: u64, out: &mut [u8]) {
    fill_words(stream, offset, out, |word| word);
    let mut start = offset / SEGMENT_BYTES_MAX * SEGMENT_BYTES_MAX;
    // The last two segments share their bytes so that neither is shorter than its head: start one earlier.
    start = start.saturating_sub(SEGMENT_BYTES_MAX);
    let end = offset + out.len() as u64;
    while start < end {
        let length = segment_bytes(total - start);
        let [high, low] = ((length - 2) as u16).to_be_bytes();
        for (step, byte) in [0xFF, 0xFE, high, low].into_iter().enumerate() {
            if let Some(place) = (start + step as u64).checked_sub(offset)
                && let Some(target) = out.get_mut(place as usize)
            {
                *target = byte;
            }
        }
        start += length;
    }
}

/// Returns the length of the next segment when `rest` bytes of comments remain.
fn segment_bytes(rest: u64) -> u64 {
    if rest <= SEGMENT_BYTES_MAX {
        rest
    } else if rest - SEGMENT_BYTES_MAX < SEGMENT_HEAD_BYTES {
        SEGMENT_BYTES_MAX - SEGMENT_HEAD_BYTES
    } else {
        SEGMENT_BYTES_MAX
    }
}

/// Paints a picture of soft colour fields, a few hard-edged boxes and grain, encodes it and splits it after its first segment.
fn paint(width: u16, height: u16, quality: u8, variant: u64) -> Picture {
    let mut draws = Draws::new(mix(0x9107_0000 + variant));
    let boxes: Vec<[u64; 5]> = (0..12)
        .map(|_| {
            let (x, y) = (draws.below(u64::from(width)), draws.below(u64::from(height)));
            let (w, h) = (draws.below(u64::from(width) / 3) + 4, draws.below(u64::from(height) / 3) + 4);
            [x, y, w, h, draws.word()]
        })
        .collect();
    let slopes = [draws.below(256), draws.below(256), draws.below(256)];
    let grain_stream = draws.word();
    let mut pixels = Vec::with_capacity(usize::from(width) * usize::from(height) * 3);
    for y in 0..u64::from(height) {
        for x in 0..u64::from(width) {
            let inside = boxes.iter().rev().find(|b| x >= b[0] && x < b[0] + b[2] && y >= b[1] && y < b[1] + b[3]);
            let grain = word(grain_stream, y * u64::from(width) + x);
            for channel in 0..3u64 {
                let field = match inside {
                    Some(painted) => painted[4] >> (8 * channel) & 0xFF,
                    None => {
                        (slopes[channel as usize] * x / u64::from(width)
                            + (255 - slopes[channel as usize]) * y / u64::from(height))
                            & 0xFF
                    }
                };
                pixels.push((field * 7 / 8 + (grain >> (16 * channel) & 0x1F)).min(255) as u8);
            }
        }
    }
    let mut file = Vec::new();
    Encoder::new(&mut file, quality)
        .encode(&pixels, width, height, ColorType::Rgb)
        .expect("pixels match the picture's width and height");
    // After the two bytes of SOI comes the JFIF segment: its length follows the two bytes of its marker.
    let split = 4 + usize::from(u16::from_be_bytes([file[4], file[5]]));
    let tail = file.split_off(split);
    Picture { head: file, tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_grows_and_the_smallest_fits_the_smallest_size() {
        let largest: Vec<u64> =
            PICTURES.iter().map(|format| format.iter().map(Picture::len).max().unwrap_or(0)).collect();
        assert!(largest[0] + SEGMENT_HEAD_BYTES <= SIZE_MIN, "{largest:?}");
        assert!(largest.is_sorted(), "{largest:?}");
        assert!(largest[3] < MEDIAN_BYTES as u64, "half of all photos carry the largest picture: {largest:?}");
    }

    #[test]
    fn segments_never_leave_less_than_a_head() {
        for total in (4..400).chain(65_530..65_560).chain(131_060..131_090) {
            let mut rest = total;
            while rest > 0 {
                let length = segment_bytes(rest);
                assert!((SEGMENT_HEAD_BYTES..=SEGMENT_BYTES_MAX).contains(&length), "{total}: {length}");
                rest -= length;
            }
        }
    }

    #[test]
    fn sizes_are_around_110_kib() {
        let mean = (0..5000).map(|seed| size(mix(seed))).sum::<u64>() / 5000;
        assert!((105 * KIB..115 * KIB).contains(&mean), "{mean}");
    }
}
