//! Putting one object: what arrives is what was sent, whole, and what cannot be says why.

mod parts;
mod said;
mod servers;

use crate::common::bucket;
use fuelrail::{Access, Kind, PutOptions, PutOver, Tls, get, put, put_as, put_with};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, FaultKind, Source};
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::Path;

/// A folder, open for writing or not.
fn folder(path: &Path, writable: bool) -> Bucket {
    let source = Source::Directory(path.to_owned());
    Bucket::start(BucketConfig { source, writable, ..BucketConfig::default() }).unwrap()
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) >> 4) as u8).collect()
}

fn brought(uri: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    get(uri, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_put_is_listed_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    for bucket in [bucket(&DataSet::digits(3, 1), ""), folder(dir.path(), true)] {
        for len in [0, 1, 256 << 10, 3_000_001] {
            let uri = bucket.url(&format!("new/a b+{len}.bin"));
            let stored = put(&uri, &content(len)).unwrap();
            assert_eq!(stored.bytes, len as u64);
            let listed = list(&bucket.url("new/")).unwrap();
            let found =
                listed.iter().find(|object| object.key.ends_with(&format!("+{len}.bin"))).expect("it is listed");
            assert_eq!((found.size, &found.etag), (len as u64, &stored.etag));
            assert!(brought(&uri) == content(len), "{len} bytes");
        }
        // Over what was there.
        let (uri, before) = (bucket.url("new/a b+1.bin"), list(&bucket.url("new/")).unwrap().len());
        put(&uri, b"another").unwrap();
        assert_eq!((brought(&uri), list(&bucket.url("new/")).unwrap().len()), (b"another".to_vec(), before));
    }
}

fn list(uri: &str) -> fuelrail::Result<Vec<fuelrail::Listed>> {
    fuelrail::list(uri, |_| {})
}

#[test]
fn a_bucket_that_may_not_be_written_to_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let closed = folder(dir.path(), false);
    // More than the connection holds: the refusal comes while bytes are still on their way.
    for len in [3, 32 << 20] {
        let error = put(&closed.url("k"), &content(len)).unwrap_err();
        assert_eq!((error.kind(), error.object()), (Kind::Denied, Some("k")), "{error}");
        assert!(error.to_string().contains("AccessDenied") && error.to_string().contains("--writable"), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let error = put(&closed.url(""), b"x").unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("does not name an object"), "{error}");
    let elsewhere = closed.url("k").replace("/bucket/", "/other/");
    assert_eq!(put(&elsewhere, b"x").unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn what_breaks_is_sent_again_from_its_start() {
    let bucket = bucket(&DataSet::digits(3, 1), "slowdown=1.0,per_key_max=2,only=*");
    let mut told = Vec::new();
    let mut source = Cursor::new(content(600_000));
    // Wherever the source stands.
    source.seek(SeekFrom::Start(17)).unwrap();
    let stored = put_with(&Tls::default(), &bucket.url("k"), &mut source, |sent| told.push(sent)).unwrap();
    assert_eq!((stored.bytes, told.last()), (600_000, Some(&600_000)));
    assert!(brought(&bucket.url("k")) == content(600_000));
}

/// Has another length from the third rewinding on: when it is read again, or when parts are read.
struct Moving {
    inner: Cursor<Vec<u8>>,
    rewound: u32,
    from: u32,
    then: usize,
}

impl Moving {
    /// Of 600 000 bytes at first.
    fn new(from: u32, then: usize) -> Moving {
        Moving { inner: Cursor::new(content(600_000)), rewound: 0, from, then }
    }
}

impl Read for Moving {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.inner.read(out)
    }
}

impl Seek for Moving {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.rewound += 1;
        if self.rewound == self.from {
            self.inner = Cursor::new(content(self.then));
        }
        self.inner.seek(to)
    }
}

#[test]
fn a_source_that_changes_its_length_leaves_the_old_object() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = folder(dir.path(), true);
    put(&bucket.url("k"), b"old").unwrap();
    // Asked for its length, read for its checksum, read for the request; or read in parts.
    let in_parts = PutOptions { parts_above_bytes: 1, part_bytes: 100_000, ..PutOptions::default() };
    for (options, from) in [(&PutOptions::default(), 2), (&PutOptions::default(), 3), (&in_parts, 2)] {
        for (then, how) in [(599_999, "shorter"), (100_000, "shorter"), (600_001, "longer")] {
            let mut source = Moving::new(from, then);
            let error = put_as(options, Access::default(), &bucket.url("k"), &mut source, |_| {}).unwrap_err();
            assert!(error.kind() == Kind::File && error.to_string().contains(how), "{from} {then}: {error}");
            assert_eq!(brought(&bucket.url("k")), b"old");
        }
    }
    assert_eq!((bucket.counters().uploads_open, bucket.counters().complete_requests), (0, 0));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().flatten().filter(|e| e.path().is_file()).count(), 1);
}

