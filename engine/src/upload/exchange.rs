//! Options of an upload, the requests of one upload in its cloud's dialect, the errors of refused ones, and the check whether an object
//! arrived.

use crate::client::{AT_A_PROMPT, Answer, Ask, Client, Refused};
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_wire::multipart::checksum;
use fuelrail_wire::{Dialect, base64, sign};
use hyper::Method;
use std::io::{Read, Seek};

/// Largest object: what S3 makes of parts. Feature `clouds`.
pub const UPLOAD_BYTES_MAX: u64 = 5 << 40;
/// Longer objects go in parts, unless [`PutOptions`] say otherwise. Feature `clouds`.
pub const PARTS_ABOVE_BYTES: u64 = 64 << 20;
/// Length of a part, unless [`PutOptions`] say otherwise or there would be more than 10 000. Feature `clouds`.
pub const PART_BYTES: u64 = 16 << 20;

/// Largest object that one request may bring: what S3 allows.
pub(super) const PUT_BYTES_MAX: u64 = 5 << 30;

/// How often is looked whether the caller stops an upload.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where an object's bytes are read from, from the start as often as it takes: a file, or a cursor over memory. Feature `clouds`.
pub trait Upload: Read + Seek + Send {}

impl<T: Read + Seek + Send> Upload for T {}

/// The object as the server stored it. Feature `clouds`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stored {
    /// Length of the object.
    pub bytes: u64,
    /// Its entity tag, if the server sends one.
    pub etag: Option<String>,
}

/// What an upload may replace. Feature `clouds`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PutOver {
    /// Any object is replaced.
    #[default]
    Anything,
    /// Nothing: of several uploads to one key, one succeeds.
    Nothing,
    /// The object with this entity tag, as a listing or [`Stored`] has it. Google's XML interface does not support this.
    Etag(String),
}

/// How an object is put. Feature `clouds`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutOptions {
    /// What it may replace. The server checks this at the moment the object appears.
    pub over: PutOver,
    /// Longer objects go in parts; at most 5 GiB.
    pub parts_above_bytes: u64,
    /// Length of each part but the last: 5 MiB to 5 GiB on S3 and Google. Longer where there would be more than 10 000.
    pub part_bytes: u64,
}

impl Default for PutOptions {
    fn default() -> PutOptions {
        PutOptions { over: PutOver::Anything, parts_above_bytes: PARTS_ABOVE_BYTES, part_bytes: PART_BYTES }
    }
}

impl PutOptions {
    pub(super) fn validate(&self, dialect: Dialect) -> Result<()> {
        let usage = |cause: &str, cure: &str| Err(Error::new(Kind::Usage, cause).with_hint(cure));
        if self.part_bytes == 0 || self.part_bytes > PUT_BYTES_MAX || self.parts_above_bytes > PUT_BYTES_MAX {
            return usage("part_bytes or parts_above_bytes is 0 or beyond 5 GiB", "use 16 MiB and 64 MiB");
        }
        if let PutOver::Etag(etag) = &self.over {
            if etag.is_empty() || !etag.chars().all(|c| c.is_ascii_graphic()) {
                return usage("over names an invalid entity tag", "take it from a listing");
            }
            if dialect == Dialect::Gcs {
                return usage(
                    "Google's XML interface cannot replace an object by entity tag",
                    "use PutOver::Anything or PutOver::Nothing",
                );
            }
        }
        Ok(())
    }
}

/// An object that is being put.
pub(super) struct Exchange<'a> {
    pub(super) client: &'a Client<'a>,
    pub(super) path: String,
    pub(super) over: &'a PutOver,
    /// Whether the caller stops it.
    pub(super) stopped: &'a (dyn Fn() -> bool + Sync),
}

/// Properties by which a stored object is recognised as the one that was sent.
pub(super) struct Likeness {
    pub(super) bytes: u64,
    /// Entity tag and checksums, of which the server may report any.
    pub(super) etag: Option<String>,
    pub(super) checksums: Vec<String>,
}

