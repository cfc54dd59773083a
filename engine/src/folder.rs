//! A folder of this machine in a bucket's place: walked, read from and written to outside the hot path.
//!
//! An object is a regular file, its key the path within the folder, its entity tag the file's mark. Links are followed, to files and to
//! folders, but not to a folder they lie in; pipes, sockets and devices are no objects. Owns nothing that outlives a call.

use crate::system::random_number;
use fuelrail_base::limits::KEY_BYTES_MAX;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{Listed, Listing};
use fuelrail_io::{FileMark, open_regular};
use fuelrail_wire::{Endpoint, Scheme, Source};
use std::fs::{self, DirEntry, File, Metadata};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// What is being written is called so until it is whole, and is no object.
const NEW: &str = ".fuelrail-new-";
/// … and so what the commands are writing.
const PART: (&str, &str) = (".fuelrail-", ".part");
const PIECE_BYTES: usize = 1 << 20;
/// How old the file of a process that was killed is at least: one that is being written is younger.
const UNFINISHED_AGE: Duration = Duration::from_secs(3600);
/// How often a walk tells how far it is.
const TOLD_EVERY: u64 = 1000;

/// The same data set, with folders that are named without their last slash found: they mean what is in them. Of a bucket nothing
/// changes.
pub(crate) fn settled(source: Source) -> Result<Source> {
    if source.endpoint.scheme != Scheme::File {
        return Ok(source);
    }
    let whole = |prefix: &String| {
        let mut path = path_of(&source.endpoint, prefix);
        if !path.ends_with('/') && Path::new(&path).is_dir() {
            path.push('/');
        }
        path
    };
    Source::of_folders(source.prefixes.iter().map(whole).collect())
}

/// Where names within a folder begin in these keys, bytes, where `prefix` is the folder's name without its last slash: all keys go on with one.
pub(crate) fn named_by<'k>(prefix: &str, mut keys: impl Iterator<Item = &'k str>) -> Option<usize> {
    let within = |key: &str| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    (!prefix.is_empty() && keys.all(within)).then_some(prefix.len() + 1)
}

/// All files whose keys begin with one of the prefixes, sorted by key.
///
/// # Errors
/// `Usage` for a name that is not UTF-8 or too long, `NotFound` for a folder that is not there and a link that leads nowhere, `Denied` and `File` for what the
/// system refuses.
pub(crate) fn list(source: &Source, progress: &mut impl FnMut(u64)) -> Result<Listing> {
    walk(source, progress, None)
}

/// Paths within a folder of what is no object, and why; nothing of pipes, sockets and devices.
pub(crate) type NotObjects = Vec<(String, Option<Error>)>;

/// All files in a folder, sorted by key, and what in it is no object.
///
/// # Errors
/// As for a listing of the folder, but of the folder alone.
pub fn list_folder(folder: &str) -> Result<(Vec<Listed>, NotObjects)> {
    let (source, mut left_out) = (Source::of_folders(vec![format!("{}/", folder.trim_end_matches('/'))])?, Vec::new());
    let listing = walk(&source, &mut |_| {}, Some(&mut left_out))?;
    Ok((listing.iter().collect(), left_out))
}

fn walk(source: &Source, progress: &mut impl FnMut(u64), left_out: Option<&mut NotObjects>) -> Result<Listing> {
    let (listing, above) = (Listing::default(), Vec::new());
    let mut walk = Walk { endpoint: &source.endpoint, listing, above, progress, left_out };
    for prefix in &source.prefixes {
        let (folder, start) = prefix.split_at(prefix.rfind('/').map_or(0, |slash| slash + 1));
        let (path, before) = (path_of(&source.endpoint, folder), walk.listing.len());
        walk.above = around(&path);
        walk.folder(folder, start)?;
        // What is there and empty is an empty data set; a name that nothing has is misspelt.
        if walk.listing.len() == before && (!start.is_empty() || !Path::new(&path).is_dir()) {
            let hint = if path.starts_with('/') {
                "check the path for spelling, and that its file system is mounted"
            } else {
                "it was looked for in the working directory; a bucket is written s3://BUCKET/PREFIX/ or http://HOST/BUCKET/PREFIX/"
            };
            return Err(Error::new(Kind::NotFound, format!("there is no file or folder {path}{start}")).with_hint(hint));
        }
    }
    let Walk { listing, .. } = walk;
    progress(listing.len() as u64);
    Ok(listing.sorted())
}

