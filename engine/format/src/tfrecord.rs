//! TFRecord: frames of a length, its masked CRC-32C, data, and the data's masked CRC-32C. The data is usually a `tf.Example`.

pub mod example;
#[cfg(test)]
mod tests;

pub use example::{Example, Feature, Features, Value};

use crate::bytes::{u32_at, u64_at};
use crate::index::IndexBuilder;
use crate::{Need, check_given, cut_off, need_from, unsupported};
use fuelrail_base::{Error, Kind, Result};

/// Bytes of a frame before its data: the length and its checksum.
pub const HEAD_BYTES: u64 = 12;
/// Bytes after it.
pub const FOOT_BYTES: u64 = 4;

/// Scans one file. Needs the heads of its frames only, and verifies the checksums of their lengths; a record is a whole frame, whose data
/// [`check`] verifies where it is read: one that is damaged costs no other.
#[derive(Debug)]
pub struct Scan {
    object: u32,
    size: u64,
    at: u64,
}

impl Scan {
    /// A scan of a file of `size` bytes.
    pub fn new(object: u32, size: u64) -> Scan {
        Scan { object, size, at: 0 }
    }
}

impl crate::Scan for Scan {
    fn need(&self) -> Need {
        need_from(self.at, HEAD_BYTES, self.size)
    }

    fn give(&mut self, bytes: &[u8], index: &mut IndexBuilder) -> Result<()> {
        let begin = self.at;
        check_given(bytes, begin, HEAD_BYTES.min(self.size - begin))?;
        while self.at < self.size {
            let at = self.at;
            let place = |error: Error| error.within(format_args!("at byte {at}"));
            if self.size - at < HEAD_BYTES {
                return Err(cut_off(at, "the head of a frame", at + HEAD_BYTES, self.size));
            }
            let Some(given) = usize::try_from(at - begin).ok().and_then(|from| bytes.get(from..)) else { break };
            if (given.len() as u64) < HEAD_BYTES {
                break;
            }
            let data = length(given).map_err(|error| if at == 0 { compressed(given).unwrap_or(error) } else { error });
            let frame = data.map_err(place)?.saturating_add(HEAD_BYTES + FOOT_BYTES);
            let end = at.checked_add(frame).filter(|end| *end <= self.size);
            let end = end.ok_or_else(|| cut_off(at, "a frame", at.saturating_add(frame), self.size))?;
            index.push_range(self.object, at, frame)?;
            self.at = end;
        }
        Ok(())
    }
}

/// Verifies both checksums of a frame, and returns its data.
///
/// # Errors
/// [`Kind::Mismatch`] when a checksum does not match; [`Kind::Undecodable`] when the frame is shorter or longer than it says.
pub fn check(frame: &[u8]) -> Result<&[u8]> {
    let length = length(frame)?;
    let data = frame.get(HEAD_BYTES as usize..).and_then(|rest| rest.split_last_chunk::<{ FOOT_BYTES as usize }>());
    match data.filter(|(data, _)| data.len() as u64 == length) {
        Some((data, sum)) if masked_crc(data) == u32::from_le_bytes(*sum) => Ok(data),
        Some(_) => Err(mismatch("data")),
        None => {
            Err(Error::new(Kind::Undecodable, format!("a frame of {length} bytes of data has {} in all", frame.len())))
        }
    }
}

/// The data of a frame that [`check`] has verified; of anything shorter than a frame, nothing.
pub fn data(frame: &[u8]) -> &[u8] {
    let end = frame.len().saturating_sub(FOOT_BYTES as usize);
    frame.get(HEAD_BYTES as usize..end).unwrap_or_default()
}

/// The verified length that a frame begins with.
fn length(frame: &[u8]) -> Result<u64> {
    let (Some(length), Some(sum)) = (u64_at(frame, 0), u32_at(frame, 8)) else {
        return Err(Error::new(Kind::Undecodable, "a frame without a head"));
    };
    if masked_crc(&frame[..8]) == sum { Ok(length) } else { Err(mismatch("length")) }
}

/// The CRC-32C of `bytes`, masked as TFRecord does, so that checksums of data with checksums in it stay good ones.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn mismatch(of: &str) -> Error {
    Error::new(Kind::Mismatch, format!("the checksum of a record's {of} does not match"))
        .with_hint("read it again; if it stays so, write the file again or leave it out")
}

fn compressed(head: &[u8]) -> Option<Error> {
    let is_zlib = head[0] == 0x78 && u16::from_be_bytes([head[0], head[1]]).is_multiple_of(31);
    (is_zlib || head.starts_with(b"\x1F\x8B")).then(|| {
        let flaw = "the file is compressed as a whole: ranges of it cannot be read";
        unsupported(flaw, "write it with TFRecordOptions(compression_type=\"\")")
    })
}
