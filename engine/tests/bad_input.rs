//! What users get wrong, and what real buckets hold: every refusal has its kind, cause and cure, and odd keys and lengths
//! work.

use crate::common::services::{Answer, Service};
use crate::common::{bucket, folder, listing, loader, loader_at};
use fuelrail::{Batch, ByteSize, Error, Format, Kind, Listed, Loader, OrderName, State, Taken};
use fuelrail_bucket::DataSet;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

fn refused(builder: fuelrail::LoaderBuilder, kind: Kind, says: &str) -> Error {
    let error = builder.build().expect_err(says);
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(text.contains(says), "'{says}' is not in: {text}");
    assert!(text.contains(';'), "no cure in: {text}");
    error
}

#[test]
fn a_uri_that_is_none_is_refused_with_the_form() {
    for (uri, says) in [
        ("", "uri"),
        ("s3:///prefix", "no bucket"),
        ("az://account", "no bucket"),
        ("ftp://host/bucket", "scheme"),
        ("http:///bucket", "host"),
        ("http://host:port/bucket", "port"),
        ("http://host:99999/bucket", "port"),
        ("http://host:0/bucket", "port"),
        ("http://user:secret@host/bucket", "user"),
        ("http://host/bucket?list-type=2", "query"),
        ("http://host/bucket#part", "fragment"),
        ("http://host/bucket/%zz", "%"),
        ("http://host/bucket/a\nb", "control"),
        ("http://[::1/bucket", "["),
        ("http://::1:80/bucket", "bracket"),
    ] {
        let error = refused(loader_at(uri), Kind::Usage, says);
        assert!(!error.to_string().contains("secret"), "a secret is printed: {error}");
    }
    refused(loader_at("/srv/no such folder"), Kind::NotFound, "there is no file or folder /srv/no such folder");
    refused(loader_at("bucket/prefix"), Kind::NotFound, "there is no file or folder ./bucket/prefix");
    refused(loader_at("bucket/prefix/"), Kind::NotFound, "a bucket is written s3://BUCKET/PREFIX/");
    let error = fuelrail::put("bucket/key", b"bytes").unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("s3://BUCKET/KEY"), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    // Port 1 is never listened on, and never handed out.
    let closed = "127.0.0.1:1";
    let uri = format!("http://{closed}/bucket/");
    // It may be about to start: a loader waits for it otherwise.
    let error = refused(loader_at(&uri).outage_limit(None), Kind::Network, closed);
    assert!(error.to_string().contains("attempts"), "{error}");
    let unknown = loader_at("http://no-such-host.invalid/bucket/").outage_limit(None);
    refused(unknown, Kind::Network, "no-such-host.invalid");
    // With a listing at hand the engine itself meets it.
    let set = DataSet::digits(10, 1);
    let mut loader = loader_at(&uri).listing(listing(&set)).attempts_max(2).build().unwrap();
    let error = loader.next_batch().expect("an outcome").expect_err("nobody serves");
    assert_eq!(error.kind(), Kind::Network, "{error}");
    assert!(error.to_string().contains(closed) && error.object().is_some(), "{error}");
}

/// Shards refuse it, too: `credentials.rs` and the tests of `wire` show that.
#[test]
fn bytes_in_another_coding_are_refused_by_its_name() {
    let service = Service::start(|_| Answer(200, "Content-Encoding: gzip\r\n".into(), "\u{1f}squeezed".into()));
    let uri = format!("{}/bucket/k", service.url());
    let mut got = Vec::new();
    let listed = fuelrail::list(&uri, |_| {}).unwrap_err();
    for error in [listed, fuelrail::get(&uri, &mut got).unwrap_err()] {
        let told = error.to_string();
        assert!(error.kind() == Kind::Protocol && told.contains("Content-Encoding 'gzip'"), "{told}");
    }
    assert!(got.is_empty());
    let plain = Service::start(|_| Answer(200, "Content-Encoding: identity\r\n".into(), "as it is".into()));
    fuelrail::get(&format!("{}/bucket/k", plain.url()), &mut got).unwrap();
    assert_eq!(got, b"as it is");
}

