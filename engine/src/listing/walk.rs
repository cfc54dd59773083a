//! Pages of a listing, several at a time: every one of them, first those that a journal has, then those that only the bucket has.
//!
//! Where to go on is `plan`'s. It receives the pages of a journal in the order in which they came, so it asks for the same pages
//! again, and stands where it stood when the last of them had come.

use super::journal::Journal;
use crate::client::{AT_A_PROMPT, Ask as Request, Client};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::Listing;
use fuelrail_plan::sweep::{PageRequest, Stretch, Sweep};
use fuelrail_wire::head::refuse_coding;
use fuelrail_wire::kept::{Answer, asked};
use fuelrail_wire::{Dialect, Entry, ListPage, PageStart, Source, list_path, parse_list};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::Method;

/// Pages asked for at once. Enough to hide most of the round trips, far below what any bucket calls too much.
pub(super) const PAGES_AT_ONCE: usize = 8;
/// What servers give at most.
const PAGE_KEYS: u32 = 1000;
const AZURE_PAGE_KEYS: u32 = 5000;

/// One page of the keys that begin with `prefix`.
pub(super) async fn page(client: &Client<'_>, source: &Source, prefix: &str, start: PageStart<'_>) -> Result<ListPage> {
    let keys = if source.endpoint.dialect == Dialect::Azure { AZURE_PAGE_KEYS } else { PAGE_KEYS };
    let path = list_path(&source.endpoint, prefix, start, keys);
    let request = Request::new(Method::GET, path);
    let attempt = async || {
        let answer = client.ask(&request).await?;
        // What comes in another form than its own is not taken for it.
        answer.headers.get_all("content-encoding").iter().try_for_each(|value| refuse_coding(value.as_bytes()))?;
        Ok(answer)
    };
    let answer = client.persist(AT_A_PROMPT, attempt).await;
    let answer = answer.map_err(|refused| refused.error.with_object(format!("{}/{prefix}", source.endpoint.bucket)))?;
    parse_list(&answer.body)
}

/// Whether an entry is an object. Empty ones whose key ends in `/` are folder markers of consoles.
pub(super) fn is_object(entry: &Entry) -> bool {
    entry.size > 0 || !entry.key.ends_with('/')
}

/// What has come.
struct Brought {
    sweep: Sweep,
    /// By stretch.
    pieces: Vec<Listing>,
    found: u64,
}

/// Every object, sorted. What comes is written into `journal`.
pub(super) async fn walk(
    client: &Client<'_>,
    source: &Source,
    mut journal: Option<&mut Journal>,
    progress: &mut impl FnMut(u64),
) -> Result<Listing> {
    let may_split = source.endpoint.dialect != Dialect::Azure;
    let sweep = Sweep::new(source.prefixes.clone(), PAGES_AT_ONCE, may_split);
    let mut brought = Brought { sweep, pieces: Vec::new(), found: 0 };
    let mut asks = Vec::new();
    if let Some(journal) = &mut journal {
        brought.again(source, journal, &mut asks)?;
        if brought.found > 0 {
            progress(brought.found);
        }
    }
    let fetch = |ask: PageRequest| async {
        let answer = page(client, source, &source.prefixes[ask.prefix], start(&ask)).await;
        (ask, answer)
    };
    let mut flying = FuturesUnordered::new();
    while !brought.sweep.is_done() {
        asks.extend(std::iter::from_fn(|| brought.sweep.next_request()));
        flying.extend(asks.drain(..).map(&fetch));
        let (ask, answer) = flying.next().await.expect("a sweep that is not done waits for pages");
        let page = answer?;
        brought.take(ask.stretch, &page)?;
        if let Some(journal) = &mut journal {
            journal.push(ask.stretch.0, named(source, &ask), &page);
        }
        progress(brought.found);
    }
    brought.joined()
}

impl Brought {
    /// Takes what a journal has. Pages that were on their way when it ended are left in `asks`.
    fn again(&mut self, source: &Source, journal: &mut Journal, asks: &mut Vec<PageRequest>) -> Result<()> {
        while !self.sweep.is_done() {
            asks.extend(std::iter::from_fn(|| self.sweep.next_request()));
            let whose = |answer: &Answer| {
                asks.iter().position(|ask| ask.stretch.0 == answer.stretch && named(source, ask) == answer.asked)
            };
            let Some((at, page)) = journal.next(whose) else { break };
            let ask = asks.swap_remove(at);
            self.take(ask.stretch, &page)?;
        }
        journal.go_on();
        Ok(())
    }

    /// Takes a page.
    fn take(&mut self, stretch: Stretch, page: &ListPage) -> Result<()> {
        let entries = &page.entries;
        let kept = self.sweep.answered(stretch, entries.len(), |n| entries[n].key.as_str(), page.next.clone())?;
        let at = stretch.0 as usize;
        if self.pieces.len() <= at {
            self.pieces.resize_with(at + 1, Listing::default);
        }
        let objects = entries[..kept].iter().filter(|entry| is_object(entry));
        objects.for_each(|entry| self.pieces[at].push(&entry.key, entry.size, entry.etag.as_deref()));
        self.found += kept as u64;
        Ok(())
    }

    /// Everything in the order of the keys.
    fn joined(mut self) -> Result<Listing> {
        let mut listing = Listing::default();
        for stretch in self.sweep.in_order() {
            listing.append(std::mem::take(&mut self.pieces[stretch.0 as usize]));
        }
        if listing.is_sorted() {
            return Ok(listing);
        }
        let listing = listing.sorted();
        if let Some(at) = (1..listing.len()).find(|at| listing.key(at - 1) == listing.key(*at)) {
            return Err(Error::new(Kind::Protocol, "the listing contains it twice").with_object(listing.key(at)));
        }
        Ok(listing)
    }
}

fn start(ask: &PageRequest) -> PageStart<'_> {
    PageStart { after: ask.after.as_deref(), token: ask.token.as_deref() }
}

/// What a journal calls the page that is asked for.
fn named(source: &Source, ask: &PageRequest) -> u32 {
    asked(&source.prefixes[ask.prefix], start(ask))
}
