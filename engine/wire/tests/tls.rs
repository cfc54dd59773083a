//! Whole TLS connections in memory: our session against a rustls server, every suite, any cut, and what goes wrong.

use fuelrail_base::prng::Prng;
use fuelrail_base::{Error, Kind, Result};
use fuelrail_wire::tls::{Client, Plaintext, Roots, Session, Trust, ciphertext_bytes_min};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::DefaultTimeProvider;
use rustls::{CipherSuite, ProtocolVersion, RootCertStore, ServerConfig, ServerConnection};
use std::io::{Read, Write};
use std::sync::Arc;

/// An authority and the certificates it signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        Authority { issuer: Issuer::new(params, key), root }
    }

    fn sign(&self, params: &CertificateParams) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), PrivateKeyDer::Pkcs8(key.serialize_der().into()))
    }

    fn client(&self, host: &str) -> Client {
        let trust = Trust::Roots(Roots::new([self.root.clone()]).unwrap());
        Client::new(host, trust, Arc::new(DefaultTimeProvider)).unwrap()
    }
}

fn named(name: &str) -> CertificateParams {
    CertificateParams::new(vec![name.to_owned()]).unwrap()
}

/// A server with this certificate, restricted to one suite if one is given.
fn server(shown: (CertificateDer<'static>, PrivateKeyDer<'static>), suite: Option<CipherSuite>) -> Arc<ServerConfig> {
    let mut provider: CryptoProvider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|one| suite.is_none_or(|suite| one.suite() == suite));
    let builder =
        ServerConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(vec![shown.0], shown.1).unwrap();
    config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
    Arc::new(config)
}

/// Takes payload; places it when it may.
#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    place: Vec<u8>,
    offers: bool,
    placed: usize,
}

impl Plaintext for Taken {
    fn place(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.place.resize(bytes, 0);
        self.offers.then_some(&mut self.place)
    }

    fn placed(&mut self, bytes: usize) -> Result<()> {
        self.bytes.extend_from_slice(&self.place[..bytes]);
        self.placed += bytes;
        Ok(())
    }

    fn given(&mut self, payload: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(payload);
        Ok(())
    }
}

/// Both ends, and what is on its way to the client.
struct Line {
    session: Session,
    server: ServerConnection,
    wire: Vec<u8>,
    /// Bytes shown to the session and not taken.
    held: Vec<u8>,
    taken: Taken,
    asked: Vec<u8>,
    prng: Prng,
    /// Longest piece the client receives.
    piece: usize,
}

impl Line {
    fn new(client: &Client, config: &Arc<ServerConfig>, piece: usize) -> Line {
        Line {
            session: Session::new(client).unwrap(),
            server: ServerConnection::new(Arc::clone(config)).unwrap(),
            wire: Vec::new(),
            held: Vec::new(),
            taken: Taken { offers: true, ..Taken::default() },
            asked: Vec::new(),
            prng: Prng::new(piece as u64),
            piece,
        }
    }

    /// What the client says reaches the server, and the server's answer the wire.
    fn upstream(&mut self) -> std::result::Result<(), rustls::Error> {
        let mut said = Vec::new();
        self.session.take_output(&mut said);
        let mut said = said.as_slice();
        let mut outcome = Ok(());
        while !said.is_empty() && outcome.is_ok() {
            self.server.read_tls(&mut said).unwrap();
            outcome = self.server.process_new_packets().map(drop);
            let mut text = [0; 4096];
            while let Ok(bytes @ 1..) = self.server.reader().read(&mut text) {
                self.asked.extend_from_slice(&text[..bytes]);
            }
        }
        self.flush();
        outcome
    }

    fn flush(&mut self) {
        while self.server.wants_write() {
            self.server.write_tls(&mut self.wire).unwrap();
        }
    }

    /// All of the wire reaches the client, in pieces.
    fn downstream(&mut self) -> Result<()> {
        let wire = std::mem::take(&mut self.wire);
        let mut from = 0;
        while from < wire.len() {
            let bytes = (1 + self.prng.below(self.piece as u64) as usize).min(wire.len() - from);
            self.held.extend_from_slice(&wire[from..from + bytes]);
            from += bytes;
            let used = self.session.feed(&mut self.held, &mut self.taken)?;
            self.held.drain(..used);
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        while self.session.has_output() || !self.wire.is_empty() {
            let outcome = self.upstream();
            self.downstream()?;
            outcome.expect("the server is content");
        }
        Ok(())
    }

    fn answer(&mut self, payload: &[u8]) {
        for piece in payload.chunks(20_000) {
            self.server.writer().write_all(piece).unwrap();
            self.flush();
        }
    }
}

fn body(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 253) as u8).collect()
}