/// A folder and all it lies in.
fn around(path: &str) -> Vec<(u64, u64)> {
    let Ok(path) = fs::canonicalize(path) else { return Vec::new() };
    let facts = path.ancestors().filter_map(|path| fs::metadata(path).ok());
    facts.map(|facts| (facts.dev(), facts.ino())).collect()
}

struct Walk<'a, P> {
    endpoint: &'a Endpoint,
    listing: Listing,
    /// The folders that the present one lies in, by file system and number.
    above: Vec<(u64, u64)>,
    progress: &'a mut P,
    /// What is no object, where that does not end the walk.
    left_out: Option<&'a mut NotObjects>,
}

impl<P: FnMut(u64)> Walk<'_, P> {
    /// What is called `within` and begins with `start`. A folder that went meanwhile holds nothing.
    fn folder(&mut self, within: &str, start: &str) -> Result<()> {
        let path = path_of(self.endpoint, within);
        let items = match fs::read_dir(&path) {
            Ok(items) => items,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
            Err(error) => return Err(refused("listing", &path, &error)),
        };
        for item in items {
            let item = item.map_err(|error| refused("listing", &path, &error))?;
            let walked = self.item(&item, within, start);
            match (walked, &mut self.left_out) {
                (Err(error), Some(left_out)) => {
                    left_out.push((format!("{within}{}", item.file_name().to_string_lossy()), Some(error)));
                }
                (walked, _) => walked?,
            }
        }
        Ok(())
    }

    fn item(&mut self, item: &DirEntry, within: &str, start: &str) -> Result<()> {
        let name = item.file_name();
        let Some(name) = name.to_str() else {
            let cause = format!("the name of the file '{}' is not UTF-8", item.path().display());
            return Err(Error::new(Kind::Usage, cause).with_hint("rename it: keys must be UTF-8"));
        };
        let is_part = name.starts_with(PART.0) && name.ends_with(PART.1);
        if !name.starts_with(start) || name.starts_with(NEW) || is_part {
            return Ok(());
        }
        let path = item.path();
        let facts = match fs::metadata(&path) {
            Ok(facts) => facts,
            Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => return Ok(()),
            Err(error) => {
                let refused = refused("following", &path.display().to_string(), &error);
                let is_dangling = error.kind() == ErrorKind::NotFound;
                let cure = is_dangling.then_some("the link leads nowhere: remove it, or put back what it leads to");
                return Err(cure.into_iter().fold(refused, Error::with_hint));
            }
        };
        let key = format!("{within}{name}");
        if facts.is_dir() {
            return self.deeper(&format!("{key}/"), &facts);
        }
        if !facts.is_file() {
            if let Some(left_out) = &mut self.left_out {
                left_out.push((key, None));
            }
            return Ok(());
        }
        if key.len() > KEY_BYTES_MAX {
            let cause = format!("its path within the folder is longer than {KEY_BYTES_MAX} bytes");
            return Err(Error::new(Kind::Usage, cause)
                .with_hint("use a folder closer to it as the source")
                .with_object(key));
        }
        self.listing.push(&key, facts.len(), Some(&FileMark::of(&facts).to_string()));
        if (self.listing.len() as u64).is_multiple_of(TOLD_EVERY) {
            (self.progress)(self.listing.len() as u64);
        }
        Ok(())
    }

    fn deeper(&mut self, within: &str, facts: &Metadata) -> Result<()> {
        let id = (facts.dev(), facts.ino());
        if self.above.contains(&id) {
            return Ok(());
        }
        self.above.push(id);
        let walked = self.folder(within, "");
        self.above.pop();
        walked
    }
}

/// Removes from a folder what processes that were killed were putting there: what nobody has written to for an hour, and where only this
/// machine puts anything there, what is of a number that no process here has.
pub fn forget_unfinished(folder: &str, only_here: bool) {
    for item in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = item.file_name();
        let Some((id, _)) = name.to_str().and_then(|name| name.strip_prefix(NEW)?.split_once('-')) else { continue };
        let written = item.metadata().and_then(|facts| facts.modified());
        let is_old = written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= UNFINISHED_AGE));
        if is_old || (only_here && !Path::new("/proc").join(id).exists()) {
            let _ = fs::remove_file(item.path());
        }
    }
}

