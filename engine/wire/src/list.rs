//! Listings: the request paths of ListObjectsV2 and of Azure's List Blobs, their answers, and the error documents that may come instead.

use crate::escape::{Flaw, decode, protocol, push_query, shown};
use crate::etag;
use crate::range::decimal;
use crate::uri::{Dialect, Endpoint};
use crate::xml::{Visit, printable, walk};
use fuelrail_base::{Error, Result, limits};
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
    /// Token that fetches the next page, where one follows.
    pub next: Option<String>,
}

/// Where a page of a listing begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageStart<'a> {
    /// After this key.
    pub after: Option<&'a str>,
    /// Where the server's token says.
    pub token: Option<&'a str>,
}

/// The path and query of one request for a page of the endpoint's bucket: the keys that begin with `prefix`. `max_keys` is a wish:
/// servers answer with 1000 at most, Azure with 5000. ListObjectsV2, which Google Cloud Storage knows, too, is asked for URL-encoded keys,
/// because XML cannot carry every key. Azure's List Blobs begins where a token says: there is no listing after a key.
pub fn list_path(endpoint: &Endpoint, prefix: &str, start: PageStart<'_>, max_keys: u32) -> String {
    let mut path = endpoint.bucket_path();
    let is_azure = endpoint.dialect == Dialect::Azure;
    let asked =
        if is_azure { "restype=container&comp=list&maxresults" } else { "list-type=2&encoding-type=url&max-keys" };
    path.push_str(&format!("?{asked}={max_keys}"));
    let optional = [
        ("&prefix=", Some(prefix)),
        ("&start-after=", start.after.filter(|_| !is_azure)),
        (if is_azure { "&marker=" } else { "&continuation-token=" }, start.token),
    ];
    for (name, value) in optional {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            path.push_str(name);
            push_query(&mut path, value);
        }
    }
    path
}

/// Parses the answer to [`list_path`]. Folders of Azure's accounts with a hierarchical namespace are no objects, and are left out.
///
/// # Errors
/// [`Kind::Protocol`] when it is not a whole, sound document of one of the two kinds: broken XML, missing or repeated fields, an
/// unusable key, or a truncated page without a token. An S3 error document is an error that repeats its code.
pub fn parse_list(xml: &[u8]) -> Result<ListPage> {
    let mut reading = Reading::default();
    walk(xml, &mut reading)?;
    reading.into_page()
}

/// Code and message of an S3 error document (`NoSuchKey`, `The specified key does not exist.`), cut to 256 characters
/// and escaped for printing; of one that is cut off or broken after its code, what stands before that. `None` without a code.
pub fn parse_error(xml: &[u8]) -> Option<(String, String)> {
    refusal(xml).said()
}

/// The region that an S3 error document names (`AuthorizationHeaderMalformed`), escaped for printing.
pub fn parse_error_region(xml: &[u8]) -> Option<String> {
    refusal(xml).region
}

fn refusal(xml: &[u8]) -> Refusal {
    let mut refusal = Refusal::default();
    // Of a long one the begin alone may be kept, cut off within a character.
    let text = xml.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let _ = walk(text.as_bytes(), &mut refusal);
    refusal
}

#[derive(Default)]
struct Refusal {
    code: Option<String>,
    message: Option<String>,
    region: Option<String>,
}

impl Refusal {
    /// Code and message.
    fn said(self) -> Option<(String, String)> {
        Some((self.code?, self.message.unwrap_or_default()))
    }
}

impl Visit for Refusal {
    fn close(&mut self, path: &str, text: &str) -> Result<()> {
        match path {
            "/Error/Code" if !text.trim().is_empty() => self.code = Some(printable(text)),
            "/Error/Message" => self.message = Some(printable(text)),
            "/Error/Region" if !text.trim().is_empty() => self.region = Some(printable(text)),
            _ => {}
        }
        Ok(())
    }
}

/// A listing while it is read. Keys of S3 stay encoded until the end, because the encoding may be named after them.
#[derive(Default)]
struct Reading {
    page: ListPage,
    is_azure: bool,
    truncated: Option<bool>,
    token: Option<String>,
    encoding: Option<String>,
    key: Option<String>,
    size: Option<u64>,
    etag: Option<String>,
    resource: Option<String>,
    refusal: Refusal,
    /// Whether the element that is open says that its text is.
    is_encoded: bool,
}

impl Visit for Reading {
    fn open(&mut self, path: &str) -> Result<()> {
        match path {
            "/EnumerationResults" => self.is_azure = true,
            "/ListBucketResult" | "/Error" => {}
            _ if path.rfind('/') == Some(0) => {
                let name = shown(&path.as_bytes()[1..], 64);
                return Err(protocol(format!("the response is a <{name}> document, not a listing"))
                    .with_hint("the server may not support ListObjectsV2: list the objects in a manifest instead"));
            }
            _ => {}
        }
        Ok(())
    }

    fn encoded(&mut self) {
        self.is_encoded = true;
    }

