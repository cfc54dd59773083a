//! A walk over small XML documents: calls a visitor at each opening and closing tag, with bounded depth.
//!
//! Knows the element names that matter; all others are [`Tag::Other`]. Resolves the five predefined entities and
//! character references only and refuses document types, so nothing can expand.

use crate::escape::shown;
use fuelrail_base::{Error, Kind, Result, limits};
use quick_xml::events::{BytesRef, Event};
use quick_xml::reader::Reader;

/// Deepest nesting followed. Listings need four levels (ListBucketResult, Contents, Owner, ID).
const DEPTH_MAX: usize = 16;

/// The elements that matter in listings, error documents, answers to uploads and those that bring credentials.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tag {
    ListBucketResult,
    Contents,
    Key,
    Size,
    Etag,
    CommonPrefixes,
    Prefix,
    IsTruncated,
    NextContinuationToken,
    EncodingType,
    EnumerationResults,
    Blobs,
    Blob,
    BlobPrefix,
    BlobEtag,
    Name,
    Properties,
    ContentLength,
    ResourceType,
    NextMarker,
    Error,
    Code,
    Message,
    Region,
    Credentials,
    AccessKeyId,
    SecretAccessKey,
    SessionToken,
    Expiration,
    UploadId,
    Other,
}

impl Tag {
    fn of(name: &str) -> Tag {
        match name {
            "ListBucketResult" => Tag::ListBucketResult,
            "Contents" => Tag::Contents,
            "Key" => Tag::Key,
            "Size" => Tag::Size,
            "ETag" => Tag::Etag,
            "CommonPrefixes" => Tag::CommonPrefixes,
            "Prefix" => Tag::Prefix,
            "IsTruncated" => Tag::IsTruncated,
            "NextContinuationToken" => Tag::NextContinuationToken,
            "EncodingType" => Tag::EncodingType,
            "EnumerationResults" => Tag::EnumerationResults,
            "Blobs" => Tag::Blobs,
            "Blob" => Tag::Blob,
            "BlobPrefix" => Tag::BlobPrefix,
            "Etag" => Tag::BlobEtag,
            "Name" => Tag::Name,
            "Properties" => Tag::Properties,
            "Content-Length" => Tag::ContentLength,
            "ResourceType" => Tag::ResourceType,
            "NextMarker" => Tag::NextMarker,
            "Error" => Tag::Error,
            "Code" => Tag::Code,
            "Message" => Tag::Message,
            "Region" => Tag::Region,
            "Credentials" => Tag::Credentials,
            "AccessKeyId" => Tag::AccessKeyId,
            "SecretAccessKey" => Tag::SecretAccessKey,
            "SessionToken" => Tag::SessionToken,
            "Expiration" => Tag::Expiration,
            "UploadId" => Tag::UploadId,
            _ => Tag::Other,
        }
    }
}

/// What a walk reports to. `path` runs from the root to the element concerned.
pub(crate) trait Visit {
    /// An element opens; `name` is its local name.
    fn open(&mut self, path: &[Tag], name: &str) -> Result<()>;
    /// An element closes; `text` is what stood in it since its last inner element.
    fn close(&mut self, path: &[Tag], text: &str) -> Result<()>;
}

/// Walks the whole document.
///
/// # Errors
/// [`Kind::Protocol`] when it is no well-formed XML in UTF-8, is cut off, nests deeper than [`DEPTH_MAX`], holds a
/// document type or an undefined entity, or exceeds `DOCUMENT_BYTES_MAX`; and whatever the visitor refuses.
pub(crate) fn walk(document: &[u8], visitor: &mut impl Visit) -> Result<()> {
    if document.len() > limits::DOCUMENT_BYTES_MAX {
        return Err(broken(format!("it is longer than {} bytes", limits::DOCUMENT_BYTES_MAX)));
    }
    let document = document.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(document);
    let xml = core::str::from_utf8(document)
        .map_err(|flaw| broken(format!("it is not UTF-8 at byte {}", flaw.valid_up_to())))?;
    let mut reader = Reader::from_str(xml);
    reader.config_mut().expand_empty_elements = true;
    let mut path: Vec<Tag> = Vec::with_capacity(DEPTH_MAX);
    let mut text = String::new();
    let mut roots = 0;
    loop {
        let event = reader.read_event().map_err(|flaw| {
            let at = reader.error_position();
            broken(format!("{} at byte {at}", shown(flaw.to_string().as_bytes(), 120)))
        })?;
        match event {
            Event::Start(tag) => {
                if path.len() == DEPTH_MAX {
                    return Err(broken(format!("elements nest deeper than {DEPTH_MAX}")));
                }
                roots += usize::from(path.is_empty());
                if roots > 1 {
                    return Err(broken("a second document follows the first"));
                }
                let name = tag.local_name();
                path.push(Tag::of(name.as_ref()));
                text.clear();
                visitor.open(&path, name.as_ref())?;
            }
            Event::End(_) => {
                visitor.close(&path, &text)?;
                path.pop();
                text.clear();
            }
            Event::Text(piece) => text.push_str(&piece.xml10_content()),
            Event::CData(piece) => text.push_str(&piece.xml10_content()),
            Event::GeneralRef(entity) => text.push(resolved(&entity)?),
            Event::DocType(_) => return Err(broken("it declares a document type (DOCTYPE)")),
            Event::Eof => break,
            Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
        }
    }
    match (roots, path.len()) {
        (0, _) => Err(broken("it holds no element")),
        (_, 0) => Ok(()),
        (_, open) => Err(broken(format!("it ends with {open} elements open"))),
    }
}

fn resolved(entity: &BytesRef<'_>) -> Result<char> {
    let undefined = || broken(format!("the entity '&{};' is not defined", shown(entity.as_bytes(), 32)));
    if let Some(character) = entity.resolve_char_ref().map_err(|_| undefined())? {
        return Ok(character);
    }
    Ok(match entity.as_ref() {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => return Err(undefined()),
    })
}

fn broken(why: impl core::fmt::Display) -> Error {
    Error::new(Kind::Protocol, format!("the XML document is broken: {why}"))
}
