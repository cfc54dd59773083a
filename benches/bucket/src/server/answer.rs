//! The honest answer to a request, before any fault is put on it.

use std::rc::Rc;
use std::sync::Arc;

use hyper::header;
use hyper::{HeaderMap, StatusCode};
use tokio::task::spawn_blocking;

use super::asked::Asked;
use super::conditions::{Verdict, judge};
use super::connection::Connection;
use super::desk::{CHECKSUM_OBJECT_BYTES_MAX, Checksums, Desk};
use super::list;
use super::notation::{checksum_text, http_date};
use super::pacing::Pacing;
use super::payload::{Payload, Stream};
use super::pool::{Chunk, FRAME_BYTES};
use super::refusal::Refusal;
use super::reply::{Response, ascii, bare, xml};
use super::target::Target;
use super::writing;
use crate::script::Act;
use crate::store::Object;

/// How the script wants an object's answer.
pub(crate) struct Manner<'a> {
    pub(crate) act: &'a Arc<Act>,
    /// Answer as if the object had been replaced since the listing.
    pub(crate) replaced: bool,
    /// Never in one piece: a fault will be put on the body.
    pub(crate) streamed: bool,
}

pub(crate) async fn answer(
    connection: &Rc<Connection>,
    target: &Target,
    asked: &mut Asked,
    manner: &Manner<'_>,
) -> Result<Response, Refusal> {
    let desk = &connection.desk;
    match target {
        Target::Get(key) => {
            let object = find(desk, key, manner).await?;
            get(connection, key, object, &asked.parts.headers, manner).await
        }
        Target::Head(key) => {
            let object = find(desk, key, manner).await?;
            head(desk, key, object, &asked.parts.headers).await
        }
        Target::Put(key) => writing::put(desk, key, asked).await,
        Target::Upload(key, step) => writing::step(desk, key, step, asked).await,
        Target::HeadBucket => Ok(hyper::Response::new(Payload::empty())),
        Target::List(query) => {
            let page = if desk.site.store.blocks() {
                let (site, query) = (Arc::clone(&desk.site), query.clone());
                spawn_blocking(move || site.store.list(&query)).await.unwrap_or_else(|_| Err(Refusal::internal()))?
            } else {
                desk.site.store.list(query)?
            };
            Ok(xml(hyper::Response::builder(), list::document(&desk.site.bucket, query, &page), false))
        }
    }
}

async fn find(desk: &Desk, key: &str, manner: &Manner<'_>) -> Result<Object, Refusal> {
    if manner.act.is_missing(key) {
        return Err(Refusal::no_such_key(key));
    }
    let object = desk.find(key).await?;
    Ok(if manner.replaced { object.replaced() } else { object })
}

async fn get(
    connection: &Rc<Connection>,
    key: &str,
    object: Object,
    headers: &HeaderMap,
    manner: &Manner<'_>,
) -> Result<Response, Refusal> {
    let desk = &connection.desk;
    let (status, range) = match judge(headers, &object.etag, object.size) {
        Verdict::Whole => (StatusCode::OK, 0..object.size),
        Verdict::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        other => return refused(&other, &object),
    };
    let is_small = object.size <= FRAME_BYTES as u64;
    let in_one_piece = is_small && status == StatusCode::OK && !manner.streamed && !manner.act.is_paced();
    let (payload, checksum) = if in_one_piece {
        let chunk = read(desk, key, &object).await?;
        let checksum = match (&desk.site.checksums, &object.parts_checksum) {
            (None, _) => None,
            (_, Some(of_parts)) => Some(of_parts.clone()),
            (Some(known), None) => Some(checksum_text(known.of(key, &object.etag, &chunk))),
        };
        desk.site.tally.body(object.size as usize);
        (Payload::whole(chunk), checksum)
    } else {
        let checksum = checksum(desk, key, &object).await?;
        let stream =
            Stream::new(object.content.clone(), range.clone(), desk, Pacing::new(&connection.bandwidth, manner.act));
        (Payload::stream(stream), checksum)
    };
    let mut response = described(&object, payload, checksum, range.end - range.start);
    if status == StatusCode::PARTIAL_CONTENT {
        *response.status_mut() = status;
        let content_range = format!("bytes {}-{}/{}", range.start, range.end - 1, object.size);
        response.headers_mut().insert(header::CONTENT_RANGE, ascii(&content_range));
    }
    Ok(response)
}

