//! Objects put into memory beside a generated set. They shadow generated objects of the same key.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::RwLock;

use hyper::body::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::object::{Content, GENERATED_MODIFIED_S, MadeOfParts, Object};
use crate::server::{Entry, ListQuery, PutCondition, Refusal};

/// Most bytes kept; a `PUT` beyond it is refused.
pub(crate) const MEMORY_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug)]
struct Stored {
    bytes: Bytes,
    etag: String,
    parts_checksum: Option<String>,
}

#[derive(Default, Debug)]
struct Inner {
    objects: BTreeMap<String, Stored>,
    bytes: u64,
}

#[derive(Default, Debug)]
pub(crate) struct MemoryStore {
    inner: RwLock<Inner>,
}

impl MemoryStore {
    pub(super) fn find(&self, key: &str) -> Option<Object> {
        let inner = self.inner.read().expect("no store holder panics");
        inner.objects.get(key).map(|stored| Object {
            size: stored.bytes.len() as u64,
            etag: stored.etag.clone(),
            modified_s: GENERATED_MODIFIED_S,
            parts_checksum: stored.parts_checksum.clone(),
            content: Content::Memory { bytes: stored.bytes.clone(), generation: 0 },
        })
    }

    /// Keeps the object, if `condition` allows it in place of what is there, here or `below`. Returns its entity tag.
    pub(super) fn put(
        &self,
        key: &str,
        (bytes, made): (Bytes, Option<MadeOfParts>),
        (condition, below): (&PutCondition, Option<&str>),
    ) -> Result<String, Refusal> {
        let (etag, parts_checksum) = match made {
            Some(made) => (made.etag, Some(made.checksum)),
            None => (format!("\"{:032x}\"", xxh3_128(&bytes)), None),
        };
        let mut inner = self.inner.write().expect("no store holder panics");
        condition.check(inner.objects.get(key).map(|stored| stored.etag.as_str()).or(below))?;
        let replaced = inner.objects.get(key).map_or(0, |stored| stored.bytes.len() as u64);
        let total = inner.bytes - replaced + bytes.len() as u64;
        if total > MEMORY_BYTES_MAX {
            return Err(Refusal::too_large(total, MEMORY_BYTES_MAX));
        }
        inner.bytes = total;
        inner.objects.insert(key.to_owned(), Stored { bytes, etag: etag.clone(), parts_checksum });
        Ok(etag)
    }

    /// The entries a page of this query can need, in order.
    pub(super) fn entries(&self, query: &ListQuery) -> Vec<Entry> {
        // Without a delimiter a page never skips, so no more than a page and the proof of a next one is needed.
        let most = if query.delimiter.is_empty() { query.keys_max + 1 } else { usize::MAX };
        let inner = self.inner.read().expect("no store holder panics");
        inner
            .objects
            .range::<str, _>((Bound::Included(query.prefix.as_str()), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(&query.prefix))
            .filter(|(key, _)| !query.after.covers(key))
            .take(most)
            .map(|(key, stored)| Entry {
                key: key.clone(),
                size: stored.bytes.len() as u64,
                etag: stored.etag.clone(),
                modified_s: GENERATED_MODIFIED_S,
            })
            .collect()
    }
}
