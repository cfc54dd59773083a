//! What the clients that run inside this process have in common: one thread, as a shard of the loader has, and so many connections
//! or requests at a time over which the pieces of a pass are spread.

use std::path::Path;
use std::sync::Arc;
use std::{env, fs};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue, RANGE};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as Key;
use object_store::{Certificate, ClientOptions, GetOptions, GetRange, ObjectStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::Passed;
use crate::bucket::{Bucket, Object};
use crate::reading::{Arena, Piece, Plan, Reading};

/// What asks for pieces.
pub(crate) trait Client {
    /// One connection's work, until there is no further piece.
    async fn work(&self, reading: &Reading<'_>) -> Result<()>;
}

/// What a native client is built from.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) objects: Vec<Object>,
    /// Where bytes go; none to drop them.
    pub(crate) arena: Option<Arena>,
    pub(crate) plan: Plan,
    /// Connections, or requests at a time.
    pub(crate) connections: usize,
}

/// A client with everything it keeps between passes.
pub(crate) struct Native<C> {
    runtime: Runtime,
    client: C,
    setup: Setup,
    settings: String,
}

impl<C: Client> Native<C> {
    /// A client that `build` makes within the runtime; `name` is what it says of itself.
    pub(crate) fn new(name: &str, setup: Setup, build: impl FnOnce(&[Object]) -> Result<C>) -> Result<Native<C>> {
        let runtime = Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
        let client = {
            let _inside = runtime.enter();
            build(&setup.objects)?
        };
        Ok(Native { runtime, client, settings: settings(name, &setup), setup })
    }

    pub(crate) fn pass(&mut self, number: u64) -> Result<Passed> {
        let Setup { objects, arena, plan, connections } = &mut self.setup;
        let reading = Reading::start(objects, plan, number, arena.as_mut());
        let all = futures_util::future::try_join_all((0..*connections).map(|_| self.client.work(&reading)));
        LocalSet::new().block_on(&self.runtime, all)?;
        reading.finish(self.settings.clone())
    }
}

/// How a client is run, for the result. The allocator counts: clients allocate their buffers, and one that returns pages
/// to the kernel after each pays for them again.
fn settings(client: &str, setup: &Setup) -> String {
    let Setup { arena, plan, connections, .. } = setup;
    let placing = match arena {
        Some(arena) => format!("copied into an arena of {} MiB", arena.size() >> 20),
        None => "bytes dropped".to_owned(),
    };
    let tuned = env::var_os("MALLOC_TRIM_THRESHOLD_").is_some() || env::var_os("MALLOC_TOP_PAD_").is_some();
    let allocator = if tuned { "glibc malloc that keeps its pages" } else { "glibc malloc as it comes" };
    let range = plan.range as f64 / f64::from(1u32 << 20);
    format!("{client}, one thread, {connections} connections, requests of at most {range} MiB, {placing}, {allocator}")
}

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

pub(crate) struct Store {
    store: AmazonS3,
    paths: Vec<Key>,
}

impl Store {
    pub(crate) fn new(bucket: &Bucket, objects: &[Object]) -> Result<Store> {
        let path = |object: &Object| Key::parse(bucket.whole_key(&object.key));
        let paths = objects.iter().map(path).collect::<Result<_, _>>().context("object_store")?;
        Ok(Store { store: build(bucket)?, paths })
    }
}

fn build(bucket: &Bucket) -> Result<AmazonS3> {
    let named = !bucket.name.is_empty();
    ensure!(named, "object_store speaks S3, which wants a bucket; write http://HOST:PORT/BUCKET/");
    let mut options = ClientOptions::new().with_allow_http(!bucket.tls).with_http1_only();
    if let Some(file) = &bucket.ca_file {
        let pem = fs::read(file).with_context(|| file.display().to_string())?;
        let roots = Certificate::from_pem_bundle(&pem).with_context(|| file.display().to_string())?;
        options = roots.into_iter().fold(options, ClientOptions::with_root_certificate);
        options = options.with_no_system_certificates(true);
    }
    AmazonS3Builder::new()
        .with_endpoint(bucket.endpoint())
        .with_bucket_name(&bucket.name)
        .with_region("us-east-1")
        .with_virtual_hosted_style_request(false)
        .with_skip_signature(true)
        .with_client_options(options)
        .build()
        .context("object_store")
}

impl Client for Store {
    async fn work(&self, reading: &Reading<'_>) -> Result<()> {
        while let Some(mut piece) = reading.next().await {
            let range = || GetRange::Bounded(piece.range.start as u64..piece.range.end as u64);
            let options = GetOptions { range: (!piece.whole).then(range), ..GetOptions::default() };
            let answer = self.store.get_opts(&self.paths[piece.object], options).await;
            let mut body = answer.context("object_store")?.into_stream();
            while let Some(bytes) = body.next().await {
                reading.land(&mut piece, &bytes.context("object_store")?)?;
            }
            reading.landed(piece)?;
        }
        Ok(())
    }
}
