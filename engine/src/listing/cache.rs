//! The listing cache: a directory where finished listings are saved and found again.
//!
//! Owns file names and messages; a damaged or foreign file costs a notice and a new listing.

use crate::system::{own_directory, refused};
use fuelrail_base::{Duration, Error, Kind, Result, SampleId};
use fuelrail_flow::Listing;
use fuelrail_io::OwnDirectory;
use fuelrail_wire::kept::{Flaw, HEADER_BYTES, Header, Holds, Name, NameKind, SourceId};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BUFFER_BYTES: usize = 256 << 10;

/// Where listings are kept, and how long one is used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingDir {
    /// A local directory; made where there is none.
    pub path: PathBuf,
    /// A listing older than this is not used again; zero uses none again.
    pub max_age: Duration,
}

/// A listing, and how it was come by.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeptListing {
    /// The objects.
    pub listing: Listing,
    /// Whether it was on disk.
    pub reused: bool,
    /// What is to be said of it, a line each.
    pub notices: Vec<String>,
    pub(crate) saved: Saved,
}

impl KeptListing {
    pub(crate) fn plain(listing: Listing) -> KeptListing {
        KeptListing { listing, reused: false, notices: Vec::new(), saved: Saved::default() }
    }

    /// The file it is saved in, if it is.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.saved.path()
    }
}

/// One data set's files in the directory.
#[derive(Debug)]
pub(super) struct ListingCache {
    pub(super) own: Arc<OwnDirectory>,
    pub(super) source: SourceId,
}

/// A listing that was found: it is used from the file, whose memory all processes of this user share.
#[derive(Debug)]
pub(super) struct OnDisk {
    pub(super) listing: Listing,
    /// When its first page was asked for, s since 1970.
    pub(super) begun_s: u64,
}

impl ListingCache {
    /// Opens this user's directory in `dir`, as [`own_directory`] does. Only this user can read it: keys may be confidential.
    pub(super) fn open(dir: &Path, source: SourceId, notices: &mut Vec<String>) -> Result<ListingCache> {
        Ok(ListingCache { own: Arc::new(own_directory("listing_dir", dir, notices)?), source })
    }

    pub(super) fn path(&self, kind: NameKind) -> PathBuf {
        self.own.path().join(self.name(kind))
    }

    pub(super) fn name(&self, kind: NameKind) -> String {
        Name { source: self.source, kind }.to_string()
    }

    /// The saved listing that was started at `begun_s`.
    pub(super) fn saved(&self, begun_s: u64) -> Saved {
        let (own, name) = (Arc::clone(&self.own), self.name(NameKind::Whole));
        Saved(Some(SavedFile { path: own.path().join(&name), own, name, begun_s }))
    }

    /// Loads the saved listing, if `wanted` accepts its time.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub(super) fn load(&self, wanted: impl FnOnce(u64) -> Result<(), String>) -> Result<Option<OnDisk>, String> {
        let path = self.path(NameKind::Whole);
        let opened = self.own.map_file(&self.name(NameKind::Whole));
        let Some(file) = opened.map_err(|error| error.to_string())? else { return Ok(None) };
        let named = |why: &dyn core::fmt::Display| format!("{}: {why}", path.display());
        let header = Header::decode(file.as_ref()).map_err(|flaw| named(&flaw))?;
        let Holds::Whole(objects) = header.holds else { return Err(named(&Flaw::Foreign)) };
        if header.source != self.source {
            return Err(named(&Flaw::Foreign));
        }
        wanted(header.begun_s).map_err(|why| named(&why))?;
        let listing = Listing::of_file(file, objects).map_err(|flaw| named(&flaw))?;
        Ok(Some(OnDisk { listing, begun_s: header.begun_s }))
    }

    /// Saves a listing: under its name there is the one before, or all of this one. Returns its length, bytes.
    ///
    /// # Errors
    /// `File` when the disk refuses; nothing is left of it then.
    pub(super) fn save(&self, listing: &Listing, begun_s: u64) -> Result<u64> {
        let (new, name) = (self.name(NameKind::New), self.name(NameKind::Whole));
        let header = Header { holds: Holds::Whole(listing.len() as u64), source: self.source, begun_s };
        // A file of this name was left by a process that died. If it cannot be removed, creating one fails below.
        let _ = self.own.remove(&new);
        let file = self.own.make_file(&new);
        let mut file = file.map_err(|error| refused(&self.path(NameKind::New), "making", &error))?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, &mut file);
        let written = listing.write(&header.encode(), &mut out).and_then(|len| out.flush().map(|()| len));
        drop(out);
        let saved = written.and_then(|len| self.own.rename(&new, &name).map(|()| len));
        saved.map_err(|error| {
            // It is written over next time where it cannot be removed.
            let _ = self.own.remove(&new);
            refused(&self.path(NameKind::Whole), "saving", &error)
        })
    }
}

/// An age for people.
pub(super) fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        _ => format!("{} h ago", seconds / 3600),
    }
}

