//! Sends responses, correct or faulty, and ends connections.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio_rustls::server::TlsStream;

use super::refusal::{Refusal, xml_text};
use super::{FRAME_BYTES, Worker};
use crate::pace::Pace;
use crate::script::Act;
use crate::store::Content;

/// Bytes held back while pipelined requests are answered, so that their responses leave together.
const HELD_BYTES_MAX: usize = 32 << 10;
/// How long a closing connection still reads: closing with unread bytes would send RST in place of FIN.
const LINGER: Duration = Duration::from_secs(1);

/// What follows a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Reads the next request.
    Keep,
    /// Closes with FIN.
    Close,
    /// Closes with RST.
    Reset,
    /// Sends nothing more until the client gives up.
    Hang,
}

/// The body length that the head declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Length {
    Is(u64),
    /// Chunked coding in place of a length.
    Chunked,
    /// No length, as with 204 and 304.
    Absent,
}

/// A response's body. Bytes of objects are counted and paced.
pub(super) enum Body {
    Document(Vec<u8>),
    /// A whole object: this many bytes of a buffer.
    Whole(Vec<u8>, usize),
    /// A range of an object, read frame by frame.
    Part(Content, Range<u64>),
}

/// A response, and its faults.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Body,
    pub(super) length: Length,
    /// Bytes sent in place of the head.
    pub(super) head: Option<Vec<u8>>,
    /// The body byte before which the response ends.
    pub(super) cut: Option<u64>,
    /// The body byte before which nothing is sent for this long.
    pub(super) pause: Option<(u64, Duration)>,
    pub(super) end: End,
}

impl Reply {
    pub(super) fn new(status: u16, headers: Vec<(&'static str, String)>, body: Body) -> Reply {
        let mut reply =
            Reply { status, headers, body, length: Length::Absent, head: None, cut: None, pause: None, end: End::Keep };
        reply.length = Length::Is(reply.bytes());
        reply
    }

    /// A status without a body.
    pub(super) fn empty(status: u16) -> Reply {
        let reply = Reply::new(status, Vec::new(), Body::Document(Vec::new()));
        if matches!(status, 204 | 304) { Reply { length: Length::Absent, ..reply } } else { reply }
    }

    /// A status with an entity tag.
    pub(super) fn tagged(status: u16, etag: &str) -> Reply {
        Reply { headers: vec![("etag", etag.to_owned())], ..Reply::empty(status) }
    }

    pub(super) fn xml(status: u16, document: String) -> Reply {
        let headers = vec![("content-type", "application/xml".to_owned())];
        Reply::new(status, headers, Body::Document(document.into_bytes()))
    }

    /// These bytes and nothing else.
    pub(super) fn raw(head: Vec<u8>, end: End) -> Reply {
        Reply { head: Some(head), end, ..Reply::empty(200) }
    }

    /// Bytes of the body.
    pub(super) fn bytes(&self) -> u64 {
        match &self.body {
            Body::Document(document) => document.len() as u64,
            Body::Whole(_, bytes) => *bytes as u64,
            Body::Part(_, range) => range.end - range.start,
        }
    }

    pub(super) fn write_head(&self, date: &str, out: &mut Vec<u8>) {
        let reason = StatusCode::from_u16(self.status).ok().and_then(|status| status.canonical_reason());
        let mut line = |parts: [&str; 4]| parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        line(["HTTP/1.1 ", &self.status.to_string(), " ", reason.unwrap_or("Unknown")]);
        for (name, value) in &self.headers {
            line(["\r\n", name, ": ", value]);
        }
        match self.length {
            Length::Is(bytes) => line(["\r\n", "content-length", ": ", &bytes.to_string()]),
            Length::Chunked => line(["\r\n", "transfer-encoding", ": ", "chunked"]),
            Length::Absent => {}
        }
        line(["\r\ndate: ", date, "\r\n", "\r\n"]);
    }
}

impl Refusal {
    /// Returns the error as an XML response.
    pub(super) fn reply(&self, resource: &str) -> Reply {
        let (message, resource) = (xml_text(&self.message), xml_text(resource));
        let document = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{}</Code><Message>{message}</Message>\
             <Resource>{resource}</Resource></Error>",
            self.code
        );
        let mut reply = Reply::xml(self.status(), document);
        reply.headers.extend(self.header.clone());
        reply
    }
}

/// TCP, or TLS over it.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    fn tcp(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Socket for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// A connection: its socket, the bytes read ahead, and the bytes held back.
pub(super) struct Pipe {
    pub(super) worker: Rc<Worker>,
    pub(super) socket: Box<dyn Socket>,
    pub(super) unread: BytesMut,
    unsent: Vec<u8>,
    /// The connection's own bandwidth limit, and the act that sets it.
    pace: Option<(Arc<Act>, Pace)>,
}

impl Pipe {
    pub(super) fn new(worker: &Rc<Worker>, socket: Box<dyn Socket>) -> Pipe {
        let worker = Rc::clone(worker);
        Pipe { worker, socket, unread: BytesMut::new(), unsent: Vec::new(), pace: None }
    }

