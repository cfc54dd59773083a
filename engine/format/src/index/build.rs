//! The index being built: lists of pieces, so that growing never copies what is there and never takes twice its memory.

use super::{
    ABSENT, ABSENT_FIRST, FIELDS_MAX, Field, HEADER_BYTES, Header, Index, KEY_BYTES_MAX, KEYS_PER_BLOCK, OFFSETS_END,
    Place, Span, VALUE_LENGTH_BITS, stride,
};
use crate::{Format, shown};
use fuelrail_base::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::io::{self, Write};
use xxhash_rust::xxh3::Xxh3;

const PIECE_BYTES: usize = 1 << 20;
/// Most different values that are kept in mind to be stored once: labels repeat.
const KNOWN_VALUES_MAX: usize = 1 << 12;
const KNOWN_VALUE_BYTES_MAX: usize = 64;

/// Builds an [`Index`](super::Index). Takes the memory of the index and one piece of 1 MiB per section.
#[derive(Clone, Debug)]
pub struct IndexBuilder {
    format: Format,
    source: [u8; 16],
    objects: u32,
    fields: Vec<(Box<str>, Place)>,
    description: Vec<u8>,
    records: u64,
    /// Records by the number of fields that were known when they came.
    runs: Vec<(usize, Pieces)>,
    has_keys: bool,
    key_blocks: Pieces,
    keys: Pieces,
    values: Pieces,
    known_values: BTreeMap<Box<[u8]>, u64>,
    /// Not part of the index.
    open_ends: Vec<u32>,
}

/// A list of bytes that grows at its end.
#[derive(Clone, Default, Debug)]
struct Pieces {
    pieces: Vec<Vec<u8>>,
    len: u64,
}

impl Pieces {
    /// Appends `bytes`, which are never split: at most [`PIECE_BYTES`] but for a value.
    fn push(&mut self, bytes: &[u8]) {
        let fits = self.pieces.last().is_some_and(|piece| piece.len() + bytes.len() <= PIECE_BYTES);
        if !fits {
            // The first piece grows, so that a small index is small; later ones are allocated as a whole, so that none has room to spare.
            let capacity = if self.pieces.is_empty() { 0 } else { PIECE_BYTES };
            self.pieces.push(Vec::with_capacity(capacity));
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.extend_from_slice(bytes);
        }
        self.len += bytes.len() as u64;
    }
}

impl IndexBuilder {
    /// An empty index of records in `objects` objects of the listing that `source` identifies.
    pub fn new(format: Format, source: [u8; 16], objects: u32) -> IndexBuilder {
        IndexBuilder {
            format,
            source,
            objects,
            fields: Vec::new(),
            description: Vec::new(),
            records: 0,
            runs: Vec::new(),
            has_keys: true,
            key_blocks: Pieces::default(),
            keys: Pieces::default(),
            values: Pieces::default(),
            known_values: BTreeMap::new(),
            open_ends: Vec::new(),
        }
    }

    /// Leaves the keys out.
    #[must_use]
    pub fn without_keys(mut self) -> IndexBuilder {
        self.has_keys = false;
        self
    }

    /// Sets what the format needs to read a record's bytes.
    pub fn describe(&mut self, description: Vec<u8>) {
        self.description = description;
    }

    /// The number of the field of this name; a new one is added. The first field may be of any length.
    ///
    /// # Errors
    /// [`Kind::Usage`] when there are [`FIELDS_MAX`] others, or it has another place already.
    pub fn field(&mut self, name: &str, place: Place) -> Result<usize> {
        if let Some(known) = self.fields.iter().position(|(known, _)| **known == *name) {
            let differs = || refused(format!("two fields are named '{}'", shown(name.as_bytes())));
            return if self.fields[known].1 == place { Ok(known) } else { Err(differs()) };
        }
        let place_fits = place == Place::Near || !self.fields.is_empty();
        if self.fields.len() == FIELDS_MAX || name.len() > KEY_BYTES_MAX || !place_fits {
            let name = shown(name.as_bytes());
            let flaw =
                format!("field '{name}': an index holds at most {FIELDS_MAX} different fields, the first a range");
            return Err(
                refused(flaw).with_hint("check the names: what follows the first dot of a member's name is its field")
            );
        }
        self.fields.push((name.into(), place));
        Ok(self.fields.len() - 1)
    }

    /// How many fields it has.
    pub fn field_count(&self) -> usize {
        self.fields.len()
    }

    /// The name of a field.
    ///
    /// # Panics
    /// If there is no such field.
    pub fn field_name(&self, number: usize) -> &str {
        &self.fields[number].0
    }

