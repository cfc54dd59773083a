//! Objects on their way in by parts: S3's multipart uploads, and Azure's blocks that no list has named yet.
//! Owns the parts: they go with the upload. Never makes an object visible: that is the stores' to do.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::object::Draft;
use crate::server::{Refusal, Summed};
use crate::{Error, Result};

/// What a bucket takes of objects that come in parts. The default is what S3 takes, and 64 GiB of parts on disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UploadLimits {
    /// Uploads under way at once.
    pub open_max: usize,
    /// Parts of one upload. 0 makes a server that knows no uploads in parts.
    pub parts_max: u32,
    /// Shortest part, but for the last one.
    pub part_bytes_min: u64,
    /// Longest part.
    pub part_bytes_max: u64,
    /// All parts together; beyond, the disk counts as full.
    pub bytes_max: u64,
}

impl Default for UploadLimits {
    fn default() -> UploadLimits {
        UploadLimits {
            open_max: 1000,
            parts_max: 10_000,
            part_bytes_min: 5 << 20,
            part_bytes_max: 5 << 30,
            bytes_max: 64 << 30,
        }
    }
}

/// The id of the upload that Azure's blocks of a key belong to.
pub(crate) const BLOCKS: &str = "blocks";
/// Objects whose blocks are remembered; beyond it all are forgotten.
const LISTED_MAX: usize = 1000;

/// Parts by upload (its id and its key), and by name: S3's number with leading zeros, or Azure's block id.
type Open = HashMap<(String, String), BTreeMap<String, Arc<Part>>>;

/// The uploads under way.
#[derive(Debug)]
pub(crate) struct Uploads {
    pub(crate) limits: UploadLimits,
    open: Mutex<Open>,
    /// The blocks that Azure's objects were made of, by key.
    listed: Mutex<HashMap<String, Vec<String>>>,
    numbers: AtomicU64,
}

/// A part that came whole.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) draft: Draft,
    pub(crate) sums: Summed,
}

fn named(id: &str, key: &str) -> (String, String) {
    (id.to_owned(), key.to_owned())
}

impl Uploads {
    pub(super) fn new(limits: UploadLimits) -> Uploads {
        let (open, listed) = (Mutex::default(), Mutex::default());
        Uploads { limits, open, listed, numbers: AtomicU64::new(0) }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no upload holder panics")
    }

    pub(crate) fn count(&self) -> usize {
        self.open().len()
    }

    /// Begins an upload and returns its id.
    pub(crate) fn begin(&self, key: &str) -> Result<String, Refusal> {
        let number = self.numbers.fetch_add(1, Relaxed);
        let id = format!("{number:08x}{:016x}", xxh3_64_with_seed(key.as_bytes(), number));
        self.begin_as(&id, key).map(|()| id)
    }

    /// Begins an upload with this id, unless it is under way.
    pub(crate) fn begin_as(&self, id: &str, key: &str) -> Result<(), Refusal> {
        if self.limits.parts_max == 0 {
            return Err(Refusal::new("NotImplemented", "This server takes no objects in parts."));
        }
        let mut open = self.open();
        let is_full = open.len() >= self.limits.open_max;
        match open.entry(named(id, key)) {
            Entry::Vacant(_) if is_full => return Err(Refusal::slow_down(None)),
            entry => entry.or_default(),
        };
        Ok(())
    }

    /// Bytes that one more part of an upload may have, by what all parts hold.
    pub(crate) fn room(&self, id: &str, key: &str) -> Result<u64, Refusal> {
        let open = self.open();
        if !open.contains_key(&named(id, key)) {
            return Err(Refusal::no_such_upload());
        }
        let taken: u64 = open.values().flat_map(BTreeMap::values).map(|part| part.sums.bytes).sum();
        Ok(self.limits.bytes_max.saturating_sub(taken))
    }

    /// Adds a part that came whole, in place of one of the same name.
    pub(crate) fn keep(&self, (id, key): (&str, &str), name: String, part: Part) -> Result<(), Refusal> {
        let mut open = self.open();
        let parts = match open.entry(named(id, key)) {
            Entry::Vacant(_) if id != BLOCKS => return Err(Refusal::no_such_upload()),
            // A list may have made an object of the other blocks while this one came: it waits for another list.
            entry => entry.or_default(),
        };
        if !parts.contains_key(&name) && parts.len() >= self.limits.parts_max as usize {
            return Err(Refusal::new("InvalidArgument", format!("More than {} parts.", self.limits.parts_max)));
        }
        parts.insert(name, Arc::new(part));
        Ok(())
    }

    /// A part of this name, with what was expected of it still to be checked.
    pub(crate) fn part(&self, (id, key): (&str, &str), name: &str) -> Result<Arc<Part>, Refusal> {
        let open = self.open();
        let parts = open.get(&named(id, key)).ok_or_else(Refusal::no_such_upload)?;
        parts.get(name).cloned().ok_or_else(|| Refusal::invalid_part(name))
    }

    /// Remembers the blocks that an object was made of.
    pub(crate) fn list(&self, key: &str, names: Vec<String>) {
        let mut listed = self.listed.lock().expect("no list holder panics");
        if listed.len() >= LISTED_MAX {
            listed.clear();
        }
        listed.insert(key.to_owned(), names);
    }

    /// Whether the object of this key was made of these blocks.
    pub(crate) fn is_listed(&self, key: &str, names: &[String]) -> bool {
        self.listed.lock().expect("no list holder panics").get(key).is_some_and(|known| known == names)
    }

    /// Ends an upload: its parts go with those who still read them.
    pub(crate) fn end(&self, id: &str, key: &str) -> Result<(), Refusal> {
        self.open().remove(&named(id, key)).map(drop).ok_or_else(Refusal::no_such_upload)
    }
}

impl UploadLimits {
    pub(crate) fn validate(&self) -> Result<()> {
        if self.part_bytes_min > self.part_bytes_max {
            let cause = format!("parts from {} to {} bytes: none fits", self.part_bytes_min, self.part_bytes_max);
            return Err(Error::usage(cause).cure("lower part_bytes_min"));
        }
        Ok(())
    }
}
