//! Listings of Azure: the List Blobs request path, and its answer as a page like any other.

use crate::escape::{decode, push_query, shown};
use crate::list::{Entry, ListPage, Refusal, no_listing, number, once, protocol};
use crate::uri::Endpoint;
use crate::xml::{Tag, Visit, walk};
use fuelrail_base::Result;

/// The path and query of one List Blobs request for the endpoint's container and the blobs that begin with `prefix`. A page begins
/// where a `marker` of an earlier one says: there is no listing behind a key.
#[must_use]
pub fn list_path(endpoint: &Endpoint, prefix: &str, marker: Option<&str>, max_keys: u32) -> String {
    let mut path = endpoint.bucket_path();
    path.push_str(&format!("?restype=container&comp=list&maxresults={max_keys}"));
    for (name, value) in [("&prefix=", Some(prefix)), ("&marker=", marker)] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            path.push_str(name);
            push_query(&mut path, value);
        }
    }
    path
}

/// Parses the answer to [`list_path`]. Folders of accounts with a hierarchical namespace are no objects, and are left out.
///
/// # Errors
/// [`fuelrail_base::Kind::Protocol`] when it is not a whole, sound List Blobs document: broken XML, missing or repeated fields, an
/// unusable name. An error document is an error that repeats its code.
pub fn parse_list(xml: &[u8]) -> Result<ListPage> {
    let mut reading = Reading::default();
    walk(xml, &mut reading)?;
    let Reading { mut page, marker, refusal, .. } = reading;
    if let Some(error) = refusal.into_error() {
        return Err(error);
    }
    let marker = marker.ok_or_else(|| protocol("the listing has no <NextMarker>"))?;
    page.is_truncated = !marker.is_empty();
    page.next = page.is_truncated.then_some(marker);
    page.check()?;
    Ok(page)
}

#[derive(Default)]
struct Reading {
    page: ListPage,
    marker: Option<String>,
    name: Option<String>,
    size: Option<u64>,
    etag: Option<String>,
    resource: Option<String>,
    prefix: Option<String>,
    refusal: Refusal,
    /// Whether the element that is open says that its text is.
    is_encoded: bool,
}

impl Visit for Reading {
    fn open(&mut self, path: &[Tag], name: &str) -> Result<()> {
        match path {
            [Tag::EnumerationResults | Tag::Error] => Ok(()),
            [_] => Err(no_listing(name, "the server may not be Azure's: name the objects in a manifest instead")),
            _ => Ok(()),
        }
    }

    fn encoded(&mut self) {
        self.is_encoded = true;
    }

    fn close(&mut self, path: &[Tag], text: &str) -> Result<()> {
        let is_encoded = core::mem::take(&mut self.is_encoded);
        use Tag::{Blob, BlobPrefix, Blobs, EnumerationResults as Root, Properties};
        match path {
            [Root, Tag::NextMarker] => once(&mut self.marker, text.trim().to_owned(), "NextMarker"),
            [Root, Blobs, Blob, Tag::Name] => once(&mut self.name, name_in(text, is_encoded)?, "Name"),
            [Root, Blobs, Blob, Properties, Tag::ContentLength] => {
                once(&mut self.size, number(text, "Content-Length")?, "Content-Length")
            }
            [Root, Blobs, Blob, Properties, Tag::BlobEtag] => once(&mut self.etag, text.trim().to_owned(), "Etag"),
            [Root, Blobs, Blob, Properties, Tag::ResourceType] => {
                once(&mut self.resource, text.trim().to_owned(), "ResourceType")
            }
            [Root, Blobs, Blob] => self.blob(),
            [Root, Blobs, BlobPrefix, Tag::Name] => once(&mut self.prefix, name_in(text, is_encoded)?, "Name"),
            [Root, Blobs, BlobPrefix] => {
                let prefix = self.prefix.take().ok_or_else(|| protocol("<BlobPrefix> without <Name>"))?;
                self.page.common_prefixes.push(prefix);
                Ok(())
            }
            _ => self.refusal.close(path, text),
        }
    }
}

impl Reading {
    fn blob(&mut self) -> Result<()> {
        let key = self.name.take().ok_or_else(|| protocol("<Blob> without <Name>"))?;
        let (size, etag, resource) = (self.size.take(), self.etag.take(), self.resource.take());
        if resource.as_deref() == Some("directory") {
            return Ok(());
        }
        let size = size.ok_or_else(|| protocol("<Blob> without <Content-Length>").object(&*key))?;
        // Listings leave the quotes out that answers have.
        let etag = etag.filter(|tag| !tag.is_empty());
        let etag = etag.map(|tag| if tag.ends_with('"') { tag } else { format!("\"{tag}\"") });
        self.page.entries.push(Entry { key, size, etag });
        Ok(())
    }
}

/// Azure escapes the names that XML cannot carry, and says so of each.
fn name_in(text: &str, is_encoded: bool) -> Result<String> {
    if !is_encoded {
        return Ok(text.to_owned());
    }
    decode(text).map_err(|_| {
        let shown = shown(text.as_bytes(), 128);
        protocol(format!("the name '{shown}' is said to be percent-encoded, and is not"))
    })
}
