//! Putting one object into a bucket, outside the hot path: one `PUT`, whole or not at all.
//!
//! The source is read twice, first for its length and checksum, then for the request, and again for every further attempt;
//! it is never held in memory. Readers of the bucket see the old object or the new one, never a part.

use crate::access::Access;
use crate::control::{
    ANSWER_TIMEOUT, HttpClient, Load, collect, no_object, on_control_thread, patience, refusal, unreachable, within,
};
use crate::folder;
use fuelrail_base::{ByteSize, Error, Kind, Result};
use fuelrail_plan::retry::{Tries, Verdict};
use fuelrail_wire::{Dialect, Endpoint, Scheme};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::{Request, StatusCode};
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Largest object that one request may bring: what S3 allows.
pub const UPLOAD_BYTES_MAX: u64 = 5 << 30;

/// What is read at a time, and how many of these wait to be sent.
const PIECE_BYTES: usize = 256 << 10;
const PIECES_WAITING_MAX: usize = 4;

/// Where an object's bytes are read from, from the start as often as it takes: a file, or a cursor over memory.
pub trait Upload: Read + Seek + Send {}

impl<T: Read + Seek + Send> Upload for T {}

/// What the server has taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Length of the object.
    pub bytes: u64,
    /// The entity tag it has now, if the server tells.
    pub etag: Option<String>,
}

/// Puts `bytes` into the bucket as one object, over what was there. The URI's prefix is the whole key.
///
/// # Errors
/// `Usage` for a bad URI or more than [`UPLOAD_BYTES_MAX`], `Denied` when the bucket may not be written to, `NotFound` when
/// there is none, `Network`, `Throttled`, `Server` … for what the server answers after retries.
pub fn put(uri: &str, bytes: &[u8]) -> Result<Stored> {
    put_with(Access::default(), uri, &mut Cursor::new(bytes), |_| {})
}

/// As [`put`], from a source, with the bucket reached as `access` says. `progress` is told the bytes sent so far; it begins anew with every attempt.
///
/// # Errors
/// As [`put`]; `File` when the source cannot be read or changes meanwhile; `Usage` and `Environment` for what [`Access`]
/// holds and cannot be used.
pub fn put_with(
    access: impl Into<Access>,
    uri: &str,
    source: &mut dyn Upload,
    mut progress: impl FnMut(u64) + Send,
) -> Result<Stored> {
    let access = access.into().settled(uri)?;
    let endpoint = access.cloud.endpoint(uri)?;
    let key = endpoint.prefix.clone();
    if key.is_empty() {
        return Err(no_object(uri));
    }
    if endpoint.scheme == Scheme::File {
        source.seek(SeekFrom::Start(0)).map_err(|e| unreadable(&e))?;
        let stored = folder::put(&endpoint, &key, source, &mut progress);
        return stored.map(|(bytes, etag)| Stored { bytes, etag: Some(etag) }).map_err(|e| e.object(key));
    }
    let letter = Letter { path: endpoint.object_path(&key), digest: Digest::of(source)?, endpoint };
    let way = access.open(uri, &letter.endpoint)?;
    let stored = on_control_thread(&way, async |client| {
        let mut retry = patience()?;
        let mut tries = Tries::default();
        loop {
            let error = match letter.send(&client, source, &mut progress).await {
                Ok(etag) => return Ok(Stored { bytes: letter.digest.bytes, etag }),
                Err(error) => error,
            };
            match retry.verdict(&mut tries, error.kind(), None) {
                Verdict::After(pause) => tokio::time::sleep(pause).await,
                Verdict::GiveUp => return Err(error.attempts(tries.failed())),
            }
        }
    });
    stored.map_err(|e| e.object(key))
}

/// What the server is told before the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Digest {
    bytes: u64,
    crc32c: u32,
}

impl Digest {
    fn of(source: &mut dyn Upload) -> Result<Digest> {
        source.seek(SeekFrom::Start(0)).map_err(|e| unreadable(&e))?;
        let mut digest = Digest { bytes: 0, crc32c: 0 };
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let len = read_piece(source, &mut piece)?;
            if len == 0 {
                return Ok(digest);
            }
            digest.crc32c = crc32c::crc32c_append(digest.crc32c, &piece[..len]);
            digest.bytes += len as u64;
            if digest.bytes > UPLOAD_BYTES_MAX {
                let cause = format!("it is longer than {}, the most one request may bring", ByteSize(UPLOAD_BYTES_MAX));
                return Err(Error::new(Kind::Usage, cause).cure("split it into smaller objects"));
            }
        }
    }

    /// As `x-amz-checksum-crc32c` has it: four bytes, the highest first, in Base64.
    fn checksum(&self) -> String {
        fuelrail_wire::base64::encode(&self.crc32c.to_be_bytes())
    }
}

fn read_piece(source: &mut dyn Upload, piece: &mut [u8]) -> Result<usize> {
    loop {
        match source.read(piece) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            read => return read.map_err(|e| unreadable(&e)),
        }
    }
}

fn unreadable(error: &std::io::Error) -> Error {
    Error::new(Kind::File, format!("reading what is to be put: {error}"))
}

/// One object on its way.
struct Letter {
    endpoint: Endpoint,
    path: String,
    digest: Digest,
}

