//! The fields of a batch's records beside the one that was decoded, copied, because decoding gives the records' memory back.
//!
//! Owns the copies. What a field means is its reader's.

use std::borrow::Cow;
use std::fmt;

/// For each sample of a decoded batch, the fields of its record that were not decoded, as the shard has them. Empty where samples are not
/// records, or were not decoded.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeptFields {
    /// Where the fields of each sample end.
    ends: Vec<u64>,
    /// Name and bytes of each field, each behind its length (u64, little-endian).
    bytes: Vec<u8>,
}

impl KeptFields {
    /// Adds the fields of the next sample.
    pub fn push<'a>(&mut self, fields: impl Iterator<Item = (&'a str, Cow<'a, [u8]>)>) {
        for (name, bytes) in fields {
            for part in [name.as_bytes(), &bytes] {
                self.bytes.extend((part.len() as u64).to_le_bytes());
                self.bytes.extend_from_slice(part);
            }
        }
        self.ends.push(self.bytes.len() as u64);
    }

    /// The fields of sample `i` by their names, in the record's order.
    pub fn fields(&self, i: usize) -> impl Iterator<Item = (&str, &[u8])> {
        let end_of = |i: usize| usize::try_from(*self.ends.get(i)?).ok();
        let from = i.checked_sub(1).map_or(Some(0), end_of);
        let mut rest = from.zip(end_of(i)).and_then(|(from, end)| self.bytes.get(from..end)).unwrap_or_default();
        std::iter::from_fn(move || Some((std::str::from_utf8(part(&mut rest)?).ok()?, part(&mut rest)?)))
    }

    /// One field of sample `i`.
    #[must_use]
    pub fn field(&self, i: usize, name: &str) -> Option<&[u8]> {
        self.fields(i).find(|(known, _)| *known == name).map(|(_, bytes)| bytes)
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + 8 * self.ends.len()
    }

    /// As bytes, for another process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let ends = self.ends.iter().flat_map(|end| end.to_le_bytes());
        ends.chain(self.bytes.iter().copied()).collect()
    }

    /// What [`KeptFields::to_bytes`] made of the fields of so many samples, or of none; `None` for what it did not make. Of lengths inside that
    /// lie, fields are missing.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], samples: usize) -> Option<KeptFields> {
        if bytes.is_empty() {
            return Some(KeptFields::default());
        }
        let (ends, bytes) = bytes.split_at_checked(samples.checked_mul(8)?)?;
        let ends: Vec<u64> = ends.as_chunks().0.iter().map(|end| u64::from_le_bytes(*end)).collect();
        (ends.last().copied().unwrap_or(0) == bytes.len() as u64).then(|| KeptFields { ends, bytes: bytes.to_vec() })
    }
}

/// The next part, which is behind its length.
fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, behind) = rest.split_first_chunk()?;
    let part;
    (part, *rest) = behind.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    Some(part)
}

impl fmt::Debug for KeptFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fields of {} samples, {} bytes", self.ends.len(), self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Given = [&'static [(&'static str, &'static [u8])]];

    /// Several fields of one name, empty ones, and samples without any.
    const GIVEN: &Given = &[
        &[],
        &[("cls", b"7"), ("txt", b"a cat"), ("txt", b"another")],
        &[("", b""), ("empty", b"")],
        &[],
        &[("\u{e9}", &[0xFF; 300])],
    ];

    fn kept(samples: &Given) -> KeptFields {
        let mut kept = KeptFields::default();
        samples.iter().for_each(|fields| kept.push(fields.iter().map(|(name, bytes)| (*name, (*bytes).into()))));
        kept
    }

    #[test]
    fn every_sample_has_the_fields_that_it_was_given() {
        let kept = KeptFields::from_bytes(&kept(GIVEN).to_bytes(), GIVEN.len()).unwrap();
        for (i, given) in GIVEN.iter().enumerate() {
            assert_eq!(kept.fields(i).collect::<Vec<_>>(), *given, "sample {i}");
        }
        assert_eq!(
            (kept.field(1, "txt"), kept.field(1, "jpg"), kept.field(0, "cls")),
            (Some(&b"a cat"[..]), None, None)
        );
        assert_eq!((kept.fields(GIVEN.len()).count(), KeptFields::default().fields(0).count()), (0, 0));
        assert_eq!(KeptFields::from_bytes(&[], 3), Some(KeptFields::default()));
    }

    #[test]
    fn lengths_that_lie_cost_fields_and_nothing_else() {
        let bytes = kept(GIVEN).to_bytes();
        for (at, value) in (0..bytes.len()).flat_map(|at| [0, 1, 0x7F, 0xFF].map(|value| (at, value))) {
            let mut lying = bytes.clone();
            lying[at] = value;
            let Some(kept) = KeptFields::from_bytes(&lying, GIVEN.len()) else { continue };
            let read = (0..GIVEN.len()).flat_map(|i| kept.fields(i)).map(|(name, bytes)| name.len() + bytes.len());
            assert!(read.sum::<usize>() <= 2 * bytes.len(), "byte {at} is {value}");
        }
        for (cut, samples) in [(bytes.len() - 1, GIVEN.len()), (bytes.len(), 200), (bytes.len(), usize::MAX), (7, 1)] {
            assert_eq!(KeptFields::from_bytes(&bytes[..cut], samples), None, "{cut} bytes of {samples} samples");
        }
    }
}
