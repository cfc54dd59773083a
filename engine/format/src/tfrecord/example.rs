//! `tf.Example`, read where it lies: a protocol buffer of named lists of bytes, floats or integers.

use crate::bytes::{array_at, take, varint};
use fuelrail_base::{Error, Kind, Result};

/// Reads examples. Keeps the places of features from one to the next, so that a warm reader allocates nothing.
#[derive(Default, Debug)]
pub struct Example {
    entries: Vec<Entry>,
}

/// Where a feature lies in the example.
#[derive(Clone, Copy, Debug)]
struct Entry {
    name: (u32, u32),
    value: (u32, u32),
}

impl Example {
    /// Reads an example: all of its features are checked. Where a name stands twice, the last counts, as in any protocol buffer.
    ///
    /// # Errors
    /// [`Kind::Undecodable`] when it is not a sound `tf.Example`.
    pub fn read<'r, 'a>(&'r mut self, example: &'a [u8]) -> Result<Features<'r, 'a>> {
        self.entries.clear();
        let sound = u32::try_from(example.len()).is_ok() && self.find(example).is_some();
        let slice = |range| slice(example, range);
        // The order of equal names is that of their places, last first.
        self.entries.sort_unstable_by(|a, b| slice(a.name).cmp(slice(b.name)).then(b.value.0.cmp(&a.value.0)));
        self.entries.dedup_by(|later, first| slice(later.name) == slice(first.name));
        let features = Features { example, entries: &self.entries };
        let checked = features.entries.iter().all(|entry| {
            let value = Feature::parse(slice(entry.value));
            core::str::from_utf8(slice(entry.name)).is_ok() && value.is_some_and(|feature| feature.values().all_sound())
        });
        if sound && checked {
            return Ok(features);
        }
        let hint = "read its bytes as they are, or write the file again";
        Err(Error::new(Kind::Undecodable, "the record is not a sound tf.Example").with_hint(hint))
    }

    /// Lists the entries of the map. `None` where the bytes are not sound.
    fn find(&mut self, example: &[u8]) -> Option<()> {
        let place = |part: &[u8]| {
            // Parts are slices of the example: their distance is their place.
            let from = part.as_ptr() as usize - example.as_ptr() as usize;
            (from as u32, (from + part.len()) as u32)
        };
        let mut rest = example;
        while !rest.is_empty() {
            // Another field makes it another message, such as a `tf.train.SequenceExample`, or other bytes that can be read as one.
            let (1, Wire::Bytes(mut features)) = field(&mut rest)? else { return None };
            while !features.is_empty() {
                let (1, Wire::Bytes(mut entry)) = field(&mut features)? else { continue };
                let (mut name, mut value) = (&entry[..0], None);
                while !entry.is_empty() {
                    match field(&mut entry)? {
                        (1, Wire::Bytes(bytes)) => name = bytes,
                        // Two would have to be merged; no writer does it.
                        (2, Wire::Bytes(_)) if value.is_some() => return None,
                        (2, Wire::Bytes(bytes)) => value = Some(bytes),
                        _ => {}
                    }
                }
                self.entries.push(Entry { name: place(name), value: place(value.unwrap_or(entry)) });
            }
        }
        Some(())
    }
}

fn slice(example: &[u8], range: (u32, u32)) -> &[u8] {
    &example[range.0 as usize..range.1 as usize]
}

/// The features of an example, by name; `'r` is the reader's life, `'a` the example's.
#[derive(Clone, Copy, Debug)]
pub struct Features<'r, 'a> {
    example: &'a [u8],
    entries: &'r [Entry],
}

impl<'r, 'a> Features<'r, 'a> {
    /// All of them, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Feature<'a>)> + use<'r, 'a> {
        let Features { example, entries } = *self;
        entries.iter().filter_map(move |entry| {
            Some((core::str::from_utf8(slice(example, entry.name)).ok()?, Feature::parse(slice(example, entry.value))?))
        })
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<Feature<'a>> {
        let found = self.entries.binary_search_by(|entry| slice(self.example, entry.name).cmp(name.as_bytes()));
        Feature::parse(slice(self.example, self.entries[found.ok()?].value))
    }
}