const SUITES: [(CipherSuite, ProtocolVersion); 6] = [
    (CipherSuite::TLS13_AES_128_GCM_SHA256, ProtocolVersion::TLSv1_3),
    (CipherSuite::TLS13_AES_256_GCM_SHA384, ProtocolVersion::TLSv1_3),
    (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, ProtocolVersion::TLSv1_3),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, ProtocolVersion::TLSv1_2),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, ProtocolVersion::TLSv1_2),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, ProtocolVersion::TLSv1_2),
];

#[test]
fn every_suite_delivers_however_the_stream_is_cut() {
    let authority = Authority::new("ours");
    let payload = body(200_000);
    for (suite, version) in SUITES {
        let config = server(authority.sign(&named("bucket.example")), Some(suite));
        for piece in [1, 7, 3_000, 1 << 20] {
            let client = authority.client("bucket.example");
            let mut line = Line::new(&client, &config, piece);
            line.session.seal(b"GET /1").unwrap();
            line.settle().unwrap();
            let agreed = line.session.agreed().expect("the handshake is over");
            assert_eq!((agreed.suite, agreed.version, agreed.resumed), (suite, version, false));
            line.answer(&payload);
            line.settle().unwrap();
            line.session.seal(b"GET /2").unwrap();
            line.settle().unwrap();
            assert_eq!(line.asked, b"GET /1GET /2", "{suite:?}");
            assert!(line.taken.bytes == payload, "{suite:?} in pieces of {piece}");
            let placed = if version == ProtocolVersion::TLSv1_3 { payload.len() } else { 0 };
            assert_eq!(line.taken.placed, placed, "{suite:?}");
            assert!(!line.session.has_ended());
        }
    }
}

/// A receive that waits for more than the records have would wait for ever.
#[test]
fn no_suite_sends_fewer_bytes_than_the_least() {
    let authority = Authority::new("ours");
    let mut least_met = 0;
    for (suite, _) in SUITES {
        let config = server(authority.sign(&named("bucket.example")), Some(suite));
        let mut line = Line::new(&authority.client("bucket.example"), &config, 1 << 20);
        line.session.seal(b"GET /1").unwrap();
        line.settle().unwrap();
        for bytes in [1, 1_000, 1 << 14] {
            line.answer(&body(bytes));
            let (sent, least) = (line.wire.len(), ciphertext_bytes_min(bytes));
            assert!(sent >= least, "{suite:?}: {sent} bytes for {bytes}, at least {least}");
            least_met += u32::from(sent == least);
            line.settle().unwrap();
        }
    }
    assert_eq!(least_met, 3, "one suite needs no more");
}

/// Long chains of certificates do not fit one record, and no two receives cut them alike.
#[test]
fn handshakes_in_many_records_succeed() {
    let authority = Authority::new("ours");
    for (suite, _) in SUITES {
        let config = server(authority.sign(&named("bucket.example")), Some(suite));
        let mut config = Arc::unwrap_or_clone(config);
        config.max_fragment_size = Some(70);
        let config = Arc::new(config);
        for piece in [1, 7, 90, 3_000] {
            let mut line = Line::new(&authority.client("bucket.example"), &config, piece);
            line.session.seal(b"GET /1").unwrap();
            line.settle().unwrap();
            assert_eq!(line.session.agreed().map(|agreed| agreed.suite), Some(suite));
            line.answer(&body(5_000));
            line.session.seal(b"GET /2").unwrap();
            line.settle().unwrap();
            assert_eq!((line.asked.as_slice(), &line.taken.bytes), (&b"GET /1GET /2"[..], &body(5_000)), "{suite:?}");
        }
    }
}

#[test]
fn later_connections_resume() {
    let authority = Authority::new("ours");
    for (suite, version) in SUITES {
        let config = server(authority.sign(&named("bucket.example")), Some(suite));
        let client = authority.client("bucket.example");
        let clone = client.clone();
        for (client, resumed) in [(&client, false), (&clone, true), (&client, true)] {
            let mut line = Line::new(client, &config, 500);
            line.session.seal(b"GET /").unwrap();
            line.settle().unwrap();
            line.answer(&body(10));
            line.settle().unwrap();
            let agreed = line.session.agreed().unwrap();
            assert_eq!((agreed.version, agreed.resumed), (version, resumed), "{suite:?}");
            assert_eq!((line.asked.as_slice(), line.taken.bytes), (&b"GET /"[..], body(10)));
        }
    }
}

