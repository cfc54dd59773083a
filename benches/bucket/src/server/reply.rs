//! Responses in S3's words: error documents, XML, answers without a body.

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::http::response::Builder;

use super::notation::xml_text;
use super::payload::Payload;
use super::refusal::Refusal;

pub(crate) type Response = hyper::Response<Payload>;

impl Refusal {
    /// The response; a `HEAD` gets the status and headers only.
    pub(crate) fn respond(&self, resource: &str, is_head: bool) -> Response {
        let document = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{}</Code><Message>{}</Message>\
             <Resource>{}</Resource></Error>",
            self.code,
            xml_text(&self.message),
            xml_text(resource)
        );
        let mut builder = hyper::Response::builder().status(self.status);
        for (name, value) in &self.headers {
            builder = builder.header(name, value);
        }
        xml(builder, document, is_head)
    }
}

/// A response with an XML document.
pub(crate) fn xml(builder: Builder, document: String, is_head: bool) -> Response {
    let payload = if is_head { Payload::empty() } else { Payload::document(Bytes::from(document)) };
    let mut builder = builder.header(header::CONTENT_TYPE, "application/xml");
    if let Some(length) = payload.exact_bytes().filter(|_| !is_head) {
        builder = builder.header(header::CONTENT_LENGTH, length);
    }
    builder.body(payload).expect("status and headers are made from valid parts")
}

/// An answer that is only a status and an entity tag.
pub(crate) fn bare(status: StatusCode, etag: &str) -> Response {
    let mut response = hyper::Response::new(Payload::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(header::ETAG, ascii(etag));
    response
}

/// A header value of text known to be ASCII.
pub(crate) fn ascii(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("entity tags, dates and numbers are printable ASCII")
}
