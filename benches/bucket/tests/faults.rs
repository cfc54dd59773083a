//! Every scripted fault as a client sees it, and the counters that admit to it.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::common::{Client, Reply, elements, head, serve};
use fuelrail_bucket::{Bucket, BucketConfig, Counters, DataSet, Fault, FaultKind, Script, Source};

/// What a client makes of one `GET` on its own connection.
fn outcome(bucket: &Bucket, key: &str) -> std::io::Result<Reply> {
    Client::connect(bucket).request("GET", &format!("/bucket/{key}"), &[])
}

fn set() -> DataSet {
    DataSet::photos(40, 3)
}

#[test]
fn slowdown_and_error_meet_every_operation() {
    for (script, status, code, kind) in [
        ("slowdown=1,retry_after=7", 503, "SlowDown", FaultKind::Slowdown),
        ("error=1", 500, "InternalError", FaultKind::Error),
    ] {
        let (set, script) = (set(), format!("{script},per_key_max=1"));
        let bucket = serve(&set, &script);
        let mut client = Client::connect(&bucket);
        let object = format!("/bucket/{}", set.key(0));
        for (method, target) in [("GET", object.as_str()), ("GET", "/bucket?list-type=2"), ("HEAD", object.as_str())] {
            let reply = client.request(method, target, &[]).unwrap();
            assert_eq!(reply.status, status);
            assert_eq!(reply.header("retry-after"), (status == 503).then_some("7"));
            if method == "GET" {
                assert_eq!(elements(reply.text(), "Code"), [code]);
            }
            assert_eq!(client.request(method, target, &[]).unwrap().status, 200, "the second attempt passes");
        }
        assert_eq!(client.put("/bucket/new", b"x", &[]).status, status);
        assert_eq!(client.put("/bucket/new", b"x", &[]).status, 200);
        let counters = bucket.counters();
        assert_eq!((counters.injected(kind), counters.faults_total()), (4, 4));
        assert_eq!(counters.connections_opened, 1, "these faults keep the connection");
    }
}

#[test]
fn slowdown_by_rate_admits_the_rate() {
    let set = DataSet::digits(10, 1);
    let bucket = serve(&set, "slowdown_rps=50,retry_after=1");
    let mut client = Client::connect(&bucket);
    let start = Instant::now();
    let statuses: Vec<u16> = (0..300).map(|i| client.get(&set.key(i % 10)).status).collect();
    let admitted = statuses.iter().filter(|&&status| status == 200).count();
    let refused = statuses.iter().filter(|&&status| status == 503).count();
    assert_eq!(admitted + refused, 300);
    // The burst of a tenth of a second, and what the time that passed allows.
    let most = 5.0 + 2.0 + start.elapsed().as_secs_f64() * 50.0;
    assert!(admitted >= 5 && admitted as f64 <= most, "{admitted} admitted, at most {most}");
    assert_eq!(bucket.counters().injected(FaultKind::SlowdownRate), refused as u64);
}

#[test]
fn reset_and_truncation_cut_the_body_at_their_byte() {
    let set = set();
    for (script, kind, at) in [
        ("reset=1@3000", FaultKind::Reset, 3000),
        ("truncate=1@3000", FaultKind::Truncate, 3000),
        ("truncate=1@0", FaultKind::Truncate, 0),
        ("truncate=1@1GiB", FaultKind::Truncate, set.size(0) as usize - 1),
    ] {
        let bucket = serve(&set, script);
        let reply = outcome(&bucket, &set.key(0)).unwrap();
        assert_eq!(reply.header("content-length").unwrap(), set.size(0).to_string());
        let whole = set.content(0);
        if kind == FaultKind::Reset {
            assert_eq!(reply.broken, Some(ErrorKind::ConnectionReset));
            assert!(reply.body.len() <= at && reply.body == whole[..reply.body.len()]);
        } else {
            assert_eq!(reply.broken, Some(ErrorKind::UnexpectedEof), "{script}");
            assert!(reply.body == whole[..at], "{script}: {}", reply.body.len());
        }
        assert_eq!((bucket.counters().injected(kind), bucket.counters().faults_total()), (1, 1));
    }
}

#[test]
fn a_cut_range_is_cut_in_the_range() {
    let set = set();
    let bucket = serve(&set, "truncate=1@100");
    let path = format!("/bucket/{}", set.key(1));
    let reply = Client::connect(&bucket).request("GET", &path, &[("range", "bytes=500-1499")]).unwrap();
    assert_eq!((reply.status, reply.header("content-length")), (206, Some("1000")));
    assert!(reply.body == set.content_range(1, 500..600));
}

