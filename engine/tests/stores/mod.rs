//! One suite for every store: what is put is listed, comes back whole and in ranges, and what is not there says so. Here against the
//! embedded bucket; beside it, what listings bring.

mod faults;
mod real;
mod suite;

use crate::common::proxy::{NAME, Proxy};
use crate::common::secure::{Authority, signed_for};
use fuelrail::{Access, Credentials, Listed, Tls, list_packed, list_with, put};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Script, Source};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use suite::{Server, conforms};

/// A folder of this machine: keys are paths within the one that the URI names.
struct Folder(tempfile::TempDir);

impl Server for Folder {
    fn name(&self) -> String {
        "a folder".into()
    }

    fn uri(&self, key: &str) -> String {
        format!("file://{}/{}", self.0.path().display(), key.replace('%', "%25"))
    }

    fn access(&self) -> Access {
        Access::default()
    }

    fn called<'k>(&self, key: &'k str) -> &'k str {
        key.strip_prefix("set/").unwrap_or(key)
    }
}

/// The embedded bucket, by its own address.
struct Plain(Bucket, Option<Authority>);

impl Server for Plain {
    fn name(&self) -> String {
        "the embedded bucket".into()
    }

    fn uri(&self, key: &str) -> String {
        format!("{}{key}", self.0.url(""))
    }

    fn access(&self) -> Access {
        let ca_file = self.1.as_ref().map(Authority::file);
        Access { tls: Tls { ca_file, insecure: false }, ..Access::default() }
    }
}

/// The same in a cloud's place.
struct Cloud {
    bucket: Bucket,
    scheme: &'static str,
}

impl Server for Cloud {
    fn name(&self) -> String {
        format!("the embedded bucket as {}", self.scheme)
    }

    fn uri(&self, key: &str) -> String {
        format!("{}://bucket/{key}", self.scheme)
    }

    fn access(&self) -> Access {
        let mut access = Access::default();
        access.credentials.anonymous = Some(true);
        access.cloud.endpoint = format!("http://{}", self.bucket.addr());
        access
    }
}

/// An empty one that misbehaves as `script` says.
fn writable(path: &Path, script: &str) -> Bucket {
    Bucket::start(writable_config(path, script)).unwrap()
}

fn writable_config(path: &Path, script: &str) -> BucketConfig {
    let (source, script) = (Source::Directory(path.to_owned()), script.parse().unwrap());
    BucketConfig { source, script, writable: true, bucket: "bucket".into(), ..BucketConfig::default() }
}

#[test]
fn a_folder_of_this_machine() {
    conforms(&Folder(tempfile::tempdir().unwrap()));
}

#[test]
fn the_embedded_bucket_by_its_address() {
    let dir = tempfile::tempdir().unwrap();
    conforms(&Plain(writable(dir.path(), ""), None));
}

#[test]
fn the_embedded_bucket_by_an_address_of_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        crate::common::skip::skip_or_fail("ipv6", "[::1] cannot be bound");
        return;
    }
    for over_tls in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (authority, tls) = over_tls.then(|| signed_for("::1")).unzip();
        let listen = "[::1]:0".parse().unwrap();
        let bucket = Bucket::start(BucketConfig { listen, tls, ..writable_config(dir.path(), "") }).unwrap();
        assert!(bucket.url("").contains("://[::1]:"));
        conforms(&Plain(bucket, authority));
    }
}

#[test]
fn the_embedded_bucket_in_amazons_place() {
    let dir = tempfile::tempdir().unwrap();
    conforms(&Cloud { bucket: writable(dir.path(), ""), scheme: "s3" });
}

#[test]
fn the_embedded_bucket_in_googles_place() {
    let dir = tempfile::tempdir().unwrap();
    conforms(&Cloud { bucket: writable(dir.path(), ""), scheme: "gs" });
}

/// The embedded bucket, which a proxy alone reaches.
struct Behind {
    bucket: Bucket,
    proxy: Proxy,
    authority: Option<Authority>,
}

impl Server for Behind {
    fn name(&self) -> String {
        format!("the embedded bucket behind a proxy, TLS: {}", self.authority.is_some())
    }

    fn uri(&self, key: &str) -> String {
        format!("{}{key}", self.bucket.url("").replace("127.0.0.1", NAME))
    }

