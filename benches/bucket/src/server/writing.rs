//! Write requests: puts, copies and deletes of objects, and multipart uploads as in S3 and Azure.

use std::sync::Arc;

use serde::Deserialize;

use super::conditions::{PutCondition, text};
use super::refusal::{Refusal, decode, document, iso_date, xml_text};
use super::reply::Reply;
use super::request::Request;
use super::sums::{Summed, Sums, checksum_text, of_parts, promises_md5};
use super::target::Target;
use super::{FRAME_BYTES, Hosted, Worker};
use crate::script::Operation;
use crate::store::{BLOCKS, Draft, MadeOfParts, Object, Part};

/// Largest object in one request, as in S3.
const PUT_BYTES_MAX: u64 = 5 << 30;
/// Longest block id, as in Azure.
const BLOCK_ID_BYTES_MAX: usize = 88;
/// Largest list of parts: enough for Azure's 50 000 blocks.
const LIST_BYTES_MAX: usize = 8 << 20;

/// The parts of S3's `CompleteMultipartUpload` or Azure's `BlockList`, in document order.
#[derive(Deserialize)]
struct List {
    #[serde(rename = "$value", default)]
    parts: Vec<Listed>,
}

#[derive(Deserialize)]
enum Listed {
    Part {
        #[serde(rename = "PartNumber")]
        number: u32,
        #[serde(rename = "ETag")]
        etag: Option<String>,
        #[serde(rename = "ChecksumCRC32C")]
        crc32c: Option<String>,
    },
    Latest(String),
    Uncommitted(String),
}

/// Puts an object in one request, from its body or as a copy.
pub(super) async fn put(
    worker: &Worker,
    bucket: &Arc<Hosted>,
    key: &str,
    request: &mut Request<'_>,
) -> Result<Reply, Refusal> {
    let for_azure = request.parts.headers.contains_key("x-ms-blob-type");
    let condition = PutCondition::of(&request.parts.headers, for_azure);
    bucket.store.check_writable()?;
    let from = text(&request.parts.headers, "x-amz-copy-source").map(str::to_owned);
    let owned = key.to_owned();
    let draft = worker.on(bucket, move |bucket| bucket.store.begin(Some(&owned))).await?;
    let draft = match &from {
        Some(from) => copied(worker, from, draft).await?,
        None => {
            let bytes_max = bucket.store.object_bytes_max().min(PUT_BYTES_MAX);
            take_in(worker, bucket, request, (bytes_max, None), draft).await?.0
        }
    };
    let owned = key.to_owned();
    let object = worker.on(bucket, move |bucket| bucket.store.finish(&owned, (draft, None), &condition)).await?;
    if from.is_some() {
        let (etag, date) = (xml_text(&object.etag), iso_date(object.modified_s));
        let inner = format!("<ETag>{etag}</ETag><LastModified>{date}</LastModified>");
        return Ok(Reply::xml(200, document("CopyObjectResult", &inner)));
    }
    Ok(Reply::tagged(if for_azure { 201 } else { 200 }, &object.etag))
}

/// Fills a draft with the bytes of another object, named as `/bucket/key`.
async fn copied(worker: &Worker, from: &str, mut draft: Draft) -> Result<Draft, Refusal> {
    let from = decode(from.split('?').next().unwrap_or_default())?;
    let named = from.trim_start_matches('/').split_once('/');
    let (name, key) = named.ok_or_else(|| Refusal::new("InvalidArgument", "The copy source is not /bucket/key."))?;
    let no_such = || Refusal::new("NoSuchBucket", format!("There is no bucket `{name}` on this server."));
    let (bucket, key) = (worker.site.buckets.get(name).ok_or_else(no_such)?, key.to_owned());
    worker
        .on(bucket, move |bucket| {
            let object = bucket.store.find(&key)?;
            let mut bytes = vec![0; FRAME_BYTES];
            let mut at = 0;
            while at < object.size {
                let step = bytes.len().min((object.size - at) as usize);
                object.content.read_at(at, &mut bytes[..step]).map_err(|e| Refusal::from_io(&key, &e))?;
                draft.write(&bytes[..step]).map_err(|e| Refusal::from_io(&key, &e))?;
                at += step as u64;
            }
            Ok(draft)
        })
        .await
}

/// Deletes an object. A missing object is not an error, as in S3.
pub(super) async fn delete(worker: &Worker, bucket: &Arc<Hosted>, key: &str) -> Result<Reply, Refusal> {
    bucket.store.check_writable()?;
    let key = key.to_owned();
    worker.on(bucket, move |bucket| bucket.store.delete(&key)).await?;
    Ok(Reply::empty(204))
}

