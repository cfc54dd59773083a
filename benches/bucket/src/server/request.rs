//! Reads a connection: request heads, and bodies as far as needed, with chunked coding removed: HTTP's own, and
//! `aws-chunked`, which adds a signature to each size.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, Version, header};
use tokio::io::AsyncReadExt;

use super::refusal::Refusal;
use super::reply::Pipe;

const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 100;
/// Bytes read from the socket at once.
const READ_BYTES: usize = 64 << 10;
/// Most bytes of a rejected request's body that are read to keep the connection; a longer body closes it.
const REFUSED_BYTES_MAX: u64 = 1 << 20;

/// How the end of a body is found.
enum Coding {
    /// By its length: the bytes not received yet.
    Length(u64),
    Chunked(Chunks),
}

/// A request, whether or not its body has been read.
pub(super) struct Request<'p> {
    pub(super) parts: Parts,
    pub(super) pipe: &'p mut Pipe,
    coding: Coding,
    /// The state of `aws-chunked`, and received bytes that are not decoded yet.
    aws: Option<(Chunks, BytesMut)>,
    /// Whether the client waits for `100 Continue` before it sends the body.
    is_awaited: bool,
    /// Bytes of the body read so far.
    read_bytes: u64,
    /// The byte of the body in which a bit is flipped.
    corrupt_at: Option<u64>,
}

impl Pipe {
    /// Returns the next request; `None` when the client has closed the connection.
    pub(super) async fn request(&mut self) -> io::Result<Option<Request<'_>>> {
        let parts = loop {
            match parse(&mut self.unread)? {
                Some(parts) => break parts,
                None if self.unread.len() > HEAD_BYTES_MAX => return Err(malformed()),
                None if self.fill().await? == 0 => return Ok(None),
                None => {}
            }
        };
        let has = |name: header::HeaderName, word: &str| has_word(&parts.headers, &name, word);
        let length = parts.headers.get(header::CONTENT_LENGTH).map(|value| value.to_str().ok()?.parse().ok());
        let coding = match length {
            _ if has(header::TRANSFER_ENCODING, "chunked") => Coding::Chunked(Chunks::default()),
            Some(length) => Coding::Length(length.ok_or_else(malformed)?),
            None => Coding::Length(0),
        };
        let aws = has(header::CONTENT_ENCODING, "aws-chunked").then(Default::default);
        let is_awaited = has(header::EXPECT, "100-continue");
        Ok(Some(Request { parts, pipe: self, coding, aws, is_awaited, read_bytes: 0, corrupt_at: None }))
    }

    /// Reads more from the client; 0 at the end. Flushes bytes held back first.
    async fn fill(&mut self) -> io::Result<usize> {
        self.flush().await?;
        self.unread.reserve(READ_BYTES);
        self.socket.read_buf(&mut self.unread).await
    }
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Takes a whole head off the received bytes; `None` when it is incomplete.
fn parse(unread: &mut BytesMut) -> io::Result<Option<Parts>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(end) = head.parse(unread).map_err(|_| malformed())? else { return Ok(None) };
    let version = if head.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let mut request = http::Request::builder().version(version);
    request = request.method(head.method.unwrap_or_default()).uri(head.path.unwrap_or_default());
    for header in head.headers.iter() {
        request = request.header(header.name, header.value);
    }
    let (parts, ()) = request.body(()).map_err(|_| malformed())?.into_parts();
    unread.advance(end);
    Ok(Some(parts))
}

/// Whether a header is a list that contains this word.
fn has_word(headers: &HeaderMap, name: &header::HeaderName, word: &str) -> bool {
    let mut values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.any(|value| value.split(',').any(|item| item.trim().eq_ignore_ascii_case(word)))
}

