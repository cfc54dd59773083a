//! The build without `tls` and `clouds`: what it reads, and what it says of all else. A program of its own, because features are those of
//! a whole program: `cargo x prove features` runs it.
#![forbid(unsafe_code)]
#![cfg(not(feature = "tls"))]

use fuelrail::{ByteSize, Credential, Environment, Kind, Listed, Loader, LoaderBuilder, write_manifest};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

fn loader(uri: &str) -> LoaderBuilder {
    let builder = Loader::builder(uri).memory_limit("64MB".parse().unwrap()).shards(1).pin(false).batch_size(7);
    builder.hedge_percent(0).environment(Environment::given([]))
}

/// Reads to the end. What was delivered, in order: every byte is the generator's.
fn read(loader: &mut Loader, set: &DataSet) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(batch) = loader.next_batch() {
        for sample in batch.unwrap().samples() {
            set.verify(loader.key(sample.id), sample.bytes).unwrap();
            order.push(sample.id.0);
        }
    }
    order
}

#[test]
fn a_folder_is_read_in_its_order() {
    let (set, dir) = (DataSet::digits(100, 3), tempfile::tempdir().unwrap());
    set.write_to(dir.path(), |_| {}).unwrap();
    let folder = || loader(dir.path().join("").to_str().unwrap());
    let read = |builder: LoaderBuilder| read(&mut builder.build().unwrap(), &set);
    assert_eq!(read(folder().shuffle(false)), (0..100).collect::<Vec<_>>());
    let mut shuffled = read(folder().seed(5));
    assert_eq!(shuffled, read(folder().seed(5)));
    assert!(!shuffled.is_sorted());
    shuffled.sort_unstable();
    assert_eq!(shuffled, (0..100).collect::<Vec<_>>());
}

#[test]
fn plain_http_is_read_by_a_manifest_with_cache_and_disk() {
    let (set, dir) = (DataSet::photos(40, 3), tempfile::tempdir().unwrap());
    let bucket = Bucket::start(BucketConfig { source: Source::Generated(set.clone()), ..BucketConfig::default() });
    let bucket = bucket.unwrap();
    let manifest = dir.path().join("manifest");
    let listed = |n| Listed { key: set.key(n), size: set.size(n), etag: Some(set.etag(n)) };
    write_manifest(&manifest, &(0..set.len()).map(listed).collect::<Vec<_>>()).unwrap();
    let plain = || loader(&bucket.url("")).manifest(manifest.clone()).epochs(4);
    let run = |builder: LoaderBuilder| {
        let mut loader = builder.build().unwrap();
        assert_eq!(read(&mut loader, &set).len(), 4 * 40);
        loader.stats()
    };
    let cached = run(plain().cache_limit(ByteSize(2 * set.total_bytes())));
    assert_eq!(cached.landed_bytes, set.total_bytes(), "each object is fetched once");
    let to_disk = || plain().spill_dirs(vec![dir.path().to_owned()]).spill_limit("64MiB".parse().unwrap());
    // Blocks that come while a segment is being made are not kept, so one run may not be enough.
    let is_on_disk = |_| run(to_disk().spill_floor(ByteSize(0))).landed_bytes == 0;
    assert!((0..30).any(is_on_disk), "a later run finds all blocks on disk");
}

#[test]
fn what_is_not_in_this_build_is_said_with_the_feature_and_a_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join("manifest");
    write_manifest(&manifest, &[Listed { key: "k".into(), size: 1, etag: None }]).unwrap();
    let plain = || loader("http://127.0.0.1:9/bucket");
    let proxies = [("http_proxy", "http://p:1"), ("no_proxy", "h")].map(|(name, value)| (name.into(), value.into()));
    for (builder, says) in [
        (loader("https://h/bucket").manifest(manifest.clone()), ["`tls`", "http://"]),
        (loader("s3://bucket/").manifest(manifest.clone()).region("eu-west-1"), ["`clouds`", "manifest"]),
        (loader("GS://bucket/"), ["`clouds`", "folder"]),
        (loader("az://account/container/"), ["`clouds`", "folder"]),
        (plain(), ["`clouds`", "manifest"]),
        (plain().manifest(manifest.clone()).anonymous(false), ["`clouds`", "anonymous"]),
        (plain().manifest(manifest.clone()).credentials(Credential::anonymous()), ["`clouds`", "anonymous"]),
        (
            loader("http://other/bucket").manifest(manifest).environment(Environment::given(proxies)),
            ["`clouds`", "no_proxy"],
        ),
    ] {
        let error = builder.build().map(drop).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == Kind::Usage && says.iter().all(|said| text.contains(said)), "{says:?}: {text}");
    }
}
