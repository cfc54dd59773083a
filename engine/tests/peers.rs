//! Ranks that keep blocks for each other: what they read of the bucket together, what a rank that fails costs the others, and who is served.

use crate::common::ports::free_port;
use crate::common::secure::Authority;
use crate::common::{Delivered, PATIENCE, bucket, listing, loader, plain_run, planned, take};
use fuelrail::{ByteSize, Kind, Loader, LoaderBuilder, Stats};
use fuelrail_bucket::{Bucket, DataSet};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::run::RunConfig;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const EPOCHS: u64 = 3;
pub(crate) const BATCH_SIZE: u32 = 4;
pub(crate) const SECRET: &str = "0123456789abcdef";

/// A job of some ranks on this machine.
pub(crate) struct Job {
    set: DataSet,
    pub(crate) bucket: Bucket,
    pub(crate) addresses: Vec<SocketAddr>,
    dir: tempfile::TempDir,
    order: OrderName,
    cache_bytes: u64,
}

impl Job {
    /// Whose caches together hold `percent` of the set.
    pub(crate) fn new(set: DataSet, ranks: usize, percent: u64) -> Job {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), format!("{SECRET}\n")).unwrap();
        let bucket = bucket(&set, "latency=fixed:2ms");
        let cache_bytes = set.total_bytes() * percent / 100 / ranks as u64;
        Job { set, bucket, addresses: free_ports(ranks), dir, order: OrderName::Global, cache_bytes }
    }

    pub(crate) fn rank(&self, rank: u32) -> LoaderBuilder {
        loader(&self.bucket)
            .listing(listing(&self.set))
            .batch_size(BATCH_SIZE)
            .epochs(EPOCHS)
            .seed(7)
            .order(self.order)
            .rank(rank)
            .world(self.addresses.len() as u32)
            .cache_limit(ByteSize(self.cache_bytes))
            .peers(self.addresses.iter().map(ToString::to_string))
            .peer_secret_file(self.dir.path().join("secret"))
    }

    /// What a rank delivers, whatever fails.
    fn planned(&self, rank: u32) -> Vec<(u64, u64)> {
        self.planned_for(rank, EPOCHS)
    }

    fn planned_for(&self, rank: u32, epochs: u64) -> Vec<(u64, u64)> {
        let world = self.addresses.len() as u32;
        planned(RunConfig { world, rank, order: self.order, ..plain_run(self.set.len(), 7, BATCH_SIZE, epochs) })
    }

    /// Runs all ranks side by side, in a run of so many epochs, each through the first ones and until the others are there, too. Checks what
    /// they delivered.
    fn run(&self, epochs: u64) -> (Vec<Stats>, u64) {
        let ranks = self.addresses.len() as u32;
        let ended = Barrier::new(ranks as usize);
        let gets = AtomicU64::new(0);
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..ranks)
                .map(|rank| {
                    let (ended, gets) = (&ended, &gets);
                    scope.spawn(move || {
                        let mut loader = self.rank(rank).epochs(epochs).build().unwrap();
                        let (mut delivered, planned) = (Delivered::default(), self.planned(rank));
                        while delivered.order.len() < planned.len() {
                            take(&loader.next_batch().unwrap().unwrap(), &loader, &self.set, &mut delivered);
                        }
                        ended.wait();
                        // Look-ahead goes on: what it has cost is in the counters that are read later.
                        gets.fetch_max(self.bucket.counters().get_requests, Ordering::SeqCst);
                        ended.wait();
                        let stats = loader.stats();
                        ended.wait();
                        assert!(delivered.order == planned, "rank {rank} delivers what is planned");
                        stats
                    })
                })
                .collect();
            let stats = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            (stats, gets.load(Ordering::SeqCst))
        })
    }
}

pub(crate) fn free_ports(count: usize) -> Vec<SocketAddr> {
    (0..count).map(|_| free_port(Ipv4Addr::LOCALHOST)).collect()
}

