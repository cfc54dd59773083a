//! Serves the requests of a connection by the script: latency, rate limits, responses, faults.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use tokio::net::TcpStream;
use tokio_rustls::rustls::HandshakeKind;

use super::Worker;
use super::refusal::Refusal;
use super::reply::{Body, End, Length, Pipe, Reply, Socket, linger};
use super::request::Request;
use super::target::Target;
use super::{answer, writing};
use crate::script::{Act, Drawn, Fault, FaultKind, Operation, any_matches};
use crate::store::other_etag;

/// Bytes of a head that no client should read to its end.
const OVERLONG_HEAD_BYTES: usize = 1 << 20;
/// Largest difference between declared and sent length.
const LENGTH_ERROR_BYTES_MAX: u64 = 4096;
/// How long a TLS handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Counts a connection as open until dropped, also when its task is dropped.
struct Open<'a>(&'a Worker);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.site.tally.count(|counters| counters.connections_open -= 1);
    }
}

/// Serves one connection until either side ends it.
pub(crate) async fn serve(tcp: TcpStream, worker: Rc<Worker>) {
    worker.site.tally.connection_opened();
    let _open = Open(&worker);
    // Otherwise a small response could wait for the ACK of the one before. A failure costs time, not bytes.
    let _ = tcp.set_nodelay(true);
    let Some(socket) = secured(tcp, &worker).await else { return };
    let mut pipe = Pipe::new(&worker, socket);
    match converse(&mut pipe, &worker).await {
        Ok(end) => pipe.finish(end).await,
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            let refusal = Refusal::new("InvalidRequest", "This is no HTTP/1.1 request.").reply("");
            if pipe.send(refusal, &worker.site.act()).await.is_ok() {
                pipe.finish(End::Close).await;
            }
        }
        // The client has gone, or the object could not be read: the response in progress ends early.
        Err(_) => {}
    }
}

/// Returns the socket after the TLS handshake, where TLS is on; `None` when the handshake fails.
async fn secured(tcp: TcpStream, worker: &Worker) -> Option<Box<dyn Socket>> {
    let Some(terminator) = &worker.site.terminator else { return Some(Box::new(tcp)) };
    match tokio::time::timeout(HANDSHAKE_LIMIT, terminator.acceptor.accept(tcp).into_fallible()).await {
        Ok(Ok(tls)) => {
            let is_resumed = tls.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
            worker.site.tally.count(|counters| {
                *if is_resumed { &mut counters.tls_resumed } else { &mut counters.tls_full } += 1;
            });
            Some(Box::new(tls))
        }
        // The alert with the reason is on its way; a reset could overtake it.
        Ok(Err((_, mut tcp))) => {
            linger(&mut tcp).await;
            None
        }
        Err(_) => None,
    }
}

/// Serves requests until the connection must end.
async fn converse(pipe: &mut Pipe, worker: &Worker) -> io::Result<End> {
    for number in 1.. {
        let Some(mut request) = pipe.request().await? else { break };
        let act = worker.site.act();
        let mut reply = attend(worker, &mut request, &act).await;
        let goes_on = request.forget_body().await && request.keeps_alive();
        if request.parts.method == Method::HEAD {
            reply.body = Body::Document(Vec::new());
        }
        if reply.end == End::Keep {
            close_on_count(worker, &act, number, &mut reply);
            if reply.end == End::Keep && !goes_on {
                close(&mut reply);
            }
        }
        let end = reply.end;
        pipe.send(reply, &act).await?;
        if end != End::Keep {
            return Ok(end);
        }
    }
    Ok(End::Close)
}

