//! Uploads in parts as their clients see them, what is refused, and what is left when nobody finishes them.

use std::path::Path;

use crate::common::{Client, Reply, elements};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, FaultKind, Source, UploadLimits};

fn start(source: Source, uploads: UploadLimits, script: &str) -> Bucket {
    let script = script.parse().unwrap();
    Bucket::start(BucketConfig { source, uploads, script, writable: true, ..BucketConfig::default() }).unwrap()
}

/// Parts of any length.
fn any() -> UploadLimits {
    UploadLimits { part_bytes_min: 1, ..UploadLimits::default() }
}

fn generated(uploads: UploadLimits, script: &str) -> Bucket {
    start(Source::Generated(DataSet::digits(3, 1)), uploads, script)
}

fn ask(client: &mut Client, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let length = body.len().to_string();
    let mut all = vec![("content-length", length.as_str())];
    all.extend_from_slice(headers);
    client.ask(method, target, &all);
    client.send(body);
    client.reply(false).unwrap()
}

fn begin(client: &mut Client, key: &str) -> String {
    let begun = ask(client, "POST", &format!("/bucket/{key}?uploads"), &[], b"");
    assert_eq!(begun.status, 200);
    elements(begun.text(), "UploadId").remove(0)
}

fn part(client: &mut Client, key: &str, id: &str, number: u32, body: &[u8]) -> Reply {
    client.put(&format!("/bucket/{key}?partNumber={number}&uploadId={id}"), body, &[])
}

/// The list of these parts, by number and tag.
fn list(parts: &[(u32, &str)]) -> Vec<u8> {
    let parts = parts.iter().map(|(number, etag)| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", etag.replace('"', "&quot;"))
    });
    format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", parts.collect::<String>()).into_bytes()
}

fn complete(client: &mut Client, key: &str, id: &str, parts: &[(u32, &str)], headers: &[(&str, &str)]) -> Reply {
    ask(client, "POST", &format!("/bucket/{key}?uploadId={id}"), headers, &list(parts))
}

fn code(reply: &Reply) -> (u16, String) {
    (reply.status, elements(reply.text(), "Code").pop().unwrap_or_default())
}

#[test]
fn parts_become_an_object_in_the_order_of_their_numbers() {
    let root = tempfile::tempdir().unwrap();
    for bucket in [generated(any(), ""), start(Source::Directory(root.path().to_owned()), any(), "")] {
        let mut client = Client::connect(&bucket);
        let id = begin(&mut client, "a/b%20c");
        let last = part(&mut client, "a/b%20c", &id, 7, b"world");
        part(&mut client, "a/b%20c", &id, 2, b"something else");
        let first = part(&mut client, "a/b%20c", &id, 2, b"hello ");
        assert_eq!((first.status, last.status), (200, 200));
        assert_eq!(client.get("a/b%20c").status, 404, "nothing is to be seen before the end");
        assert_eq!(bucket.counters().uploads_open, 1);
        let tags = [(2, first.header("etag").unwrap()), (7, last.header("etag").unwrap())];
        let done = complete(&mut client, "a/b%20c", &id, &tags, &[]);
        let etag = elements(done.text(), "ETag").remove(0);
        // Computed with Python's `hashlib` and by the definition of CRC-32C.
        assert_eq!(first.header("etag"), Some("\"f814893777bcc2295fff05f00e508da6\""));
        assert_eq!((done.status, etag.as_str()), (200, "\"e09e4fd6265b36115fe3db32df945d84-2\""));
        let got = client.get("a/b%20c");
        assert_eq!((got.body.as_slice(), got.header("etag")), (b"hello world".as_slice(), Some(etag.as_str())));
        assert_eq!(got.header("x-amz-checksum-crc32c"), Some("vUZpoA==-2"));
        let listing = client.request("GET", "/bucket?list-type=2&prefix=a", &[]).unwrap();
        assert_eq!(
            (elements(listing.text(), "Key"), elements(listing.text(), "ETag")),
            (vec!["a/b c".into()], vec![etag])
        );
        let counters = bucket.counters();
        let counted = (counters.create_requests, counters.part_requests, counters.complete_requests);
        assert_eq!((counted, counters.uploads_open), ((1, 3, 1), 0));
        assert_eq!(code(&complete(&mut client, "a/b%20c", &id, &tags, &[])), (404, "NoSuchUpload".into()));
    }
    assert_eq!(files_in(root.path()), ["a"]);
}