/// Puts only what is new.
fn new() -> PutOptions {
    PutOptions { over: PutOver::Nothing, ..PutOptions::default() }
}

fn put_over(options: &PutOptions, uri: &str, bytes: &[u8]) -> fuelrail::Result<fuelrail::Stored> {
    put_as(options, Access::default(), uri, &mut Cursor::new(bytes), |_| {})
}

#[test]
fn what_is_there_is_replaced_only_as_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = folder(dir.path(), true);
    let uri = bucket.url("k");
    let first = put_over(&new(), &uri, b"first").unwrap();
    let error = put_over(&new(), &uri, b"second").unwrap_err();
    assert_eq!((error.kind(), error.object(), error.kind().exit_code()), (Kind::Exists, Some("k"), 1), "{error}");
    assert!(error.to_string().contains("exists already") && !error.to_string().contains("attempts"), "{error}");
    let over =
        |etag: &Option<String>| PutOptions { over: PutOver::Etag(etag.clone().unwrap()), ..PutOptions::default() };
    let second = put_over(&over(&first.etag), &uri, b"second").unwrap();
    for options in [over(&first.etag), PutOptions { parts_above_bytes: 1, part_bytes: 5 << 20, ..over(&first.etag) }] {
        let error = put_over(&options, &uri, b"third").unwrap_err();
        assert!(error.kind() == Kind::Changed && error.to_string().contains("check it before"), "{error}");
    }
    assert_eq!(put_over(&over(&first.etag), &bucket.url("nothing"), b"x").unwrap_err().kind(), Kind::Changed);
    assert_eq!((brought(&uri), bucket.counters().uploads_open), (b"second".to_vec(), 0));
    assert_ne!(first.etag, second.etag);
}

/// The answer to the first attempt is lost; the second one meets what the first has made.
#[test]
fn an_object_that_is_ours_is_no_other() {
    let bucket = bucket(&DataSet::digits(3, 1), "lost=1.0,per_key_max=1,only=k");
    let stored = put_over(&new(), &bucket.url("k"), b"ours").unwrap();
    let listed = list(&bucket.url("k")).unwrap();
    assert_eq!((listed[0].etag.as_ref(), bucket.counters().put_requests), (stored.etag.as_ref(), 2));
    assert_eq!((brought(&bucket.url("k")), bucket.counters().injected(FaultKind::Lost)), (b"ours".to_vec(), 1));
    let again = crate::common::bucket(&DataSet::digits(3, 1), "lost=1.0,per_key_max=1,only=k");
    put(&again.url("k"), b"others").unwrap();
    assert_eq!(put_over(&new(), &again.url("k"), b"ours").unwrap_err().kind(), Kind::Exists);
}

#[test]
fn what_is_changed_on_the_way_is_no_object() {
    let bucket = bucket(&DataSet::digits(3, 1), "corrupt=1.0,per_key_max=1,only=k");
    put(&bucket.url("k"), &content(300_000)).unwrap();
    assert!(brought(&bucket.url("k")) == content(300_000));
    assert_eq!((bucket.counters().put_requests, bucket.counters().injected(FaultKind::Corrupt)), (2, 1));
    // Every cloud judges in its own words.
    let always = crate::common::bucket(&DataSet::digits(3, 1), "corrupt=1.0,per_key_max=1000,only=*k");
    for uri in [always.url("k"), "s3://bucket/k".into(), "gs://bucket/k".into(), "az://bucket/set/k".into()] {
        let access = parts::access(&always, &uri);
        let error = put_as(&PutOptions::default(), access, &uri, &mut Cursor::new(b"x"), |_| {}).unwrap_err();
        assert!(error.kind() == Kind::Mismatch && error.to_string().contains("BadDigest"), "{uri}: {error}");
    }
    assert!(list(&always.url("k")).unwrap().is_empty());
}
