//! Over TLS everything is as over plain TCP, byte for byte, and what TLS alone can do wrong is told with its cure.

use crate::common::nginx::Nginx;
use crate::common::secure::{Authority, Secured, named, shown};
use crate::common::{drain, eventually, listing, loader, loader_at, plain_run, planned, side_by_side};
use fuelrail::{Error, Kind, Tls as Judged, get_with, list_with};
use fuelrail_bucket::{Bucket, DataSet};

/// Cipher suites, as nginx names them: `ssl_protocols`, `ssl_ciphers` and `Ciphersuites`.
const SUITES: [(&str, &str); 7] = [
    ("TLSv1.3", "TLS_AES_128_GCM_SHA256"),
    ("TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    ("TLSv1.3", "TLS_CHACHA20_POLY1305_SHA256"),
    ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    ("TLSv1.2 TLSv1.3", "HIGH"),
];

/// nginx over TLS with this suite only, keeping its sessions for resumption.
fn nginx(authority: &Authority, (protocols, suite): (&str, &str)) -> Option<Nginx> {
    Nginx::start_with("ssl", |folder| {
        authority.sign(&named(&["127.0.0.1", "localhost"]), folder);
        let dir = folder.display();
        let ciphers = match protocols {
            "TLSv1.3" => format!("ssl_conf_command Ciphersuites {suite};"),
            _ => format!("ssl_ciphers {suite};"),
        };
        Ok(format!(
            "ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem; ssl_protocols {protocols}; {ciphers} \
             ssl_session_cache shared:s:1m;"
        ))
    })
}

#[test]
fn nginx_serves_the_same_bytes_with_every_suite() {
    let authority = Authority::new("an authority of a test");
    let photos = DataSet::photos(70, 3);
    let volumes = DataSet::volumes(2, 3, 0.1);
    for suite in SUITES {
        let Some(nginx) = nginx(&authority, suite) else { return };
        for (name, set, batch) in [("photos", &photos, 32), ("volumes", &volumes, 1)] {
            let manifest = nginx.serve(name, set);
            let uri = format!("https://127.0.0.1:{}/{name}/", nginx.port());
            let builder = loader_at(&uri).manifest(manifest).ca_file(authority.file()).batch_size(batch);
            let builder = builder.memory_limit("160MiB".parse().unwrap()).block_size("4MiB".parse().unwrap());
            let mut loader = builder.connections_max(1).build().unwrap();
            let delivered = drain(&mut loader, set).unwrap_or_else(|e| panic!("{suite:?}: {e}"));
            assert_eq!(delivered.order, planned(plain_run(set.len(), 0, batch, 1)), "{suite:?}");
            let stats = loader.stats();
            assert_eq!((stats.retries, stats.given_up), (0, 0), "{suite:?}: {stats:?}");
            // nginx closes after 50 answers: later connections come with tickets.
            assert!(stats.tls_handshakes == stats.connections && stats.tls_handshakes > 0, "{suite:?}: {stats:?}");
            assert!(name != "photos" || stats.tls_resumed > 0, "{suite:?}: {stats:?}");
            if name == "volumes" && suite.0 == "TLSv1.3" {
                assert!(stats.copied_bytes_per_byte <= 0.02, "{suite:?}: {stats:?}");
            }
        }
    }
}

#[test]
fn the_embedded_bucket_lists_gets_and_resumes() {
    let set = DataSet::digits(200, 5);
    let secured = Secured::start(&set, "close_after=5");
    let judged = Judged { ca_file: Some(secured.ca_file()), insecure: false };
    let uri = secured.bucket.url("");
    let listed = list_with(&judged, &uri, |_| {}).unwrap();
    assert_eq!(listed, listing(&set));
    let mut bytes = Vec::new();
    get_with(&judged, &secured.bucket.url(&set.key(3)), &mut bytes).unwrap();
    assert_eq!(bytes, set.content(3));
    secured.bucket.reset_counters();
    let mut loader = secured.loader().listing(listed).batch_size(10).connections_max(2).build().unwrap();
    assert_eq!(drain(&mut loader, &set).unwrap().order, planned(plain_run(200, 0, 10, 1)));
    // A handshake is over for one side before it is for the other.
    eventually("both count the same handshakes", || {
        let (stats, counters) = (loader.stats(), secured.bucket.counters());
        let counted = (counters.tls_resumed, counters.tls_resumed + counters.tls_full);
        stats.tls_resumed >= 10 && (stats.tls_resumed, stats.tls_handshakes) == counted
    });
}

#[test]
fn a_record_inside_a_body_is_decrypted_into_its_place() {
    let set = DataSet::volumes(2, 3, 0.1);
    let secured = Secured::start(&set, "");
    let builder = secured.loader().listing(listing(&set)).batch_size(1).memory_limit("160MiB".parse().unwrap());
    let mut loader = builder.block_size("4MiB".parse().unwrap()).connections_max(1).build().unwrap();
    drain(&mut loader, &set).unwrap();
    let stats = loader.stats();
    assert!(stats.tls_handshakes > 0 && stats.copied_bytes <= stats.requests * (32 << 10), "{stats:?}");
    assert!(stats.copied_bytes_per_byte <= 0.02, "{stats:?}");
}

/// What a loader, a listing and a fetch over `uri` end with: all three refuse alike.
fn refused(uri: &str, judged: &Judged, set: &DataSet) -> Error {
    let listed = list_with(judged, uri, |_| {}).unwrap_err();
    let mut builder = loader_at(uri).listing(listing(set)).attempts_max(2).tls_insecure(judged.insecure);
    if let Some(file) = &judged.ca_file {
        builder = builder.ca_file(file.clone());
    }
    let error = builder.build().unwrap().next_batch().expect("an outcome").expect_err("nothing can be had");
    assert_eq!((error.kind(), error.cause()), (listed.kind(), listed.cause()), "loader and listing");
    assert!(error.object().is_some());
    error
}

#[test]
fn certificates_that_are_not_to_be_trusted_are_refused() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let set = DataSet::digits(10, 1);
    let judged = Judged { ca_file: Some(ours.file()), insecure: false };
    let mut expired = named(&["127.0.0.1"]);
    (expired.not_before, expired.not_after) = (rcgen::date_time_ymd(2019, 1, 1), rcgen::date_time_ymd(2020, 2, 3));
    for (tls, says) in [
        (other.sign_as("stranger", &named(&["127.0.0.1"])), vec!["an unknown authority", "ca_file"]),
        (ours.sign_as("expired", &expired), vec!["expired on 2020-02-03", "clock"]),
        (
            ours.sign_as("wrong-name", &named(&["bucket.example", "10.1.2.3"])),
            vec!["certificate is for bucket.example, 10.1.2.3, not for 127.0.0.1", "URI"],
        ),
    ] {
        let bucket = shown(&set, "", tls);
        let error = refused(&bucket.url(""), &judged, &set);
        assert_eq!(error.kind(), Kind::Untrusted, "{error}");
        for word in says {
            assert!(error.to_string().contains(word), "'{word}' is not in: {error}");
        }
        assert!(!error.to_string().contains("attempts"), "nothing gets better by asking again: {error}");
        assert_eq!(bucket.counters().requests(), 0, "no request is sent to a server that is not trusted");
        // Only who says so in so many words is served all the same.
        let judged = Judged { ca_file: None, insecure: true };
        assert_eq!(list_with(&judged, &bucket.url(""), |_| {}).unwrap(), listing(&set));
        let mut loader = loader_at(&bucket.url("")).tls_insecure(true).build().unwrap();
        assert_eq!(drain(&mut loader, &set).unwrap().order.len(), 10);
    }
}