    fn close(&mut self, path: &str, text: &str) -> Result<()> {
        let is_encoded = core::mem::take(&mut self.is_encoded);
        let trimmed = || text.trim().to_owned();
        match path {
            "/ListBucketResult/Contents/Key" => once(&mut self.key, text.to_owned(), "Key"),
            "/ListBucketResult/Contents/Size" => once(&mut self.size, number(text, "Size")?, "Size"),
            "/ListBucketResult/Contents/ETag" => once(&mut self.etag, trimmed(), "ETag"),
            "/ListBucketResult/Contents" => self.object("Contents", "Key", "Size"),
            "/ListBucketResult/IsTruncated" => {
                let truncated = text.trim().parse();
                once(&mut self.truncated, truncated.map_err(|_| unreadable("IsTruncated", text))?, "IsTruncated")
            }
            "/ListBucketResult/NextContinuationToken" => {
                once(&mut self.token, text.to_owned(), "NextContinuationToken")
            }
            "/ListBucketResult/EncodingType" => once(&mut self.encoding, trimmed(), "EncodingType"),
            "/EnumerationResults/NextMarker" => {
                self.truncated = Some(!text.trim().is_empty());
                once(&mut self.token, trimmed(), "NextMarker")
            }
            "/EnumerationResults/Blobs/Blob/Name" => once(&mut self.key, name_in(text, is_encoded)?, "Name"),
            "/EnumerationResults/Blobs/Blob/Properties/Content-Length" => {
                once(&mut self.size, number(text, "Content-Length")?, "Content-Length")
            }
            "/EnumerationResults/Blobs/Blob/Properties/Etag" => once(&mut self.etag, trimmed(), "Etag"),
            "/EnumerationResults/Blobs/Blob/Properties/ResourceType" => {
                once(&mut self.resource, trimmed(), "ResourceType")
            }
            "/EnumerationResults/Blobs/Blob" => self.object("Blob", "Name", "Content-Length"),
            _ => self.refusal.close(path, text),
        }
    }
}

impl Reading {
    /// Takes the object that is described by an element `what`, which ends here.
    fn object(&mut self, what: &str, key_is: &str, size_is: &str) -> Result<()> {
        let (key, size, etag) = (self.key.take(), self.size.take(), self.etag.take());
        let key = key.ok_or_else(|| protocol(format!("<{what}> without <{key_is}>")))?;
        if self.resource.take().as_deref() == Some("directory") {
            return Ok(());
        }
        let size = size.ok_or_else(|| protocol(format!("<{what}> without <{size_is}>")).with_object(&*key))?;
        // Some servers write an empty tag for objects that never got one. Azure's listings leave the quotes out that answers have.
        let etag = etag.filter(|tag| !matches!(tag.as_str(), "" | "\"\""));
        let etag = etag.map(|tag| if self.is_azure && !tag.ends_with('"') { format!("\"{tag}\"") } else { tag });
        self.page.entries.push(Entry { key, size, etag });
        Ok(())
    }

    fn into_page(self) -> Result<ListPage> {
        let Reading { mut page, is_azure, truncated, token, encoding, refusal, .. } = self;
        if let Some((code, message)) = refusal.said() {
            return Err(protocol(format!("the server answered the listing with error {code}: {message}")));
        }
        let says = if is_azure { "NextMarker" } else { "IsTruncated" };
        let truncated = truncated.ok_or_else(|| protocol(format!("the listing has no <{says}>")))?;
        page.next = token.filter(|token| truncated && !token.is_empty());
        if truncated && page.next.is_none() {
            return Err(protocol("the listing is truncated but has no <NextContinuationToken>").with_hint(
                "the server may only support ListObjects version 1: list the objects in a manifest instead",
            ));
        }
        match encoding.as_deref() {
            None | Some("") => {}
            Some("url") => {
                for entry in &mut page.entries {
                    entry.key = url_decoded(&entry.key)?;
                }
            }
            Some(other) => {
                return Err(protocol(format!("unknown <EncodingType> '{}'", shown(other.as_bytes(), 64))));
            }
        }
        match page.entries.iter().find_map(|entry| Some((entry, entry.flaw()?))) {
            None => Ok(page),
            Some((entry, flaw)) => {
                Err(protocol(format!("unusable entry in the listing: {flaw}")).with_object(&*entry.key))
            }
        }
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

/// Azure escapes the names that XML cannot carry, and says so of each.
fn name_in(text: &str, is_encoded: bool) -> Result<String> {
    if !is_encoded {
        return Ok(text.to_owned());
    }
    decode(text).map_err(|_| {
        let shown = shown(text.as_bytes(), 128);
        protocol(format!("the name '{shown}' is not valid percent-encoding"))
    })
}

/// A length in bytes.
fn number(text: &str, name: &str) -> Result<u64> {
    decimal(text.trim().as_bytes()).ok_or_else(|| unreadable(name, text))
}

fn unreadable(name: &str, text: &str) -> Error {
    protocol(format!("unreadable <{name}> '{}'", shown(text.as_bytes(), 64)))
}

/// Fills `slot`, which a document may do only once per element.
pub(crate) fn once<T>(slot: &mut Option<T>, value: T, name: &str) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(protocol(format!("the listing repeats <{name}>"))),
    }
}