fn files_in(root: &Path) -> Vec<String> {
    std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn what_is_no_sound_upload_is_refused() {
    let limits = UploadLimits { open_max: 2, parts_max: 3, part_bytes_min: 4, part_bytes_max: 8, bytes_max: 20 };
    let bucket = generated(limits, "");
    let mut client = Client::connect(&bucket);
    let id = begin(&mut client, "k");
    let one = part(&mut client, "k", &id, 1, b"123").header("etag").unwrap().to_owned();
    let two = part(&mut client, "k", &id, 2, b"12345678").header("etag").unwrap().to_owned();
    let refused = |parts: &[(u32, &str)], client: &mut Client| code(&complete(client, "k", &id, parts, &[]));
    assert_eq!(refused(&[(1, &one), (2, &two)], &mut client), (400, "EntityTooSmall".into()));
    assert_eq!(refused(&[(2, &two), (1, &one)], &mut client), (400, "InvalidPartOrder".into()));
    assert_eq!(refused(&[(1, &two)], &mut client), (400, "InvalidPart".into()));
    assert_eq!(refused(&[(3, &two)], &mut client), (400, "InvalidPart".into()));
    assert_eq!(refused(&[], &mut client), (400, "MalformedXML".into()));
    for bad in ["", "<BlockList/>", "<a><Part></Part></a>", "<BlockList><Latest>x", "\u{fffd}<"] {
        let reply = ask(&mut client, "POST", &format!("/bucket/k?uploadId={id}"), &[], bad.as_bytes());
        assert_eq!(code(&reply), (400, "MalformedXML".into()), "{bad}");
    }
    assert_eq!(code(&part(&mut client, "k", &id, 3, b"123456789")), (400, "EntityTooLarge".into()));
    assert_eq!(code(&part(&mut client, "k", &id, 4, b"1")), (400, "InvalidArgument".into()));
    assert_eq!(code(&part(&mut client, "other", &id, 1, b"1")), (404, "NoSuchUpload".into()));
    let other = begin(&mut client, "other");
    assert_eq!(code(&ask(&mut client, "POST", "/bucket/third?uploads", &[], b"")), (503, "SlowDown".into()));
    assert_eq!(part(&mut client, "other", &other, 1, b"1234567").status, 200);
    assert_eq!(code(&part(&mut client, "other", &other, 2, b"123")), (507, "StorageFull".into()));
    let abort = |id: &str, client: &mut Client| ask_abort(client, "other", id);
    assert_eq!((abort(&other, &mut client), abort(&other, &mut client)), (204, 404));
    assert_eq!(part(&mut client, "k", &id, 3, b"123").status, 200, "what was aborted makes room");
    assert_eq!(bucket.counters().uploads_open, 1);

    let none = generated(UploadLimits { parts_max: 0, ..any() }, "");
    let reply = ask(&mut Client::connect(&none), "POST", "/bucket/k?uploads", &[], b"");
    assert_eq!(code(&reply), (501, "NotImplemented".into()));
}

/// The status of an abort: 204, which has no length, or a refusal.
fn ask_abort(client: &mut Client, key: &str, id: &str) -> u16 {
    client.ask("DELETE", &format!("/bucket/{key}?uploadId={id}"), &[]);
    client.reply(false).unwrap().status
}

#[test]
fn checksums_of_what_is_put_are_checked() {
    let root = tempfile::tempdir().unwrap();
    for bucket in [generated(any(), ""), start(Source::Directory(root.path().to_owned()), any(), "")] {
        let mut client = Client::connect(&bucket);
        let id = begin(&mut client, "p");
        let part = format!("/bucket/p?partNumber=1&uploadId={id}");
        for target in ["/bucket/k", &part, "/bucket/z?comp=block&blockid=YQ%3D%3D"] {
            // The check values of both, and of nothing.
            for (name, good, bad) in [
                ("x-amz-checksum-crc32c", "4waSgw==", "AAAAAA=="),
                ("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==", "1B2M2Y8AsgTpgAmY7PhCfg=="),
                ("x-goog-hash", "crc32c=4waSgw==", "crc32c=AAAAAA=="),
                (
                    "x-goog-hash",
                    "crc32c=4waSgw==,md5=JfnnlDI7RTiF9RgfG2JNCw==",
                    "crc32c=4waSgw==, md5=1B2M2Y8AsgTpgAmY7PhCfg==",
                ),
            ] {
                assert_eq!(
                    code(&client.put(target, b"123456789", &[(name, bad)])),
                    (400, "BadDigest".into()),
                    "{name}"
                );
                let done = client.put(target, b"123456789", &[(name, good)]).status;
                assert!(matches!(done, 200 | 201), "{target} {name}");
            }
        }
        assert_eq!(client.put("/bucket/j", b"1", &[("x-amz-checksum-crc32c", "4waSgw==")]).status, 400);
        assert_eq!(client.get("j").status, 404);
    }
}

#[test]
fn conditions_hold_when_the_object_is_made() {
    let root = tempfile::tempdir().unwrap();
    for bucket in [generated(any(), ""), start(Source::Directory(root.path().to_owned()), any(), "")] {
        let (mut client, mut late) = (Client::connect(&bucket), Client::connect(&bucket));
        let new = ("if-none-match", "*");
        // One that is begun before another ends.
        late.ask("PUT", "/bucket/k", &[("content-length", "4"), new]);
        late.send(b"la");
        let id = begin(&mut client, "k");
        let tag = part(&mut client, "k", &id, 1, b"part").header("etag").unwrap().to_owned();
        let first = client.put("/bucket/k", b"first", &[new]);
        assert_eq!(first.status, 200);
        late.send(b"te");
        assert_eq!(code(&late.reply(false).unwrap()), (412, "PreconditionFailed".into()));
        let done = complete(&mut client, "k", &id, &[(1, &tag)], &[new]);
        assert_eq!(code(&done), (412, "PreconditionFailed".into()));
        assert_eq!(client.put("/bucket/k", b"x", &[("x-goog-if-generation-match", "0")]).status, 412);
        let blob = client.put("/bucket/k", b"x", &[new, ("x-ms-blob-type", "BlockBlob")]);
        assert_eq!(code(&blob), (409, "BlobAlreadyExists".into()));
        assert_eq!(client.get("k").body, b"first");
        let over = ("if-match", first.header("etag").unwrap());
        assert_eq!(complete(&mut client, "k", &id, &[(1, &tag)], &[over]).status, 200);
        assert_eq!(client.get("k").body, b"part");
        assert_eq!(client.put("/bucket/k", b"x", &[over]).status, 412);
    }
}

#[test]
fn blocks_become_an_object_in_the_order_of_their_list() {
    let bucket = generated(any(), "");
    let mut client = Client::connect(&bucket);
    for (id, body) in [("YQ%3D%3D", "world"), ("Yg%3D%3D", "hello "), ("Yw%3D%3D", "unused")] {
        let came = client.put(&format!("/bucket/set/k?comp=block&blockid={id}"), body.as_bytes(), &[]);
        assert_eq!(came.status, 201);
    }
    let list = |ids: &[&str]| {
        let ids: String = ids.iter().map(|id| format!("<Latest>{id}</Latest>")).collect();
        format!("<?xml version=\"1.0\"?><BlockList>{ids}</BlockList>")
    };
    let target = "/bucket/set/k?comp=blocklist";
    let wrong = client.put(target, list(&["YQ==", "Zg=="]).as_bytes(), &[]);
    assert_eq!(code(&wrong), (400, "InvalidBlockList".into()));
    let whole = list(&["Yg==", "YQ=="]);
    let new = ("if-none-match", "*");
    assert_eq!(client.put(target, whole.as_bytes(), &[new]).status, 201);
    assert_eq!((client.get("set/k").body, bucket.counters().uploads_open), (b"hello world".to_vec(), 0));
    assert_eq!(client.put(target, whole.as_bytes(), &[]).status, 201, "the same list again is the same object");
    assert_eq!(code(&client.put(target, whole.as_bytes(), &[new])), (409, "BlobAlreadyExists".into()));
    assert_eq!(code(&client.put(target, list(&["YQ=="]).as_bytes(), &[])), (400, "InvalidBlockList".into()));
}

#[test]
fn scripts_meet_what_writes() {
    let kinds = [FaultKind::Slowdown, FaultKind::Corrupt, FaultKind::Reset, FaultKind::Lost, FaultKind::HiddenError];
    for kind in kinds {
        // By key: what begins the upload is let through, and every other step meets one fault.
        let bucket = generated(any(), &format!("{kind}=1.0,per_key_max=1,only=k?partNumber*;k?uploadId"));
        let id = begin(&mut Client::connect(&bucket), "k");
        let send = |body: &[u8], target: &str, method: &str, headers: &[(&str, &str)]| {
            let mut client = Client::connect(&bucket);
            let length = body.len().to_string();
            client.ask(method, target, &[&[("content-length", length.as_str())], headers].concat());
            client.send(body);
            client.reply(false).ok()
        };
        let target = format!("/bucket/k?partNumber=1&uploadId={id}");
        let sum = ("x-amz-checksum-crc32c", "4waSgw==");
        let first = send(b"123456789", &target, "PUT", &[sum]).map(|reply| reply.status);
        let wanted = match kind {
            FaultKind::Slowdown => Some(503),
            FaultKind::Corrupt => Some(400),
            FaultKind::HiddenError => Some(200),
            _ => None,
        };
        assert_eq!(first, wanted, "{kind}");
        let again = send(b"123456789", &target, "PUT", &[sum]).unwrap();
        let list = list(&[(1, again.header("etag").unwrap())]);
        let target = format!("/bucket/k?uploadId={id}");
        let first = send(&list, &target, "POST", &[]);
        match kind {
            FaultKind::HiddenError => assert_eq!(code(&first.unwrap()), (200, "InternalError".into())),
            FaultKind::Lost => assert!(first.is_none()),
            FaultKind::Slowdown => assert_eq!(first.unwrap().status, 503),
            _ => assert_eq!(first.unwrap().status, 200),
        }
        let done = !matches!(kind, FaultKind::HiddenError | FaultKind::Slowdown);
        assert_eq!(Client::connect(&bucket).get("k").status, if done { 200 } else { 404 }, "{kind}");
        let meets_both = u64::from(kind == FaultKind::Slowdown || kind == FaultKind::Lost);
        assert_eq!(bucket.counters().injected(kind), 1 + meets_both, "{kind}");
    }
}

#[test]
fn what_nobody_finished_goes_with_the_bucket() {
    let root = tempfile::tempdir().unwrap();
    let bucket = start(Source::Directory(root.path().to_owned()), any(), "");
    let mut client = Client::connect(&bucket);
    let id = begin(&mut client, "k");
    part(&mut client, "k", &id, 1, b"x");
    assert_eq!(files_in(root.path()).len(), 1);
    let listing = client.request("GET", "/bucket?list-type=2", &[]).unwrap();
    assert!(elements(listing.text(), "Key").is_empty());
    bucket.stop();
    assert!(files_in(root.path()).is_empty());
    let closed =
        Bucket::start(BucketConfig { source: Source::Directory(root.path().into()), ..BucketConfig::default() });
    let reply = ask(&mut Client::connect(&closed.unwrap()), "POST", "/bucket/k?uploads", &[], b"");
    assert_eq!(code(&reply), (403, "AccessDenied".into()));
}
