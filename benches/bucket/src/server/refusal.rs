//! Requests refused, in S3's codes. Says what is wrong; how that is put on the wire is the reply's business.

use hyper::StatusCode;
use hyper::header;

/// A request refused, with S3's code for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: String,
    /// Further headers.
    pub(super) headers: Vec<(header::HeaderName, String)>,
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

    /// What Azure says of an object that is there and should not be.
    pub(crate) fn already_exists() -> Refusal {
        Refusal::new(StatusCode::CONFLICT, "BlobAlreadyExists", "The specified blob already exists.")
    }

    pub(crate) fn no_such_upload() -> Refusal {
        let message = "The specified upload does not exist. It may have been aborted or completed.";
        Refusal::new(StatusCode::NOT_FOUND, "NoSuchUpload", message)
    }

    pub(crate) fn invalid_part(name: &str) -> Refusal {
        let message = format!("The part `{name}` could not be found, or is not the one that was sent.");
        Refusal::new(StatusCode::BAD_REQUEST, "InvalidPart", message)
    }

    pub(crate) fn disk_full() -> Refusal {
        Refusal::new(StatusCode::INSUFFICIENT_STORAGE, "StorageFull", "The disk behind this bucket is full.")
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
            ErrorKind::StorageFull => Refusal::disk_full(),
            ErrorKind::InvalidFilename | ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
                Refusal::new(StatusCode::BAD_REQUEST, "InvalidArgument", format!("`{key}` is no file name: {error}."))
            }
            _ => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", format!("`{key}`: {error}.")),
        }
    }
}