/// Responds to one request.
async fn attend(worker: &Worker, request: &mut Request<'_>, act: &Arc<Act>) -> Reply {
    let (arrived, site) = (Instant::now(), &worker.site);
    let target = Target::parse(&request.parts, site);
    let operation = target.as_ref().map_or(Operation::Other, |target| target.operation);
    site.tally.request(operation);
    let key = target.as_ref().map(Target::identity).unwrap_or_default();
    let drawn = act.draw(operation, &key);
    let too_fast = act.over_rate(arrived);
    if drawn.latency > Duration::ZERO {
        // A client that has gone is noticed when the response is sent.
        let _ = request.pipe.sleep_until(arrived + drawn.latency).await;
    }
    let answered = match target {
        Ok(_) if too_fast => {
            site.tally.fault(FaultKind::SlowdownRate);
            Err(Refusal::slow_down(act.script.retry_after_s))
        }
        Ok(target) => match site.key.as_ref().map_or(Ok(()), |key| key.check(&request.parts)) {
            Ok(()) => play(worker, act, (&target, drawn), request).await,
            Err(refusal) => Err(refusal),
        },
        Err(refusal) => Err(refusal),
    };
    answered.unwrap_or_else(|refusal| refusal.reply(request.parts.uri.path()))
}

/// Responds with the fault that was drawn, if it applies to this request.
async fn play(
    worker: &Worker,
    act: &Act,
    (target, mut drawn): (&Target, Drawn),
    request: &mut Request<'_>,
) -> Result<Reply, Refusal> {
    let tally = &worker.site.tally;
    let kind = drawn.fault.map(|fault| fault.kind);
    if let Some(kind @ (FaultKind::Slowdown | FaultKind::Error)) = kind {
        tally.fault(kind);
        let is_slowdown = kind == FaultKind::Slowdown;
        return Err(if is_slowdown { Refusal::slow_down(act.script.retry_after_s) } else { Refusal::internal() });
    }
    let (Some(bucket), key) = (&target.bucket, &target.key) else { return write(worker, target, drawn, request).await };
    if key.is_empty() || !matches!(target.operation, Operation::Get | Operation::Head) {
        return write(worker, target, drawn, request).await;
    }
    if any_matches(&act.script.missing_keys, key) {
        tally.fault(FaultKind::MissingKey);
        return Err(Refusal::no_such_key(key));
    }
    let owned = key.clone();
    let mut object = worker.on(bucket, move |bucket| bucket.store.find(&owned)).await?;
    let always_replaced = any_matches(&act.script.changed_keys, key);
    if always_replaced || kind == Some(FaultKind::Changed) {
        tally.fault(if always_replaced { FaultKind::ChangedKey } else { FaultKind::Changed });
        object = object.replaced();
    }
    let mut reply = answer::object(worker, key, &object, &request.parts).await?;
    if let Some(fault) = drawn.fault.filter(|_| matches!(reply.status, 200 | 206)) {
        inflict(worker, fault, &mut drawn, &mut reply);
    }
    Ok(reply)
}

/// The correct response to anything but a `GET` or `HEAD` of an object.
async fn honest(worker: &Worker, target: &Target, request: &mut Request<'_>) -> Result<Reply, Refusal> {
    let Some(bucket) = &target.bucket else { return Ok(answer::buckets(&worker.site)) };
    match target.operation {
        Operation::List => answer::list(worker, bucket, &target.list).await,
        Operation::Put => writing::put(worker, bucket, &target.key, request).await,
        Operation::Delete => writing::delete(worker, bucket, &target.key).await,
        Operation::Get | Operation::Head | Operation::Other => Ok(Reply::empty(200)),
        _ => writing::step(worker, bucket, target, request).await,
    }
}

