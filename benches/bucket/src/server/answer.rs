//! The honest answer to a request that reads, before any fault is put on it.

use std::sync::Arc;

use http::Method;
use http::request::Parts;
use xxhash_rust::xxh3::xxh3_64;

use super::conditions::{Verdict, judge, precondition_failed};
use super::list::{self, ListQuery};
use super::refusal::{Refusal, document, http_date, iso_date, xml_text};
use super::reply::{Body, Length, Reply, read};
use super::sums::checksum_text;
use super::{FRAME_BYTES, Hosted, Site, Worker};
use crate::store::{GENERATED_MODIFIED_S, Object};

/// Objects up to this size carry a checksum.
const CHECKSUM_OBJECT_BYTES_MAX: u64 = 1 << 20;
/// Checksums remembered; beyond it all are forgotten and computed again.
const CHECKSUMS_MAX: usize = 1 << 20;

/// An object, or the part of it that the request wants; for a `HEAD`, what describes it.
pub(super) async fn object(worker: &Worker, key: &str, object: &Object, request: &Parts) -> Result<Reply, Refusal> {
    let (is_part, range) = match judge(&request.headers, &object.etag, object.size) {
        Verdict::Whole => (false, 0..object.size),
        Verdict::Part(range) => (true, range),
        Verdict::NotModified => return Ok(Reply::tagged(304, &object.etag)),
        Verdict::Failed => return Err(precondition_failed()),
        Verdict::Unsatisfiable => {
            let header = Some(("content-range", format!("bytes */{}", object.size)));
            let message = format!("The range starts past the object's {} bytes.", object.size);
            return Err(Refusal { header, ..Refusal::new("InvalidRange", message) });
        }
    };
    let length = range.end - range.start;
    let content_range = format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), object.size);
    let body = if request.method == Method::HEAD {
        Body::Document(Vec::new())
    } else if is_part || object.size > FRAME_BYTES as u64 {
        Body::Part(object.content.clone(), range)
    } else {
        // Read at once: the checksum needs all of it.
        let buffer = read(worker, &object.content, 0, length as usize).await.map_err(|e| Refusal::from_io(key, &e))?;
        Body::Whole(buffer, length as usize)
    };
    let checksum = checksum(worker, key, object, &body).await?;
    let mut reply = Reply::tagged(if is_part { 206 } else { 200 }, &object.etag);
    (reply.body, reply.length) = (body, Length::Is(length));
    reply.headers.extend([
        ("content-type", "binary/octet-stream".to_owned()),
        ("accept-ranges", "bytes".to_owned()),
        ("last-modified", http_date(object.modified_s)),
    ]);
    reply.headers.extend(checksum.map(|checksum| ("x-amz-checksum-crc32c", checksum)));
    reply.headers.extend(is_part.then_some(("content-range", content_range)));
    Ok(reply)
}

/// CRC-32C of the whole object when it is small enough and checksums are on; of one that came in parts that over its parts.
async fn checksum(worker: &Worker, key: &str, object: &Object, body: &Body) -> Result<Option<String>, Refusal> {
    let Some(known) = &worker.site.checksums else { return Ok(None) };
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
        let buffer = read(worker, &object.content, 0, bytes).await.map_err(|e| Refusal::from_io(key, &e))?;
        let checksum = crc32c::crc32c(&buffer[..bytes]);
        worker.give_back(buffer);
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
pub(super) async fn list(worker: &Worker, bucket: &Arc<Hosted>, query: &ListQuery) -> Result<Reply, Refusal> {
    let asked = query.clone();
    let page = worker.on(bucket, move |bucket| bucket.store.list(&asked)).await?;
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
