//! Listing a bucket: all pages, several at a time, packed as they come; kept on disk where there is a directory for that. Or a folder, or
//! what a manifest says.
//!
//! Owns what has come until all has. Where to go on is `plan`'s, what a page says and how files look is `wire`'s.

#[cfg_attr(not(feature = "clouds"), path = "listing/absent.rs")]
mod bucket;
mod cache;
mod journal;
#[cfg(feature = "clouds")]
mod walk;

pub(crate) use cache::Saved;
pub use cache::{KeptListing, ListingDir};

use crate::access::{Access, wherever};
use crate::folder;
use crate::proxy::Route;
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_flow::{Listed, Listing};
use fuelrail_wire::{Entry, Scheme, Source, manifest};
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// Lists all objects under a URI, all pages, sorted by key. Keys that end in `/` and are empty are folder markers of
/// consoles, not objects, and are left out. `progress` receives the number of objects so far after each page.
/// Without the feature `clouds`, of folders alone.
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
    list_wherever((&access, uri), source, None, None, &mut progress).map(|(kept, _)| kept.listing)
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
    list_wherever((&access, uri), source, Some(dir), None, &mut progress).map(|(kept, _)| kept)
}

/// Lists wherever the bucket is found, kept in `dir` where there is one; and tells where that was. One that serves nothing is waited for as
/// long as `wait`.
fn list_wherever(
    (access, uri): (&Access, &str),
    Source { endpoint, prefixes }: Source,
    dir: Option<&ListingDir>,
    wait: Option<Duration>,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<(KeptListing, Route)> {
    wherever(access, uri, endpoint, wait, |route| {
        let source = Source { endpoint: route.endpoint.clone(), prefixes: prefixes.clone() };
        match source.endpoint.scheme {
            // A walk of a folder is what its listing would be checked with.
            Scheme::File => folder::list(&source, progress).map(KeptListing::plain),
            _ => bucket::list(route, &source, dir, progress),
        }
    })
}

/// What a loader's settings say: objects at hand, those of a manifest, or what the bucket says; and where the bucket was found.
pub(crate) fn given_or_listed(
    (given, manifest): (Option<KeptListing>, Option<&Path>),
    dir: Option<ListingDir>,
    named: (&Access, &str),
    source: Source,
    wait: Option<Duration>,
) -> Result<(KeptListing, Route)> {
    let given = match (given, manifest, dir) {
        (Some(given), ..) => given,
        (None, Some(path), _) => KeptListing::plain(read_manifest(path)?.iter().collect()),
        (None, None, dir) => {
            let found = list_wherever(named, source, dir.as_ref(), wait, &mut |_| {})?;
            return if found.0.listing.is_empty() { Err(no_objects(named.1)) } else { Ok(found) };
        }
    };
    // A region is looked up once at the start; whatever else sends requests on says so to the first that asks.
    let look = |route: &Route| if route.endpoint.region().is_some() { bucket::look_up(route) } else { Ok(()) };
    wherever(named.0, named.1, source.endpoint, wait, look).map(|((), route)| (given, route))
}

/// Adds an object to a hash that tells listings apart.
pub(crate) fn hash_object(hash: &mut Xxh3, name: &str, tag: &str, size: u64) {
    for text in [name, tag] {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.update(&size.to_le_bytes());
}

/// A hash of objects' names, sizes and entity tags, in order.
pub fn listing_hash<'l>(objects: impl IntoIterator<Item = (&'l str, &'l Listed)>) -> String {
    let mut hash = Xxh3::new();
    for (name, object) in objects {
        hash_object(&mut hash, name, object.etag.as_deref().unwrap_or_default(), object.size);
    }
    format!("{:032x}", hash.digest128())
}

/// What is said where nothing is under a URI.
#[must_use]
pub fn no_objects(uri: &str) -> Error {
    if uri.split_once("://").is_none_or(|(scheme, _)| scheme.eq_ignore_ascii_case("file")) {
        return Error::new(Kind::Usage, format!("there is no file in {uri}"))
            .with_hint("check the path, and that its file system is mounted");
    }
    Error::new(Kind::Usage, format!("there is no object under {uri}"))
        .with_hint("check bucket and prefix: a key must start with the whole prefix, which does not include the bucket")
}

/// Reads a manifest, sorted by key.
///
/// # Errors
/// `File` when it cannot be read, `Usage` naming the line that is wrong.
pub fn read_manifest(path: &Path) -> Result<Vec<Listed>> {
    let file = format_args!("manifest {}", path.display());
    let text = std::fs::read(path).map_err(|e| Error::from_io(Kind::File, file, e))?;
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
