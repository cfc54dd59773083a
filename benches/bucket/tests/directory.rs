//! A real folder as a bucket, and the ways out of it that must stay shut.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{Client, elements};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};

fn serve(root: &Path, writable: bool) -> Bucket {
    let source = Source::Directory(root.to_path_buf());
    Bucket::start(BucketConfig { source, writable, ..BucketConfig::default() }).unwrap()
}

fn target(bucket: &Bucket, key: &str) -> String {
    bucket.url(key).strip_prefix(&format!("http://{}", bucket.addr())).unwrap().to_owned()
}

#[test]
fn a_source_tree_is_served_byte_for_byte() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bucket = serve(root, false);
    let mut client = Client::connect(&bucket);
    let mut keys = Vec::new();
    let mut token = String::new();
    loop {
        let reply = client.request("GET", &format!("/bucket?list-type=2&max-keys=7{token}"), &[]).unwrap();
        keys.extend(elements(reply.text(), "Key"));
        match elements(reply.text(), "NextContinuationToken").first() {
            Some(next) => token = format!("&continuation-token={next}"),
            None => break,
        }
    }
    assert!(keys.is_sorted() && keys.contains(&"src/lib.rs".to_owned()) && keys.len() > 20, "{keys:?}");
    for key in &keys {
        let whole = fs::read(root.join(key)).unwrap();
        let reply = client.request("GET", &target(&bucket, key), &[]).unwrap();
        assert!(reply.status == 200 && reply.body == whole, "{key}");
        let part = client.request("GET", &target(&bucket, key), &[("range", "bytes=3-9")]).unwrap();
        assert!(part.body == whole[3..10], "{key}");
        assert_eq!(part.header("etag"), reply.header("etag"));
    }
    let prefixed = client.request("GET", "/bucket?list-type=2&prefix=src/store/f", &[]).unwrap();
    assert_eq!(elements(prefixed.text(), "Key"), ["src/store/files.rs"]);
    let folders = client.request("GET", "/bucket?list-type=2&delimiter=/&prefix=src/s", &[]).unwrap();
    assert_eq!(elements(folders.text(), "CommonPrefixes").len(), 3, "{}", folders.text());
}

#[test]
fn nothing_outside_the_folder_is_reachable() {
    let outer = tempfile::tempdir().unwrap();
    fs::write(outer.path().join("secret"), "outside").unwrap();
    let root = outer.path().join("served");
    fs::create_dir_all(root.join("folder")).unwrap();
    fs::write(root.join("inside"), "inside").unwrap();
    symlink("../secret", root.join("link-out")).unwrap();
    symlink("..", root.join("folder-out")).unwrap();
    symlink("inside", root.join("link-in")).unwrap();
    symlink("link-loop", root.join("link-loop")).unwrap();
    let bucket = serve(&root, true);
    let mut client = Client::connect(&bucket);
    for path in [
        "../secret",
        "folder/../../secret",
        "..%2fsecret",
        "%2e%2e/secret",
        "%2e%2e%2fsecret",
        "folder%2f..%2f..%2fsecret",
        "link-out",
        "folder-out/secret",
        "folder-out%2fsecret",
        "link-loop",
        "folder",
        "folder/",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "./inside",
        "inside%00",
        "..%5csecret",
    ] {
        let reply = client.request("GET", &format!("/bucket/{path}"), &[]).unwrap();
        assert!(matches!(reply.status, 400 | 404), "{path}: {}", reply.status);
        assert!(!reply.text().contains("outside"), "{path}");
    }
    for path in ["../written", "%2e%2e%2fwritten", "folder-out/written", "folder/%2e%2e/%2e%2e/written"] {
        let reply = client.put(&format!("/bucket/{path}"), b"x", &[]);
        assert_eq!(reply.status, 400, "{path}");
    }
    assert!(!outer.path().join("written").exists());
    assert_eq!(client.get("link-in").body, b"inside");
    let listing = client.request("GET", "/bucket?list-type=2", &[]).unwrap();
    assert_eq!(elements(listing.text(), "Key"), ["inside", "link-in"]);
    for prefix in ["../", "folder-out/", "../served/"] {
        let listing = client.request("GET", &format!("/bucket?list-type=2&prefix={prefix}"), &[]).unwrap();
        assert_eq!(elements(listing.text(), "Key"), Vec::<String>::new(), "{prefix}");
    }
}

#[test]
fn objects_can_be_put_only_when_writable() {
    let root = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7) as u8).collect();
    {
        let bucket = serve(root.path(), false);
        let reply = Client::connect(&bucket).put("/bucket/a", b"x", &[]);
        assert_eq!((reply.status, elements(reply.text(), "Code")), (403, vec!["AccessDenied".to_owned()]));
    }
    let bucket = serve(root.path(), true);
    let mut client = Client::connect(&bucket);
    for (key, body) in [("a/b/c d.bin", large.as_slice()), ("zero", b""), ("ümlaut+%", b"x")] {
        let put = client.put(&target(&bucket, key), body, &[]);
        assert_eq!(put.status, 200, "{key}");
        let got = client.request("GET", &target(&bucket, key), &[]).unwrap();
        assert!(got.body == body && got.header("etag") == put.header("etag"), "{key}");
    }
    let listing = client.request("GET", "/bucket?list-type=2", &[]).unwrap();
    assert_eq!(elements(listing.text(), "Key"), ["a/b/c d.bin", "zero", "ümlaut+%"]);
    // Buckets hold `zero/below` beside `zero`, folders do not: no server error, which clients would retry.
    for key in ["zero/below", "zero/deep/below"] {
        let reply = client.put(&target(&bucket, key), b"x", &[]);
        assert_eq!((reply.status, elements(reply.text(), "Code")), (409, vec!["PathConflict".to_owned()]), "{key}");
    }
    let before = client.request("HEAD", "/bucket/zero", &[]).unwrap();
    assert_eq!(client.put("/bucket/zero", b"new", &[]).status, 200);
    let after = client.request("HEAD", "/bucket/zero", &[]).unwrap();
    assert_ne!(before.header("etag"), after.header("etag"));
}

#[test]
fn a_written_set_is_the_generated_set() {
    let root = tempfile::tempdir().unwrap();
    for set in [DataSet::digits(30, 4), DataSet::photos(12, 4), DataSet::volumes(2, 4, 0.02)] {
        let mut calls = 0;
        let written = set.write_to(root.path(), |_| calls += 1).unwrap();
        assert_eq!((written.objects, written.bytes), (set.len(), set.total_bytes()));
        assert!(calls >= set.len());
        let bucket = serve(root.path(), false);
        let mut client = Client::connect(&bucket);
        for index in 0..set.len() {
            set.verify(&set.key(index), &client.get(&set.key(index)).body).unwrap();
        }
    }
}
