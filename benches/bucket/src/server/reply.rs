//! Responses in S3's words: error documents, dates, checksums as text.

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::http::response::Builder;
use quick_xml::escape::escape;

use super::payload::Payload;

pub(crate) type Response = hyper::Response<Payload>;

/// A request refused, with S3's code for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    code: &'static str,
    message: String,
    /// Further headers.
    headers: Vec<(header::HeaderName, String)>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { status, code, message: message.into(), headers: Vec::new() }
    }

    pub(crate) fn no_such_key(key: &str) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, "NoSuchKey", format!("There is no object `{key}`."))
    }

    pub(crate) fn no_such_bucket(bucket: &str, served: &str) -> Refusal {
        let message = format!("There is no bucket `{bucket}`; this server has `{served}`.");
        Refusal::new(StatusCode::NOT_FOUND, "NoSuchBucket", message)
    }

    pub(crate) fn slow_down(retry_after_s: Option<u32>) -> Refusal {
        let mut refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "Please reduce your request rate.");
        refusal.headers.extend(retry_after_s.map(|s| (header::RETRY_AFTER, s.to_string())));
        refusal
    }

    pub(crate) fn internal() -> Refusal {
        let message = "We encountered an internal error. Please try again.";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub(crate) fn invalid_uri(message: &str) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "InvalidURI", message)
    }

    pub(crate) fn invalid_argument(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "InvalidArgument", message)
    }

    pub(crate) fn not_implemented(message: &str) -> Refusal {
        Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    pub(crate) fn read_only() -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, "AccessDenied", "This bucket is read-only; set `writable` to allow PUT.")
    }

    pub(crate) fn too_large(bytes: u64, bytes_max: u64) -> Refusal {
        let message = format!("{bytes} bytes are more than the {bytes_max} this bucket keeps.");
        Refusal::new(StatusCode::BAD_REQUEST, "EntityTooLarge", message)
    }

    pub(crate) fn precondition_failed() -> Refusal {
        let message = "The object is not the one the request is conditional on.";
        Refusal::new(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", message)
    }

    pub(crate) fn invalid_range(size: u64) -> Refusal {
        let message = format!("The range starts past the object's {size} bytes.");
        let mut refusal = Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", message);
        refusal.headers.push((header::CONTENT_RANGE, format!("bytes */{size}")));
        refusal
    }

    pub(crate) fn from_io(key: &str, error: &std::io::Error) -> Refusal {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::NotFound => Refusal::no_such_key(key),
            ErrorKind::PermissionDenied => {
                Refusal::new(StatusCode::FORBIDDEN, "AccessDenied", format!("`{key}`: {error}."))
            }
            ErrorKind::InvalidFilename | ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
                Refusal::new(StatusCode::BAD_REQUEST, "InvalidArgument", format!("`{key}` is no file name: {error}."))
            }
            _ => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", format!("`{key}`: {error}.")),
        }
    }

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

/// Text for XML: markup characters as entities, control characters as references, as S3 does.
pub(crate) fn xml_text(text: &str) -> String {
    let escaped = escape(text);
    if !escaped.contains(char::is_control) {
        return escaped.into_owned();
    }
    let mut out = String::with_capacity(escaped.len() + 16);
    for c in escaped.chars() {
        if c.is_control() {
            out.push_str(&format!("&#x{:X};", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// Standard base64 of the four big-endian bytes of a CRC-32C, as S3 writes it.
pub(crate) fn checksum_text(checksum: u32) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // 32 bits are five sextets and two bits, which the sixth takes shifted up; two pads complete the group.
    let bits = u64::from(checksum) << 4;
    let mut text: String = (0..6).map(|place| char::from(ALPHABET[(bits >> (30 - 6 * place) & 63) as usize])).collect();
    text.push_str("==");
    text
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Sun, 06 Nov 1994 08:49:37 GMT` for seconds since 1970.
pub(crate) fn http_date(s: u64) -> String {
    let (year, month, day) = civil(s / 86_400);
    let (weekday, name) = (DAYS[(s / 86_400 % 7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday}, {day:02} {name} {year:04} {:02}:{:02}:{:02} GMT", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// `1994-11-06T08:49:37.000Z` for seconds since 1970.
pub(crate) fn iso_date(s: u64) -> String {
    let (year, month, day) = civil(s / 86_400);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.000Z", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// Year, month and day of a day since 1970 in the Gregorian calendar (Howard Hinnant's `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(iso_date(784_111_777), "1994-11-06T08:49:37.000Z");
        assert_eq!(iso_date(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn checksums_are_base64_of_big_endian() {
        // CRC-32C of "123456789" is 0xE3069283.
        assert_eq!(checksum_text(crc32c::crc32c(b"123456789")), "4waSgw==");
        assert_eq!(checksum_text(0), "AAAAAA==");
    }
}
