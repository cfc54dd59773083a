//! Listing a bucket: all pages, several at a time, packed as they come.
//!
//! Owns what has come until all has. Where to go on is `plan`'s, what a page says is `wire`'s.

use crate::access::{Access, Way};
use crate::control::{HttpClient, ask, look_up, on_control_thread};
use crate::elsewhere::{Found, wherever};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{Listed, Listing};
use fuelrail_plan::sweep::{Ask, Stretch, Sweep};
use fuelrail_wire::{Dialect, Endpoint, ListPage, PageStart, Source, list_azure, list_path, parse_list};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Pages asked for at once. Enough to hide most of the round trips, far below what any bucket calls too much.
const PAGES_AT_ONCE: usize = 8;
/// What servers give at most.
const PAGE_KEYS: u32 = 1000;
const AZURE_PAGE_KEYS: u32 = 5000;

/// Lists all objects under a URI, all pages, sorted by key. Keys that end in `/` and are empty are folder markers of
/// consoles, not objects, and are left out. `progress` is told the number of objects so far after each page.
///
/// # Errors
/// `Usage` for a bad URI, `Untrusted` for a certificate no authority of the system stands for, `NotFound`, `Denied`,
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
pub fn list_packed(access: impl Into<Access>, uri: &str, progress: impl FnMut(u64) + Send) -> Result<Listing> {
    let access = access.into().settled(uri)?;
    let source = access.cloud.source(uri)?;
    list_source(&access, uri, source, progress).map(|(listing, _)| listing)
}

/// As [`list_packed`], with everything read from its text already. Tells where the bucket was found.
fn list_source(
    access: &Access,
    uri: &str,
    source: Source,
    mut progress: impl FnMut(u64) + Send,
) -> Result<(Listing, Found)> {
    let Source { endpoint, prefixes } = source;
    wherever(access, uri, endpoint, |way, endpoint| {
        let source = Source { endpoint: endpoint.clone(), prefixes: prefixes.clone() };
        list_there(way, &source, &mut progress)
    })
}

/// The listing that is `given`, or the bucket's own; and where the bucket was found.
///
/// # Errors
/// As [`list_packed`].
pub(crate) fn list_unless(
    given: Option<Listing>,
    access: &Access,
    uri: &str,
    source: Source,
) -> Result<(Listing, Found)> {
    let Some(listing) = given else { return list_source(access, uri, source, |_| {}) };
    // A region is looked up once at the start; whatever else sends requests on says so to the first that asks.
    let look = |way: &Way, there: &Endpoint| if there.region().is_some() { look_up(way, there) } else { Ok(()) };
    wherever(access, uri, source.endpoint, look).map(|((), found)| (listing, found))
}

fn list_there(way: &Way, source: &Source, progress: &mut (impl FnMut(u64) + Send)) -> Result<Listing> {
    let pieces = on_control_thread(way, async |client| walk(&client, source, progress).await)?;
    let mut listing = Listing::default();
    pieces.into_iter().for_each(|piece| listing.append(piece));
    if listing.is_sorted() {
        return Ok(listing);
    }
    let listing = listing.sorted();
    if let Some(at) = (1..listing.len()).find(|at| listing.key(at - 1) == listing.key(*at)) {
        return Err(Error::new(Kind::Protocol, "the listing names it twice").object(listing.key(at)));
    }
    Ok(listing)
}

type Answer<'a> = Pin<Box<dyn Future<Output = (Stretch, Result<ListPage>)> + 'a>>;

/// Every page, as pieces in the order of their keys.
async fn walk(client: &HttpClient, source: &Source, progress: &mut impl FnMut(u64)) -> Result<Vec<Listing>> {
    let may_split = source.endpoint.dialect != Dialect::Azure;
    let mut sweep = Sweep::new(source.prefixes.clone(), PAGES_AT_ONCE, may_split);
    let mut pieces: Vec<Listing> = Vec::new();
    let mut flying: Vec<Answer<'_>> = Vec::new();
    let mut found = 0;
    while !sweep.is_done() {
        while let Some(ask) = sweep.ask() {
            flying.push(Box::pin(page(client, source, ask)));
        }
        let (stretch, answer) = first_of(&mut flying).await;
        let ListPage { entries, next, .. } = answer?;
        let kept = sweep.answered(stretch, entries.len(), |n| entries[n].key.as_str(), next)?;
        let at = stretch.0 as usize;
        if pieces.len() <= at {
            pieces.resize_with(at + 1, Listing::default);
        }
        let objects = entries[..kept.keys].iter().filter(|entry| entry.size > 0 || !entry.key.ends_with('/'));
        objects.for_each(|entry| pieces[at].push(&entry.key, entry.size, entry.etag.as_deref()));
        found += kept.keys as u64;
        progress(found);
    }
    Ok(sweep.in_order().map(|stretch| std::mem::take(&mut pieces[stretch.0 as usize])).collect())
}

/// The first answer that is there, taken out.
async fn first_of(flying: &mut Vec<Answer<'_>>) -> (Stretch, Result<ListPage>) {
    poll_fn(|cx| {
        for at in 0..flying.len() {
            if let Poll::Ready(answer) = flying[at].as_mut().poll(cx) {
                drop(flying.swap_remove(at));
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    })
    .await
}

async fn page(client: &HttpClient, source: &Source, ask_for: Ask) -> (Stretch, Result<ListPage>) {
    let Ask { stretch, prefix, after, token } = ask_for;
    let prefix = source.prefixes[prefix].as_str();
    let start = PageStart { after: after.as_deref(), token: token.as_deref() };
    let is_azure = source.endpoint.dialect == Dialect::Azure;
    let path = if is_azure {
        list_azure::list_path(&source.endpoint, prefix, start.token, AZURE_PAGE_KEYS)
    } else {
        list_path(&source.endpoint, prefix, start, PAGE_KEYS, None)
    };
    let parsed = async {
        let whole = |error: Error| error.object(format!("{}/{prefix}", source.endpoint.bucket));
        let body = ask(client, &source.endpoint, &path).await.map_err(whole)?;
        if is_azure { list_azure::parse_list(&body) } else { parse_list(&body) }
    };
    (stretch, parsed.await)
}
