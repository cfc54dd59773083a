//! How the control plane reaches a server: straight or through a proxy, with TLS where the URI says so.
//!
//! Owns the connections of one client. What a proxy is asked and what it says is `wire`'s.

use crate::tls::connector_config;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::proxy::HUNG_UP;
use fuelrail_wire::tls::Client as TlsClient;
use fuelrail_wire::{Endpoint, Proxy};
use hyper::body::{Body, Incoming};
use hyper::header::{HeaderValue, PROXY_AUTHORIZATION};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::legacy::{Client, Error as Failure};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::error::Error as StdError;
use std::io::{IoSlice, Result as IoResult};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower_service::Service;

/// Asks over HTTP, and over TLS where the URI says so.
pub(crate) struct Asker<B> {
    client: Client<HttpsConnector<Dialler>, B>,
    proxy: Option<Arc<Proxy>>,
}

impl<B> Asker<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// A client whose connections stand within `connect_timeout`, or not at all.
    ///
    /// # Errors
    /// `Environment` when TLS cannot be set up.
    pub(crate) fn new(
        tls: Option<&TlsClient>,
        proxy: Option<&Arc<Proxy>>,
        connect_timeout: Duration,
    ) -> Result<Asker<B>> {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(connect_timeout));
        tcp.enforce_http(false);
        let dialler = Dialler { tcp, proxy: proxy.cloned() };
        let https = HttpsConnectorBuilder::new().with_tls_config(connector_config(tls)?).https_or_http();
        let client = Client::builder(TokioExecutor::new()).build(https.enable_http1().wrap_connector(dialler));
        Ok(Asker { client, proxy: proxy.cloned() })
    }

    /// # Errors
    /// What hyper says; [`told`] finds what is ours in it.
    pub(crate) async fn request(&self, mut request: Request<B>) -> core::result::Result<Response<Incoming>, Failure> {
        let handed_to = self.proxy.as_ref().filter(|_| request.uri().scheme_str() == Some("http"));
        if let Some(value) = handed_to.and_then(|proxy| proxy.authorization()) {
            let mut value = HeaderValue::from_bytes(value).expect("base64 fits into a header");
            value.set_sensitive(true);
            request.headers_mut().insert(PROXY_AUTHORIZATION, value);
        }
        self.client.request(request).await
    }

    /// The same error without what a proxy was told of who asks.
    pub(crate) fn spared(&self, error: Error) -> Error {
        match &self.proxy {
            Some(proxy) => proxy.spared(error),
            None => error,
        }
    }
}

/// What of ours is among the causes of an error.
pub(crate) fn told(error: &(dyn StdError + 'static)) -> Option<Error> {
    causes(error).find_map(|error| error.downcast_ref::<Error>().cloned())
}

type Opening = Pin<Box<dyn Future<Output = core::result::Result<Line, Box<dyn StdError + Send + Sync>>> + Send>>;

/// Opens connections to servers, or to the proxy before all of them.
#[derive(Clone)]
struct Dialler {
    tcp: HttpConnector,
    proxy: Option<Arc<Proxy>>,
}

impl Service<Uri> for Dialler {
    type Response = Line;
    type Error = Box<dyn StdError + Send + Sync>;
    type Future = Opening;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<core::result::Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, server: Uri) -> Opening {
        let mut tcp = self.tcp.clone();
        let Some(proxy) = self.proxy.clone() else {
            return Box::pin(async move { Ok(Line { io: tcp.call(server).await?, is_handed_on: false }) });
        };
        Box::pin(async move {
            let at: Uri = format!("http://{}/", proxy.authority()).parse()?;
            let connected = tcp.call(at).await;
            let mut io = connected.map_err(|e| proxy.error(Kind::Network, &innermost(&e)))?;
            let is_handed_on = server.scheme_str() != Some("https");
            if !is_handed_on {
                let server: Endpoint = server.to_string().parse()?;
                open_way(&proxy, &server, io.inner_mut()).await?;
            }
            Ok(Line { io, is_handed_on })
        })
    }
}

/// Asks the proxy for a way to the server, on which nothing was said yet.
async fn open_way(proxy: &Proxy, server: &Endpoint, io: &mut TcpStream) -> Result<()> {
    let failed = |why: &dyn std::fmt::Display| proxy.in_vain(server, Kind::Network, why);
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

/// The last of an error's causes.
pub(crate) fn innermost(error: &(dyn StdError + 'static)) -> String {
    causes(error).last().map_or(String::new(), ToString::to_string)
}

/// An error, and what it says that it comes from.
pub(crate) fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let source = |error: &&'a (dyn StdError + 'static)| -> Option<&'a (dyn StdError + 'static)> {
        // An I/O error hides what it wraps from those who ask for its source.
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => (*error).source(),
        }
    };
    std::iter::successors(Some(error), source)
}

/// A connection, which knows whether requests on it name the server they are for.
struct Line {
    io: TokioIo<TcpStream>,
    is_handed_on: bool,
}

impl Connection for Line {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.is_handed_on)
    }
}

impl Read for Line {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, into)
    }
}

impl Write for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<IoResult<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<IoResult<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bytes)
    }
}
