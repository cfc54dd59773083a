//! PNG through the `png` crate: every colour type, depth and interlacing. 16-bit samples keep the upper eight bits, an
//! animation its first picture. Alpha is dropped; no colour conversion.

use super::{Picture, Pixels, check_size, undecodable};
use fuelrail_base::{Error, Result};
use png::{Decoder, DecodingError, Limits, Reader, Transformations};
use std::io::Cursor;

/// The first bytes of every file.
pub(super) const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n'];

/// Memory limit for chunks other than the pixels, bytes.
const BYTES_MAX: usize = 16 << 20;

pub(super) type Png<'a> = Picture<Reader<Cursor<&'a [u8]>>>;

/// Reads the headers, up to the pixels.
pub(super) fn open(bytes: &[u8]) -> Result<Png<'_>> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: BYTES_MAX });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let (width, height) = decoder.read_header_info().map_err(|e| failed(&e))?.size();
    // Before memory is allocated for the pixels that the header claims.
    check_size(width, height)?;
    let reader = decoder.read_info().map_err(|e| failed(&e))?;
    let pixels = match reader.output_color_type().0.samples() {
        1 => Pixels::Grey,
        2 => Pixels::GreyAlpha,
        3 => Pixels::Rgb,
        _ => Pixels::RgbAlpha,
    };
    Ok(Picture { width, height, pixels, decoder: reader })
}

/// Decodes into `out`, whole, whose length must be what size and pixel kind give.
pub(super) fn decode(picture: &mut Png<'_>, _eighths: u32, out: &mut [u8]) -> Result<()> {
    picture.decoder.next_frame(out).map(drop).map_err(|e| failed(&e))
}

fn failed(error: &DecodingError) -> Error {
    match error {
        DecodingError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            undecodable("the PNG ends before its last pixel: it is truncated")
        }
        DecodingError::LimitsExceeded => undecodable("the PNG needs more memory than allowed"),
        other => undecodable(&format!("the PNG is damaged: {other}")),
    }
}
