//! One object as a store found it: its size, its entity tag, and its bytes at any offset. Knows no keys and no store.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hyper::body::Bytes;

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

/// One object as found.
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

/// How an object that came in parts is named, as S3 names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MadeOfParts {
    pub(crate) etag: String,
    pub(crate) checksum: String,
}

impl Content {
    /// Fills `out` with the bytes from `offset` on; the caller keeps inside the object. Blocks for files only.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        match self {
            Content::Generated { set, item, generation } => set.fill_item(item, *generation, offset, out),
            Content::Memory { bytes, generation } => {
                out.copy_from_slice(&bytes[offset as usize..offset as usize + out.len()]);
                alter(*generation, out);
            }
            Content::File { file, generation } => {
                file.read_exact_at(out, offset)?;
                alter(*generation, out);
            }
        }
        Ok(())
    }

    /// Whether reading may wait for a disk.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self, Content::File { .. })
    }
}

/// Real bytes have one generation; others are made by flipping some bits of every byte.
fn alter(generation: u64, bytes: &mut [u8]) {
    if generation != 0 {
        let mask = (generation as u8).wrapping_mul(0x35) | 1;
        bytes.iter_mut().for_each(|byte| *byte ^= mask);
    }
}

impl Object {
    /// The object as it is after having been replaced by another of the same size.
    pub(crate) fn replaced(mut self) -> Object {
        self.parts_checksum = None;
        match &mut self.content {
            Content::Generated { set, item, generation } => {
                *generation = 1;
                self.etag = set.etag_item(item, 1);
            }
            Content::Memory { generation, .. } | Content::File { generation, .. } => {
                *generation = 1;
                self.etag = other_etag(&self.etag);
            }
        }
        self
    }
}

/// An entity tag that is well-formed and differs from `etag`.
pub(crate) fn other_etag(etag: &str) -> String {
    format!("\"{:032x}\"", xxhash_rust::xxh3::xxh3_128(etag.as_bytes()))
}
