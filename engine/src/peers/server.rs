//! Serves this rank's blocks to the other ranks: HTTP on a thread of its own, over TLS beyond this machine.
//!
//! `GET /v1/RUN/SAMPLE?at=MOMENT`, with a range within one block of the sample. The shard that owns the block finds it as it finds any: in
//! RAM, on disk, in a fetch under way, or by a fetch of its own, unless it is asked only for what is cached; its memory is sent from where it
//! lies. `Server-Timing` tells how long that took, whether it is only passed on from the bucket, and its object's entity tag. `POST`, with
//! `&leaves=RANK`, has the shard fetch the block from that rank and keep it. `GET /v1/RUN/ranks` tells which ranks earlier runs had. Never keeps
//! a block itself. Requests without the secret or a certificate are refused before their path is looked at.

use super::trust::{CERTIFICATES, NAMED_MAX, SECRETS, Shown, unprotected};
use crate::serve::{Answer, HttpServer, Tls, address_of, listen};
use crate::watch::Report;
use core::fmt::Display;
use core::ops::Range;
use fuelrail_base::units::ByteSize;
use fuelrail_base::{BlockId, Result, SampleId};
use fuelrail_flow::{LentBlock, Objects, PeerOutbox, PeerRequest};
use fuelrail_plan::homes::Homes;
use fuelrail_plan::planner::Asker;
use fuelrail_plan::schedule::UseTime;
use fuelrail_wire::base64;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_RANGE, HeaderMap, HeaderValue, IF_MATCH, RANGE};
use hyper::{Method, Request, Response, StatusCode};
use std::collections::HashMap;
use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// How long another rank may ask for nothing on a connection: a long step, or an evaluation.
const SILENCE: Duration = Duration::from_secs(600);
/// What the lists of ranks are called, where samples are numbers.
pub(super) const LISTS: &str = "ranks";
/// Largest burst under a rate limit, as time at that rate.
const BURST_MAX: Duration = Duration::from_millis(50);

/// A socket that listens, and how those who connect are known.
pub(super) struct Listening {
    socket: StdListener,
    tls: Option<TlsAcceptor>,
    secret: Option<Arc<str>>,
    prefix: String,
}

impl Listening {
    /// Listens at `address`, for requests of paths that begin with `prefix`.
    pub(super) fn at(address: &str, prefix: String, shown: &Shown) -> Result<Listening> {
        let address = address_of("peers, or peer_listen", address)?;
        let tls = match &shown.tls {
            None if !address.ip().is_loopback() => return Err(unprotected(&address)),
            None => None,
            Some((roots, identity)) => Some(TlsAcceptor::from(Arc::new(identity.server(roots)?))),
        };
        let hint = "give each rank an address of its own; where its address is not this machine's, set peer_listen";
        let socket = listen("other ranks", address, hint)?;
        Ok(Listening { socket, tls, secret: shown.secret.clone(), prefix })
    }

    /// Serves the blocks of these shards, for moments of a run of so many, over at most so many connections.
    pub(super) fn serve(
        self,
        (objects, moments, homes): (Arc<Objects>, u64, Homes),
        (outboxes, report, lists): (Vec<PeerOutbox>, Arc<Report>, Option<Vec<u8>>),
        (connections, bytes_per_s): (usize, Option<ByteSize>),
        beside: impl AsyncFnOnce() + Send + 'static,
    ) -> Result<HttpServer> {
        let Listening { socket, tls, secret, prefix } = self;
        let pace = bytes_per_s.map(|bytes_per_s| Pace { bytes_per_s, next: Mutex::default() });
        let (outboxes, lists, reported) = (Mutex::new(outboxes), lists.map(Bytes::from), Mutex::default());
        let service =
            Arc::new(Service { homes, prefix, secret, objects, moments, outboxes, report, reported, lists, pace });
        let tls = tls.map(|tls| -> Tls {
            let service = Arc::clone(&service);
            let failed = move |from, why: &std::io::Error| service.refuse(from, why, CERTIFICATES);
            (tls, Arc::new(failed))
        });
        let answer = move |from, request| {
            let service = Arc::clone(&service);
            async move { service.answer(from, request).await }
        };
        HttpServer::start("fuelrail-peers", (socket, tls), (connections, SILENCE), answer, beside)
    }
}

struct Service {
    homes: Homes,
    prefix: String,
    secret: Option<Arc<str>>,
    objects: Arc<Objects>,
    /// Of the run.
    moments: u64,
    outboxes: Mutex<Vec<PeerOutbox>>,
    report: Arc<Report>,
    /// Addresses whose requests were refused, and reported.
    reported: Mutex<Vec<IpAddr>>,
    /// Which ranks earlier runs had.
    lists: Option<Bytes>,
    pace: Option<Pace>,
}

