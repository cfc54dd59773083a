//! The record index: where every record's fields lie, as flat bytes that can be memory-mapped.
//!
//! A header of [`HEADER_BYTES`], then the fields' names, the format's own description, the records, and, apart, keys and values. All numbers
//! are little-endian. A record takes 16 bytes for its first field (object, 32 bits; offset, 48; length, 48) and 8 for every further one, by
//! the field's [`Place`]; a field that a record lacks takes its 8 bytes. Objects are numbers in the listing that the index was made from,
//! which `source` identifies.

mod build;
#[cfg(test)]
mod tests;

pub use build::IndexBuilder;

use crate::Format;
use crate::bytes::{array_at, take, u32_at, u64_at};
use fuelrail_base::{Error, Kind, Result, named};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 112;
/// Most different fields of one index. With all of them a record takes 520 bytes, about what its shortest tar member does.
pub const FIELDS_MAX: usize = 64;
/// Longest key of a record, bytes.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Offsets and lengths of first fields stay below this.
pub const OFFSETS_END: u64 = (1 << 48) - 1;

const MAGIC: &[u8; 16] = b"fuelrail records";
const VERSION: u32 = 1;
/// Keys are found by walking a block of so many.
const KEYS_PER_BLOCK: u64 = 32;
/// The length of a first field, or the 8 bytes of a further one, that a record lacks.
const ABSENT_FIRST: u64 = OFFSETS_END;
const ABSENT: u64 = u64::MAX;
const VALUE_LENGTH_BITS: u32 = 24;

/// Where a field's bytes lie. The first field of an index is always `Near`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the record's object, at most 2 GiB from the first field, shorter than 4 GiB.
    Near,
    /// A whole other object, shorter than 4 GiB.
    SideCar,
    /// In the index itself: at most 16 MiB.
    Value,
}

named!(Place, "a place": Near = "near", SideCar = "side-car", Value = "value");

/// A byte range of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Its number in the listing.
    pub object: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// The bytes of a field, or where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field<'a> {
    /// A range of an object.
    Span(Span),
    /// The bytes.
    Value(&'a [u8]),
}

/// A record index that has been checked as a whole: reading a record allocates nothing and cannot fail.
#[derive(Debug)]
pub struct Index<B> {
    bytes: B,
    format: Format,
    source: [u8; 16],
    objects: u32,
    records: u64,
    fields: Vec<(Box<str>, Place)>,
    has_keys: bool,
    sections: Sections,
}

/// Where the sections begin. The sum of all is the length of the index, which is a `usize`.
#[derive(Clone, Copy, Debug)]
struct Sections {
    description: usize,
    records: usize,
    key_blocks: usize,
    keys: usize,
    values: usize,
}

impl<B: AsRef<[u8]>> Index<B> {
    /// Checks an index: its checksums, lengths, and every record.
    ///
    /// # Errors
    /// [`Kind::Undecodable`], saying what is wrong with it.
    pub fn open(bytes: B) -> Result<Index<B>> {
        let all = bytes.as_ref();
        let header = Header::decode(all)?;
        let body = &all[HEADER_BYTES..];
        if xxh3_64(body) != header.body_hash {
            return Err(damaged("the checksum does not match its content"));
        }
        let mut rest = body;
        let mut section = |length: u64| take(&mut rest, length).ok_or_else(|| damaged("a section ends beyond its end"));
        let names = section(header.names_bytes)?;
        let description = section(header.description_bytes)?;
        let fields = field_names(names, header.fields)?;
        let stride = stride(fields.len()) as u64;
        let records = section(header.records.checked_mul(stride).ok_or_else(|| damaged("too many records"))?)?;
        let blocks = if header.has_keys { header.records.div_ceil(KEYS_PER_BLOCK) * 8 } else { 0 };
        let key_blocks = section(blocks)?;
        let keys = section(header.keys_bytes)?;
        let values = section(header.values_bytes)?;
        if !rest.is_empty() {
            return Err(damaged("it is longer than its header says"));
        }
        let places = [names, description, records, key_blocks, keys];
        let mut at = HEADER_BYTES;
        let [description, records, key_blocks, keys, values_at] = places.map(|section| {
            at += section.len();
            at
        });
        let value_bytes = values.len() as u64;
        let sections = Sections { description, records, key_blocks, keys, values: values_at };
        let (format, source, objects) = (header.format, header.source, header.objects);
        let (records, has_keys) = (header.records, header.has_keys);
        let index = Index { bytes, format, source, objects, records, fields, has_keys, sections };
        index.check_records(value_bytes)?;
        index.check_keys()?;
        Ok(index)
    }

