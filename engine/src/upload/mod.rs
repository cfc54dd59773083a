//! Putting one object into a bucket, outside the hot path: whole or not at all.
//!
//! A short one goes in one `PUT`, a long one in parts, several at a time: S3's multipart, which Google's XML interface knows too, or
//! Azure's blocks. Google's own resumable uploads are left out: they take one stream, in order, while parts go side by side and
//! are the same requests on both clouds. Readers of the bucket see the old object or the new one, never a part. The source
//! is never held in memory as a whole. What a process that is killed leaves behind are parts without an object, which a rule of the
//! bucket (`AbortIncompleteMultipartUpload`) has to remove; Azure forgets blocks after a week by itself.

mod exchange;
mod parts;

use std::io::{Cursor, SeekFrom};

use fuelrail_base::{ByteSize, Error, Kind, Result};
use fuelrail_wire::multipart::{PARTS_MAX, checksum};
use fuelrail_wire::{Dialect, Scheme, base64};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::Method;
use hyper::body::{Bytes, Frame};
use md5::{Digest as _, Md5};
use tokio::sync::mpsc;

use self::exchange::{Exchange, Likeness};
pub use self::exchange::{PART_BYTES, PARTS_ABOVE_BYTES, PutOptions, PutOver, Stored, UPLOAD_BYTES_MAX, Upload};
use self::parts::Plan;
use crate::access::{Access, wherever};
use crate::client::{ANSWER_TIMEOUT, AT_A_PROMPT, Answer, Ask, Refused, within};
use crate::folder::{self, read_some};

/// How an object of `bytes` goes in parts; `None` when it goes in one request.
fn plan(options: &PutOptions, bytes: u64, dialect: Dialect) -> Option<Plan> {
    // Google's XML interface judges no conditions on uploads in parts, but takes any length in one request.
    let judged = dialect != Dialect::Gcs || options.over == PutOver::Anything;
    (bytes > options.parts_above_bytes && judged)
        .then(|| Plan { bytes, part_bytes: options.part_bytes.max(bytes.div_ceil(PARTS_MAX)) })
}

/// Puts `bytes` into the bucket as one object, over what was there. The URI's prefix is the whole key. Feature `clouds`.
///
/// # Errors
/// `Usage` for a bad URI or more than [`UPLOAD_BYTES_MAX`], `Denied` when the bucket may not be written to, `NotFound` when
/// there is none, `Network`, `Throttled`, `Server` … for what the server answers after retries.
pub fn put(uri: &str, bytes: &[u8]) -> Result<Stored> {
    put_with(Access::default(), uri, &mut Cursor::new(bytes), |_| {})
}

/// As [`put`], from a source, with the bucket reached as `access` says. `progress` receives the bytes sent so far; what has to be sent
/// again counts again. Feature `clouds`.
///
/// # Errors
/// As [`put`]; `File` when the source cannot be read or changes meanwhile; `Usage` and `Environment` for what [`Access`]
/// holds and cannot be used.
pub fn put_with(
    access: impl Into<Access>,
    uri: &str,
    source: &mut dyn Upload,
    progress: impl FnMut(u64) + Send,
) -> Result<Stored> {
    put_as(&PutOptions::default(), access, uri, source, progress)
}

