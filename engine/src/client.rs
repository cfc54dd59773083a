//! The HTTP client of the control plane: every request outside the hot path.
//!
//! - A [`Route`] says where a server is, which certificates are accepted, which proxy is on the way, and who signs. It is decided
//!   before the first byte; no answer widens it.
//! - A [`Client`] sends requests along one route, on one thread, for as long as one call: it keeps connections and one retry budget.
//! - [`Client::send`] writes one [`Ask`] (method, path, headers) and a body, signs it, and returns the head of the response, whatever its
//!   status.
//! - [`Client::ask`] also reads the response, within a limit. An error status becomes a [`Refused`], here and nowhere else: the error with
//!   kind and hint, the server's error code, its `Retry-After`.
//! - The same place notes where a bucket has moved to (`access` follows) and tells the authority of credentials that have expired.
//! - [`Client::persist`] retries by the planner's rules. Callers add paths, headers and what a response means to them.

use crate::connect::{Connector, Load, unreachable};
use crate::outage::{TELL_AFTER, Waiting};
use crate::proxy::Route;
use crate::system::{no_more_files, no_thread};
use fuelrail_base::limits::DOCUMENT_BYTES_MAX;
use fuelrail_base::{Duration, Error, Kind, Result, WallTime};
use fuelrail_flow::{Authority, Signatory, judged};
use fuelrail_io::monotonic_now;
use fuelrail_plan::retry::{Retry, Tries, Verdict};
use fuelrail_wire::proxy::authentication_required;
use fuelrail_wire::redirect::{Answer as RedirectAnswer, moved};
use fuelrail_wire::sign::{self, Unsigned, covered};
use fuelrail_wire::tls::asks_for_tls;
use fuelrail_wire::{Proxy, date, parse_error, parse_error_region};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Method, Request, StatusCode};
use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::Builder;

/// Longest wait for one answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take to become idle after the end of a response; otherwise it is closed.
const IDLE_WITHIN: Duration = Duration::from_millis(50);
/// Attempts while nothing is lost yet: a person waits at a prompt and should learn within seconds that a server is down.
pub(crate) const AT_A_PROMPT: u32 = 5;
/// Attempts while parts of an object are there already: the loader's patience, for seconds without a network.
pub(crate) const UNDER_WAY: u32 = 10;

impl Route {
    /// Runs `work` with a client on a control thread and waits for it.
    pub(crate) fn run<'a, T: Send>(&'a self, work: impl AsyncFnOnce(Client<'a>) -> Result<T> + Send) -> Result<T> {
        on_thread("fuelrail-control", async || work(Client::new(self, ANSWER_TIMEOUT)?).await)
    }
}

/// A request, as often as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// With its query, escaped.
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// A document, or nothing.
    pub(crate) body: Bytes,
    /// For the whole answer, or for more of one that is read bit by bit.
    pub(crate) limit: Duration,
}

impl Ask {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Ask {
        Ask { method, path: path.into(), headers: Vec::new(), body: Bytes::new(), limit: ANSWER_TIMEOUT }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl ToString) -> Ask {
        self.headers.push((name, value.to_string()));
        self
    }
}

/// An answer whose body was not read yet.
pub(crate) struct Reply<'a> {
    client: &'a Client<'a>,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    sender: Option<SendRequest<Load>>,
    limit: Duration,
}

impl Reply<'_> {
    /// More of the body; `None` at its end.
    ///
    /// # Errors
    /// `Truncated` when it ends early, `Stalled` when nothing comes.
    pub(crate) async fn more(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = within(self.limit, self.body.frame()).await? {
            let broken = |e| Error::new(Kind::Truncated, format!("the response body ended early: {e}")).with_source(e);
            let frame = frame.map_err(broken)?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
        if let Some(mut sender) = self.sender.take()
            && let Ok(Ok(())) = tokio::time::timeout(IDLE_WITHIN, sender.ready()).await
        {
            self.client.idle.borrow_mut().push(sender);
        }
        Ok(None)
    }

    /// The whole body.
    pub(crate) async fn read(mut self) -> Result<Answer> {
        let mut body = Vec::new();
        while let Some(bytes) = self.more().await? {
            if body.len() + bytes.len() > DOCUMENT_BYTES_MAX {
                return Err(Error::new(
                    Kind::Truncated,
                    format!("the response is longer than {DOCUMENT_BYTES_MAX} bytes"),
                ));
            }
            body.extend_from_slice(&bytes);
        }
        Ok(Answer { status: self.status, headers: self.headers, body: body.into() })
    }
}

