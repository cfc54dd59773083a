//! ListObjectsV2: cuts pages from ordered keys and writes them as XML. Pages are found by binary search, so a page of a
//! billion-object set costs as much as one of a small set.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::refusal::{document, iso_date, xml_text};
use super::sums::hex;
use crate::store::{Entry, Object};

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct ListQuery {
    pub(crate) prefix: String,
    /// Empty for no delimiter.
    pub(crate) delimiter: String,
    pub(crate) start_after: String,
    /// The page starts at the first key that is not before this one.
    pub(crate) from: Vec<u8>,
    pub(crate) keys_max: usize,
    pub(crate) is_url_encoded: bool,
}

impl ListQuery {
    /// Identifies the page in scripts, whatever the order of its parameters.
    pub(crate) fn identity(&self) -> String {
        format!("{}\n{}\n{}\n{}", self.prefix, self.delimiter, hex(&self.from), self.keys_max)
    }
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    pub(crate) prefixes: Vec<String>,
    /// Where the next page begins; `None` for the last.
    pub(crate) next: Option<Vec<u8>>,
}

/// Keys in ascending byte order, by index.
pub(crate) trait Keys {
    fn len(&self) -> u64;
    fn key(&self, index: u64) -> Cow<'_, str>;
    fn entry(&self, index: u64) -> Entry;
}

impl Keys for [Entry] {
    fn len(&self) -> u64 {
        <[Entry]>::len(self) as u64
    }

    fn key(&self, index: u64) -> Cow<'_, str> {
        Cow::Borrowed(&self[index as usize].key)
    }

    fn entry(&self, index: u64) -> Entry {
        self[index as usize].clone()
    }
}

/// Returns the smallest key after this one, where the next page starts.
pub(super) fn behind(key: &str) -> Vec<u8> {
    [key.as_bytes(), &[0]].concat()
}

/// Returns the smallest key after all keys with this prefix. No byte of UTF-8 is 0xFF, so the last can be incremented.
fn behind_prefix(prefix: &str) -> Vec<u8> {
    let mut from = prefix.as_bytes().to_vec();
    from.last_mut().into_iter().for_each(|last| *last += 1);
    from
}

/// First index whose key is not before `from`.
fn seek<K: Keys + ?Sized>(keys: &K, from: &[u8]) -> u64 {
    let (mut low, mut high) = (0, keys.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if keys.key(middle).as_bytes() < from { low = middle + 1 } else { high = middle }
    }
    low
}

/// Cuts one page from `base` merged with `overlay`, whose entries replace or (`None`) delete those of the base.
pub(crate) fn page<K: Keys + ?Sized>(base: &K, overlay: &BTreeMap<String, Option<Object>>, query: &ListQuery) -> Page {
    let mut page = Page::default();
    let mut from = query.from.clone().max(query.prefix.clone().into_bytes());
    let mut place = seek(base, &from);
    let mut above = overlay.range(query.prefix.clone()..).peekable();
    loop {
        while above.next_if(|(key, _)| key.as_bytes() < from.as_slice()).is_some() {}
        let below = (place < base.len()).then(|| base.key(place));
        // Keys of the overlay shadow those of the base.
        let over = above.peek().filter(|(key, _)| below.as_deref().is_none_or(|below| key.as_str() <= below)).copied();
        let Some(key) = over.map(|(key, _)| Cow::Borrowed(key.as_str())).or_else(|| below.clone()) else { return page };
        if !key.starts_with(&query.prefix) {
            return page;
        }
        let next_place = place + u64::from(below.as_ref() == Some(&key));
        let entry = match over {
            Some((_, Some(object))) => object.entry(key.into_owned()),
            None => base.entry(place),
            Some((_, None)) => {
                (place, from) = (next_place, behind(&key));
                continue;
            }
        };
        if page.entries.len() + page.prefixes.len() >= query.keys_max {
            // A page limited to no keys is complete; otherwise paging would never end.
            page.next = (query.keys_max > 0).then_some(from);
            return page;
        }
        if let Some(common) = common_prefix(&entry.key, query) {
            page.prefixes.push(common.to_owned());
            from = behind_prefix(common);
            place = seek(base, &from);
        } else {
            (place, from) = (next_place, behind(&entry.key));
            page.entries.push(entry);
        }
    }
}

/// Returns the key up to and including the first delimiter after the prefix.
fn common_prefix<'a>(key: &'a str, query: &ListQuery) -> Option<&'a str> {
    if query.delimiter.is_empty() {
        return None;
    }
    let end = key[query.prefix.len()..].find(&query.delimiter)?;
    Some(&key[..query.prefix.len() + end + query.delimiter.len()])
}

/// Characters that `encoding-type=url` does not escape.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b'*');

/// Writes the page as S3's `ListBucketResult`.
pub(super) fn listing(bucket: &str, query: &ListQuery, page: &Page) -> String {
    let text = |text: &str| {
        if query.is_url_encoded { utf8_percent_encode(text, &PLAIN).to_string() } else { xml_text(text) }
    };
    let mut out = String::with_capacity(512 + page.entries.len() * 300);
    let mut element = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = write!(out, "<{name}>{value}</{name}>");
    };
    element("Name", &xml_text(bucket));
    element("Prefix", &text(&query.prefix));
    element("KeyCount", &(page.entries.len() + page.prefixes.len()).to_string());
    element("MaxKeys", &query.keys_max.to_string());
    element("IsTruncated", if page.next.is_some() { "true" } else { "false" });
    if !query.delimiter.is_empty() {
        element("Delimiter", &text(&query.delimiter));
    }
    if !query.start_after.is_empty() {
        element("StartAfter", &text(&query.start_after));
    }
    if query.is_url_encoded {
        element("EncodingType", "url");
    }
    if let Some(next) = &page.next {
        element("NextContinuationToken", &hex(next));
    }
    for entry in &page.entries {
        let contents = format!(
            "<Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size>\
             <StorageClass>STANDARD</StorageClass>",
            text(&entry.key),
            iso_date(entry.modified_s),
            xml_text(&entry.etag),
            entry.size
        );
        element("Contents", &contents);
    }
    for prefix in &page.prefixes {
        element("CommonPrefixes", &format!("<Prefix>{}</Prefix>", text(prefix)));
    }
    document("ListBucketResult", &out)
}
