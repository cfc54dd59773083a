//! Bare `hyper`: one thread, N keep-alive connections, each asking for the next piece when its last one has landed. What
//! a careful programmer writes with the best HTTP library there is, and no more.
//!
//! Owns requests and answers. Never decides what is read next.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue, RANGE};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use crate::arena::Arena;
use crate::bucket::Bucket;
use crate::flaw::{Flaw, Result};
use crate::link::Opener;
use crate::manifest::Object;
use crate::native::{Setup, runtime, settings};
use crate::protocol::{Contestant, Passed};
use crate::reading::{Piece, Plan, Reading};

/// The client with everything it keeps between passes. Connections are made anew for each.
pub(crate) struct BareHyper {
    runtime: Runtime,
    opener: Opener,
    host: HeaderValue,
    objects: Vec<Object>,
    /// Parsed once: a client in earnest would keep them, too.
    uris: Vec<Uri>,
    arena: Option<Arena>,
    plan: Plan,
    connections: usize,
    settings: String,
}

impl BareHyper {
    /// Ready to read.
    ///
    /// # Errors
    /// When the setup makes no sense to it.
    pub(crate) fn new(bucket: &Bucket, setup: Setup) -> Result<BareHyper> {
        let parse = |object: &Object| bucket.path(&object.key).parse::<Uri>().map_err(|e| Flaw::of(&object.key, e));
        let uris = setup.objects.iter().map(parse).collect::<Result<Vec<_>>>()?;
        let host = HeaderValue::from_str(&bucket.authority()).map_err(|e| Flaw::of(&bucket.host, e))?;
        let settings = settings(&format!("hyper 1, HTTP/1.1{}", if bucket.tls { ", rustls" } else { "" }), &setup);
        Ok(BareHyper {
            runtime: runtime()?,
            opener: Opener::new(bucket)?,
            host,
            uris,
            settings,
            objects: setup.objects,
            arena: setup.arena,
            plan: setup.plan,
            connections: setup.connections,
        })
    }
}

impl Contestant for BareHyper {
    fn pass(&mut self, number: u64) -> Result<Passed> {
        let reading = Reading::start(&self.objects, &self.plan, number, self.arena.as_mut());
        let (opener, host, uris) = (&self.opener, &self.host, &self.uris);
        let workers = (0..self.connections).map(|_| work(&reading, opener, host, uris));
        let all = futures_util::future::try_join_all(workers);
        LocalSet::new().block_on(&self.runtime, all)?;
        reading.finish(self.settings.clone())
    }
}

/// One connection's work, from connecting to the end of the pass.
async fn work(reading: &Reading<'_>, opener: &Opener, host: &HeaderValue, uris: &[Uri]) -> Result<()> {
    let Some(mut piece) = reading.next().await else { return Ok(()) };
    let link = TokioIo::new(opener.open().await?);
    let (mut sender, connection) = http1::handshake(link).await.map_err(|e| Flaw::of("starting HTTP", e))?;
    // Its error comes out of the request it breaks.
    let driver = tokio::task::spawn_local(connection);
    loop {
        fetch(reading, &mut sender, host, &uris[piece.object], &mut piece).await?;
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

async fn fetch(
    reading: &Reading<'_>,
    sender: &mut SendRequest<Empty<Bytes>>,
    host: &HeaderValue,
    uri: &Uri,
    piece: &mut Piece,
) -> Result<()> {
    let doing = || format!("GET {uri}");
    let mut request = Request::get(uri.clone()).header(HOST, host.clone());
    let expected = if piece.whole { StatusCode::OK } else { StatusCode::PARTIAL_CONTENT };
    if !piece.whole {
        request = request.header(RANGE, format!("bytes={}-{}", piece.range.start, piece.range.end - 1));
    }
    let request = request.body(Empty::new()).map_err(|e| Flaw::of(doing(), e))?;
    sender.ready().await.map_err(|e| Flaw::of(doing(), e))?;
    let response = sender.send_request(request).await.map_err(|e| Flaw::of(doing(), e))?;
    if response.status() != expected {
        return Err(Flaw::new(format!("{}: {} instead of {expected}", doing(), response.status())));
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Flaw::of(doing(), e))?;
        if let Some(bytes) = frame.data_ref() {
            reading.land(piece, bytes)?;
        }
    }
    Ok(())
}
