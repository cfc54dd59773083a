//! Where objects come from: a folder, or a generated set with an overlay of what was written and deleted, in memory.

mod files;
mod object;
mod uploads;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::dataset::DataSet;
use crate::server::{Keys, ListQuery, Page, PutCondition, Refusal, page};

use files::FileStore;
pub(crate) use object::{Content, Draft, Entry, GENERATED_MODIFIED_S, MadeOfParts, Object, other_etag};
pub use uploads::UploadLimits;
pub(crate) use uploads::{BLOCKS, Part, Uploads};

/// Largest object of a folder, as S3.
const OBJECT_BYTES_MAX: u64 = 5 << 40;
/// Most bytes of objects kept in memory; a `PUT` beyond it is refused. As many of parts may wait there.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

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
    Generated { set: Arc<DataSet>, overlay: RwLock<Overlay> },
}

/// What lies over a generated set.
#[derive(Default, Debug)]
pub(crate) struct Overlay {
    /// What was written or, without an object, deleted.
    objects: BTreeMap<String, Option<Object>>,
    bytes: u64,
}

impl Overlay {
    fn find(&self, set: &Arc<DataSet>, key: &str) -> Option<Object> {
        self.objects.get(key).cloned().unwrap_or_else(|| generated(set, key))
    }

    /// Bytes without the object of this key.
    fn bytes_beside(&self, key: &str) -> u64 {
        let replaced = self.objects.get(key).and_then(Option::as_ref);
        self.bytes - replaced.map_or(0, |object| object.size)
    }
}

impl Store {
    pub(crate) fn open(source: Source, writable: bool) -> Result<Store> {
        Ok(match source {
            Source::Directory(root) => Store::Files(FileStore::open(&root, writable)?),
            Source::Generated(set) => Store::Generated { set: Arc::new(set), overlay: RwLock::default() },
        })
    }

    /// The object of this key. Blocks for files.
    pub(crate) fn find(&self, key: &str) -> Result<Object, Refusal> {
        let found = match self {
            Store::Files(files) => return files.find(key),
            Store::Generated { set, overlay } => overlay.read().expect("no store holder panics").find(set, key),
        };
        found.ok_or_else(|| Refusal::no_such_key(key))
    }

    /// One page of a listing. Blocks for files.
    pub(crate) fn list(&self, query: &ListQuery) -> Result<Page, Refusal> {
        Ok(match self {
            Store::Files(files) => page(files.entries(query).as_slice(), &BTreeMap::new(), query),
            Store::Generated { set, overlay } => {
                page(set.as_ref(), &overlay.read().expect("no store holder panics").objects, query)
            }
        })
    }

    pub(crate) fn object_bytes_max(&self) -> u64 {
        if self.blocks() { OBJECT_BYTES_MAX } else { MEMORY_BYTES_MAX }
    }

    /// Begins to write the object of this key, or a part out of listings and on the disk of the objects. Nothing is visible until
    /// [`Store::finish`]. Blocks for files.
    pub(crate) fn begin(&self, key: Option<&str>) -> Result<Draft, Refusal> {
        match self {
            Store::Files(files) => key.map_or_else(|| files.begin_part(), |key| files.begin(key)),
            Store::Generated { .. } => Ok(Draft::Memory(Vec::new())),
        }
    }

    /// Makes a draft the object of this key, if `condition` allows it in place of what is there. Blocks for files.
    pub(crate) fn finish(
        &self,
        key: &str,
        (draft, made): (Draft, Option<MadeOfParts>),
        condition: &PutCondition,
    ) -> Result<Object, Refusal> {
        match (self, draft) {
            (Store::Files(files), Draft::File(file)) => files.finish(key, (file, made), condition),
            (Store::Generated { set, overlay }, Draft::Memory(bytes)) => {
                let object = Object::of_bytes(bytes.into(), made);
                let mut overlay = overlay.write().expect("no store holder panics");
                condition.check(overlay.find(set, key).as_ref().map(|there| there.etag.as_str()))?;
                let total = overlay.bytes_beside(key) + object.size;
                if total > MEMORY_BYTES_MAX {
                    return Err(Refusal::too_large(total, MEMORY_BYTES_MAX));
                }
                overlay.bytes = total;
                overlay.objects.insert(key.to_owned(), Some(object.clone()));
                Ok(object)
            }
            _ => Err(Refusal::internal()),
        }
    }

    /// Deletes the object of this key, if there is one. Blocks for files.
    pub(crate) fn delete(&self, key: &str) -> Result<(), Refusal> {
        match self {
            Store::Files(files) => return files.delete(key),
            Store::Generated { set, overlay } => {
                let mut overlay = overlay.write().expect("no store holder panics");
                // Only what is generated must be hidden: other keys leave nothing behind.
                overlay.bytes = overlay.bytes_beside(key);
                if set.index(key).is_some() {
                    overlay.objects.insert(key.to_owned(), None);
                } else {
                    overlay.objects.remove(key);
                }
            }
        }
        Ok(())
    }

    /// Whether anything may be written.
    pub(crate) fn check_writable(&self) -> Result<(), Refusal> {
        match self {
            Store::Files(files) if !files.writable => {
                let message = "This bucket is read-only; set `writable` to allow PUT and DELETE.";
                Err(Refusal::new("AccessDenied", message))
            }
            _ => Ok(()),
        }
    }

    /// The uploads in parts to this store.
    pub(crate) fn uploads(&self, mut limits: UploadLimits) -> Uploads {
        if !self.blocks() {
            limits.bytes_max = limits.bytes_max.min(MEMORY_BYTES_MAX);
        }
        Uploads::new(limits)
    }

    /// Whether finding and listing may wait for a disk.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self, Store::Files(_))
    }
}

fn generated(set: &Arc<DataSet>, key: &str) -> Option<Object> {
    let item = set.item(set.index(key)?);
    Some(Object {
        size: item.size,
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
        Entry { key: DataSet::key(self, index), size: item.size, etag, modified_s: GENERATED_MODIFIED_S }
    }
}
