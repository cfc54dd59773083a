//! The CONNECT tunnel through a proxy, opened before TLS begins on it.
//!
//! Owns the CONNECT request and what has come of its response. The connection sends and receives for it.

use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::proxy::HUNG_UP;
use fuelrail_wire::{Endpoint, Proxy};
use std::sync::Arc;

/// A tunnel that is not open yet.
pub(crate) struct Tunnel {
    proxy: Arc<Proxy>,
    server: Endpoint,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// The proxy refused the tunnel.
    refused: bool,
}

impl Tunnel {
    /// Through `proxy`, to `server`.
    pub(crate) fn new(proxy: Arc<Proxy>, server: &Endpoint) -> Tunnel {
        let mut request = Vec::new();
        proxy.push_connect(server, &mut request);
        Tunnel { proxy, server: server.clone(), request, answer: Vec::new(), refused: false }
    }

    /// Appends the CONNECT request, once.
    pub(super) fn take_request(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.request);
    }

    /// Takes the next bytes of the response. True when the tunnel is open.
    ///
    /// # Errors
    /// As [`Proxy::judge`].
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<bool> {
        self.answer.extend_from_slice(bytes);
        let judged = self.proxy.judge(&self.server, &self.answer);
        self.refused = judged.is_err();
        judged
    }

    /// What an error before the tunnel is open means. A refusal of the proxy stays as it is.
    pub(super) fn blame(&self, error: Error) -> Error {
        if self.refused {
            return error;
        }
        self.proxy.tunnel_failed(&self.server, error.kind(), &error.cause())
    }

    /// The proxy closed the connection.
    pub(super) fn cut() -> Error {
        Error::new(Kind::Network, HUNG_UP)
    }
}
