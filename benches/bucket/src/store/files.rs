//! A folder as a bucket. Keys are relative paths with `/` between names; nothing outside the folder is ever opened: a key
//! with an empty, `.` or `..` name is refused, and what a path resolves to must lie under the folder's real path.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::{Builder, NamedTempFile, TempDir};
use xxhash_rust::xxh3::xxh3_128;

use super::object::{Content, Draft, Entry, MadeOfParts, Object};
use crate::server::{ListQuery, PutCondition, Refusal};
use crate::{Error, Result};

/// Deepest folder that listings enter.
const DEPTH_MAX: usize = 64;
/// What files are called that are not finished; listings leave them out.
const PARTIAL_PREFIX: &str = ".fuelrail-upload-";
/// Objects remembered as made of parts; beyond it all are forgotten and named like others.
const MADE_OF_PARTS_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct FileStore {
    root: PathBuf,
    pub(super) writable: bool,
    /// The last walk and where it began: pages after the first are cut from it.
    walked: Mutex<Option<(PathBuf, Arc<Vec<Entry>>)>>,
    /// How objects that came in parts are named, by the entity tag they would have otherwise.
    made: Mutex<HashMap<String, MadeOfParts>>,
    /// Held while an object is judged and replaced.
    finishing: Mutex<()>,
    /// Where parts lie, once there was one. It goes with the bucket.
    parts: Mutex<Option<TempDir>>,
}

impl FileStore {
    pub(super) fn open(root: &Path, writable: bool) -> Result<FileStore> {
        let doing = || format!("opening the folder {}", root.display());
        let real = root.canonicalize().map_err(|e| Error::system(doing(), &e))?;
        if !real.is_dir() {
            return Err(Error::usage(format!("{} is not a folder", root.display())));
        }
        let (walked, made, finishing) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(FileStore { root: real, writable, walked, made, finishing, parts: Mutex::default() })
    }

    fn named(&self, metadata: &Metadata) -> (String, Option<String>) {
        let own = etag(metadata);
        match self.made.lock().expect("no holder of names panics").get(&own) {
            Some((etag, checksum)) => (etag.clone(), Some(checksum.clone())),
            None => (own, None),
        }
    }

    pub(super) fn find(&self, key: &str) -> Result<Object, Refusal> {
        let absent = || Refusal::no_such_key(key);
        let path = self.root.join(relative(key)?);
        let real = path.canonicalize().map_err(|_| absent())?;
        if !real.starts_with(&self.root) {
            return Err(absent());
        }
        // Opening anything but a regular file could wait for ever (a FIFO) or have effects (a device).
        let seen = fs::symlink_metadata(&real).map_err(|_| absent())?;
        if !seen.is_file() {
            return Err(absent());
        }
        let file = File::open(&real).map_err(|e| Refusal::from_io(key, &e))?;
        let opened = file.metadata().map_err(|e| Refusal::from_io(key, &e))?;
        if (opened.dev(), opened.ino()) != (seen.dev(), seen.ino()) {
            // Swapped between the check and the opening: what was checked is gone.
            return Err(absent());
        }
        Ok(self.object(file, &opened))
    }

    fn object(&self, file: File, metadata: &Metadata) -> Object {
        let (etag, parts_checksum) = self.named(metadata);
        let (size, modified_s) = (metadata.len(), u64::try_from(metadata.mtime()).unwrap_or(0));
        Object {
            size,
            etag,
            modified_s,
            parts_checksum,
            content: Content::File { file: Arc::new(file), generation: 0 },
        }
    }

    /// All entries under the query's prefix, and maybe more, in order.
    pub(super) fn entries(&self, query: &ListQuery) -> Arc<Vec<Entry>> {
        let folder = query.prefix.rfind('/').map_or("", |end| &query.prefix[..end]);
        let Ok(folder) = (if folder.is_empty() { Ok(PathBuf::new()) } else { relative(folder) }) else {
            return Arc::default();
        };
        if !query.from.is_empty()
            && let Some((from, entries)) = self.walked.lock().expect("no walk holder panics").as_ref()
            && *from == folder
        {
            return Arc::clone(entries);
        }
        let mut entries = Vec::new();
        if self.is_plain_folder(&folder) {
            let prefix = folder.to_str().map_or(String::new(), str::to_owned);
            self.walk(&self.root.join(&folder), &prefix, 0, &mut entries);
        }
        entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let entries = Arc::new(entries);
        *self.walked.lock().expect("no walk holder panics") = Some((folder, Arc::clone(&entries)));
        entries
    }

    /// Begins to write the object of this key: a file beside it that listings leave out.
    pub(super) fn begin(&self, key: &str) -> Result<Draft, Refusal> {
        let target = self.root.join(relative(key)?);
        let folder = target.parent().unwrap_or(&self.root);
        self.make_folder(folder, key)?;
        hidden(folder).map_err(|e| Refusal::from_io(key, &e))
    }

    /// Begins to write a part, on the disk of the objects.
    pub(super) fn begin_part(&self) -> Result<Draft, Refusal> {
        let mut parts = self.parts.lock().expect("no holder of parts panics");
        let folder = parts.take().map_or_else(|| Builder::new().prefix(PARTIAL_PREFIX).tempdir_in(&self.root), Ok);
        folder.and_then(|folder| hidden(parts.insert(folder).path())).map_err(|e| Refusal::from_io("a part", &e))
    }

