//! Objects in parts against the embedded bucket: whatever fails, the object is whole or not there, and nothing is left behind.

use super::{brought, content, list};
use crate::common::side_by_side;
use fuelrail::internal::put_unless;
use fuelrail::{Access, Kind, PutOptions, PutOver, Result, Stored, put, put_as};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, FaultKind, Source, UploadLimits};
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PART: u64 = 10_000;

/// Parts of [`PART`] bytes of all that is longer than one.
fn options() -> PutOptions {
    PutOptions { parts_above_bytes: PART, part_bytes: PART, ..PutOptions::default() }
}

/// A bucket in memory that takes parts of any length.
fn start(script: &str) -> Bucket {
    limited(UploadLimits { part_bytes_min: 1, ..UploadLimits::default() }, script)
}

fn limited(uploads: UploadLimits, script: &str) -> Bucket {
    let source = Source::Generated(DataSet::digits(3, 1));
    Bucket::start(BucketConfig { source, uploads, script: script.parse().unwrap(), ..BucketConfig::default() }).unwrap()
}

/// The bucket in the place of the cloud that a URI names.
pub(super) fn access(bucket: &Bucket, uri: &str) -> Access {
    let mut access = Access::default();
    if !uri.starts_with("http") {
        access.credentials.anonymous = Some(true);
        access.cloud.endpoint = format!("http://{}", bucket.addr());
    }
    access
}

fn put_in(bucket: &Bucket, options: &PutOptions, uri: &str, bytes: &[u8]) -> Result<Stored> {
    put_as(options, access(bucket, uri), uri, &mut Cursor::new(bytes), |_| {})
}

fn put_parts(bucket: &Bucket, len: usize) -> Result<Stored> {
    put_in(bucket, &options(), &bucket.url("k"), &content(len))
}

#[test]
fn every_length_around_the_borders_of_parts() {
    let dir = tempfile::tempdir().unwrap();
    let uploads = UploadLimits { part_bytes_min: PART, ..UploadLimits::default() };
    let source = Source::Directory(dir.path().to_owned());
    let files = BucketConfig { source, writable: true, uploads, ..BucketConfig::default() };
    for bucket in [start(""), Bucket::start(files).unwrap()] {
        for (len, parts) in [(0, 0), (9_999, 0), (10_000, 0), (10_001, 2), (19_999, 2), (20_000, 2), (70_001, 8)] {
            let mut told = Vec::new();
            let (uri, bytes) = (bucket.url(&format!("new/{len}")), content(len));
            bucket.reset_counters();
            let stored =
                put_as(&options(), Access::default(), &uri, &mut Cursor::new(&bytes), |sent| told.push(sent)).unwrap();
            let counters = bucket.counters();
            let asked = (counters.create_requests, counters.part_requests, counters.complete_requests);
            let once = u64::from(parts > 0);
            assert_eq!((asked, counters.put_requests), ((once, parts, once), 1 - once), "{len}");
            assert_eq!(stored.bytes, len as u64);
            assert!(told.is_sorted() && told.last().copied().unwrap_or(0) == len as u64, "{told:?}");
            let listed = list(&uri).unwrap();
            assert_eq!((listed[0].size, &listed[0].etag), (len as u64, &stored.etag), "{len}");
            assert_eq!(stored.etag.unwrap().ends_with(&format!("-{parts}\"")), parts > 0);
            assert!(brought(&uri) == bytes, "{len}");
        }
        assert_eq!((bucket.counters().uploads_open, bucket.counters().abort_requests), (0, 0));
    }
}

/// Each fault meets every part, or every request that begins and completes, once or twice.
#[test]
fn whatever_breaks_is_sent_again() {
    let cases = vec![
        ("slowdown=1.0,per_key_max=2,only=k?partNumber=2", FaultKind::Slowdown, 2),
        ("error=1.0,per_key_max=2,only=k?partNumber=*", FaultKind::Error, 10),
        ("reset=1.0,per_key_max=1,only=k?partNumber=*", FaultKind::Reset, 5),
        ("reset=1.0@5000,per_key_max=3,only=k?partNumber=3", FaultKind::Reset, 3),
        ("lost=1.0,per_key_max=2,only=k?partNumber=*", FaultKind::Lost, 10),
        ("corrupt=1.0,per_key_max=2,only=k?partNumber=*", FaultKind::Corrupt, 10),
        ("error=1.0,per_key_max=2,only=k?uploads;k?uploadId", FaultKind::Error, 4),
        ("lost=1.0,per_key_max=1,only=k?uploads", FaultKind::Lost, 1),
        ("hidden_error=1.0,per_key_max=2,only=k*", FaultKind::HiddenError, 2),
    ];
    side_by_side(cases, |&(script, kind, times)| {
        let bucket = start(script);
        let (mut told, bytes) = (Vec::new(), content(43_210));
        let mut source = Cursor::new(&bytes);
        put_as(&options(), Access::default(), &bucket.url("k"), &mut source, |sent| told.push(sent)).unwrap();
        assert!(brought(&bucket.url("k")) == bytes);
        assert_eq!(bucket.counters().injected(kind), times);
        assert_eq!(told.last(), Some(&43_210));
        let back = told.windows(2).map(|pair| pair[0].saturating_sub(pair[1])).max().unwrap();
        // What several parts lose at one moment is told at once.
        assert!(back <= 4 * PART, "{told:?}");
        // An upload whose id was lost in transit cannot be aborted: only a lifecycle rule removes it.
        assert_eq!(bucket.counters().uploads_open, u64::from(script.starts_with("lost") && times == 1));
    });
}

