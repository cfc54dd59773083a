//! tar archives as WebDataset writes and reads them: consecutive members with the same basename are one record.
//!
//! Read are ustar, GNU (long names, base-256 sizes) and pax (`path` and `size`, of one member or of all that follow). What is no regular
//! file is skipped, as the webdataset package does: directories, links, devices. Sparse files and compressed archives are refused by name.
//! The archive ends at its first block of zeroes. One that ends with the object between two members may have been cut there, which
//! [`IndexBuilder::open_ends`] says; any other end is an error, where Python's `tarfile` stops silently.
//!
//! The key of a member is its path up to the first dot of the last component, its field the rest in lower case. Members whose first path
//! component is `__NAME__`, or whose name has no dot, are skipped without ending a record.

mod header;
#[cfg(test)]
mod tests;

use crate::index::{Field, IndexBuilder, Place, Span};
use crate::{Need, check_given, cut_off, shown, unsound, unsupported};
use fuelrail_base::{Error, Result};
use header::{BLOCK_BYTES, Extended, Header, Kind, is_zero};

/// Longest extended header: names, times and attributes of one member.
const EXTENDED_BYTES_MAX: u64 = 1 << 20;
/// What webdataset adds to a sample itself.
const RESERVED: [&str; 2] = ["__key__", "__url__"];

/// Scans one archive. Needs its headers only, and passes over what it is given of the bodies.
#[derive(Debug)]
pub struct Scan {
    object: u32,
    size: u64,
    /// The next header.
    at: u64,
    /// Bytes of it: with its content where that is needed, too.
    needed: u64,
    done: bool,
    /// Whether the member that `local` describes is still to come.
    described: bool,
    local: Extended,
    global: Extended,
    group: Group,
}

/// The record being gathered.
#[derive(Default, Debug)]
struct Group {
    key: Vec<u8>,
    fields: Vec<(usize, Field<'static>)>,
    suffix: String,
}

impl Scan {
    /// A scan of an archive of `size` bytes.
    pub fn new(object: u32, size: u64) -> Scan {
        let (local, global, group) = (Extended::default(), Extended::default(), Group::default());
        Scan { object, size, at: 0, needed: BLOCK_BYTES, done: false, described: false, local, global, group }
    }

    /// Reads the header that `bytes` begin with, which are `needed` at least.
    fn step(&mut self, bytes: &[u8], index: &mut IndexBuilder) -> Result<()> {
        let (block, content) = bytes.split_at(BLOCK_BYTES as usize);
        if is_zero(block) {
            return self.end(index);
        }
        let at = self.at;
        let header = Header::parse(block).map_err(|flaw| not_a_header(at, block, flaw))?;
        let extended = header.kind.extended();
        let of_member = extended.is_none() && header.kind.has_content();
        let size = if of_member { self.local.size.or(self.global.size).unwrap_or(header.size) } else { header.size };
        let size = if header.kind.has_content() { size } else { 0 };
        let from = at + BLOCK_BYTES;
        let end = from.checked_add(size).and_then(|end| end.checked_next_multiple_of(BLOCK_BYTES));
        let end = end.unwrap_or(u64::MAX);
        if end > self.size {
            return Err(cut_off(at, format_args!("a member of {size} bytes"), end, self.size));
        }
        if let Some(of_all) = extended {
            if size > EXTENDED_BYTES_MAX {
                let flaw = format_args!("an extended header of {size} bytes, the limit is {EXTENDED_BYTES_MAX}");
                return Err(unsound(at, flaw));
            }
            self.needed = end - at;
            let Some(content) = content.get(..size as usize) else { return Ok(()) };
            self.described |= !of_all;
            let target = if of_all { &mut self.global } else { &mut self.local };
            match header.kind {
                Kind::LongName => target.long_name(content),
                // Links are skipped, whatever their targets.
                Kind::LongLink => {}
                _ => target.read(content, of_all).map_err(|flaw| unsound(from, flaw))?,
            }
        } else {
            let span = Span { object: self.object, offset: from, length: size };
            self.member(&header, span, index).map_err(|error| error.within(format_args!("at byte {at}")))?;
            (self.local, self.described) = (Extended::default(), false);
        }
        (self.at, self.needed) = (end, BLOCK_BYTES);
        Ok(())
    }

    fn member(&mut self, header: &Header<'_>, span: Span, index: &mut IndexBuilder) -> Result<()> {
        let mut name = [0; 256];
        let of_header = header.path(&mut name);
        let path = self.local.path.as_deref().or(self.global.path.as_deref()).unwrap_or(of_header);
        if header.kind == Kind::Sparse || self.local.is_sparse || self.global.is_sparse {
            let flaw = format!("member '{}' is a sparse file, which is not supported", shown(path));
            return Err(unsupported(flaw, "write the archive without --sparse"));
        }
        if !header.is_regular() || is_meta(path) {
            return Ok(());
        }
        match split(path) {
            Some((key, suffix)) => self.group.add(key, suffix, span, path, index),
            None => Ok(()),
        }
    }

