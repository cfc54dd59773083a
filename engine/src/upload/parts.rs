//! An object in parts, several at a time, completed when the server has them all and given up when it cannot.
//!
//! The source is read once, in order; a part stays in memory until the server has taken it, so it can be sent again.

use super::exchange::{Exchange, Likeness, PUT_BYTES_MAX, PutOver, Stored, Upload};
use super::one::{PIECE_BYTES, check_end, md5_of, read_more, rewind};
use crate::client::{ANSWER_TIMEOUT, Answer, Ask, Refused, UNDER_WAY, within};
use crate::connect::Load;
use crate::system::random_number;
use fuelrail_base::{Duration, Error, Kind, Result};
use fuelrail_wire::multipart::{self, PartTaken, with_query};
use fuelrail_wire::{Dialect, parse_error};
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Method, StatusCode};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Parts on their way at once.
const PARTS_AT_ONCE_MAX: u64 = 4;
/// … fewer where they would be longer than this together.
const PARTS_BYTES_MAX: u64 = 256 << 20;
/// How long a server may take to make an object of parts: Google speaks of minutes.
const COMPLETE_TIMEOUT: Duration = Duration::from_secs(600);
/// How long the parts of an upload that was interrupted may take to be removed: a person waits for the end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How an object is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) bytes: u64,
    pub(super) part_bytes: u64,
}

impl Plan {
    pub(super) fn count(self) -> u64 {
        self.bytes.div_ceil(self.part_bytes)
    }

    fn at_once(self) -> usize {
        (PARTS_BYTES_MAX / self.part_bytes).clamp(1, PARTS_AT_ONCE_MAX) as usize
    }

    fn len(self, number: u64) -> usize {
        self.part_bytes.min(self.bytes - (number - 1) * self.part_bytes) as usize
    }
}

/// How the server knows the parts of this upload.
enum Name {
    /// S3 and Google: by the id it gave.
    Id(String),
    /// Azure: the number in every block's id.
    Blocks(u64),
}

/// One upload on its way.
struct Journey<'a> {
    exchange: &'a Exchange<'a>,
    plan: Plan,
    name: Name,
    /// Bytes of parts that the server has.
    taken_bytes: Cell<u64>,
    /// Bytes that each attempt under way has handed to its connection. A body holds them weakly: what is sent after its attempt has
    /// ended counts nowhere.
    running: RefCell<Vec<Weak<AtomicU64>>>,
    moved: Arc<Notify>,
}