/// The file a loader's listing is saved in. Dropped from the disk when an object turns out to be not as listed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saved(Option<SavedFile>);

#[derive(Clone, Debug)]
struct SavedFile {
    own: Arc<OwnDirectory>,
    name: String,
    path: PathBuf,
    begun_s: u64,
}

impl Saved {
    pub(super) fn path(&self) -> Option<&Path> {
        self.0.as_ref().map(|file| file.path.as_path())
    }

    /// Looks at what a batch had to be delivered without.
    pub(crate) fn look_at(&mut self, left_out: &[(SampleId, Error)]) {
        left_out.iter().for_each(|(_, error)| drop(self.judged(error.clone())));
    }

    /// Looks at an error of a sample. One that says the listing is old drops what is saved, and tells so.
    pub(crate) fn judged(&mut self, error: Error) -> Error {
        if !matches!(error.kind(), Kind::Changed | Kind::NotFound | Kind::Mismatch) {
            return error;
        }
        let Some(SavedFile { own, name, path, begun_s }) = self.0.take() else { return error };
        // Another process may have saved a newer one meanwhile.
        let mut head = [0; HEADER_BYTES];
        let opened = own.open_file(&name, false).ok().flatten();
        let read = opened.is_some_and(|mut file| file.read_exact(&mut head).is_ok());
        let is_that = read && Header::decode(&head).is_ok_and(|header| header.begun_s == begun_s);
        if is_that && own.remove(&name).is_err() {
            return error.and_hint(format!("remove the saved listing, {}", path.display()));
        }
        error
            .and_hint(format!("the saved listing {} is dropped: the next start lists the bucket again", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn listing() -> Listing {
        let mut listing = Listing::default();
        (0..12).for_each(|n| listing.push(&format!("k/{n:02}"), n, (n % 3 == 0).then_some("\"x\"")));
        listing
    }

    #[test]
    fn torn_or_rotten_at_any_byte_it_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ListingCache::open(&dir.path().join("new"), SourceId([7; 16]), &mut Vec::new()).unwrap();
        assert!(cache.load(|_| Ok(())).unwrap().is_none());
        let wanted: Vec<_> = listing().iter().collect();
        let bytes = cache.save(&listing(), 5).unwrap();
        let path = cache.path(NameKind::Whole);
        let good = fs::read(&path).unwrap();
        assert_eq!(good.len() as u64, bytes);
        let found = cache.load(|begun_s| if begun_s == 5 { Ok(()) } else { Err("old".into()) }).unwrap().unwrap();
        assert!(found.begun_s == 5 && found.listing.iter().eq(wanted.iter().cloned()));
        // It is mapped, and the file is cut below.
        drop(found);
        assert!(cache.load(|_| Err("it is old".into())).unwrap_err().ends_with(": it is old"));
        for at in 0..good.len() {
            let mut rotten = good.clone();
            rotten[at] ^= 1 << (at % 8);
            for bytes in [&good[..at], &rotten[..]] {
                fs::write(&path, bytes).unwrap();
                assert!(cache.load(|_| Ok(())).is_err(), "at {at}");
            }
        }
        // Leftovers of a process that died while saving do not matter, and another data set's file is not used.
        fs::write(cache.path(NameKind::New), "half").unwrap();
        cache.save(&listing(), 6).unwrap();
        assert_eq!(cache.load(|_| Ok(())).unwrap().unwrap().begun_s, 6);
        let other = ListingCache { source: SourceId([8; 16]), own: Arc::clone(&cache.own) };
        fs::copy(&path, other.path(NameKind::Whole)).unwrap();
        assert!(other.load(|_| Ok(())).unwrap_err().contains("another data set"));
    }

    #[test]
    fn only_the_listing_that_was_used_is_dropped_and_only_for_what_says_it_is_old() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ListingCache::open(dir.path(), SourceId([7; 16]), &mut Vec::new()).unwrap();
        cache.save(&listing(), 5).unwrap();
        let path = cache.path(NameKind::Whole);
        let mut saved = cache.saved(5);
        for kind in [Kind::Network, Kind::Undecodable, Kind::Denied] {
            assert_eq!(saved.judged(Error::new(kind, "x")), Error::new(kind, "x"));
        }
        cache.save(&listing(), 6).unwrap();
        let error = saved.judged(Error::new(Kind::NotFound, "x"));
        assert!(path.exists() && error.to_string().contains("is dropped"), "a newer one stays: {error}");
        assert_eq!(saved.judged(Error::new(Kind::NotFound, "x")), Error::new(Kind::NotFound, "x"), "it is told once");
        for kind in [Kind::Changed, Kind::NotFound, Kind::Mismatch] {
            cache.save(&listing(), 6).unwrap();
            cache.saved(6).look_at(&[(SampleId(0), Error::new(kind, "x"))]);
            assert!(!path.exists(), "{kind:?}");
        }
    }
}