impl Exchange<'_> {
    pub(super) fn dialect(&self) -> Dialect {
        self.client.route.endpoint.dialect
    }

    /// Waits for `work`; `Cancelled` once the caller stops the upload.
    pub(super) async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        while !(self.stopped)() {
            if let Ok(done) = tokio::time::timeout(LOOK_EVERY, &mut work).await {
                return done;
            }
        }
        Err(interrupted())
    }

    /// Adds the checksum header with which the server verifies these bytes.
    pub(super) fn promise(&self, ask: Ask, crc32c: u32, md5: Option<[u8; 16]>) -> Ask {
        match (self.dialect(), md5) {
            (Dialect::S3, _) => ask.header("x-amz-checksum-crc32c", checksum(crc32c)),
            (Dialect::Gcs, _) => ask.header("x-goog-hash", format!("crc32c={}", checksum(crc32c))),
            // Azure verifies no CRC-32C.
            (Dialect::Azure, Some(md5)) => ask.header("content-md5", base64::encode(&md5)),
            (Dialect::Azure, None) => ask,
        }
    }

    /// Adds the header that makes the request conditional on what it replaces.
    pub(super) fn conditional(&self, ask: Ask) -> Ask {
        match (self.over, self.dialect()) {
            (PutOver::Anything, _) => ask,
            (PutOver::Nothing, Dialect::Gcs) => ask.header("x-goog-if-generation-match", "0"),
            (PutOver::Nothing, _) => ask.header("if-none-match", "*"),
            (PutOver::Etag(etag), _) => ask.header("if-match", etag),
        }
    }

    /// Sends the request once.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Answer, Refused> {
        self.client.ask(ask).await.map_err(|refused| self.explained(refused))
    }

    /// Sends the request, with retries.
    pub(super) async fn persist(&self, ask: &Ask) -> Result<Answer, Refused> {
        self.client.persist(AT_A_PROMPT, async || self.ask(ask).await).await
    }

    /// A refusal, explained for this upload.
    pub(super) fn explained(&self, refused: Refused) -> Refused {
        explained(refused, self.over)
    }

    /// Whether the key holds an object; false when the server does not say.
    pub(super) async fn is_taken(&self) -> bool {
        self.ask(&Ask::new(Method::HEAD, &*self.path)).await.is_ok()
    }

    /// The entity tag of the stored object, if it is the one that was sent.
    pub(super) async fn find(&self, like: &Likeness) -> Option<Option<String>> {
        let head = Ask::new(Method::HEAD, &*self.path);
        let with_checksums = self.dialect() == Dialect::S3;
        let head = if with_checksums { head.header("x-amz-checksum-mode", "ENABLED") } else { head };
        let there = self.persist(&head).await.ok()?;
        let same_length = there.header("content-length").and_then(|bytes| bytes.parse().ok()) == Some(like.bytes);
        let plain = |etag: &str| etag.trim_matches('"').to_ascii_lowercase();
        let etag = there.etag();
        let same_etag = matches!((&etag, &like.etag), (Some(is), Some(wanted)) if plain(is) == plain(wanted));
        let google = there.header("x-goog-hash").unwrap_or_default();
        let told = google.split(',').filter_map(|hash| hash.trim().strip_prefix("crc32c="));
        let others = [there.header("x-amz-checksum-crc32c"), there.header("content-md5")];
        let told = told.chain(others.into_iter().flatten());
        let same_checksum = told.into_iter().any(|told| like.checksums.iter().any(|wanted| wanted == told));
        (same_length && (same_etag || same_checksum)).then_some(etag)
    }
}

/// The error of an upload that its caller has stopped.
pub(super) fn interrupted() -> Error {
    Error::new(Kind::Cancelled, "the upload was interrupted")
}

