//! What a server means that does not take an upload, and what to do about it.

use super::terms::PutOver;
use crate::control::refusal;
use fuelrail_base::{Duration, Error, Kind};
use fuelrail_wire::parse_error;
use hyper::StatusCode;
use hyper::header::HeaderMap;

/// An attempt that failed.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) error: Error,
    /// The server's answer, if there was one.
    pub(super) status: Option<StatusCode>,
    /// Its word for it.
    pub(super) code: Option<String>,
    /// How long it wants to be left alone.
    pub(super) wait: Option<Duration>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, status: None, code: None, wait: None }
    }
}

impl Refused {
    /// An answer that is a refusal.
    pub(super) fn new(status: StatusCode, headers: &HeaderMap, body: &[u8], over: &PutOver) -> Refused {
        let code = parse_error(body).map(|(code, _)| code);
        let code = code.or_else(|| headers.get("x-ms-error-code")?.to_str().ok().map(str::to_owned));
        let seconds = headers.get("retry-after").and_then(|after| after.to_str().ok()?.trim().parse().ok());
        let error = explained(status, code.as_deref().unwrap_or_default(), refusal(status, body), over);
        Refused { error, status: Some(status), code, wait: seconds.map(Duration::from_secs) }
    }

    /// A refusal behind a status of 200, as S3 sends where it began to answer before it knew.
    pub(super) fn hidden(code: &str, body: &[u8], over: &PutOver) -> Refused {
        let status = match code {
            "SlowDown" | "ServiceUnavailable" => StatusCode::SERVICE_UNAVAILABLE,
            "NoSuchUpload" => StatusCode::NOT_FOUND,
            "PreconditionFailed" => StatusCode::PRECONDITION_FAILED,
            "AccessDenied" => StatusCode::FORBIDDEN,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refused::new(status, &HeaderMap::new(), body, over)
    }

    /// Whether the server does not know the upload: it is over, one way or the other.
    pub(super) fn is_over(&self) -> bool {
        self.code.as_deref() == Some("NoSuchUpload")
    }

    /// Whether what is there is not what the request wanted to find.
    pub(super) fn is_condition(&self) -> bool {
        matches!(self.error.kind(), Kind::Exists | Kind::Changed)
    }

    /// Whether the server knows no such request.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self.status, Some(StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED))
    }

    /// Whether what was asked for may have been done all the same.
    pub(super) fn is_unsure(&self) -> bool {
        self.status.is_none_or(|status| status.is_server_error())
    }
}