fn sum(stats: &[Stats], of: impl Fn(&fuelrail::PeerFacts) -> u64) -> u64 {
    stats.iter().filter_map(|stats| stats.peers.as_ref()).map(of).sum()
}

#[test]
fn what_fits_into_all_caches_together_is_read_from_the_bucket_once() {
    for (order, ranks) in [(OrderName::Global, 3), (OrderName::Sticky, 2), (OrderName::Global, 2)] {
        let run = || {
            let job = Job { order, ..Job::new(DataSet::tokens(600, 3, 10_000), ranks, 160) };
            // A run that goes on: what is used for the last time is dropped, and look-ahead is longer than these epochs.
            let (stats, gets) = job.run(1_000);
            // Where the machine is so busy that a rank seems slow, that is a request each.
            let misses = sum(&stats, |peers| peers.misses);
            assert!((600..=600 + misses).contains(&gets), "{order:?}, {ranks} ranks, {gets} requests: {stats:#?}");
            let sent = sum(&stats, |peers| peers.hits);
            assert_eq!(sum(&stats, |peers| peers.hit_bytes), sent * 10_000);
            let own = stats.iter().map(|stats| stats.asks).sum::<u64>() - sum(&stats, |peers| peers.asks);
            let share = (sent + misses) as f64 / own as f64;
            assert!(order != OrderName::Sticky || share < 0.15, "most come back to their rank: {share}");
            [sent, misses]
        };
        // A third of what three epochs deliver; a share of what was asked for would fall as ranks look ahead of a busy one. Where the
        // machine is so busy, a rank that has samples may seem slow, too; not in every run.
        let few = |[sent, misses]: &[u64; 2]| order != OrderName::Sticky && (sent <= misses || *sent <= 600);
        let had: Vec<_> = (0..10).map(|_| run()).take_while(few).collect();
        assert!(had.len() < 10, "{order:?}, {ranks} ranks: samples of others that had them, and had not: {had:?}");
    }
}

#[test]
fn what_the_bucket_sends_later_is_what_the_caches_cannot_hold() {
    let set = DataSet::tokens(3_000, 3, 4096);
    let job = Job::new(set, 2, 60);
    let (stats, gets) = job.run(EPOCHS);
    let (wanted, misses) = (3_000.0 * (EPOCHS - 1) as f64, sum(&stats, |peers| peers.misses) as f64);
    let later = (gets - 3_000) as f64 / wanted;
    // Batches under way are memory across the edge of an epoch, too.
    let most = 0.41 + misses / wanted;
    assert!((0.2..=most).contains(&later), "{later} of an epoch came from the bucket, not {most}: {stats:#?}");
}

#[test]
fn long_samples_are_had_block_by_block() {
    let set = DataSet::tokens(60, 3, 300_000);
    let job = Job::new(set, 2, 170);
    let run = || -> [u64; 2] {
        let ended = Barrier::new(2);
        let rank = |rank: u32| {
            let mut loader = job.rank(rank).block_size("64KiB".parse().unwrap()).shards(2).build().unwrap();
            let mut delivered = Delivered::default();
            while let Some(batch) = loader.next_batch() {
                take(&batch.unwrap(), &loader, &job.set, &mut delivered);
            }
            ended.wait();
            assert_eq!(delivered.order, job.planned(rank));
            loader.stats().peers.unwrap().hits
        };
        thread::scope(|scope| [0, 1].map(|at| scope.spawn(move || rank(at))).map(|rank| rank.join().unwrap()))
    };
    // Where the machine is busy, a rank may be asked too late to be worth waiting for; not in every run.
    let hits: Vec<_> = (0..10).map(|_| run()).take_while(|hits| hits.iter().any(|hits| *hits <= 100)).collect();
    assert!(hits.len() < 10, "of what three epochs ask of the other rank, 225 blocks, it had {hits:?}");
}