/// Responds to a write with the fault that was drawn for it.
async fn write(
    worker: &Worker,
    target: &Target,
    mut drawn: Drawn,
    request: &mut Request<'_>,
) -> Result<Reply, Refusal> {
    let Some(fault) = drawn.fault else { return honest(worker, target, request).await };
    let last = request.promised_bytes().saturating_sub(1);
    let place = fault.at.unwrap_or_else(|| drawn.draws.below(last + 1)).min(last);
    worker.site.tally.fault(fault.kind);
    match fault.kind {
        FaultKind::Reset => {
            request.read_up_to(place).await;
            Ok(Reply::raw(Vec::new(), End::Reset))
        }
        FaultKind::Lost => {
            // The client gets no response, so the outcome does not matter.
            let _ = honest(worker, target, request).await;
            Ok(Reply::raw(Vec::new(), End::Close))
        }
        FaultKind::HiddenError => {
            request.read_up_to(u64::MAX).await;
            Ok(Reply { status: 200, ..Refusal::internal().reply("") })
        }
        _ => {
            request.corrupt_at(place);
            honest(worker, target, request).await
        }
    }
}

/// Applies the fault to the response to a `GET` of an object and counts it. Body faults do not apply to an empty body.
fn inflict(worker: &Worker, fault: Fault, drawn: &mut Drawn, reply: &mut Reply) {
    use FaultKind::{BadStatus, Changed, Garbage, OverlongHead, WrongEtag};
    let length = reply.bytes();
    if length == 0 && !matches!(fault.kind, Garbage | OverlongHead | BadStatus | WrongEtag) {
        return;
    }
    let place = fault.at.unwrap_or_else(|| drawn.draws.below(length)).min(length.saturating_sub(1));
    let off_by = fault.at.unwrap_or_else(|| 1 + drawn.draws.below(LENGTH_ERROR_BYTES_MAX)).max(1);
    if fault.kind != Changed {
        worker.site.tally.fault(fault.kind);
    }
    let mut cut = |end| (reply.cut, reply.end) = (Some(place), end);
    match fault.kind {
        FaultKind::Reset => cut(End::Reset),
        FaultKind::Truncate => cut(End::Close),
        FaultKind::Stall => match fault.for_ms {
            None => cut(End::Hang),
            Some(ms) => reply.pause = Some((place, Duration::from_millis(ms))),
        },
        FaultKind::LengthLong => (reply.length, reply.end) = (Length::Is(length.saturating_add(off_by)), End::Close),
        FaultKind::LengthShort => (reply.length, reply.end) = (Length::Is(length.saturating_sub(off_by)), End::Close),
        FaultKind::Chunked => reply.length = Length::Chunked,
        WrongEtag => {
            let tags = reply.headers.iter_mut().filter(|(name, _)| *name == "etag");
            tags.for_each(|(_, etag)| *etag = other_etag(etag));
        }
        Garbage => {
            let words = 8 + drawn.draws.below(56);
            *reply = Reply::raw((0..words).flat_map(|_| drawn.draws.word().to_le_bytes()).collect(), End::Close);
        }
        OverlongHead => {
            let mut head = b"HTTP/1.1 200 OK\r\nx-filler: ".to_vec();
            head.resize(OVERLONG_HEAD_BYTES, b'a');
            *reply = Reply::raw(head, End::Close);
        }
        BadStatus => {
            let mut head = Vec::new();
            reply.write_head(&worker.date(), &mut head);
            head.splice(.."HTTP/1.1 200".len(), *b"HTTP/1.1 2O0");
            (reply.head, reply.end) = (Some(head), End::Close);
        }
        // `Changed` was applied with the response; the rest is never drawn.
        _ => {}
    }
}

fn close(reply: &mut Reply) {
    reply.headers.push(("connection", "close".to_owned()));
    reply.end = End::Close;
}

/// Ends the connection after the number of requests that the script sets.
fn close_on_count(worker: &Worker, act: &Act, number: u32, reply: &mut Reply) {
    if act.script.drop_after_requests.is_some_and(|most| number >= most) {
        worker.site.tally.fault(FaultKind::DropAfter);
        reply.end = End::Close;
    } else if act.script.close_after_requests.is_some_and(|most| number >= most) {
        worker.site.tally.fault(FaultKind::CloseAfter);
        close(reply);
    }
}
