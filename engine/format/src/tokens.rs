//! Arrays of token ids without a header, as language models are trained on: windows over files or over the documents in them.
//!
//! The index has one record per document, or per file where documents do not matter. Windows are arithmetic on it: 8 bytes a document.

#[cfg(test)]
mod tests;

use crate::bytes::{Dtype, take};
use crate::index::{Field, Index, IndexBuilder, Span};
use crate::{Need, check_given, need_from, unsound};
use fuelrail_base::{Error, Kind, Result};

/// Which tokens of a document make a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Their type.
    pub dtype: Dtype,
    /// Tokens of a window.
    pub length: u64,
    /// Whether one more follows, the target of the last.
    pub target: bool,
    /// Tokens from the begin of a window to the next one's.
    pub stride: u64,
    /// Whether what is left at the end of a document, and a document shorter than a window, makes a shorter window.
    pub keep_rest: bool,
}

impl Window {
    fn tokens(&self) -> u64 {
        self.length + u64::from(self.target)
    }

    /// How many windows a document of so many tokens has.
    fn count(&self, tokens: u64) -> u64 {
        // A lone token has no target.
        let least = 1 + u64::from(self.target);
        match tokens.checked_sub(self.tokens()) {
            Some(more) if self.keep_rest => 1 + more.div_ceil(self.stride).min((tokens - least) / self.stride),
            Some(more) => 1 + more / self.stride,
            None => u64::from(self.keep_rest && tokens >= least),
        }
    }
}

/// The windows over the documents of an index: each is a sample.
#[derive(Debug)]
pub struct Windows<B> {
    index: Index<B>,
    window: Window,
    /// How many windows there are up to each document's end.
    ends: Vec<u64>,
}

impl<B: AsRef<[u8]>> Windows<B> {
    /// Counts the windows of every document.
    ///
    /// # Errors
    /// [`Kind::Usage`] when length or stride is 0 or above 2^40; [`Kind::Undecodable`] when the index is of no tokens of this type.
    pub fn new(index: Index<B>, window: Window) -> Result<Windows<B>> {
        if !(1..=1 << 40).contains(&window.length) || !(1..=1 << 40).contains(&window.stride) {
            let flaw = format!("windows of {} tokens every {} tokens", window.length, window.stride);
            return Err(Error::new(Kind::Usage, flaw).with_hint("length and stride are between 1 and 2^40"));
        }
        let (mut ends, mut end) = (Vec::new(), 0);
        for record in index.iter() {
            let bytes = match record.field(0) {
                Some(Field::Span(span)) if span.length.is_multiple_of(window.dtype.bytes()) => span.length,
                _ => {
                    return Err(Error::new(
                        Kind::Undecodable,
                        format!("the index is not one of {} tokens", window.dtype),
                    ));
                }
            };
            let count = window.count(bytes / window.dtype.bytes());
            end =
                u64::checked_add(end, count).ok_or_else(|| Error::new(Kind::Undecodable, "there are 2^64 windows"))?;
            ends.push(end);
        }
        Ok(Windows { index, window, ends })
    }

    /// How many windows there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or_default()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a window lies.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<Span> {
        let document = self.ends.partition_point(|end| *end <= number);
        let first = document.checked_sub(1).map_or(0, |before| self.ends[before]);
        let Field::Span(span) = self.index.record(document as u64)?.field(0)? else { return None };
        let width = self.window.dtype.bytes();
        let from = (number - first).checked_mul(self.window.stride)?.checked_mul(width)?;
        let length = (self.window.tokens() * width).min(span.length.checked_sub(from)?);
        Some(Span { offset: span.offset + from, length, ..span })
    }
}

/// Appends a file of `size` bytes as one document, or several that end behind the tokens `ends`, in order. Empty ones are left out.
///
/// # Errors
/// [`Kind::Undecodable`] when the file has no whole number of tokens; [`Kind::Usage`] when the ends are not in order or beyond it.
pub fn add(
    object: u32,
    size: u64,
    dtype: Dtype,
    ends: impl IntoIterator<Item = u64>,
    index: &mut IndexBuilder,
) -> Result<()> {
    whole_tokens(size, dtype)?;
    let mut begin = 0;
    for end in ends.into_iter().map(|end| end.checked_mul(dtype.bytes())).chain([Some(size)]) {
        let Some(end) = end.filter(|end| (begin..=size).contains(end)) else {
            let (before, last) = (begin / dtype.bytes(), size / dtype.bytes());
            let flaw = format!("a document ends before token {before} or behind the file's last, {last}");
            return Err(Error::new(Kind::Usage, flaw).with_hint("count the ends of documents in tokens, in order"));
        };
        document(object, begin, end, index)?;
        begin = end;
    }
    Ok(())
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
        whole_tokens(size, dtype)?;
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
                document(self.object, self.begin, self.at, index)?;
                self.begin = self.at;
            }
        }
        Ok(())
    }
}

fn document(object: u32, begin: u64, end: u64, index: &mut IndexBuilder) -> Result<()> {
    if begin == end {
        return Ok(());
    }
    index.push_range(object, begin, end - begin)
}

fn whole_tokens(size: u64, dtype: Dtype) -> Result<()> {
    if size.is_multiple_of(dtype.bytes()) {
        return Ok(());
    }
    Err(unsound(
        size - size % dtype.bytes(),
        format_args!("the file of {size} bytes ends within a token of type {dtype}"),
    ))
}