/// What a refused upload has to say beyond what every refused request has.
fn explained(status: StatusCode, code: &str, plain: Error, over: &PutOver) -> Error {
    if plain.kind() == Kind::Expired || matches!(code, "SignatureDoesNotMatch" | "InvalidAccessKeyId") {
        return plain;
    }
    let by_code = match code {
        "ConditionalRequestConflict" => Some((Kind::Server, "another writer was there at the same moment")),
        "BadDigest" | "InvalidDigest" | "Md5Mismatch" | "XAmzContentChecksumMismatch" | "XAmzContentSHA256Mismatch" => {
            Some((
                Kind::Mismatch,
                "what arrived is not what was sent: the source changes while it is read, or something on the way changes it",
            ))
        }
        "IncompleteBody" | "RequestTimeout" => Some((Kind::Truncated, "the connection is too slow or breaks")),
        "NoSuchUpload" => Some((
            Kind::NotFound,
            "the upload is gone: a rule of the bucket or somebody else removed its parts; put it again",
        )),
        "InvalidPart" | "InvalidPartOrder" | "InvalidBlockList" | "InvalidBlobOrBlock" | "InvalidBlockId" => Some((
            Kind::Denied,
            "its parts are not there as they were sent: another upload of the same object came between; put it again",
        )),
        "EntityTooLarge" | "EntityTooSmall" | "RequestBodyTooLarge" | "MaxBlobSizeConditionNotMet" => Some((
            Kind::Usage,
            "the server takes no objects or parts of this size: split the object, or choose other part_bytes",
        )),
        _ => None,
    };
    let (kind, cure) = match (by_code, status.as_u16(), over) {
        (Some(known), ..) => known,
        (_, 409 | 412, PutOver::Nothing) => {
            (Kind::Exists, "an object is there already, and only a new one was to be put: choose another key")
        }
        (_, 404 | 409 | 412, PutOver::Etag(_)) => (
            Kind::Changed,
            "what is there is not the object that was to be replaced: look at it again before it is replaced",
        ),
        (_, 401 | 403, _) => (
            Kind::Denied,
            "the bucket may not be written to by who asks: open it for writing (fuelrail serve FOLDER --writable, or \
             s3:PutObject), name another one, or use other credentials (anonymous = false sends them to a plain URI)",
        ),
        (_, 404, _) => (Kind::NotFound, "check the bucket's name: it must be there before an object is put into it"),
        (_, 405 | 501, _) => (Kind::NotFound, "the server takes no uploads: name one that speaks S3"),
        (_, 409 | 412, _) => (
            Kind::Denied,
            "an object is there that the bucket does not let be replaced: choose another key, or lift its lock",
        ),
        (_, 411 | 413, _) => (Kind::Usage, "the server takes no object of this size: split it into smaller ones"),
        (_, 507, _) => (Kind::Denied, "the server's disk is full: make room there"),
        _ => return plain,
    };
    Error::new(kind, plain.cause()).cure(cure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str, over: &PutOver) -> Refused {
        let body = format!("<Error><Code>{code}</Code><Message>Because.</Message></Error>");
        let headers = HeaderMap::from_iter([("retry-after".parse().unwrap(), "7".parse().unwrap())]);
        Refused::new(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes(), over)
    }

    #[test]
    fn refusals_say_what_to_do() {
        let (any, new, tag) = (PutOver::Anything, PutOver::Nothing, PutOver::Etag("\"t\"".into()));
        for (status, code, over, kind, said) in [
            (403, "Why", &any, Kind::Denied, "--writable"),
            (404, "Why", &any, Kind::NotFound, "the bucket's name"),
            (412, "Why", &any, Kind::Denied, "another key"),
            (412, "PreconditionFailed", &new, Kind::Exists, "only a new one"),
            (409, "BlobAlreadyExists", &new, Kind::Exists, "only a new one"),
            (409, "ConditionalRequestConflict", &new, Kind::Server, "another writer"),
            (412, "PreconditionFailed", &tag, Kind::Changed, "look at it again"),
            (404, "NoSuchKey", &tag, Kind::Changed, "look at it again"),
            (413, "Why", &any, Kind::Usage, "smaller"),
            (503, "Why", &any, Kind::Throttled, "slow down"),
            (400, "BadDigest", &any, Kind::Mismatch, "what arrived"),
            (404, "NoSuchUpload", &tag, Kind::NotFound, "put it again"),
            (507, "Why", &any, Kind::Denied, "make room"),
        ] {
            let refused = refused(status, code, over);
            let text = refused.error.to_string();
            assert!(refused.error.kind() == kind && text.contains(said) && text.contains(code), "{text}");
            assert_eq!(refused.wait, Some(Duration::from_secs(7)));
        }
    }

    #[test]
    fn a_refusal_behind_200_is_one() {
        let body = b"<Error><Code>SlowDown</Code><Message>m</Message></Error>";
        assert_eq!(Refused::hidden("SlowDown", body, &PutOver::Anything).error.kind(), Kind::Throttled);
        let body = b"<Error><Code>InternalError</Code><Message>m</Message></Error>";
        let hidden = Refused::hidden("InternalError", body, &PutOver::Anything);
        assert!(hidden.error.kind() == Kind::Server && hidden.is_unsure(), "{}", hidden.error);
    }
}
