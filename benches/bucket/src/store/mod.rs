//! Where objects come from: a folder, or a generated set with an overlay of objects put into memory.

mod files;
mod memory;
mod object;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dataset::DataSet;
use crate::error::Result;
use crate::server::{Entry, Keys, ListQuery, Page, Refusal, page};

use files::FileStore;
pub(crate) use memory::MEMORY_BYTES_MAX;
use memory::MemoryStore;
use object::GENERATED_MODIFIED_S;
pub(crate) use object::{Content, Object, other_etag};

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

impl Keys for DataSet {
    fn len(&self) -> u64 {
        self.count
    }

    fn key(&self, index: u64) -> Cow<'_, str> {
        Cow::Owned(DataSet::key(self, index))
    }

    fn entry(&self, index: u64) -> Entry {
        let item = self.item(index);
        let etag = self.etag_item(&item, 0);
        Entry { key: DataSet::key(self, index), size: item.size(), etag, modified_s: GENERATED_MODIFIED_S }
    }
}
