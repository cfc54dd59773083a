//! Pages of a listing, several at a time: every one of them, first those that a journal has, then those that only the bucket has.
//!
//! Where to go on is `plan`'s. It receives the pages of a journal in the order in which they came, so it asks for the same pages
//! again, and stands where it stood when the last of them had come.

use fuelrail_base::prng::Prng;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::Listing;
use fuelrail_plan::sweep::{PageRequest, Stretch, Sweep};
use fuelrail_wire::head::refuse_coding;
use fuelrail_wire::kept::{Answer, asked};
use fuelrail_wire::{Dialect, Entry, ListPage, PageStart, Source, list_path, parse_list};
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use hyper::Method;

use super::journal::Journal;
use crate::client::{AT_A_PROMPT, Ask as Request, Client};

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
    journal: Option<&mut Journal>,
    progress: &mut impl FnMut(u64),
) -> Result<Listing> {
    let whole = walk_up_to(u64::MAX, client, source, journal, progress).await?;
    Ok(whole.expect("no listing has so many objects"))
}

/// The same, unless there are `most` objects or more.
pub(super) async fn walk_up_to(
    most: u64,
    client: &Client<'_>,
    source: &Source,
    mut journal: Option<&mut Journal>,
    progress: &mut impl FnMut(u64),
) -> Result<Option<Listing>> {
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
        if brought.found >= most {
            return Ok(None);
        }
    }
    brought.joined().map(Some)
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

/// Pages asked for again: the first one, what follows the last key, and so many between. What changed a tenth of the pages is missed
/// by one look in twenty-four.
const PAGES_BETWEEN: u64 = 30;
/// A shorter listing is asked for as a whole: that takes hardly more pages.
pub(super) const OBJECTS_MIN: u64 = 32_000;

/// A page, and where in the listing it should begin.
struct Probe {
    prefix: String,
    after: Option<String>,
    first: usize,
}

/// A key that is not as it was listed, if one is found: a bucket has no version, but a few of its pages, asked for again, are a sample of it.
pub(super) async fn difference(
    client: &Client<'_>,
    source: &Source,
    listing: &Listing,
    seed: u64,
) -> Result<Option<String>> {
    let ask = |probe: Probe| async move {
        let start = PageStart { after: probe.after.as_deref(), token: None };
        page(client, source, &probe.prefix, start).await.map(|page| differs(listing, &probe, &page))
    };
    let mut answers = stream::iter(drawn(source, listing, seed)).map(ask).buffer_unordered(PAGES_AT_ONCE);
    while let Some(answer) = answers.next().await {
        let different = answer?;
        if different.is_some() {
            return Ok(different);
        }
    }
    Ok(None)
}

/// The pages to ask for: one of each of as many equal parts, so that no stretch is left out of every look.
fn drawn(source: &Source, listing: &Listing, seed: u64) -> Vec<Probe> {
    let (mut prng, len) = (Prng::new(seed), listing.len() as u64);
    let Some(last) = listing.len().checked_sub(1) else { return Vec::new() };
    let between = |part: u64| {
        let (from, to) = (part * len / PAGES_BETWEEN, (part + 1) * len / PAGES_BETWEEN);
        (from + prng.below((to - from).max(1))).min(len - 1) as usize
    };
    let places: Vec<usize> = (0..PAGES_BETWEEN).map(between).chain([last]).collect();
    let first = Probe { prefix: source.prefixes[0].clone(), after: None, first: 0 };
    let probes = places.into_iter().map(|at| probe_behind(source, listing, at));
    [first].into_iter().chain(probes).collect()
}

/// The page after an object; where the server lists after its own markers only, the first page of the object's folder.
fn probe_behind(source: &Source, listing: &Listing, at: usize) -> Probe {
    let key = listing.key(at);
    let within = source.prefixes.partition_point(|prefix| prefix.as_str() <= key);
    let prefix = source.prefixes[within.saturating_sub(1)].as_str();
    if source.endpoint.dialect != Dialect::Azure {
        return Probe { prefix: prefix.to_owned(), after: Some(key.to_owned()), first: at + 1 };
    }
    let folder = key.rfind('/').map_or("", |slash| &key[..=slash]);
    let prefix = if folder.len() > prefix.len() { folder } else { prefix };
    Probe { prefix: prefix.to_owned(), after: None, first: listing.first_from(prefix) }
}

/// The first key of which page and listing do not say the same.
fn differs(listing: &Listing, probe: &Probe, page: &ListPage) -> Option<String> {
    let objects = page.entries.iter().filter(|entry| is_object(entry));
    let mut at = probe.first;
    for entry in objects {
        if at == listing.len() {
            return Some(entry.key.clone());
        }
        let same = listing.key(at) == entry.key
            && listing.size(at) == entry.size
            && listing.etag(at).as_deref() == entry.etag.as_deref();
        if !same {
            return Some(entry.key.as_str().min(listing.key(at)).to_owned());
        }
        at += 1;
    }
    let ends = page.next.is_none() && at < listing.len() && listing.key(at).starts_with(&probe.prefix);
    ends.then(|| listing.key(at).to_owned())
}

#[cfg(test)]
mod tests {
    use fuelrail_wire::{Cloud, Entry};

    use super::*;

    fn listing(keys: usize) -> Listing {
        let mut listing = Listing::default();
        (0..keys).for_each(|n| listing.push(&format!("{}/{n:05}", n * 5 / keys.max(1)), n as u64, None));
        listing
    }

    /// What a server that holds `listing` answers with pages of `keys`.
    fn answer(listing: &Listing, probe: &Probe, keys: usize) -> ListPage {
        let fits = |key: &str| key.starts_with(&probe.prefix) && probe.after.as_deref().is_none_or(|after| key > after);
        let all: Vec<Entry> = listing
            .iter()
            .filter(|object| fits(&object.key))
            .map(|object| Entry { key: object.key, size: object.size, etag: object.etag })
            .collect();
        let next = (all.len() > keys).then(|| "more".to_owned());
        ListPage { entries: all.into_iter().take(keys).collect(), next }
    }

    fn look(source: &Source, kept: &Listing, now: &Listing, seed: u64) -> Option<String> {
        drawn(source, kept, seed).iter().find_map(|probe| differs(kept, probe, &answer(now, probe, 10)))
    }

    #[test]
    fn a_bucket_as_it_was_shows_no_difference_and_what_changed_much_always_does() {
        for uri in ["s3://bucket/", "s3://bucket/{0,1,2,3,4}/", "az://acc/bucket/", "az://acc/bucket/{0,1,2,3,4}/"] {
            let source = Cloud::default().source(uri).unwrap();
            let kept = listing(1000);
            for seed in 0..50 {
                assert_eq!(look(&source, &kept, &kept, seed), None, "{uri}");
                let pick = |keep: &dyn Fn(usize) -> bool, size: u64| {
                    let mut now = Listing::default();
                    (0..1000).filter(|at| keep(*at)).for_each(|at| now.push(kept.key(at), kept.size(at) + size, None));
                    now
                };
                assert_eq!(look(&source, &kept, &pick(&|at| at != 0, 0), seed).as_deref(), Some("0/00000"), "{uri}");
                for now in [pick(&|at| at % 10 != 7, 0), pick(&|_| true, 1), Listing::default()] {
                    assert!(look(&source, &kept, &now, seed).is_some(), "{uri}");
                }
                let mut more = pick(&|_| true, 0);
                more.push("4/00999a", 1, None);
                let last = look(&source, &kept, &more, seed);
                assert!(last.as_deref() == Some("4/00999a") || uri.starts_with("az"), "{uri}: {last:?}");
            }
        }
    }
}
