//! What is written: objects in one request, and in parts as S3 and Azure have them.

use std::rc::Rc;
use std::sync::Arc;

use hyper::{StatusCode, header};
use tokio::task::spawn_blocking;

use super::asked::Asked;
use super::conditions::{PutCondition, text};
use super::desk::{Desk, Site};
use super::documents::{LIST_BYTES_MAX, Named, begun, completed, parse_list};
use super::notation::checksum_text;
use super::payload::Payload;
use super::refusal::Refusal;
use super::reply::{Response, ascii, bare, xml};
use super::sums::{Summed, Sums, check, of_parts, promises_md5};
use super::target::Step;
use crate::store::{Draft, MadeOfParts, Part, PartFile, Uploads};

/// Largest object in one request, as S3.
const PUT_BYTES_MAX: u64 = 5 << 30;
/// Longest block id, as Azure.
const BLOCK_ID_BYTES_MAX: usize = 88;

/// Where a body goes.
enum Sink {
    Object(Draft),
    Part(PartFile),
}

impl Sink {
    async fn write(mut self, bytes: hyper::body::Bytes) -> Result<Sink, Refusal> {
        if let Sink::Object(memory @ Draft::Memory(_)) = &mut self {
            memory.write(&bytes)?;
            return Ok(self);
        }
        aside(move || {
            match &mut self {
                Sink::Object(draft) => draft.write(&bytes)?,
                Sink::Part(part) => part.write(&bytes)?,
            }
            Ok(self)
        })
        .await
    }
}

/// What may wait for a disk, on a thread that may.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T, Refusal> + Send + 'static) -> Result<T, Refusal> {
    spawn_blocking(work).await.unwrap_or_else(|_| Err(Refusal::internal()))
}

/// An object in one request.
pub(super) async fn put(desk: &Rc<Desk>, key: &str, asked: &mut Asked) -> Result<Response, Refusal> {
    let headers = &asked.parts.headers;
    if headers.contains_key("x-amz-copy-source") {
        return Err(Refusal::not_implemented("Objects cannot be copied here."));
    }
    if text(headers, &header::CONTENT_ENCODING).is_some_and(|coding| coding.contains("aws-chunked")) {
        return Err(Refusal::not_implemented("Signed chunks are not decoded: send the body plainly."));
    }
    let for_azure = headers.contains_key("x-ms-blob-type");
    let condition = PutCondition::of(headers, for_azure);
    desk.site.store.check_writable()?;
    if !condition.is_any() {
        condition.check(desk.find(key).await.ok().map(|there| there.etag).as_deref())?;
    }
    let (site, owned) = (Arc::clone(&desk.site), key.to_owned());
    let draft = aside(move || site.store.begin(&owned)).await?;
    let bytes_max = desk.site.store.object_bytes_max().min(PUT_BYTES_MAX);
    let (sink, _) = take_in(asked, false, bytes_max, Sink::Object(draft)).await?;
    let Sink::Object(draft) = sink else { return Err(Refusal::internal()) };
    let (site, owned) = (Arc::clone(&desk.site), key.to_owned());
    let etag = aside(move || site.store.finish(&owned, (draft, None), &condition)).await?;
    Ok(bare(if for_azure { StatusCode::CREATED } else { StatusCode::OK }, &etag))
}

