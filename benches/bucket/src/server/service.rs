//! One request under the script: latency, rate, answer, fault.

use core::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header;

use super::answer::{Manner, answer};
use super::asked::Asked;
use super::connection::Connection;
use super::raw::{End, RawReply};
use super::refusal::Refusal;
use super::reply::{Response, ascii};
use super::target::Target;
use crate::script::{Act, Drawn, Fault, FaultKind, Operation, Request as Scripted};
use crate::store::other_etag;

/// A head that no client should read to its end.
const OVERLONG_HEAD_BYTES: usize = 1 << 20;
/// Largest difference drawn between promised and sent length.
const LENGTH_ERROR_BYTES_MAX: u64 = 4096;

/// What comes of a request: a response for hyper, or the end of the connection.
enum Outcome {
    Proper(Response),
    Raw(RawReply),
}

/// Answers one request. Never fails: what cannot be answered properly takes the connection over and ends it.
pub(crate) async fn attend(connection: Rc<Connection>, request: Request<Incoming>) -> Result<Response, Infallible> {
    let arrived = Instant::now();
    let site = Arc::clone(&connection.desk.site);
    let act = site.act();
    let number = connection.requests.get() + 1;
    connection.requests.set(number);
    let is_head = request.method() == hyper::Method::HEAD;
    let resource = request.uri().path().to_owned();
    let target = Target::parse(request.method(), request.uri(), &site.bucket);
    let operation = target.as_ref().map_or(Operation::Other, Target::operation);
    site.tally.request(operation);
    let mut asked = Asked::new(request);
    let drawn = draw(&act, operation, target.as_ref().ok());
    let too_fast = act.over_rate(arrived);
    if drawn.latency > Duration::ZERO {
        site.alarm.sleep_until(arrived + drawn.latency).await;
    }
    let outcome = match target {
        Err(refusal) => Outcome::Proper(refusal.respond(&resource, is_head)),
        Ok(_) if too_fast => {
            site.tally.fault(FaultKind::SlowdownRate);
            Outcome::Proper(Refusal::slow_down(act.script.retry_after_s).respond(&resource, is_head))
        }
        Ok(target) => match play(&connection, &act, &target, &mut asked, drawn).await {
            Ok(outcome) => outcome,
            Err(refusal) => Outcome::Proper(refusal.respond(&resource, is_head)),
        },
    };
    asked.forget_body().await;
    match close_on_count(&connection, &act, number, outcome) {
        Outcome::Proper(response) => Ok(response),
        Outcome::Raw(reply) => match connection.take_over(reply).await {},
    }
}

fn draw(act: &Act, operation: Operation, target: Option<&Target>) -> Drawn {
    match target {
        Some(Target::Get(key) | Target::Head(key) | Target::Put(key)) => act.draw(Scripted { operation, key }),
        Some(Target::Upload(key, step)) => act.draw(Scripted { operation, key: &(key.clone() + &step.identity()) }),
        Some(Target::List(query)) => act.draw(Scripted { operation, key: &query.identity() }),
        Some(Target::HeadBucket) | None => act.draw(Scripted { operation, key: "" }),
    }
}

/// The answer with its fault, if one was drawn and can happen to it.
async fn play(
    connection: &Rc<Connection>,
    act: &Arc<Act>,
    target: &Target,
    asked: &mut Asked,
    mut drawn: Drawn,
) -> Result<Outcome, Refusal> {
    let tally = &connection.desk.site.tally;
    let kind = drawn.fault.map(|fault| fault.kind);
    match kind {
        Some(FaultKind::Slowdown) => {
            tally.fault(FaultKind::Slowdown);
            return Err(Refusal::slow_down(act.script.retry_after_s));
        }
        Some(FaultKind::Error) => {
            tally.fault(FaultKind::Error);
            return Err(Refusal::internal());
        }
        _ => {}
    }
    let key = match target {
        Target::Get(key) | Target::Head(key) => key.as_str(),
        _ => {
            let manner = Manner { act, replaced: false, streamed: false };
            return write(connection, target, asked, (&manner, drawn)).await;
        }
    };
    if act.is_missing(key) {
        tally.fault(FaultKind::MissingKey);
    }
    let always_replaced = act.is_changed(key);
    let manner =
        Manner { act, replaced: always_replaced || kind == Some(FaultKind::Changed), streamed: drawn.fault.is_some() };
    let answered = answer(connection, target, asked, &manner).await;
    let status = answered.as_ref().map_or_else(|refusal| refusal.status, |response| response.status());
    if status != StatusCode::NOT_FOUND {
        if always_replaced {
            tally.fault(FaultKind::ChangedKey);
        } else if manner.replaced {
            tally.fault(FaultKind::Changed);
        }
    }
    let response = answered?;
    match drawn.fault {
        Some(fault) if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) => {
            Ok(inflict(connection, fault, &mut drawn, response))
        }
        _ => Ok(Outcome::Proper(response)),
    }
}

