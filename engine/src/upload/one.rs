//! An object in one request, and its source: read piece by piece, and held against the length it had at first.
//!
//! The source is read twice, first for its checksum, then for the request, and again for every further attempt.

use super::exchange::{Exchange, Likeness, Stored, Upload};
use crate::client::{ANSWER_TIMEOUT, AT_A_PROMPT, Answer, Ask, Refused, within};
use crate::folder::read_some;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::multipart::checksum;
use fuelrail_wire::{Dialect, base64};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::Method;
use hyper::body::{Bytes, Frame};
use md5::{Digest as _, Md5};
use std::io::SeekFrom;
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
    let mut unsure = false;
    let attempt = async || {
        let refused = match send(exchange, source, &digest, progress).await {
            Ok(answer) => return Ok(answer.etag()),
            Err(refused) => refused,
        };
        // An earlier attempt, whose answer was lost, may be what is there now.
        if refused.is_final && unsure {
            let md5 = digest.md5.map(|md5| base64::encode(&md5));
            let checksums = md5.into_iter().chain([checksum(digest.crc32c)]).collect();
            if let Some(etag) = exchange.find(&Likeness { bytes, etag: None, checksums }).await {
                return Ok(etag);
            }
        }
        unsure |= refused.is_unsure();
        Err(refused)
    };
    let etag = exchange.client.persist(AT_A_PROMPT, attempt).await.map_err(Refused::into_error)?;
    Ok(Stored { bytes, etag })
}

/// One attempt.
async fn send(
    exchange: &Exchange<'_>,
    source: &mut dyn Upload,
    digest: &Digest,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<Answer, Refused> {
    let (pieces, mut waiting) = mpsc::channel::<Bytes>(PIECES_WAITING_MAX);
    // Where it ends before the length that was promised, hyper closes the connection: an object cut short is none.
    let frames = stream::poll_fn(move |cx| waiting.poll_recv(cx)).map(|piece| Ok(Frame::data(piece)));
    let mut ask = Ask::new(Method::PUT, &*exchange.path)
        .header("content-length", digest.bytes)
        .header("content-type", "application/octet-stream");
    if exchange.dialect() == Dialect::Azure {
        // Without this line it takes nothing.
        ask = ask.header("x-ms-blob-type", "BlockBlob");
    }
    let ask = exchange.conditional(exchange.promise(ask, digest.crc32c, digest.md5));
    let mut answer = std::pin::pin!(exchange.client.send(&ask, StreamBody::new(frames).boxed_unsync()));
    let reply = tokio::select! {
        // The server may refuse before all is sent: then the rest is not sent.
        biased;
        early = &mut answer => early?,
        fed = feed(source, digest.bytes, pieces, progress) => {
            fed?;
            within(ANSWER_TIMEOUT, answer).await??
        }
    };
    within(ANSWER_TIMEOUT, exchange.client.accept(&ask, reply)).await?.map_err(|refused| exchange.explained(refused))
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
            // The receiver is closed: the response says why.
            return Ok(());
        }
        sent += len as u64;
        progress(sent);
    }
    Ok(())
}

/// What is read at a time.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// The length of the source now.
pub(super) fn length(source: &mut dyn Upload) -> Result<u64> {
    source.seek(SeekFrom::End(0)).map_err(|e| unreadable(&e))
}

/// Back to the start.
pub(super) fn rewind(source: &mut dyn Upload) -> Result<()> {
    source.seek(SeekFrom::Start(0)).map(drop).map_err(|e| unreadable(&e))
}

/// Some more bytes of what is not yet at its end.
pub(super) fn read_more(source: &mut dyn Upload, piece: &mut [u8]) -> Result<usize> {
    match read_some(source, piece).map_err(|e| unreadable(&e))? {
        0 => Err(changed("shorter")),
        read => Ok(read),
    }
}

/// Refuses a source that goes on past its length.
pub(super) fn check_end(source: &mut dyn Upload) -> Result<()> {
    if read_some(source, &mut [0]).map_err(|e| unreadable(&e))? == 0 { Ok(()) } else { Err(changed("longer")) }
}

fn changed(how: &str) -> Error {
    Error::new(Kind::File, format!("the source became {how} during the upload"))
        .with_hint("put it once no process writes to it")
}

fn unreadable(error: &std::io::Error) -> Error {
    Error::from_io(Kind::File, "reading what is to be put", error)
}

/// The headers of an object that is sent in one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Digest {
    pub(super) bytes: u64,
    pub(super) crc32c: u32,
    /// Where CRC-32C is not judged.
    pub(super) md5: Option<[u8; 16]>,
}

impl Digest {
    /// Reads all of a source of this length.
    pub(super) fn of(source: &mut dyn Upload, bytes: u64, with_md5: bool) -> Result<Digest> {
        rewind(source)?;
        let (mut left, mut crc32c, mut md5) = (bytes, 0, with_md5.then(Md5::new));
        let mut piece = vec![0; PIECE_BYTES];
        while left > 0 {
            let most = left.min(PIECE_BYTES as u64) as usize;
            let len = read_more(source, &mut piece[..most])?;
            let read = &piece[..len];
            crc32c = crc32c::crc32c_append(crc32c, read);
            if let Some(md5) = &mut md5 {
                md5.update(read);
            }
            left -= read.len() as u64;
        }
        check_end(source)?;
        Ok(Digest { bytes, crc32c, md5: md5.map(|md5| md5.finalize().into()) })
    }
}

/// MD5 of bytes.
pub(super) fn md5_of(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn a_source_is_what_it_was_or_refused() {
        // The check values of CRC-32C and MD5.
        let digest = Digest::of(&mut Cursor::new(b"123456789"), 9, true).unwrap();
        let hex: String = digest.md5.unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((digest.crc32c, hex.as_str()), (0xE306_9283, "25f9e794323b453885f5181f1b624d0b"));
        assert_eq!(md5_of(b"123456789"), digest.md5.unwrap());
        assert_eq!(Digest::of(&mut Cursor::new(b""), 0, false), Ok(Digest { bytes: 0, crc32c: 0, md5: None }));
        assert_eq!(length(&mut Cursor::new(b"123")).unwrap(), 3);
        for (len, how) in [(8, "longer"), (10, "shorter")] {
            let error = Digest::of(&mut Cursor::new(b"123456789"), len, false).unwrap_err();
            assert!(error.kind() == Kind::File && error.to_string().contains(how), "{error}");
        }
    }
}
