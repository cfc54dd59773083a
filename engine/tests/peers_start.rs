//! Ranks that keep blocks for each other, at their start: with empty disks, and where their settings keep them apart for good.

use crate::common::eventually;
use crate::common::said::Said;
use crate::common::secure::Authority;
use crate::peers::{Job, SECRET, ask, liar, request, resident};
use fuelrail::{ByteSize, Loader, LoaderBuilder};
use fuelrail_bucket::DataSet;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

/// Each asks the other for the blocks that the other keeps, and, since it may have them on disk, for those that it keeps itself.
#[test]
fn ranks_with_empty_disks_do_not_wait_for_each_other() {
    const BLOCKS: u64 = 600;
    let run = || {
        let job = Job::new(DataSet::tokens(BLOCKS, 3, 10_000), 2, 100);
        let ended = Barrier::new(2);
        let rank = |rank: u32| {
            let disk = tempfile::tempdir().unwrap();
            let builder = job.rank(rank).epochs(1).cache_limit(ByteSize(0));
            let loader = resident(builder.spill_dirs([disk.path()]).spill_floor(ByteSize(0)));
            ended.wait();
            loader.stats().peers.unwrap().misses
        };
        let misses = thread::scope(|scope| {
            let rank = &rank;
            [0, 1].map(|at| scope.spawn(move || rank(at))).map(|rank| rank.join().unwrap())
        });
        (misses, job.bucket.counters().get_requests)
    };
    // Where the machine is busy, a rank may seem slow; not in every run.
    let had: Vec<_> = (0..10).map(|_| run()).take_while(|had| *had != ([0, 0], BLOCKS)).collect();
    assert!(
        had.len() < 10,
        "blocks that did not come from the other rank in time, and requests to the bucket: {had:?}"
    );
}

fn over_tls(builder: LoaderBuilder, authority: &Authority, own: &(PathBuf, PathBuf)) -> LoaderBuilder {
    builder.peer_ca_file(authority.file()).peer_cert_file(&own.0).peer_key_file(&own.1)
}

fn refused(loader: &Loader) -> u64 {
    loader.stats().peers.map_or(0, |peers| peers.refused)
}

/// What a rank answers at every request, over TLS or not, and what is told of it.
type Answer = (&'static [u8], bool, &'static [&'static str]);

#[test]
fn a_rank_that_can_never_work_is_told_of_once_with_what_to_compare() {
    let answers: [Answer; 5] = [
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", false, &["answers 401", "peer_secret_file"]),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", false, &["answers 403", "peer_secret_file"]),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", false, &["answers 404", "data set"]),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", false, &["not HTTP", "peer_ca_file"]),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", true, &["does not speak TLS", "peer_ca_file"]),
    ];
    let authority = Authority::new("a job");
    let own = authority.certify("rank", "127.0.0.1");
    for (answer, tls, told) in answers {
        let mut job = Job::new(DataSet::tokens(40, 3, 1_000), 2, 200);
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        job.addresses[1] = liar(move |socket| {
            // What comes over TLS has no end that it could know.
            let heard = if tls { socket.read(&mut [0; 4096])? } else { request(socket)?.len() };
            if heard == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            count.fetch_add(1, Ordering::SeqCst);
            socket.write_all(answer)?;
            if answer.starts_with(b"HTTP") && !tls { Ok(()) } else { Err(ErrorKind::Other.into()) }
        });
        let said = Said::default();
        let builder = said.by(job.rank(0));
        let loader = resident(if tls { over_tls(builder, &authority, &own) } else { builder });
        let address = job.addresses[1].to_string();
        let line = [&["peers: rank 1", address.as_str()][..], told].concat();
        said.says(&line);
        // It is asked again, and not told of again.
        let before = asked.load(Ordering::SeqCst);
        eventually("it is asked again", || asked.load(Ordering::SeqCst) > before + 1);
        assert_eq!(said.count(&["peers: rank"]), 1, "{:?}", said.lines());
        assert_eq!(loader.stats().peers.unwrap().hits, 0);
    }
}

