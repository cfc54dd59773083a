//! Venues: each serves what was laid, over its own link, and leaves nothing behind.
use crate::skip::skip_or_fail;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fuelrail::{Error, Kind, read_manifest};
use fuelrail_benches::harness::{Laid, ShapeName, Stop, Transport, Venue, VenueConfig, VenueKind};

/// Opens a venue, or says loudly why this machine cannot. `scripts/test` installs nginx and then requires it.
fn open(config: &VenueConfig) -> Option<Venue> {
    match Venue::open(config) {
        Ok(venue) => Some(venue),
        Err(error) if error.kind() == Kind::Environment => {
            let missing = if config.kind == VenueKind::Netns { "netns" } else { "nginx" };
            skip_or_fail(missing, error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn lay(venue: &Venue) -> Laid {
    ShapeName::Tiny.shape(0.002).unwrap().lay(venue.folder(), 1, &Stop::default(), &mut |_| {}).unwrap()
}

/// The address, and the path of the first object with its bytes.
fn first_object(venue: &Venue, laid: &Laid) -> (String, String, Vec<u8>) {
    let uri = venue.uri(laid, Transport::Plain).unwrap();
    let (host, prefix) = uri.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let key = &read_manifest(&laid.manifest).unwrap()[0].key;
    let content = std::fs::read(venue.folder().join("root").join(&laid.prefix).join(key)).unwrap();
    (host.to_owned(), format!("/{prefix}{key}"), content)
}

fn get(host: &str, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    body(&answer)
}

fn body(answer: &[u8]) -> Vec<u8> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..head]));
    answer[head + 4..].to_vec()
}

#[test]
fn loopback_serves_what_was_laid_and_goes() {
    let Some(venue) = open(&VenueConfig { tls: true, ..VenueConfig::default() }) else { return };
    let laid = lay(&venue);
    let (host, path, content) = first_object(&venue, &laid);
    assert_eq!(get(&host, &path), content);
    assert!(venue.facts.server.starts_with("nginx"), "{:?}", venue.facts);
    assert_eq!(tls_get(&venue, &laid, &path), content);
    let folder = venue.folder().to_path_buf();
    drop(venue);
    assert!(!folder.exists() && TcpStream::connect(&host).is_err(), "{host}");
}

/// Through `openssl s_client`, which trusts the venue's authority alone.
fn tls_get(venue: &Venue, laid: &Laid, path: &str) -> Vec<u8> {
    let uri = venue.uri(laid, Transport::Tls).unwrap();
    let host = uri.strip_prefix("https://").unwrap().split('/').next().unwrap();
    let args = ["s_client", "-connect", host, "-quiet", "-verify_return_error", "-verify_ip", "127.0.0.1", "-CAfile"];
    let mut client = Command::new("openssl")
        .args(args)
        .arg(venue.authority.as_ref().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = client.stdin.take().unwrap();
    write!(input, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let output = client.wait_with_output().unwrap();
    drop(input);
    body(&output.stdout)
}

#[test]
fn a_link_of_its_own_serves_what_was_laid_and_goes() {
    let config = VenueConfig { link_bits_per_s: Some(1_000_000_000), ..VenueConfig::pinned(VenueKind::Netns) };
    let Some(venue) = open(&config) else { return };
    let laid = lay(&venue);
    let (host, path, content) = first_object(&venue, &laid);
    let netns = venue.place.netns.clone().unwrap();
    // From outside there is no way in; from the client's side there is.
    let (address, port) = host.split_once(':').unwrap();
    let script = format!(
        "exec 3<>/dev/tcp/{address}/{port} && printf 'GET {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3"
    );
    let args = ["20".into(), "bash".into(), "-c".into(), script.into()];
    let output = venue.place.command(None, Path::new("timeout"), &args).output().unwrap();
    assert_eq!(body(&output.stdout), content, "{}", String::from_utf8_lossy(&output.stderr));
    let facts = &venue.facts;
    assert_eq!((facts.mtu, facts.link_bits_per_s), (Some(1500), Some(1_000_000_000)));
    let file = PathBuf::from("/run/netns").join(&netns);
    assert!(file.exists());
    drop(venue);
    assert!(!file.exists(), "{}", file.display());
}

#[test]
fn the_embedded_bucket_needs_nothing() {
    let venue = open(&VenueConfig { kind: VenueKind::Embedded, ..VenueConfig::default() }).unwrap();
    let laid = lay(&venue);
    let (host, path, content) = first_object(&venue, &laid);
    assert_eq!(get(&host, &path), content);
    assert_eq!(venue.uri(&laid, Transport::Tls).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn a_given_folder_stays_and_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("objects");
    let config = VenueConfig { kind: VenueKind::Embedded, folder: Some(folder.clone()), ..VenueConfig::default() };
    let first = lay(&open(&config).unwrap());
    let again = lay(&open(&config).unwrap());
    assert_eq!(first, again);
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "root, manifest and note: {left:?}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let default = VenueConfig::default;
    let refused = |config: VenueConfig| -> Error { Venue::open(&config).unwrap_err() };
    for config in [
        VenueConfig { link_bits_per_s: Some(1_000_000_000), ..default() },
        VenueConfig { kind: VenueKind::Netns, link_bits_per_s: Some(9), ..default() },
        VenueConfig { kind: VenueKind::Embedded, tls: true, ..default() },
        VenueConfig { kind: VenueKind::Embedded, nginx_directives: "autoindex on;".into(), ..default() },
    ] {
        let error = refused(config);
        assert!(error.kind() == Kind::Usage && error.to_string().contains(';'), "{error}");
    }
}
