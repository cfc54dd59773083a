//! The control plane: requests and single objects, outside the hot path, with hyper on tokio.
//!
//! One thread, started per call and joined before it returns, so that callers inside another runtime are not disturbed.

use crate::access::Way;
use crate::aside::run_aside;
use crate::credentials::authorise;
use crate::dial::{Asker, causes};
use fuelrail_base::limits::DOCUMENT_BYTES_MAX;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::{Authority, Listed, Signatory, judged};
use fuelrail_io::monotonic_now;
use fuelrail_plan::retry::{Retry, RetryConfig, Tries, Verdict};
use fuelrail_wire::head::refuse_coding;
use fuelrail_wire::proxy::unknown_to_it;
use fuelrail_wire::redirect::{Answer, Moved, moved};
use fuelrail_wire::tls::{asks_for_tls, explain};
use fuelrail_wire::{Endpoint, Entry, date, manifest, parse_error, parse_error_region, sign};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a request carries.
pub(crate) type Load = UnsyncBoxBody<Bytes, std::io::Error>;

/// Sends requests, signed where there is somebody to sign them.
pub(crate) struct HttpClient {
    plain: Asker<Load>,
    signatory: Option<Mutex<Signatory>>,
    moved: Arc<Mutex<Option<Moved>>>,
}

impl HttpClient {
    /// # Errors
    /// What hyper says; `Usage` when the request cannot be signed.
    pub(crate) async fn request(
        &self,
        mut request: Request<Load>,
    ) -> core::result::Result<Response<hyper::body::Incoming>, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(signatory) = &self.signatory {
            authorise(&mut signatory.lock().unwrap_or_else(PoisonError::into_inner), &mut request)?;
        }
        Ok(self.plain.request(request).await?)
    }

    /// What a refusal means, given who asked; credentials that have ended are asked for anew.
    pub(crate) fn judged(&self, error: Error, headers: &HeaderMap) -> Error {
        let at = headers.get("date").and_then(|date| date::parse_http(date.as_bytes()));
        judged(self.plain.spared(error), self.authority().as_deref(), at)
    }

    /// What the refusal of `path` means, which says `error` by itself. Notes where the bucket is when that is elsewhere.
    pub(crate) fn refused(&self, (endpoint, path): (&Endpoint, &str), answer: &Refusal, error: Error) -> Error {
        let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
        let named = parse_error_region(&answer.body);
        let region = header("x-amz-bucket-region").or(named.as_deref());
        let told = Answer { status: answer.status.as_u16(), location: header("location"), region };
        let authority = self.authority();
        match moved(endpoint, path, told, authority.is_some()) {
            Err(not_followed) => not_followed,
            Ok(to) => {
                let signed_for = authority.as_deref().map(Authority::region);
                let elsewhere = to.filter(|to| to.endpoint != *endpoint || to.region.as_deref() != signed_for);
                if elsewhere.is_some() {
                    *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = elsewhere;
                }
                self.judged(error, &answer.headers)
            }
        }
    }

    fn authority(&self) -> Option<Arc<Authority>> {
        let signatory = self.signatory.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(signatory.authority()))
    }
}

/// An answer that is none of those wanted.
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Refusal {
    /// Reads the rest of it.
    ///
    /// # Errors
    /// As [`collect`].
    pub(crate) async fn of(response: Response<hyper::body::Incoming>) -> Result<Refusal> {
        let (status, headers) = (response.status(), response.headers().clone());
        Ok(Refusal { status, headers, body: collect(response).await? })
    }

    /// What it says.
    pub(crate) fn error(&self) -> Error {
        refusal(self.status, &self.body)
    }
}

/// Somebody waits at a prompt for what the control plane does: a server that is down should be said within seconds.
const ATTEMPTS_MAX: u32 = 5;

pub(crate) fn patience() -> Result<Retry> {
    Retry::new(RetryConfig { attempts_max: ATTEMPTS_MAX, ..RetryConfig::default() }, monotonic_now().0)
}

