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
pub const HEADER_BYTES: usize = 128;
/// Most different fields of one index. With all of them a record takes 520 bytes, about what its shortest tar member does.
pub const FIELDS_MAX: usize = 64;
/// Longest key of a record, bytes.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Offsets and lengths of first fields stay below this.
pub const OFFSETS_END: u64 = (1 << 48) - 1;

const MAGIC: &[u8; 16] = b"fuelrail records";
const VERSION: u64 = 1;
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
    header: Header,
    fields: Vec<(Box<str>, Place)>,
    /// Where names, description, records, offsets of blocks of keys, keys and values begin, and the last ends.
    sections: [usize; 7],
}

impl<B: AsRef<[u8]>> Index<B> {
    /// Checks an index: its checksums, lengths, and every record.
    ///
    /// # Errors
    /// [`Kind::Undecodable`], saying what is wrong with it.
    pub fn open(bytes: B) -> Result<Index<B>> {
        let all = bytes.as_ref();
        let header = Header::decode(all)?;
        let sections = header.sections().filter(|sections| sections[6] == all.len());
        let sections = sections.ok_or_else(|| damaged("its sections do not add up to its length"))?;
        if xxh3_64(&all[HEADER_BYTES..]) != header.body_hash {
            return Err(damaged("the checksum does not match its content"));
        }
        let fields = field_names(&all[sections[0]..sections[1]], header.fields)?;
        let index = Index { bytes, header, fields, sections };
        index.check_records()?;
        index.check_keys()?;
        Ok(index)
    }

    /// All its bytes, as they are kept.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// What they lie in.
    pub fn memory(&self) -> &B {
        &self.bytes
    }

    /// A section by its place in the list above.
    fn section(&self, number: usize) -> &[u8] {
        &self.bytes.as_ref()[self.sections[number]..self.sections[number + 1]]
    }

    fn check_records(&self) -> Result<()> {
        let value_bytes = self.header.values_bytes;
        for at in 0..self.header.records {
            let record = self.at(at);
            let (first, is_there) = record.first();
            let sound = |number: usize| match (self.fields[number].1, record.word(number)) {
                (_, ABSENT) => true,
                (Place::Near, word) => {
                    let (delta, length) = ((word >> 32) as u32 as i32, word & 0xFFFF_FFFF);
                    let offset = near(first, delta);
                    offset.is_some_and(|offset| offset + length <= OFFSETS_END)
                }
                (Place::SideCar, word) => (word >> 32) < self.header.objects,
                (Place::Value, word) => value_range(word).1 <= value_bytes,
            };
            let fits = u64::from(first.object) < self.header.objects && first.offset + first.length <= OFFSETS_END;
            if !fits || !(1..self.fields.len()).all(sound) || !(is_there || self.fields.len() > 1) {
                return Err(damaged(format!("record {at} has an impossible range")));
            }
        }
        Ok(())
    }

    fn check_keys(&self) -> Result<()> {
        let (keys, mut end) = (self.section(4), 0);
        for number in 0..if self.header.has_keys { self.header.records } else { 0 } {
            if number % KEYS_PER_BLOCK == 0 && self.key_block(number) != Some(end as u64) {
                return Err(damaged(format!("the key of record {number} is not where it should be")));
            }
            let length = array_at(keys, end).map(u16::from_le_bytes);
            let next = length.map(|length| end + 2 + usize::from(length)).filter(|next| *next <= keys.len());
            end = next.ok_or_else(|| damaged(format!("the key of record {number} is cut off")))?;
        }
        if end == keys.len() { Ok(()) } else { Err(damaged("there are more keys than records")) }
    }

    fn key_block(&self, record: u64) -> Option<u64> {
        u64_at(self.section(3), usize::try_from(record / KEYS_PER_BLOCK).ok()? * 8)
    }

    /// The format whose scan made it.
    pub fn format(&self) -> Format {
        self.header.format
    }

    /// A hash of all records, without what tells which objects they were found in.
    pub fn body_hash(&self) -> u64 {
        self.header.body_hash
    }

    /// Identifies the listing whose objects it numbers: what [`IndexBuilder::new`] was given.
    pub fn source(&self) -> [u8; 16] {
        self.header.source
    }

    /// What the format needs to read a record's bytes, such as the columns of MDS.
    pub fn description(&self) -> &[u8] {
        self.section(1)
    }

    /// How many records there are.
    pub fn len(&self) -> u64 {
        self.header.records
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.header.records == 0
    }

