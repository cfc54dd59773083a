//! Objects on their way in by parts: S3's multipart uploads, and Azure's blocks that no list has named yet.
//!
//! Parts are files in one hidden folder of this process, made when the first one comes. Owns them; what nobody finished is
//! removed with the bucket. Never makes an object visible: that is the stores' to do.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

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
    folder: PathBuf,
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

/// A part that is here: a file, removed with it.
#[derive(Debug)]
pub(crate) struct Part {
    path: PathBuf,
    pub(crate) sums: Summed,
    /// What it holds of the room for all parts.
    taken: Arc<AtomicU64>,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.sums.bytes, Relaxed);
        // Best effort: the folder goes as a whole in the end.
        let _ = fs::remove_file(&self.path);
    }
}

/// A part on its way in.
pub(crate) struct PartFile {
    file: File,
    part: Part,
    bytes_max: u64,
}

impl PartFile {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let before = self.part.taken.fetch_add(bytes.len() as u64, Relaxed);
        self.part.sums.bytes += bytes.len() as u64;
        if before + bytes.len() as u64 > self.bytes_max {
            return Err(Refusal::disk_full());
        }
        self.file.write_all(bytes).map_err(|e| Refusal::from_io("a part", &e))
    }
}

impl Uploads {
    /// Uploads whose parts will lie in `folder`, which must not exist yet.
    pub(crate) fn new(limits: UploadLimits, folder: PathBuf) -> Uploads {
        Uploads {
            limits,
            folder,
            open: Mutex::default(),
            listed: Mutex::default(),
            numbers: AtomicU64::new(0),
            bytes: Arc::default(),
        }
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
            return Err(Refusal::not_implemented("This server takes no objects in parts."));
        }
        let mut open = self.open.lock().expect("no upload holder panics");
        if open.len() >= self.limits.open_max {
            return Err(Refusal::slow_down(None));
        }
        open.entry(id).or_insert_with(|| Open::of(key));
        Ok(())
    }

    /// A file for a part of this upload. Blocks.
    pub(crate) fn part(&self, id: &str, key: &str) -> Result<PartFile, Refusal> {
        self.check(id, key)?;
        let failed = |e: &std::io::Error| Refusal::from_io("a part", e);
        fs::create_dir_all(&self.folder).map_err(|e| failed(&e))?;
        let path = self.folder.join(format!("{:08x}", self.numbers.fetch_add(1, Relaxed)));
        let file = File::create_new(&path).map_err(|e| failed(&e))?;
        let part = Part { path, sums: Summed::default(), taken: Arc::clone(&self.bytes) };
        Ok(PartFile { file, part, bytes_max: self.limits.bytes_max })
    }

    fn check(&self, id: &str, key: &str) -> Result<(), Refusal> {
        match self.open.lock().expect("no upload holder panics").get(id) {
            Some(open) if open.key == key => Ok(()),
            None if id == Uploads::blocks_id(key) => Ok(()),
            _ => Err(Refusal::no_such_upload()),
        }
    }

    /// Adds a part that came whole, in place of one of the same name.
    pub(crate) fn keep(
        &self,
        (id, key): (&str, &str),
        name: String,
        mut came: PartFile,
        sums: Summed,
    ) -> Result<(), Refusal> {
        if sums.bytes > self.limits.part_bytes_max {
            return Err(Refusal::too_large(sums.bytes, self.limits.part_bytes_max));
        }
        let mut all = self.open.lock().expect("no upload holder panics");
        if id == Uploads::blocks_id(key) {
            // A list may have made an object of the others while this block came: it waits for another list.
            all.entry(id.to_owned()).or_insert_with(|| Open::of(key));
        }
        let open = all.get_mut(id).ok_or_else(Refusal::no_such_upload)?;
        if !open.parts.contains_key(&name) && open.parts.len() >= self.limits.parts_max as usize {
            return Err(Refusal::invalid_argument(format!("More than {} parts.", self.limits.parts_max)));
        }
        came.part.sums = sums;
        open.parts.insert(name, Arc::new(came.part));
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

impl Part {
    /// Appends its bytes. Blocks.
    pub(crate) fn copy_to(&self, out: &mut File) -> std::io::Result<()> {
        std::io::copy(&mut File::open(&self.path)?, out).map(drop)
    }

    /// Appends its bytes. Blocks.
    pub(crate) fn read_to(&self, out: &mut Vec<u8>) -> std::io::Result<()> {
        File::open(&self.path)?.read_to_end(out).map(drop)
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.open.get_mut().expect("no upload holder panics").clear();
        // Best effort; it is not there unless a part came.
        let _ = fs::remove_dir_all(&self.folder);
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

/// A folder's name for parts beside objects: one that listings leave out.
pub(super) fn folder_beside(root: &Path, prefix: &str) -> PathBuf {
    static BUCKETS: AtomicU64 = AtomicU64::new(0);
    root.join(format!("{prefix}parts-{}", BUCKETS.fetch_add(1, Relaxed)))
}
