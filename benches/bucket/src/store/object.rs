//! One object as a store found it: its size, its entity tag, and its bytes at any offset; and one on its way in.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::xxh3_128;

use crate::dataset::{DataSet, Item};

/// When generated objects say they were last modified, in seconds since 1970: a fixed moment, so listings repeat.
pub(crate) const GENERATED_MODIFIED_S: u64 = 1_700_000_000;

/// The bytes of an object, to be read at any offset. Generation 0 is the object as listed.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Generated { set: Arc<DataSet>, item: Item, generation: u64 },
    Memory { bytes: Bytes, generation: u64 },
    File { file: Arc<File>, generation: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) size: u64,
    /// Strong entity tag, quotes included.
    pub(crate) etag: String,
    pub(crate) modified_s: u64,
    /// The checksum over the checksums of its parts, where it came in parts: it has no other then.
    pub(crate) parts_checksum: Option<String>,
    pub(crate) content: Content,
}

/// One listed object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) size: u64,
    pub(crate) etag: String,
    pub(crate) modified_s: u64,
}

/// Entity tag and checksum of an object that came in parts, as S3 has them.
pub(crate) type MadeOfParts = (String, String);

impl Content {
    /// Fills `out` with the bytes from `offset` on; the caller keeps inside the object. Blocks for files only.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let generation = match self {
            Content::Generated { set, item, generation } => {
                set.fill_item(item, *generation, offset, out);
                return Ok(());
            }
            Content::Memory { bytes, generation } => {
                out.copy_from_slice(&bytes[offset as usize..offset as usize + out.len()]);
                *generation
            }
            Content::File { file, generation } => {
                file.read_exact_at(out, offset)?;
                *generation
            }
        };
        // Real bytes have one generation; others are made by flipping some bits of every byte.
        if generation != 0 {
            let mask = (generation as u8).wrapping_mul(0x35) | 1;
            out.iter_mut().for_each(|byte| *byte ^= mask);
        }
        Ok(())
    }

    /// Whether reading may wait for a disk.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self, Content::File { .. })
    }
}

impl Object {
    pub(crate) fn of_bytes(bytes: Bytes, made: Option<MadeOfParts>) -> Object {
        let (etag, parts_checksum) = match made {
            Some((etag, checksum)) => (etag, Some(checksum)),
            None => (format!("\"{:032x}\"", xxh3_128(&bytes)), None),
        };
        let (size, content) = (bytes.len() as u64, Content::Memory { bytes, generation: 0 });
        Object { size, etag, modified_s: GENERATED_MODIFIED_S, parts_checksum, content }
    }

    /// The object as it is listed.
    pub(crate) fn entry(&self, key: String) -> Entry {
        Entry { key, size: self.size, etag: self.etag.clone(), modified_s: self.modified_s }
    }

    /// The object as it is after having been replaced by another of the same size.
    pub(crate) fn replaced(mut self) -> Object {
        self.parts_checksum = None;
        self.etag = match &mut self.content {
            Content::Generated { set, item, generation } => {
                *generation = 1;
                set.etag_item(item, 1)
            }
            Content::Memory { generation, .. } | Content::File { generation, .. } => {
                *generation = 1;
                other_etag(&self.etag)
            }
        };
        self
    }
}

/// An entity tag that is well-formed and differs from `etag`.
pub(crate) fn other_etag(etag: &str) -> String {
    format!("\"{:032x}\"", xxh3_128(etag.as_bytes()))
}

/// An object or a part on its way in; nothing is left of one that is dropped.
#[derive(Debug)]
pub(crate) enum Draft {
    File(NamedTempFile),
    Memory(Vec<u8>),
}

impl Draft {
    /// Blocks for files.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Draft::File(file) => file.write_all(bytes),
            Draft::Memory(all) => all.write_all(bytes),
        }
    }

    /// Appends a whole part of the same store. Blocks for files.
    pub(crate) fn append(&mut self, part: &Draft) -> io::Result<()> {
        match (self, part) {
            (Draft::File(file), Draft::File(part)) => io::copy(&mut part.reopen()?, file.as_file_mut()).map(drop),
            (draft, Draft::Memory(part)) => draft.write(part),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