    /// Moves a draft to its key, if `condition` allows it in place of what is there.
    pub(super) fn finish(
        &self,
        key: &str,
        (draft, made): (NamedTempFile, Option<MadeOfParts>),
        condition: &PutCondition,
    ) -> Result<Object, Refusal> {
        let failed = |e: &std::io::Error| Refusal::from_io(key, e);
        let metadata = draft.as_file().metadata().map_err(|e| failed(&e))?;
        let _alone = self.finishing.lock().expect("no holder of the lock panics");
        condition.check(self.find(key).ok().map(|there| there.etag).as_deref())?;
        if let Some(made) = made {
            let mut known = self.made.lock().expect("no holder of names panics");
            if known.len() >= MADE_OF_PARTS_MAX {
                known.clear();
            }
            known.insert(etag(&metadata), made);
        }
        let file = draft.persist(self.root.join(relative(key)?)).map_err(|e| failed(&e.error))?;
        *self.walked.lock().expect("no walk holder panics") = None;
        Ok(self.object(file, &metadata))
    }

    /// Deletes the object of this key, if there is one. Its folders stay.
    pub(super) fn delete(&self, key: &str) -> Result<(), Refusal> {
        // A key that could not be written is refused; one that is not there, or no file, is left alone.
        let path = self.root.join(relative(key)?);
        let _alone = self.finishing.lock().expect("no holder of the lock panics");
        if self.find(key).is_ok() {
            fs::remove_file(path).map_err(|e| Refusal::from_io(key, &e))?;
            *self.walked.lock().expect("no walk holder panics") = None;
        }
        Ok(())
    }

    /// Makes the folders down to `folder`, refusing to pass through a link that leaves the root, or a file.
    fn make_folder(&self, folder: &Path, key: &str) -> Result<(), Refusal> {
        let mut existing = folder;
        while fs::symlink_metadata(existing).is_err() {
            existing = existing.parent().unwrap_or(&self.root);
        }
        let real = existing.canonicalize().map_err(|e| Refusal::from_io(key, &e))?;
        if !real.starts_with(&self.root) {
            return Err(Refusal::new("InvalidURI", "the key leads out of the bucket"));
        }
        fs::create_dir_all(folder).map_err(|e| match e.kind() {
            // Buckets hold both, folders do not. A retry cannot help.
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                let cause = format!("`{key}` lies below an object, and a file cannot be a folder, too.");
                Refusal::new("PathConflict", cause)
            }
            _ => Refusal::from_io(key, &e),
        })
    }

    /// Whether every step from the root is a folder and no link.
    fn is_plain_folder(&self, folder: &Path) -> bool {
        let mut path = self.root.clone();
        folder.components().all(|step| {
            path.push(step);
            fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir())
        })
    }

    /// Unreadable folders and files that vanish meanwhile are left out, as they are for `find`.
    fn walk(&self, folder: &Path, prefix: &str, depth: usize, entries: &mut Vec<Entry>) {
        let Ok(names) = fs::read_dir(folder) else { return };
        for found in names.flatten() {
            let name = found.file_name();
            let Some(name) = name.to_str().filter(|name| !name.starts_with(PARTIAL_PREFIX)) else { continue };
            let Ok(kind) = found.file_type() else { continue };
            let key = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            if kind.is_dir() {
                if depth < DEPTH_MAX {
                    self.walk(&found.path(), &key, depth + 1, entries);
                }
                continue;
            }
            if let Some(metadata) = self.listed_file(&found.path(), kind.is_symlink()) {
                let modified_s = u64::try_from(metadata.mtime()).unwrap_or(0);
                entries.push(Entry { key, size: metadata.len(), etag: self.named(&metadata).0, modified_s });
            }
        }
    }

    fn listed_file(&self, path: &Path, is_link: bool) -> Option<Metadata> {
        if is_link && !path.canonicalize().ok()?.starts_with(&self.root) {
            return None;
        }
        fs::metadata(path).ok().filter(Metadata::is_file)
    }
}

/// A file that goes unless it is finished. Readable as files of other programs are, as far as the process's umask allows.
fn hidden(folder: &Path) -> std::io::Result<Draft> {
    let mut file = Builder::new();
    let file = file.prefix(PARTIAL_PREFIX).permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    Ok(Draft::File(file))
}

/// The key as a relative path, refused when a name is empty, `.` or `..` or holds a NUL byte.
fn relative(key: &str) -> Result<PathBuf, Refusal> {
    if key.split('/').any(|name| name.is_empty() || name == "." || name == ".." || name.contains('\0')) {
        return Err(Refusal::new("InvalidURI", "a name in the key is empty, `.`, `..` or holds a NUL byte"));
    }
    Ok(PathBuf::from(key))
}

/// From what changes whenever the content does, so listings need not read files: size, time and inode.
fn etag(metadata: &Metadata) -> String {
    let mut identity = [0u8; 40];
    identity[..8].copy_from_slice(&metadata.len().to_le_bytes());
    identity[8..16].copy_from_slice(&metadata.mtime().to_le_bytes());
    identity[16..24].copy_from_slice(&metadata.mtime_nsec().to_le_bytes());
    identity[24..32].copy_from_slice(&metadata.dev().to_le_bytes());
    identity[32..].copy_from_slice(&metadata.ino().to_le_bytes());
    format!("\"{:032x}\"", xxh3_128(&identity))
}
