//! The honest answer to a request that reads, before any fault is put on it.

use std::ops::Range;
use std::sync::Arc;

use http::HeaderMap;
use xxhash_rust::xxh3::xxh3_64;

use super::conditions::{Verdict, judge, precondition_failed};
use super::refusal::{Refusal, document, http_date, iso_date, xml_text};
use super::reply::{Body, Length, Reply, read};
use super::sums::checksum_text;
use super::{Desk, FRAME_BYTES, Hosted, ListQuery, Site, list};
use crate::store::{GENERATED_MODIFIED_S, Object};

/// Objects up to this size carry a checksum.
const CHECKSUM_OBJECT_BYTES_MAX: u64 = 1 << 20;
/// Checksums remembered; beyond it all are forgotten and computed again.
const CHECKSUMS_MAX: usize = 1 << 20;

/// An object, or the part of it that the request wants.
pub(super) async fn get(desk: &Desk, key: &str, object: &Object, headers: &HeaderMap) -> Result<Reply, Refusal> {
    let (is_part, range) = match wanted(object, headers)? {
        Ok(wanted) => wanted,
        Err(reply) => return Ok(reply),
    };
    // Small ones are read at once: their checksum needs all of them.
    let body = if !is_part && object.size <= FRAME_BYTES as u64 {
        let bytes = object.size as usize;
        let buffer = read(desk, &object.content, 0, bytes).await.map_err(|e| Refusal::from_io(key, &e))?;
        Body::Whole(buffer, bytes)
    } else {
        Body::Part(object.content.clone(), range.clone())
    };
    let checksum = checksum(desk, key, object, &body).await?;
    let mut reply = described(object, checksum, (is_part, &range));
    reply.body = body;
    Ok(reply)
}

/// The same without the bytes.
pub(super) async fn head(desk: &Desk, key: &str, object: &Object, headers: &HeaderMap) -> Result<Reply, Refusal> {
    match wanted(object, headers)? {
        Ok((is_part, range)) => {
            let checksum = checksum(desk, key, object, &Body::Document(Vec::new())).await?;
            Ok(described(object, checksum, (is_part, &range)))
        }
        Err(reply) => Ok(reply),
    }
}

/// The range the request wants, and whether it is a part; or the reply without one.
fn wanted(object: &Object, headers: &HeaderMap) -> Result<Result<(bool, Range<u64>), Reply>, Refusal> {
    match judge(headers, &object.etag, object.size) {
        Verdict::Whole => Ok(Ok((false, 0..object.size))),
        Verdict::Part(range) => Ok(Ok((true, range))),
        Verdict::NotModified => Ok(Err(Reply::tagged(304, &object.etag))),
        Verdict::Failed => Err(precondition_failed()),
        Verdict::Unsatisfiable => Err(Refusal::invalid_range(object.size)),
    }
}

/// Everything that describes the object.
fn described(object: &Object, checksum: Option<String>, (is_part, range): (bool, &Range<u64>)) -> Reply {
    let mut reply = Reply::tagged(if is_part { 206 } else { 200 }, &object.etag);
    reply.length = Length::Is(range.end - range.start);
    reply.headers.extend([
        ("content-type", "binary/octet-stream".to_owned()),
        ("accept-ranges", "bytes".to_owned()),
        ("last-modified", http_date(object.modified_s)),
    ]);
    reply.headers.extend(checksum.map(|checksum| ("x-amz-checksum-crc32c", checksum)));
    if is_part {
        let range = format!("bytes {}-{}/{}", range.start, range.end - 1, object.size);
        reply.headers.push(("content-range", range));
    }
    reply
}

/// CRC-32C of the whole object when it is small enough and checksums are on; of one that came in parts that over its parts.
async fn checksum(desk: &Desk, key: &str, object: &Object, body: &Body) -> Result<Option<String>, Refusal> {
    let Some(known) = &desk.site.checksums else { return Ok(None) };
    if object.parts_checksum.is_some() || object.size > CHECKSUM_OBJECT_BYTES_MAX {
        return Ok(object.parts_checksum.clone());
    }
    let identity = xxh3_64(key.as_bytes()) ^ xxh3_64(object.etag.as_bytes()).rotate_left(1);
    let seen = known.lock().expect("no checksum holder panics").get(&identity).copied();
    if let Some(checksum) = seen {
        return Ok(Some(checksum_text(checksum)));
    }
    let bytes = object.size as usize;
    let checksum = if let Body::Whole(buffer, _) = body {
        crc32c::crc32c(&buffer[..bytes])
    } else {
        let buffer = read(desk, &object.content, 0, bytes).await.map_err(|e| Refusal::from_io(key, &e))?;
        let checksum = crc32c::crc32c(&buffer[..bytes]);
        desk.give_back(buffer);
        checksum
    };
    let mut known = known.lock().expect("no checksum holder panics");
    if known.len() >= CHECKSUMS_MAX {
        known.clear();
    }
    known.insert(identity, checksum);
    Ok(Some(checksum_text(checksum)))
}

/// A page of a listing.
pub(super) async fn list(desk: &Desk, bucket: &Arc<Hosted>, query: &ListQuery) -> Result<Reply, Refusal> {
    let asked = query.clone();
    let page = desk.on(bucket, move |bucket| bucket.store.list(&asked)).await?;
    Ok(Reply::xml(200, list::listing(&bucket.name, query, &page)))
}

/// The buckets of this server.
pub(super) fn buckets(site: &Site) -> Reply {
    let created = iso_date(GENERATED_MODIFIED_S);
    let bucket = |name: &String| {
        format!("<Bucket><Name>{}</Name><CreationDate>{created}</CreationDate></Bucket>", xml_text(name))
    };
    let buckets: String = site.buckets.keys().map(bucket).collect();
    Reply::xml(200, document("ListAllMyBucketsResult", &format!("<Buckets>{buckets}</Buckets>")))
}