/// Handles one step of a multipart upload.
pub(super) async fn step(
    worker: &Worker,
    bucket: &Arc<Hosted>,
    target: &Target,
    request: &mut Request<'_>,
) -> Result<Reply, Refusal> {
    let (uploads, key) = (&bucket.uploads, target.key.as_str());
    bucket.store.check_writable()?;
    match (target.operation, target.upload.as_deref()) {
        (Operation::Create, _) => {
            let id = uploads.begin(key)?;
            let (name, key) = (xml_text(&bucket.name), xml_text(key));
            let inner = format!("<Bucket>{name}</Bucket><Key>{key}</Key><UploadId>{id}</UploadId>");
            Ok(Reply::xml(200, document("InitiateMultipartUploadResult", &inner)))
        }
        (Operation::Part, Some(upload)) => {
            let number = target.part.parse().unwrap_or(0);
            if !(1..=uploads.limits.parts_max).contains(&number) {
                return Err(Refusal::new("InvalidArgument", format!("There is no part {number}.")));
            }
            let summed = part(worker, bucket, (key, upload, numbered(number)), request).await?;
            let mut reply = Reply::tagged(200, &summed.etag());
            if worker.site.checksums.is_some() {
                reply.headers.push(("x-amz-checksum-crc32c", checksum_text(summed.crc32c)));
            }
            Ok(reply)
        }
        (Operation::Part, None) => {
            if target.part.is_empty() || target.part.len() > BLOCK_ID_BYTES_MAX {
                return Err(Refusal::new("InvalidArgument", "A block id has 1 to 64 bytes, in Base64."));
            }
            uploads.begin_as(BLOCKS, key)?;
            part(worker, bucket, (key, BLOCKS, target.part.clone()), request).await?;
            Ok(Reply::empty(201))
        }
        (Operation::Complete, Some(upload)) => complete(worker, bucket, (key, upload), request).await,
        (Operation::Complete, None) => list_blocks(worker, bucket, key, request).await,
        (_, upload) => {
            uploads.end(upload.unwrap_or_default(), key)?;
            Ok(Reply::empty(204))
        }
    }
}

/// Formats a part number so that parts sort by it.
fn numbered(number: u32) -> String {
    format!("{number:05}")
}

/// Stores a body as a part.
async fn part(
    worker: &Worker,
    bucket: &Arc<Hosted>,
    (key, upload, name): (&str, &str, String),
    request: &mut Request<'_>,
) -> Result<Summed, Refusal> {
    let room = bucket.uploads.room(upload, key)?;
    let draft = worker.on(bucket, |bucket| bucket.store.begin(None)).await?;
    let (draft, sums) =
        take_in(worker, bucket, request, (bucket.uploads.limits.part_bytes_max, Some(room)), draft).await?;
    bucket.uploads.keep((upload, key), name, Part { draft, sums })?;
    Ok(sums)
}

/// Reads a body to its end, and rejects it when it is not what its headers declared. A part has limited room, and always an MD5.
async fn take_in(
    worker: &Worker,
    bucket: &Arc<Hosted>,
    request: &mut Request<'_>,
    (bytes_max, room): (u64, Option<u64>),
    mut draft: Draft,
) -> Result<(Draft, Summed), Refusal> {
    let expected = request.promised_bytes();
    if expected > bytes_max {
        return Err(Refusal::too_large(expected, bytes_max));
    }
    let mut sums = Sums::new(room.is_some() || promises_md5(&request.parts.headers), worker.site.key.is_some());
    while let Some(frame) = request.next_frame().await? {
        sums.add(&frame);
        if sums.summed.bytes > bytes_max {
            return Err(Refusal::too_large(sums.summed.bytes, bytes_max));
        }
        if room.is_some_and(|room| sums.summed.bytes > room) {
            return Err(Refusal::disk_full());
        }
        draft = worker
            .on(bucket, move |_| match draft.write(&frame) {
                Ok(()) => Ok(draft),
                Err(e) => Err(Refusal::from_io("a draft", &e)),
            })
            .await?;
    }
    Ok((draft, sums.checked(&request.parts.headers)?))
}

async fn read_list(request: &mut Request<'_>) -> Result<Vec<Listed>, Refusal> {
    let mut document = Vec::new();
    while let Some(frame) = request.next_frame().await? {
        if document.len() + frame.len() > LIST_BYTES_MAX {
            return Err(Refusal::too_large((document.len() + frame.len()) as u64, LIST_BYTES_MAX as u64));
        }
        document.extend_from_slice(&frame);
    }
    parse_list(&document)
}

