//! Pictures for the tests of decoding: files of every kind, and what they must decode to, worked out the plain way.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use png::{BitDepth, ColorType, Encoder};
use std::path::Path;

/// A picture of soft slopes and a diagonal: neighbours differ, and so do the channels.
pub fn scene(width: usize, height: usize, channels: usize) -> Vec<u8> {
    let at = |x: usize, y: usize, c: usize| {
        let slope = x * 200 / width + y * 40 / height + c * 20;
        (if (x + y) % 37 < 5 { slope / 2 } else { slope } & 0xFF) as u8
    };
    (0..width * height * channels).map(|i| at(i / channels % width, i / channels / width, i % channels)).collect()
}

/// A PNG of these samples, as they lie in the file.
pub fn png(width: u32, height: u32, color: ColorType, depth: BitDepth, samples: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == ColorType::Indexed {
        encoder.set_palette(vec![250, 10, 20, 0, 200, 100, 5, 6, 7, 90, 80, 70]);
    }
    encoder.write_header().unwrap().write_image_data(samples).unwrap();
    file
}

/// A JPEG of these samples; `set` chooses how.
pub fn jpeg(
    width: u16,
    height: u16,
    color: jpeg_encoder::ColorType,
    samples: &[u8],
    set: fn(&mut jpeg_encoder::Encoder<&mut Vec<u8>>),
) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut file, 90);
    set(&mut encoder);
    encoder.encode(samples, width, height, color).unwrap();
    file
}

/// Decodes a JPEG to RGB.
pub fn jpeg_pixels(file: &[u8]) -> (usize, usize, Vec<u8>) {
    use zune_jpeg::zune_core::bytestream::ZCursor;
    let mut decoder = zune_jpeg::JpegDecoder::new(ZCursor::new(file));
    let pixels = decoder.decode().expect("a sound JPEG");
    let (width, height) = decoder.dimensions().expect("its header is read");
    (width, height, pixels)
}

/// Decodes a PNG of eight grey bits.
pub fn png_pixels(file: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a sound PNG");
    assert_eq!(reader.output_color_type(), (ColorType::Grayscale, BitDepth::Eight));
    let mut pixels = vec![0; reader.output_buffer_size().expect("it fits memory")];
    reader.next_frame(&mut pixels).expect("a sound PNG");
    pixels
}

/// Covers `to` and cuts the centre out, the plain way: the part is copied out row by row, then resized as a whole.
pub fn centre_cropped(rgb: &[u8], (width, height): (usize, usize), to: (usize, usize)) -> Vec<u8> {
    let scale = f64::max(to.0 as f64 / width as f64, to.1 as f64 / height as f64);
    let part = ((to.0 as f64 / scale).round() as usize, (to.1 as f64 / scale).round() as usize);
    let (left, top) = ((width - part.0) / 2, (height - part.1) / 2);
    let rows = (top..top + part.1).flat_map(|y| &rgb[(y * width + left) * 3..(y * width + left + part.0) * 3]);
    let copied: Vec<u8> = rows.copied().collect();
    let source = ImageRef::new(part.0 as u32, part.1 as u32, &copied, PixelType::U8x3).unwrap();
    let mut target = Image::new(to.0 as u32, to.1 as u32, PixelType::U8x3);
    let bilinear = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    Resizer::new().resize(&source, &mut target, &bilinear).unwrap();
    target.into_vec()
}

/// Writes files into a folder that a bucket can serve.
pub fn write(folder: &Path, files: &[(&str, Vec<u8>)]) {
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// The greatest difference between two pictures, and the mean one.
pub fn difference(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let apart = || a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    (apart().max().unwrap_or(0), apart().map(f64::from).sum::<f64>() / a.len().max(1) as f64)
}