#[test]
fn a_prefix_without_objects_and_a_bucket_that_is_none_are_refused() {
    let bucket = bucket(&DataSet::digits(10, 1), "");
    refused(loader_at(&bucket.url("nothing/here/")), Kind::Usage, "nothing/here/");
    let other = bucket.url("").replace("/bucket/", "/other/");
    refused(loader_at(&other), Kind::NotFound, "404");
    let error = fuelrail::get(&bucket.url("no/such.png"), &mut Vec::new()).unwrap_err();
    assert_eq!((error.kind(), error.object()), (Kind::NotFound, Some("no/such.png")), "{error}");
}

#[test]
fn settings_out_of_range_are_named() {
    let bucket = bucket(&DataSet::digits(100, 1), "");
    let builder = || loader(&bucket);
    refused(builder().batch_size(0), Kind::Usage, "batch_size");
    refused(builder().epochs(0), Kind::Usage, "epochs");
    refused(builder().rank(3).world(3), Kind::Usage, "rank 3");
    refused(builder().rank(0).world(0), Kind::Usage, "world");
    refused(builder().shards(257), Kind::Usage, "shards");
    refused(builder().connections_max(0), Kind::Usage, "connections_max");
    refused(builder().attempts_max(0), Kind::Usage, "attempts_max");
    refused(builder().block_size(ByteSize(17)), Kind::Usage, "block_size");
    refused(builder().rank(0).world(3).batch_size(64).drop_last(true), Kind::Usage, "drop_last");
    refused(builder().listing(vec![]), Kind::Usage, "empty");
}

#[test]
fn a_state_of_another_run_is_refused() {
    let set = DataSet::digits(100, 1);
    let bucket = bucket(&set, "");
    let mut first = loader(&bucket).batch_size(8).seed(5).build().unwrap();
    first.next_batch().unwrap().unwrap();
    let state = first.state();
    let builder = || loader(&bucket).batch_size(8).seed(5).resume(state.clone());
    assert_eq!(builder().build().unwrap().map(|b| b.unwrap().len()).sum::<usize>(), 92);
    refused(builder().seed(6), Kind::Usage, "seed");
    refused(builder().shuffle(false), Kind::Usage, "shuffle");
    refused(builder().order(OrderName::Sticky), Kind::Usage, "with order");
    refused(builder().listing(listing(&DataSet::digits(101, 1))), Kind::Usage, "samples");
    let mut resized = listing(&set);
    resized[50].size += 1;
    refused(builder().listing(resized), Kind::Usage, "listing");
    refused(builder().resume(State { epoch: 9, ..state.clone() }), Kind::Usage, "epoch 9");
    refused(builder().resume(State { position: 100, ..state.clone() }), Kind::Usage, "position 100");
    // The end of the run is a state, too: there is nothing left.
    assert!(builder().resume(State { epoch: 1, position: 0, ..state }).build().unwrap().next_batch().is_none());
}

#[test]
fn a_manifest_with_a_flaw_names_the_line() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("manifest");
    for (text, says) in [
        ("a\t1\nb\n", "line 2"),
        ("a\t1\n\nb\tmany\n", "line 3"),
        ("a\t1\n{\"key\":\"b\"}\n", "line 2"),
        ("a\t1\nb\t2\na\t3\n", "line 3"),
        ("\t7\n", "line 1"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = loader_at("http://127.0.0.1:9/bucket").manifest(path.clone()).build().expect_err(says);
        assert_eq!(error.kind(), Kind::Usage, "{error}");
        let named = error.to_string().contains(says) && error.to_string().contains(path.to_str().unwrap());
        assert!(named, "{says}, {}: {error}", path.display());
    }
    let absent = loader_at("http://127.0.0.1:9/bucket").manifest(place.path().join("absent")).build().unwrap_err();
    assert_eq!(absent.kind(), Kind::File, "{absent}");
}