fn parse_list(document: &[u8]) -> Result<Vec<Listed>, Refusal> {
    let list = quick_xml::de::from_reader(document).ok().filter(|list: &List| !list.parts.is_empty());
    list.map(|list| list.parts)
        .ok_or_else(|| Refusal::new("MalformedXML", "The list of parts is not well-formed, or has no parts."))
}

/// Makes an object of S3's parts.
async fn complete(
    worker: &Worker,
    bucket: &Arc<Hosted>,
    (key, upload): (&str, &str),
    request: &mut Request<'_>,
) -> Result<Reply, Refusal> {
    let mut parts: Vec<Arc<Part>> = Vec::new();
    let mut last = 0;
    for listed in read_list(request).await? {
        let Listed::Part { number, etag, crc32c } = listed else { return Err(Refusal::invalid_part("a block")) };
        if number <= last {
            return Err(Refusal::new("InvalidPartOrder", "The list of parts was not in ascending order."));
        }
        last = number;
        let part = bucket.uploads.part((upload, key), &numbered(number))?;
        let etag_holds = etag.is_some_and(|etag| etag.trim_matches('"') == part.sums.etag().trim_matches('"'));
        if !etag_holds || crc32c.is_some_and(|sum| sum != checksum_text(part.sums.crc32c)) {
            return Err(Refusal::invalid_part(&number.to_string()));
        }
        parts.push(part);
    }
    let least = bucket.uploads.limits.part_bytes_min;
    if parts.iter().rev().skip(1).any(|part| part.sums.bytes < least) {
        let message = format!("A part other than the last has fewer than {least} bytes.");
        return Err(Refusal::new("EntityTooSmall", message));
    }
    let made = of_parts(parts.iter().map(|part| &part.sums));
    let condition = PutCondition::of(&request.parts.headers, false);
    let object = join(worker, bucket, key, (parts, Some(made)), condition).await?;
    // Another request may have completed it meanwhile, with the same result.
    let _ = bucket.uploads.end(upload, key);
    let (name, key, etag) = (xml_text(&bucket.name), xml_text(key), xml_text(&object.etag));
    let inner = format!("<Bucket>{name}</Bucket><Key>{key}</Key><ETag>{etag}</ETag>");
    Ok(Reply::xml(200, document("CompleteMultipartUploadResult", &inner)))
}

/// Makes an object of Azure's blocks. Repeating a list gives the same object.
async fn list_blocks(
    worker: &Worker,
    bucket: &Arc<Hosted>,
    key: &str,
    request: &mut Request<'_>,
) -> Result<Reply, Refusal> {
    let name = |listed| match listed {
        Listed::Latest(id) | Listed::Uncommitted(id) => Ok(id),
        Listed::Part { number, .. } => Err(Refusal::invalid_part(&number.to_string())),
    };
    let names: Vec<String> = read_list(request).await?.into_iter().map(name).collect::<Result<_, _>>()?;
    let condition = PutCondition::of(&request.parts.headers, true);
    let parts = names.iter().map(|name| bucket.uploads.part((BLOCKS, key), name));
    let Ok(parts) = parts.collect::<Result<_, _>>() else {
        let owned = key.to_owned();
        let there = worker.on(bucket, move |bucket| bucket.store.find(&owned)).await.ok().map(|there| there.etag);
        condition.check(there.as_deref())?;
        return match there {
            Some(etag) if bucket.uploads.is_listed(key, &names) => Ok(Reply::tagged(201, &etag)),
            _ => Err(Refusal::new("InvalidBlockList", "The specified block list is invalid.")),
        };
    };
    let object = join(worker, bucket, key, (parts, None), condition).await?;
    bucket.uploads.list(key, names);
    let _ = bucket.uploads.end(BLOCKS, key);
    Ok(Reply::tagged(201, &object.etag))
}

async fn join(
    worker: &Worker,
    bucket: &Arc<Hosted>,
    key: &str,
    (parts, made): (Vec<Arc<Part>>, Option<MadeOfParts>),
    condition: PutCondition,
) -> Result<Object, Refusal> {
    let (bytes, bytes_max) = (parts.iter().map(|part| part.sums.bytes).sum(), bucket.store.object_bytes_max());
    if bytes > bytes_max {
        return Err(Refusal::too_large(bytes, bytes_max));
    }
    let key = key.to_owned();
    worker
        .on(bucket, move |bucket| {
            let mut draft = bucket.store.begin(Some(&key))?;
            for part in &parts {
                draft.append(&part.draft).map_err(|e| Refusal::from_io(&key, &e))?;
            }
            bucket.store.finish(&key, (draft, made), &condition)
        })
        .await
}