/// Copies a file to `out`. Returns its length.
///
/// # Errors
/// `NotFound`, `Denied` and `File` for what the system refuses, `File` when `out` fails.
pub(crate) fn get(endpoint: &Endpoint, key: &str, out: &mut dyn Write) -> Result<u64> {
    let path = path_of(endpoint, key);
    if Path::new(&path).is_dir() {
        return Err(Error::new(Kind::NotFound, "it is a folder").with_hint("`fuelrail ls` shows what is in it"));
    }
    let mut file = open_regular(Path::new(&path))?;
    let (mut piece, mut copied) = (vec![0; PIECE_BYTES], 0);
    loop {
        let len = read_some(&mut file, &mut piece).map_err(|error| refused("reading", &path, &error))?;
        if len == 0 {
            return Ok(copied);
        }
        out.write_all(&piece[..len]).map_err(|e| Error::from_io(Kind::File, "writing", e))?;
        copied += len as u64;
    }
}

/// Writes a file, over one that is there unless `only_new`, whole or not at all, and through to the disk. Folders are made as needed. Returns its length
/// and its entity tag.
///
/// # Errors
/// `Exists` where only a new one was to be put; `Denied` and `File` for what the system refuses.
pub(crate) fn put(
    endpoint: &Endpoint,
    key: &str,
    only_new: bool,
    source: &mut (impl Read + ?Sized),
    progress: &mut impl FnMut(u64),
) -> Result<(u64, String)> {
    let path = path_of(endpoint, key);
    let folder = path.rsplit_once('/').map_or(".", |(folder, _)| if folder.is_empty() { "/" } else { folder });
    fs::create_dir_all(folder).map_err(|error| refused("making", folder, &error))?;
    // Containers that share a file system have the same process ids.
    let number = random_number();
    let new = format!("{folder}/{NEW}{}-{number:x}", std::process::id());
    let file = File::create_new(&new).map_err(|error| refused("writing", &new, &error))?;
    let written = write(file, &new, source, progress).and_then(|stored| {
        // A second name is refused where there is a file, at one moment for all; the first one goes.
        let named = if only_new {
            fs::hard_link(&new, &path).and_then(|()| fs::remove_file(&new))
        } else {
            fs::rename(&new, &path)
        };
        named.map_err(|error| refused("naming", &path, &error))?;
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| refused("syncing", folder, &error))?;
        Ok(stored)
    });
    // What stays where it is has a name that no listing shows.
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

fn write(
    mut file: File,
    new: &str,
    source: &mut (impl Read + ?Sized),
    progress: &mut impl FnMut(u64),
) -> Result<(u64, String)> {
    let failed = |error: &std::io::Error| refused("writing", new, error);
    let (mut piece, mut bytes) = (vec![0; PIECE_BYTES], 0);
    loop {
        let unreadable = |e| Error::from_io(Kind::File, "reading what is to be put", e);
        let len = read_some(source, &mut piece).map_err(unreadable)?;
        if len == 0 {
            break;
        }
        file.write_all(&piece[..len]).map_err(|error| failed(&error))?;
        bytes += len as u64;
        progress(bytes);
    }
    let marked = file.sync_all().and_then(|()| file.metadata()).map_err(|error| failed(&error))?;
    Ok((bytes, FileMark::of(&marked).to_string()))
}

fn path_of(endpoint: &Endpoint, key: &str) -> String {
    let mut path = String::new();
    endpoint.push_file_path(&mut path, key);
    path
}

fn refused(doing: &str, path: &str, error: &std::io::Error) -> Error {
    let (kind, hint) = match error.kind() {
        ErrorKind::NotFound => (Kind::NotFound, "check the path; `fuelrail ls` shows the keys"),
        ErrorKind::AlreadyExists => (Kind::Exists, "choose another name, or allow it to be replaced"),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            (Kind::Denied, "give this user permission, or use another folder")
        }
        _ => (Kind::File, "look at the disk and the kernel's log (dmesg)"),
    };
    Error::from_io(kind, format_args!("{doing} {path}"), error).with_hint(hint)
}

/// Some more bytes; none at the end. A signal that comes meanwhile is no end.
pub(crate) fn read_some(source: &mut (impl Read + ?Sized), piece: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match source.read(piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