/// One step of an upload in parts.
pub(super) async fn step(desk: &Rc<Desk>, key: &str, step: &Step, asked: &mut Asked) -> Result<Response, Refusal> {
    let site = &desk.site;
    site.store.check_writable()?;
    match step {
        Step::Create => {
            let id = site.uploads.begin(key)?;
            Ok(xml(hyper::Response::builder(), begun(&site.bucket, key, &id), false))
        }
        Step::Part { upload, number } => {
            if !(1..=site.uploads.limits.parts_max).contains(number) {
                return Err(Refusal::invalid_argument(format!("There is no part {number}.")));
            }
            let summed = part(site, key, (upload, &numbered(*number)), asked).await?;
            let mut response = bare(StatusCode::OK, &summed.etag());
            if site.checksums.is_some() {
                response.headers_mut().insert("x-amz-checksum-crc32c", ascii(&checksum_text(summed.crc32c)));
            }
            Ok(response)
        }
        Step::Block { id } => {
            if id.is_empty() || id.len() > BLOCK_ID_BYTES_MAX {
                return Err(Refusal::invalid_argument("A block id has 1 to 64 bytes, in Base64."));
            }
            let upload = site.uploads.blocks_of(key)?;
            part(site, key, (&upload, id), asked).await?;
            Ok(empty(StatusCode::CREATED))
        }
        Step::Complete { upload } => complete(site, key, upload, asked).await,
        Step::BlockList => list_blocks(desk, key, asked).await,
        Step::Abort { upload } => {
            site.uploads.end(upload, key)?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
    }
}

fn numbered(number: u32) -> String {
    format!("{number:05}")
}

fn empty(status: StatusCode) -> Response {
    let mut response = hyper::Response::new(Payload::empty());
    *response.status_mut() = status;
    response
}

/// Keeps a body as a part.
async fn part(site: &Arc<Site>, key: &str, (upload, name): (&str, &str), asked: &mut Asked) -> Result<Summed, Refusal> {
    let (begun, id, owned) = (Arc::clone(site), upload.to_owned(), key.to_owned());
    let file = aside(move || begun.uploads.part(&id, &owned)).await?;
    let (sink, summed) = take_in(asked, true, site.uploads.limits.part_bytes_max, Sink::Part(file)).await?;
    let Sink::Part(file) = sink else { return Err(Refusal::internal()) };
    site.uploads.keep((upload, key), name.to_owned(), file, summed)?;
    Ok(summed)
}

/// Reads a body to its end. It is what its headers promised, or refused.
async fn take_in(asked: &mut Asked, with_md5: bool, bytes_max: u64, mut sink: Sink) -> Result<(Sink, Summed), Refusal> {
    let expected = asked.promised_bytes();
    if expected > bytes_max {
        return Err(Refusal::too_large(expected, bytes_max));
    }
    let mut sums = Sums::new(with_md5 || promises_md5(&asked.parts.headers));
    while let Some(frame) = asked.next_frame().await? {
        sums.add(&frame);
        if sums.bytes() > bytes_max {
            return Err(Refusal::too_large(sums.bytes(), bytes_max));
        }
        sink = sink.write(frame).await?;
    }
    let summed = sums.finish();
    check(&asked.parts.headers, &summed)?;
    Ok((sink, summed))
}

async fn read_list(asked: &mut Asked) -> Result<Vec<Named>, Refusal> {
    let mut document = Vec::new();
    while let Some(frame) = asked.next_frame().await? {
        if document.len() + frame.len() > LIST_BYTES_MAX {
            return Err(Refusal::too_large((document.len() + frame.len()) as u64, LIST_BYTES_MAX as u64));
        }
        document.extend_from_slice(&frame);
    }
    parse_list(&document)
}

/// Makes an object of S3's parts.
async fn complete(site: &Arc<Site>, key: &str, upload: &str, asked: &mut Asked) -> Result<Response, Refusal> {
    let mut list = read_list(asked).await?;
    let mut last = 0;
    for part in &mut list {
        let number: u32 = part.name.parse().map_err(|_| Refusal::invalid_part(&part.name))?;
        if number <= last {
            let message = "The list of parts was not in ascending order.";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "InvalidPartOrder", message));
        }
        last = number;
        part.name = numbered(number);
    }
    let parts = site.uploads.named(upload, key, list.iter().map(|part| part.name.as_str()))?;
    for (named, part) in list.iter().zip(&parts) {
        let etag_holds = named.etag.as_deref() == Some(part.sums.etag().trim_matches('"'));
        let checksum_holds = named.crc32c.as_ref().is_none_or(|sum| *sum == checksum_text(part.sums.crc32c));
        if !(etag_holds && checksum_holds) {
            return Err(Refusal::invalid_part(&named.name));
        }
    }
    let least = site.uploads.limits.part_bytes_min;
    if parts.iter().rev().skip(1).any(|part| part.sums.bytes < least) {
        let message = format!("A part other than the last has fewer than {least} bytes.");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "EntityTooSmall", message));
    }
    let (etag, checksum) = of_parts(parts.iter().map(|part| &part.sums));
    let condition = PutCondition::of(&asked.parts.headers, false);
    let etag = join(site, key, (parts, Some(MadeOfParts { etag, checksum })), condition).await?;
    // Another request may have completed it meanwhile, to the same end.
    let _ = site.uploads.end(upload, key);
    Ok(xml(hyper::Response::builder(), completed(&site.bucket, key, &etag), false))
}

/// Makes an object of Azure's blocks. The same list again is the same object.
async fn list_blocks(desk: &Rc<Desk>, key: &str, asked: &mut Asked) -> Result<Response, Refusal> {
    let site = &desk.site;
    let names: Vec<String> = read_list(asked).await?.into_iter().map(|part| part.name).collect();
    let condition = PutCondition::of(&asked.parts.headers, true);
    let upload = Uploads::blocks_id(key);
    let Ok(parts) = site.uploads.named(&upload, key, names.iter().map(String::as_str)) else {
        let there = desk.find(key).await.ok().map(|there| there.etag);
        condition.check(there.as_deref())?;
        return match there {
            Some(etag) if site.uploads.is_listed(key, &names) => Ok(bare(StatusCode::CREATED, &etag)),
            _ => {
                let message = "The specified block list is invalid.";
                Err(Refusal::new(StatusCode::BAD_REQUEST, "InvalidBlockList", message))
            }
        };
    };
    let etag = join(site, key, (parts, None), condition).await?;
    site.uploads.list(key, names);
    Ok(bare(StatusCode::CREATED, &etag))
}

async fn join(
    site: &Arc<Site>,
    key: &str,
    (parts, made): (Vec<Arc<Part>>, Option<MadeOfParts>),
    condition: PutCondition,
) -> Result<String, Refusal> {
    let (bytes, bytes_max) = (parts.iter().map(|part| part.sums.bytes).sum(), site.store.object_bytes_max());
    if bytes > bytes_max {
        return Err(Refusal::too_large(bytes, bytes_max));
    }
    let (site, key) = (Arc::clone(site), key.to_owned());
    aside(move || {
        let mut draft = site.store.begin(&key)?;
        for part in &parts {
            draft.append(&key, part)?;
        }
        site.store.finish(&key, (draft, made), &condition)
    })
    .await
}
