//! A process that speaks the protocol wrongly, on either side: an error, and nothing of it is believed. And one that reads less than its job.

use super::protocol::{Connection, Head, Heard, ToJob, ToReader, message, socket_name};
use super::{Sharing, SharingOptions};
use crate::{Loader, LoaderBuilder, Taken, list_as};
use fuelrail_base::{Duration, Error, Kind};
use fuelrail_io::conformance::in_fork;
use fuelrail_io::{Arena, ArenaConfig, LocalListener, LocalSocket, OwnDirectory, wait_for};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);

/// Eight files of 100 bytes, and a loader of two a batch.
fn files(dir: &Path) -> LoaderBuilder {
    let folder = dir.join("files");
    std::fs::create_dir_all(&folder).unwrap();
    (0..8).for_each(|n| std::fs::write(folder.join(n.to_string()), [n; 100]).unwrap());
    let builder = Loader::builder(format!("{}/", folder.display())).batch_size(2).shuffle(false).shards(1).pin(false);
    builder.memory_limit("16MiB".parse().unwrap()).share_dir(dir)
}

fn own(dir: &Path) -> OwnDirectory {
    OwnDirectory::open(dir).unwrap()
}

fn name(builder: &LoaderBuilder) -> String {
    socket_name(&builder.config().uri)
}

/// What a job's loader says to a process that agrees, lends 1 MiB and then says this; it closes after it.
fn job_meets(say: impl FnOnce(&mut Connection, OwnedFd) + Send) -> Option<Error> {
    let dir = tempfile::tempdir().unwrap();
    let builder = files(dir.path());
    let listener = LocalListener::bind(own(dir.path()), &name(&builder)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            wait_for([(listener.as_fd(), false)], PATIENCE);
            let mut connection = Connection::over(listener.accept().unwrap().unwrap());
            wait_for([(connection.socket.as_fd(), false)], PATIENCE);
            let Heard::Message(ToReader::Hello { .. }, ..) = connection.hear().unwrap() else { panic!("a hello") };
            connection.say(message(&ToJob::Agreed { decodes: false }, &[]), None);
            let (arena, _) = Arena::new(&ArenaConfig { bytes: 1 << 20, lent: true, ..ArenaConfig::default() }).unwrap();
            say(&mut connection, arena.lend().unwrap().try_clone_to_owned().unwrap());
        });
        let mut loader = builder.clone().shared_read(true).build().unwrap();
        loader.find_map(|batch| batch.err())
    })
}

/// The first batch, as it must be said.
fn head() -> Head {
    Head { name: 0, epoch: 0, from: 0, to: 2, offset: 4096, len: 256, left_out: Vec::new() }
}

fn table(rows: &[[u64; 4]]) -> Vec<u8> {
    rows.iter().flatten().flat_map(|number| number.to_le_bytes()).collect()
}

const NONE: u64 = u64::MAX;
const ROWS: [[u64; 4]; 2] = [[0, 0, 100, NONE], [1, 128, 100, NONE]];

#[test]
fn a_job_reads_alone_behind_a_sound_batch_and_refuses_what_is_none() {
    let lie = |head: Head, table: Vec<u8>| {
        job_meets(move |connection, memory| {
            connection.say(message(&ToJob::Memory, &[]), Some(memory));
            connection.say(message(&ToJob::Batch(head), &table), None);
        })
    };
    assert_eq!(lie(head(), table(&ROWS)), None, "a sound one, and the rest alone");
    let with = |at: usize, column: usize, value: u64| {
        let mut rows = ROWS;
        rows[at][column] = value;
        lie(head(), table(&rows))
    };
    let lies = [
        ("another sample", with(1, 0, 2)),
        ("no sample of the set", with(1, 0, u64::MAX)),
        ("an offset after the batch", with(1, 1, 200)),
        ("an offset after all memory", with(1, 1, u64::MAX)),
        ("a sample too long", with(0, 2, 101)),
        ("a length that wraps", with(0, 2, u64::MAX)),
        ("a sample too few", lie(head(), table(&ROWS[..1]))),
        ("a sample too many", lie(head(), table(&[ROWS[0], ROWS[1], [2, 0, 100, NONE]]))),
        ("a cut table", lie(head(), table(&ROWS)[..60].to_vec())),
        ("memory beyond the end", lie(Head { offset: 1 << 20, ..head() }, table(&ROWS))),
        ("memory that wraps", lie(Head { offset: u64::MAX - 10, ..head() }, table(&ROWS))),
        ("another epoch", lie(Head { epoch: 1, ..head() }, table(&ROWS))),
        ("other positions", lie(Head { from: 2, to: 4, ..head() }, table(&ROWS))),
        (
            "a batch without memory",
            job_meets(|connection, _| {
                connection.say(message(&ToJob::Batch(head()), &table(&ROWS)), None);
            }),
        ),
        (
            "memory twice",
            job_meets(|connection, memory| {
                connection.say(message(&ToJob::Memory, &[]), Some(memory.try_clone().unwrap()));
                connection.say(message(&ToJob::Memory, &[]), Some(memory));
            }),
        ),
        (
            "a file in the place of memory",
            job_meets(|connection, _| {
                connection.say(message(&ToJob::Memory, &[]), Some(File::open("/dev/null").unwrap().into()));
            }),
        ),
        ("no JSON", job_meets(|connection, _| connection.say(Arc::from(&b"\x0a\0\0\0\x02\0\0\0xx"[..]), None))),
        (
            "a length that lies",
            job_meets(|connection, _| connection.say(Arc::from(&b"\x09\0\0\0\x02\0\0\0{}"[..]), None)),
        ),
        (
            "a head that lies",
            job_meets(|connection, _| connection.say(Arc::from(&b"\x0a\0\0\0\xff\0\0\0{}"[..]), None)),
        ),
        ("four bytes", job_meets(|connection, _| connection.say(Arc::from(&b"\x04\0\0\0"[..]), None))),
    ];
    for (what, error) in lies {
        let error = error.unwrap_or_else(|| panic!("{what} was believed"));
        assert!(error.kind() == Kind::Protocol && error.hint().is_some(), "{what}: {error}");
    }
}