    /// Sends bytes, or holds them back when they are few.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.unsent.len() + bytes.len() <= HELD_BYTES_MAX {
            self.unsent.extend_from_slice(bytes);
            return Ok(());
        }
        let mut both = Buf::chain(self.unsent.as_slice(), bytes);
        self.socket.write_all_buf(&mut both).await?;
        self.sent(bytes.len())
    }

    /// Sends everything held back.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.unsent.is_empty() {
            self.socket.write_all(&self.unsent).await?;
            self.sent(0)?;
        }
        self.socket.flush().await
    }

    fn sent(&mut self, bytes: usize) -> io::Result<()> {
        let bytes = (self.unsent.len() + bytes) as u64;
        self.worker.site.tally.count(|counters| counters.sent_bytes += bytes);
        self.unsent.clear();
        Ok(())
    }

    pub(super) async fn sleep_until(&mut self, deadline: Instant) -> io::Result<()> {
        self.flush().await?;
        self.worker.site.alarm.sleep_until(deadline).await;
        Ok(())
    }

    /// Sends a response with its faults. The caller does what follows it.
    pub(super) async fn send(&mut self, mut reply: Reply, act: &Arc<Act>) -> io::Result<()> {
        match reply.head.take() {
            Some(head) => self.write(&head).await?,
            None => reply.write_head(self.worker.date().as_str(), &mut self.unsent),
        }
        let total = reply.bytes();
        let end = reply.cut.map_or(total, |cut| cut.min(total));
        let mut at = 0;
        if let Body::Document(document) = &reply.body {
            self.write(document).await?;
            at = end;
        }
        while at < end {
            if let Some((_, pause)) = reply.pause.take_if(|(place, _)| *place <= at) {
                self.sleep_until(Instant::now() + pause).await?;
            }
            let until = reply.pause.map_or(end, |(place, _)| place.min(end));
            let bytes = (until - at).min(act.frame_bytes(FRAME_BYTES) as u64);
            self.keep_pace(act, bytes).await?;
            self.frame(&mut reply, at, bytes as usize).await?;
            at += bytes;
        }
        if reply.length == Length::Chunked && at == total {
            self.write(b"0\r\n\r\n").await?;
        }
        if let Body::Whole(buffer, _) = reply.body {
            self.worker.give_back(buffer);
        }
        Ok(())
    }

    /// Sends `bytes` bytes of an object's body, from `at` on.
    async fn frame(&mut self, reply: &mut Reply, at: u64, bytes: usize) -> io::Result<()> {
        self.worker.site.tally.count(|counters| counters.body_bytes += bytes as u64);
        let is_chunked = reply.length == Length::Chunked;
        if is_chunked {
            self.write(format!("{bytes:x}\r\n").as_bytes()).await?;
        }
        match &reply.body {
            Body::Part(content, range) => {
                let buffer = read(&self.worker, content, range.start + at, bytes).await?;
                self.write(&buffer[..bytes]).await?;
                self.worker.give_back(buffer);
            }
            Body::Whole(buffer, _) | Body::Document(buffer) => {
                self.write(&buffer[at as usize..at as usize + bytes]).await?;
            }
        }
        if is_chunked { self.write(b"\r\n").await } else { Ok(()) }
    }

    /// Waits until `bytes` bytes may be sent, by the connection's bandwidth and the server's.
    async fn keep_pace(&mut self, act: &Arc<Act>, bytes: u64) -> io::Result<()> {
        if !act.is_paced() {
            return Ok(());
        }
        let now = Instant::now();
        let mut from = act.reserve_total(now, bytes);
        if let Some(rate) = act.script.bandwidth_connection_bytes_per_s {
            let own = self.pace.take().filter(|(of, _)| Arc::ptr_eq(of, act));
            let (_, pace) = self.pace.insert(own.unwrap_or_else(|| (Arc::clone(act), Pace::bytes(rate))));
            from = from.max(pace.reserve(now, bytes));
        }
        if from > now { self.sleep_until(from).await } else { Ok(()) }
    }

    /// Ends the connection; returns early when the client has closed it.
    pub(super) async fn finish(mut self, end: End) {
        if self.flush().await.is_err() {
            return;
        }
        match end {
            // If the socket refuses this, the client sees a truncation instead of a reset.
            End::Reset => drop(self.socket.tcp().set_zero_linger()),
            End::Hang => drain(&mut self.socket).await,
            End::Keep | End::Close => linger(&mut self.socket).await,
        }
    }
}

/// Reads bytes of an object from `at` on, into a buffer that may be longer.
pub(super) async fn read(worker: &Worker, content: &Content, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = worker.buffer(bytes);
    if !content.blocks() {
        return content.read_at(at, &mut buffer[..bytes]).map(|()| buffer);
    }
    let content = content.clone();
    let read = spawn_blocking(move || content.read_at(at, &mut buffer[..bytes]).map(|()| buffer));
    read.await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Closes without losing what was sent: sends FIN, then reads until the client closes too or the time is up.
pub(super) async fn linger(socket: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    if socket.shutdown().await.is_ok() {
        // The connection ends here, whether the client closed or the time is up.
        let _ = tokio::time::timeout(LINGER, drain(socket)).await;
    }
}

/// Reads and discards until the client closes.
async fn drain(socket: &mut (impl AsyncRead + Unpin)) {
    let mut waste = [0u8; 4096];
    while matches!(socket.read(&mut waste).await, Ok(1..)) {}
}
