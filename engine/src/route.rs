//! The way to a server, decided before the first byte; no answer widens it.

use fuelrail_flow::Authority;
use fuelrail_wire::redirect::Moved;
use fuelrail_wire::tls::Client as TlsClient;
use fuelrail_wire::{Endpoint, Proxy};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a server is reached.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) endpoint: Endpoint,
    pub(crate) tls: Option<TlsClient>,
    /// The proxy between here and the server, where there is one.
    pub(crate) proxy: Option<Arc<Proxy>>,
    /// What signs; `None` where requests go unsigned.
    pub(crate) authority: Option<Arc<Authority>>,
    /// Where the server says that the bucket is instead.
    pub(crate) moved: Mutex<Option<Moved>>,
}

impl Route {
    /// A route without TLS, proxy and signatures.
    pub(crate) fn new(endpoint: Endpoint) -> Route {
        Route { endpoint, tls: None, proxy: None, authority: None, moved: Mutex::default() }
    }

    /// Where the bucket is according to the last redirect.
    pub(crate) fn moved(&self) -> MutexGuard<'_, Option<Moved>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
