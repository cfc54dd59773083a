//! Pages of a listing: asking for one, several on their way at once, and which of its entries are objects.

use crate::control::{HttpClient, ask};
use fuelrail_base::{Error, Result};
use fuelrail_wire::{Dialect, Entry, ListPage, PageStart, Source, list_azure, list_path, parse_list};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Pages asked for at once. Enough to hide most of the round trips, far below what any bucket calls too much.
pub(super) const PAGES_AT_ONCE: usize = 8;
/// What servers give at most.
const PAGE_KEYS: u32 = 1000;
const AZURE_PAGE_KEYS: u32 = 5000;

/// Pages on their way.
pub(super) type Flying<'a, T> = Vec<Pin<Box<dyn Future<Output = T> + 'a>>>;

/// The first answer that is there, taken out.
pub(super) async fn first_of<T>(flying: &mut Flying<'_, T>) -> T {
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

/// One page of the keys that begin with `prefix`.
pub(super) async fn page(client: &HttpClient, source: &Source, prefix: &str, start: PageStart<'_>) -> Result<ListPage> {
    let is_azure = source.endpoint.dialect == Dialect::Azure;
    let path = if is_azure {
        list_azure::list_path(&source.endpoint, prefix, start.token, AZURE_PAGE_KEYS)
    } else {
        list_path(&source.endpoint, prefix, start, PAGE_KEYS, None)
    };
    let whole = |error: Error| error.object(format!("{}/{prefix}", source.endpoint.bucket));
    let body = ask(client, &source.endpoint, &path).await.map_err(whole)?;
    if is_azure { list_azure::parse_list(&body) } else { parse_list(&body) }
}

/// Whether an entry is an object. Empty ones whose key ends in `/` are folder markers of consoles.
pub(super) fn is_object(entry: &Entry) -> bool {
    entry.size > 0 || !entry.key.ends_with('/')
}