/// Batches held for ever leave no room: that is said, and nothing is lost: the rest comes when they are dropped.
#[test]
fn holding_every_batch_is_an_error_not_a_hang() {
    let set = DataSet::photos(120, 3);
    let bucket = bucket(&set, "");
    // However short a caller waits each time.
    for (shards, patience) in [(1, None), (2, None), (1, Some(Duration::from_millis(20)))] {
        let builder = loader(&bucket).memory_limit("12MB".parse().unwrap()).batch_size(8).shards(shards);
        let mut loader = builder.connections_max(4).build().unwrap();
        let next = |loader: &mut Loader| match patience {
            None => loader.next_batch().expect("the data set is larger than the budget"),
            Some(patience) => loop {
                match loader.next_batch_within(patience) {
                    Ok(Taken::Batch(batch)) => break Ok(batch),
                    Ok(taken) => assert!(matches!(taken, Taken::NotYet), "the data set is larger than the budget"),
                    Err(error) => break Err(error),
                }
            },
        };
        let mut held: Vec<Batch> = Vec::new();
        let error = loop {
            match next(&mut loader) {
                Ok(batch) => held.push(batch),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), Kind::Budget, "{error}");
        assert!(error.to_string().contains(&format!("{} batches", held.len())), "{error}");
        assert_eq!(next(&mut loader).unwrap_err().kind(), Kind::Budget, "as long as they are held");
        let mut seen = Vec::new();
        let mut take = |batch: &Batch, loader: &Loader| {
            for sample in batch.samples() {
                set.verify(loader.key(sample.id), sample.bytes).unwrap();
                seen.push(sample.id.0);
            }
        };
        held.drain(..).for_each(|batch| take(&batch, &loader));
        // The rest comes once there is room.
        while let Some(batch) = loader.next_batch() {
            take(&batch.unwrap(), &loader);
        }
        seen.sort_unstable();
        assert_eq!(seen, Vec::from_iter(0..120));
    }
}

/// Puts one object over plain HTTP.
fn put(addr: SocketAddr, path: &str, content: &[u8]) {
    let mut stream = TcpStream::connect(addr).unwrap();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: {addr}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(content).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn odd_keys() -> Vec<String> {
    let mut keys: Vec<String> = [
        "with space.bin",
        "two  spaces and a trailing one ",
        "plus+plus.bin",
        "percent%20encoded.bin",
        "percent%.bin",
        "per%cent%zz",
        "question?mark=1&x=2",
        "hash#part",
        "quote\"'<>&amp;.bin",
        "semi;colon,comma:at@dollar$",
        "unicode-ä-ß-日本語-🚂",
        "combining-e\u{301}-and-\u{e9}",
        "back\\slash",
        "tilde~(paren)[bracket]{brace}|",
        "a/b/c/../not-resolved",
        "dot/./dot",
        "*?[a-z]*",
    ]
    .map(str::to_owned)
    .into();
    for key in &mut keys {
        key.insert_str(0, "odd/");
    }
    // As long as a key may be: one name, and many bytes a character.
    keys.push("k".repeat(1024));
    keys.push(format!("{}/{}", "日".repeat(300), "x".repeat(123)));
    keys
}

#[test]
fn odd_keys_are_listed_fetched_and_labelled() {
    let bucket = bucket(&DataSet::digits(1, 1), "");
    let contents: BTreeMap<String, Vec<u8>> =
        odd_keys().into_iter().map(|key| (key.clone(), key.repeat(3).into_bytes())).collect();
    for (key, content) in &contents {
        let path = bucket.url(key);
        let path = path.strip_prefix("http://").and_then(|rest| rest.find('/').map(|at| &rest[at..])).unwrap();
        put(bucket.addr(), path, content);
    }
    // Single objects, with the URI escaped.
    for (key, content) in &contents {
        let mut got = Vec::new();
        fuelrail::get(&bucket.url(key), &mut got).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(got, *content, "{key}");
    }
    // All of them, by listing and by both forms of manifest.
    let listed: Vec<Listed> = fuelrail::list(&bucket.url(""), |_| {}).unwrap();
    let listed: Vec<Listed> = listed.into_iter().filter(|object| contents.contains_key(&object.key)).collect();
    assert_eq!(listed.len(), contents.len());
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("manifest");
    let bare: Vec<Listed> = listed.iter().map(|object| Listed { etag: None, ..object.clone() }).collect();
    for listing in [&listed, &bare] {
        fuelrail::write_manifest(&path, listing).unwrap();
        assert_eq!(fuelrail::read_manifest(&path).unwrap(), *listing);
        let mut loader = loader_at(&bucket.url("")).manifest(path.clone()).batch_size(3).shards(2).build().unwrap();
        let mut seen = 0;
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            for sample in batch.samples() {
                assert_eq!(sample.bytes, contents[loader.key(sample.id)], "{}", loader.key(sample.id));
                seen += 1;
            }
        }
        assert_eq!(seen, contents.len());
    }
    // As a prefix.
    let mut odd = loader_at(&bucket.url("odd/")).batch_size(100).build().unwrap();
    assert_eq!(odd.classes(), ["a", "dot"]);
    assert_eq!(odd.next_batch().unwrap().unwrap().len(), contents.len() - 2);
}