#[test]
fn keys_change_in_the_middle_of_a_body_in_both_directions() {
    let authority = Authority::new("ours");
    let payload = body(100_000);
    for (suite, _) in &SUITES[..3] {
        let config = server(authority.sign(&named("bucket.example")), Some(*suite));
        let mut line = Line::new(&authority.client("bucket.example"), &config, 900);
        line.settle().unwrap();
        for round in 1..=5 {
            line.answer(&payload[..30_000]);
            line.server.refresh_traffic_keys().unwrap();
            line.flush();
            line.answer(&payload[30_000..]);
            line.session.seal(b"more?").unwrap();
            line.settle().unwrap();
            assert_eq!(line.session.key_updates(), round);
            // The server has our own new key by now, or it could not read this.
            line.session.seal(b"yes").unwrap();
            line.settle().unwrap();
            assert!(line.taken.bytes == payload.repeat(round as usize), "{suite:?}");
            assert_eq!(line.asked, b"more?yes".repeat(round as usize));
        }
    }
}

#[test]
fn every_change_of_keys_is_answered_and_only_so_many_come_without_payload() {
    const BARREN_MAX: usize = 32;
    let authority = Authority::new("ours");
    let config = server(authority.sign(&named("bucket.example")), Some(SUITES[0].0));
    let mut line = Line::new(&authority.client("bucket.example"), &config, 900);
    line.settle().unwrap();
    // What rustls sends after the handshake is past.
    line.answer(b"x");
    line.settle().unwrap();
    for _ in 0..BARREN_MAX {
        line.server.refresh_traffic_keys().unwrap();
        line.flush();
        line.downstream().unwrap();
        assert!(line.session.has_output(), "the server wants ours changed, too");
        line.upstream().unwrap();
        line.downstream().unwrap();
    }
    line.server.refresh_traffic_keys().unwrap();
    line.flush();
    assert!(line.downstream().unwrap_err().to_string().contains("without payload"));
}

#[test]
fn a_sealed_record_has_a_head_a_type_and_a_tag_besides_its_payload() {
    let authority = Authority::new("ours");
    let client = authority.client("bucket.example");
    assert!(client.verifies());
    let config = server(authority.sign(&named("bucket.example")), Some(SUITES[0].0));
    let mut line = Line::new(&client, &config, 900);
    line.settle().unwrap();
    assert!(format!("{:?}", line.session).contains("agreed"));
    for _ in 0..3 {
        let mut said = Vec::new();
        line.session.seal(b"abc").unwrap();
        line.session.take_output(&mut said);
        assert_eq!(said.len(), 5 + 3 + 1 + 16);
    }
}

#[test]
fn a_goodbye_is_heard_and_what_follows_is_not() {
    let authority = Authority::new("ours");
    for (suite, _) in SUITES {
        let config = server(authority.sign(&named("bucket.example")), Some(suite));
        let mut line = Line::new(&authority.client("bucket.example"), &config, 900);
        line.settle().unwrap();
        line.answer(&body(40_000));
        line.server.send_close_notify();
        line.flush();
        line.wire.extend_from_slice(b"GARBAGE FROM SOMEBODY ELSE");
        line.settle().unwrap();
        assert!(line.session.has_ended() && line.taken.bytes == body(40_000), "{suite:?}");
    }
}

#[test]
fn damage_is_noticed_and_nothing_of_the_damaged_record_is_delivered() {
    let authority = Authority::new("ours");
    let payload = body(60_000);
    for (suite, _) in SUITES {
        let config = server(authority.sign(&named("bucket.example")), Some(suite));
        for seed in 0..20 {
            let mut line = Line::new(&authority.client("bucket.example"), &config, 5_000);
            line.settle().unwrap();
            line.answer(&payload);
            let mut prng = Prng::new(seed);
            let at = prng.below(line.wire.len() as u64) as usize;
            line.wire[at] ^= 1 << prng.below(8);
            line.taken.offers = seed % 2 == 0;
            let heard = line.downstream();
            let delivered = &line.taken.bytes;
            assert!(payload.starts_with(delivered) && delivered.len() < payload.len(), "{suite:?} seed {seed}");
            match heard {
                Err(error) => assert_eq!(error.kind(), Kind::Protocol, "{error}"),
                // A length was damaged: the rest waits for the end of a record that never comes.
                Ok(()) => assert!(!line.held.is_empty(), "{suite:?} seed {seed}"),
            }
        }
    }
}

/// The error a handshake ends with.
fn refused(client: &Client, config: &Arc<ServerConfig>) -> Error {
    let mut line = Line::new(client, config, 10_000);
    line.session.seal(b"GET /").unwrap();
    for _ in 0..8 {
        let refused_by_server = line.upstream().is_err();
        if let Err(error) = line.downstream() {
            assert_eq!(line.asked, b"", "nothing is said to a server that is not trusted");
            assert!(line.session.seal(b"x").is_err(), "a failed session takes nothing more");
            return error;
        }
        assert!(!refused_by_server, "the server refused and did not say so");
    }
    panic!("the handshake succeeded");
}