/// The answer to the completion is lost; asked again, the bucket knows of no such upload.
#[test]
fn an_upload_that_is_done_is_told_from_one_that_is_gone() {
    for (checksums, over) in [(true, PutOver::Anything), (false, PutOver::Anything), (true, PutOver::Nothing)] {
        let uploads = UploadLimits { part_bytes_min: 1, ..UploadLimits::default() };
        let script = "lost=1.0,per_key_max=1,only=k?uploadId".parse().unwrap();
        let source = Source::Generated(DataSet::digits(3, 1));
        let bucket =
            Bucket::start(BucketConfig { source, uploads, script, checksums, ..BucketConfig::default() }).unwrap();
        let heads = if over == PutOver::Nothing { 2 } else { 1 };
        let stored = put_in(&bucket, &PutOptions { over, ..options() }, &bucket.url("k"), &content(34_567)).unwrap();
        assert_eq!(stored.etag, list(&bucket.url("k")).unwrap()[0].etag);
        let counters = bucket.counters();
        assert_eq!((counters.complete_requests, counters.head_requests, counters.abort_requests), (2, heads, 0));
        assert!(brought(&bucket.url("k")) == content(34_567));
    }
}

/// How far a source was read.
struct Counting {
    inner: Cursor<Vec<u8>>,
    read_bytes: Arc<AtomicU64>,
}

impl Read for Counting {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(out)?;
        self.read_bytes.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

impl Seek for Counting {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.inner.seek(to)
    }
}

/// A server that takes no part: no more is read than four parts, and nothing is left.
#[test]
fn a_full_disk_ends_an_upload_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let uploads = UploadLimits { part_bytes_min: 1, bytes_max: 0, ..UploadLimits::default() };
    let source = Source::Directory(dir.path().to_owned());
    let bucket = Bucket::start(BucketConfig { source, writable: true, uploads, ..BucketConfig::default() }).unwrap();
    put(&bucket.url("k"), b"old").unwrap();
    let read_bytes = Arc::new(AtomicU64::new(0));
    let mut source = Counting { inner: Cursor::new(content(200_000)), read_bytes: Arc::clone(&read_bytes) };
    let error = put_as(&options(), Access::default(), &bucket.url("k"), &mut source, |_| {}).unwrap_err();
    assert_eq!((error.kind(), error.object()), (Kind::Denied, Some("k")), "{error}");
    assert!(error.to_string().contains("free space there") && error.to_string().contains("StorageFull"), "{error}");
    assert_eq!(read_bytes.load(Relaxed), 4 * PART, "parts are read as they are sent, four at a time");
    let counters = bucket.counters();
    assert_eq!((counters.uploads_open, counters.abort_requests, counters.complete_requests), (0, 1, 0));
    assert_eq!(brought(&bucket.url("k")), b"old");
}

#[test]
fn what_is_refused_for_good_is_given_up() {
    for (limits, kind, said) in [
        (
            UploadLimits { part_bytes_max: 5_000, part_bytes_min: 1, ..UploadLimits::default() },
            Kind::Usage,
            "part_bytes",
        ),
        // Found out only at the end.
        (UploadLimits::default(), Kind::Usage, "EntityTooSmall"),
    ] {
        let bucket = limited(limits, "");
        let error = put_parts(&bucket, 43_210).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(said), "{error}");
        assert_eq!((bucket.counters().uploads_open, bucket.counters().abort_requests), (0, 1));
        assert!(list(&bucket.url("k")).unwrap().is_empty());
    }
    // The giving up breaks, too.
    let bucket =
        limited(UploadLimits { bytes_max: 0, ..UploadLimits::default() }, "lost=1.0,per_key_max=2,only=k?uploadId");
    assert!(put_parts(&bucket, 43_210).is_err());
    assert_eq!(bucket.counters().uploads_open, 0);
    let bucket =
        limited(UploadLimits { bytes_max: 0, ..UploadLimits::default() }, "error=1.0,per_key_max=99,only=k?uploadId");
    let error = put_parts(&bucket, 43_210).unwrap_err().to_string();
    assert!(error.contains("free space there") && error.contains("AbortIncompleteMultipartUpload"), "{error}");
}

