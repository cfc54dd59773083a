//! One upload's requests in the words of its cloud, what their refusals mean, and a look at what is there.

use super::PutOver;
use crate::client::{AT_A_PROMPT, Answer, Ask, Client, Refused};
use fuelrail_base::{Error, Kind};
use fuelrail_wire::multipart::checksum;
use fuelrail_wire::{Dialect, base64, sign};
use hyper::Method;

/// An object that is being put.
pub(super) struct Exchange<'a> {
    pub(super) client: &'a Client<'a>,
    pub(super) path: String,
    pub(super) over: &'a PutOver,
}

/// By what an object that is there can be known to be the one that was sent.
pub(super) struct Likeness {
    pub(super) bytes: u64,
    /// Entity tag and checksums it may have, whichever the server tells.
    pub(super) etag: Option<String>,
    pub(super) checksums: Vec<String>,
}

impl Exchange<'_> {
    pub(super) fn dialect(&self) -> Dialect {
        self.client.route.endpoint.dialect
    }

    /// The line that lets the server judge these bytes.
    pub(super) fn promise(&self, ask: Ask, crc32c: u32, md5: Option<[u8; 16]>) -> Ask {
        match (self.dialect(), md5) {
            (Dialect::S3, _) => ask.header("x-amz-checksum-crc32c", checksum(crc32c)),
            (Dialect::Gcs, _) => ask.header("x-goog-hash", format!("crc32c={}", checksum(crc32c))),
            // It judges no CRC-32C.
            (Dialect::Azure, Some(md5)) => ask.header("content-md5", base64::encode(&md5)),
            (Dialect::Azure, None) => ask,
        }
    }

    /// The line that lets the server judge what is replaced.
    pub(super) fn conditional(&self, ask: Ask) -> Ask {
        match (self.over, self.dialect()) {
            (PutOver::Anything, _) => ask,
            (PutOver::Nothing, Dialect::Gcs) => ask.header("x-goog-if-generation-match", "0"),
            (PutOver::Nothing, _) => ask.header("if-none-match", "*"),
            (PutOver::Etag(etag), _) => ask.header("if-match", etag),
        }
    }

    /// Asks once.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Answer, Refused> {
        self.client.ask(ask).await.map_err(|refused| self.explained(refused))
    }

    /// Asks until there is an answer or no hope.
    pub(super) async fn persist(&self, ask: &Ask) -> Result<Answer, Refused> {
        self.client.persist(AT_A_PROMPT, async || self.ask(ask).await).await
    }

    /// What a refusal means to this upload.
    pub(super) fn explained(&self, refused: Refused) -> Refused {
        explained(refused, self.over)
    }

    /// Whether anything is there; not, where that is not told.
    pub(super) async fn is_taken(&self) -> bool {
        self.ask(&Ask::new(Method::HEAD, &*self.path)).await.is_ok()
    }

    /// The entity tag of what is there, when that is what was sent.
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

/// What a refused upload has to say beyond what every refused request has.
fn explained(mut refused: Refused, over: &PutOver) -> Refused {
    let Some(status) = refused.status.map(|status| status.as_u16()) else { return refused };
    let is_expired = sign::refusal(status, &refused.code).is_some_and(|(kind, _)| kind == Kind::Expired);
    if is_expired || matches!(refused.code.as_str(), "SignatureDoesNotMatch" | "InvalidAccessKeyId") {
        return refused;
    }
    let by_code = match refused.code.as_str() {
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
    let (kind, cure) = match (by_code, status, over) {
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
        _ => return refused,
    };
    refused.error = Error::new(kind, refused.error.cause()).cure(cure);
    // The same condition would be judged in the same way.
    refused.is_final = matches!(kind, Kind::Exists | Kind::Changed);
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::Duration;
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
}
