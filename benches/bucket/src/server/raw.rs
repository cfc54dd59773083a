//! Answers that HTTP does not allow, written to the socket byte by byte, and how sockets are closed. Every one ends its connection.

use core::future::poll_fn;
use std::io;
use std::time::Duration;

use hyper::body::Buf;
use hyper::header;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::desk::Desk;
use super::payload::Payload;
use super::reply::Response;
use super::socket::Socket;

/// How long a closing connection still reads what the client sends: closing with unread bytes would turn FIN into RST.
const LINGER: Duration = Duration::from_secs(1);

/// How a raw answer ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// FIN.
    Close,
    /// RST.
    Reset,
    /// Silence until the client gives up.
    Hang,
}

/// A head, so much of a body, and an end.
pub(crate) struct RawReply {
    pub(crate) head: Vec<u8>,
    pub(crate) payload: Payload,
    pub(crate) body_bytes: u64,
    pub(crate) end: End,
}

impl RawReply {
    /// A response as hyper would send it, but for the promised length, cut after `body_bytes`.
    pub(crate) fn new(response: Response, promised_bytes: Option<u64>, body_bytes: u64, end: End) -> RawReply {
        let (mut parts, payload) = response.into_parts();
        if let Some(promised) = promised_bytes {
            parts.headers.insert(header::CONTENT_LENGTH, promised.into());
        }
        let reason = parts.status.canonical_reason().unwrap_or("Unknown");
        let mut head = format!("HTTP/1.1 {} {reason}\r\n", parts.status.as_str()).into_bytes();
        for (name, value) in &parts.headers {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        RawReply { head, payload, body_bytes, end }
    }

    /// No answer.
    pub(crate) fn silence(end: End) -> RawReply {
        RawReply { head: Vec::new(), payload: Payload::empty(), body_bytes: 0, end }
    }

    /// Bytes that are no answer at all, then FIN.
    pub(crate) fn noise(head: Vec<u8>) -> RawReply {
        RawReply { head, payload: Payload::empty(), body_bytes: 0, end: End::Close }
    }
}

/// Sends the answer and ends the connection. A client that has gone ends it early.
pub(crate) async fn send(reply: RawReply, mut socket: Socket, desk: &Desk) {
    let end = reply.end;
    if write(reply, &mut socket, desk).await.is_err() {
        return;
    }
    match end {
        End::Close => linger(&mut socket).await,
        End::Reset => socket.reset(),
        End::Hang => drain(&mut socket).await,
    }
}

/// Closes without cutting off what was sent: FIN, then reads until the client closes too or time is up.
pub(crate) async fn linger(socket: &mut Socket) {
    if socket.shutdown().await.is_ok() {
        // Whether the client closed or time is up, the connection ends here.
        let _ = tokio::time::timeout(LINGER, drain(socket)).await;
    }
}

async fn write(mut reply: RawReply, socket: &mut Socket, desk: &Desk) -> io::Result<()> {
    socket.write_all(&reply.head).await?;
    desk.site.tally.sent(reply.head.len());
    let mut left = reply.body_bytes;
    while left > 0 {
        let Some(chunk) = poll_fn(|context| reply.payload.poll_chunk(context)).await else { break };
        let chunk = chunk?;
        let bytes = chunk.remaining().min(usize::try_from(left).unwrap_or(usize::MAX));
        socket.write_all(&chunk.chunk()[..bytes]).await?;
        desk.site.tally.sent(bytes);
        left -= bytes as u64;
    }
    socket.flush().await
}

/// Reads and forgets until the client closes.
async fn drain(socket: &mut Socket) {
    let mut waste = [0u8; 4096];
    while matches!(socket.read(&mut waste).await, Ok(1..)) {}
}
