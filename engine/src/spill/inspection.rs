//! Cache inspection: lists, verifies and removes the segments of a cache directory, from outside of any loader.
//!
//! Owns nothing, and takes a lock only to remove a segment. Other files are counted, and not touched.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuelrail_base::{Error, Kind, Result};
use fuelrail_io::OwnDirectory;
use serde::Serialize;

use super::directory;
use super::directory::{Named, Segment, Unfit};
use crate::system::refused;

/// Whether a process owns a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SegmentState {
    /// A running process owns it, appends to it and may remove it.
    Owned,
    /// Its process has ended; another may take over its blocks or its room.
    Free,
    /// It is being created.
    New,
    /// It is not what its name says, or cannot be read; no run uses it.
    #[default]
    Unfit,
}

/// One file that is named as a segment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CacheSegment {
    /// Where it is.
    pub path: PathBuf,
    /// Its length, bytes.
    pub bytes: u64,
    /// Whether a process owns it.
    pub state: SegmentState,
    /// When it was made, s since 1970; zero for one that is not a segment.
    pub created_s: u64,
    /// Blocks its journal tells of.
    pub blocks: u64,
    /// … their bytes.
    pub block_bytes: u64,
    /// Torn or corrupt records.
    pub damaged_records: u64,
    /// What is wrong with it, if anything is.
    pub flaw: Option<String>,
}

/// One cache directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CacheDirectory {
    /// Where it is.
    pub path: PathBuf,
    /// Room of its file system, bytes.
    pub volume_bytes: u64,
    /// … of which free.
    pub free_bytes: u64,
    /// Its segments, by name.
    pub segments: Vec<CacheSegment>,
}

/// What reading every block of a segment came to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CacheVerdict {
    /// The segment.
    pub path: PathBuf,
    /// Valid blocks.
    pub sound: u64,
    /// … their bytes.
    pub sound_bytes: u64,
    /// Corrupt blocks: a reader fetches them again.
    pub rotten: u64,
    /// Torn or corrupt records.
    pub damaged_records: u64,
    /// Why it, or a part of it, could not be read.
    pub flaw: Option<String>,
}

/// What removing came to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RemovedCache {
    /// Segments removed.
    pub removed: Vec<PathBuf>,
    /// Bytes freed now, or when the last reader has closed them.
    pub removed_bytes: u64,
    /// Segments of running processes, which were not removed.
    pub owned: Vec<PathBuf>,
    /// Files that could not be removed, with the reason.
    pub left: Vec<(PathBuf, String)>,
}

/// Lists a cache directory. Changes nothing; loaders may be using it.
///
/// # Errors
/// `NotFound` when there is no such directory or nothing was kept in it, `File` when it cannot be read.
pub fn list_cache(path: &Path) -> Result<CacheDirectory> {
    let own = own(path)?;
    let (all, room) = (directory::named(&own)?, own.room()?);
    let segments = all.iter().filter_map(describe).collect();
    let (volume_bytes, free_bytes) = (room.total_bytes, room.free_bytes);
    Ok(CacheDirectory { path: own.path().to_owned(), volume_bytes, free_bytes, segments })
}

/// Reads every block of every segment of a directory and compares it with its checksum; `each` hears of a segment at a time.
///
/// # Errors
/// As [`list_cache`], and whatever `each` answers.
pub fn verify_cache(path: &Path, mut each: impl FnMut(&CacheVerdict) -> Result<()>) -> Result<()> {
    for named in directory::named(&own(path)?)?.iter().filter(|named| !named.name.new) {
        if let Some(verdict) = verify(named) {
            each(&verdict)?;
        }
    }
    Ok(())
}