async fn head(desk: &Rc<Desk>, key: &str, object: Object, headers: &HeaderMap) -> Result<Response, Refusal> {
    match judge(headers, &object.etag, object.size) {
        Verdict::Whole => {
            let checksum = checksum(desk, key, &object).await?;
            Ok(described(&object, Payload::empty(), checksum, object.size))
        }
        Verdict::Part(range) => {
            let checksum = checksum(desk, key, &object).await?;
            let mut response = described(&object, Payload::empty(), checksum, range.end - range.start);
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let content_range = format!("bytes {}-{}/{}", range.start, range.end - 1, object.size);
            response.headers_mut().insert(header::CONTENT_RANGE, ascii(&content_range));
            Ok(response)
        }
        other => refused(&other, &object),
    }
}

fn refused(verdict: &Verdict, object: &Object) -> Result<Response, Refusal> {
    match verdict {
        Verdict::NotModified => Ok(bare(StatusCode::NOT_MODIFIED, &object.etag)),
        Verdict::Failed => Err(Refusal::precondition_failed()),
        _ => Err(Refusal::invalid_range(object.size)),
    }
}

/// 200 with everything that describes the object.
fn described(object: &Object, payload: Payload, checksum: Option<String>, length: u64) -> Response {
    let mut response = hyper::Response::new(payload);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length.into());
    headers.insert(header::CONTENT_TYPE, ascii("binary/octet-stream"));
    headers.insert(header::ACCEPT_RANGES, ascii("bytes"));
    headers.insert(header::ETAG, ascii(&object.etag));
    headers.insert(header::LAST_MODIFIED, ascii(&http_date(object.modified_s)));
    if let Some(checksum) = checksum {
        headers.insert("x-amz-checksum-crc32c", ascii(&checksum));
    }
    response
}

/// The whole of a small object.
async fn read(desk: &Rc<Desk>, key: &str, object: &Object) -> Result<Chunk, Refusal> {
    let bytes = object.size as usize;
    let mut buffer = desk.pool.take(bytes);
    if !object.content.blocks() {
        object.content.read_at(0, &mut buffer[..bytes]).map_err(|e| Refusal::from_io(key, &e))?;
        return Ok(Chunk::pooled(buffer, bytes, &desk.pool));
    }
    let content = object.content.clone();
    let read = spawn_blocking(move || content.read_at(0, &mut buffer[..bytes]).map(|()| buffer)).await;
    let buffer = read.map_err(|_| Refusal::internal())?.map_err(|e| Refusal::from_io(key, &e))?;
    Ok(Chunk::pooled(buffer, bytes, &desk.pool))
}

/// CRC-32C of the whole object when it is small enough and checksums are on; of one that came in parts that over its parts.
async fn checksum(desk: &Rc<Desk>, key: &str, object: &Object) -> Result<Option<String>, Refusal> {
    let Some(known) = &desk.site.checksums else { return Ok(None) };
    if object.parts_checksum.is_some() || object.size > CHECKSUM_OBJECT_BYTES_MAX {
        return Ok(object.parts_checksum.clone());
    }
    let checksum = match known.get(Checksums::identity(key, &object.etag)) {
        Some(checksum) => checksum,
        None => known.of(key, &object.etag, &read(desk, key, object).await?),
    };
    Ok(Some(checksum_text(checksum)))
}

impl Checksums {
    /// The object's checksum, computed from its whole content only when it is not known yet.
    fn of(&self, key: &str, etag: &str, whole: &Chunk) -> u32 {
        let identity = Checksums::identity(key, etag);
        self.get(identity).unwrap_or_else(|| {
            let checksum = crc32c::crc32c(hyper::body::Buf::chunk(whole));
            self.insert(identity, checksum);
            checksum
        })
    }
}
