//! Connections over TLS on a simulated ring, some through a proxy: what lands, and what it means when a stream ends early.

use super::fetch::{Rig, error_of, idled_out};
use super::world::{Bucket, Heard, LIVE, packed_at};
use fuelrail_base::limits::TLS_SCRATCH_BYTES_MIN;
use fuelrail_base::prng::Prng;
use fuelrail_base::{Duration, Instant, Kind};
use fuelrail_bucket::Certificate;
use fuelrail_io::{Host, Replies, SimFaults, SimWorld};
use fuelrail_wire::Proxy;
use fuelrail_wire::tls::{Client, Roots, Trust};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ServerConfig, ServerConnection};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

static CERTIFICATE: LazyLock<Certificate> = LazyLock::new(|| Certificate::new([127, 0, 0, 1].into()).unwrap());

/// When a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    Never,
    /// Instead of the server's first message.
    InHandshake,
    /// After so many bytes of the first answer, as they are on the wire.
    After(usize),
    /// After the first answer, announced or not.
    Between {
        announced: bool,
    },
}

struct Peer {
    /// What the proxy was told, until it has opened the way.
    told: Option<Vec<u8>>,
    tls: ServerConnection,
    text: Vec<u8>,
}

/// The bucket behind TLS, and a proxy before it where there is one.
struct Server {
    bucket: Bucket,
    config: Arc<ServerConfig>,
    /// What the proxy says.
    proxy: Option<&'static str>,
    ends: Ends,
    peers: HashMap<u64, Peer>,
}

impl Host for Server {
    fn connect(&mut self, conn: u64, addr: SocketAddr, now: Instant) -> (Duration, Result<(), i32>) {
        let mut tls = ServerConnection::new(Arc::clone(&self.config)).unwrap();
        tls.set_buffer_limit(None);
        self.peers.insert(conn, Peer { told: self.proxy.map(|_| Vec::new()), tls, text: Vec::new() });
        self.bucket.connect(conn, addr, now)
    }

    fn receive(&mut self, conn: u64, mut bytes: &[u8], _: Instant, out: &mut Replies) {
        let at_once = Duration::ZERO;
        let peer = self.peers.get_mut(&conn).unwrap();
        if let Some(told) = &mut peer.told {
            told.extend_from_slice(bytes);
            if told.ends_with(b"\r\n\r\n") {
                let told = String::from_utf8(peer.told.take().unwrap()).unwrap();
                self.bucket.heard.borrow_mut().push((conn, told));
                match self.proxy.unwrap() {
                    "" => out.finish(at_once),
                    says => out.send(at_once, says.into()),
                }
            }
            return;
        }
        if self.ends == Ends::InHandshake {
            return out.finish(at_once);
        }
        while !bytes.is_empty() {
            peer.tls.read_tls(&mut bytes).unwrap();
            peer.tls.process_new_packets().unwrap();
        }
        let _ = peer.tls.reader().read_to_end(&mut peer.text);
        let mut wire = Vec::new();
        let mut answered = false;
        while let Some(end) = peer.text.windows(4).position(|w| w == b"\r\n\r\n") {
            let request = String::from_utf8(peer.text.drain(..end + 4).collect()).unwrap();
            self.bucket.heard.borrow_mut().push((conn, request.clone()));
            peer.tls.writer().write_all(&self.bucket.answer(&request, "")).unwrap();
            answered = true;
        }
        let between = matches!(self.ends, Ends::Between { .. });
        if self.ends == (Ends::Between { announced: true }) && answered {
            peer.tls.send_close_notify();
        }
        while peer.tls.wants_write() {
            peer.tls.write_tls(&mut wire).unwrap();
        }
        if let (Ends::After(most), true) = (self.ends, answered) {
            wire.truncate(most);
        }
        out.send(Duration::from_micros(100), wire);
        if answered && (between || matches!(self.ends, Ends::After(_))) {
            // Later ones go on as if nothing had been.
            self.ends = Ends::Never;
            out.finish(Duration::from_micros(100));
        }
    }

    fn closed(&mut self, conn: u64, _: Instant) {
        self.peers.remove(&conn);
    }
}

