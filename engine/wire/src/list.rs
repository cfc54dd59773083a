//! Listings: the ListObjectsV2 request path, its answer, and the error documents that may come instead.

use crate::escape::{Flaw, decode, push_query, shown};
use crate::etag;
use crate::range::decimal;
use crate::uri::Endpoint;
use crate::xml::{Tag, Visit, walk};
use fuelrail_base::{Error, Kind, Result, limits};
use serde::{Deserialize, Serialize};

/// One object, as a listing or a manifest names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The whole key, decoded.
    pub key: String,
    /// Length in bytes.
    pub size: u64,
    /// The entity tag as the server writes it, with or without quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

impl Entry {
    /// What makes this entry unusable, as a clause, or `None`.
    pub(crate) fn flaw(&self) -> Option<String> {
        if self.key.is_empty() {
            return Some("the key is empty".into());
        }
        if self.key.len() > limits::KEY_BYTES_MAX {
            return Some(format!("the key is {} bytes long, more than {}", self.key.len(), limits::KEY_BYTES_MAX));
        }
        if self.size > limits::OBJECT_BYTES_MAX {
            return Some(format!("the size {} is above {}", self.size, limits::OBJECT_BYTES_MAX));
        }
        let tag = self.etag.as_deref().filter(|tag| !etag::is_sound(tag))?;
        Some(format!("the etag '{}' does not fit a header line", shown(tag.as_bytes(), 64)))
    }
}

/// One page of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListPage {
    /// Objects, in the server's order.
    pub entries: Vec<Entry>,
    /// Key prefixes up to the next delimiter, where one was asked for.
    pub common_prefixes: Vec<String>,
    /// Token that fetches the next page. Present exactly when `is_truncated`.
    pub next: Option<String>,
    /// Whether more pages follow.
    pub is_truncated: bool,
}

impl ListPage {
    /// Refuses entries that nothing could be done with.
    pub(crate) fn check(&self) -> Result<()> {
        match self.entries.iter().find_map(|entry| Some((entry, entry.flaw()?))) {
            None => Ok(()),
            Some((entry, flaw)) => Err(protocol(format!("unusable entry in the listing: {flaw}")).object(&*entry.key)),
        }
    }
}

/// Where a page of a listing begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageStart<'a> {
    /// Behind this key.
    pub after: Option<&'a str>,
    /// Where the server's token says.
    pub token: Option<&'a str>,
}

/// The path and query of one ListObjectsV2 request for the endpoint's bucket and the keys that begin with `prefix`. `max_keys` is a
/// wish: servers answer with 1000 at most. Asks for URL-encoded keys, because XML cannot carry every key. Google Cloud Storage
/// knows the same request.
#[must_use]
pub fn list_path(
    endpoint: &Endpoint,
    prefix: &str,
    start: PageStart<'_>,
    max_keys: u32,
    delimiter: Option<&str>,
) -> String {
    let mut path = endpoint.bucket_path();
    path.push_str(&format!("?list-type=2&encoding-type=url&max-keys={max_keys}"));
    let optional = [
        ("&prefix=", Some(prefix)),
        ("&delimiter=", delimiter),
        ("&start-after=", start.after),
        ("&continuation-token=", start.token),
    ];
    for (name, value) in optional {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            path.push_str(name);
            push_query(&mut path, value);
        }
    }
    path
}

/// Parses the answer to [`list_path`].
///
/// # Errors
/// [`Kind::Protocol`] when it is not a whole, sound ListObjectsV2 document: broken XML, missing or repeated fields, an
/// unusable key, or a truncated page without a token. An S3 error document is an error that repeats its code.
pub fn parse_list(xml: &[u8]) -> Result<ListPage> {
    let mut reading = Reading::default();
    walk(xml, &mut reading)?;
    reading.into_page()
}

/// Code and message of an S3 error document (`NoSuchKey`, `The specified key does not exist.`), cut to 256 characters
/// and escaped for printing. `None` when `xml` is anything else.
#[must_use]
pub fn parse_error(xml: &[u8]) -> Option<(String, String)> {
    let mut refusal = Refusal::default();
    walk(xml, &mut refusal).ok()?;
    Some((refusal.code?, refusal.message.unwrap_or_default()))
}

/// The region that an S3 error document names (`AuthorizationHeaderMalformed`), escaped for printing.
#[must_use]
pub fn parse_error_region(xml: &[u8]) -> Option<String> {
    let mut refusal = Refusal::default();
    walk(xml, &mut refusal).ok()?;
    refusal.region
}

pub(crate) fn protocol(cause: impl Into<String>) -> Error {
    Error::new(Kind::Protocol, cause)
}

#[derive(Default)]
pub(crate) struct Refusal {
    code: Option<String>,
    message: Option<String>,
    region: Option<String>,
}

impl Refusal {
    /// What an error document says instead of a listing.
    pub(crate) fn into_error(self) -> Option<Error> {
        let (code, message) = (self.code?, self.message.unwrap_or_default());
        Some(protocol(format!("the server answered the listing with error {code}: {message}")))
    }
}

impl Visit for Refusal {
    fn open(&mut self, _path: &[Tag], _name: &str) -> Result<()> {
        Ok(())
    }