#[test]
fn the_disks_of_all_ranks_hold_the_set_together() {
    let set = DataSet::tokens(200, 3, 100_000);
    let job = Job { cache_bytes: 0, ..Job::new(set, 2, 100) };
    let spill: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let run = || -> Vec<Stats> {
        let ended = Barrier::new(2);
        let rank = |rank: u32| {
            let builder = job.rank(rank).epochs(10).spill_dirs([spill[rank as usize].path()]).spill_floor(ByteSize(0));
            let mut loader = builder.build().unwrap();
            let mut delivered = Delivered::default();
            while let Some(batch) = loader.next_batch() {
                take(&batch.unwrap(), &loader, &job.set, &mut delivered);
            }
            ended.wait();
            assert_eq!(delivered.order, job.planned_for(rank, 10));
            loader.stats()
        };
        thread::scope(|scope| [0, 1].map(|at| scope.spawn(move || rank(at))).map(|rank| rank.join().unwrap()).into())
    };
    // A block is read again that is wanted before it is written, which look-ahead over some epochs does; where the disk is busy, often.
    let holds = (0..10).any(|_| {
        let before = job.bucket.counters().get_requests;
        let hits = sum(&run(), |peers| peers.hits);
        job.bucket.counters().get_requests - before < 200 * 10 / 2 && hits > 100
    });
    assert!(holds, "every run asks the bucket for more than half of the blocks");
}

#[test]
fn a_rank_that_ends_early_costs_the_others_requests_and_nothing_else() {
    let job = Job::new(DataSet::tokens(400, 3, 10_000), 3, 160);
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for rank in 0..3 {
            let (job, barrier) = (&job, &barrier);
            scope.spawn(move || {
                let mut loader = job.rank(rank).build().unwrap();
                let mut delivered = Delivered::default();
                while let Some(batch) = loader.next_batch() {
                    take(&batch.unwrap(), &loader, &job.set, &mut delivered);
                    if rank == 1 && delivered.order.len() > 100 {
                        return;
                    }
                }
                assert_eq!(delivered.order, job.planned(rank));
                barrier.wait();
            });
        }
    });
    let gets = job.bucket.counters().get_requests;
    assert!((400..1_200).contains(&gets), "{gets}");
}

/// Takes connections at a port of all loopback addresses, and does to each whatever `act` does.
pub(crate) fn liar(act: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    rustix::net::listen(&listener, 4096).unwrap();
    let address = (Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()).into();
    let act = std::sync::Arc::new(act);
    thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let (act, to) = (std::sync::Arc::clone(&act), socket.local_addr().unwrap());
            thread::spawn(move || while to.ip().is_loopback() && act(&mut socket).is_ok() {});
        }
    });
    address
}

/// Reads one request.
pub(crate) fn request(socket: &mut TcpStream) -> std::io::Result<String> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte)?;
        text.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What a liar does with each request.
type Act = fn(&mut TcpStream) -> std::io::Result<()>;