/// Puts it. `None` when the server knows no parts and one request can bring it all.
pub(super) async fn put(
    exchange: &Exchange<'_>,
    source: &mut dyn Upload,
    plan: Plan,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<Option<Stored>> {
    // The server will judge it in the end: here only the sending is spared.
    if *exchange.over == PutOver::Nothing && exchange.unless_stopped(async { Ok(exchange.is_taken().await) }).await? {
        return Err(Error::new(Kind::Exists, "the object exists already, and the upload was to create a new one")
            .with_hint("choose another key"));
    }
    let name = match exchange.dialect() {
        Dialect::Azure => Name::Blocks(random_number()),
        Dialect::S3 | Dialect::Gcs => match exchange.unless_stopped(async { Ok(begin(exchange).await) }).await? {
            Ok(id) => Name::Id(id),
            Err(refused) if is_unknown(&refused) && plan.bytes <= PUT_BYTES_MAX => return Ok(None),
            Err(refused) => return Err(refused.error),
        },
    };
    let journey =
        Journey { exchange, plan, name, taken_bytes: Cell::new(0), running: RefCell::default(), moved: Arc::default() };
    // The id is known: from here on nothing is left behind where the caller stops.
    let outcome = exchange.unless_stopped(async {
        let parts = journey.bring_all(source, progress).await?;
        journey.complete(&parts).await
    });
    match outcome.await {
        Ok(etag) => Ok(Some(Stored { bytes: plan.bytes, etag })),
        Err(error) => Err(journey.give_up(error).await),
    }
}

/// Begins an upload and returns its id.
async fn begin(exchange: &Exchange<'_>) -> Result<String, Refused> {
    let ask = Ask::new(Method::POST, with_query(&exchange.path, &[("uploads", "")]));
    let ask = ask.header("content-type", "application/octet-stream");
    let ask = match exchange.dialect() {
        // Without it, S3 would refuse the checksums of the parts.
        Dialect::S3 => ask.header("x-amz-checksum-algorithm", "CRC32C"),
        _ => ask,
    };
    Ok(multipart::parse_begun(&exchange.persist(&ask).await?.body)?)
}

impl Journey<'_> {
    /// Brings all parts, a few at a time.
    async fn bring_all(
        &self,
        source: &mut dyn Upload,
        progress: &mut (impl FnMut(u64) + Send),
    ) -> Result<Vec<PartTaken>> {
        rewind(source)?;
        let count = self.plan.count();
        let mut taken: Vec<Option<PartTaken>> = vec![None; count as usize];
        let mut flight = FuturesUnordered::new();
        let mut next = 1;
        loop {
            while next <= count && flight.len() < self.plan.at_once() {
                let bytes = read_part(source, self.plan.len(next)).await?;
                if next == count {
                    check_end(source)?;
                }
                flight.push(self.bring(next, bytes));
                next += 1;
                progress(self.sent());
            }
            tokio::select! {
                arrived = flight.next() => match arrived {
                    Some(arrived) => {
                        let (number, part) = arrived?;
                        taken[number as usize - 1] = Some(part);
                    }
                    None => break,
                },
                () = self.moved.notified() => {}
            }
            progress(self.sent());
        }
        Ok(taken.into_iter().map(|part| part.expect("every part has arrived")).collect())
    }

    /// Bytes the server has or is being handed.
    fn sent(&self) -> u64 {
        let mut running = self.running.borrow_mut();
        running.retain(|handed| handed.strong_count() > 0);
        self.taken_bytes.get()
            + running.iter().filter_map(Weak::upgrade).map(|handed| handed.load(Relaxed)).sum::<u64>()
    }

    /// One part, in as many attempts as it takes.
    async fn bring(&self, number: u64, bytes: Bytes) -> Result<(u64, PartTaken)> {
        let crc32c = crc32c::crc32c(&bytes);
        let md5 = matches!(self.name, Name::Blocks(_)).then(|| md5_of(&bytes));
        let attempt = async || self.send(number, &bytes, (crc32c, md5)).await;
        let etag = self.exchange.client.persist(UNDER_WAY, attempt).await.map_err(Refused::into_error)?;
        Ok((number, PartTaken { etag, crc32c }))
    }

    /// One attempt at a part. Returns its entity tag.
    async fn send(
        &self,
        number: u64,
        bytes: &Bytes,
        (crc32c, md5): (u32, Option<[u8; 16]>),
    ) -> Result<String, Refused> {
        let path = match &self.name {
            Name::Id(id) => with_query(&self.exchange.path, &[("partNumber", &number.to_string()), ("uploadId", id)]),
            Name::Blocks(upload) => {
                let block = multipart::block_id(*upload, number);
                with_query(&self.exchange.path, &[("comp", "block"), ("blockid", &block)])
            }
        };
        let ask = Ask::new(Method::PUT, path).header("content-length", bytes.len());
        let ask = self.exchange.promise(ask, crc32c, md5);
        let handed = Arc::new(AtomicU64::new(0));
        self.running.borrow_mut().push(Arc::downgrade(&handed));
        let answer = self.while_it_moves(&handed, async {
            let reply = self.exchange.client.send(&ask, self.part(bytes, &handed)).await?;
            self.exchange.client.accept(&ask, reply).await.map_err(|refused| self.exchange.explained(refused))
        });
        let etag = match (&self.name, answer.await?.etag()) {
            (Name::Blocks(_), etag) => etag.unwrap_or_default(),
            (Name::Id(_), Some(etag)) => etag,
            (Name::Id(_), None) => {
                let cure = "the server may not know uploads in parts: raise parts_above_bytes";
                return Err(Error::new(Kind::Protocol, "the answer to a part names no ETag").with_hint(cure).into());
            }
        };
        self.taken_bytes.set(self.taken_bytes.get() + bytes.len() as u64);
        Ok(etag)
    }

    /// The body of a part, which counts what the connection has taken.
    fn part(&self, bytes: &Bytes, handed: &Arc<AtomicU64>) -> Load {
        let (bytes, handed, moved) = (bytes.clone(), Arc::downgrade(handed), Arc::clone(&self.moved));
        let frames = (0..bytes.len()).step_by(PIECE_BYTES).map(move |at| {
            let piece = bytes.slice(at..bytes.len().min(at + PIECE_BYTES));
            if let Some(handed) = handed.upgrade() {
                handed.fetch_add(piece.len() as u64, Relaxed);
                moved.notify_one();
            }
            Ok(Frame::data(piece))
        });
        StreamBody::new(stream::iter(frames)).boxed_unsync()
    }

    /// Waits for an answer as long as the connection takes bytes.
    async fn while_it_moves(
        &self,
        handed: &AtomicU64,
        answer: impl Future<Output = Result<Answer, Refused>>,
    ) -> Result<Answer, Refused> {
        let mut answer = std::pin::pin!(answer);
        let mut before = 0;
        loop {
            if let Ok(answer) = tokio::time::timeout(ANSWER_TIMEOUT, &mut answer).await {
                return answer;
            }
            if handed.load(Relaxed) == before {
                let cause = format!("no response within {} s", ANSWER_TIMEOUT.as_secs());
                return Err(Error::new(Kind::Stalled, cause).into());
            }
            before = handed.load(Relaxed);
        }
    }

    /// Makes an object of the parts. An answer that is lost is asked for again, and an upload that is done then told from one that is
    /// gone by what is there.
    async fn complete(&self, parts: &[PartTaken]) -> Result<Option<String>> {
        let mut unsure = false;
        let attempt = async || {
            let mut refused = match self.complete_once(parts).await {
                Ok(etag) => return Ok(etag),
                Err(refused) => refused,
            };
            if is_over(&refused) || (refused.is_final && unsure) {
                refused.is_final = true;
                return self.exchange.find(&self.likeness(parts)).await.ok_or(refused);
            }
            unsure |= refused.is_unsure();
            Err(refused)
        };
        self.exchange.client.persist(UNDER_WAY, attempt).await.map_err(Refused::into_error)
    }

    async fn complete_once(&self, parts: &[PartTaken]) -> Result<Option<String>, Refused> {
        let (path, exchange) = (&self.exchange.path, self.exchange);
        let (method, path, document) = match &self.name {
            Name::Id(id) => {
                let with_checksums = exchange.dialect() == Dialect::S3;
                (
                    Method::POST,
                    with_query(path, &[("uploadId", id)]),
                    multipart::complete_document(parts, with_checksums),
                )
            }
            Name::Blocks(upload) => {
                let document = multipart::block_list_document(*upload, parts.len() as u64);
                (Method::PUT, with_query(path, &[("comp", "blocklist")]), document)
            }
        };
        let ask = exchange.conditional(Ask::new(method, path).header("content-type", "application/xml"));
        let mut answer = exchange.ask(&Ask { body: document.into(), limit: COMPLETE_TIMEOUT, ..ask }).await?;
        if matches!(self.name, Name::Blocks(_)) {
            return Ok(answer.etag());
        }
        // S3 begins to answer before it knows.
        if let Some((code, _)) = parse_error(&answer.body) {
            answer.status = status_of(&code);
            return Err(exchange.explained(Refused::of(&answer)));
        }
        Ok(Some(multipart::parse_completed(&answer.body)?))
    }

    /// What the object must look like that these parts make.
    fn likeness(&self, parts: &[PartTaken]) -> Likeness {
        let of_parts = |sum: u32, part: &PartTaken| crc32c::crc32c_append(sum, &part.crc32c.to_be_bytes());
        let whole = (1..)
            .zip(parts)
            .fold(0, |sum, (number, part)| crc32c::crc32c_combine(sum, part.crc32c, self.plan.len(number)));
        let checksums = vec![
            multipart::checksum(whole),
            format!("{}-{}", multipart::checksum(parts.iter().fold(0, of_parts)), parts.len()),
        ];
        Likeness { bytes: self.plan.bytes, etag: etag_of(parts), checksums }
    }

    /// Aborts the upload, so that stored parts cost nothing.
    async fn give_up(&self, error: Error) -> Error {
        // Blocks of Azure's that no list names go by themselves.
        let Name::Id(id) = &self.name else { return error };
        let remove = Ask::new(Method::DELETE, with_query(&self.exchange.path, &[("uploadId", id)]));
        let removing = self.exchange.persist(&remove);
        let removed = match error.kind() {
            Kind::Cancelled => within(ABORT_TIMEOUT, removing).await.unwrap_or_else(|late| Err(late.into())),
            _ => removing.await,
        };
        match removed {
            Err(refused) if !is_over(&refused) => {
                let cause = format!("{error}; and the parts it left could not be removed: {}", refused.error.cause());
                Error::new(error.kind(), cause)
                    .with_hint("let a rule of the bucket remove such parts (AbortIncompleteMultipartUpload)")
            }
            _ => error,
        }
    }
}