    fn access(&self) -> Access {
        let ca_file = self.authority.as_ref().map(Authority::file);
        let environment = self.proxy.environment("");
        let credentials = Credentials { environment, ..Credentials::default() };
        Access { tls: Tls { ca_file, insecure: false }, credentials, ..Access::default() }
    }
}

#[test]
fn the_embedded_bucket_behind_a_proxy() {
    for over_tls in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (authority, tls) = over_tls.then(|| signed_for(NAME)).unzip();
        let bucket = Bucket::start(BucketConfig { tls, ..writable_config(dir.path(), "") }).unwrap();
        conforms(&Behind { bucket, proxy: Proxy::start(), authority });
    }
}

/// Thirty pages, several at a time, of which one in five is refused at first.
#[test]
fn a_listing_in_several_places_at_once_is_the_whole_one() {
    let set = DataSet::digits(30_000, 5);
    let script: Script = "slowdown=0.2,per_key_max=3,only=*".parse().unwrap();
    let bucket =
        Bucket::start(BucketConfig { source: Source::Generated(set.clone()), script, ..BucketConfig::default() })
            .unwrap();
    let mut told = Vec::new();
    let listing = list_packed(Access::default(), &bucket.url(""), |count| told.push(count)).unwrap();
    assert_eq!(listing.iter().collect::<Vec<_>>(), crate::common::listing(&set));
    assert!(told.is_sorted() && told.last() == Some(&30_000), "{told:?}");
    let some = list_packed(Access::default(), &format!("{}{{3,7}}/", bucket.url("training/")), |_| {}).unwrap();
    let wanted = crate::common::listing(&set)
        .into_iter()
        .filter(|o| o.key.starts_with("training/3/") || o.key.starts_with("training/7/"));
    assert!(some.iter().eq(wanted));
}

#[test]
fn folders_of_consoles_are_no_objects() {
    let bucket = crate::common::bucket(&DataSet::digits(3, 1), "");
    put(&bucket.url("training/x/"), b"").unwrap();
    put(&bucket.url("training/y/"), b"not empty").unwrap();
    let keys: Vec<String> = fuelrail::list(&bucket.url(""), |_| {}).unwrap().into_iter().map(|o| o.key).collect();
    assert!(!keys.contains(&"training/x/".into()) && keys.contains(&"training/y/".into()), "{keys:?}");
}

/// Two pages of List Blobs, by hand: no emulator of Azure is at hand everywhere.
#[test]
fn a_container_of_azure_is_listed_page_by_page() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let blob = |name: &str, size: u64| {
        let properties = format!("<Etag>0x8D{size}</Etag><Content-Length>{size}</Content-Length>");
        format!("<Blob><Name>{name}</Name><Properties>{properties}</Properties></Blob>")
    };
    let pages = [(blob("x/a", 1) + &blob("x/b", 2), "m1"), (blob("x/c", 3), "")];
    let served = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for (blobs, next) in pages {
            let (mut socket, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(socket.try_clone().unwrap()).lines().map(Result::unwrap);
            asked.push(lines.next().unwrap());
            lines.find(String::is_empty).unwrap();
            let inner = format!("<Blobs>{blobs}</Blobs><NextMarker>{next}</NextMarker>");
            let xml = format!("<?xml version=\"1.0\"?><EnumerationResults>{inner}</EnumerationResults>");
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", xml.len());
            socket.write_all((head + &xml).as_bytes()).unwrap();
        }
        asked
    });
    let mut access = Access::default();
    access.credentials.anonymous = Some(true);
    access.cloud.endpoint = format!("http://{address}");
    let listed = list_with(&access, "az://account/set/x/", |_| {}).unwrap();
    let expected = [("x/a", 1), ("x/b", 2), ("x/c", 3)].map(|(key, size)| Listed {
        key: key.into(),
        size,
        etag: Some(format!("\"0x8D{size}\"")),
    });
    assert_eq!(listed, expected);
    let asked = served.join().unwrap();
    let first = "GET /account/set?restype=container&comp=list&maxresults=5000&prefix=x%2F";
    assert_eq!(asked, [format!("{first} HTTP/1.1"), format!("{first}&marker=m1 HTTP/1.1")]);
}