#[test]
fn a_message_that_is_cut_by_the_end_is_not_there() {
    let cut = job_meets(|connection, _| {
        let whole = message(&ToJob::Batch(head()), &vec![0; 60_000]);
        // The first of two packets.
        assert!(connection.socket.send(&whole[..48 << 10], None).unwrap());
    });
    assert_eq!(cut, None, "the job reads alone");
}

/// The process that reads, which must not be troubled by what is said to it.
fn reader_meets(say: impl FnOnce(&LocalSocket)) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let builder = files(dir.path());
    let mut sharing: Sharing = builder.clone().share(SharingOptions::default()).unwrap();
    let (stop, told) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            sharing.serve(&|| stop.load(Ordering::Relaxed), &mut |line| told.lock().unwrap().push(line.to_owned()))
        });
        let socket = LocalSocket::connect(&own(dir.path()), &name(&builder)).unwrap().unwrap();
        say(&socket);
        // An honest one beside it gets all.
        let honest = builder.shared_read(true).build().unwrap();
        assert!(honest.notices().iter().all(|notice| !notice.contains("shared_read")), "{:?}", honest.notices());
        assert_eq!(honest.map(|batch| batch.unwrap().len()).sum::<usize>(), 8);
        // It ends although the other one is still connected.
        assert_eq!(serving.join().unwrap().unwrap().unwrap().slots, 0);
        drop(socket);
    });
    told.into_inner().unwrap()
}

#[test]
fn a_job_that_speaks_wrongly_is_dropped() {
    let nonsense: [(&str, Arc<[u8]>); 5] = [
        ("bytes", Arc::from(&b"GET / HTTP/1.1"[..])),
        ("a release before the hello", message(&ToReader::Released(3), &[])),
        ("a length beyond all", Arc::from(&[0xFF; 12][..])),
        ("an answer", message(&ToJob::Agreed { decodes: true }, &[])),
        ("another version", {
            message(&ToReader::Hello { version: 99, terms: Default::default(), epoch: 0, position: 0 }, &[])
        }),
    ];
    for (what, said) in nonsense {
        let told = reader_meets(|socket| assert!(socket.send(&said, None).unwrap()));
        assert!(told.iter().any(|line| line.contains("is dropped") || line.contains("is refused")), "{what}: {told:?}");
    }
    let told = reader_meets(|_| {});
    assert!(told.iter().all(|line| !line.contains("dropped")), "silence is none: {told:?}");
}

#[test]
fn a_job_with_more_epochs_than_are_read_for_it_reads_the_rest_alone() {
    let dir = tempfile::tempdir().unwrap();
    let builder = files(dir.path());
    let mut sharing = builder.clone().share(SharingOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| sharing.serve(&|| false, &mut |_| {}));
        let mut job = builder.epochs(2).shared_read(true).build().unwrap();
        assert!(job.notices().iter().all(|notice| !notice.contains("shared_read")), "{:?}", job.notices());
        let mut samples = 0;
        loop {
            match job.next_batch_within(PATIENCE).unwrap() {
                Taken::Batch(batch) => samples += batch.len(),
                Taken::NotYet => panic!("nothing comes after {samples} samples"),
                Taken::Over => break,
            }
        }
        assert_eq!(samples, 2 * 8);
        drop(job);
        assert_eq!(serving.join().unwrap().unwrap().unwrap().slots, 0);
    });
}

