//! The listing of a bucket, kept where there is a directory for that: what is on disk is used again, gone on with, or made anew.

use super::cache::{KeptListing, ListingCache, ListingDir, OnDisk, Saved, ago};
use super::journal::Journal;
use super::walk::{self, OBJECTS_MIN, walk, walk_up_to};
use crate::client::{Ask, Client};
use crate::proxy::Route;
use fuelrail_base::{ByteSize, Error, Kind, Result};
use fuelrail_flow::Listing;
use fuelrail_io::{is_locked, trim_heap, wall_now};
use fuelrail_wire::Source;
use fuelrail_wire::kept::NameKind;
use hyper::Method;
use std::fs::File;
use std::time::{Duration, Instant};

/// How often a process that lists the same is looked at, …
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// … and how long it may bring nothing.
const STANDS_STILL: Duration = Duration::from_secs(60);

/// Asks a cloud of many regions for the one that the bucket is in. Anything else that is wrong is for those to say who need what they
/// ask for.
pub(super) fn look_up(route: &Route) -> Result<()> {
    route.run(async |client| {
        let refused = client.ask(&Ask::new(Method::HEAD, route.endpoint.bucket_path())).await.err();
        refused.filter(|_| route.moved().is_some()).map_or(Ok(()), |refused| Err(refused.error))
    })
}

/// Lists the bucket at the end of `route`, kept in `dir` where there is one.
pub(super) fn list(
    route: &Route,
    source: &Source,
    dir: Option<&ListingDir>,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<KeptListing> {
    let Some(dir) = dir else { return list_all(route, source, progress) };
    let mut notices = Vec::new();
    let cache = match ListingCache::open(&dir.path, route.source_id(&source.prefixes), &mut notices) {
        Ok(cache) => cache,
        Err(error) => {
            notices.push(format!("listing_dir: {error}; this listing is not saved"));
            return Ok(KeptListing { notices, ..list_all(route, source, progress)? });
        }
    };
    let max_age_s = dir.max_age.as_secs();
    route.run(async |client| {
        Keeping { client: &client, source, cache, max_age_s, now_s: wall_now().0, notices }.list(progress).await
    })
}

fn list_all(route: &Route, source: &Source, progress: &mut (impl FnMut(u64) + Send)) -> Result<KeptListing> {
    route.run(async |client| walk(&client, source, None, progress).await.map(KeptListing::plain))
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
        let mut waited = false;
        let journal = loop {
            self.now_s = wall_now().0;
            if let Some(OnDisk { listing, begun_s }) = self.found().await? {
                progress(listing.len() as u64);
                let saved = self.cache.saved(begun_s);
                return Ok(KeptListing { listing, reused: true, notices: self.notices, saved });
            }
            match Journal::open(&self.cache.own, &self.cache.name(NameKind::Journal), self.cache.source, self.now_s) {
                Ok(Some(journal)) => break Some(journal),
                Ok(None) => {}
                Err(error) => {
                    self.say(&format!("{error}; if interrupted, this listing cannot be resumed"));
                    break None;
                }
            }
            // Another process is listing the same prefix. List it here, too, while it is short; otherwise wait for the other process.
            if self.max_age_s > 0
                && !waited
                && let Some(short) = walk_up_to(OBJECTS_MIN, self.client, self.source, None, progress).await?
            {
                return Ok(KeptListing { notices: self.notices, ..KeptListing::plain(short) });
            }
            if self.max_age_s == 0 || !self.ended().await {
                self.say("another process holds the journal: this listing is not saved");
                break None;
            }
            if !core::mem::replace(&mut waited, true) {
                self.say("waited for another process, which was listing it");
            }
        };
        let Some(mut journal) = journal else {
            let listing = walk(self.client, self.source, None, progress).await?;
            return Ok(KeptListing { notices: self.notices, ..KeptListing::plain(listing) });
        };
        let listing = self.go_on(&mut journal, progress).await?;
        let saved = self.save(&listing, journal);
        // What all processes share is used by this one, too.
        let shared = saved.path().and_then(|_| self.cache.load(|_| Ok(())).ok().flatten());
        let listing = match shared {
            Some(OnDisk { listing: shared, .. }) => {
                drop(listing);
                trim_heap();
                shared
            }
            None => listing,
        };
        Ok(KeptListing { listing, reused: false, notices: self.notices, saved })
    }

    /// Waits until the process that holds the journal has finished or died. False if neither the journal nor the file being saved has grown for
    /// [`STANDS_STILL`].
    async fn ended(&self) -> bool {
        let name = self.cache.name(NameKind::Journal);
        let (path, mut before, mut since) = (self.cache.path(NameKind::Journal), (0, 0), Instant::now());
        while since.elapsed() < STANDS_STILL {
            tokio::time::sleep(LOOK_AGAIN).await;
            let Ok(Some(file)) = self.cache.own.open_file(&name, true) else { return true };
            let len = |file: File| file.metadata().map_or(0, |facts| facts.len());
            if !is_locked(&file, &path).unwrap_or(false) {
                return true;
            }
            let saved = self.cache.own.open_file(&self.cache.name(NameKind::New), false).ok().flatten().map_or(0, len);
            let pages = len(file);
            if pages == 0 {
                return true;
            }
            if (pages, saved) != before {
                (before, since) = ((pages, saved), Instant::now());
            }
        }
        false
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
        match walk::difference(self.client, self.source, &found.listing, now_s).await? {
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
        let saved = if (listing.len() as u64) < OBJECTS_MIN {
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
        let notice = format!("listing: {what}");
        // Said once, however often it is looked.
        if !self.notices.contains(&notice) {
            self.notices.push(notice);
        }
    }
}

/// Whether the server rejected the request, as opposed to being unreachable.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), Kind::Protocol | Kind::Mismatch | Kind::NotFound | Kind::Usage)
}
