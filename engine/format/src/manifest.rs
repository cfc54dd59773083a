//! Manifests: CSV (RFC 4180, with a line of names) or JSONL files that list records.
//!
//! The column `key` names an object; `offset` and `length` are a range of it, bytes, and without them the record is the whole object. All
//! other columns are kept as values: text as it is, everything else as JSON has it. The object's bytes are the field [`DATA`].

#[cfg(test)]
mod tests;

use crate::index::{Field, IndexBuilder, Place, Span};
use crate::{Need, check_given, shown};
use core::fmt;
use fuelrail_base::{Error, Kind, Result};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The field of the object's bytes.
pub const DATA: &str = "data";
/// Longest line.
pub const LINE_BYTES_MAX: u64 = 16 << 20;
const READ_BYTES: u64 = 64 << 10;
const BOM: &[u8] = "\u{FEFF}".as_bytes();

/// How a manifest is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syntax {
    /// Comma-separated values; the first line names the columns.
    Csv,
    /// A JSON object per line.
    Jsonl,
}

/// Scans one manifest. `R` finds an object by its key: its number and size.
#[derive(Debug)]
pub struct Scan<R> {
    syntax: Syntax,
    find: R,
    size: u64,
    at: u64,
    line: u64,
    needed: u64,
    columns: Option<Vec<String>>,
}

/// What a line says of its record.
#[derive(Default)]
struct Row<'a> {
    key: Option<Cow<'a, str>>,
    offset: Option<u64>,
    length: Option<u64>,
    values: Vec<(usize, Cow<'a, [u8]>)>,
}

impl<R: FnMut(&str) -> Option<(u32, u64)>> Scan<R> {
    /// A scan of a manifest of `size` bytes.
    pub fn new(syntax: Syntax, size: u64, find: R) -> Scan<R> {
        Scan { syntax, find, size, at: 0, line: 1, needed: READ_BYTES, columns: None }
    }

    /// Reads whole lines, and returns how many bytes they take. The last one need not end.
    fn csv(&mut self, bytes: &[u8], is_last: bool, index: &mut IndexBuilder) -> Result<usize> {
        let (mut taken, mut record) = (0, csv::ByteRecord::new());
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
        let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        loop {
            let more = reader.read_byte_record(&mut record).map_err(|error| refused(self.line, error))?;
            let end = reader.position().byte() as usize;
            if !more && is_last {
                return Ok(bytes.len());
            }
            // One that ends with what was read may go on.
            if !more || (end == bytes.len() && !is_last) {
                return Ok(taken);
            }
            let raw = &bytes[taken..end];
            let blank = raw.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            let line = self.line + lines(&raw[..blank]);
            self.csv_record(&record, raw, index).map_err(|flaw| refused(line, flaw))?;
            (taken, self.line) = (end, self.line + lines(raw));
        }
    }

    fn csv_record(&mut self, record: &csv::ByteRecord, raw: &[u8], index: &mut IndexBuilder) -> Result<(), String> {
        if raw.iter().filter(|byte| **byte == b'"').count() % 2 == 1 {
            return Err("a quote is not closed".into());
        }
        let texts: Option<Vec<&str>> = record.iter().map(|text| core::str::from_utf8(text).ok()).collect();
        let texts = texts.ok_or("it is not UTF-8")?;
        let Some(columns) = &self.columns else {
            if !texts.contains(&"key") {
                return Err("the first line names no column 'key'".into());
            }
            let twice = texts.iter().enumerate().find(|(n, name)| texts[..*n].contains(*name));
            if let Some((_, name)) = twice {
                return Err(format!("two columns are named '{}'", shown(name.as_bytes())));
            }
            self.columns = Some(texts.into_iter().map(str::to_owned).collect());
            return Ok(());
        };
        if texts.len() != columns.len() {
            return Err(format!("it has {} columns, the first line has {}", texts.len(), columns.len()));
        }
        let mut row = Row::default();
        for (name, text) in columns.iter().zip(texts) {
            match name.as_str() {
                "key" => row.key = Some(text.into()),
                "offset" | "length" if text.is_empty() => {}
                name => row.set(name, text.as_bytes().into(), index)?,
            }
        }
        self.push(row, index)
    }

    /// As [`Scan::csv`].
    fn jsonl(&mut self, bytes: &[u8], is_last: bool, index: &mut IndexBuilder) -> Result<usize> {
        let mut taken = 0;
        while taken < bytes.len() {
            let end = bytes[taken..].iter().position(|byte| *byte == b'\n').map(|end| taken + end);
            let Some(end) = end.or(is_last.then_some(bytes.len())) else { break };
            let line = bytes[taken..end].trim_ascii();
            if !line.is_empty() {
                self.json_line(line, index).map_err(|flaw| refused(self.line, flaw))?;
            }
            (taken, self.line) = ((end + 1).min(bytes.len()), self.line + 1);
        }
        Ok(taken)
    }