#[test]
fn stalls_end_or_do_not() {
    let set = set();
    let bucket = serve(&set, "stall=1@1000/300ms,per_key_max=1");
    let mut client = Client::connect(&bucket);
    let start = Instant::now();
    let reply = client.get(&set.key(0));
    assert!(start.elapsed() >= Duration::from_millis(300));
    set.verify(&set.key(0), &reply.body).unwrap();
    set.verify(&set.key(0), &client.get(&set.key(0)).body).unwrap();
    assert_eq!((bucket.counters().injected(FaultKind::Stall), bucket.counters().connections_opened), (1, 1));

    let bucket = serve(&set, "stall=1@1000");
    let mut client = Client::connect(&bucket);
    client.ask("GET", &format!("/bucket/{}", set.key(0)), &[]);
    // A busy machine may take long to answer; what comes before the stall comes at once then.
    assert_eq!(client.reply(true).unwrap().status, 200);
    client.set_patience(Duration::from_secs(1));
    let (body, ended) = client.rest();
    assert!(matches!(ended, Some(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{ended:?}");
    assert!(body == set.content_range(0, 0..1000));
    assert_eq!(bucket.counters().injected(FaultKind::Stall), 1);
}

#[test]
fn lengths_lie_in_both_directions() {
    let set = set();
    let (key, size) = (set.key(0), set.size(0));
    let bucket = serve(&set, "length_long=1@128");
    let reply = outcome(&bucket, &key).unwrap();
    assert_eq!(reply.header("content-length").unwrap(), (size + 128).to_string());
    assert_eq!(reply.broken, Some(ErrorKind::UnexpectedEof));
    set.verify(&key, &reply.body).unwrap();

    let bucket = serve(&set, "length_short=1@128");
    let mut client = Client::connect(&bucket);
    let reply = client.get(&key);
    assert_eq!((reply.body.len() as u64, reply.broken), (size - 128, None));
    let (surplus, ended) = client.rest();
    assert_eq!((surplus, ended), (set.content_range(0, size - 128..size), None));
    assert_eq!(bucket.counters().injected(FaultKind::LengthShort), 1);
}

#[test]
fn tags_lie_and_objects_change() {
    let set = set();
    let key = set.key(0);
    let bucket = serve(&set, "wrong_etag=1,per_key_max=1");
    let reply = outcome(&bucket, &key).unwrap();
    assert_ne!(reply.header("etag"), Some(set.etag(0).as_str()));
    set.verify(&key, &reply.body).unwrap();
    assert_eq!(outcome(&bucket, &key).unwrap().header("etag"), Some(set.etag(0).as_str()));
    assert_eq!(bucket.counters().injected(FaultKind::WrongEtag), 1);

    let bucket = serve(&set, "changed=1,per_key_max=1");
    let reply = outcome(&bucket, &key).unwrap();
    assert_ne!(reply.header("etag"), Some(set.etag(0).as_str()));
    assert_eq!(reply.body.len() as u64, set.size(0));
    assert!(set.verify(&key, &reply.body).is_err());
    zune_jpeg::JpegDecoder::new(std::io::Cursor::new(&reply.body)).decode().unwrap();
    set.verify(&key, &outcome(&bucket, &key).unwrap().body).unwrap();
    assert_eq!((bucket.counters().injected(FaultKind::Changed), bucket.counters().faults_total()), (1, 1));
}

#[test]
fn changed_keys_stay_changed_and_the_listing_stays_old() {
    let folder = tempfile::tempdir().unwrap();
    let set = DataSet::digits(20, 3);
    set.write_to(folder.path(), |_| {}).unwrap();
    for source in [Source::Generated(set.clone()), Source::Directory(folder.path().to_path_buf())] {
        let script: Script = "changed_keys=training/1/*".parse().unwrap();
        let bucket = Bucket::start(BucketConfig { source, script, ..BucketConfig::default() }).unwrap();
        let mut client = Client::connect(&bucket);
        let listing = client.request("GET", "/bucket?list-type=2", &[]).unwrap();
        let listed = elements(listing.text(), "ETag");
        for (index, listed) in (0..).zip(&listed) {
            let key = set.key(index);
            let replies = [client.get(&key), client.get(&key)];
            let is_changed = key.starts_with("training/1/");
            assert_eq!(replies[0].header("etag") != Some(listed.as_str()), is_changed, "{key}");
            assert_eq!(set.verify(&key, &replies[0].body).is_err(), is_changed, "{key}");
            assert_eq!(replies[0].body, replies[1].body, "a changed object is one object");
            assert_eq!(replies[0].header("etag"), replies[1].header("etag"));
            let only_old = [("if-match", listed.as_str())];
            let reply = client.request("GET", &format!("/bucket/{key}"), &only_old).unwrap();
            assert_eq!(reply.status, if is_changed { 412 } else { 200 });
        }
        assert_eq!(bucket.counters().injected(FaultKind::ChangedKey), 6);
    }
}

#[test]
fn missing_keys_are_listed_and_absent() {
    let set = set();
    let bucket = serve(&set, &format!("missing_keys={}", set.key(3)));
    let mut client = Client::connect(&bucket);
    let listing = client.request("GET", "/bucket?list-type=2", &[]).unwrap();
    assert!(elements(listing.text(), "Key").contains(&set.key(3)));
    assert_eq!(client.get(&set.key(3)).status, 404);
    assert_eq!(client.get(&set.key(2)).status, 200);
    assert_eq!(bucket.counters().injected(FaultKind::MissingKey), 1);
}

#[test]
fn heads_can_be_garbage() {
    let set = set();
    for (script, kind) in [
        ("garbage=1", FaultKind::Garbage),
        ("overlong_head=1", FaultKind::OverlongHead),
        ("bad_status=1", FaultKind::BadStatus),
    ] {
        let bucket = serve(&set, script);
        assert!(outcome(&bucket, &set.key(0)).is_err(), "{script}");
        assert_eq!(bucket.counters().injected(kind), 1, "{script}");
        let mut client = Client::connect(&bucket);
        client.ask("GET", &format!("/bucket/{}", set.key(0)), &[]);
        let (bytes, ended) = client.rest();
        assert_eq!(ended, None, "{script} ends with FIN");
        match kind {
            FaultKind::Garbage => assert!(!bytes.starts_with(b"HTTP/") && bytes.len() >= 64),
            FaultKind::OverlongHead => {
                assert!(bytes.len() == 1 << 20 && !bytes.windows(4).any(|four| four == b"\r\n\r\n"));
            }
            _ => assert!(bytes.starts_with(b"HTTP/1.1 2O0 ") && bytes.ends_with(&set.content(0))),
        }
    }
}

#[test]
fn earlier_pipelined_answers_survive_a_fault_below_http() {
    let set = DataSet::digits(12, 1);
    for kind in ["garbage", "truncate", "reset"] {
        let bucket = serve(&set, &format!("{kind}=1,only={}", set.key(9)));
        let mut client = Client::connect(&bucket);
        let all: String = (0..12).map(|i| head("GET", &format!("/bucket/{}", set.key(i)), &[])).collect();
        client.send(all.as_bytes());
        for index in 0..9 {
            set.verify(&set.key(index), &client.reply(false).unwrap().body).unwrap();
        }
        let broken = client.reply(false);
        assert!(broken.is_err() || broken.unwrap().broken.is_some(), "{kind}");
        assert_eq!(bucket.counters().get_requests, 10, "requests after the fault are never looked at");
    }
}

#[test]
fn connections_end_after_their_requests() {
    let set = DataSet::digits(12, 1);
    for (script, says, kind) in
        [("close_after=3", Some("close"), FaultKind::CloseAfter), ("drop_after=3", None, FaultKind::DropAfter)]
    {
        let bucket = serve(&set, script);
        let mut client = Client::connect(&bucket);
        for index in 0..3 {
            let reply = client.get(&set.key(index));
            set.verify(&set.key(index), &reply.body).unwrap();
            assert_eq!(reply.header("connection"), if index == 2 { says } else { None }, "{script}");
        }
        assert_eq!(client.rest(), (Vec::new(), None), "{script}");
        assert_eq!(bucket.counters().injected(kind), 1);
    }
}

#[test]
fn chunked_bodies_carry_no_length() {
    let set = DataSet::tokens(3, 1, 700_000);
    let bucket = serve(&set, "chunked=1,per_key_max=0");
    let mut client = Client::connect(&bucket);
    for index in 0..3 {
        let reply = client.get(&set.key(index));
        assert_eq!((reply.header("transfer-encoding"), reply.header("content-length")), (Some("chunked"), None));
        set.verify(&set.key(index), &reply.body).unwrap();
    }
    assert_eq!(bucket.counters().injected(FaultKind::Chunked), 3, "not bounded per key");
}

#[test]
fn zero_length_bodies_meet_no_body_fault() {
    let set = DataSet::tokens(1, 1, 0);
    for script in ["reset=1", "truncate=1", "stall=1", "length_long=1", "chunked=1"] {
        let bucket = serve(&set, script);
        let reply = outcome(&bucket, &set.key(0)).unwrap();
        assert_eq!((reply.status, reply.body.len(), reply.broken), (200, 0, None), "{script}");
        assert_eq!(bucket.counters().faults_total(), 0, "{script}");
    }
}

#[test]
fn bandwidth_is_paced() {
    let set = DataSet::tokens(4, 1, 1 << 20);
    for (script, connections) in [("bandwidth=4MiB", 2), ("bandwidth_total=8MiB", 2)] {
        let bucket = serve(&set, script);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for connection in 0..connections {
                let (bucket, set) = (&bucket, &set);
                scope.spawn(move || {
                    let mut client = Client::connect(bucket);
                    for index in [connection, connection + 2] {
                        set.verify(&set.key(index), &client.get(&set.key(index)).body).unwrap();
                    }
                });
            }
        });
        // Two mebibytes on each of two connections; a last frame and the burst go unpaced.
        assert!(start.elapsed() >= Duration::from_millis(450), "{script}: {:?}", start.elapsed());
    }
}

/// What one client that retries sees, as a list of outcomes by key.
fn history(seed: u64, connections: usize) -> (Vec<Vec<String>>, Counters) {
    let set = DataSet::digits(60, 1);
    let script = format!(
        "seed={seed},reset=0.1@100,truncate=0.1,slowdown=0.1,error=0.1,length_long=0.05,garbage=0.1,changed=0.1,\
         wrong_etag=0.1,per_key_max=4"
    );
    let bucket = serve(&set, &script);
    let mut histories = vec![Vec::new(); 60];
    std::thread::scope(|scope| {
        for (part, histories) in histories.chunks_mut(60 / connections).enumerate() {
            let (bucket, set) = (&bucket, &set);
            scope.spawn(move || {
                for (place, history) in histories.iter_mut().enumerate() {
                    let index = (part * (60 / connections) + place) as u64;
                    let key = set.key(index);
                    for _ in 0..8 {
                        history.push(match outcome(bucket, &key) {
                            // How much arrives before a reset is up to the kernel.
                            Ok(reply) if reply.broken == Some(ErrorKind::ConnectionReset) => "reset".to_owned(),
                            Ok(reply) => format!(
                                "{} {:?} {:?} {}",
                                reply.status,
                                reply.broken,
                                reply.header("etag"),
                                xxhash_rust::xxh3::xxh3_64(&reply.body)
                            ),
                            Err(_) => "garbage".to_owned(),
                        });
                    }
                    let hash = xxhash_rust::xxh3::xxh3_64(&set.content(index));
                    let served = format!("200 None {:?} {hash}", Some(set.etag(index)));
                    let served = history.iter().filter(|outcome| **outcome == served).count();
                    assert!(served >= 4, "no more than four of eight attempts meet a fault: {history:?}");
                }
            });
        }
    });
    (histories, bucket.counters())
}

#[test]
fn faults_repeat_by_seed_whatever_the_interleaving() {
    let (alone, counted) = history(5, 1);
    let (together, counted_together) = history(5, 4);
    assert_eq!(alone, together);
    assert_eq!(counted.faults, counted_together.faults);
    assert_ne!(alone, history(6, 4).0);
    assert!(counted.faults.len() >= 7, "{:?}", counted.faults);
    let seen = |what: &str| alone.iter().flatten().filter(|outcome| outcome.starts_with(what)).count() as u64;
    assert_eq!(seen("503"), counted.injected(FaultKind::Slowdown));
    assert_eq!(seen("500"), counted.injected(FaultKind::Error));
    assert_eq!(seen("garbage"), counted.injected(FaultKind::Garbage));
    assert_eq!(seen("reset"), counted.injected(FaultKind::Reset));
}

#[test]
fn scripts_change_while_running() {
    let set = set();
    let bucket = serve(&set, "");
    let mut client = Client::connect(&bucket);
    assert_eq!(client.get(&set.key(0)).status, 200);
    let script = Script { faults: vec![Fault::new(FaultKind::Error, 1.0)], ..Script::default() };
    bucket.set_script(script.clone()).unwrap();
    assert_eq!(client.get(&set.key(0)).status, 500);
    assert!(bucket.set_script(Script { faults: vec![Fault::new(FaultKind::Error, 2.0)], ..script }).is_err());
    assert_eq!(client.get(&set.key(0)).status, 500, "a refused script changes nothing");
    bucket.set_script(Script::default()).unwrap();
    assert_eq!(client.get(&set.key(0)).status, 200);
    assert_eq!(bucket.counters().connections_opened, 1);
}