/// A key of 1 024 bytes on a real file system, whose names have at most 255.
#[test]
fn the_longest_key_of_a_folder_works() {
    let place = tempfile::tempdir().unwrap();
    let key = ["a", "b", "c", "d", "e"].map(|letter| letter.repeat(204)).join("/");
    assert_eq!(key.len(), 1024);
    let path = place.path().join(&key);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, b"deep").unwrap();
    let bucket = folder(place.path(), "");
    let mut loader = loader(&bucket).build().unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    assert_eq!((loader.key(batch.ids()[0]), batch.sample(0)), (key.as_str(), &b"deep"[..]));
}

#[test]
fn a_key_longer_than_any_bucket_allows_is_refused() {
    let listed = vec![Listed { key: "k".repeat(1025), size: 1, etag: None }];
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("manifest");
    fuelrail::write_manifest(&path, &listed).unwrap();
    let error = fuelrail::read_manifest(&path).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{error}");
    assert!(error.to_string().contains("1024") && error.to_string().contains("line 1"), "{error}");
}

#[test]
fn objects_without_bytes_are_samples_too() {
    let place = tempfile::tempdir().unwrap();
    for name in ["a/empty", "a/full", "b/empty", "b/empty2"] {
        std::fs::create_dir_all(place.path().join(name).parent().unwrap()).unwrap();
        std::fs::write(place.path().join(name), if name.ends_with("full") { &b"bytes"[..] } else { b"" }).unwrap();
    }
    let bucket = folder(place.path(), "");
    for (batch_size, shards) in [(1, 1), (3, 1), (3, 2), (64, 1)] {
        let mut loader = loader(&bucket).batch_size(batch_size).shards(shards).epochs(2).build().unwrap();
        let mut lengths: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            for sample in batch.samples() {
                lengths.entry(loader.key(sample.id).to_owned()).or_default().push(sample.bytes.len());
            }
        }
        let lengths: Vec<(&str, &[usize])> = lengths.iter().map(|(k, v)| (k.as_str(), v.as_slice())).collect();
        let expected: [(&str, &[usize]); 4] =
            [("a/empty", &[0, 0]), ("a/full", &[5, 5]), ("b/empty", &[0, 0]), ("b/empty2", &[0, 0])];
        assert_eq!(lengths, expected, "{batch_size} {shards}");
    }
    let mut nothing = Vec::new();
    assert_eq!(fuelrail::get(&bucket.url("a/empty"), &mut nothing).unwrap(), 0);
}

