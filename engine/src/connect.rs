//! Opens the control plane's connections: to a server or to the proxy before it, with TLS where the URI says so.
//!
//! Proxy requests and responses are read and written by `wire`.

use crate::system::no_more_files;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::proxy::HUNG_UP;
use fuelrail_wire::tls::{Client as TlsClient, explain};
use fuelrail_wire::{Endpoint, Proxy};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

/// What a request carries.
pub(crate) type Load = UnsyncBoxBody<Bytes, std::io::Error>;

/// Opens connections to one server.
pub(crate) struct Connector {
    tcp: HttpConnector,
    proxy: Option<Arc<Proxy>>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Connector {
    /// A connector that gives a TCP connection `timeout` to open.
    pub(crate) fn new(tls: Option<&TlsClient>, proxy: Option<&Arc<Proxy>>, timeout: Duration) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        tcp.enforce_http(false);
        let tls = tls.map(|tls| (TlsConnector::from(Arc::new(tls.plain_config())), tls.server_name()));
        Connector { tcp, proxy: proxy.cloned(), tls }
    }

    /// The proxy that requests are handed to; `None` where they go to the server itself, through a tunnel or directly.
    pub(crate) fn handed_to(&self) -> Option<&Proxy> {
        self.proxy.as_deref().filter(|_| self.tls.is_none())
    }

    /// A connection on which nothing was sent yet.
    ///
    /// # Errors
    /// `Network` when the server or the proxy cannot be reached, what TLS refuses, what the proxy answers instead of a tunnel.
    pub(crate) async fn open(&self, server: &Endpoint) -> Result<SendRequest<Load>> {
        let failed = |e: &(dyn StdError + 'static)| unreachable(&server.authority(), e);
        let mut tcp = self.tcp.clone();
        let to =
            |text: String| text.parse().map_err(|e| Error::new(Kind::Usage, format!("{text} is not an address: {e}")));
        let mut io = match &self.proxy {
            None => tcp.call(to(server_uri(server))?).await.map_err(|e| failed(&e))?,
            Some(proxy) => {
                let connected = tcp.call(to(format!("http://{}/", proxy.authority()))?).await;
                connected.map_err(|e| out_of_files(&e).unwrap_or_else(|| proxy.error(Kind::Network, &innermost(&e))))?
            }
        }
        .into_inner();
        let Some((tls, name)) = &self.tls else { return start(io).await.map_err(|e| failed(&e)) };
        if let Some(proxy) = &self.proxy {
            open_tunnel(proxy, server, &mut io).await?;
        }
        let io = tls.connect(name.clone(), io).await.map_err(|e| failed(&e))?;
        start(io).await.map_err(|e| failed(&e))
    }
}

/// The address of a server, with nothing of its path.
pub(crate) fn server_uri(server: &Endpoint) -> String {
    format!("{}://{}/", server.scheme.word(), server.authority())
}

/// Speaks HTTP/1.1 on a connection, in a task of its own.
async fn start<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: T) -> hyper::Result<SendRequest<Load>> {
    let (sender, connection) = handshake(TokioIo::new(io)).await?;
    // Its errors reach the caller through the pending request.
    tokio::spawn(async { drop(connection.await) });
    Ok(sender)
}

/// Asks the proxy for a tunnel to the server.
async fn open_tunnel(proxy: &Proxy, server: &Endpoint, io: &mut TcpStream) -> Result<()> {
    let failed = |why: &dyn std::fmt::Display| proxy.tunnel_failed(server, Kind::Network, why);
    let (mut request, mut answer) = (Vec::new(), Vec::new());
    proxy.push_connect(server, &mut request);
    io.write_all(&request).await.map_err(|e| failed(&e))?;
    loop {
        if io.read_buf(&mut answer).await.map_err(|e| failed(&e))? == 0 {
            return Err(failed(&HUNG_UP));
        }
        if proxy.judge(server, &answer)? {
            return Ok(());
        }
    }
}

/// The error for a request without a response: what TLS refuses, else the innermost cause.
pub(crate) fn unreachable(authority: &str, error: &(dyn StdError + 'static)) -> Error {
    if let Some(refused) = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
        return explain(refused);
    }
    if let Some(refused) = out_of_files(error) {
        return refused;
    }
    let inner = innermost(error);
    if causes(error).any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)) {
        return Error::new(Kind::Protocol, format!("the response of {authority} is not HTTP: {inner}"))
            .with_hint("check the port; if it speaks TLS, write https:// in the URI");
    }
    let failed = format!("cannot reach {authority}");
    let of_system = causes(error).find_map(|cause| cause.downcast_ref::<std::io::Error>());
    let unreachable = match of_system.filter(|cause| cause.to_string() == inner) {
        Some(cause) => Error::from_io(Kind::Network, failed, cause),
        None => Error::new(Kind::Network, format!("{failed}: {inner}")),
    };
    unreachable.with_hint("check that the server is running and the address is correct")
}

/// The error for a connection for which this process, or the system, has no descriptor left.
fn out_of_files(error: &(dyn StdError + 'static)) -> Option<Error> {
    causes(error).find_map(|cause| no_more_files("opening a connection", cause.downcast_ref::<std::io::Error>()?))
}

/// The last of an error's causes.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    causes(error).last().map_or(String::new(), ToString::to_string)
}

/// An error, and what it says that it comes from.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let source = |error: &&'a (dyn StdError + 'static)| -> Option<&'a (dyn StdError + 'static)> {
        // An I/O error hides what it wraps from those who ask for its source.
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => (*error).source(),
        }
    };
    std::iter::successors(Some(error), source)
}
