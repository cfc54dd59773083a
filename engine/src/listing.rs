//! Listing a bucket: all pages, several at a time, packed as they come; kept on disk where there is a directory for that.
//!
//! Owns what has come until all has. Where to go on is `plan`'s, what a page says and how files look is `wire`'s.

mod cache;
mod journal;
mod probe;
mod walk;

pub(crate) use cache::Saved;

use crate::access::{Access, wherever};
use crate::client::{Ask, Client, Route};
use crate::folder;
use cache::{ListingCache, OnDisk, ago};
use fuelrail_base::{ByteSize, Duration, Error, Kind, Result};
use fuelrail_flow::{Listed, Listing};
use fuelrail_io::wall_now;
use fuelrail_wire::kept::{NameKind, SourceId};
use fuelrail_wire::tls::Client as TlsClient;
use fuelrail_wire::{Entry, Scheme, Source, manifest};
use hyper::Method;
use journal::Journal;
use std::path::{Path, PathBuf};
use walk::walk;

/// Lists all objects under a URI, all pages, sorted by key. Keys that end in `/` and are empty are folder markers of
/// consoles, not objects, and are left out. `progress` receives the number of objects so far after each page.
///
/// # Errors
/// `Usage` for a bad URI, `Untrusted` for a certificate without a trusted authority, `NotFound`, `Denied`,
/// `Network` … for what the server answers after retries.
pub fn list(uri: &str, progress: impl FnMut(u64) + Send) -> Result<Vec<Listed>> {
    list_with(Access::default(), uri, progress)
}

/// As [`list`], with the bucket reached as `access` says: an [`Access`] or a [`Tls`](crate::Tls).
///
/// # Errors
/// As [`list`]; `File`, `Usage` and `Environment` for what [`Access`] holds and cannot be used.
pub fn list_with(access: impl Into<Access>, uri: &str, progress: impl FnMut(u64) + Send) -> Result<Vec<Listed>> {
    list_packed(access, uri, progress).map(|listing| listing.iter().collect())
}

/// As [`list_with`], for millions of objects: 34 bytes each, and their keys.
///
/// # Errors
/// As [`list_with`].
pub fn list_packed(access: impl Into<Access>, uri: &str, mut progress: impl FnMut(u64) + Send) -> Result<Listing> {
    let access = access.into().settled(uri)?;
    let source = access.source(uri)?;
    list_wherever((&access, uri), source, None, &mut progress).map(|(kept, _)| kept.listing)
}

/// Where listings are kept, and how long one is used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingDir {
    /// A local directory; made where there is none.
    pub path: PathBuf,
    /// A listing older than this is not used again; zero uses none again.
    pub max_age: Duration,
}

/// A listing, and how it was come by.
#[derive(Debug)]
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
    fn plain(listing: Listing) -> KeptListing {
        KeptListing { listing, reused: false, notices: Vec::new(), saved: Saved::default() }
    }

    /// The file it is saved in, if it is.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.saved.path()
    }
}

/// As [`list_packed`], with the listing kept in a directory. It is saved there when it is whole, and used again while it is not too
/// old and a few of its pages, asked for again, are as they were; short ones, of up to 32 000 objects, are asked for again as a
/// whole. One that was interrupted within the last hour goes on where it was, whatever ended it.
///
/// # Errors
/// As [`list_with`]. A directory that cannot be used is none: it is said in the notices.
pub fn list_kept(
    access: impl Into<Access>,
    uri: &str,
    dir: &ListingDir,
    mut progress: impl FnMut(u64) + Send,
) -> Result<KeptListing> {
    let access = access.into().settled(uri)?;
    let source = access.source(uri)?;
    list_wherever((&access, uri), source, Some(dir), &mut progress).map(|(kept, _)| kept)
}