    fn end(&mut self, index: &mut IndexBuilder) -> Result<()> {
        if self.described {
            return Err(unsound(self.at, "the archive ends between an extended header and its member"));
        }
        self.done = true;
        self.group.flush(index)
    }
}

impl crate::Scan for Scan {
    fn need(&self) -> Need {
        if self.done {
            Need::Done
        } else {
            Need::Read { offset: self.at, at_least: self.needed.min(self.size - self.at) }
        }
    }

    fn give(&mut self, bytes: &[u8], index: &mut IndexBuilder) -> Result<()> {
        let begin = self.at;
        check_given(bytes, begin, self.needed.min(self.size - begin))?;
        while !self.done {
            if self.at == self.size && self.at > 0 {
                index.note_open_end(self.object);
                return self.end(index);
            }
            if self.size - self.at < self.needed {
                let short = cut_off(self.at, "a header", self.at + self.needed, self.size);
                return Err(if self.at == 0 { compressed(bytes).unwrap_or(short) } else { short });
            }
            let given = usize::try_from(self.at - begin).ok().and_then(|from| bytes.get(from..));
            match given.filter(|given| given.len() as u64 >= self.needed) {
                Some(given) => self.step(given, index)?,
                None => break,
            }
        }
        Ok(())
    }
}

impl Group {
    /// Adds a member: to this record, or to the next one, which its key begins.
    fn add(&mut self, key: &[u8], suffix: &[u8], span: Span, path: &[u8], index: &mut IndexBuilder) -> Result<()> {
        let Ok(suffix) = core::str::from_utf8(suffix) else {
            return Err(unsupported(
                format!("the field of member '{}' is not UTF-8", shown(path)),
                "rename the member",
            ));
        };
        self.suffix.clear();
        self.suffix.extend(suffix.chars().flat_map(char::to_lowercase));
        if key != self.key {
            self.flush(index)?;
            self.key.extend_from_slice(key);
        }
        let field = index.field(&self.suffix, Place::Near)?;
        if self.fields.iter().any(|(known, _)| *known == field) || RESERVED.contains(&&*self.suffix) {
            let flaw =
                format!("duplicate field '{}' of record '{}': member '{}'", self.suffix, shown(key), shown(path));
            return Err(Error::new(fuelrail_base::Kind::Undecodable, flaw).with_hint(
                "every member of a record needs another extension; the key ends at the first dot of the file name",
            ));
        }
        self.fields.push((field, Field::Span(span)));
        Ok(())
    }

    fn flush(&mut self, index: &mut IndexBuilder) -> Result<()> {
        if !self.fields.is_empty() {
            index.push(&self.key, &self.fields)?;
        }
        self.key.clear();
        self.fields.clear();
        Ok(())
    }
}

/// Whether webdataset passes over it: the first component of its path is `__NAME__`.
pub(crate) fn is_meta(path: &[u8]) -> bool {
    let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    let long_enough = first.len() >= 4 || first.len() == path.len();
    first.starts_with(b"__") && first.ends_with(b"__") && long_enough
}

/// Key and field of a path; `None` where there is no dot. A last component that begins with a dot has the folder before it as its key, if
/// that has none: what webdataset's pattern means.
pub(crate) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let last = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = last + path[last..].iter().position(|byte| *byte == b'.')?;
    if dot == last {
        let folder = path.get(..last.checked_sub(1)?)?;
        if folder.iter().rev().take_while(|byte| **byte != b'/').any(|byte| *byte == b'.') {
            return None;
        }
    }
    Some((&path[..dot], &path[dot + 1..]))
}

/// The error for a block that is no header; the first one tells compressed archives.
fn not_a_header(at: u64, block: &[u8], flaw: String) -> Error {
    let known = if at == 0 { compressed(block) } else { None };
    known.unwrap_or_else(|| unsound(at, flaw))
}

/// The error for an archive that is compressed as a whole, where its first bytes say so.
fn compressed(begin: &[u8]) -> Option<Error> {
    const COMPRESSED: [(&[u8], &str); 4] =
        [(b"\x1F\x8B", "gzip"), (b"\x28\xB5\x2F\xFD", "zstd"), (b"BZh", "bzip2"), (b"\xFD7zXZ", "xz")];
    let (_, name) = COMPRESSED.iter().find(|(magic, _)| begin.starts_with(magic))?;
    let flaw = format!("the archive is compressed with {name}: ranges of it cannot be read");
    Some(unsupported(flaw, "unpack it to a plain .tar, or write shards without compression; members may be compressed"))
}