/// Counts what it is given and remembers the ends.
#[derive(Default)]
struct Ends {
    len: u64,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Write for Ends {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.len += bytes.len() as u64;
        if self.first.len() < 8 {
            self.first.extend(&bytes[..bytes.len().min(8 - self.first.len())]);
        }
        self.last.extend(&bytes[bytes.len().saturating_sub(8)..]);
        self.last.drain(..self.last.len().saturating_sub(8));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A file of `len` bytes that are zero but for its two ends; it takes no room on the disk.
fn sparse(path: &Path, len: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.set_len(len).unwrap();
    file.write_all_at(b"the head", 0).unwrap();
    file.write_all_at(b"the tail", len - 8).unwrap();
}

#[test]
fn an_object_larger_than_memory_is_refused_as_a_sample_and_streams_as_a_file() {
    let place = tempfile::tempdir().unwrap();
    sparse(&place.path().join("five-gib"), 5 << 30);
    let bucket = folder(place.path(), "");
    let error = refused(loader(&bucket).batch_size(1), Kind::Budget, "raise memory_limit to");
    assert!((5 << 30..(5 << 30) + (1 << 20)).contains(&crate::common::needed(&error)), "{error}");
    sparse(&place.path().join("large"), 150 << 20);
    let mut ends = Ends::default();
    assert_eq!(fuelrail::get(&bucket.url("large"), &mut ends).unwrap(), 150 << 20);
    assert_eq!((ends.len, &ends.first[..], &ends.last[..]), (150 << 20, &b"the head"[..], &b"the tail"[..]));
    // With the memory it needs, a sample of many blocks is whole; its end lies beyond 32 bits of bits.
    let large = vec![Listed { key: "large".into(), size: 150 << 20, etag: None }];
    let builder = loader(&bucket).listing(large).batch_size(1).memory_limit("160MB".parse().unwrap());
    let batch = builder.build().unwrap().next_batch().unwrap().unwrap();
    let bytes = batch.sample(0);
    assert_eq!((bytes.len(), &bytes[..8], &bytes[bytes.len() - 8..]), (150 << 20, &b"the head"[..], &b"the tail"[..]));
}

#[test]
fn archives_that_are_empty_cut_between_members_or_compressed_are_named() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for n in 0..3 {
        std::fs::write(files.path().join(format!("{n}.txt")), "text").unwrap();
    }
    let (first, second) = (dir.path().join("a.tar"), dir.path().join("b.tar"));
    crate::records::archive(&first, files.path());
    let whole = std::fs::read(&first).unwrap();
    let built = || loader_at(dir.path().to_str().unwrap()).format(Format::WebDataset).build();
    let notice = || built().unwrap().notices().iter().find(|notice| notice.contains("end-of-archive")).cloned();
    std::fs::write(&second, "").unwrap();
    let error = built().unwrap_err();
    assert_eq!((error.kind(), error.object()), (Kind::Undecodable, Some("b.tar")), "{error}");
    assert!(error.to_string().contains("the object is truncated"), "{error}");
    let members = (whole.iter().rposition(|byte| *byte != 0).unwrap() + 1).next_multiple_of(512);
    std::fs::write(&second, &whole[..members]).unwrap();
    let said = notice().expect("an archive without its end");
    assert!(said.contains("'b.tar'") && !said.contains("a.tar"), "{said}");
    std::fs::write(&second, &whole[..members + 512]).unwrap();
    assert_eq!(notice(), None, "one block of zeroes is enough");
    // What a tool wrote that packed too little to fill a block.
    std::fs::write(&second, b"\x1F\x8B\x08\0\0\0\0\0").unwrap();
    let error = built().unwrap_err();
    assert!(error.to_string().contains("compressed with gzip") && error.object() == Some("b.tar"), "{error}");
    std::fs::remove_file(&second).unwrap();
    std::fs::rename(&first, dir.path().join("a.tar.gz")).unwrap();
    let error = built().unwrap_err();
    assert!(error.kind() == Kind::Usage && error.to_string().contains("'a.tar.gz' is a compressed archive"), "{error}");
}