    /// Notes that an object ends without the mark that ends its format: it may have been cut between two records.
    pub fn note_open_end(&mut self, object: u32) {
        self.open_ends.push(object);
    }

    /// The objects that were noted so. The index does not keep them.
    pub fn open_ends(&self) -> &[u32] {
        &self.open_ends
    }

    /// How many records it has.
    pub fn len(&self) -> u64 {
        self.records
    }

    /// Whether it has no record.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes that the index takes so far.
    pub fn bytes(&self) -> u64 {
        let records = self.records * stride(self.fields.len()) as u64;
        HEADER_BYTES as u64 + records + self.key_blocks.len + self.keys.len + self.values.len
    }

    /// Appends a record: its fields by their numbers, each at most once.
    ///
    /// # Errors
    /// [`Kind::Usage`] when a key, an offset or a length does not fit, and names the field.
    ///
    /// # Panics
    /// If a field has no such number, or is another place's.
    pub fn push(&mut self, key: &[u8], fields: &[(usize, Field<'_>)]) -> Result<()> {
        if self.fields.is_empty() {
            self.field("", Place::Near)?;
        }
        if self.has_keys && key.len() > KEY_BYTES_MAX {
            return Err(refused(format!("the key '{}…' is longer than {KEY_BYTES_MAX} bytes", shown(key))));
        }
        let mut record = [0xFF; 8 + 8 * FIELDS_MAX];
        let base = self.base(fields);
        let [object, offset, length] = [u64::from(base.object), base.offset, base.length];
        let is_there = fields.iter().any(|(number, _)| *number == 0);
        let head = u128::from(object) | u128::from(offset) << 32;
        let head = head | u128::from(if is_there { length } else { ABSENT_FIRST }) << 80;
        record[..16].copy_from_slice(&head.to_le_bytes());
        let end = offset.checked_add(length).filter(|end| *end < OFFSETS_END);
        if end.is_none() || base.object >= self.objects {
            return Err(self.does_not_fit(0, key, &Field::Span(base)));
        }
        for (number, field) in fields.iter().filter(|(number, _)| *number > 0) {
            let word = match field {
                Field::Span(span) => self.word(*number, base, *span),
                Field::Value(value) => self.value(value),
            };
            let word = word.ok_or_else(|| self.does_not_fit(*number, key, field))?;
            record[8 + 8 * number..16 + 8 * number].copy_from_slice(&word.to_le_bytes());
        }
        let count = self.fields.len();
        if self.runs.last().is_none_or(|(fields, _)| *fields != count) {
            self.runs.push((count, Pieces::default()));
        }
        if let Some((_, pieces)) = self.runs.last_mut() {
            pieces.push(&record[..stride(count)]);
        }
        if self.has_keys {
            if self.records.is_multiple_of(KEYS_PER_BLOCK) {
                self.key_blocks.push(&self.keys.len.to_le_bytes());
            }
            self.keys.push(&(key.len() as u16).to_le_bytes());
            self.keys.push(key);
        }
        self.records += 1;
        Ok(())
    }

    /// Appends the records of another index over the same objects. Fields are the same where their names are.
    ///
    /// # Errors
    /// As [`IndexBuilder::field`] and [`IndexBuilder::push`].
    pub fn extend<B: AsRef<[u8]>>(&mut self, other: &Index<B>) -> Result<()> {
        let numbers = other.fields().map(|(name, place)| self.field(name, place)).collect::<Result<Vec<usize>>>()?;
        let mut fields = Vec::new();
        for record in other.iter() {
            fields.clear();
            let there = numbers.iter().enumerate().filter_map(|(at, own)| Some((*own, record.field(at)?)));
            fields.extend(there);
            self.push(record.key().unwrap_or_default(), &fields)?;
        }
        Ok(())
    }

    /// Appends a record without a key, of one range.
    ///
    /// # Errors
    /// As [`IndexBuilder::push`].
    pub fn push_range(&mut self, object: u32, offset: u64, length: u64) -> Result<()> {
        self.push(&[], &[(0, Field::Span(Span { object, offset, length }))])
    }

    /// The first field; without it, the begin of the first near one, or of any object.
    fn base(&self, fields: &[(usize, Field<'_>)]) -> Span {
        let spans = fields.iter().filter_map(|(number, field)| match field {
            Field::Span(span) => Some((*number, *span)),
            Field::Value(_) => None,
        });
        if let Some((_, first)) = spans.clone().find(|(number, _)| *number == 0) {
            return first;
        }
        let near = spans.clone().find(|(number, _)| self.fields[*number].1 == Place::Near);
        let any = near.or(spans.clone().next()).map(|(_, span)| span);
        Span { length: 0, ..any.unwrap_or(Span { object: 0, offset: 0, length: 0 }) }
    }

    /// The 8 bytes of a further range.
    fn word(&self, number: usize, base: Span, span: Span) -> Option<u64> {
        let length = u64::from(u32::try_from(span.length).ok().filter(|length| *length != u32::MAX)?);
        let (high, sound) = match self.fields[number].1 {
            Place::SideCar => (span.object, span.offset == 0 && span.object < self.objects),
            _ => {
                let end = base.offset + base.length;
                let from = if span.offset < end { base.offset } else { end };
                let delta = i32::try_from(i64::try_from(span.offset).ok()?.checked_sub_unsigned(from)?).ok()?;
                // One that begins inside the first field would need a sign of its own.
                let inside = span.offset < end && delta >= 0;
                (delta as u32, span.object == base.object && !inside && span.offset + span.length < OFFSETS_END)
            }
        };
        sound.then_some(u64::from(high) << 32 | length)
    }

    /// Stores a value and returns the 8 bytes of its field.
    fn value(&mut self, value: &[u8]) -> Option<u64> {
        if let Some(known) = self.known_values.get(value) {
            return Some(*known);
        }
        let (from, length) = (self.values.len, value.len() as u64);
        if from >= ABSENT >> VALUE_LENGTH_BITS || length >> VALUE_LENGTH_BITS != 0 {
            return None;
        }
        self.values.push(value);
        let word = from << VALUE_LENGTH_BITS | length;
        if value.len() <= KNOWN_VALUE_BYTES_MAX && self.known_values.len() < KNOWN_VALUES_MAX {
            self.known_values.insert(value.into(), word);
        }
        Some(word)
    }

    fn does_not_fit(&self, number: usize, key: &[u8], field: &Field<'_>) -> Error {
        let (name, place) = (shown(self.fields[number].0.as_bytes()), self.fields[number].1);
        let what = match field {
            Field::Span(Span { object, offset, length }) => {
                format!("{length} bytes from {offset} on of object {object}")
            }
            Field::Value(value) => format!("{} bytes", value.len()),
        };
        refused(format!("record '{}', field '{name}': {what} do not fit an index as {place}", shown(key))).with_hint(
            "name the longest field first; further ones hold less than 4 GiB, within 2 GiB of it, values 16 MiB",
        )
    }

    /// Writes the index.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut hash = Xxh3::new();
        let names = self.names();
        self.write_body(&names, &mut hash)?;
        let header = Header {
            source: self.source,
            format: self.format,
            objects: self.objects.into(),
            fields: self.fields.len().max(1) as u64,
            has_keys: self.has_keys,
            records: self.records,
            names_bytes: names.len() as u64,
            description_bytes: self.description.len() as u64,
            keys_bytes: self.keys.len,
            values_bytes: self.values.len,
            body_hash: hash.digest(),
        };
        out.write_all(&header.encode())?;
        self.write_body(&names, out)
    }

    /// The index as one list of bytes, beside the builder's own memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes).expect("memory takes all that is written");
        bytes
    }

    fn names(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let unnamed = [(Box::default(), Place::Near)];
        for (name, place) in if self.fields.is_empty() { &unnamed[..] } else { &self.fields } {
            bytes.push(Place::ALL.iter().position(|known| known == place).unwrap_or_default() as u8);
            bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes
    }

    fn write_body(&self, names: &[u8], out: &mut impl Write) -> io::Result<()> {
        out.write_all(names)?;
        out.write_all(&self.description)?;
        for (fields, run) in &self.runs {
            // Fields that were not known yet are absent.
            let missing = [0xFF; 8 * FIELDS_MAX];
            let missing = &missing[..stride(self.fields.len()) - stride(*fields)];
            for piece in &run.pieces {
                if missing.is_empty() {
                    out.write_all(piece)?;
                    continue;
                }
                for record in piece.chunks_exact(stride(*fields)) {
                    out.write_all(record)?;
                    out.write_all(missing)?;
                }
            }
        }
        let rest = [&self.key_blocks, &self.keys, &self.values];
        rest.iter().flat_map(|section| &section.pieces).try_for_each(|piece| out.write_all(piece))
    }
}

fn refused(cause: impl Into<String>) -> Error {
    Error::new(Kind::Usage, cause)
}
