//! Floors and the loader as contestants, run small in this process: each brings every byte of the set, and says why when it
//! cannot.
use crate::skip::skip_or_fail;
use std::process::{Command, Stdio};

use fuelrail::Kind;
use fuelrail_benches::floor::{self, Floor, Into, Loop, ssl_contestant};
use fuelrail_benches::harness::{
    Laid, Patience, Running, Said, ShapeName, Stop, Task, Transport, Venue, VenueConfig, VenueKind,
};
use fuelrail_benches::own::{self, Own};

fn venue() -> (Venue, Laid, Task) {
    let venue = Venue::open(&VenueConfig { kind: VenueKind::Embedded, ..VenueConfig::default() }).unwrap();
    let shape = ShapeName::Tiny.shape(0.003).unwrap();
    let laid = shape.lay(venue.folder(), 1, &Stop::default(), &mut |_| {}).unwrap();
    let task = Task {
        uri: venue.uri(&laid, Transport::Plain).unwrap(),
        manifest: laid.manifest.clone(),
        batch_size: 16,
        arena_bytes: 64 << 20,
        seed: 5,
    };
    (venue, laid, task)
}

/// The results of two passes.
fn passes(run: impl FnOnce(&[u8], &mut Vec<u8>) -> fuelrail::Result<()>) -> Vec<Said> {
    let mut output = Vec::new();
    run(b"go\ngo\n", &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    assert!(text.starts_with("ready\n"), "{text}");
    text.lines().skip(1).map(|line| Said::parse(line).unwrap()).collect()
}

#[test]
fn every_floor_and_the_loader_bring_the_same_bytes() {
    let (_venue, laid, task) = venue();
    for (looping, into, hash) in [
        (Loop::Recv, Into::Arena, true),
        (Loop::Recv, Into::Nowhere, false),
        (Loop::Epoll(Some(8)), Into::Arena, true),
        (Loop::Epoll(Some(3)), Into::Nowhere, false),
        (Loop::Epoll(None), Into::Arena, true),
    ] {
        let floor = Floor { looping, into, touch: true, hash };
        for said in passes(|input, output| floor::run(&floor, &task, input, output)) {
            assert_eq!((said.bytes, said.objects), (laid.bytes, laid.objects), "{floor:?}");
            assert_eq!(said.hash, hash.then(|| laid.hash.clone()), "{floor:?}");
            assert!(said.first_batch_us.is_some() && !said.settings.is_empty(), "{floor:?}");
        }
    }
    let small = [("shards", "1"), ("pin", "false")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let own = Own { settings: small.to_vec(), hash: true, once: false };
    for said in passes(|input, output| own::run(&own, &task, input, output)) {
        assert_eq!((said.bytes, said.objects, said.hash), (laid.bytes, laid.objects, Some(laid.hash.clone())));
        assert!(said.settings.contains("batch_size=16") && !said.settings.contains("127.0.0.1"), "{}", said.settings);
    }
}

#[test]
fn what_cannot_be_read_is_said() {
    let (venue, laid, task) = venue();
    let floor = Floor { looping: Loop::Recv, into: Into::Arena, touch: false, hash: false };
    let fail = |task: &Task| floor::run(&floor, task, &b"go\n"[..], Vec::new()).unwrap_err().kind();
    assert_eq!(fail(&Task { uri: "https://127.0.0.1:1/".into(), ..task.clone() }), Kind::Usage);
    assert_eq!(fail(&Task { uri: "http://127.0.0.1:1/".into(), ..task.clone() }), Kind::Network);
    assert_eq!(fail(&Task { manifest: "not/there".into(), ..task.clone() }), Kind::File);
    assert_eq!(fail(&Task { arena_bytes: 1, ..task.clone() }), Kind::Usage);
    assert_eq!(fail(&Task { uri: format!("{}elsewhere/", task.uri), ..task.clone() }), Kind::Protocol);
    let gone = floor::run(&floor, &task, &b"gone\n"[..], Vec::new()).unwrap_err();
    assert!(
        gone.kind() == Kind::Protocol && gone.to_string().contains("unexpected command from the harness: `gone`"),
        "{gone}"
    );
    let longer = std::fs::read_to_string(&laid.manifest).unwrap().replace('\t', "\t1");
    let manifest = venue.folder().join("longer.tsv");
    std::fs::write(&manifest, longer).unwrap();
    assert_eq!(fail(&Task { manifest, ..task.clone() }), Kind::Mismatch);
    let unknown = Own { settings: vec![("shrads".into(), "1".into())], hash: false, once: true };
    assert_eq!(own::run(&unknown, &task, &b""[..], Vec::new()).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn the_floor_over_tls_compiles_and_reads_everything() {
    let compiler =
        Command::new("cc").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    // The server closes the connection when a pass is over, so that the next one must open it again.
    let directives = format!("keepalive_requests {};", 2 * ShapeName::Tiny.shape(0.003).unwrap().objects());
    let opened = Venue::open(&VenueConfig { tls: true, nginx_directives: directives, ..VenueConfig::default() });
    let (venue, true) = (
        match opened {
            Ok(venue) => venue,
            Err(error) => return skip_or_fail("nginx", error),
        },
        compiler,
    ) else {
        return skip_or_fail("cc", "it is not installed");
    };
    let shape = ShapeName::Tiny.shape(0.003).unwrap();
    let laid = shape.lay(venue.folder(), 2, &Stop::default(), &mut |_| {}).unwrap();
    let task = Task {
        uri: venue.uri(&laid, Transport::Tls).unwrap(),
        manifest: laid.manifest.clone(),
        batch_size: 16,
        arena_bytes: 1 << 20,
        seed: 0,
    };
    for read_ahead in [false, true] {
        let contestant = match ssl_contestant(venue.folder(), venue.authority.as_ref().unwrap(), read_ahead) {
            Ok(contestant) => contestant,
            Err(error) => return skip_or_fail("libssl-dev", error),
        };
        let mut running =
            Running::start(&contestant, &task, &venue.place, Patience::default(), &Stop::default()).unwrap();
        for _ in 0..3 {
            let pass = running.pass().unwrap();
            assert_eq!((pass.bytes, pass.objects), (laid.bytes, laid.objects));
        }
        assert!(running.settings.contains("TLS_AES_128_GCM_SHA256"), "{}", running.settings);
        running.finish().unwrap();
    }
    let authority = venue.authority.as_ref().unwrap();
    for said in passes(|input, output| floor::run_tls(authority, true, &task, input, output)) {
        assert_eq!((said.bytes, said.objects, said.hash), (laid.bytes, laid.objects, Some(laid.hash.clone())));
    }
}
