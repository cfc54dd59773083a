//! The bucket over TLS: what it serves is the same, and its set-up says what is wrong.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use fuelrail_bucket::{Bucket, BucketConfig, DataSet, ErrorKind, Source, Tls};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};

fn bucket(tls: Tls, script: &str) -> Result<Bucket, fuelrail_bucket::Error> {
    let source = Source::Generated(DataSet::digits(20, 3));
    let script = script.parse().unwrap();
    Bucket::start(BucketConfig { source, script, tls: Some(tls), ..BucketConfig::default() })
}

/// Everything a server answers to `request` over TLS, and how it ended.
fn ask(bucket: &Bucket, root: &CertificateDer<'static>, request: &str) -> (Vec<u8>, std::io::Result<usize>) {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let mut tls = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut tcp = TcpStream::connect(bucket.addr()).unwrap();
    let mut stream = Stream::new(&mut tls, &mut tcp);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer);
    (answer, end)
}

fn root(bucket: &Bucket) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(bucket.authority().expect("it made one").as_bytes()).unwrap()
}

#[test]
fn objects_come_over_tls_too() {
    let set = DataSet::digits(20, 3);
    let bucket = bucket(Tls::SelfSigned, "").unwrap();
    assert!(bucket.url("").starts_with("https://127.0.0.1:"));
    let request = format!("GET /bucket/{} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", set.key(7));
    let (answer, end) = ask(&bucket, &root(&bucket), &request);
    end.expect("a clean end");
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(&set.content(7)));
    let counters = bucket.counters();
    assert_eq!((counters.get_requests, counters.tls_full, counters.tls_resumed), (1, 1, 0));
}

#[test]
fn faults_below_http_work_over_tls() {
    let set = DataSet::digits(20, 3);
    let request = format!("GET /bucket/{} HTTP/1.1\r\nHost: h\r\n\r\n", set.key(7));
    let cut = bucket(Tls::SelfSigned, "truncate=1.0@10").unwrap();
    let (answer, end) = ask(&cut, &root(&cut), &request);
    assert!(end.is_ok() && answer.ends_with(&set.content(7)[..10]), "cut, and the end announced");
    let reset = bucket(Tls::SelfSigned, "reset=1.0@10").unwrap();
    let (_, end) = ask(&reset, &root(&reset), &request);
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_client_without_tls_is_answered_with_an_alert() {
    let bucket = bucket(Tls::SelfSigned, "").unwrap();
    let mut tcp = TcpStream::connect(bucket.addr()).unwrap();
    tcp.write_all(b"GET /bucket/ HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    tcp.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[..2], [21, 3], "an alert record");
}

#[test]
fn certificates_come_from_files_and_wrong_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
    let make = || generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (CertifiedKey { cert, signing_key }, other) = (make(), make());
    write("cert", &cert.pem());
    write("key", &signing_key.serialize_pem());
    write("other", &other.signing_key.serialize_pem());
    let files = |certificate: &Path, key: &Path| Tls::Files { certificate: certificate.into(), key: key.into() };
    let good = bucket(files(&path("cert"), &path("key")), "").unwrap();
    assert_eq!(good.authority(), None);
    let (answer, _) = ask(&good, cert.der(), "GET /bucket/none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 404"));
    for (certificate, key, kind, says) in [
        ("cert", "other", ErrorKind::Usage, "own key"),
        ("key", "key", ErrorKind::Usage, "no certificate"),
        ("cert", "cert", ErrorKind::Usage, "no private key"),
        ("none", "key", ErrorKind::System, "none"),
    ] {
        let error = bucket(files(&path(certificate), &path(key)), "").unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(says), "{error}");
    }
}