/// Lists wherever the bucket is found, kept in `dir` where there is one; and tells where that was.
fn list_wherever(
    (access, uri): (&Access, &str),
    Source { endpoint, prefixes }: Source,
    dir: Option<&ListingDir>,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<(KeptListing, Route)> {
    wherever(access, uri, endpoint, |route| {
        let source = Source { endpoint: route.endpoint.clone(), prefixes: prefixes.clone() };
        // A walk of a folder is what its listing would be checked with.
        match dir.filter(|_| source.endpoint.scheme != Scheme::File) {
            Some(dir) => keep_there(route, &source, dir, progress),
            None => list_there(route, &source, progress).map(KeptListing::plain),
        }
    })
}

/// What a loader's settings say: objects at hand, those of a manifest, or what the bucket says; and where the bucket was found.
pub(crate) fn given_or_listed(
    (given, manifest): (Option<Vec<Listed>>, Option<&Path>),
    dir: Option<ListingDir>,
    named: (&Access, &str),
    source: Source,
) -> Result<(KeptListing, Route)> {
    let given: Listing = match (given, manifest, dir) {
        (Some(given), ..) => given.iter().collect(),
        (None, Some(path), _) => read_manifest(path)?.iter().collect(),
        (None, None, dir) => return list_wherever(named, source, dir.as_ref(), &mut |_| {}),
    };
    // A region is looked up once at the start; whatever else sends requests on says so to the first that asks.
    let look = |route: &Route| if route.endpoint.region().is_some() { look_up(route) } else { Ok(()) };
    wherever(named.0, named.1, source.endpoint, look).map(|((), route)| (KeptListing::plain(given), route))
}

/// Asks a cloud of many regions for the one that the bucket is in. Anything else that is wrong is for those to say who need what they
/// ask for.
fn look_up(route: &Route) -> Result<()> {
    route.run(async |client| {
        let refused = client.ask(&Ask::new(Method::HEAD, route.endpoint.bucket_path())).await.err();
        refused.filter(|_| route.moved().is_some()).map_or(Ok(()), |refused| Err(refused.error))
    })
}

/// Reads a manifest, sorted by key.
///
/// # Errors
/// `File` when it cannot be read, `Usage` naming the line that is wrong.
pub fn read_manifest(path: &Path) -> Result<Vec<Listed>> {
    let file = format_args!("manifest {}", path.display());
    let text = std::fs::read(path).map_err(|e| Error::new(Kind::File, e.to_string()).within(file))?;
    let entries = manifest::parse(&text).map_err(|e| e.within(file))?;
    let listed = |Entry { key, size, etag }| Listed { key, size, etag };
    let mut found: Vec<Listed> = entries.into_iter().map(listed).collect();
    found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

/// Writes a manifest.
///
/// # Errors
/// `File` when it cannot be written.
pub fn write_manifest(path: &Path, objects: &[Listed]) -> Result<()> {
    let entries: Vec<Entry> =
        objects.iter().map(|o| Entry { key: o.key.clone(), size: o.size, etag: o.etag.clone() }).collect();
    let mut text = Vec::new();
    manifest::write(&mut text, &entries);
    std::fs::write(path, text).map_err(|e| Error::from_io(Kind::File, format_args!("manifest {}", path.display()), e))
}

fn list_there(route: &Route, source: &Source, progress: &mut (impl FnMut(u64) + Send)) -> Result<Listing> {
    if source.endpoint.scheme == Scheme::File {
        return folder::list(source, progress);
    }
    route.run(async |client| walk(&client, source, None, progress).await)
}

fn keep_there(
    route: &Route,
    source: &Source,
    dir: &ListingDir,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<KeptListing> {
    let cache =
        match ListingCache::open(&dir.path, SourceId::of(source, route.tls.as_ref().is_none_or(TlsClient::verifies))) {
            Ok(cache) => cache,
            Err(error) => {
                let notices = vec![format!("listing_dir: {error}; this listing is not saved")];
                return Ok(KeptListing { notices, ..KeptListing::plain(list_there(route, source, progress)?) });
            }
        };
    let max_age_s = dir.max_age.as_secs();
    route.run(async |client| {
        Keeping { client: &client, source, cache, max_age_s, now_s: wall_now().0, notices: Vec::new() }
            .list(progress)
            .await
    })
}

struct Keeping<'a> {
    client: &'a Client<'a>,
    source: &'a Source,
    cache: ListingCache,
    max_age_s: u64,
    now_s: u64,
    notices: Vec<String>,
}

impl Keeping<'_> {
    async fn list(mut self, progress: &mut impl FnMut(u64)) -> Result<KeptListing> {
        if let Some(OnDisk { listing, begun_s }) = self.found().await? {
            progress(listing.len() as u64);
            let saved = self.cache.saved(begun_s);
            return Ok(KeptListing { listing, reused: true, notices: self.notices, saved });
        }
        let opened = Journal::open(&self.cache.own, &self.cache.name(NameKind::Journal), self.cache.source, self.now_s);
        let journal = opened.unwrap_or_else(|error| {
            self.say(&format!("{error}; if interrupted, this listing cannot be resumed"));
            None
        });
        let Some(mut journal) = journal else {
            self.say("another process holds the journal: this listing is not saved");
            let listing = walk(self.client, self.source, None, progress).await?;
            return Ok(KeptListing { notices: self.notices, ..KeptListing::plain(listing) });
        };
        let listing = self.go_on(&mut journal, progress).await?;
        let saved = self.save(&listing, journal);
        Ok(KeptListing { listing, reused: false, notices: self.notices, saved })
    }

    /// The saved listing, if it is fresh and still matches the bucket.
    async fn found(&mut self) -> Result<Option<OnDisk>> {
        let (now_s, max_age_s) = (self.now_s, self.max_age_s);
        let found = self.cache.load(|begun_s| match now_s.checked_sub(begun_s) {
            None => Err("its timestamp is in the future".into()),
            Some(age) if age >= max_age_s => Err(format!("it was listed {}", ago(age))),
            Some(_) => Ok(()),
        });
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(why) => {
                self.say(&format!("{why}: listing the bucket again"));
                return Ok(None);
            }
        };
        let age = ago(now_s.saturating_sub(found.begun_s));
        let path = self.cache.path(NameKind::Whole);
        match probe::difference(self.client, self.source, &found.listing, now_s).await? {
            Some(key) => {
                let key = key.escape_debug();
                self.say(&format!("'{key}' changed since the listing of {age}: listing the bucket again"));
                Ok(None)
            }
            None => {
                let objects = found.listing.len();
                self.say(&format!("{objects} objects, listed {age}, from {}", path.display()));
                Ok(Some(found))
            }
        }
    }

    /// Resumes the listing at the end of the journal, or starts over when the server refuses to resume there.
    async fn go_on(&mut self, journal: &mut Journal, progress: &mut impl FnMut(u64)) -> Result<Listing> {
        let first = walk(self.client, self.source, Some(journal), progress).await;
        let taken = journal.taken;
        if taken > 0 {
            let age = ago(self.now_s.saturating_sub(journal.begun_s));
            self.say(&format!("{taken} pages come from a listing that was started {age} and interrupted"));
        }
        match first {
            Err(error) if taken > 0 && is_refusal(&error) => {
                self.say(&format!(
                    "the server does not resume the listing ({}): listing the bucket again",
                    error.cause()
                ));
                journal.restart(self.now_s)?;
                walk(self.client, self.source, Some(journal), progress).await
            }
            Err(error) if journal.pages() > 0 => Err(error.and_hint(format!(
                "{} pages are saved: within an hour the next listing of this URI resumes after them",
                journal.pages()
            ))),
            other => other,
        }
    }

    /// Saves the listing if it is long enough, and reports disk errors.
    fn save(&mut self, listing: &Listing, journal: Journal) -> Saved {
        if let Some(error) = &journal.broken {
            self.say(&format!("{error}; if interrupted, this listing could not have been resumed"));
        }
        let (begun_s, path) = (journal.begun_s, self.cache.path(NameKind::Whole));
        let saved = if listing.len() < probe::OBJECTS_MIN {
            Ok(Saved::default())
        } else {
            self.cache.save(listing, begun_s).map(|bytes| {
                self.say(&format!("{} objects saved in {}, {}", listing.len(), path.display(), ByteSize(bytes)));
                self.cache.saved(begun_s)
            })
        };
        if let Err(error) = journal.finish() {
            self.say(&error.to_string());
        }
        saved.unwrap_or_else(|error| {
            self.say(&format!("{error}; this listing is not saved"));
            Saved::default()
        })
    }

    fn say(&mut self, what: &str) {
        self.notices.push(format!("listing: {what}"));
    }
}

/// Whether the server rejected the request, as opposed to being unreachable.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), Kind::Protocol | Kind::Mismatch | Kind::NotFound | Kind::Usage)
}