/// As [`put_with`], as `options` say. Parts are held in memory until the server has taken them: at most four, and no more than 256 MiB
/// unless one part is longer. Feature `clouds`.
///
/// # Errors
/// As [`put_with`]; `Exists` when only a new object was to be put and one is there, `Changed` when another one was to be
/// replaced than is there, `Usage` for options that make no sense.
pub fn put_as(
    options: &PutOptions,
    access: impl Into<Access>,
    uri: &str,
    source: &mut dyn Upload,
    mut progress: impl FnMut(u64) + Send,
) -> Result<Stored> {
    let (access, endpoint, key) = access.into().object(uri)?;
    options.validate(endpoint.dialect)?;
    if endpoint.scheme == Scheme::File {
        rewind(source)?;
        if matches!(options.over, PutOver::Etag(_)) {
            return Err(Error::new(Kind::Usage, "a folder judges no entity tags of what is replaced")
                .with_hint("put it over anything, or over nothing"));
        }
        let stored = folder::put(&endpoint, &key, options.over == PutOver::Nothing, source, &mut progress);
        return stored.map(|(bytes, etag)| Stored { bytes, etag: Some(etag) }).map_err(|e| e.with_object(key));
    }
    let bytes = length(source)?;
    if bytes > UPLOAD_BYTES_MAX {
        let cause = format!("it is longer than {}, the most a bucket takes", ByteSize(UPLOAD_BYTES_MAX));
        return Err(Error::new(Kind::Usage, cause).with_hint("split it into smaller objects").with_object(key));
    }
    let stored = wherever(&access, uri, endpoint, |route| {
        route.run(async |client| {
            let exchange = Exchange { client: &client, path: route.endpoint.object_path(&key), over: &options.over };
            let taken = match plan(options, bytes, route.endpoint.dialect) {
                Some(plan) => parts::put(&exchange, source, plan, &mut progress).await?,
                None => None,
            };
            match taken {
                Some(stored) => Ok(stored),
                // Short, or the server knows no parts.
                None => put_whole(&exchange, source, bytes, &mut progress).await,
            }
        })
    });
    stored.map(|(stored, _)| stored).map_err(|e| e.with_object(key))
}

/// Pieces that wait to be sent.
const PIECES_WAITING_MAX: usize = 4;

/// Puts it, in as many attempts as it takes.
async fn put_whole(
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
const PIECE_BYTES: usize = 256 << 10;

/// The length of the source now.
fn length(source: &mut dyn Upload) -> Result<u64> {
    source.seek(SeekFrom::End(0)).map_err(|e| unreadable(&e))
}

/// Back to the start.
fn rewind(source: &mut dyn Upload) -> Result<()> {
    source.seek(SeekFrom::Start(0)).map(drop).map_err(|e| unreadable(&e))
}

/// Some more bytes of what is not yet at its end.
fn read_more(source: &mut dyn Upload, piece: &mut [u8]) -> Result<usize> {
    match read_some(source, piece).map_err(|e| unreadable(&e))? {
        0 => Err(changed("shorter")),
        read => Ok(read),
    }
}

/// Refuses a source that goes on behind its length.
fn check_end(source: &mut dyn Upload) -> Result<()> {
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
struct Digest {
    bytes: u64,
    crc32c: u32,
    /// Where CRC-32C is not judged.
    md5: Option<[u8; 16]>,
}

impl Digest {
    /// Reads all of a source of this length.
    fn of(source: &mut dyn Upload, bytes: u64, with_md5: bool) -> Result<Digest> {
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
fn md5_of(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Seek, SeekFrom};

    use exchange::PUT_BYTES_MAX;

    use super::*;

    #[test]
    fn parts_are_as_long_as_ten_thousand_need() {
        let options = PutOptions::default();
        let plan = |bytes: u64| super::plan(&options, bytes, Dialect::S3).map(|plan| (plan.part_bytes, plan.count()));
        assert_eq!(plan(PARTS_ABOVE_BYTES), None);
        assert_eq!(plan(PARTS_ABOVE_BYTES + 1), Some((PART_BYTES, 5)));
        assert_eq!(plan(PART_BYTES * 10_000), Some((PART_BYTES, 10_000)));
        assert_eq!(plan(PART_BYTES * 10_000 + 1), Some((PART_BYTES + 1, 10_000)));
        let (part_bytes, count) = plan(UPLOAD_BYTES_MAX).unwrap();
        assert!(part_bytes < PUT_BYTES_MAX && count <= 10_000);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let plain = PutOptions::default();
        for bad in [PutOptions { part_bytes: 0, ..plain.clone() }, PutOptions { parts_above_bytes: 6 << 30, ..plain }] {
            assert_eq!(bad.validate(Dialect::S3).unwrap_err().kind(), Kind::Usage);
        }
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_sent() {
        /// As long as it says.
        struct Endless;
        impl Read for Endless {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                unreachable!("its length is enough")
            }
        }
        impl Seek for Endless {
            fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
                Ok(if to == SeekFrom::End(0) { UPLOAD_BYTES_MAX + 1 } else { 0 })
            }
        }
        let error = put_with(Access::default(), "http://127.0.0.1:1/b/k", &mut Endless, |_| {}).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("split it"), "{error}");
    }

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