/// Kind and hint that are specific to uploads, for a refused request.
fn explained(mut refused: Refused, over: &PutOver) -> Refused {
    let Some(status) = refused.status.map(|status| status.as_u16()) else { return refused };
    let is_expired = sign::refusal(status, &refused.code).is_some_and(|(kind, _)| kind == Kind::Expired);
    if is_expired || matches!(refused.code.as_str(), "SignatureDoesNotMatch" | "InvalidAccessKeyId") {
        return refused;
    }
    let by_code = match refused.code.as_str() {
        "ConditionalRequestConflict" => Some((Kind::Server, "another writer wrote the object at the same moment")),
        "BadDigest" | "InvalidDigest" | "Md5Mismatch" | "XAmzContentChecksumMismatch" | "XAmzContentSHA256Mismatch" => {
            Some((
                Kind::Mismatch,
                "the server received other bytes than were sent: the source changes while it is read, or something on the network changes them",
            ))
        }
        "IncompleteBody" | "RequestTimeout" => Some((Kind::Truncated, "the connection is too slow or breaks")),
        "NoSuchUpload" => Some((
            Kind::NotFound,
            "the multipart upload no longer exists: a lifecycle rule or another client removed its parts; upload again",
        )),
        "InvalidPart" | "InvalidPartOrder" | "InvalidBlockList" | "InvalidBlobOrBlock" | "InvalidBlockId" => Some((
            Kind::Denied,
            "the stored parts differ from those sent: another upload of the same object interfered; upload again",
        )),
        "EntityTooLarge" | "EntityTooSmall" | "RequestBodyTooLarge" | "MaxBlobSizeConditionNotMet" => Some((
            Kind::Usage,
            "the server does not accept objects or parts of this size: split the object, or change part_bytes",
        )),
        _ => None,
    };
    let (kind, cure) = match (by_code, status, over) {
        (Some(known), ..) => known,
        (_, 409 | 412, PutOver::Nothing) => {
            (Kind::Exists, "the object exists already, and the upload was to create a new one: choose another key")
        }
        (_, 404 | 409 | 412, PutOver::Etag(_)) => {
            (Kind::Changed, "the object is not the one that was to be replaced: check it before you upload again")
        }
        (_, 401 | 403, _) => (
            Kind::Denied,
            "these credentials lack write permission: allow writing (s3:PutObject, or fuelrail serve FOLDER --writable), choose another \
             bucket, or use other credentials (anonymous = false sends them to http:// and https:// URIs)",
        ),
        (_, 404, _) => (Kind::NotFound, "check the bucket's name: the bucket must exist before an upload"),
        (_, 405 | 501, _) => (Kind::NotFound, "the server does not accept uploads: use one that speaks S3"),
        (_, 409 | 412, _) => {
            (Kind::Denied, "the bucket does not allow this object to be replaced: choose another key, or lift its lock")
        }
        (_, 411 | 413, _) => {
            (Kind::Usage, "the server does not accept objects of this size: split it into smaller ones")
        }
        (_, 507, _) => (Kind::Denied, "the server's disk is full: free space there"),
        _ => return refused,
    };
    refused.error = Error::new(kind, refused.error.cause()).with_hint(cure);
    // A retry would fail on the same condition.
    refused.is_final = matches!(kind, Kind::Exists | Kind::Changed);
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::StatusCode;
    use hyper::header::HeaderMap;

    fn refused(status: u16, code: &str, over: &PutOver) -> Refused {
        let body = format!("<Error><Code>{code}</Code><Message>Because.</Message></Error>");
        let headers = HeaderMap::from_iter([("retry-after".parse().unwrap(), "7".parse().unwrap())]);
        let answer = Answer { status: StatusCode::from_u16(status).unwrap(), headers, body: body.into() };
        explained(Refused::of(&answer), over)
    }

    #[test]
    fn refusals_say_what_to_do() {
        let (any, new, tag) = (PutOver::Anything, PutOver::Nothing, PutOver::Etag("\"t\"".into()));
        for (status, code, over, kind, said) in [
            (403, "Why", &any, Kind::Denied, "--writable"),
            (404, "Why", &any, Kind::NotFound, "the bucket's name"),
            (412, "Why", &any, Kind::Denied, "another key"),
            (412, "PreconditionFailed", &new, Kind::Exists, "exists already"),
            (409, "BlobAlreadyExists", &new, Kind::Exists, "exists already"),
            (409, "ConditionalRequestConflict", &new, Kind::Server, "another writer"),
            (412, "PreconditionFailed", &tag, Kind::Changed, "check it before"),
            (404, "NoSuchKey", &tag, Kind::Changed, "check it before"),
            (413, "Why", &any, Kind::Usage, "smaller"),
            (503, "Why", &any, Kind::Throttled, "slow down"),
            (400, "BadDigest", &any, Kind::Mismatch, "other bytes than were sent"),
            (404, "NoSuchUpload", &tag, Kind::NotFound, "upload again"),
            (507, "Why", &any, Kind::Denied, "free space"),
        ] {
            let refused = refused(status, code, over);
            let text = refused.error.to_string();
            assert!(refused.error.kind() == kind && text.contains(said) && text.contains(code), "{text}");
            assert_eq!(refused.wait, Some(Duration::from_secs(7)));
        }
    }
}