#[test]
fn certificates_that_are_not_to_be_trusted_are_refused_with_the_cause() {
    let (ours, other, namesake) = (Authority::new("ours"), Authority::new("other"), Authority::new("ours"));
    let client = ours.client("bucket.example");
    let mut expired = named("bucket.example");
    (expired.not_before, expired.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 2, 3));
    let mut early = named("bucket.example");
    early.not_before = date_time_ymd(4000, 5, 6);
    let mut authority = named("bucket.example");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let two = CertificateParams::new(vec!["a.example".to_owned(), "10.1.2.3".to_owned()]).unwrap();
    for (shown, says) in [
        (other.sign(&named("bucket.example")), vec!["unknown authority", "ca_file"]),
        (namesake.sign(&named("bucket.example")), vec!["not signed with the key", "ca_file"]),
        (ours.sign(&expired), vec!["expired on 2020-02-03", "clock"]),
        (ours.sign(&early), vec!["not valid before 4000-05-06", "clock"]),
        (ours.sign(&two), vec!["certificate is for a.example, 10.1.2.3, not for bucket.example", "URI"]),
        (ours.sign(&authority), vec!["authority as its own"]),
    ] {
        let config = server(shown, None);
        let error = refused(&client, &config);
        assert_eq!(error.kind(), Kind::Untrusted, "{error}");
        for word in says {
            assert!(error.to_string().contains(word), "'{word}' is not in: {error}");
        }
        // Without verification the handshake succeeds.
        let unverified = Client::new("bucket.example", Trust::Unverified, Arc::new(DefaultTimeProvider)).unwrap();
        let mut line = Line::new(&unverified, &config, 1_000);
        line.settle().unwrap();
        assert!(line.session.agreed().is_some());
    }
}

#[test]
fn addresses_have_certificates_too() {
    let authority = Authority::new("ours");
    let config = server(authority.sign(&named("127.0.0.1")), None);
    let mut line = Line::new(&authority.client("127.0.0.1"), &config, 1_000);
    line.settle().unwrap();
    assert!(line.session.agreed().is_some());
    let error = refused(&authority.client("127.0.0.2"), &config);
    assert!(error.to_string().contains("certificate is for 127.0.0.1, not for 127.0.0.2"), "{error}");
    let none = Client::new("a b", Trust::Unverified, Arc::new(DefaultTimeProvider)).unwrap_err();
    assert_eq!(none.kind(), Kind::Usage);
}

#[test]
fn a_server_that_wants_a_client_certificate_is_named() {
    let authority = Authority::new("ours");
    let mut roots = RootCertStore::empty();
    roots.add(authority.root.clone()).unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), Arc::clone(&provider))
            .build()
            .unwrap();
        let shown = authority.sign(&named("bucket.example"));
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = config.with_client_cert_verifier(verifier).with_single_cert(vec![shown.0], shown.1).unwrap();
        let error = refused(&authority.client("bucket.example"), &Arc::new(config));
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains("client certificate"), "{error}");
    }
}

#[test]
fn what_is_no_tls_is_recognised() {
    let authority = Authority::new("ours");
    let client = authority.client("bucket.example");
    for (answer, says) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "plain HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak TLS"),
        (&[0x16, 3, 3, 0xff, 0xff], "does not speak TLS"),
        (&[0x15, 3, 3, 0, 2, 2, 40], "HandshakeFailure"),
        (&[0x15, 3, 3, 0, 2, 2, 112], "host in the URI"),
    ] {
        let mut session = Session::new(&client).unwrap();
        let error = session.feed(&mut answer.to_vec(), &mut Taken::default()).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn the_longest_record_there_is_is_waited_for() {
    let client = Authority::new("ours").client("bucket.example");
    let mut session = Session::new(&client).unwrap();
    assert_eq!(session.feed(&mut [0x16, 3, 3, 0x41, 0], &mut Taken::default()).unwrap(), 0);
    let error = session.feed(&mut [0x16, 3, 3, 0x41, 1], &mut Taken::default()).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
}

#[test]
fn roots_are_read_from_pem() {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    assert_eq!(Roots::from_pem(pem.repeat(3).as_bytes()).unwrap().count(), 3);
    for wrong in ["", "no certificate", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n"] {
        assert_eq!(Roots::from_pem(wrong.as_bytes()).unwrap_err().kind(), Kind::Usage, "{wrong}");
    }
    let key = KeyPair::generate().unwrap().serialize_pem();
    assert!(Roots::from_pem(key.as_bytes()).unwrap_err().to_string().contains("BEGIN CERTIFICATE"));
}
