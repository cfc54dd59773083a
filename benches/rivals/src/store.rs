//! `object_store` speaking S3 without signatures: one thread, N requests at a time, its own connection pool and retries.

use std::fs;

use futures_util::StreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Certificate, ClientOptions, GetOptions, GetRange, ObjectStore};

use crate::bucket::Bucket;
use crate::flaw::{Flaw, Result};
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
        let paths = objects.iter().map(path).collect::<Result<_, _>>().map_err(|e| Flaw::of("object_store", e))?;
        Ok(Store { store: build(bucket)?, paths })
    }
}

fn build(bucket: &Bucket) -> Result<AmazonS3> {
    if bucket.name.is_empty() {
        return Err(Flaw::new("object_store speaks S3, which wants a bucket").cure("write http://HOST:PORT/BUCKET/"));
    }
    let mut options = ClientOptions::new().with_allow_http(!bucket.tls).with_http1_only();
    if let Some(file) = &bucket.ca_file {
        let pem = fs::read(file).map_err(|e| Flaw::of(file.display(), e))?;
        let roots = Certificate::from_pem_bundle(&pem).map_err(|e| Flaw::of(file.display(), e))?;
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

impl Client for Store {
    async fn work(&self, reading: &Reading<'_>) -> Result<()> {
        while let Some(mut piece) = reading.next().await {
            let range = || GetRange::Bounded(piece.range.start as u64..piece.range.end as u64);
            let options = GetOptions { range: (!piece.whole).then(range), ..GetOptions::default() };
            let answer = self.store.get_opts(&self.paths[piece.object], options).await;
            let mut body = answer.map_err(|e| Flaw::of("object_store", e))?.into_stream();
            while let Some(bytes) = body.next().await {
                reading.land(&mut piece, &bytes.map_err(|e| Flaw::of("object_store", e))?)?;
            }
            reading.landed(piece)?;
        }
        Ok(())
    }
}