/// Removes the segments of a directory that no living process owns; with `force`, those, too: their owners go on, and fetch
/// again what they do not find. What is named as a segment and is none goes, too; files of other names, and of other users, stay.
///
/// # Errors
/// `NotFound` when there is no such directory, `File` when it cannot be read.
pub fn remove_cache(path: &Path, force: bool) -> Result<RemovedCache> {
    let mut outcome = RemovedCache::default();
    // Where nothing was kept yet there is nothing to remove.
    let Some(own) = find(path)?.map(Arc::new) else { return Ok(outcome) };
    let all = directory::named(&own)?;
    directory::clear_dead(&all);
    for named in all.iter().filter(|named| !named.name.new) {
        let removed = match Segment::open(named) {
            Err(Unfit::Gone) => continue,
            Err(Unfit::Failed(error)) => Err(error),
            Err(Unfit::Flawed(_)) => directory::remove_flawed(named, force),
            Ok(segment) => match segment.try_own() {
                Ok(Some(owned)) => owned.remove().map(|()| true),
                Ok(None) if force => segment.remove().map(|()| true),
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            },
        };
        match removed {
            Ok(true) => {
                outcome.removed_bytes += named.len;
                outcome.removed.push(named.path());
            }
            Ok(false) => outcome.owned.push(named.path()),
            Err(error) => outcome.left.push((named.path(), error.to_string())),
        }
    }
    Ok(outcome)
}

/// This user's directory in one of `spill_dirs`; or what is named so itself, as messages do.
///
/// # Errors
/// `NotFound` when there is none.
fn own(path: &Path) -> Result<Arc<OwnDirectory>> {
    let none = || not_found(path, "contains no cache of this user");
    find(path)?.map(Arc::new).ok_or_else(none)
}

fn find(path: &Path) -> Result<Option<OwnDirectory>> {
    let facts = std::fs::metadata(path);
    match &facts {
        Ok(facts) if facts.is_dir() => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(refused(path, "opening", error)),
        _ => return Err(not_found(path, "is not a directory")),
    }
    if let Some(found) = OwnDirectory::find(path)? {
        return Ok(Some(found));
    }
    let whole = path.canonicalize().ok();
    let Some((whole, parent)) = whole.as_deref().and_then(|whole| Some((whole, whole.parent()?))) else {
        return Ok(None);
    };
    Ok(OwnDirectory::find(parent).ok().flatten().filter(|found| found.path() == whole))
}

fn not_found(path: &Path, why: &str) -> Error {
    Error::new(Kind::NotFound, format!("{} {why}", path.display())).with_hint("name a directory of spill_dirs")
}

/// `None` for one that is gone by now.
fn describe(named: &Named) -> Option<CacheSegment> {
    let mut facts = CacheSegment { path: named.path(), bytes: named.len, ..CacheSegment::default() };
    if named.name.new {
        return Some(CacheSegment { state: SegmentState::New, ..facts });
    }
    match Segment::open(named) {
        Err(Unfit::Gone) => return None,
        Err(unfit) => facts.flaw = Some(why(unfit)),
        Ok(segment) => {
            facts.created_s = segment.header.created_s;
            facts.state = match segment.is_owned() {
                Ok(true) => SegmentState::Owned,
                _ => SegmentState::Free,
            };
            match segment.scan() {
                Ok(scanned) => {
                    facts.blocks = scanned.records.len() as u64;
                    facts.block_bytes = scanned.records.iter().map(|record| u64::from(record.len)).sum();
                    facts.damaged_records = scanned.damaged;
                }
                Err(error) => facts.flaw = Some(error.to_string()),
            }
        }
    }
    Some(facts)
}

fn verify(named: &Named) -> Option<CacheVerdict> {
    let mut verdict = CacheVerdict { path: named.path(), ..CacheVerdict::default() };
    let segment = match Segment::open(named) {
        Ok(segment) => segment,
        Err(Unfit::Gone) => return None,
        Err(unfit) => return Some(CacheVerdict { flaw: Some(why(unfit)), ..verdict }),
    };
    let scanned = match segment.scan() {
        Ok(scanned) => scanned,
        Err(error) => return Some(CacheVerdict { flaw: Some(error.to_string()), ..verdict }),
    };
    verdict.damaged_records = scanned.damaged;
    let mut bytes = Vec::new();
    for record in &scanned.records {
        match segment.proves(record, &mut bytes) {
            Ok(true) => {
                verdict.sound += 1;
                verdict.sound_bytes += u64::from(record.len);
            }
            Ok(false) => verdict.rotten += 1,
            Err(error) => {
                verdict.rotten += 1;
                verdict.flaw = Some(error.to_string());
            }
        }
    }
    Some(verdict)
}

fn why(unfit: Unfit) -> String {
    match unfit {
        Unfit::Gone => "it is gone".into(),
        Unfit::Flawed(why) => why,
        Unfit::Failed(error) => error.to_string(),
    }
}
