//! `object_store` speaking S3 without signatures: one thread, N requests at a time, its own connection pool and retries.

use std::fs;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Certificate, ClientOptions, GetOptions, GetRange, ObjectStore};

use crate::bucket::Bucket;
use crate::manifest::Object;
use crate::native::Client;
use crate::reading::Reading;

pub(crate) struct Store {
    store: AmazonS3,
    paths: Vec<Path>,
}

impl Store {
    pub(crate) fn new(bucket: &Bucket, objects: &[Object]) -> Result<Store> {
        let path = |object: &Object| Path::parse(bucket.whole_key(&object.key));
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