    fn check_records(&self, value_bytes: u64) -> Result<()> {
        for at in 0..self.records {
            let record = self.at(at);
            let (first, is_there) = record.first();
            let sound = |number: usize| match (self.fields[number].1, record.word(number)) {
                (_, ABSENT) => true,
                (Place::Near, word) => {
                    let (delta, length) = ((word >> 32) as u32 as i32, word & 0xFFFF_FFFF);
                    let offset = near(first, delta);
                    offset.is_some_and(|offset| offset + length <= OFFSETS_END)
                }
                (Place::SideCar, word) => (word >> 32) < u64::from(self.objects),
                (Place::Value, word) => value_range(word).1 <= value_bytes,
            };
            let fits = first.object < self.objects && first.offset + first.length <= OFFSETS_END;
            if !fits || !(1..self.fields.len()).all(sound) || !(is_there || self.fields.len() > 1) {
                return Err(damaged(format!("record {at} has an impossible range")));
            }
        }
        Ok(())
    }

    fn check_keys(&self) -> Result<()> {
        if !self.has_keys {
            return Ok(());
        }
        let keys = &self.as_bytes()[self.sections.keys..self.sections.values];
        let mut end = 0;
        for number in 0..self.records {
            if number % KEYS_PER_BLOCK == 0 && self.key_block(number) != Some(end as u64) {
                return Err(damaged(format!("the key of record {number} is not where it should be")));
            }
            let length = array_at(keys, end).map(u16::from_le_bytes);
            let next = length.map(|length| end + 2 + usize::from(length)).filter(|next| *next <= keys.len());
            end = next.ok_or_else(|| damaged(format!("the key of record {number} is cut off")))?;
        }
        if end == keys.len() { Ok(()) } else { Err(damaged("there are more keys than records")) }
    }

    /// All its bytes, as they are kept.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    fn key_block(&self, record: u64) -> Option<u64> {
        let block = usize::try_from(record / KEYS_PER_BLOCK).ok()?;
        u64_at(self.as_bytes(), self.sections.key_blocks + block * 8)
    }

    /// The format whose scan made it.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Identifies the listing whose objects it numbers: what [`IndexBuilder::new`] was given.
    #[must_use]
    pub fn source(&self) -> [u8; 16] {
        self.source
    }

    /// What the format needs to read a record's bytes, such as the columns of MDS.
    #[must_use]
    pub fn description(&self) -> &[u8] {
        &self.as_bytes()[self.sections.description..self.sections.records]
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.records
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Names and places of the fields.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = (&str, Place)> {
        self.fields.iter().map(|(name, place)| (&**name, *place))
    }

    /// The number of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|(known, _)| **known == *name)
    }

    /// A record by its number.
    #[must_use]
    pub fn record(&self, number: u64) -> Option<Record<'_>> {
        (number < self.records).then(|| self.at(number))
    }

    /// All records in their order.
    pub fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        (0..self.records).map(|number| self.at(number))
    }

    /// A record that is there.
    fn at(&self, number: u64) -> Record<'_> {
        let stride = stride(self.fields.len());
        let from = self.sections.records + number as usize * stride;
        let values = &self.as_bytes()[self.sections.values..];
        Record { bytes: &self.as_bytes()[from..from + stride], fields: &self.fields, values, keys: self.key(number) }
    }

    /// The keys from the block's first on, and how many to pass.
    fn key(&self, record: u64) -> Option<(&[u8], u64)> {
        let from = self.has_keys.then(|| self.key_block(record))??;
        let keys = &self.as_bytes()[self.sections.keys..self.sections.values];
        Some((keys.get(usize::try_from(from).ok()?..)?, record % KEYS_PER_BLOCK))
    }
}

/// One record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    bytes: &'a [u8],
    fields: &'a [(Box<str>, Place)],
    values: &'a [u8],
    keys: Option<(&'a [u8], u64)>,
}

impl<'a> Record<'a> {
    /// Its key, if the index has keys.
    #[must_use]
    pub fn key(&self) -> Option<&'a [u8]> {
        let (mut keys, skipped) = self.keys?;
        let mut key = None;
        for _ in 0..=skipped {
            let length = u16::from_le_bytes(take(&mut keys, 2)?.try_into().ok()?);
            key = take(&mut keys, u64::from(length));
        }
        key
    }

    /// A field by its number in [`Index::fields`]. `None` where the record lacks it.
    #[must_use]
    pub fn field(&self, number: usize) -> Option<Field<'a>> {
        let (first, is_there) = self.first();
        if number == 0 {
            return is_there.then_some(Field::Span(first));
        }
        let word = (number < self.fields.len()).then(|| self.word(number)).filter(|word| *word != ABSENT)?;
        let (high, low) = ((word >> 32) as u32, word & 0xFFFF_FFFF);
        Some(match self.fields[number].1 {
            Place::Near => Field::Span(Span { object: first.object, offset: near(first, high as i32)?, length: low }),
            Place::SideCar => Field::Span(Span { object: high, offset: 0, length: low }),
            Place::Value => {
                let (from, to) = value_range(word);
                Field::Value(self.values.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?)?)
            }
        })
    }

    /// The fields that the record has, with their names.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> + use<'a> {
        let record = *self;
        let named = record.fields.iter().enumerate();
        named.filter_map(move |(number, (name, _))| Some((&**name, record.field(number)?)))
    }

    /// The first field, and whether it is there: if not, its length is 0 and its offset what others are relative to.
    fn first(&self) -> (Span, bool) {
        let object = u32_at(self.bytes, 0).unwrap_or_default();
        let offset = u64_at(self.bytes, 4).unwrap_or_default() & OFFSETS_END;
        let length = u64_at(self.bytes, 8).unwrap_or_default() >> 16;
        let is_there = length != ABSENT_FIRST;
        (Span { object, offset, length: if is_there { length } else { 0 } }, is_there)
    }

    /// The 8 bytes of a further field.
    fn word(&self, number: usize) -> u64 {
        u64_at(self.bytes, 8 + 8 * number).unwrap_or(ABSENT)
    }
}