#[test]
fn a_job_that_comes_late_says_where_the_pass_is_and_reads_all_alone() {
    let dir = tempfile::tempdir().unwrap();
    let builder = files(dir.path()).epochs(40);
    let mut sharing = builder.clone().share(SharingOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| sharing.serve(&|| false, &mut |_| {}));
        let mut first = builder.clone().shared_read(true).build().unwrap();
        // More than a job may hold: the first of them has come back.
        (0..100).for_each(|_| drop(first.next_batch().unwrap().unwrap()));
        let late = builder.shared_read(true).build().unwrap();
        let parts = ["at position ", " of 8 in epoch ", "batch 0", "dropped already", "to the end of its run"];
        let said = |notice: &String| parts.iter().all(|part| notice.contains(part));
        assert!(late.notices().iter().any(said), "{:?}", late.notices());
        let mut times = [[0; 8]; 40];
        for batch in late {
            let batch = batch.unwrap();
            batch.samples().for_each(|sample| times[batch.epoch() as usize][sample.id.0 as usize] += 1);
        }
        assert_eq!(times, [[1; 8]; 40], "each sample once an epoch");
        drop(first);
        assert_eq!(serving.join().unwrap().unwrap().unwrap().slots, 0);
    });
}

#[test]
fn a_pass_that_fails_ends_without_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let builder = files(dir.path());
    // Nobody lists again when the files are gone.
    let builder = builder.clone().kept_listing(list_as(builder.config()).unwrap());
    let options = SharingOptions { passes_max: 2, ..SharingOptions::default() };
    let mut sharing = builder.clone().share(options).unwrap();
    let (told, begun) = (Mutex::new(Vec::<String>::new()), Instant::now());
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| sharing.serve(&|| false, &mut |line| told.lock().unwrap().push(line.to_owned())));
        let build = || builder.clone().shared_read(true).build().unwrap();
        let mut first = build();
        let mut all: Vec<_> = (0..4).map(|_| first.next_batch().unwrap().unwrap()).collect();
        (0..8).for_each(|n| std::fs::remove_file(dir.path().join("files").join(n.to_string())).unwrap());
        all.remove(0);
        // As soon as it is known that the first one has come back, there has to be another pass.
        while !told.lock().unwrap().iter().any(|line| line.contains("a pass has failed")) {
            assert!(begun.elapsed() < PATIENCE, "{:?}", told.lock().unwrap());
            build().for_each(drop);
        }
        assert!(all.iter().all(|batch| batch.is_borrowed() && batch.len() == 2));
        drop((all, first));
        assert_eq!(serving.join().unwrap().unwrap().unwrap().slots, 0);
    });
}

/// Ends what serves, also where a test fails beside it.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Works in a child that can open no further file until it drops those that it is given.
fn without_descriptors(work: impl FnOnce(Vec<File>)) {
    let code = in_fork(PATIENCE, || {
        setrlimit(Resource::Nofile, Rlimit { current: Some(512), ..getrlimit(Resource::Nofile) }).unwrap();
        work(core::iter::from_fn(|| File::open("/dev/null").ok()).collect());
        0
    });
    assert_eq!(code, Some(0), "what went wrong is said above");
}

#[test]
fn a_job_without_a_descriptor_for_the_memory_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let listener = LocalListener::bind(own(dir.path()), "s").unwrap();
    let ours = LocalSocket::connect(&own(dir.path()), "s").unwrap().unwrap();
    let theirs = listener.accept().unwrap().unwrap();
    without_descriptors(|others| {
        assert!(theirs.send(&message(&ToJob::Memory, &[]), Some(others[0].as_fd())).unwrap());
        let error = Connection::over(ours).hear::<ToJob>().unwrap_err();
        assert!(error.kind() == Kind::Environment && error.to_string().contains("ulimit -n"), "{error}");
    });
}

#[test]
fn a_job_that_meets_a_reader_without_descriptors_is_accepted_later() {
    let dir = tempfile::tempdir().unwrap();
    let builder = files(dir.path());
    let mut sharing = builder.clone().share(SharingOptions::default()).unwrap();
    let socket = LocalSocket::connect(&own(dir.path()), &name(&builder)).unwrap().unwrap();
    without_descriptors(|others| {
        let (stop, told) = (AtomicBool::new(false), Mutex::new(Vec::<String>::new()));
        let wait_for_line = |text: &str| {
            let begun = Instant::now();
            while !told.lock().unwrap().iter().any(|line| line.contains(text)) {
                assert!(begun.elapsed() < Duration::from_secs(20), "nothing is told with '{text}'");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                sharing.serve(&|| stop.load(Ordering::Relaxed), &mut |line| told.lock().unwrap().push(line.to_owned()))
            });
            let stops = Stop(&stop);
            wait_for_line("ulimit -n");
            drop(others);
            assert!(socket.send(b"GET / HTTP/1.1", None).unwrap());
            wait_for_line("is dropped");
            drop(stops);
            assert!(serving.join().unwrap().unwrap().is_none(), "it had nothing to read");
        });
    });
}
