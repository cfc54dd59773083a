//! A listing as a file has it: the pieces of memory it is used from, one after another, so that the file can be mapped.
//!
//! After the header: how many bytes of keys there are, how many odd tags, how many bytes of their texts (u64 each); sizes, ends of keys, digests,
//! odd tags, forms, keys, texts; and the CRC-32C of all of that, header included. Opening a file checks the checksum and every object, so reading from
//! it later cannot fail.

use super::piece::{Bytes, Piece};
use super::tags::{NONE, NUMBER, ODD, PARTS_MAX, Tags};
use super::{Chunk, Listing};
use fuelrail_base::limits::{KEY_BYTES_MAX, OBJECT_BYTES_MAX};
use fuelrail_wire::kept::{Flaw, HEADER_BYTES};
use std::io::{self, Write};
use std::sync::Arc;

/// Bytes of the three lengths, and of the checksum at the end.
const LENGTHS_BYTES: usize = 24;
const SUM_BYTES: usize = 4;

impl Listing {
    /// Writes it after `header`. Returns how many bytes that are, header included.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, header: &[u8; HEADER_BYTES], out: &mut impl Write) -> io::Result<u64> {
        let mut out = Summed { out, sum: 0, bytes: 0 };
        out.write(header)?;
        let bytes = |of: fn(&Chunk) -> &Piece| self.chunks.iter().map(|chunk| of(chunk).len() as u64).sum::<u64>();
        let odd: fn(&Chunk) -> &Piece = |chunk| &chunk.tags.odd;
        for length in [bytes(|chunk| &chunk.keys), bytes(odd) / 16, bytes(|chunk| &chunk.tags.texts)] {
            out.write(&length.to_le_bytes())?;
        }
        out.all(self, |chunk| &chunk.sizes)?;
        let mut keys = 0;
        for chunk in &self.chunks {
            for end in chunk.ends.numbers() {
                out.write(&(keys + end).to_le_bytes())?;
            }
            keys += chunk.keys.len() as u64;
        }
        out.all(self, |chunk| &chunk.tags.digests)?;
        let mut texts = 0;
        for (chunk, first) in self.chunks.iter().zip(&self.firsts) {
            for (at, number) in chunk.tags.odd.numbers().enumerate() {
                let before = if at % 2 == 0 { *first as u64 } else { texts };
                out.write(&(before + number).to_le_bytes())?;
            }
            texts += chunk.tags.texts.len() as u64;
        }
        out.all(self, |chunk| &chunk.tags.forms)?;
        out.all(self, |chunk| &chunk.keys)?;
        out.all(self, |chunk| &chunk.tags.texts)?;
        let sum = out.sum.to_le_bytes();
        out.write(&sum)?;
        Ok(out.bytes)
    }

    /// The listing of `objects` objects that a whole file holds, used from its memory.
    ///
    /// # Errors
    /// Why it is none.
    pub fn of_file(file: impl AsRef<[u8]> + Send + Sync + 'static, objects: u64) -> Result<Listing, Flaw> {
        let whole: Bytes = Arc::new(file);
        let file: &[u8] = (*whole).as_ref();
        let lengths = file.get(HEADER_BYTES..HEADER_BYTES + LENGTHS_BYTES).ok_or(Flaw::Short)?;
        let lengths = lengths.as_chunks::<8>().0;
        let [keys, odd, texts] = [0, 1, 2].map(|at| u64::from_le_bytes(lengths[at]));
        let product = |count: u64, bytes: u64| count.checked_mul(bytes).ok_or(Flaw::Absurd);
        let lengths = [
            product(objects, 8)?,
            product(objects, 8)?,
            product(objects, 16)?,
            product(odd, 16)?,
            product(objects, 2)?,
            keys,
            texts,
        ];
        let own = (HEADER_BYTES + LENGTHS_BYTES + SUM_BYTES) as u64;
        let due = lengths.iter().try_fold(own, |sum, length| sum.checked_add(*length)).ok_or(Flaw::Absurd)?;
        match file.len() as u64 {
            len if len < due => return Err(Flaw::Short),
            len if len > due => return Err(Flaw::Absurd),
            _ => {}
        }
        let (body, sum) = file.split_at(file.len() - SUM_BYTES);
        if crc32c::crc32c(body).to_le_bytes() != sum {
            return Err(Flaw::Damaged);
        }
        let mut at = HEADER_BYTES + LENGTHS_BYTES;
        let [sizes, ends, digests, odd, forms, keys, texts] = lengths.map(|length| {
            let from = at;
            at += length as usize;
            Piece::Shared(Arc::clone(&whole), from..at)
        });
        let chunk = Chunk { keys, ends, sizes, tags: Tags { digests, forms, texts, odd } };
        chunk.check().ok_or(Flaw::Absurd)?;
        let len = chunk.len();
        let chunks = if len > 0 { vec![chunk] } else { Vec::new() };
        Ok(Listing { firsts: vec![0; chunks.len()], chunks, len })
    }
}

impl Chunk {
    /// Whether all that is read later can be: `None` where it cannot.
    fn check(&self) -> Option<()> {
        let keys = core::str::from_utf8(&self.keys).ok()?;
        let mut before = "";
        let mut from = 0;
        for end in self.ends.numbers() {
            let end = usize::try_from(end).ok()?;
            let key = keys.get(from..end)?;
            if key <= before || key.len() > KEY_BYTES_MAX {
                return None;
            }
            (before, from) = (key, end);
        }
        let sizes = self.sizes.numbers().all(|size| size <= OBJECT_BYTES_MAX);
        (sizes && from == keys.len() && self.tags.check()?).then_some(())
    }
}

impl Tags {
    /// Whether each odd tag has its text, and all others their form.
    fn check(&self) -> Option<bool> {
        let texts = core::str::from_utf8(&self.texts).ok()?;
        let (mut odd, mut from) = (self.odd.numbers(), 0);
        for (at, form) in self.forms.as_chunks::<2>().0.iter().enumerate() {
            match u16::from_le_bytes(*form) {
                ODD => {
                    let (object, end) = (odd.next()?, odd.next()? as usize);
                    texts.get(from..end).filter(|_| object == at as u64)?;
                    from = end;
                }
                NONE | NUMBER | 0..=PARTS_MAX => {}
                _ => return None,
            }
        }
        Some(odd.next().is_none() && from == texts.len())
    }
}

/// Counts and sums up what is written.
struct Summed<'o, W> {
    out: &'o mut W,
    sum: u32,
    bytes: u64,
}

impl<W: Write> Summed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum = crc32c::crc32c_append(self.sum, bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// One piece of each chunk.
    fn all(&mut self, listing: &Listing, of: fn(&Chunk) -> &Piece) -> io::Result<()> {
        listing.chunks.iter().try_for_each(|chunk| self.write(of(chunk)))
    }
}
