//! Bare `hyper`: one thread, N keep-alive connections, each asking for the next piece when its last one has landed. What
//! a careful programmer writes with the best HTTP library there is, and no more. Connections are made anew for each pass.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue, RANGE};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

use crate::bucket::Bucket;
use crate::manifest::Object;
use crate::native::Client;
use crate::reading::{Piece, Reading};

/// TCP, or TLS over it.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

pub(crate) struct BareHyper {
    authority: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    host: HeaderValue,
    /// Parsed once: a client in earnest would keep them, too.
    uris: Vec<Uri>,
}

impl BareHyper {
    pub(crate) fn new(bucket: &Bucket, objects: &[Object]) -> Result<BareHyper> {
        let parse = |object: &Object| bucket.path(&object.key).parse::<Uri>().with_context(|| object.key.clone());
        Ok(BareHyper {
            authority: bucket.authority(),
            tls: if bucket.tls { Some(connector(bucket)?) } else { None },
            host: HeaderValue::from_str(&bucket.authority()).with_context(|| bucket.host.clone())?,
            uris: objects.iter().map(parse).collect::<Result<_>>()?,
        })
    }

    async fn connect(&self) -> Result<Box<dyn Stream>> {
        let doing = || format!("connecting to {}", self.authority);
        let socket = TcpStream::connect(&self.authority).await.with_context(doing)?;
        socket.set_nodelay(true).with_context(doing)?;
        let Some((connector, name)) = &self.tls else { return Ok(Box::new(socket)) };
        Ok(Box::new(connector.connect(name.clone(), socket).await.with_context(doing)?))
    }

    async fn fetch(
        &self,
        reading: &Reading<'_>,
        sender: &mut SendRequest<Empty<Bytes>>,
        piece: &mut Piece,
    ) -> Result<()> {
        let uri = &self.uris[piece.object];
        let doing = || format!("GET {uri}");
        let mut request = Request::get(uri.clone()).header(HOST, self.host.clone());
        let expected = if piece.whole { StatusCode::OK } else { StatusCode::PARTIAL_CONTENT };
        if !piece.whole {
            request = request.header(RANGE, format!("bytes={}-{}", piece.range.start, piece.range.end - 1));
        }
        let request = request.body(Empty::new()).with_context(doing)?;
        sender.ready().await.with_context(doing)?;
        let response = sender.send_request(request).await.with_context(doing)?;
        if response.status() != expected {
            bail!("{}: {} instead of {expected}", doing(), response.status());
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.with_context(doing)?;
            if let Some(bytes) = frame.data_ref() {
                reading.land(piece, bytes)?;
            }
        }
        Ok(())
    }
}

impl Client for BareHyper {
    async fn work(&self, reading: &Reading<'_>) -> Result<()> {
        let Some(mut piece) = reading.next().await else { return Ok(()) };
        let link = TokioIo::new(self.connect().await?);
        let (mut sender, connection) = http1::handshake(link).await.context("starting HTTP")?;
        // Its error comes out of the request it breaks.
        let driver = tokio::task::spawn_local(connection);
        loop {
            self.fetch(reading, &mut sender, &mut piece).await?;
            reading.landed(piece)?;
            piece = match reading.next().await {
                Some(piece) => piece,
                None => break,
            };
        }
        drop(sender);
        // Closed before the pass ends: what it costs belongs to it. That the server closed first is no failure.
        let _ = driver.await;
        Ok(())
    }
}

fn connector(bucket: &Bucket) -> Result<(TlsConnector, ServerName<'static>)> {
    let file = bucket.ca_file.as_deref();
    let file = file.context("no authorities to trust; give them with --ca-file FILE")?;
    let mut roots = RootCertStore::empty();
    for certificate in authorities(file)? {
        roots.add(certificate).with_context(|| file.display().to_string())?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .context("setting TLS up")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(bucket.host.clone()).with_context(|| bucket.host.clone())?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found = found.map_err(|e| anyhow!("{}: {e:?}", file.display()))?;
    ensure!(!found.is_empty(), "{} holds no PEM certificate", file.display());
    Ok(found)
}