/// Bytes of a record with so many fields.
fn stride(fields: usize) -> usize {
    8 + 8 * fields.max(1)
}

/// The offset of a near field: behind the first one's end, or so many bytes before its begin.
fn near(first: Span, delta: i32) -> Option<u64> {
    let from = if delta < 0 { first.offset } else { first.offset + first.length };
    from.checked_add_signed(i64::from(delta))
}

/// First and last byte of a value.
fn value_range(word: u64) -> (u64, u64) {
    let from = word >> VALUE_LENGTH_BITS;
    (from, from + (word & ((1 << VALUE_LENGTH_BITS) - 1)))
}

/// The names' section: for each its place, length and bytes.
fn field_names(mut bytes: &[u8], count: u32) -> Result<Vec<(Box<str>, Place)>> {
    let mut fields: Vec<(Box<str>, Place)> = Vec::new();
    if !(1..=FIELDS_MAX as u32).contains(&count) {
        return Err(damaged("it has no fields or too many"));
    }
    for number in 0..count {
        let mut next = || {
            let place = *Place::ALL.get(usize::from(take(&mut bytes, 1)?[0]))?;
            let length = u16::from_le_bytes(take(&mut bytes, 2)?.try_into().ok()?);
            let name = core::str::from_utf8(take(&mut bytes, u64::from(length))?).ok()?;
            (number > 0 || place == Place::Near).then(|| (Box::from(name), place))
        };
        fields.push(next().ok_or_else(|| damaged(format!("field {number} has no sound name")))?);
    }
    if bytes.is_empty() { Ok(fields) } else { Err(damaged("there are more names than fields")) }
}

fn damaged(cause: impl Into<String>) -> Error {
    Error::new(Kind::Undecodable, cause).within("record index").with_hint("remove it and make it again")
}

/// The header, without magic and version.
struct Header {
    format: Format,
    source: [u8; 16],
    objects: u32,
    fields: u32,
    has_keys: bool,
    records: u64,
    names_bytes: u64,
    description_bytes: u64,
    keys_bytes: u64,
    values_bytes: u64,
    body_hash: u64,
}

impl Header {
    /// Magic (16), version, format (4 each), source (16), objects, fields, has keys, zero (4 each), records, lengths of the names, the
    /// description, the keys and the values, XXH3-64 of all behind the header, and of the header before it (8 each).
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[24..40].copy_from_slice(&self.source);
        let format = Format::ALL.iter().position(|format| *format == self.format).unwrap_or_default() as u32;
        let numbers = [(16, VERSION), (20, format), (40, self.objects), (44, self.fields), (48, self.has_keys.into())];
        for (at, number) in numbers {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        let numbers = [self.records, self.names_bytes, self.description_bytes, self.keys_bytes, self.values_bytes];
        for (place, number) in bytes[56..104].chunks_exact_mut(8).zip(numbers.into_iter().chain([self.body_hash])) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let hash = xxh3_64(&bytes[..104]);
        bytes[104..].copy_from_slice(&hash.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Header> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or_else(|| damaged("it is truncated"))?;
        let number = |at| u32_at(bytes, at).expect("it lies in the header");
        let long = |at| u64_at(bytes, at).expect("it lies in the header");
        if !bytes.starts_with(MAGIC) {
            return Err(damaged("it is another kind of file"));
        }
        if number(16) != VERSION {
            let version = number(16);
            return Err(damaged(format!("it has version {version}, this program supports {VERSION}")));
        }
        let format = Format::ALL.get(number(20) as usize).copied();
        let (Some(format), true) = (format, xxh3_64(&bytes[..104]) == long(104)) else {
            return Err(damaged("its header is damaged"));
        };
        Ok(Header {
            format,
            source: array_at(bytes, 24).expect("it lies in the header"),
            objects: number(40),
            fields: number(44),
            has_keys: number(48) != 0,
            records: long(56),
            names_bytes: long(64),
            description_bytes: long(72),
            keys_bytes: long(80),
            values_bytes: long(88),
            body_hash: long(96),
        })
    }
}
