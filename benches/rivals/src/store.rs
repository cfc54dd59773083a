//! `object_store` speaking S3 without signatures: one thread, N requests at a time, its own connection pool and retries.
//!
//! Owns requests and answers. Never decides what is read next.

use std::fs;

use futures_util::StreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Certificate, ClientOptions, GetOptions, GetRange, ObjectStore};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use crate::arena::Arena;
use crate::bucket::Bucket;
use crate::flaw::{Flaw, Result};
use crate::manifest::Object;
use crate::native::{Setup, runtime, settings};
use crate::protocol::{Contestant, Passed};
use crate::reading::{Piece, Plan, Reading};

/// The client with everything it keeps between passes, its connections among it.
pub(crate) struct Store {
    runtime: Runtime,
    store: AmazonS3,
    objects: Vec<Object>,
    paths: Vec<Path>,
    arena: Option<Arena>,
    plan: Plan,
    requests: usize,
    settings: String,
}

impl Store {
    /// Ready to read.
    ///
    /// # Errors
    /// When the setup makes no sense to it.
    pub(crate) fn new(bucket: &Bucket, setup: Setup) -> Result<Store> {
        let runtime = runtime()?;
        let store = {
            let _inside = runtime.enter();
            build(bucket)?
        };
        let parse =
            |object: &Object| Path::parse(bucket.whole_key(&object.key)).map_err(|e| Flaw::of("object_store", e));
        let paths = setup.objects.iter().map(parse).collect::<Result<Vec<_>>>()?;
        let settings = settings("object_store 0.14, S3 unsigned, HTTP/1.1, get into a stream", &setup);
        Ok(Store {
            runtime,
            store,
            paths,
            settings,
            objects: setup.objects,
            arena: setup.arena,
            plan: setup.plan,
            requests: setup.connections,
        })
    }
}

fn build(bucket: &Bucket) -> Result<AmazonS3> {
    if bucket.name.is_empty() {
        return Err(Flaw::new("object_store speaks S3, which wants a bucket").cure("write http://HOST:PORT/BUCKET/"));
    }
    let mut options = ClientOptions::new().with_allow_http(!bucket.tls).with_http1_only();
    if let Some(file) = &bucket.ca_file {
        let doing = || format!("{}", file.display());
        let pem = fs::read(file).map_err(|e| Flaw::of(doing(), e))?;
        let roots = Certificate::from_pem_bundle(&pem).map_err(|e| Flaw::of(doing(), e))?;
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
        .map_err(|e| Flaw::of("object_store", e))
}

impl Contestant for Store {
    fn pass(&mut self, number: u64) -> Result<Passed> {
        let reading = Reading::start(&self.objects, &self.plan, number, self.arena.as_mut());
        let (store, paths) = (&self.store, &self.paths);
        let workers = (0..self.requests).map(|_| work(&reading, store, paths));
        let all = futures_util::future::try_join_all(workers);
        LocalSet::new().block_on(&self.runtime, all)?;
        reading.finish(self.settings.clone())
    }
}

async fn work(reading: &Reading<'_>, store: &AmazonS3, paths: &[Path]) -> Result<()> {
    while let Some(mut piece) = reading.next().await {
        fetch(reading, store, &paths[piece.object], &mut piece).await?;
        reading.landed(piece)?;
    }
    Ok(())
}

async fn fetch(reading: &Reading<'_>, store: &AmazonS3, path: &Path, piece: &mut Piece) -> Result<()> {
    let range = || GetRange::Bounded(piece.range.start as u64..piece.range.end as u64);
    let options = GetOptions { range: (!piece.whole).then(range), ..GetOptions::default() };
    let answer = store.get_opts(path, options).await.map_err(|e| Flaw::of("object_store", e))?;
    let mut body = answer.into_stream();
    while let Some(bytes) = body.next().await {
        reading.land(piece, &bytes.map_err(|e| Flaw::of("object_store", e))?)?;
    }
    Ok(())
}