    fn json_line(&mut self, line: &[u8], index: &mut IndexBuilder) -> Result<(), String> {
        let flaw = |error: serde_json::Error| error.to_string().replace(" at line 1 column ", " at column ");
        let Members(members) = serde_json::from_slice(line).map_err(flaw)?;
        let mut row = Row::default();
        for (name, value) in &members {
            let value = value.get();
            let text = if value.starts_with('"') { Some(serde_json::from_str(value).map_err(flaw)?) } else { None };
            match (&**name, text) {
                ("key", Some(Text(text))) => row.key = Some(text),
                ("key", None) => return Err("the key is no text".into()),
                (_, None) if value == "null" => {}
                (name, Some(Text(Cow::Owned(text)))) => row.set(name, text.into_bytes().into(), index)?,
                (name, Some(Text(Cow::Borrowed(text)))) => row.set(name, text.as_bytes().into(), index)?,
                (name, None) => row.set(name, value.as_bytes().into(), index)?,
            }
        }
        self.push(row, index)
    }

    fn push(&mut self, row: Row<'_>, index: &mut IndexBuilder) -> Result<(), String> {
        let key = row.key.ok_or("it has no key")?;
        let (object, size) =
            (self.find)(&key).ok_or_else(|| format!("there is no object '{}'", shown(key.as_bytes())))?;
        let offset = row.offset.unwrap_or_default();
        let length = row.length.unwrap_or(size.saturating_sub(offset));
        if offset.checked_add(length).is_none_or(|end| end > size) {
            let key = shown(key.as_bytes());
            return Err(format!(
                "the {length} bytes from {offset} on go beyond the end of object '{key}', {size} bytes"
            ));
        }
        let values = row.values.iter().map(|(field, value)| (*field, Field::Value(value)));
        let fields: Vec<_> = [(0, Field::Span(Span { object, offset, length }))].into_iter().chain(values).collect();
        index.push(key.as_bytes(), &fields).map_err(|error| error.to_string())
    }
}

impl<'a> Row<'a> {
    fn set(&mut self, name: &str, value: Cow<'a, [u8]>, index: &mut IndexBuilder) -> Result<(), String> {
        let number = match name {
            "offset" => &mut self.offset,
            "length" => &mut self.length,
            _ => {
                let field = index.field(name, Place::Value).map_err(|error| error.to_string())?;
                self.values.push((field, value));
                return Ok(());
            }
        };
        let digits = core::str::from_utf8(&value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let parsed = digits.and_then(|digits| digits.parse().ok());
        *number = Some(parsed.ok_or_else(|| format!("the {name} '{}' is not a number of bytes", shown(&value)))?);
        Ok(())
    }
}

impl<R: FnMut(&str) -> Option<(u32, u64)>> crate::Scan for Scan<R> {
    fn need(&self) -> Need {
        match self.at == self.size {
            true => Need::Done,
            false => Need::Read { offset: self.at, at_least: self.needed.min(self.size - self.at) },
        }
    }

    fn give(&mut self, bytes: &[u8], index: &mut IndexBuilder) -> Result<()> {
        check_given(bytes, self.at, self.needed.min(self.size - self.at))?;
        index.field(DATA, Place::Near)?;
        let mark = if self.at == 0 && bytes.starts_with(BOM) { BOM.len() } else { 0 };
        let is_last = self.at + bytes.len() as u64 >= self.size;
        let taken = match self.syntax {
            Syntax::Csv => self.csv(&bytes[mark..], is_last, index)?,
            Syntax::Jsonl => self.jsonl(&bytes[mark..], is_last, index)?,
        };
        if taken > 0 || is_last {
            (self.at, self.needed) = (self.at + (mark + taken) as u64, READ_BYTES);
        } else if bytes.len() as u64 >= LINE_BYTES_MAX {
            return Err(refused(self.line, format!("it is longer than {LINE_BYTES_MAX} bytes")));
        } else {
            self.needed = bytes.len() as u64 * 2;
        }
        Ok(())
    }
}

/// The members of a JSON object in their order. A name that stands twice is an error.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A text, where possible as it stands.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Members<'de>, M::Error> {
                let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some((Text(name), value)) = map.next_entry::<Text<'de>, _>()? {
                    if members.len() > crate::index::FIELDS_MAX || members.iter().any(|(known, _)| *known == name) {
                        return Err(serde::de::Error::custom(format_args!(
                            "'{name}' stands twice, or is one member too many"
                        )));
                    }
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

fn refused(line: u64, flaw: impl fmt::Display) -> Error {
    Error::new(Kind::Usage, format!("manifest line {line}: {flaw}"))
        .with_hint("a record is a key, perhaps an offset and a length in bytes, and any other columns")
}
