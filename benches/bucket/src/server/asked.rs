//! A request as it is read: its head, and its body as far as somebody wants it.

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use hyper::http::request::Parts;
use hyper::{Request, StatusCode, header};

use super::refusal::Refusal;

/// Most of a refused request's body that is read so that the connection can go on; a longer one closes it.
const REFUSED_BYTES_MAX: u64 = 1 << 20;

/// A request, its body read or not.
pub(crate) struct Asked {
    pub(crate) parts: Parts,
    body: Incoming,
    /// Bytes of the body read so far.
    read_bytes: u64,
    /// The byte of the body that comes with a bit flipped.
    corrupt_at: Option<u64>,
}

impl Asked {
    pub(crate) fn new(request: Request<Incoming>) -> Asked {
        let (parts, body) = request.into_parts();
        Asked { parts, body, read_bytes: 0, corrupt_at: None }
    }

    /// The length that the request promises its body to have.
    pub(crate) fn promised_bytes(&self) -> u64 {
        self.body.size_hint().lower()
    }

    /// Lets the body come with a flipped bit.
    pub(crate) fn corrupt_at(&mut self, place: u64) {
        self.corrupt_at = Some(place);
    }

    /// Reads the body up to a byte, and forgets it.
    pub(crate) async fn read_up_to(&mut self, place: u64) {
        while self.read_bytes < place && matches!(self.next_frame().await, Ok(Some(_))) {}
    }

    /// The next bytes of the body; `None` at its end.
    pub(super) async fn next_frame(&mut self) -> Result<Option<Bytes>, Refusal> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|e| {
                Refusal::new(StatusCode::BAD_REQUEST, "IncompleteBody", format!("The body ended early: {e}."))
            })?;
            let Ok(bytes) = frame.into_data() else { continue };
            let from = self.read_bytes;
            self.read_bytes += bytes.len() as u64;
            return Ok(Some(match self.corrupt_at {
                Some(place) if (from..self.read_bytes).contains(&place) => {
                    let mut bytes = bytes.to_vec();
                    bytes[(place - from) as usize] ^= 1;
                    bytes.into()
                }
                _ => bytes,
            }));
        }
        Ok(None)
    }

    /// Reads what is left of a body nobody wanted, unless the client waits to be told to send it.
    pub(crate) async fn forget_body(&mut self) {
        let mut left = REFUSED_BYTES_MAX;
        while left > 0 && !self.body.is_end_stream() && !self.parts.headers.contains_key(header::EXPECT) {
            match self.next_frame().await {
                Ok(Some(frame)) => left = left.saturating_sub(frame.len() as u64),
                Ok(None) | Err(_) => return,
            }
        }
    }
}
