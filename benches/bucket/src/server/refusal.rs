//! Error responses with S3's codes, and how text and dates are encoded and decoded.

use std::fmt::Write;
use std::io::ErrorKind;

use percent_encoding::percent_decode_str;
use quick_xml::escape::escape;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// A rejected request, with S3's error code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) header: Option<(&'static str, String)>,
}

impl Refusal {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), header: None }
    }

    pub(super) fn status(&self) -> u16 {
        match self.code {
            "AccessDenied" | "InvalidAccessKeyId" | "SignatureDoesNotMatch" => 403,
            "NoSuchBucket" | "NoSuchKey" | "NoSuchUpload" => 404,
            "MethodNotAllowed" => 405,
            "BlobAlreadyExists" | "PathConflict" => 409,
            "PreconditionFailed" => 412,
            "InvalidRange" => 416,
            "InternalError" => 500,
            "NotImplemented" => 501,
            "SlowDown" => 503,
            "StorageFull" => 507,
            _ => 400,
        }
    }

    pub(crate) fn no_such_key(key: &str) -> Refusal {
        Refusal::new("NoSuchKey", format!("There is no object `{key}`."))
    }

    pub(crate) fn slow_down(retry_after_s: Option<u32>) -> Refusal {
        let header = retry_after_s.map(|s| ("retry-after", s.to_string()));
        Refusal { header, ..Refusal::new("SlowDown", "Please reduce your request rate.") }
    }

    pub(crate) fn internal() -> Refusal {
        Refusal::new("InternalError", "We encountered an internal error. Please try again.")
    }

    pub(crate) fn too_large(bytes: u64, bytes_max: u64) -> Refusal {
        Refusal::new("EntityTooLarge", format!("{bytes} bytes are more than the {bytes_max} this bucket keeps."))
    }

    pub(crate) fn no_such_upload() -> Refusal {
        Refusal::new("NoSuchUpload", "The specified upload does not exist. It may have been aborted or completed.")
    }

    pub(crate) fn invalid_part(name: &str) -> Refusal {
        Refusal::new("InvalidPart", format!("The part `{name}` could not be found, or is not the one that was sent."))
    }

    pub(crate) fn disk_full() -> Refusal {
        Refusal::new("StorageFull", "The disk behind this bucket is full.")
    }

    pub(crate) fn from_io(key: &str, error: &std::io::Error) -> Refusal {
        let code = match error.kind() {
            ErrorKind::NotFound => return Refusal::no_such_key(key),
            ErrorKind::StorageFull => return Refusal::disk_full(),
            ErrorKind::PermissionDenied => "AccessDenied",
            ErrorKind::InvalidFilename | ErrorKind::NotADirectory | ErrorKind::IsADirectory => "InvalidArgument",
            _ => "InternalError",
        };
        Refusal::new(code, format!("`{key}`: {error}."))
    }
}

/// Escapes text for XML: markup characters as entities, control characters as references, as S3 does.
pub(super) fn xml_text(text: &str) -> String {
    let escaped = escape(text);
    let mut out = String::with_capacity(escaped.len());
    for c in escaped.chars() {
        if c.is_control() {
            // Writing to a String cannot fail.
            let _ = write!(out, "&#x{:X};", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Writes an S3 XML document with this root element.
pub(super) fn document(name: &str, inner: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{name} xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{inner}</{name}>"
    )
}

/// Percent-decodes text of a URI.
pub(super) fn decode(text: &str) -> Result<String, Refusal> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| Refusal::new("InvalidURI", "The URI is not UTF-8 when decoded."))
}

/// Returns the names and values of a query, decoded.
pub(super) fn pairs(query: &str) -> Result<Vec<(String, String)>, Refusal> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    // In a query, unlike in a path, `+` is a space.
    pairs.map(|(name, value)| Ok((decode(name)?, decode(&value.replace('+', " "))?))).collect()
}

fn date(s: u64, format: &[BorrowedFormatItem<'_>]) -> String {
    let at = i64::try_from(s).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    at.and_then(|at| at.format(format).ok()).unwrap_or_default()
}

/// Formats seconds since 1970 as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn http_date(s: u64) -> String {
    const FORMAT: &[BorrowedFormatItem<'_>] =
        format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");
    date(s, FORMAT)
}

/// Formats seconds since 1970 as `1994-11-06T08:49:37.000Z`.
pub(super) fn iso_date(s: u64) -> String {
    date(s, format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].000Z"))
}