    /// Names and places of the fields.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = (&str, Place)> {
        self.fields.iter().map(|(name, place)| (&**name, *place))
    }

    /// The number of a field.
    pub fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|(known, _)| **known == *name)
    }

    /// A record by its number.
    pub fn record(&self, number: u64) -> Option<Record<'_>> {
        (number < self.header.records).then(|| self.at(number))
    }

    /// All records in their order.
    pub fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        (0..self.header.records).map(|number| self.at(number))
    }

    /// A record that is there.
    fn at(&self, number: u64) -> Record<'_> {
        let stride = stride(self.fields.len());
        let bytes = &self.section(2)[number as usize * stride..][..stride];
        let from = self.header.has_keys.then(|| self.key_block(number)).flatten();
        let keys = from.and_then(|from| self.section(4).get(usize::try_from(from).ok()?..));
        let keys = keys.map(|keys| (keys, number % KEYS_PER_BLOCK));
        Record { bytes, fields: &self.fields, values: self.section(5), keys }
    }
}

/// One record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    bytes: &'a [u8],
    fields: &'a [(Box<str>, Place)],
    values: &'a [u8],
    /// The keys from its block's first on, and how many to pass.
    keys: Option<(&'a [u8], u64)>,
}

impl<'a> Record<'a> {
    /// Its key, if the index has keys.
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

/// The offset of a near field: after the first one's end, or so many bytes before its begin.
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
fn field_names(mut bytes: &[u8], count: u64) -> Result<Vec<(Box<str>, Place)>> {
    let mut fields: Vec<(Box<str>, Place)> = Vec::new();
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

/// The header, without magic, version and its own checksum.
#[derive(Debug)]
struct Header {
    source: [u8; 16],
    format: Format,
    objects: u64,
    fields: u64,
    has_keys: bool,
    records: u64,
    names_bytes: u64,
    description_bytes: u64,
    keys_bytes: u64,
    values_bytes: u64,
    body_hash: u64,
}

impl Header {
    /// Magic and source (16 bytes each), version, format, and the other numbers in their order (8 each); the last is the XXH3-64 of those
    /// before it, the one before that of all after the header.
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..32].copy_from_slice(&self.source);
        let Header { objects, fields, has_keys, records, names_bytes, description_bytes, .. } = *self;
        let Header { keys_bytes, values_bytes, body_hash, .. } = *self;
        let format = Format::ALL.iter().position(|format| *format == self.format).unwrap_or_default() as u64;
        let begin = [VERSION, format, objects, fields, has_keys.into(), records];
        let lengths = [names_bytes, description_bytes, keys_bytes, values_bytes, body_hash];
        for (place, number) in bytes[32..].chunks_exact_mut(8).zip(begin.into_iter().chain(lengths)) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let hash = xxh3_64(&bytes[..HEADER_BYTES - 8]);
        bytes[HEADER_BYTES - 8..].copy_from_slice(&hash.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Header> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or_else(|| damaged("it is truncated"))?;
        let numbers: [u64; 12] = core::array::from_fn(|n| u64_at(bytes, 32 + 8 * n).unwrap_or_default());
        let [version, format, objects, fields, has_keys, records, ..] = numbers;
        let [.., names_bytes, description_bytes, keys_bytes, values_bytes, body_hash, hash] = numbers;
        if !bytes.starts_with(MAGIC) {
            return Err(damaged("it is another kind of file"));
        }
        if version != VERSION {
            return Err(damaged(format!("it has version {version}, this program supports {VERSION}")));
        }
        let format = usize::try_from(format).ok().and_then(|format| Format::ALL.get(format).copied());
        let sound = xxh3_64(&bytes[..HEADER_BYTES - 8]) == hash && (1..=FIELDS_MAX as u64).contains(&fields);
        let format = format.filter(|_| sound).ok_or_else(|| damaged("its header is damaged"))?;
        let (source, has_keys) = (array_at(bytes, 16).unwrap_or_default(), has_keys != 0);
        Ok(Header {
            source,
            format,
            objects,
            fields,
            has_keys,
            records,
            names_bytes,
            description_bytes,
            keys_bytes,
            values_bytes,
            body_hash,
        })
    }

    /// Where the sections begin, and the last ends. `None` where that is no length in memory.
    fn sections(&self) -> Option<[usize; 7]> {
        let records = self.records.checked_mul(stride(self.fields as usize) as u64)?;
        let blocks = if self.has_keys { self.records.div_ceil(KEYS_PER_BLOCK) * 8 } else { 0 };
        let lengths = [self.names_bytes, self.description_bytes, records, blocks, self.keys_bytes, self.values_bytes];
        let mut sections = [HEADER_BYTES; 7];
        for (number, length) in lengths.into_iter().enumerate() {
            sections[number + 1] = sections[number].checked_add(usize::try_from(length).ok()?)?;
        }
        Some(sections)
    }
}