/// An answer and its document.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The text of a header line.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The server's clock.
    pub(crate) fn date(&self) -> Option<WallTime> {
        date::parse_http(self.headers.get("date")?.as_bytes())
    }

    /// The entity tag it names.
    pub(crate) fn etag(&self) -> Option<String> {
        self.header("etag").map(str::to_owned)
    }
}

/// An attempt that failed.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// The server's status, if it answered.
    pub(crate) status: Option<StatusCode>,
    /// The server's code for it; empty where it names none.
    pub(crate) code: String,
    /// The server's `Retry-After`.
    pub(crate) wait: Option<Duration>,
    /// A retry would fail in the same way, whatever the kind of the error.
    pub(crate) is_final: bool,
    /// The attempt got further than the one before, so the count of attempts restarts.
    pub(crate) got_further: bool,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, status: None, code: String::new(), wait: None, is_final: false, got_further: false }
    }
}

impl Refused {
    /// The error, where nothing else of it matters.
    pub(crate) fn into_error(self) -> Error {
        self.error
    }

    /// Whether the server may have carried out the request all the same.
    pub(crate) fn is_unsure(&self) -> bool {
        self.status.is_none_or(|status| status.is_server_error())
    }

    /// The error for a response with an error status.
    pub(crate) fn of(answer: &Answer) -> Refused {
        let document = parse_error(&answer.body);
        let said = document.as_ref().map_or(String::new(), |(code, text)| format!(" ({code}: {text})"));
        let code = document.map(|(code, _)| code).or_else(|| answer.header("x-ms-error-code").map(str::to_owned));
        let code = code.unwrap_or_default();
        let wait = answer.header("retry-after").and_then(|after| after.trim().parse().ok());
        let (kind, cure) = match (sign::refusal(answer.status.as_u16(), &code), answer.status.as_u16()) {
            (Some(known), _) => known,
            (_, 400) if asks_for_tls(&answer.body) => {
                (Kind::Protocol, "the port speaks TLS: write https:// in the URI")
            }
            (_, 407) => return Refused { status: Some(answer.status), ..authentication_required().into() },
            (_, 401 | 403) => (
                Kind::Denied,
                "check the bucket's permissions; http:// and https:// URIs are unsigned unless anonymous = false",
            ),
            (_, 404 | 405 | 501) => {
                (Kind::NotFound, "check bucket and key; where a server cannot list, set `manifest` to a file of keys")
            }
            (_, 301 | 302 | 307 | 308) => {
                (Kind::Usage, "the server redirects without a location: set region or endpoint to where the bucket is")
            }
            (_, 429 | 503) => (Kind::Throttled, "the server asks to slow down"),
            (_, 500..=599) => (Kind::Server, "see the server's logs"),
            _ => (Kind::Protocol, "check the URI: the server may not be an object store"),
        };
        let error = Error::new(kind, format!("the server answered {}{said}", answer.status)).with_hint(cure);
        Refused { status: Some(answer.status), code, wait: wait.map(Duration::from_secs), ..error.into() }
    }
}

/// Talks along one route.
pub(crate) struct Client<'a> {
    pub(crate) route: &'a Route,
    patience: Duration,
    connector: Connector,
    idle: RefCell<Vec<SendRequest<Load>>>,
    signatory: Option<RefCell<Signatory>>,
    waiting: Waiting,
    retry: RefCell<Retry>,
}