#[test]
fn a_private_authority_is_not_trusted_unless_it_is_named() {
    let set = DataSet::digits(10, 1);
    let secured = Secured::start(&set, "");
    let error = loader_at(&secured.bucket.url("")).build().unwrap_err();
    // Where the system has no authorities at all, that is what is said.
    assert!(matches!(error.kind(), Kind::Untrusted | Kind::Environment), "{error}");
    assert!(error.to_string().contains("ca_file"), "{error}");
}

#[test]
fn the_wrong_scheme_is_named() {
    let set = DataSet::digits(10, 1);
    let swapped = |bucket: &Bucket, from: &str, to: &str| bucket.url("").replacen(from, to, 1);
    let plain = crate::common::bucket(&set, "");
    let authority = Authority::new("ours");
    let judged = Judged { ca_file: Some(authority.file()), insecure: false };
    let uri = swapped(&plain, "http:", "https:");
    let error = list_with(&judged, &uri, |_| {}).unwrap_err();
    assert!(error.kind() == Kind::Protocol && error.to_string().contains("http://"), "{error}");
    let builder = loader_at(&uri).ca_file(authority.file()).listing(listing(&set)).attempts_max(2);
    let error = builder.build().unwrap().next_batch().unwrap().unwrap_err();
    assert!(error.kind() == Kind::Protocol && error.to_string().contains("http://"), "{error}");
    let secured = Secured::start(&set, "");
    let mut ports = vec![swapped(&secured.bucket, "https:", "http:")];
    let nginx = nginx(&authority, SUITES[0]);
    ports.extend(nginx.iter().map(|nginx| format!("http://127.0.0.1:{}/", nginx.port())));
    for uri in ports {
        let error = fuelrail::list(&uri, |_| {}).unwrap_err();
        assert!(error.kind() == Kind::Protocol && error.to_string().contains("https://"), "{error}");
        let builder = loader_at(&uri).listing(listing(&set)).attempts_max(2);
        let error = builder.build().unwrap().next_batch().unwrap().unwrap_err();
        assert!(error.kind() == Kind::Protocol && error.to_string().contains("https://"), "{error}");
    }
}

#[test]
fn results_are_those_of_the_plain_bucket() {
    let set = DataSet::volumes(4, 8, 0.02);
    let hash = |builder: fuelrail::LoaderBuilder| {
        let mut loader = builder.epochs(2).batch_size(3).block_size("256KiB".parse().unwrap()).build().unwrap();
        let mut all = Vec::new();
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            batch.samples().for_each(|sample| all.push((batch.epoch(), sample.id.0, sample.bytes.to_vec())));
        }
        all
    };
    let secured = Secured::start(&set, "");
    let plain = crate::common::bucket(&set, "");
    assert_eq!(hash(secured.loader()), hash(loader(&plain)));
    side_by_side(vec![1u16, 2, 3], |&shards| {
        assert_eq!(drain(&mut secured.loader().shards(shards).build().unwrap(), &set).unwrap().order.len(), 4);
    });
}
