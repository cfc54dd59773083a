//! Where objects come from: a folder, or a generated set with an overlay of objects put into memory.

mod files;
mod memory;
mod object;
mod uploads;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dataset::DataSet;
use crate::error::Result;
use crate::server::{Entry, Keys, ListQuery, Page, PutCondition, Refusal, page};

use files::{FileStore, Upload};
use memory::{MEMORY_BYTES_MAX, MemoryStore};
use object::GENERATED_MODIFIED_S;
pub(crate) use object::{Content, MadeOfParts, Object, other_etag};
pub use uploads::UploadLimits;
use uploads::folder_beside;
pub(crate) use uploads::{Part, PartFile, Uploads};

/// Largest object of a folder, as S3.
const OBJECT_BYTES_MAX: u64 = 5 << 40;

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

    /// Most bytes of one object.
    pub(crate) fn object_bytes_max(&self) -> u64 {
        match self {
            Store::Files(_) => OBJECT_BYTES_MAX,
            Store::Generated { .. } => MEMORY_BYTES_MAX,
        }
    }

    /// Begins to write the object of this key. Nothing is visible until [`Store::finish`]. Blocks for files.
    pub(crate) fn begin(&self, key: &str) -> Result<Draft, Refusal> {
        match self {
            Store::Files(files) => files.upload(key).map(Draft::File),
            Store::Generated { .. } => Ok(Draft::Memory(Vec::new())),
        }
    }

    /// Makes a draft the object of this key, if `condition` allows it in place of what is there. Returns its entity tag. Blocks for
    /// files.
    pub(crate) fn finish(
        &self,
        key: &str,
        (draft, made): (Draft, Option<MadeOfParts>),
        condition: &PutCondition,
    ) -> Result<String, Refusal> {
        match (self, draft) {
            (Store::Files(files), Draft::File(upload)) => files.finish(upload, made, condition),
            (Store::Generated { set, overlay }, Draft::Memory(bytes)) => {
                let below = generated(set, key).ok().map(|object| object.etag);
                overlay.put(key, (bytes.into(), made), (condition, below.as_deref()))
            }
            _ => Err(Refusal::internal()),
        }
    }

    /// Whether anything may be written.
    pub(crate) fn check_writable(&self) -> Result<(), Refusal> {
        match self {
            Store::Files(files) if !files.is_writable() => Err(Refusal::read_only()),
            _ => Ok(()),
        }
    }

    /// Where uploads in parts are kept.
    pub(crate) fn uploads(&self, limits: UploadLimits) -> Uploads {
        let folder = match self {
            Store::Files(files) => files.parts_folder(),
            Store::Generated { .. } => {
                folder_beside(&std::env::temp_dir(), &format!("fuelrail-bucket-{}-", std::process::id()))
            }
        };
        Uploads::new(limits, folder)
    }

    /// Whether finding and listing may wait for a disk.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self, Store::Files(_))
    }
}

/// An object on its way in.
pub(crate) enum Draft {
    File(Upload),
    Memory(Vec<u8>),
}

impl Draft {
    /// Blocks for files.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        match self {
            Draft::File(upload) => upload.write(bytes),
            Draft::Memory(all) => {
                all.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Appends a whole part. Blocks.
    pub(crate) fn append(&mut self, key: &str, part: &Part) -> Result<(), Refusal> {
        let copied = match self {
            Draft::File(upload) => part.copy_to(upload.file()),
            Draft::Memory(all) => part.read_to(all),
        };
        copied.map_err(|e| Refusal::from_io(key, &e))
    }
}

fn generated(set: &Arc<DataSet>, key: &str) -> Result<Object, Refusal> {
    let item = set.index(key).map(|index| set.item(index)).ok_or_else(|| Refusal::no_such_key(key))?;
    Ok(Object {
        size: item.size(),
        etag: set.etag_item(&item, 0),
        modified_s: GENERATED_MODIFIED_S,
        parts_checksum: None,
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
