//! The other fields of records that were decoded: in the memory of their batch, behind its pixels.
//!
//! A table: for each sample where its fields end (u64, little-endian, from the end of these numbers on), then the name and the bytes of each
//! field, each behind its length (u64).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Bytes of the table for a sample, and for a field of it beside its name and bytes.
pub(crate) const SAMPLE_BYTES: usize = 8;
pub(crate) const FIELD_BYTES: usize = 16;

/// The fields of a decoded batch that the setting `fields` asks for, apart from the batch.
#[derive(Clone, Default)]
pub struct OtherFields {
    table: Arc<[u8]>,
    samples: usize,
}

impl OtherFields {
    pub(crate) fn new(table: &[u8], samples: usize) -> OtherFields {
        OtherFields { table: table.into(), samples }
    }

    /// The fields of sample `i` by their names, in the record's order.
    pub fn fields(&self, i: usize) -> impl Iterator<Item = (&str, &[u8])> {
        fields(&self.table, self.samples, i)
    }

    /// One field of sample `i`.
    #[must_use]
    pub fn field(&self, i: usize, name: &str) -> Option<&[u8]> {
        self.fields(i).find(|(known, _)| *known == name).map(|(_, bytes)| bytes)
    }
}

impl fmt::Debug for OtherFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fields of {} samples, {} bytes", self.samples, self.table.len())
    }
}

/// Writes the table of the samples with these fields. Returns its length; `None` where there is no room for it.
pub(crate) fn write<'a>(
    room: &mut [u8],
    samples: impl ExactSizeIterator<Item = Vec<(&'a str, Cow<'a, [u8]>)>>,
) -> Option<usize> {
    let (ends, bytes) = room.split_at_mut_checked(samples.len() * SAMPLE_BYTES)?;
    let mut at = 0;
    for (end, fields) in ends.as_chunks_mut().0.iter_mut().zip(samples) {
        for part in fields.iter().flat_map(|(name, bytes)| [name.as_bytes(), bytes]) {
            let (len, to) = bytes[at..].split_first_chunk_mut()?;
            *len = (part.len() as u64).to_le_bytes();
            to.get_mut(..part.len())?.copy_from_slice(part);
            at += len.len() + part.len();
        }
        *end = (at as u64).to_le_bytes();
    }
    Some(ends.len() + at)
}

/// The fields of sample `i` in a table of so many samples. A table of another process may lie: it then has fewer fields.
pub(crate) fn fields(table: &[u8], samples: usize, i: usize) -> impl Iterator<Item = (&str, &[u8])> {
    let (ends, bytes) = table.split_at_checked(samples.saturating_mul(SAMPLE_BYTES)).unwrap_or_default();
    let end_of = |i: usize| usize::try_from(u64::from_le_bytes(*ends.as_chunks().0.get(i)?)).ok();
    let from = i.checked_sub(1).map_or(Some(0), end_of);
    let mut rest = from.zip(end_of(i)).and_then(|(from, end)| bytes.get(from..end)).unwrap_or_default();
    std::iter::from_fn(move || Some((std::str::from_utf8(part(&mut rest)?).ok()?, part(&mut rest)?)))
}

/// The next part, which is behind its length.
fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, behind) = rest.split_first_chunk()?;
    let part;
    (part, *rest) = behind.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    Some(part)
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

    fn table(room: usize) -> Option<Vec<u8>> {
        let mut table = vec![0xEE; room];
        let fields =
            |of: &&[(&'static str, &'static [u8])]| of.iter().map(|(name, bytes)| (*name, (*bytes).into())).collect();
        let len = write(&mut table, GIVEN.iter().map(fields))?;
        table.truncate(len);
        Some(table)
    }

    #[test]
    fn every_sample_has_the_fields_that_it_was_given() {
        let table = table(1_000).unwrap();
        let other = OtherFields::new(&table, GIVEN.len());
        for (i, given) in GIVEN.iter().enumerate() {
            assert_eq!(other.fields(i).collect::<Vec<_>>(), *given, "sample {i}");
        }
        let found = (other.field(1, "txt"), other.field(1, "jpg"), other.field(0, "cls"));
        assert_eq!(found, (Some(&b"a cat"[..]), None, None));
        assert_eq!((other.fields(GIVEN.len()).count(), OtherFields::default().fields(0).count()), (0, 0));
    }

    #[test]
    fn what_does_not_fit_is_refused_and_the_room_that_is_stated_suffices() {
        let sizes = GIVEN.iter().flat_map(|of| of.iter().map(|(name, bytes)| FIELD_BYTES + name.len() + bytes.len()));
        let room = GIVEN.len() * SAMPLE_BYTES + sizes.sum::<usize>();
        assert_eq!(table(room).map(|table| table.len()), Some(room));
        assert!((0..room).all(|room| table(room).is_none()));
    }

    #[test]
    fn lengths_that_lie_cost_fields_and_nothing_else() {
        let table = table(1_000).unwrap();
        for (at, value) in (0..table.len()).flat_map(|at| [0, 1, 0x7F, 0xFF].map(|value| (at, value))) {
            let mut lying = table.clone();
            lying[at] = value;
            let read = (0..GIVEN.len()).flat_map(|i| fields(&lying, GIVEN.len(), i));
            let bytes: usize = read.map(|(name, bytes)| name.len() + bytes.len()).sum();
            assert!(bytes <= 2 * table.len(), "byte {at} is {value}");
        }
        for (cut, samples) in [(table.len() - 1, GIVEN.len()), (table.len(), 200), (table.len(), usize::MAX), (7, 1)] {
            (0..5).for_each(|i| assert!(fields(&table[..cut], samples, i).count() <= 3));
        }
    }
}
