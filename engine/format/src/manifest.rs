//! Manifests: CSV (RFC 4180, with a line of names) or JSONL files that list records.
//!
//! The column `key` names an object; `offset` and `length` are a range of it, bytes, and without them the record is the whole object. All
//! other columns are kept as values: text as it is, everything else as JSON has it. The object's bytes are the field [`DATA`].

#[cfg(test)]
mod tests;

use crate::index::{Field, IndexBuilder, Place, Span};
use crate::{Need, check_given, need_from, shown};
use core::fmt;
use fuelrail_base::{Error, Kind, Result};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

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
        let is_range = |name: &str| name == "offset" || name == "length";
        let cells = columns.iter().zip(texts).filter(|(name, text)| !(is_range(name) && text.is_empty()));
        let cells: Vec<_> = cells.map(|(name, text)| (name.as_str(), text.into())).collect();
        push(&mut self.find, &cells, index)
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
        let members: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_slice(line).map_err(flaw)?;
        let mut cells: Vec<(&str, Cow<'_, str>)> = Vec::with_capacity(members.len());
        for (name, value) in members.iter().filter(|(_, value)| value.get() != "null") {
            let is_text = value.get().starts_with('"');
            let text = if is_text {
                serde_json::from_str::<String>(value.get()).map_err(flaw)?.into()
            } else {
                value.get().into()
            };
            cells.push((name, text));
        }
        push(&mut self.find, &cells, index)
    }
}

/// Appends the record of a line.
fn push(
    find: &mut impl FnMut(&str) -> Option<(u32, u64)>,
    cells: &[(&str, Cow<'_, str>)],
    index: &mut IndexBuilder,
) -> Result<(), String> {
    let cell = |wanted| cells.iter().find(|(name, _)| *name == wanted).map(|(_, text)| &**text);
    let number = |name| {
        let digits = cell(name).map(|text| (text, text.bytes().all(|byte| byte.is_ascii_digit())));
        let number = digits.map(|(text, plain)| if plain { text.parse::<u64>().ok() } else { None }.ok_or(text));
        number.transpose().map_err(|text| format!("the {name} '{}' is not a number of bytes", shown(text.as_bytes())))
    };
    let key = cell("key").ok_or("it has no key")?;
    let (object, size) = find(key).ok_or_else(|| format!("there is no object '{}'", shown(key.as_bytes())))?;
    let offset = number("offset")?.unwrap_or_default();
    let length = number("length")?.unwrap_or(size.saturating_sub(offset));
    if offset.checked_add(length).is_none_or(|end| end > size) {
        let key = shown(key.as_bytes());
        return Err(format!("the {length} bytes from {offset} on go beyond the end of object '{key}', {size} bytes"));
    }
    let mut fields = vec![(0, Field::Span(Span { object, offset, length }))];
    for (name, text) in cells.iter().filter(|(name, _)| !["key", "offset", "length"].contains(name)) {
        let field = index.field(name, Place::Value).map_err(|error| error.to_string())?;
        fields.push((field, Field::Value(text.as_bytes())));
    }
    index.push(key.as_bytes(), &fields).map_err(|error| error.to_string())
}

impl<R: FnMut(&str) -> Option<(u32, u64)>> crate::Scan for Scan<R> {
    fn need(&self) -> Need {
        need_from(self.at, self.needed, self.size)
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

fn refused(line: u64, flaw: impl fmt::Display) -> Error {
    Error::new(Kind::Usage, format!("manifest line {line}: {flaw}"))
        .with_hint("a record is a key, perhaps an offset and a length in bytes, and any other columns")
}
