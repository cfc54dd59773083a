//! Documents of uploads in parts: the lists that name parts, read, and the answers, written.

use hyper::StatusCode;
use quick_xml::Reader;
use quick_xml::events::Event;

use super::notation::xml_text;
use super::refusal::Refusal;

/// Longest list of parts: that of Azure's 50 000 blocks fits.
pub(super) const LIST_BYTES_MAX: usize = 8 << 20;

/// One part as a list names it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Named {
    /// S3's number, Azure's block id.
    pub(super) name: String,
    pub(super) etag: Option<String>,
    pub(super) crc32c: Option<String>,
}

/// The parts of S3's `CompleteMultipartUpload` or Azure's `BlockList`, in the order they stand.
pub(super) fn parse_list(document: &[u8]) -> Result<Vec<Named>, Refusal> {
    let malformed = || Refusal::new(StatusCode::BAD_REQUEST, "MalformedXML", "The list of parts is not well-formed.");
    let text = core::str::from_utf8(document).map_err(|_| malformed())?;
    let mut reader = Reader::from_str(text);
    let (mut parts, mut part, mut inside) = (Vec::new(), Named::default(), String::new());
    loop {
        match reader.read_event().map_err(|_| malformed())? {
            Event::Start(_) => inside.clear(),
            Event::Text(text) => inside.push_str(&text.xml10_content()),
            Event::GeneralRef(entity) => inside.push(match entity.as_ref() {
                "quot" | "#34" | "#x22" => '"',
                _ => return Err(malformed()),
            }),
            Event::End(tag) => match tag.local_name().as_ref() {
                "PartNumber" => part.name = inside.trim().to_owned(),
                "ETag" => part.etag = Some(inside.trim().trim_matches('"').to_owned()),
                "ChecksumCRC32C" => part.crc32c = Some(inside.trim().to_owned()),
                "Part" => parts.push(core::mem::take(&mut part)),
                "Latest" | "Uncommitted" => {
                    parts.push(Named { name: inside.trim().to_owned(), ..Named::default() });
                }
                _ => {}
            },
            Event::Eof => break,
            _ => {}
        }
    }
    if parts.is_empty() || parts.iter().any(|part| part.name.is_empty()) {
        return Err(malformed());
    }
    Ok(parts)
}

pub(super) fn begun(bucket: &str, key: &str, id: &str) -> String {
    let (bucket, key) = (xml_text(bucket), xml_text(key));
    answer(
        "InitiateMultipartUploadResult",
        &format!("<Bucket>{bucket}</Bucket><Key>{key}</Key><UploadId>{id}</UploadId>"),
    )
}

pub(super) fn completed(bucket: &str, key: &str, etag: &str) -> String {
    let (bucket, key, etag) = (xml_text(bucket), xml_text(key), xml_text(etag));
    answer("CompleteMultipartUploadResult", &format!("<Bucket>{bucket}</Bucket><Key>{key}</Key><ETag>{etag}</ETag>"))
}

fn answer(name: &str, inner: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{name} xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{inner}</{name}>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_both_kinds() {
        let amazon = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag>\
                      <ChecksumCRC32C>AAAAAA==</ChecksumCRC32C></Part><Part><ETag>\"b\"</ETag><PartNumber>2</PartNumber></Part>\
                      </CompleteMultipartUpload>";
        let part = |name: &str, etag: &str, crc32c: Option<&str>| Named {
            name: name.into(),
            etag: Some(etag.into()),
            crc32c: crc32c.map(Into::into),
        };
        assert_eq!(parse_list(amazon.as_bytes()).unwrap(), [part("1", "a", Some("AAAAAA==")), part("2", "b", None)]);
        let azure = "<?xml version=\"1.0\"?><BlockList><Latest>YQ==</Latest><Latest>Yg==</Latest></BlockList>";
        let names: Vec<String> = parse_list(azure.as_bytes()).unwrap().into_iter().map(|part| part.name).collect();
        assert_eq!(names, ["YQ==", "Yg=="]);
        for bad in ["", "<BlockList/>", "<a><Part></Part></a>", "<BlockList><Latest>x", "\u{fffd}<"] {
            assert_eq!(parse_list(bad.as_bytes()).unwrap_err().code, "MalformedXML", "{bad}");
        }
    }
}
