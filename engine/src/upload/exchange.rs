//! One upload's talk with its server: requests in the words of its cloud, patience, and a look at what is there.

use super::body::document;
use super::refusal::Refused;
use super::terms::PutOver;
use crate::control::{ANSWER_TIMEOUT, HttpClient, Load, Refusal, unreachable, within};
use fuelrail_base::limits::DOCUMENT_BYTES_MAX;
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_io::monotonic_now;
use fuelrail_plan::retry::{Retry, RetryConfig, Tries, Verdict};
use fuelrail_wire::multipart::checksum;
use fuelrail_wire::{Dialect, Endpoint, base64};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::http::request::Builder;
use hyper::{Method, Request, Response};
use std::cell::RefCell;

/// Attempts while nothing is lost yet: a server that is down should be said within seconds.
pub(super) const AT_A_PROMPT: u32 = 5;
/// Attempts while parts of an object are there already: the loader's patience, for seconds without a network.
pub(super) const UNDER_WAY: u32 = 10;

/// The object to be put.
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    pub(super) path: String,
    pub(super) over: PutOver,
}

/// The talk. Its budget of retries is one for all parts.
pub(super) struct Exchange<'a> {
    pub(super) target: &'a Target,
    client: &'a HttpClient,
    retry: RefCell<Retry>,
}

/// An answer that was taken.
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    /// The entity tag it names.
    pub(super) fn etag(&self) -> Option<String> {
        self.text("etag")
    }

    fn text(&self, name: &str) -> Option<String> {
        self.headers.get(name)?.to_str().ok().map(str::to_owned)
    }
}

