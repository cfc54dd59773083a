//! Uploads in parts: S3's multipart, which Google's XML interface knows as well, and Azure's blocks. Paths and documents of their
//! requests, and what their answers say.

use crate::escape::{protocol, push_query};
use crate::list::once;
use crate::xml::{Visit, walk};
use crate::{base64, etag};
use fuelrail_base::Result;
use quick_xml::escape::escape;

/// Most parts of one upload of S3 and Google. Azure takes more.
pub const PARTS_MAX: u64 = 10_000;
/// Longest id of an upload that is taken: theirs have at most some hundred bytes.
const UPLOAD_ID_BYTES_MAX: usize = 1024;

/// A part that the server has taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartTaken {
    /// The entity tag the server gave it, quotes included where it has them.
    pub etag: String,
    /// CRC-32C of its bytes.
    pub crc32c: u32,
}

/// The path of an object, and after it a query of these names and values.
pub fn with_query(object_path: &str, query: &[(&str, &str)]) -> String {
    let mut path = object_path.to_owned();
    for (at, (name, value)) in query.iter().enumerate() {
        path.push(if at == 0 { '?' } else { '&' });
        path.push_str(name);
        if !value.is_empty() {
            path.push('=');
            push_query(&mut path, value);
        }
    }
    path
}

/// The id of a block: alike in length, as Azure wants it of all blocks of an object, and no other upload's.
pub fn block_id(upload: u64, number: u64) -> String {
    base64::encode(format!("{upload:016x}-{number:07}").as_bytes())
}

/// The id of an upload, from the answer to what begins it (`POST …?uploads`).
///
/// # Errors
/// [`fuelrail_base::Kind::Protocol`] when it is no such answer.
pub fn parse_begun(xml: &[u8]) -> Result<String> {
    let id = named(xml, "UploadId")?.filter(|id| !id.is_empty() && id.len() <= UPLOAD_ID_BYTES_MAX);
    id.ok_or_else(|| protocol("the response to CreateMultipartUpload contains no <UploadId>"))
}

/// The entity tag of the object, from the answer to the completion of an upload.
///
/// # Errors
/// [`fuelrail_base::Kind::Protocol`] when it is no such answer: an error document, say, which S3 may send with status 200.
pub fn parse_completed(xml: &[u8]) -> Result<String> {
    let etag = named(xml, "ETag")?.filter(|etag| etag::is_sound(etag));
    etag.ok_or_else(|| protocol("the response to CompleteMultipartUpload contains no <ETag>"))
}

/// One element of a document that is no error. Servers do not agree on what the document is called.
fn named(xml: &[u8], inner: &'static str) -> Result<Option<String>> {
    let mut reading = Reading { inner, found: None };
    walk(xml, &mut reading)?;
    Ok(reading.found)
}

struct Reading {
    inner: &'static str,
    found: Option<String>,
}

impl Visit for Reading {
    fn open(&mut self, path: &str) -> Result<()> {
        match path {
            "/Error" => Err(protocol("the response to an upload is an <Error> document")),
            _ => Ok(()),
        }
    }

    fn close(&mut self, path: &str, text: &str) -> Result<()> {
        match path[1..].split_once('/') {
            Some((_, inner)) if inner == self.inner => {
                once(&mut self.found, text.trim().to_owned(), "UploadId or ETag")
            }
            _ => Ok(()),
        }
    }
}

/// The document that completes an upload. Google's knows no checksums.
pub fn complete_document(parts: &[PartTaken], with_checksums: bool) -> String {
    let mut document = String::with_capacity(64 + parts.len() * 160);
    document.push_str("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (number, part) in (1..).zip(parts) {
        document.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag>", escape(&*part.etag)));
        if with_checksums {
            document.push_str(&format!("<ChecksumCRC32C>{}</ChecksumCRC32C>", checksum(part.crc32c)));
        }
        document.push_str("</Part>");
    }
    document.push_str("</CompleteMultipartUpload>");
    document
}

/// The document that makes an object of blocks.
pub fn block_list_document(upload: u64, count: u64) -> String {
    let mut document = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
    for number in 1..=count {
        document.push_str(&format!("<Latest>{}</Latest>", block_id(upload, number)));
    }
    document.push_str("</BlockList>");
    document
}

/// A CRC-32C as S3 and Google write it: four bytes, the highest first, in Base64.
pub fn checksum(crc32c: u32) -> String {
    base64::encode(&crc32c.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_paths() {
        assert_eq!(with_query("/b/k", &[("uploads", "")]), "/b/k?uploads");
        assert_eq!(
            with_query("/b/k", &[("partNumber", "7"), ("uploadId", "a+/=")]),
            "/b/k?partNumber=7&uploadId=a%2B%2F%3D"
        );
        let ids = [block_id(0, 1), block_id(u64::MAX, 50_000)];
        assert_eq!((ids[0].len(), ids[0].len() % 4), (ids[1].len(), 0));
        assert!(ids[0].len() <= 88, "{ids:?}");
    }

    #[test]
    fn documents_say_what_is_there() {
        let part = PartTaken { etag: "\"a\"".into(), crc32c: 0xE306_9283 };
        let named = "<Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag>";
        let with = complete_document(std::slice::from_ref(&part), true);
        assert!(with.contains(&format!("{named}<ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part>")), "{with}");
        assert!(complete_document(&[part], false).contains(&format!("{named}</Part>")));
        let list = block_list_document(3, 2);
        assert!(list.contains(&format!("<Latest>{}</Latest><Latest>{}</Latest>", block_id(3, 1), block_id(3, 2))));
    }

    #[test]
    fn answers_are_read_and_others_refused() {
        let begun = "<?xml version=\"1.0\"?><InitiateMultipartUploadResult xmlns=\"x\"><Bucket>b</Bucket><Key>k</Key>\
                     <UploadId>id 1</UploadId></InitiateMultipartUploadResult>";
        assert_eq!(parse_begun(begun.as_bytes()).unwrap(), "id 1");
        // S3 keeps the connection alive with blanks in front.
        let done = "<?xml version=\"1.0\"?>\n  \n<CompleteMultipartUploadResult><Key>k</Key><ETag>&quot;a-2&quot;</ETag>\
                    </CompleteMultipartUploadResult>";
        assert_eq!(parse_completed(done.as_bytes()).unwrap(), "\"a-2\"");
        let error = "<Error><Code>InternalError</Code><Message>m</Message></Error>";
        for bad in ["", "x", error, "<UploadId>x</UploadId>", "<InitiateMultipartUploadResult/>"] {
            assert!(parse_begun(bad.as_bytes()).is_err(), "{bad}");
            assert!(parse_completed(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
