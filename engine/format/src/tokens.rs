//! Arrays of token ids without a header, as language models are trained on: windows over files or over the documents in them.
//!
//! The index has one record per document, or per file where documents do not matter. Windows are arithmetic on these.

#[cfg(test)]
mod tests;

use crate::bytes::{Dtype, take};
use crate::index::{IndexBuilder, Span};
use crate::{Need, check_given, need_from, unsound};
use fuelrail_base::{Error, Kind, Result};

/// The windows over a document, in bytes: one every `stride`. With `keep_rest` what is left at its end, or a document shorter than a window,
/// makes a shorter one.
///
/// # Panics
/// If `stride` is 0.
pub fn windows(document: Span, length: u64, stride: u64, keep_rest: bool) -> impl Iterator<Item = Span> {
    let Span { object, offset, length: bytes } = document;
    let more = bytes.saturating_sub(length);
    let is_one = move |from: &u64| if keep_rest { *from < more + stride } else { from + length <= bytes };
    let starts = (0..bytes).step_by(stride as usize).take_while(is_one);
    starts.map(move |from| Span { object, offset: offset + from, length: length.min(bytes - from) })
}

/// Finds the documents of a file by the token that ends each, and belongs to it. Needs all bytes.
#[derive(Debug)]
pub struct Scan {
    object: u32,
    size: u64,
    width: u64,
    end: [u8; 8],
    begin: u64,
    at: u64,
}

impl Scan {
    /// A scan of a file of `size` bytes, whose documents end with the token `end`.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] when the file has no whole number of tokens; [`Kind::Usage`] when the type has no such token.
    pub fn new(object: u32, size: u64, dtype: Dtype, end: i64) -> Result<Scan> {
        if !size.is_multiple_of(dtype.bytes()) {
            let flaw = format_args!("the file of {size} bytes ends within a token of type {dtype}");
            return Err(unsound(size - size % dtype.bytes(), flaw));
        }
        let spare = 64 - 8 * dtype.bytes();
        // The same after its upper bits are dropped, as a signed or unsigned number.
        if (end << spare) >> spare != end && (end as u64) << spare >> spare != end as u64 {
            let flaw = format!("{end} is no token of type {dtype}");
            return Err(Error::new(Kind::Usage, flaw).with_hint("check the dtype of the files"));
        }
        Ok(Scan { object, size, width: dtype.bytes(), end: end.to_le_bytes(), begin: 0, at: 0 })
    }
}

impl crate::Scan for Scan {
    fn need(&self) -> Need {
        need_from(self.at, self.width, self.size)
    }

    fn give(&mut self, mut bytes: &[u8], index: &mut IndexBuilder) -> Result<()> {
        check_given(bytes, self.at, self.width)?;
        let end = &self.end[..self.width as usize];
        while let Some(token) = take(&mut bytes, self.width).filter(|_| self.at < self.size) {
            self.at += self.width;
            if token == end || self.at == self.size {
                index.push_range(self.object, self.begin, self.at - self.begin)?;
                self.begin = self.at;
            }
        }
        Ok(())
    }
}
