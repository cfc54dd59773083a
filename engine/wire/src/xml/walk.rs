//! The walk, by way of quick-xml.

use super::Visit;
use crate::escape::shown;
use fuelrail_base::{Error, Kind, Result, limits};
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesRef, Event};
use quick_xml::reader::Reader;

/// Deepest nesting followed. Listings need four levels (ListBucketResult, Contents, Owner, ID).
const DEPTH_MAX: usize = 16;

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
    let (mut path, mut text) = (String::new(), String::new());
    let (mut depth, mut roots) = (0, 0);
    loop {
        let event = reader.read_event().map_err(|flaw| {
            let at = reader.error_position();
            broken(format!("{} at byte {at}", shown(flaw.to_string().as_bytes(), 120)))
        })?;
        match event {
            Event::Start(tag) => {
                if depth == DEPTH_MAX {
                    return Err(broken(format!("elements nest deeper than {DEPTH_MAX}")));
                }
                roots += usize::from(depth == 0);
                if roots > 1 {
                    return Err(broken("a second document follows the first"));
                }
                depth += 1;
                path.push('/');
                path.push_str(tag.local_name().as_ref());
                text.clear();
                visitor.open(&path)?;
                if tag.attributes().flatten().any(|it| it.key.as_ref() == "Encoded" && &*it.value == "true") {
                    visitor.encoded();
                }
            }
            Event::End(_) => {
                visitor.close(&path, &text)?;
                path.truncate(path.rfind('/').unwrap_or(0));
                depth -= 1;
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
    match (roots, depth) {
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
    let known = resolve_xml_entity(entity.as_ref()).and_then(|text| text.chars().next());
    known.ok_or_else(undefined)
}

fn broken(why: impl core::fmt::Display) -> Error {
    Error::new(Kind::Protocol, format!("the XML document is broken: {why}"))
}
