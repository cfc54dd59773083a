//! Where objects come from: a folder, or a generated set with an overlay of objects put into memory.

mod files;
mod memory;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use hyper::body::Bytes;
use serde::{Deserialize, Serialize};

use crate::dataset::{DataSet, Item};
use crate::error::Result;
use crate::server::{Entry, ListQuery, Page, Refusal, page};

use files::FileStore;

pub(crate) use memory::MEMORY_BYTES_MAX;
use memory::MemoryStore;

/// What a bucket serves.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The regular files under a folder; keys are their paths. Nothing outside the folder is reachable. Symbolic links
    /// to files inside it are followed, links to folders and names that are not UTF-8 are not listed.
    Directory(PathBuf),
    /// A generated set. Objects that are `PUT` stay in memory beside it.
    Generated(DataSet),
}

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
    pub(crate) content: Content,
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

/// The objects of a bucket.
#[derive(Debug)]
pub(crate) enum Store {
    Files(FileStore),
    Generated { set: Arc<DataSet>, overlay: MemoryStore },
}

impl Store {
    pub(crate) fn open(source: Source, writable: bool) -> Result<Store> {
        Ok(match source {
            Source::Directory(root) => Store::Files(FileStore::open(&root, writable)?),
            Source::Generated(set) => {
                set.validate()?;
                Store::Generated { set: Arc::new(set), overlay: MemoryStore::default() }
            }
        })
    }

    /// The object of this key. Blocks for files.
    pub(crate) fn find(&self, key: &str) -> Result<Object, Refusal> {
        match self {
            Store::Files(files) => files.find(key),
            Store::Generated { set, overlay } => overlay.find(key).map_or_else(|| generated(set, key), Ok),
        }
    }

    /// One page of a listing. Blocks for files.
    pub(crate) fn list(&self, query: &ListQuery) -> Result<Page, Refusal> {
        match self {
            Store::Files(files) => Ok(page(files.entries(query)?.as_slice(), &[], query)),
            Store::Generated { set, overlay } => Ok(page(set.as_ref(), &overlay.entries(query), query)),
        }
    }

    /// Whether finding and listing may wait for a disk.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self, Store::Files(_))
    }
}

fn generated(set: &Arc<DataSet>, key: &str) -> Result<Object, Refusal> {
    let item = set.index(key).map(|index| set.item(index)).ok_or_else(|| Refusal::no_such_key(key))?;
    Ok(Object {
        size: item.size(),
        etag: set.etag_item(&item, 0),
        modified_s: GENERATED_MODIFIED_S,
        content: Content::Generated { set: Arc::clone(set), item, generation: 0 },
    })
}

/// A listing entry of a generated object.
pub(crate) fn generated_entry(set: &DataSet, index: u64) -> Entry {
    let item = set.item(index);
    let etag = set.etag_item(&item, 0);
    Entry { key: set.key(index), size: item.size(), etag, modified_s: GENERATED_MODIFIED_S }
}