/// A stage that asks for objects of these sizes, through a proxy that says this, and what the server and the proxy heard.
fn rig(sizes: &[u64], proxy: Option<&'static str>, ends: Ends, faults: SimFaults, seed: u64) -> (Rig, Heard) {
    let chain = vec![CertificateDer::from_pem_slice(CERTIFICATE.chain.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(CERTIFICATE.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
    let roots = Trust::Roots(Roots::from_pem(CERTIFICATE.authority.as_bytes()).unwrap());
    let client = Client::new("localhost", roots, Arc::new(DefaultTimeProvider)).unwrap();
    let through = proxy.map(|_| Arc::new(Proxy::parse("https_proxy", "http://me:secret@10.0.0.9:3128").unwrap()));
    let objects = Arc::into_inner(packed_at("https://localhost/b/k", &[LIVE], sizes)).unwrap();
    let objects = Arc::new(objects.over(Some(client)).through(through));
    let bucket = Bucket::new(sizes);
    let heard = Heard::clone(&bucket.heard);
    let server = Server { bucket, config, proxy, ends, peers: HashMap::new() };
    let world = SimWorld::new(seed, faults, Box::new(server));
    (Rig::of(world, objects, sizes, 64, TLS_SCRATCH_BYTES_MIN), heard)
}

const SIZES: [u64; 6] = [1, 16_384, 100_000, 70_000, 40, 250_000];
const OPEN: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

#[test]
fn every_byte_lands_however_the_records_come_in_pieces() {
    for seed in 0..40 {
        let mut prng = Prng::new(seed);
        let mut part = || if prng.chance(0.5) { 0.0 } else { prng.unit() * 0.9 };
        let faults = SimFaults { short_receive: part(), short_send: part(), reorder: part(), ..SimFaults::default() };
        let proxy = (seed % 2 == 1).then_some(OPEN);
        let (mut rig, heard) = rig(&SIZES, proxy, Ends::Never, faults, seed);
        rig.wanted = 2;
        rig.request(0..6);
        rig.run(6);
        rig.check_landed(6);
        let stats = rig.fetch.stats();
        assert_eq!((stats.requests, stats.tls_handshakes), (6, stats.connections), "seed {seed}");
        let copied = stats.copied_bytes as f64 / SIZES.iter().sum::<u64>() as f64;
        assert!(copied < 0.6, "seed {seed}: {copied} bytes copied for each");
        let asked = heard.borrow().iter().filter(|(_, text)| text.starts_with("CONNECT localhost:443 ")).count() as u64;
        assert_eq!(asked, if proxy.is_some() { stats.connections } else { 0 }, "seed {seed}: each way is opened once");
        assert!(heard.borrow().iter().all(|(_, text)| text.starts_with("CONNECT") == text.contains("Proxy-Auth")));
    }
}

/// The error of one request and how much had landed before.
fn error(proxy: Option<&'static str>, ends: Ends) -> (Kind, String, usize) {
    let (mut rig, _) = rig(&SIZES, proxy, ends, SimFaults::default(), 1);
    rig.request(2..3);
    rig.run(1);
    let outcome = rig.ended.pop().expect("it ends");
    let error = error_of(&outcome).expect("it fails");
    (error.kind(), error.cause().to_string(), outcome.window.filled())
}

#[test]
fn a_stream_that_ends_early_is_an_error_and_keeps_what_was_genuine() {
    let (kind, cause, landed) = error(None, Ends::InHandshake);
    assert_eq!((kind, landed), (Kind::Network, 0));
    assert!(cause.contains("during the TLS handshake"), "{cause}");
    for (bytes, some) in [(40_000, true), (100, false)] {
        let (kind, cause, landed) = error(None, Ends::After(bytes));
        assert_eq!((kind, landed > 0, landed < 40_000), (Kind::Truncated, some, true), "{cause}");
    }
    for announced in [false, true] {
        let (mut rig, _) = rig(&SIZES, None, Ends::Between { announced }, SimFaults::default(), 1);
        rig.request(0..1);
        rig.run(1);
        rig.check_landed(1);
        rig.pass(Duration::from_secs(2));
        rig.request(3..4);
        rig.run(1);
        if !announced {
            assert_eq!(idled_out(&rig.ended.pop().expect("it ends")), Some(true));
            rig.request(3..4);
            rig.run(1);
        }
        rig.check_landed(1);
        assert_eq!((rig.fetch.stats().connections, rig.fetch.stats().tls_resumed), (2, 1), "announced: {announced}");
    }
}

#[test]
fn a_proxy_that_opens_no_tunnel_is_named() {
    for (says, kind, why) in [
        ("", Kind::Network, "closed the connection"),
        ("HTTP/1.1 407 Who?\r\n\r\n", Kind::Denied, "407"),
        ("HTTP/1.1 502 Bad Gateway\r\n\r\n", Kind::Network, "cannot reach localhost:443"),
        ("HTTP/1.1 200 OK\r\n\r\nmore", Kind::Protocol, "data after the CONNECT response"),
    ] {
        let (found, cause, landed) = error(Some(says), Ends::Never);
        assert_eq!((found, landed), (kind, 0), "{cause}");
        assert!(cause.contains(why) && cause.contains("10.0.0.9:3128") && !cause.contains("secret"), "{cause}");
    }
}
