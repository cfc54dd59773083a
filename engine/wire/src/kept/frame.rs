//! Frames: payloads one behind the other, each proved by a checksum that goes on from the one before.

use fuelrail_base::limits::DOCUMENT_BYTES_MAX;

use super::header::HEADER_BYTES;
use super::{Flaw, u32_at};

/// Bytes before a payload.
pub const FRAME_HEAD_BYTES: usize = 8;

/// What stands before a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// Length of the payload, bytes.
    pub len: usize,
    sum: u32,
}

impl FrameHead {
    /// Reads one.
    ///
    /// # Errors
    /// `Absurd` for a length that no page of a listing has.
    pub fn decode(bytes: [u8; FRAME_HEAD_BYTES]) -> Result<FrameHead, Flaw> {
        let len = u32_at(&bytes, 0) as usize;
        if len > DOCUMENT_BYTES_MAX { Err(Flaw::Absurd) } else { Ok(FrameHead { len, sum: u32_at(&bytes, 4) }) }
    }
}

/// Where a file stands between two frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames {
    sum: u32,
}

impl Frames {
    /// Behind this header.
    #[must_use]
    pub fn behind(header: &[u8; HEADER_BYTES]) -> Frames {
        Frames { sum: u32_at(header, HEADER_BYTES - 4) }
    }

    /// Takes a payload that was read behind this head.
    ///
    /// # Errors
    /// `Damaged` when it is not the next one of this file.
    pub fn proved(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Flaw> {
        let sum = self.after(payload);
        if payload.len() != head.len || sum != head.sum {
            return Err(Flaw::Damaged);
        }
        self.sum = sum;
        Ok(())
    }

    /// Appends a frame whose payload is what `write` appends.
    pub fn push(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let at = out.len();
        out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
        write(out);
        let payload = at + FRAME_HEAD_BYTES;
        self.sum = self.after(&out[payload..]);
        let len = u32::try_from(out.len() - payload).expect("a page of a listing is shorter");
        out[at..at + 4].copy_from_slice(&len.to_le_bytes());
        out[at + 4..payload].copy_from_slice(&self.sum.to_le_bytes());
    }

    fn after(self, payload: &[u8]) -> u32 {
        let len = (payload.len() as u32).to_le_bytes();
        crc32c::crc32c_append(crc32c::crc32c_append(self.sum, &len), payload)
    }
}