    fn close(&mut self, path: &[Tag], text: &str) -> Result<()> {
        let printable = || text.trim().chars().take(256).collect::<String>().escape_debug().to_string();
        match path {
            [Tag::Error, Tag::Code] if !text.trim().is_empty() => self.code = Some(printable()),
            [Tag::Error, Tag::Message] => self.message = Some(printable()),
            [Tag::Error, Tag::Region] if !text.trim().is_empty() => self.region = Some(printable()),
            _ => {}
        }
        Ok(())
    }
}

/// A listing while it is read. Keys stay encoded until the end, because the encoding may be named behind them.
#[derive(Default)]
struct Reading {
    page: ListPage,
    truncated: Option<bool>,
    token: Option<String>,
    encoding: Option<String>,
    key: Option<String>,
    size: Option<u64>,
    etag: Option<String>,
    prefix: Option<String>,
    refusal: Refusal,
}

impl Visit for Reading {
    fn open(&mut self, path: &[Tag], name: &str) -> Result<()> {
        match path {
            [Tag::ListBucketResult | Tag::Error] => Ok(()),
            [_] => {
                Err(no_listing(name, "the server may have no ListObjectsV2: name the objects in a manifest instead"))
            }
            _ => Ok(()),
        }
    }

    fn close(&mut self, path: &[Tag], text: &str) -> Result<()> {
        use Tag::{CommonPrefixes, Contents, ListBucketResult as Root};
        match path {
            [Root, Contents, Tag::Key] => once(&mut self.key, text.to_owned(), "Key"),
            [Root, Contents, Tag::Size] => once(&mut self.size, number(text, "Size")?, "Size"),
            [Root, Contents, Tag::Etag] => once(&mut self.etag, text.trim().to_owned(), "ETag"),
            [Root, Contents] => {
                let key = self.key.take().ok_or_else(|| protocol("<Contents> without <Key>"))?;
                let size = self.size.take().ok_or_else(|| protocol("<Contents> without <Size>").object(&*key))?;
                // Some servers write an empty tag for objects that never got one.
                let etag = self.etag.take().filter(|tag| !matches!(tag.as_str(), "" | "\"\""));
                self.page.entries.push(Entry { key, size, etag });
                Ok(())
            }
            [Root, CommonPrefixes, Tag::Prefix] => once(&mut self.prefix, text.to_owned(), "Prefix"),
            [Root, CommonPrefixes] => {
                let prefix = self.prefix.take().ok_or_else(|| protocol("<CommonPrefixes> without <Prefix>"))?;
                self.page.common_prefixes.push(prefix);
                Ok(())
            }
            [Root, Tag::IsTruncated] => {
                let truncated = match text.trim() {
                    "true" => true,
                    "false" => false,
                    other => {
                        return Err(protocol(format!("unreadable <IsTruncated> '{}'", shown(other.as_bytes(), 64))));
                    }
                };
                once(&mut self.truncated, truncated, "IsTruncated")
            }
            [Root, Tag::NextContinuationToken] => once(&mut self.token, text.to_owned(), "NextContinuationToken"),
            [Root, Tag::EncodingType] => once(&mut self.encoding, text.trim().to_owned(), "EncodingType"),
            _ => self.refusal.close(path, text),
        }
    }
}

impl Reading {
    fn into_page(self) -> Result<ListPage> {
        let Reading { mut page, truncated, token, encoding, refusal, .. } = self;
        if let Some(error) = refusal.into_error() {
            return Err(error);
        }
        page.is_truncated = truncated.ok_or_else(|| protocol("the listing has no <IsTruncated>"))?;
        page.next = token.filter(|token| page.is_truncated && !token.is_empty());
        if page.is_truncated && page.next.is_none() {
            return Err(protocol("the listing is truncated but has no <NextContinuationToken>")
                .cure("the server may only speak ListObjects version 1: name the objects in a manifest instead"));
        }
        match encoding.as_deref() {
            None | Some("") => {}
            Some("url") => {
                let keys = page.entries.iter_mut().map(|entry| &mut entry.key);
                for text in keys.chain(page.common_prefixes.iter_mut()) {
                    *text = url_decoded(text)?;
                }
            }
            Some(other) => {
                return Err(protocol(format!("unknown <EncodingType> '{}'", shown(other.as_bytes(), 64))));
            }
        }
        page.check()?;
        Ok(page)
    }
}

/// S3 writes a blank as `+` and a plus sign as `%2B`; others write `%20`.
fn url_decoded(text: &str) -> Result<String> {
    decode(&text.replace('+', " ")).map_err(|flaw| {
        let what = match flaw {
            Flaw::Percent => "a '%' without two hexadecimal digits",
            Flaw::Utf8 => "bytes that are not UTF-8",
        };
        protocol(format!("the URL-encoded key '{}' holds {what}", shown(text.as_bytes(), 128)))
    })
}

/// The answer is another document.
pub(crate) fn no_listing(name: &str, cure: &str) -> Error {
    protocol(format!("the answer is a <{}> document, not a listing", shown(name.as_bytes(), 64))).cure(cure)
}

/// A length in bytes.
pub(crate) fn number(text: &str, name: &str) -> Result<u64> {
    decimal(text.trim().as_bytes())
        .ok_or_else(|| protocol(format!("unreadable <{name}> '{}'", shown(text.as_bytes(), 64))))
}

/// Fills `slot`, which a document may do only once per element.
pub(crate) fn once<T>(slot: &mut Option<T>, value: T, name: &str) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(protocol(format!("the listing repeats <{name}>"))),
    }
}
