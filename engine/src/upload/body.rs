//! Bodies of requests: pieces as they are read, and parts that are in memory. Count what the connection has taken.

use super::source::PIECE_BYTES;
use crate::control::Load;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use tokio::sync::{Notify, mpsc};

/// Pieces as they come.
pub(super) struct Pieces {
    pub(super) waiting: mpsc::Receiver<Bytes>,
    pub(super) left: u64,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.waiting.poll_recv(cx).map(|piece| {
            // The length was promised: to end before it would be an object cut short.
            let piece = piece.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof));
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

/// A document, or nothing.
pub(super) fn document(text: String) -> Load {
    http_body_util::Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// What one attempt has handed to its connection. The body holds it weakly: what is sent after the attempt has ended counts nowhere.
#[derive(Default, Debug)]
pub(super) struct Handed(AtomicU64);

impl Handed {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A part, sent from memory.
pub(super) struct Part {
    pub(super) left: Bytes,
    pub(super) handed: Weak<Handed>,
    pub(super) moved: Arc<Notify>,
}

impl Body for Part {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let len = self.left.len().min(PIECE_BYTES);
        let piece = self.left.split_to(len);
        if let Some(handed) = self.handed.upgrade() {
            handed.0.fetch_add(len as u64, Relaxed);
            self.moved.notify_one();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}
