//! Connections for bare `hyper`: TCP, and TLS over it where the bucket wants it.
//!
//! Owns how a connection is opened. Never looks at what is sent over it.

use std::fs;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

use crate::bucket::Bucket;
use crate::flaw::{Flaw, Result};

/// Opens connections to one bucket.
pub(crate) struct Opener {
    authority: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Opener {
    /// For a bucket.
    ///
    /// # Errors
    /// When it wants TLS and names no authorities to trust, or ones that cannot be read.
    pub(crate) fn new(bucket: &Bucket) -> Result<Opener> {
        let tls = if bucket.tls { Some(connector(bucket)?) } else { None };
        Ok(Opener { authority: bucket.authority(), tls })
    }

    /// A fresh connection.
    ///
    /// # Errors
    /// When the server does not answer or is not who it should be.
    pub(crate) async fn open(&self) -> Result<Link> {
        let doing = || format!("connecting to {}", self.authority);
        let socket = TcpStream::connect(&self.authority).await.map_err(|e| Flaw::of(doing(), e))?;
        socket.set_nodelay(true).map_err(|e| Flaw::of(doing(), e))?;
        match &self.tls {
            None => Ok(Link::Plain(socket)),
            Some((connector, name)) => {
                let opened = connector.connect(name.clone(), socket).await.map_err(|e| Flaw::of(doing(), e))?;
                Ok(Link::Tls(Box::new(opened)))
            }
        }
    }
}

fn connector(bucket: &Bucket) -> Result<(TlsConnector, ServerName<'static>)> {
    let file = bucket.ca_file.as_deref();
    let file = file.ok_or_else(|| Flaw::new("no authorities to trust").cure("give them with --ca-file FILE"))?;
    let mut roots = RootCertStore::empty();
    for certificate in authorities(file)? {
        roots.add(certificate).map_err(|e| Flaw::of(format!("{}", file.display()), e))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Flaw::of("setting TLS up", e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(bucket.host.clone()).map_err(|e| Flaw::of(&bucket.host, e))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = fs::read(file).map_err(|e| Flaw::of(format!("{}", file.display()), e))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(Flaw::new(format!("{} holds no PEM certificate", file.display()))),
        Ok(found) => Ok(found),
        Err(error) => Err(Flaw::new(format!("{}: {error:?}", file.display()))),
    }
}

/// A connection. One variant of two per connection, matched on every read: cheaper than a virtual call and than nothing
/// else here.
pub(crate) enum Link {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Link::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Link::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Link::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Link::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Link::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Link::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Link::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Link::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