/// It may come back: a launcher starts ranks one by one, and machines restart.
#[test]
fn a_rank_that_hangs_up_is_not_told_of() {
    let mut job = Job::new(DataSet::tokens(40, 3, 1_000), 2, 200);
    let checks = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&checks);
    job.addresses[1] = liar(move |socket| {
        let is_check = request(socket)?.contains("only-if-cached");
        count.fetch_add(u64::from(is_check), Ordering::SeqCst);
        Err(ErrorKind::Other.into())
    });
    let said = Said::default();
    let _loader = resident(said.by(job.rank(0)));
    eventually("it is asked some times", || checks.load(Ordering::SeqCst) > 2);
    assert_eq!(said.count(&["peers: rank"]), 0, "{:?}", said.lines());
}

#[test]
fn refused_requests_are_counted_and_told_of_once() {
    let mut job = Job::new(DataSet::tokens(40, 3, 1_000), 2, 200);
    job.addresses[1] = liar(|_| Err(ErrorKind::Other.into()));
    let said = Said::default();
    let loader = resident(said.by(job.rank(0)));
    for bearer in ["", "Authorization: Bearer another secret\r\n"] {
        for _ in 0..20 {
            assert!(ask(job.addresses[0], "/v1/x/0", bearer).0.starts_with("HTTP/1.1 401"));
        }
    }
    let known = format!("Authorization: Bearer {SECRET}\r\n");
    assert!(ask(job.addresses[0], "/v1/x/0", &known).0.starts_with("HTTP/1.1 404"), "not refused for who it is");
    let counted = "fuelrail_peer_refused_total{rank=\"0\"} 40\n";
    eventually("they are counted", || loader.stats().prometheus(0).contains(counted));
    assert_eq!(said.count(&["peers: a request of 127.0.0.1 was refused", "peer_secret_file"]), 1, "{:?}", said.lines());
    assert_eq!(said.count(&["refused"]), 1, "{:?}", said.lines());
}

#[test]
fn certificates_of_another_authority_are_told_of_on_both_sides() {
    let job = Job::new(DataSet::tokens(40, 3, 1_000), 2, 200);
    let [authority, other] = ["a job", "another job"].map(Authority::new);
    let (own, strange) = (authority.certify("rank", "127.0.0.1"), other.certify("rank", "127.0.0.1"));
    let [served, refusing] = [Said::default(), Said::default()];
    let (loader, stranger) = thread::scope(|scope| {
        let one = scope.spawn(|| resident(over_tls(served.by(job.rank(0)), &authority, &own)));
        // It trusts the job's authority, which did not issue its own certificate.
        let other = scope.spawn(|| resident(over_tls(refusing.by(job.rank(1)), &authority, &strange)));
        (one.join().unwrap(), other.join().unwrap())
    });
    refusing.says(&["peers: rank 0", "TLS alert", "peer_cert_file"]);
    served.says(&["peers: rank 1", "unknown authority", "peer_ca_file"]);
    served.says(&["peers: a request of 127.0.0.1 was refused", "peer_ca_file"]);
    assert_eq!(stranger.stats().peers.unwrap().hits, 0);
    eventually("it is counted", || refused(&loader) > 1);
    assert_eq!(served.count(&["was refused"]), 1, "{:?}", served.lines());
}

/// Ranks connect to see whether others are there.
#[test]
fn who_speaks_no_tls_is_refused_and_who_only_connects_is_not() {
    let mut job = Job::new(DataSet::tokens(40, 3, 1_000), 2, 200);
    job.addresses[1] = liar(|_| Err(ErrorKind::Other.into()));
    let (authority, said) = (Authority::new("a job"), Said::default());
    let own = authority.certify("rank", "127.0.0.1");
    let loader = resident(over_tls(said.by(job.rank(0)), &authority, &own));
    (0..3).for_each(|_| drop(TcpStream::connect(job.addresses[0]).unwrap()));
    let mut plain = TcpStream::connect(job.addresses[0]).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    said.says(&["peers: a request of 127.0.0.1 was refused", "peer_ca_file"]);
    eventually("it is counted", || refused(&loader) == 1);
}
