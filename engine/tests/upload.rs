//! Putting one object: what arrives is what was sent, whole, and what cannot be says why.

mod common;

use common::bucket;
use fuelrail::{Kind, Tls, get, put, put_with};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
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
        assert_eq!((error.kind(), error.object_key()), (Kind::Denied, Some("k")), "{error}");
        assert!(error.to_string().contains("AccessDenied") && error.to_string().contains("--writable"), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let error = put(&closed.url(""), b"x").unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("names no object"), "{error}");
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

/// Promises more than it has when it is read again.
struct Shrinking {
    inner: Cursor<Vec<u8>>,
    rewound: u32,
}

impl Read for Shrinking {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let most = if self.rewound > 1 {
            out.len().min(100_000_usize.saturating_sub(self.inner.position() as usize))
        } else {
            out.len()
        };
        self.inner.read(&mut out[..most])
    }
}

impl Seek for Shrinking {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.rewound += 1;
        self.inner.seek(to)
    }
}

#[test]
fn a_source_that_shrinks_leaves_the_old_object() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = folder(dir.path(), true);
    put(&bucket.url("k"), b"old").unwrap();
    let mut source = Shrinking { inner: Cursor::new(content(600_000)), rewound: 0 };
    let error = put_with(&Tls::default(), &bucket.url("k"), &mut source, |_| {}).unwrap_err();
    assert!(error.kind() == Kind::File && error.to_string().contains("shorter"), "{error}");
    assert_eq!(brought(&bucket.url("k")), b"old");
}
