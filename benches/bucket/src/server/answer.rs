//! Correct responses to read requests, before any fault is applied.

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

/// Objects up to this size have a checksum.
const CHECKSUM_OBJECT_BYTES_MAX: u64 = 1 << 20;
/// Most checksums remembered; beyond it all are dropped and computed again.
const CHECKSUMS_MAX: usize = 1 << 20;

/// Responds with an object or the requested range of it; to a `HEAD`, with its headers.
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
        // Read at once: the checksum needs all bytes.
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

/// The CRC-32C of the whole object when it is small enough and checksums are on; a multipart object has that of its parts' checksums.
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

/// Responds with a page of a listing.
pub(super) async fn list(worker: &Worker, bucket: &Arc<Hosted>, query: &ListQuery) -> Result<Reply, Refusal> {
    let asked = query.clone();
    let page = worker.on(bucket, move |bucket| bucket.store.list(&asked)).await?;
    Ok(Reply::xml(200, list::listing(&bucket.name, query, &page)))
}

/// Responds with the list of this server's buckets.
pub(super) fn buckets(site: &Site) -> Reply {
    let created = iso_date(GENERATED_MODIFIED_S);
    let bucket = |name: &String| {
        format!("<Bucket><Name>{}</Name><CreationDate>{created}</CreationDate></Bucket>", xml_text(name))
    };
    let buckets: String = site.buckets.keys().map(bucket).collect();
    Reply::xml(200, document("ListAllMyBucketsResult", &format!("<Buckets>{buckets}</Buckets>")))
}