/// By what an object that is there can be known to be the one that was sent.
pub(super) struct Likeness {
    pub(super) bytes: u64,
    /// Entity tag and checksums it may have, whichever the server tells.
    pub(super) etag: Option<String>,
    pub(super) checksums: Vec<String>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(client: &'a HttpClient, target: &'a Target) -> Result<Exchange<'a>> {
        let config = RetryConfig { attempts_max: UNDER_WAY, ..RetryConfig::default() };
        let retry = Retry::new(config, monotonic_now().0)?;
        Ok(Exchange { target, client, retry: RefCell::new(retry) })
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.target.endpoint.dialect
    }

    /// A request for this path of the server.
    pub(super) fn request(&self, method: Method, path: &str) -> Builder {
        let endpoint = &self.target.endpoint;
        let uri = format!("{}://{}{path}", endpoint.scheme.word(), endpoint.authority());
        Request::builder().method(method).uri(uri)
    }

    /// The line that lets the server judge these bytes.
    pub(super) fn promise(&self, request: Builder, crc32c: u32, md5: Option<[u8; 16]>) -> Builder {
        match (self.dialect(), md5) {
            (Dialect::S3, _) => request.header("x-amz-checksum-crc32c", checksum(crc32c)),
            (Dialect::Gcs, _) => request.header("x-goog-hash", format!("crc32c={}", checksum(crc32c))),
            // It judges no CRC-32C.
            (Dialect::Azure, Some(md5)) => request.header("content-md5", base64::encode(&md5)),
            (Dialect::Azure, None) => request,
        }
    }

    /// The line that lets the server judge what is replaced.
    pub(super) fn conditional(&self, request: Builder) -> Builder {
        match (&self.target.over, self.dialect()) {
            (PutOver::Anything, _) => request,
            (PutOver::Nothing, Dialect::Gcs) => request.header("x-goog-if-generation-match", "0"),
            (PutOver::Nothing, _) => request.header("if-none-match", "*"),
            (PutOver::Etag(etag), _) => request.header("if-match", etag),
        }
    }

    /// Sends what was built, and gives back the answer that will come.
    pub(super) async fn send(&self, request: Builder, body: Load) -> Result<Response<Incoming>> {
        let request =
            request.body(body).map_err(|e| Error::new(Kind::Usage, format!("cannot be asked for over HTTP: {e}")))?;
        let answer = self.client.request(request).await;
        answer.map_err(|e| unreachable(&self.target.endpoint.authority(), &*e))
    }

    /// What an answer says, read to its end.
    pub(super) async fn judge(&self, response: Response<Incoming>, limit: Duration) -> Result<Answer, Refused> {
        let (status, headers) = (response.status(), response.headers().clone());
        let body = within(limit, Limited::new(response.into_body(), DOCUMENT_BYTES_MAX).collect()).await?;
        let body = body.map_err(|e| Error::new(Kind::Truncated, format!("reading the answer: {e}")))?.to_bytes();
        if status.is_success() {
            return Ok(Answer { headers, body });
        }
        let mut refused = Refused::new(status, &headers, &body, &self.target.over);
        let place = (&self.target.endpoint, self.target.path.as_str());
        refused.error = self.client.refused(place, &Refusal { status, headers, body }, refused.error);
        Err(refused)
    }

    /// Asks with a document, or nothing, once.
    pub(super) async fn ask(&self, request: Builder, text: String, limit: Duration) -> Result<Answer, Refused> {
        let request = request.header("content-length", text.len());
        let response = within(limit, self.send(request, document(text))).await??;
        self.judge(response, limit).await
    }

    /// How long to wait before another attempt; `None` when it is over.
    pub(super) fn pause(&self, tries: &mut Tries, refused: &Refused, attempts_max: u32) -> Option<Duration> {
        let verdict = self.retry.borrow_mut().verdict(tries, refused.error.kind(), refused.wait);
        match verdict {
            // The same condition would be judged in the same way.
            Verdict::After(_) if refused.is_condition() || tries.failed() >= attempts_max => None,
            Verdict::After(pause) => Some(pause),
            Verdict::GiveUp => None,
        }
    }

    /// An attempt that succeeded.
    pub(super) fn went_well(&self) {
        self.retry.borrow_mut().success();
    }

    /// Asks until there is an answer or no hope.
    pub(super) async fn persist(
        &self,
        request: impl Fn() -> Builder,
        limit: Duration,
    ) -> core::result::Result<Answer, Refused> {
        let mut tries = Tries::default();
        loop {
            let refused = match self.ask(request(), String::new(), limit).await {
                Ok(answer) => return Ok(answer),
                Err(refused) => refused,
            };
            match self.pause(&mut tries, &refused, AT_A_PROMPT) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(Refused { error: refused.error.clone().attempts(tries.failed()), ..refused }),
            }
        }
    }

    /// Whether anything is there; not, where that is not told.
    pub(super) async fn is_taken(&self) -> bool {
        let head = self.request(Method::HEAD, &self.target.path);
        self.ask(head, String::new(), ANSWER_TIMEOUT).await.is_ok()
    }

    /// The entity tag of what is there, when that is what was sent.
    pub(super) async fn find(&self, like: &Likeness) -> Option<Option<String>> {
        let head = || {
            let request = self.request(Method::HEAD, &self.target.path);
            if self.dialect() == Dialect::S3 { request.header("x-amz-checksum-mode", "ENABLED") } else { request }
        };
        let there = self.persist(head, ANSWER_TIMEOUT).await.ok()?;
        let same_length = there.text("content-length").and_then(|bytes| bytes.parse().ok()) == Some(like.bytes);
        let plain = |etag: &str| etag.trim_matches('"').to_ascii_lowercase();
        let etag = there.etag();
        let same_etag = matches!((&etag, &like.etag), (Some(is), Some(wanted)) if plain(is) == plain(wanted));
        let google = there.text("x-goog-hash").unwrap_or_default();
        let told = google.split(',').filter_map(|hash| hash.trim().strip_prefix("crc32c="));
        let others = [there.text("x-amz-checksum-crc32c"), there.text("content-md5")];
        let told = told.chain(others.iter().filter_map(Option::as_deref));
        let same_checksum = told.into_iter().any(|told| like.checksums.iter().any(|wanted| wanted == told));
        (same_length && (same_etag || same_checksum)).then_some(etag)
    }
}