impl Request<'_> {
    /// Returns the body length that the request declares; 0 when it declares none.
    pub(super) fn promised_bytes(&self) -> u64 {
        let decoded = self.parts.headers.get("x-amz-decoded-content-length");
        match (&self.aws, &self.coding) {
            (Some(_), _) => decoded.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0),
            (None, Coding::Length(left)) => self.read_bytes + left,
            (None, Coding::Chunked(_)) => 0,
        }
    }

    /// Whether the client keeps the connection open for further requests.
    pub(super) fn keeps_alive(&self) -> bool {
        let has = |word: &str| has_word(&self.parts.headers, &header::CONNECTION, word);
        if self.parts.version == Version::HTTP_10 { has("keep-alive") } else { !has("close") }
    }

    /// Flips a bit in the body byte at `place`.
    pub(super) fn corrupt_at(&mut self, place: u64) {
        self.corrupt_at = Some(place);
    }

    /// Reads the body up to a byte, and discards it.
    pub(super) async fn read_up_to(&mut self, place: u64) {
        while self.read_bytes < place && matches!(self.next_frame().await, Ok(Some(_))) {}
    }

    /// Returns the next bytes of the body; `None` at its end.
    pub(super) async fn next_frame(&mut self) -> Result<Option<Bytes>, Refusal> {
        let incomplete = |e: io::Error| Refusal::new("IncompleteBody", format!("The body ended early: {e}."));
        let Some(mut bytes) = self.decoded().await.map_err(incomplete)? else { return Ok(None) };
        let from = self.read_bytes;
        self.read_bytes += bytes.len() as u64;
        if let Some(place) = self.corrupt_at.filter(|place| (from..self.read_bytes).contains(place)) {
            let mut corrupt = bytes.to_vec();
            corrupt[(place - from) as usize] ^= 1;
            bytes = corrupt.into();
        }
        Ok(Some(bytes))
    }

    /// Returns the next bytes without any coding. Trailers of `aws-chunked` count as headers.
    async fn decoded(&mut self) -> io::Result<Option<Bytes>> {
        let Some((mut chunks, mut coded)) = self.aws.take() else { return self.received().await };
        loop {
            match chunks.next(&mut coded) {
                Next::Data(bytes) => {
                    self.aws = Some((chunks, coded));
                    return Ok(Some(bytes));
                }
                Next::More => {
                    let more = self.received().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    coded.extend_from_slice(&more);
                }
                Next::Malformed => return Err(malformed()),
                Next::End => break,
            }
        }
        for (name, value) in chunks.trailers.drain(..) {
            if let (Ok(name), Ok(value)) = (header::HeaderName::try_from(name), value.try_into()) {
                self.parts.headers.append(name, value);
            }
        }
        // Bytes after the last chunk are read and ignored.
        self.received().await.map(|_| None)
    }

    /// Returns the next bytes, with `aws-chunked` still in place.
    async fn received(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let unread = &mut self.pipe.unread;
            match &mut self.coding {
                Coding::Length(0) => return Ok(None),
                Coding::Length(left) if !unread.is_empty() => {
                    let bytes = unread.split_to((*left).min(unread.len() as u64) as usize);
                    *left -= bytes.len() as u64;
                    return Ok(Some(bytes.freeze()));
                }
                Coding::Length(_) => {}
                Coding::Chunked(chunks) => match chunks.next(unread) {
                    Next::Data(bytes) => return Ok(Some(bytes)),
                    Next::End => return Ok(None),
                    Next::Malformed => return Err(malformed()),
                    Next::More => {}
                },
            }
            if core::mem::take(&mut self.is_awaited) {
                self.pipe.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
            }
            if self.pipe.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Discards the rest of the body, unless the client waits for `100 Continue`. Returns whether another request can
    /// follow.
    pub(super) async fn forget_body(&mut self) -> bool {
        let mut left = REFUSED_BYTES_MAX;
        while left > 0 && !(self.is_awaited && self.pipe.unread.is_empty()) {
            match self.received().await {
                Ok(Some(frame)) => left = left.saturating_sub(frame.len() as u64),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
        matches!(self.coding, Coding::Length(0))
    }
}

/// Longest line of a size or a trailer.
const LINE_BYTES_MAX: usize = 8 << 10;

/// The next element of a chunked body.
#[derive(PartialEq, Eq, Debug)]
enum Next {
    Data(Bytes),
    /// Nothing until more bytes arrive.
    More,
    End,
    Malformed,
}

/// The state of a chunked body's decoder.
#[derive(Default, Debug)]
struct Chunks {
    place: Place,
    /// The trailers after the last chunk.
    trailers: Vec<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Place {
    #[default]
    Size,
    Data(u64),
    Trailers,
    End,
}

impl Chunks {
    /// Takes the next element from the received bytes.
    fn next(&mut self, from: &mut BytesMut) -> Next {
        loop {
            match self.place {
                Place::End => return Next::End,
                Place::Data(left) if left > 0 => {
                    if from.is_empty() {
                        return Next::More;
                    }
                    let bytes = left.min(from.len() as u64);
                    self.place = Place::Data(left - bytes);
                    return Next::Data(from.split_to(bytes as usize).freeze());
                }
                _ => {}
            }
            let Some(end) = from.iter().position(|&byte| byte == b'\n') else {
                return if from.len() > LINE_BYTES_MAX { Next::Malformed } else { Next::More };
            };
            let line = from.split_to(end + 1);
            let Some(place) = core::str::from_utf8(&line).ok().and_then(|line| self.behind(line.trim())) else {
                return Next::Malformed;
            };
            self.place = place;
        }
    }

    /// Returns the decoder's place after a line.
    fn behind(&mut self, line: &str) -> Option<Place> {
        match self.place {
            Place::Size => {
                let size = line.split(';').next().unwrap_or_default();
                let size = u64::from_str_radix(size.trim(), 16).ok()?;
                Some(if size == 0 { Place::Trailers } else { Place::Data(size) })
            }
            Place::Data(_) => line.is_empty().then_some(Place::Size),
            Place::Trailers if line.is_empty() => Some(Place::End),
            _ => {
                let (name, value) = line.split_once(':')?;
                self.trailers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                Some(Place::Trailers)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_off_wherever_the_bytes_are_cut() {
        let coded = "5;chunk-signature=ab\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32c:AAAAAA==\r\n\r\n";
        for step in 1..coded.len() {
            let (mut chunks, mut from, mut body) = (Chunks::default(), BytesMut::new(), Vec::new());
            for piece in coded.as_bytes().chunks(step) {
                from.extend_from_slice(piece);
                while let Next::Data(bytes) = chunks.next(&mut from) {
                    body.extend_from_slice(&bytes);
                }
            }
            assert_eq!((body.as_slice(), chunks.next(&mut from)), (b"hello world".as_slice(), Next::End), "{step}");
            assert_eq!(chunks.trailers, [("x-amz-checksum-crc32c".into(), "AAAAAA==".into())]);
        }
        for bad in ["x\r\n", "1\r\nab\r\n", "0\r\nno trailer\r\n"] {
            let (mut chunks, mut from) = (Chunks::default(), BytesMut::from(bad));
            let end = core::iter::repeat_with(|| chunks.next(&mut from)).find(|next| !matches!(next, Next::Data(_)));
            assert_eq!(end, Some(Next::Malformed), "{bad}");
        }
    }
}