/// The rate limit of every address: when its next block may be sent. Holds only addresses whose requests were authorised.
struct Pace {
    bytes_per_s: ByteSize,
    next: Mutex<HashMap<IpAddr, Arc<tokio::sync::Mutex<Instant>>>>,
}

impl Pace {
    /// Waits until so many bytes may be sent to this address, in order of arrival. Unused rate adds up to [`BURST_MAX`] only.
    async fn wait(&self, to: IpAddr, bytes: usize) {
        let next = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(next.entry(to).or_insert_with(|| Arc::new(Instant::now().into())))
        };
        // A request cancelled while it waits uses up none of the rate.
        let mut next = next.lock().await;
        tokio::time::sleep_until((*next).into()).await;
        let now = Instant::now();
        let due = (*next).max(now.checked_sub(BURST_MAX).unwrap_or(now));
        *next = due + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s.0 as f64);
    }
}

/// The block that a request is for.
struct Wanted {
    block: BlockId,
    at: UseTime,
    asker: Asker,
    /// Bytes of the block.
    part: Range<usize>,
    /// Bytes of the sample, where they are not all of it.
    range: Option<(u64, u64, u64)>,
    /// The listing has an entity tag, which the request insists on.
    is_tagged: bool,
}

impl Service {
    async fn answer(&self, from: IpAddr, request: Request<Incoming>) -> Answer {
        let came = Instant::now();
        if !self.is_known(request.headers()) {
            self.refuse(from, "it showed another secret, or none", SECRETS);
            return said(StatusCode::UNAUTHORIZED);
        }
        if let (&Method::GET, Some(LISTS), Some(lists)) = (request.method(), self.below(&request), &self.lists) {
            return Response::new(Full::new(lists.clone()));
        }
        let wanted = match self.wanted(&request) {
            Ok(wanted) => wanted,
            Err(status) => return said(status),
        };
        let (reply, answer) = oneshot::channel();
        let reply = Box::new(move |found| drop(reply.send(found)));
        let Wanted { block, at, asker, part, range, is_tagged } = wanted;
        if let (Some(pace), Asker::Rank | Asker::RankIfHeld) = (&self.pace, asker) {
            // Before the block is lent, so that a waiting request holds no memory.
            pace.wait(from, part.len()).await;
        }
        let sent = {
            let mut outboxes = self.outboxes();
            let shards = u16::try_from(outboxes.len()).expect("shards are at most 256");
            outboxes[usize::from(block.owner(shards).0)].send(PeerRequest { block, at, asker, reply })
        };
        let found: Result<LentBlock> = match (sent, answer.await) {
            (Ok(()), Ok(found)) => found,
            // Its queue is full, or this rank has ended.
            _ => return said(StatusCode::SERVICE_UNAVAILABLE),
        };
        let lent = match found {
            Ok(lent) => lent,
            // As RFC 9111 has it (5.2.1.7).
            Err(_) if asker != Asker::Rank => return said(StatusCode::GATEWAY_TIMEOUT),
            // The other rank fetches it from the bucket, and reports that error.
            Err(_) => return said(StatusCode::BAD_GATEWAY),
        };
        if let Asker::Leaving(_) = asker {
            return said(StatusCode::NO_CONTENT);
        }
        let how = if lent.passed { "pass" } else { "held" };
        // Of one length for a data set, so that heads can be foretold.
        let tag = match lent.tag {
            _ if is_tagged => String::new(),
            Some(tag) => format!(";tag={tag}"),
            None => format!(";tag={:032}", 0),
        };
        let body = Bytes::from_owner(lent).slice(part);
        let sum = base64::encode(&crc32c::crc32c(&body).to_be_bytes());
        let mut response = Response::new(Full::new(body));
        let headers = response.headers_mut();
        headers.insert("x-amz-checksum-crc32c", text(sum));
        let took_ms = came.elapsed().as_secs_f64() * 1e3;
        headers.insert("server-timing", text(format!("found;dur={took_ms:08.1};desc={how}{tag}")));
        if let Some((first, end, len)) = range {
            headers.insert(CONTENT_RANGE, text(format!("bytes {first}-{}/{len}", end - 1)));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        response
    }

    fn outboxes(&self) -> MutexGuard<'_, Vec<PeerOutbox>> {
        self.outboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what is refused, and reports it once an address, of a few: anybody who reaches this port could fill a log.
    fn refuse(&self, from: IpAddr, why: impl Display, compare: &str) {
        // The first shard counts for all of them.
        self.outboxes().first().inspect(|outbox| outbox.count_refused());
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < NAMED_MAX && !reported.contains(&from) {
            reported.push(from);
            drop(reported);
            (self.report)(&format!(
                "peers: a request of {from} was refused: {why}. If a rank of this job is there, {compare}. Further ones are only counted"
            ));
        }
    }

    /// The block that a request is for, or the status that refuses it.
    fn wanted(&self, request: &Request<Incoming>) -> Result<Wanted, StatusCode> {
        let (headers, catalog) = (request.headers(), self.objects.catalog());
        let query = request.uri().query().map(|query| match query.split_once("&leaves=") {
            None => (query, None),
            Some((moment, rank)) => (moment, Some(rank)),
        });
        let (moment, leaves) = query.unzip();
        let asker = self.asker(request.method(), headers, leaves.flatten())?;
        let sample = self.below(request).and_then(number).filter(|sample| *sample < catalog.samples());
        let sample = SampleId(sample.ok_or(StatusCode::NOT_FOUND)?);
        let moment = moment.map_or(Some(0), |moment| moment.strip_prefix("at=").and_then(number));
        let at = UseTime(moment.filter(|at| *at < self.moments).ok_or(StatusCode::BAD_REQUEST)?);
        // The other rank has listed another version of the object.
        let (theirs, ours) = (headers.get(IF_MATCH).map(HeaderValue::as_bytes), self.objects.strong_etag(sample));
        if theirs.is_some_and(|theirs| theirs != ours.as_bytes()) {
            return Err(StatusCode::PRECONDITION_FAILED);
        }
        let size = catalog.size(sample);
        let range = headers.get(RANGE).map(|range| range_of(range, size)).transpose()?;
        let (first, end) = range.unwrap_or((0, size));
        let index = u32::try_from(first / catalog.block_bytes()).map_err(|_| StatusCode::RANGE_NOT_SATISFIABLE)?;
        let block = BlockId { sample, index };
        let begin = catalog.block_first(block);
        if first >= end || end > begin + catalog.block_len(block) {
            return Err(StatusCode::RANGE_NOT_SATISFIABLE);
        }
        let part = (first - begin) as usize..(end - begin) as usize;
        let range = range.map(|(first, end)| (first, end, size));
        Ok(Wanted { block, at, asker, part, range, is_tagged: !ours.is_empty() })
    }

    /// The path below that of this run.
    fn below<'a>(&self, request: &'a Request<Incoming>) -> Option<&'a str> {
        request.uri().path().strip_prefix(&self.prefix)?.strip_prefix('/')
    }

    /// Who asks: a rank that gets the block, or one that leaves it to this one.
    fn asker(&self, method: &Method, headers: &HeaderMap, leaves: Option<&str>) -> Result<Asker, StatusCode> {
        let is_other = |rank: &u16| *rank < self.homes.ranks() && *rank != self.homes.rank();
        match (method, leaves) {
            (&Method::GET, None) => match headers.get(CACHE_CONTROL) {
                Some(asked) if asked == "only-if-cached" => Ok(Asker::RankIfHeld),
                _ => Ok(Asker::Rank),
            },
            (&Method::POST, Some(rank)) => {
                let rank = number(rank).and_then(|rank| u16::try_from(rank).ok()).filter(is_other);
                rank.map(Asker::Leaving).ok_or(StatusCode::BAD_REQUEST)
            }
            _ => Err(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    /// Whether the header shows the secret, where there is one. Takes as long for a wrong secret as for the right one.
    fn is_known(&self, headers: &HeaderMap) -> bool {
        let Some(secret) = &self.secret else { return true };
        let shown = headers.get(AUTHORIZATION).and_then(|shown| shown.as_bytes().strip_prefix(b"Bearer "));
        let shown = shown.unwrap_or_default();
        let differs = shown.iter().zip(secret.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
        shown.len() == secret.len() && differs == 0
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// First byte and end of a `Range` line, within so many bytes.
fn range_of(range: &HeaderValue, size: u64) -> Result<(u64, u64), StatusCode> {
    let range = range.to_str().ok().and_then(|range| range.strip_prefix("bytes="));
    let (first, last) = range.and_then(|range| range.split_once('-')).ok_or(StatusCode::BAD_REQUEST)?;
    let (first, last) = number(first).zip(number(last)).ok_or(StatusCode::BAD_REQUEST)?;
    if first <= last && last < size { Ok((first, last + 1)) } else { Err(StatusCode::RANGE_NOT_SATISFIABLE) }
}

fn text(value: String) -> HeaderValue {
    HeaderValue::from_str(&value).expect("numbers and Base64 are visible ASCII")
}

fn said(status: StatusCode) -> Answer {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = status;
    response
}