/// A feature: a list of values of one kind.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Feature<'a> {
    /// The number of the field that is set: 1 bytes, 2 floats, 3 integers, 0 none.
    kind: u64,
    /// From the first list that counts on.
    lists: &'a [u8],
}

impl<'a> Feature<'a> {
    /// Of the three kinds the last one counts; lists of it that follow each other are one.
    fn parse(message: &'a [u8]) -> Option<Feature<'a>> {
        let (mut feature, mut rest) = (Feature { kind: 0, lists: &[] }, message);
        while !rest.is_empty() {
            let from = rest;
            if let (kind @ 1..=3, Wire::Bytes(_)) = field(&mut rest)?
                && kind != feature.kind
            {
                feature = Feature { kind, lists: from };
            }
        }
        Some(feature)
    }

    /// Its values.
    pub fn values(&self) -> Values<'a> {
        Values { kind: self.kind, lists: self.lists, list: &[], packed: &[] }
    }

    /// Its bytes, if it is one value of bytes: an encoded picture, a text.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        let mut values = self.values();
        match (values.next(), values.next()) {
            (Some(Value::Bytes(bytes)), None) => Some(bytes),
            _ => None,
        }
    }
}

/// A value of a feature.
#[derive(Clone, Copy, PartialEq, Debug)]
#[expect(missing_docs, reason = "their names say it all")]
pub enum Value<'a> {
    Bytes(&'a [u8]),
    Float(f32),
    Int(i64),
}

/// The values of a feature, packed or not.
#[derive(Clone, Debug)]
pub struct Values<'a> {
    kind: u64,
    lists: &'a [u8],
    list: &'a [u8],
    packed: &'a [u8],
}

impl<'a> Values<'a> {
    /// The next value; `Some(None)` at the end, `None` where the bytes are not sound.
    fn step(&mut self) -> Option<Option<Value<'a>>> {
        loop {
            if !self.packed.is_empty() {
                return Some(Some(match self.kind {
                    2 => Value::Float(f32::from_le_bytes(array_at(take(&mut self.packed, 4)?, 0)?)),
                    _ => Value::Int(varint(&mut self.packed)? as i64),
                }));
            }
            if !self.list.is_empty() {
                match (self.kind, field(&mut self.list)?) {
                    (1, (1, Wire::Bytes(bytes))) => return Some(Some(Value::Bytes(bytes))),
                    (2, (1, Wire::Fixed32(bits))) => return Some(Some(Value::Float(f32::from_le_bytes(bits)))),
                    (3, (1, Wire::Varint(number))) => return Some(Some(Value::Int(number as i64))),
                    (_, (1, Wire::Bytes(packed))) => self.packed = packed,
                    _ => {}
                }
            } else if self.lists.is_empty() {
                return Some(None);
            } else if let (kind, Wire::Bytes(list)) = field(&mut self.lists)?
                && kind == self.kind
            {
                self.list = list;
            }
        }
    }

    fn all_sound(mut self) -> bool {
        loop {
            match self.step() {
                None => return false,
                Some(None) => return true,
                Some(Some(_)) => {}
            }
        }
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.step().flatten()
    }
}

/// The content of a field.
enum Wire<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64,
    Bytes(&'a [u8]),
}

/// Takes a field: its number and content. Groups are refused: no version of the message has any.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Wire<'a>)> {
    let tag = varint(bytes)?;
    let wire = match tag & 7 {
        0 => Wire::Varint(varint(bytes)?),
        1 => take(bytes, 8).map(|_| Wire::Fixed64)?,
        2 => {
            let length = varint(bytes)?;
            Wire::Bytes(take(bytes, length)?)
        }
        5 => Wire::Fixed32(array_at(take(bytes, 4)?, 0)?),
        _ => return None,
    };
    (tag >> 3 > 0).then_some((tag >> 3, wire))
}
