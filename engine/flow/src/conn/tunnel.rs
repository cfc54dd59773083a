//! The way through a proxy, before TLS begins on it: asked for once, and open when the proxy says so.
//!
//! Owns what is asked and what came of the answer. The connection sends and receives for it.

use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::proxy::HUNG_UP;
use fuelrail_wire::{Endpoint, Proxy};
use std::sync::Arc;

/// A way that is not open yet.
pub(crate) struct Tunnel {
    proxy: Arc<Proxy>,
    server: Endpoint,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// The answer was no way.
    refused: bool,
}

impl Tunnel {
    /// Through `proxy`, to `server`.
    pub(crate) fn new(proxy: Arc<Proxy>, server: &Endpoint) -> Tunnel {
        let mut request = Vec::new();
        proxy.push_connect(server, &mut request);
        Tunnel { proxy, server: server.clone(), request, answer: Vec::new(), refused: false }
    }

    /// Appends what the proxy is asked, once.
    pub(super) fn take_request(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.request);
    }

    /// Takes the next bytes of the answer. True when the way is open.
    ///
    /// # Errors
    /// As [`Proxy::judge`].
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<bool> {
        self.answer.extend_from_slice(bytes);
        let judged = self.proxy.judge(&self.server, &self.answer);
        self.refused = judged.is_err();
        judged
    }

    /// What an error means that comes before the way is open. What the proxy said is its own.
    pub(super) fn blame(&self, error: Error) -> Error {
        if self.refused {
            return error;
        }
        self.proxy.tunnel_failed(&self.server, error.kind(), &error.cause())
    }

    /// It hung up.
    pub(super) fn cut() -> Error {
        Error::new(Kind::Network, HUNG_UP)
    }
}
