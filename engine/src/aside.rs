//! Where the control plane runs: a thread of its own for one piece of asynchronous work, and the client it asks with.
//!
//! Callers may be inside another runtime, which must not be disturbed. Owns nothing that outlives a call.

use crate::tls::connector_config;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::tls::Client as TlsClient;
use hyper::body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::time::Duration;

/// Asks over HTTP, and over TLS where the URI says so.
pub(crate) type Asker<B> = Client<HttpsConnector<HttpConnector>, B>;

/// Runs `work` on a thread of this name and waits for it.
///
/// # Errors
/// `Environment` when the thread or its runtime is refused; what `work` returns.
pub(crate) fn run_aside<T: Send>(name: &str, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let spawned = std::thread::Builder::new().name(name.into()).spawn_scoped(scope, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|e| Error::new(Kind::Environment, format!("starting tokio: {e}")))?;
            runtime.block_on(work())
        });
        let joined =
            spawned.map_err(|e| Error::new(Kind::Environment, format!("starting the thread {name}: {e}")))?.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A client whose connections stand within `connect_timeout`, or not at all.
///
/// # Errors
/// `Environment` when TLS cannot be set up.
pub(crate) fn asker<B>(tls: Option<&TlsClient>, connect_timeout: Duration) -> Result<Asker<B>>
where
    B: Body + Send,
    B::Data: Send,
{
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_timeout));
    connector.enforce_http(false);
    let https = HttpsConnectorBuilder::new().with_tls_config(connector_config(tls)?).https_or_http();
    Ok(Client::builder(TokioExecutor::new()).build(https.enable_http1().wrap_connector(connector)))
}