/// The answer to what is no `GET` or `HEAD` of an object, with the fault that was drawn for it.
async fn write(
    connection: &Rc<Connection>,
    target: &Target,
    asked: &mut Asked,
    (manner, mut drawn): (&Manner<'_>, Drawn),
) -> Result<Outcome, Refusal> {
    let Some(fault) = drawn.fault else { return answer(connection, target, asked, manner).await.map(Outcome::Proper) };
    let last = asked.promised_bytes().saturating_sub(1);
    let place = fault.at.unwrap_or_else(|| drawn.draws.below(last + 1)).min(last);
    connection.desk.site.tally.fault(fault.kind);
    match fault.kind {
        FaultKind::Reset => {
            asked.read_up_to(place).await;
            Ok(Outcome::Raw(RawReply::silence(End::Reset)))
        }
        FaultKind::Lost => {
            // Whatever comes of it, nobody is told.
            let _ = answer(connection, target, asked, manner).await;
            Ok(Outcome::Raw(RawReply::silence(End::Close)))
        }
        FaultKind::HiddenError => {
            asked.read_up_to(u64::MAX).await;
            let mut response = Refusal::internal().respond("", false);
            *response.status_mut() = StatusCode::OK;
            Ok(Outcome::Proper(response))
        }
        _ => {
            asked.corrupt_at(place);
            answer(connection, target, asked, manner).await.map(Outcome::Proper)
        }
    }
}

/// Puts the fault on the response of a `GET` of an object and counts it. A body without bytes meets no fault of bodies.
fn inflict(connection: &Rc<Connection>, fault: Fault, drawn: &mut Drawn, mut response: Response) -> Outcome {
    let length = response.body().exact_bytes().unwrap_or(0);
    let last = match length.checked_sub(1) {
        Some(last) => last,
        None if matches!(fault.kind, FaultKind::Garbage | FaultKind::OverlongHead | FaultKind::BadStatus) => 0,
        None if fault.kind == FaultKind::WrongEtag => 0,
        None => return Outcome::Proper(response),
    };
    let place = fault.at.unwrap_or_else(|| drawn.draws.below(length)).min(last);
    let off_by = fault.at.unwrap_or_else(|| 1 + drawn.draws.below(LENGTH_ERROR_BYTES_MAX)).max(1);
    if fault.kind != FaultKind::Changed {
        connection.desk.site.tally.fault(fault.kind);
    }
    match fault.kind {
        FaultKind::Reset => Outcome::Raw(RawReply::new(response, None, place, End::Reset)),
        FaultKind::Truncate => Outcome::Raw(RawReply::new(response, None, place, End::Close)),
        FaultKind::Stall => match fault.for_ms {
            None => Outcome::Raw(RawReply::new(response, None, place, End::Hang)),
            Some(ms) => {
                response.body_mut().pause_at(place, Duration::from_millis(ms));
                Outcome::Proper(response)
            }
        },
        FaultKind::LengthLong => {
            let promised = length.saturating_add(off_by);
            Outcome::Raw(RawReply::new(response, Some(promised), length, End::Close))
        }
        FaultKind::LengthShort => {
            let promised = length.saturating_sub(off_by);
            Outcome::Raw(RawReply::new(response, Some(promised), length, End::Close))
        }
        FaultKind::WrongEtag => {
            let etag = response.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok()).unwrap_or_default();
            let wrong = ascii(&other_etag(etag));
            response.headers_mut().insert(header::ETAG, wrong);
            Outcome::Proper(response)
        }
        FaultKind::Garbage => {
            let words = 8 + drawn.draws.below(56);
            let noise = (0..words).flat_map(|_| drawn.draws.word().to_le_bytes()).collect();
            Outcome::Raw(RawReply::noise(noise))
        }
        FaultKind::OverlongHead => {
            let mut head = b"HTTP/1.1 200 OK\r\nx-filler: ".to_vec();
            head.resize(OVERLONG_HEAD_BYTES, b'a');
            Outcome::Raw(RawReply::noise(head))
        }
        FaultKind::BadStatus => {
            let mut reply = RawReply::new(response, None, length, End::Close);
            reply.head.splice(.."HTTP/1.1 200".len(), *b"HTTP/1.1 2O0");
            Outcome::Raw(reply)
        }
        FaultKind::Chunked => {
            response.headers_mut().remove(header::CONTENT_LENGTH);
            Outcome::Proper(response.map(super::payload::Payload::without_length))
        }
        // Changed is already in the answer; the rest is never drawn.
        _ => Outcome::Proper(response),
    }
}

/// Ends the connection after its scripted number of requests.
fn close_on_count(connection: &Connection, act: &Act, number: u32, outcome: Outcome) -> Outcome {
    let Outcome::Proper(mut response) = outcome else { return outcome };
    let tally = &connection.desk.site.tally;
    if act.script.drop_after_requests.is_some_and(|most| number >= most) {
        tally.fault(FaultKind::DropAfter);
        return Outcome::Raw(RawReply::new(response, None, u64::MAX, End::Close));
    }
    if act.script.close_after_requests.is_some_and(|most| number >= most) {
        tally.fault(FaultKind::CloseAfter);
        response.headers_mut().insert(header::CONNECTION, ascii("close"));
    }
    Outcome::Proper(response)
}