#[test]
fn a_rank_that_lies_is_slow_or_says_nonsense_costs_a_request_to_the_bucket() {
    let answers: [(&str, Act); 9] = [
        ("silence", |socket| request(socket).map(|_| thread::sleep(Duration::from_secs(5)))),
        ("hangs up", |_| Err(ErrorKind::Other.into())),
        ("noise", |socket| request(socket).and_then(|_| socket.write_all(&[0xFF; 64]))),
        ("refuses", |socket| {
            request(socket)?;
            socket.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        }),
        ("redirects", |socket| {
            request(socket)?;
            socket.write_all(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        }),
        ("other bytes with the checksum of others", |socket| {
            request(socket)?;
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\nx-amz-checksum-crc32c: AAAAAA==\r\n\r\n";
            socket.write_all(&[&head[..], &[7; 10_000]].concat())
        }),
        ("no checksum", |socket| {
            request(socket)?;
            socket.write_all(&[&b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n"[..], &[7; 10_000]].concat())
        }),
        ("another length", |socket| {
            request(socket)?;
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\nx-amz-checksum-crc32c: AAAAAA==\r\n\r\n";
            socket.write_all(&[&head[..], &[7; 9_999]].concat())
        }),
        ("half of it", |socket| {
            request(socket)?;
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\nx-amz-checksum-crc32c: AAAAAA==\r\n\r\n";
            socket.write_all(&[&head[..], &[7; 5_000]].concat())?;
            Err(ErrorKind::Other.into())
        }),
    ];
    for (what, act) in answers {
        let mut job = Job::new(DataSet::tokens(200, 3, 10_000), 2, 200);
        job.addresses[1] = liar(act);
        let mut loader = job.rank(0).build().unwrap();
        let mut delivered = Delivered::default();
        while let Some(batch) = loader.next_batch() {
            take(&batch.unwrap(), &loader, &job.set, &mut delivered);
        }
        assert_eq!(delivered.order, job.planned(0), "{what}");
        let peers = loader.stats().peers.unwrap();
        assert!(peers.hits == 0 && peers.misses > 0, "{what}: {peers:?}");
        let wanted = job.planned(0).len() as u64;
        assert!(job.bucket.counters().get_requests <= wanted, "{what}: each sample at most once");
    }
}

/// A rank that has read its epochs and stays, so that it is asked.
pub(crate) fn resident(rank: LoaderBuilder) -> Loader {
    let mut loader = rank.build().unwrap();
    while let Some(batch) = loader.next_batch() {
        batch.unwrap();
    }
    loader
}

/// The path under which this rank has a sample, as a rank asks for it.
pub(crate) fn path_asked(job: &Job) -> String {
    let (tell, path) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(tell);
    let spy = liar(move |socket| {
        let asked = request(socket)?;
        let _ = told.lock().unwrap().send(asked.split(' ').nth(1).unwrap().to_owned());
        Err(ErrorKind::Other.into())
    });
    let mut addresses = free_ports(2);
    addresses[0] = spy;
    let mut loader = job.rank(1).peers(addresses.iter().map(ToString::to_string)).build().unwrap();
    while let Some(batch) = loader.next_batch() {
        batch.unwrap();
    }
    path.recv_timeout(PATIENCE).unwrap()
}

/// Status line and body of the answer to a request with these header lines.
pub(crate) fn ask(address: SocketAddr, path: &str, lines: &str) -> (String, Vec<u8>) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return (String::new(), answer) };
    (String::from_utf8_lossy(&answer[..end]).into_owned(), answer[end + 4..].to_vec())
}

#[test]
fn only_requests_with_the_secret_read_a_byte_or_learn_a_path() {
    let job = Job::new(DataSet::tokens(40, 3, 10_000), 2, 200);
    let (path, loader) = (path_asked(&job), resident(job.rank(0)));
    let address = job.addresses[0];
    let sample: u64 = path.split(['/', '?']).nth(3).unwrap().parse().unwrap();
    let known = format!("Authorization: Bearer {SECRET}\r\n");
    let of = |n: u64| path.replace(&format!("/{sample}?"), &format!("/{n}?"));
    let (head, body) = ask(address, &path, &known);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(body, job.set.content(sample));
    let (head, body) = ask(address, &path, &format!("{known}Range: bytes=10-19\r\n"));
    assert!(head.starts_with("HTTP/1.1 206") && head.contains("bytes 10-19/10000"), "{head}");
    assert_eq!(body, job.set.content_range(sample, 10..20));
    // What the other rank keeps passes through, however often.
    let passes = |_| (0..40).filter(|n| ask(address, &of(*n), &known).0.contains(";desc=pass")).count();
    let [_, second] = [0, 1].map(passes);
    assert!((5..35).contains(&second), "{second} of 40");
    let (longer, shorter) = (format!("{SECRET}0"), &SECRET[..15]);
    for (what, path, lines, status) in [
        ("no secret", path.as_str(), String::new(), 401),
        ("another", &path, "Authorization: Bearer 0123456789abcdeF\r\n".into(), 401),
        ("a longer one", &path, format!("Authorization: Bearer {longer}\r\n"), 401),
        ("a shorter one", &path, format!("Authorization: Bearer {shorter}\r\n"), 401),
        ("another scheme", &path, format!("Authorization: Basic {SECRET}\r\n"), 401),
        ("no such path, no secret", "/", String::new(), 401),
        ("no such path", "/v1/0-0/1", known.clone(), 404),
        ("ranks of earlier runs, no secret", &path.replace(&format!("/{sample}?"), "/ranks?"), String::new(), 401),
        ("up", &path.replace("/v1/", "/v1/../"), known.clone(), 404),
        ("no such sample", &format!("{}/40", path.rsplit_once('/').unwrap().0), known.clone(), 404),
        ("a huge one", &format!("{}/99999999999999999999", path.rsplit_once('/').unwrap().0), known.clone(), 404),
        ("a moment after the end", &format!("{}9999999", path), known.clone(), 400),
        ("after its end", &path, format!("{known}Range: bytes=9999-10000\r\n"), 416),
        ("backwards", &path, format!("{known}Range: bytes=9-8\r\n"), 416),
        ("no range", &path, format!("{known}Range: bytes=-5\r\n"), 400),
        ("another version", &path, format!("{known}If-Match: \"other\"\r\n"), 412),
        ("a long head", &path, format!("{known}X: {}\r\n", "x".repeat(100_000)), 431),
    ] {
        let (head, body) = ask(address, path, &lines);
        // Of a head that is too long the connection may be reset before the answer is read.
        let cut = status == 431 && head.is_empty();
        assert!(cut || head.starts_with(&format!("HTTP/1.1 {status}")), "{what}: {head:?}");
        assert!(body.is_empty(), "{what}: {body:?}");
    }
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(format!("DELETE {path} HTTP/1.1\r\nHost: x\r\n{known}\r\n").as_bytes()).unwrap();
    let mut line = [0; 12];
    socket.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"HTTP/1.1 405");
    assert!(!format!("{loader:?} {:?}", loader.config()).contains(SECRET), "secrets never print");
    drop(loader);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn an_address_is_sent_no_more_than_the_rate_limit_and_refused_requests_do_not_count() {
    let job = Job::new(DataSet::tokens(40, 3, 10_000), 2, 200);
    let (path, loader) = (path_asked(&job), resident(job.rank(0).peer_rate_limit(ByteSize(100_000))));
    let known = format!("Authorization: Bearer {SECRET}\r\n");
    for _ in 0..50 {
        assert!(ask(job.addresses[0], &path, "").0.starts_with("HTTP/1.1 401"));
    }
    let begun = Instant::now();
    thread::scope(|scope| {
        let all: Vec<_> = (0..10).map(|_| scope.spawn(|| ask(job.addresses[0], &path, &known).1.len())).collect();
        assert!(all.into_iter().all(|one| one.join().unwrap() == 10_000));
    });
    // Nine wait, the tenth part of a second each.
    assert!((Duration::from_millis(850)..PATIENCE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    drop(loader);
}

fn over_tls(builder: LoaderBuilder, authority: &Authority, (certificate, key): &(PathBuf, PathBuf)) -> LoaderBuilder {
    builder.peer_ca_file(authority.file()).peer_cert_file(certificate).peer_key_file(key)
}

#[test]
fn over_tls_ranks_serve_those_that_the_jobs_authority_knows() {
    let job = Job::new(DataSet::tokens(100, 3, 50_000), 2, 200);
    let authority = Authority::new("a job");
    let own = authority.certify("rank", "127.0.0.1");
    let run = || -> u64 {
        let (ended, before) = (Barrier::new(2), job.bucket.counters().get_requests);
        let rank = |rank: u32| {
            let mut loader = over_tls(job.rank(rank), &authority, &own).build().unwrap();
            let mut delivered = Delivered::default();
            while let Some(batch) = loader.next_batch() {
                take(&batch.unwrap(), &loader, &job.set, &mut delivered);
            }
            ended.wait();
            assert_eq!(delivered.order, job.planned(rank));
        };
        thread::scope(|scope| [0, 1].map(|at| scope.spawn(move || rank(at))).map(|rank| rank.join().unwrap()));
        job.bucket.counters().get_requests - before
    };
    // Where the machine is busy, a rank may seem slow; not in every run.
    let gets: Vec<_> = (0..10).map(|_| run()).take_while(|gets| *gets >= 200).collect();
    assert!(gets.len() < 10, "of 300: {gets:?}");

    // One whose certificate another authority has issued, one that shows none, one that speaks no TLS: all read the bucket alone.
    let loader = over_tls(job.rank(0), &authority, &own);
    let served = loader.build().unwrap();
    let other = Authority::new("another job");
    let strange = other.certify("rank", "127.0.0.1");
    for (what, ca, identity) in
        [("a stranger", &authority, &strange), ("a stranger who trusts strangers", &other, &strange)]
    {
        let mut loader = over_tls(job.rank(1), ca, identity).build().unwrap();
        while let Some(batch) = loader.next_batch() {
            batch.unwrap();
        }
        let peers = loader.stats().peers.unwrap();
        assert!(peers.hits == 0 && peers.misses > 0, "{what}: {peers:?}");
    }
    let mut loader = job.rank(1).build().unwrap();
    while let Some(batch) = loader.next_batch() {
        batch.unwrap();
    }
    assert_eq!(loader.stats().peers.unwrap().hits, 0, "without TLS nothing is served");
    drop(served);
}

#[test]
fn settings_that_leave_blocks_unprotected_or_unused_are_refused() {
    let job = Job::new(DataSet::tokens(40, 3, 1_000), 2, 200);
    let refused = |builder: LoaderBuilder, kind: Kind, said: &str| {
        let error = builder.build().unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(said), "{said}: {error:?}");
        assert!(error.hint().is_some() || kind == Kind::File, "{error:?}");
    };
    let bare = |rank| {
        let mut config = job.rank(rank).config().clone();
        config.peers.secret_file = None;
        LoaderBuilder::new(config).listing(listing(&job.set))
    };
    refused(bare(0), Kind::Usage, "everybody");
    refused(job.rank(0).world(3), Kind::Usage, "2 addresses");
    refused(job.rank(0).peers(["127.0.0.1:7", "a=127.0.0.1:7"]), Kind::Usage, "ranks 0 and 1");
    refused(job.rank(0).cache_limit(ByteSize(0)), Kind::Usage, "without a cache");
    refused(job.rank(0).importance(fuelrail::ImportanceMode::On), Kind::Usage, "or importance");
    refused(job.rank(0).peers(["0.0.0.0:1", "127.0.0.1:2"]), Kind::Usage, "no TLS");
    refused(job.rank(0).peers(["127.0.0.1:0", "192.0.2.1:2"]), Kind::Usage, "beyond this machine");
    refused(job.rank(0).peers(["127.0.0.1", "127.0.0.1:2"]), Kind::Usage, "not an address");
    refused(job.rank(0).peer_rate_limit(ByteSize(0)), Kind::Usage, "peer_rate_limit is 0");
    refused(job.rank(0).peer_secret_file("/nowhere/at-all"), Kind::File, "/nowhere");
    refused(job.rank(0).peer_ca_file("/nowhere/ca"), Kind::Usage, "not all set");
    let short = job.dir.path().join("short");
    std::fs::write(&short, "too short").unwrap();
    refused(job.rank(0).peer_secret_file(&short), Kind::Usage, "at least 16");
    let broken = |path: &Path| {
        std::fs::write(path, "no certificate").unwrap();
        path.to_owned()
    };
    let file = broken(&job.dir.path().join("ca"));
    refused(job.rank(0).peer_ca_file(&file).peer_cert_file(&file).peer_key_file(&file), Kind::Usage, "peer_ca_file");
    let held = TcpListener::bind(job.addresses[0]).unwrap();
    refused(job.rank(0), Kind::Environment, "listening at");
    drop(held);
    drop(job.rank(0).peers(["127.0.0.1:{8..9}"]).world(2).peer_listen("127.0.0.1:0").build().unwrap());
}