/// Servers that take longer than any test: a caller that stops waits for none of them.
#[test]
fn an_upload_that_is_stopped_leaves_nothing() {
    let stopped = |bucket: &Bucket, len: usize, stop: &(dyn Fn() -> bool + Sync)| {
        let (access, uri) = (Access::default(), bucket.url(""));
        let outcome = put_unless(stop, &options(), (&access, &uri, "k"), &mut Cursor::new(content(len)), |_| {});
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.object()), (Kind::Cancelled, Some("k")), "{error}");
    };
    let bucket = start("slowdown=1.0,retry_after=60,per_key_max=99,only=k?partNumber=*");
    put(&bucket.url("k"), b"old").unwrap();
    stopped(&bucket, 43_210, &|| bucket.counters().part_requests > 0);
    let counters = bucket.counters();
    assert_eq!((counters.create_requests, counters.abort_requests, counters.uploads_open), (1, 1, 0));
    assert_eq!(brought(&bucket.url("k")), b"old");

    let silent = start("latency=fixed:60s");
    stopped(&silent, 5, &|| silent.counters().put_requests > 0);

    let dir = tempfile::tempdir().unwrap();
    let uri = format!("{}/", dir.path().display());
    let to = (&Access::default(), uri.as_str(), "k");
    let outcome = put_unless(&|| true, &options(), to, &mut Cursor::new(content(5)), |_| {});
    assert_eq!(outcome.unwrap_err().kind(), Kind::Cancelled);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_key_may_hold_what_no_uri_does() {
    let bucket = start("");
    for uri in ["s3://bucket/s3/".to_owned(), bucket.url("http/")] {
        let to = (&access(&bucket, &uri), uri.as_str(), "a\nb%0A?");
        put_unless(&|| false, &options(), to, &mut Cursor::new(b"x"), |_| {}).unwrap();
    }
    for prefix in ["s3/", "http/"] {
        assert_eq!(list(&bucket.url(prefix)).unwrap()[0].key, format!("{prefix}a\nb%0A?"));
    }
}

#[test]
fn a_server_that_knows_no_parts_gets_one_request() {
    let bucket = limited(UploadLimits { parts_max: 0, ..UploadLimits::default() }, "");
    put_parts(&bucket, 43_210).unwrap();
    assert!(brought(&bucket.url("k")) == content(43_210));
    assert_eq!((bucket.counters().put_requests, bucket.counters().part_requests), (1, 0));
}

/// On every cloud, in parts or not, one of many writers wins, and what is there is the winner's.
#[test]
fn of_several_who_put_what_is_new_one_succeeds() {
    let cases = ["http", "s3", "gs", "az"].into_iter().flat_map(|scheme| [(scheme, 5_000), (scheme, 35_000)]).collect();
    side_by_side(cases, |&(scheme, len)| {
        let bucket = start("latency=uniform:1ms..9ms");
        let uri = if scheme == "http" { bucket.url("set/k") } else { format!("{scheme}://bucket/set/k") };
        let new = PutOptions { over: PutOver::Nothing, ..options() };
        let outcomes: Vec<Result<Stored>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..6_u8)
                .map(|n| {
                    let (bucket, uri, new) = (&bucket, &uri, &new);
                    scope.spawn(move || put_in(bucket, new, uri, &vec![n; len]))
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let won: Vec<u8> = (0..).zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()).map(|(n, _)| n).collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        for error in outcomes.into_iter().filter_map(Result::err) {
            // Azure forgets the blocks of all others when one list makes an object.
            let is_lost = scheme == "az" && error.to_string().contains("InvalidBlockList");
            assert!(error.kind() == Kind::Exists || is_lost, "{error}");
        }
        assert!(brought(&bucket.url("set/k")) == vec![won[0]; len]);
        // … and keeps those that came later, until another list or a week goes by.
        assert!(bucket.counters().uploads_open == 0 || scheme == "az");
    });
}

/// Nothing is sent for what the server would refuse in the end.
#[test]
fn what_is_there_already_costs_one_question() {
    let bucket = start("");
    put(&bucket.url("k"), b"old").unwrap();
    let new = PutOptions { over: PutOver::Nothing, ..options() };
    let error = put_in(&bucket, &new, &bucket.url("k"), &content(34_567)).unwrap_err();
    assert_eq!((error.kind(), bucket.counters().create_requests), (Kind::Exists, 0), "{error}");
}

#[test]
fn azure_and_google_take_parts_too() {
    for scheme in ["gs", "az"] {
        // The list of blocks is the same object when it is sent again.
        let bucket = start("lost=1.0,per_key_max=1,only=*?blocklist;*partNumber=2");
        let uri = format!("{scheme}://bucket/set/k");
        let stored = put_in(&bucket, &options(), &uri, &content(34_567)).unwrap();
        assert_eq!(stored.bytes, 34_567);
        assert!(brought(&bucket.url("set/k")) == content(34_567));
        let counters = bucket.counters();
        assert_eq!((counters.injected(FaultKind::Lost), counters.uploads_open), (1, 0), "{scheme}");
        assert_eq!((counters.part_requests, counters.put_requests), (if scheme == "gs" { 5 } else { 4 }, 0));
    }
}
