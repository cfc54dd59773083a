//! An object in one request.
//!
//! The source is read twice, first for its checksum, then for the request, and again for every further attempt.

use super::body::Pieces;
use super::exchange::{AT_A_PROMPT, Answer, Exchange, Likeness};
use super::refusal::Refused;
use super::source::{Digest, PIECE_BYTES, check_end, read_more, rewind};
use super::terms::{Stored, Upload};
use crate::control::{ANSWER_TIMEOUT, Load, within};
use fuelrail_base::Result;
use fuelrail_plan::retry::Tries;
use fuelrail_wire::multipart::checksum;
use fuelrail_wire::{Dialect, base64};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Bytes;
use tokio::sync::mpsc;

/// Pieces that wait to be sent.
const PIECES_WAITING_MAX: usize = 4;

/// Puts it, in as many attempts as it takes.
pub(super) async fn put(
    exchange: &Exchange<'_>,
    source: &mut dyn Upload,
    bytes: u64,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<Stored> {
    let digest = Digest::of(source, bytes, exchange.dialect() == Dialect::Azure)?;
    let (mut tries, mut unsure) = (Tries::default(), false);
    loop {
        let refused = match send(exchange, source, &digest, progress).await {
            Ok(answer) => return Ok(Stored { bytes, etag: answer.etag() }),
            Err(refused) => refused,
        };
        // An earlier attempt, whose answer was lost, may be what is there now.
        if refused.is_condition() && unsure {
            let md5 = digest.md5.map(|md5| base64::encode(&md5));
            let checksums = md5.into_iter().chain([checksum(digest.crc32c)]).collect();
            let like = Likeness { bytes, etag: None, checksums };
            if let Some(etag) = exchange.find(&like).await {
                return Ok(Stored { bytes, etag });
            }
        }
        unsure |= refused.is_unsure();
        match exchange.pause(&mut tries, &refused, AT_A_PROMPT) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(refused.error.attempts(tries.failed())),
        }
    }
}

/// One attempt.
async fn send(
    exchange: &Exchange<'_>,
    source: &mut dyn Upload,
    digest: &Digest,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<Answer, Refused> {
    let (pieces, waiting) = mpsc::channel(PIECES_WAITING_MAX);
    let load: Load = Pieces { waiting, left: digest.bytes }.boxed_unsync();
    let mut request = exchange
        .request(Method::PUT, &exchange.target.path)
        .header("content-length", digest.bytes)
        .header("content-type", "application/octet-stream");
    if exchange.dialect() == Dialect::Azure {
        // Without this line it takes nothing.
        request = request.header("x-ms-blob-type", "BlockBlob");
    }
    let request = exchange.conditional(exchange.promise(request, digest.crc32c, digest.md5));
    let mut answer = std::pin::pin!(exchange.send(request, load));
    let response = tokio::select! {
        // A refusal may come before all is sent: then nobody wants the rest.
        biased;
        early = &mut answer => early?,
        fed = feed(source, digest.bytes, pieces, progress) => {
            fed?;
            within(ANSWER_TIMEOUT, answer).await??
        }
    };
    exchange.judge(response, ANSWER_TIMEOUT).await
}

/// Reads the source and passes it on, a piece at a time, as fast as the server takes it.
async fn feed(
    source: &mut dyn Upload,
    bytes: u64,
    pieces: mpsc::Sender<Bytes>,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<()> {
    rewind(source)?;
    let (mut piece, mut sent) = (vec![0; PIECE_BYTES], 0);
    while sent < bytes {
        let most = (bytes - sent).min(PIECE_BYTES as u64) as usize;
        let len = read_more(source, &mut piece[..most])?;
        if sent + len as u64 == bytes {
            // Before the last piece is sent: the object must not appear if it is not all.
            check_end(source)?;
        }
        let passed = within(ANSWER_TIMEOUT, pieces.send(Bytes::copy_from_slice(&piece[..len]))).await?;
        if passed.is_err() {
            // Nobody reads any more: the answer says why.
            return Ok(());
        }
        sent += len as u64;
        progress(sent);
    }
    Ok(())
}