/// Longest wait for one answer of the control plane.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `work` on the control thread and waits for it.
pub(crate) fn on_control_thread<T: Send>(
    way: &Way,
    work: impl AsyncFnOnce(HttpClient) -> Result<T> + Send,
) -> Result<T> {
    run_aside("fuelrail-control", async || {
        let plain = Asker::new(way.tls.as_ref(), way.proxy.as_ref(), CONNECT_TIMEOUT)?;
        let signatory = way.authority.as_ref().map(|authority| Mutex::new(Signatory::new(Arc::clone(authority))));
        work(HttpClient { plain, signatory, moved: Arc::clone(&way.moved) }).await
    })
}

fn listed(entry: Entry) -> Listed {
    Listed { key: entry.key, size: entry.size, etag: entry.etag }
}

/// Reads a manifest, sorted by key.
///
/// # Errors
/// `File` when it cannot be read, `Usage` naming the line that is wrong.
pub fn read_manifest(path: &Path) -> Result<Vec<Listed>> {
    let text = std::fs::read(path).map_err(|e| Error::new(Kind::File, format!("manifest {}: {e}", path.display())))?;
    let entries = manifest::parse(&text)
        .map_err(|e| Error::new(e.kind(), format!("manifest {}: {}", path.display(), e.cause())))?;
    let mut found: Vec<Listed> = entries.into_iter().map(listed).collect();
    found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

/// Writes a manifest.
///
/// # Errors
/// `File` when it cannot be written.
pub fn write_manifest(path: &Path, objects: &[Listed]) -> Result<()> {
    let entries: Vec<Entry> =
        objects.iter().map(|o| Entry { key: o.key.clone(), size: o.size, etag: o.etag.clone() }).collect();
    let mut text = Vec::new();
    manifest::write(&mut text, &entries);
    std::fs::write(path, text).map_err(|e| Error::new(Kind::File, format!("manifest {}: {e}", path.display())))
}

pub(crate) fn no_object(uri: &str) -> Error {
    Error::new(Kind::Usage, format!("'{uri}' names no object"))
        .cure("write s3://BUCKET/KEY or http://HOST:PORT/BUCKET/KEY; `fuelrail ls` shows the keys")
}

/// Asks a cloud of many regions for the one that the bucket is in, where no listing has found that out. Anything else that is wrong is
/// for those to say who need what they ask for.
pub(crate) fn look_up(way: &Way, endpoint: &Endpoint) -> Result<()> {
    on_control_thread(way, async |client| {
        let path = endpoint.bucket_path();
        let asked = bare(Request::head(format!("{}://{}{path}", endpoint.scheme.word(), endpoint.authority())))?;
        let Ok(Ok(response)) = within(ANSWER_TIMEOUT, client.request(asked)).await else { return Ok(()) };
        let refusal = Refusal { status: response.status(), headers: response.headers().clone(), body: Bytes::new() };
        let error = client.refused((endpoint, &path), &refusal, refusal.error());
        let is_elsewhere = client.moved.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if is_elsewhere { Err(error) } else { Ok(()) }
    })
}

/// A request without a body.
fn bare(request: hyper::http::request::Builder) -> Result<Request<Load>> {
    request
        .body(Empty::new().map_err(|never| match never {}).boxed_unsync())
        .map_err(|e| Error::new(Kind::Usage, format!("cannot be asked for over HTTP: {e}")))
}

/// One document, with retries.
pub(crate) async fn ask(client: &HttpClient, endpoint: &Endpoint, path: &str) -> Result<Bytes> {
    let mut retry = patience()?;
    let mut tries = Tries::default();
    loop {
        let outcome = async {
            let response = send(client, endpoint, path, &[]).await?;
            if response.status() == StatusCode::OK {
                refuse_codings(response.headers())?;
                return collect(response).await;
            }
            let refusal = Refusal::of(response).await?;
            Err(client.refused((endpoint, path), &refusal, refusal.error()))
        }
        .await;
        let error = match outcome {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        match retry.verdict(&mut tries, error.kind(), None) {
            Verdict::After(pause) => tokio::time::sleep(pause).await,
            Verdict::GiveUp => return Err(error.attempts(tries.failed())),
        }
    }
}

/// What comes in another form than its own is not taken for it.
fn refuse_codings(headers: &HeaderMap) -> Result<()> {
    headers.get_all("content-encoding").iter().try_for_each(|value| refuse_coding(value.as_bytes()))
}

/// Asks for `path`, with these header lines.
pub(crate) async fn send(
    client: &HttpClient,
    endpoint: &Endpoint,
    path: &str,
    lines: &[(&str, String)],
) -> Result<Response<hyper::body::Incoming>> {
    let authority = endpoint.authority();
    let mut request = Request::get(format!("{}://{authority}{path}", endpoint.scheme.word()));
    for (name, value) in lines {
        request = request.header(*name, value);
    }
    let answer = within(ANSWER_TIMEOUT, client.request(bare(request)?)).await?;
    answer.map_err(|e| unreachable(&authority, &*e))
}

/// Why no answer came: what TLS refuses, else the innermost cause.
pub(crate) fn unreachable(authority: &str, error: &(dyn std::error::Error + 'static)) -> Error {
    let (mut inner, mut speaks_http) = (error, true);
    for cause in causes(error) {
        if let Some(refused) = cause.downcast_ref::<rustls::Error>() {
            return explain(refused);
        }
        if let Some(told) = cause.downcast_ref::<Error>() {
            return told.clone();
        }
        speaks_http &= !cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
        inner = cause;
    }
    if speaks_http {
        return Error::new(Kind::Network, format!("cannot reach {authority}: {inner}"))
            .cure("check that the server runs and the address is right");
    }
    Error::new(Kind::Protocol, format!("{authority} does not answer in HTTP: {inner}"))
        .cure("check the port; one that speaks TLS takes https:// in the URI")
}

pub(crate) async fn collect(response: Response<hyper::body::Incoming>) -> Result<Bytes> {
    let body = within(ANSWER_TIMEOUT, Limited::new(response.into_body(), DOCUMENT_BYTES_MAX).collect()).await?;
    let body = body.map_err(|e| Error::new(Kind::Truncated, format!("reading the answer: {e}")))?;
    Ok(body.to_bytes())
}

pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| Error::new(Kind::Stalled, format!("no answer for {} s", limit.as_secs())))
}

pub(crate) fn refusal(status: StatusCode, body: &[u8]) -> Error {
    let code = parse_error(body);
    let known = code.as_ref().and_then(|(code, _)| sign::refusal(status.as_u16(), code));
    let said = code.map_or(String::new(), |(code, text)| format!(" ({code}: {text})"));
    if let Some((kind, cure)) = known {
        return Error::new(kind, format!("the server answered {status}{said}")).cure(cure);
    }
    let (kind, cure) = match status.as_u16() {
        400 if asks_for_tls(body) => (Kind::Protocol, "the port speaks TLS: write https:// in the URI"),
        407 => return unknown_to_it(),
        401 | 403 => (
            Kind::Denied,
            "check who may read the bucket; a plain URI is asked without credentials unless anonymous = false",
        ),
        404 | 405 | 501 => (Kind::NotFound, "check bucket and key; a server that cannot list takes --manifest FILE"),
        301 | 302 | 307 | 308 => (
            Kind::Usage,
            "the bucket is elsewhere, and the answer does not say where: set region or endpoint to where it is",
        ),
        429 | 503 => (Kind::Throttled, "the server asks to slow down"),
        500..=599 => (Kind::Server, "see the server's logs"),
        _ => (Kind::Protocol, "the address may not be an object store"),
    };
    Error::new(kind, format!("the server answered {status}{said}")).cure(cure)
}