/// Whether the server does not know the upload: it is over, one way or the other.
fn is_over(refused: &Refused) -> bool {
    refused.code == "NoSuchUpload"
}

/// Whether the server knows no such request.
fn is_unknown(refused: &Refused) -> bool {
    matches!(refused.status, Some(StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED))
}

/// The status that a refusal after a 200 should have had.
fn status_of(code: &str) -> StatusCode {
    match code {
        "SlowDown" | "ServiceUnavailable" => StatusCode::SERVICE_UNAVAILABLE,
        "NoSuchUpload" => StatusCode::NOT_FOUND,
        "PreconditionFailed" => StatusCode::PRECONDITION_FAILED,
        "AccessDenied" => StatusCode::FORBIDDEN,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Reads a part, and lets the others go on meanwhile.
async fn read_part(source: &mut dyn Upload, len: usize) -> Result<Bytes> {
    let mut bytes = vec![0; len];
    let mut read = 0;
    while read < len {
        let most = len.min(read + PIECE_BYTES);
        read += read_more(source, &mut bytes[read..most])?;
        tokio::task::yield_now().await;
    }
    Ok(bytes.into())
}

/// The entity tag that S3 gives an object of these parts, where theirs are MD5s: the MD5 of them, and their number.
fn etag_of(parts: &[PartTaken]) -> Option<String> {
    let mut all = Vec::with_capacity(parts.len() * 16);
    for part in parts {
        let hex = part.etag.trim_matches('"');
        if hex.len() != 32 || !hex.is_ascii() {
            return None;
        }
        for at in (0..32).step_by(2) {
            all.push(u8::from_str_radix(&hex[at..at + 2], 16).ok()?);
        }
    }
    let hex: String = md5_of(&all).iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{hex}-{}", parts.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderMap;

    #[test]
    fn objects_of_parts_have_s3s_tags() {
        let part = |etag: &str| PartTaken { etag: etag.into(), crc32c: 0 };
        // MD5 of "12345" and "6789"; the tag was computed with Python's `hashlib`.
        let parts = [part("\"827ccb0eea8a706c4c34a16891f84e7b\""), part("46d045ff5190f6ea93739da6c0aa19bc")];
        assert_eq!(etag_of(&parts).as_deref(), Some("324730582f20c3f18cbb66d63a6137d2-2"));
        assert_eq!(etag_of(&[part("\"CJ+x\"")]), None);
    }

    #[test]
    fn long_parts_go_fewer_at_a_time() {
        let at_once = |part_bytes| Plan { bytes: 1 << 40, part_bytes }.at_once();
        assert_eq!([16 << 20, 64 << 20, 100 << 20, 600 << 20].map(at_once), [4, 4, 2, 1]);
        let plan = Plan { bytes: 10, part_bytes: 4 };
        assert_eq!((plan.count(), plan.len(1), plan.len(3)), (3, 4, 2));
    }

    #[test]
    fn a_refusal_behind_200_is_one() {
        for (code, kind) in [("SlowDown", Kind::Throttled), ("InternalError", Kind::Server)] {
            let body = format!("<Error><Code>{code}</Code><Message>m</Message></Error>").into();
            let refused = Refused::of(&Answer { status: status_of(code), headers: HeaderMap::new(), body });
            assert!(refused.error.kind() == kind && refused.is_unsure(), "{}", refused.error);
        }
    }
}