impl Letter {
    /// One attempt. Returns the entity tag.
    async fn send(
        &self,
        client: &HttpClient,
        source: &mut dyn Upload,
        progress: &mut (impl FnMut(u64) + Send),
    ) -> Result<Option<String>> {
        let authority = self.endpoint.authority();
        let (pieces, waiting) = mpsc::channel(PIECES_WAITING_MAX);
        let load: Load = Pieces { waiting, left: self.digest.bytes }.boxed_unsync();
        let (name, value) = match self.endpoint.dialect {
            Dialect::S3 => ("x-amz-checksum-crc32c", self.digest.checksum()),
            Dialect::Gcs => ("x-goog-hash", format!("crc32c={}", self.digest.checksum())),
            // It judges no CRC-32C; without this line it takes nothing.
            Dialect::Azure => ("x-ms-blob-type", "BlockBlob".to_owned()),
        };
        let request = Request::put(format!("{}://{authority}{}", self.endpoint.scheme.word(), self.path))
            .header("content-length", self.digest.bytes)
            .header("content-type", "application/octet-stream")
            .header(name, value)
            .body(load)
            .map_err(|e| Error::new(Kind::Usage, format!("cannot be asked for over HTTP: {e}")))?;
        let mut answer = std::pin::pin!(client.request(request));
        let response = tokio::select! {
            // A refusal may come before all is sent: then nobody wants the rest.
            biased;
            early = &mut answer => early,
            fed = self.feed(source, pieces, progress) => {
                fed?;
                within(ANSWER_TIMEOUT, answer).await?
            }
        };
        let response = response.map_err(|e| unreachable(&authority, &*e))?;
        let status = response.status();
        let etag = response.headers().get("etag").and_then(|v| v.to_str().ok()).map(str::to_string);
        if status.is_success() {
            return Ok(etag);
        }
        let headers = response.headers().clone();
        let error = refused(status, &collect(response).await?);
        Err(if error.kind() == Kind::Expired { client.judged(error, &headers) } else { error })
    }

    /// Reads the source and passes it on, a piece at a time, as fast as the server takes it.
    async fn feed(
        &self,
        source: &mut dyn Upload,
        pieces: mpsc::Sender<Bytes>,
        progress: &mut (impl FnMut(u64) + Send),
    ) -> Result<()> {
        source.seek(SeekFrom::Start(0)).map_err(|e| unreadable(&e))?;
        let (mut piece, mut sent) = (vec![0; PIECE_BYTES], 0);
        while sent < self.digest.bytes {
            let most = (self.digest.bytes - sent).min(PIECE_BYTES as u64) as usize;
            let len = read_piece(source, &mut piece[..most])?;
            if len == 0 {
                return Err(Error::new(Kind::File, "what is to be put became shorter while it was read"));
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
}

/// The body of a request: pieces as they come.
struct Pieces {
    waiting: mpsc::Receiver<Bytes>,
    left: u64,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.waiting.poll_recv(cx).map(|piece| {
            // The length was promised: to end before it would be an object cut short.
            let piece = piece.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
            Some(piece.map(|piece| {
                self.left = self.left.saturating_sub(piece.len() as u64);
                Frame::data(piece)
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// What a refused upload has to say beyond what every refused request has.
fn refused(status: StatusCode, body: &[u8]) -> Error {
    let plain = refusal(status, body);
    let about_keys = ["SignatureDoesNotMatch", "InvalidAccessKeyId"].iter().any(|code| plain.cause().contains(code));
    let (kind, cure) = match status.as_u16() {
        _ if plain.kind() == Kind::Expired || about_keys => return plain,
        401 | 403 => (
            Kind::Denied,
            "the bucket may not be written to by who asks: open it for writing (fuelrail serve FOLDER --writable, or \
             s3:PutObject), name another one, or use other credentials (anonymous = false sends them to a plain URI)",
        ),
        404 => (Kind::NotFound, "check the bucket's name: it must be there before an object is put into it"),
        405 | 501 => (Kind::NotFound, "the server takes no uploads: name one that speaks S3"),
        409 | 412 => (
            Kind::Denied,
            "an object is there that the bucket does not let be replaced: choose another key, or lift its lock",
        ),
        411 | 413 => (Kind::Usage, "the server takes no object of this size: split it into smaller ones"),
        _ => return plain,
    };
    Error::new(kind, plain.cause()).cure(cure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_written_as_s3_writes_it() {
        // The check value of CRC-32C.
        let digest = Digest::of(&mut Cursor::new(b"123456789")).unwrap();
        assert_eq!(digest, Digest { bytes: 9, crc32c: 0xE306_9283 });
        assert_eq!(digest.checksum(), "4waSgw==");
        assert_eq!(Digest::of(&mut Cursor::new(b"")).unwrap().checksum(), "AAAAAA==");
    }

    #[test]
    fn refusals_say_what_to_do() {
        for (status, kind, said) in [
            (403, Kind::Denied, "--writable"),
            (404, Kind::NotFound, "the bucket's name"),
            (412, Kind::Denied, "another key"),
            (413, Kind::Usage, "smaller"),
            (503, Kind::Throttled, "slow down"),
        ] {
            let body = b"<Error><Code>Why</Code><Message>Because.</Message></Error>";
            let error = refused(StatusCode::from_u16(status).unwrap(), body);
            let text = error.to_string();
            assert!(error.kind() == kind && text.contains(said) && text.contains("Why: Because."), "{text}");
        }
    }

    #[test]
    fn what_is_too_long_for_one_request_is_refused_before_it_is_sent() {
        /// Zeroes without an end.
        struct Endless;
        impl Read for Endless {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                Ok(out.len())
            }
        }
        impl Seek for Endless {
            fn seek(&mut self, _: SeekFrom) -> std::io::Result<u64> {
                Ok(0)
            }
        }
        let error = Digest::of(&mut Endless).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains("split it"), "{error}");
    }
}