impl<'a> Client<'a> {
    /// A client that waits for connections, and for more of an answer, for as long as `patience`.
    pub(crate) fn new(route: &'a Route, patience: Duration) -> Result<Client<'a>> {
        let connector = Connector::new(route.tls.as_ref(), route.proxy.as_ref(), patience.min(CONNECT_TIMEOUT));
        let signatory = route.authority.as_ref().map(|authority| RefCell::new(Signatory::new(Arc::clone(authority))));
        let waiting = Waiting::new(&route.endpoint, route.wait);
        let retry = RefCell::new(Retry::new(waiting.retry(UNDER_WAY), monotonic_now().0)?);
        Ok(Client { route, patience, connector, idle: RefCell::default(), signatory, waiting, retry })
    }

    /// Opens a connection for the next request.
    pub(crate) async fn dial(&self) -> Result<()> {
        let sender = self.connection().await?;
        self.idle.borrow_mut().push(sender);
        Ok(())
    }

    async fn connection(&self) -> Result<SendRequest<Load>> {
        within(self.patience * 2, self.connector.open(&self.route.endpoint)).await?
    }

    /// Sends one request and waits, without a limit, for the head of the response, whatever its status.
    ///
    /// # Errors
    /// `Network`, `Untrusted`, `Protocol` … when none comes; `Usage` when it cannot be written or signed.
    pub(crate) async fn send(&self, ask: &Ask, body: Load) -> Result<Reply<'_>> {
        let mut request = self.written(ask, body)?;
        let endpoint = &self.route.endpoint;
        loop {
            let kept = {
                let mut idle = self.idle.borrow_mut();
                idle.retain(|sender| !sender.is_closed());
                idle.pop()
            };
            let is_new = kept.is_none();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connection().await?,
            };
            let mut failed = match sender.try_send_request(request).await {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    let (status, headers) = (head.status, head.headers);
                    return Ok(Reply { client: self, status, headers, body, sender: Some(sender), limit: ask.limit });
                }
                Err(failed) => failed,
            };
            // The server has closed a connection that was idle: nothing was sent.
            match failed.take_message().filter(|_| !is_new) {
                Some(unsent) => request = unsent,
                None => return Err(unreachable(&endpoint.authority(), failed.error())),
            }
        }
    }

    /// The request as hyper sends it, signed. Errors do not repeat it: a part may be a secret.
    fn written(&self, ask: &Ask, body: Load) -> Result<Request<Load>> {
        let unfit = || Error::new(Kind::Usage, "the request cannot be written: the address or a token is malformed");
        let authority = self.route.endpoint.authority();
        let mut headers = HeaderMap::new();
        for (name, value) in &ask.headers {
            headers.append(*name, HeaderValue::from_str(value).map_err(|_| unfit())?);
        }
        let mut query = String::new();
        if let Some(signatory) = &self.signatory {
            let lines = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            let lines: Vec<_> = lines.filter(|(name, _)| covered(name).is_some() || *name == CONTENT_LENGTH).collect();
            let (method, path_and_query) = (ask.method.as_str(), ask.path.as_str());
            let unsigned = Unsigned { method, host: &authority, path_and_query, headers: &lines };
            let mut lines = Vec::new();
            signatory.borrow_mut().sign(&unsigned, &mut query, &mut lines)?;
            for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let colon = line.iter().position(|byte| *byte == b':').ok_or_else(unfit)?;
                let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| unfit())?;
                headers.insert(name, secret(line[colon + 1..].trim_ascii()).ok_or_else(unfit)?);
            }
        }
        if let Some(value) = self.connector.handed_to().and_then(Proxy::authorization) {
            headers.insert(PROXY_AUTHORIZATION, secret(value).ok_or_else(unfit)?);
        }
        headers.insert(HOST, HeaderValue::from_str(&authority).map_err(|_| unfit())?);
        let server = self.connector.handed_to().map_or(String::new(), |_| format!("http://{authority}"));
        let between = match (query.is_empty(), ask.path.contains('?')) {
            (true, _) => "",
            (false, true) => "&",
            (false, false) => "?",
        };
        let uri = format!("{server}{}{between}{query}", ask.path);
        let mut request = Request::builder().method(ask.method.clone()).uri(uri).body(body).map_err(|_| unfit())?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Sends one request with its document, and reads the response.
    pub(crate) async fn ask(&self, ask: &Ask) -> Result<Answer, Refused> {
        within(ask.limit, async { self.accept(ask, self.send_whole(ask).await?).await }).await?
    }

    /// As [`send`](Client::send), with the request's document.
    pub(crate) async fn send_whole(&self, ask: &Ask) -> Result<Reply<'_>> {
        let body = Full::new(ask.body.clone()).map_err(|never| match never {}).boxed_unsync();
        if matches!(ask.method, Method::GET | Method::HEAD) {
            return self.send(ask, body).await;
        }
        self.send(&ask.clone().header("content-length", ask.body.len()), body).await
    }

    /// Reads a response; an error status is an error.
    pub(crate) async fn accept(&self, ask: &Ask, reply: Reply<'_>) -> Result<Answer, Refused> {
        let answer = reply.read().await?;
        if !answer.status.is_success() {
            return Err(self.refused(ask, &answer));
        }
        Ok(answer)
    }

    /// The error for an error status on this route. Notes a redirect of the bucket, and has expired credentials renewed.
    pub(crate) fn refused(&self, ask: &Ask, answer: &Answer) -> Refused {
        let mut refused = Refused::of(answer);
        let Route { endpoint, authority, .. } = self.route;
        let named = parse_error_region(&answer.body);
        let region = answer.header("x-amz-bucket-region").or(named.as_deref());
        let answered = RedirectAnswer { status: answer.status.as_u16(), location: answer.header("location"), region };
        match moved(endpoint, &ask.path, answered, authority.is_some()) {
            Err(not_followed) => refused.error = not_followed,
            Ok(to) => {
                let signed_for = authority.as_deref().map(Authority::region);
                let elsewhere = to.filter(|to| to.endpoint != *endpoint || to.region.as_deref() != signed_for);
                if elsewhere.is_some() {
                    *self.route.moved() = elsewhere;
                }
                let error = match &self.route.proxy {
                    Some(proxy) => proxy.spared(refused.error),
                    None => refused.error,
                };
                refused.error = judged(error, authority.as_deref(), answer.date());
            }
        }
        refused
    }

    /// Waits for an attempt; where the server is waited for, tells when it takes long.
    async fn watched<T>(&self, attempt: impl Future<Output = T>) -> T {
        // On the heap: uploads nest several of them, and each would be in the stack more than once.
        let mut attempt = Box::pin(attempt);
        if self.waiting.limit.is_some() {
            match tokio::time::timeout(TELL_AFTER, &mut attempt).await {
                Ok(done) => return done,
                Err(_) => self.waiting.tell("no answer yet"),
            }
        }
        attempt.await
    }

    /// Retries `attempt` until it succeeds, its error is final, or there were `attempts_max` and the server
    /// is not waited for, or no longer.
    pub(crate) async fn persist<T>(
        &self,
        attempts_max: u32,
        mut attempt: impl AsyncFnMut() -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let mut tries = Tries::default();
        loop {
            let refused = match self.watched(attempt()).await {
                Ok(done) => {
                    self.retry.borrow_mut().success();
                    self.waiting.served();
                    return Ok(done);
                }
                Err(refused) => refused,
            };
            if refused.got_further {
                tries = Tries::default();
            }
            let verdict = self.retry.borrow_mut().verdict(&mut tries, refused.error.kind(), refused.wait);
            let goes_on = self.waiting.goes_on(&refused.error) || tries.failed() < attempts_max;
            match verdict {
                Verdict::After(pause) if !refused.is_final && goes_on => {
                    tokio::time::sleep(pause).await;
                }
                _ => return Err(Refused { error: refused.error.clone().with_attempts(tries.failed()), ..refused }),
            }
        }
    }
}

/// A value that is not printed.
fn secret(value: &[u8]) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Waits no longer than `limit`.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| Error::new(Kind::Stalled, format!("no response within {limit:?}")))
}

/// Runs `work` in a runtime of its own on a thread of this name, and waits for it: callers may be inside another runtime.
pub(crate) fn on_thread<T: Send>(name: &str, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let spawned = Builder::new().name(name.into()).spawn_scoped(scope, || runtime()?.block_on(work()));
        let joined = spawned.map_err(|e| no_thread(name, &e))?.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A runtime of this thread alone.
///
/// # Errors
/// `Environment` when the system refuses it.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let doing = "starting tokio";
    let refused = |error: std::io::Error| {
        no_more_files(doing, &error).unwrap_or_else(|| Error::from_io(Kind::Environment, doing, error))
    };
    // Tokio panics where it has a descriptor less than it needs: so many at most.
    let room: std::io::Result<Vec<_>> = (0..3).map(|_| UnixStream::pair()).collect();
    drop(room.map_err(refused)?);
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)
}
