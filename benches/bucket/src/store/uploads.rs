//! Objects on their way in by parts: S3's multipart uploads, and Azure's blocks that no list has named yet.
//! Owns the parts: they go with the upload. Never makes an object visible: that is the stores' to do.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::object::{Draft, Room};
use crate::error::{Error, Result};
use crate::server::{Refusal, Summed};

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

/// The uploads under way.
#[derive(Debug)]
pub(crate) struct Uploads {
    pub(crate) limits: UploadLimits,
    open: Mutex<HashMap<String, Open>>,
    /// The blocks that Azure's objects were made of, by key.
    listed: Mutex<HashMap<String, Vec<String>>>,
    numbers: AtomicU64,
    bytes: Arc<AtomicU64>,
}

/// Objects whose blocks are remembered; beyond it all are forgotten.
const LISTED_MAX: usize = 1000;

#[derive(Debug)]
struct Open {
    key: String,
    /// By name: S3's number with leading zeros, Azure's block id.
    parts: BTreeMap<String, Arc<Part>>,
}

impl Open {
    fn of(key: &str) -> Open {
        Open { key: key.to_owned(), parts: BTreeMap::new() }
    }
}

/// A part that came whole.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) draft: Draft,
    pub(crate) sums: Summed,
}

impl Uploads {
    pub(super) fn new(limits: UploadLimits) -> Uploads {
        let (open, listed) = (Mutex::default(), Mutex::default());
        Uploads { limits, open, listed, numbers: AtomicU64::new(0), bytes: Arc::default() }
    }

    pub(crate) fn count(&self) -> usize {
        self.open.lock().expect("no upload holder panics").len()
    }

    /// Begins an upload and returns its id.
    pub(crate) fn begin(&self, key: &str) -> Result<String, Refusal> {
        let number = self.numbers.fetch_add(1, Relaxed);
        let id = format!("{number:08x}{:016x}", xxh3_64_with_seed(key.as_bytes(), number));
        self.insert(id.clone(), key)?;
        Ok(id)
    }

    /// The upload that Azure's blocks of `key` belong to: begun by the first of them.
    pub(crate) fn blocks_of(&self, key: &str) -> Result<String, Refusal> {
        let id = Uploads::blocks_id(key);
        if !self.open.lock().expect("no upload holder panics").contains_key(&id) {
            self.insert(id.clone(), key)?;
        }
        Ok(id)
    }

    pub(crate) fn blocks_id(key: &str) -> String {
        format!("blocks of {key}")
    }

    fn insert(&self, id: String, key: &str) -> Result<(), Refusal> {
        if self.limits.parts_max == 0 {
            return Err(Refusal::new("NotImplemented", "This server takes no objects in parts."));
        }
        let mut open = self.open.lock().expect("no upload holder panics");
        if open.len() >= self.limits.open_max {
            return Err(Refusal::slow_down(None));
        }
        open.entry(id).or_insert_with(|| Open::of(key));
        Ok(())
    }

    /// The room of one more part.
    pub(crate) fn room(&self) -> Room {
        Room { taken: Arc::clone(&self.bytes), bytes: 0, bytes_max: self.limits.bytes_max }
    }

    /// Refuses what is no upload to this key.
    pub(crate) fn check(&self, id: &str, key: &str) -> Result<(), Refusal> {
        match self.open.lock().expect("no upload holder panics").get(id) {
            Some(open) if open.key == key => Ok(()),
            None if id == Uploads::blocks_id(key) => Ok(()),
            _ => Err(Refusal::no_such_upload()),
        }
    }

    /// Adds a part that came whole, in place of one of the same name.
    pub(crate) fn keep(&self, (id, key): (&str, &str), name: String, part: Part) -> Result<(), Refusal> {
        let mut all = self.open.lock().expect("no upload holder panics");
        if id == Uploads::blocks_id(key) {
            // A list may have made an object of the others while this block came: it waits for another list.
            all.entry(id.to_owned()).or_insert_with(|| Open::of(key));
        }
        let open = all.get_mut(id).ok_or_else(Refusal::no_such_upload)?;
        if !open.parts.contains_key(&name) && open.parts.len() >= self.limits.parts_max as usize {
            return Err(Refusal::new("InvalidArgument", format!("More than {} parts.", self.limits.parts_max)));
        }
        open.parts.insert(name, Arc::new(part));
        Ok(())
    }

    /// The parts of these names, in this order, with what was expected of each still to be checked.
    pub(crate) fn named<'a>(
        &self,
        id: &str,
        key: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<Arc<Part>>, Refusal> {
        self.check(id, key)?;
        let all = self.open.lock().expect("no upload holder panics");
        let open = all.get(id).ok_or_else(Refusal::no_such_upload)?;
        names.map(|name| open.parts.get(name).cloned().ok_or_else(|| Refusal::invalid_part(name))).collect()
    }

    /// Ends the upload of Azure's blocks, which have become an object.
    pub(crate) fn list(&self, key: &str, names: Vec<String>) {
        let mut listed = self.listed.lock().expect("no list holder panics");
        if listed.len() >= LISTED_MAX {
            listed.clear();
        }
        listed.insert(key.to_owned(), names);
        self.open.lock().expect("no upload holder panics").remove(&Uploads::blocks_id(key));
    }

    /// Whether the object of this key was made of these blocks.
    pub(crate) fn is_listed(&self, key: &str, names: &[String]) -> bool {
        self.listed.lock().expect("no list holder panics").get(key).is_some_and(|known| known == names)
    }

    /// Ends an upload: its parts go with those who still read them.
    pub(crate) fn end(&self, id: &str, key: &str) -> Result<(), Refusal> {
        self.check(id, key)?;
        self.open.lock().expect("no upload holder panics").remove(id);
        Ok(())
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
