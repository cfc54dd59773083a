//! One read for many jobs: what each gets, what the bucket is asked for, and what happens to those that are slow, late, killed or set otherwise.

use crate::common::pictures::{png, scene};
use crate::common::reading::Reading;
use crate::common::{Delivered, PATIENCE, bucket, drain, eventually, folder, least_budget, loader, loader_at, take};
use ::png::{BitDepth, ColorType};
use fuelrail::{Audit, ByteSize, Fit, Format, Kind, Loader, LoaderBuilder, SharingOptions, State, Taken};
use fuelrail_bucket::{Bucket, DataSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

pub(crate) const SAMPLES: u64 = 1200;
const BATCH: u32 = 4;
/// So many batches may jobs be apart, and so many does one hold at most, with memory for more than twice as many.
const AHEAD: u64 = 32;

pub(crate) fn job(builder: LoaderBuilder, dir: &Path) -> LoaderBuilder {
    builder.share_dir(dir).shared_read(true)
}

pub(crate) fn settings(bucket: &Bucket) -> LoaderBuilder {
    loader(bucket).batch_size(BATCH).seed(7)
}

fn assert_once(log: &Path, epochs: usize) {
    let verdict = Audit::join(&[Audit::read(log).unwrap()]).unwrap();
    assert!(verdict.exactly_once && verdict.epochs.len() == epochs, "{verdict:?}");
    assert!(verdict.epochs.iter().all(|epoch| epoch.once == SAMPLES), "{verdict:?}");
}

/// Takes so many batches, or all.
pub(crate) fn some(loader: &mut Loader, set: &DataSet, batches: u64) -> Delivered {
    let mut delivered = Delivered::default();
    for _ in 0..batches {
        let Some(batch) = loader.next_batch() else { break };
        take(&batch.unwrap(), loader, set, &mut delivered);
    }
    delivered
}

/// Without a wait inside the loader.
fn by_events(loader: &mut Loader, set: &DataSet) -> Delivered {
    let (mut delivered, event) = (Delivered::default(), loader.event().unwrap());
    loop {
        match loader.try_next_batch().unwrap() {
            Taken::Batch(batch) => take(&batch, loader, set, &mut delivered),
            Taken::Over => return delivered,
            Taken::NotYet => {
                let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
                assert_eq!(poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&limit)).unwrap(), 1);
            }
        }
    }
}

#[test]
fn four_jobs_get_what_each_would_have_had_alone_for_the_requests_of_one() {
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    for epochs in [1, 2] {
        let settings = || settings(&bucket).epochs(epochs);
        let expected = [1, epochs].map(|epochs| drain(&mut settings().epochs(epochs).build().unwrap(), &set).unwrap());
        bucket.reset_counters();
        let reading = Reading::start(settings().shards(2), dir.path(), 4, PATIENCE);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (log, set) = (dir.path().join(format!("log-{epochs}-{n}")), &set);
                // The last job has one epoch, whatever the reader has.
                let epochs = if n == 3 { 1 } else { epochs };
                let expected = &expected[usize::from(epochs > 1)];
                let builder = job(settings().epochs(epochs), dir.path()).audit(&log);
                scope.spawn(move || {
                    let mut loader = builder.build().unwrap();
                    assert!(loader.notices().iter().all(|notice| !notice.contains("shared_read")));
                    let delivered = if n == 0 { by_events(&mut loader, set) } else { drain(&mut loader, set).unwrap() };
                    assert!(delivered == *expected, "job {n}");
                    let stats = loader.stats();
                    let found = (stats.requests, stats.samples, stats.memory.batch_bytes);
                    assert_eq!(found, (0, SAMPLES * epochs, 0), "job {n} has read nothing itself");
                    assert_once(&log, epochs as usize);
                });
            }
        });
        let (stats, told) = reading.end();
        let (requests, most) = (bucket.counters().get_requests, SAMPLES * epochs);
        // Where the end of one epoch and the begin of the next are fetched together, one request serves both.
        assert!(requests == most || epochs > 1 && requests < most, "{requests}: {told:?}");
        assert_eq!((stats.slots, stats.requests), (0, requests), "all memory has come back: {told:?}");
        assert_eq!(told.iter().filter(|line| line.contains("has left")).count(), 4, "{told:?}");
    }
}

#[test]
fn a_batch_that_is_changed_is_a_copy_and_one_that_outlives_its_loader_stays() {
    let (set, dir) = (DataSet::digits(40, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let reading = Reading::start(settings(&bucket), dir.path(), 2, PATIENCE);
    let build = || {
        let builder = job(settings(&bucket), dir.path());
        std::thread::spawn(move || builder.build().unwrap())
    };
    let [mut one, mut two] = [build(), build()].map(|thread| thread.join().unwrap());
    let mut changed = one.next_batch().unwrap().unwrap();
    assert!(changed.is_borrowed());
    let before = changed.bytes().to_vec();
    changed.bytes_mut().fill(9);
    assert!(!changed.is_borrowed() && changed.bytes().iter().all(|byte| *byte == 9));
    let same = two.next_batch().unwrap().unwrap();
    assert_eq!(same.bytes(), before, "the other job's is as it was");
    let kept = two.next_batch().unwrap().unwrap();
    let bytes = kept.bytes().to_vec();
    drop(two);
    // The reader goes on for the other job, and does not use that memory again.
    let rest = drain(&mut one, &set).unwrap();
    assert_eq!(rest.order.len() as u64, 40 - u64::from(BATCH));
    assert_eq!(kept.bytes(), bytes);
    assert!(!reading.is_over(), "it waits for what is held");
    drop((one, changed, same, kept));
    assert_eq!(reading.end().0.slots, 0);
}

#[test]
fn a_job_that_stops_delays_others_up_to_the_bound_and_then_reads_alone() {
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let expected = drain(&mut settings(&bucket).build().unwrap(), &set).unwrap();
    bucket.reset_counters();
    let reading = Reading::start(settings(&bucket), dir.path(), 3, Duration::from_secs(10));
    let build = |log: &str| {
        let builder = job(settings(&bucket), dir.path()).audit(dir.path().join(log));
        std::thread::spawn(move || builder.build().unwrap())
    };
    let [mut slow, quick, other] = ["slow", "quick", "other"].map(build).map(|thread| thread.join().unwrap());
    let mut delivered = some(&mut slow, &set, 3);
    std::thread::scope(|scope| {
        for mut loader in [quick, other] {
            let (set, expected) = (&set, &expected);
            scope.spawn(move || assert!(drain(&mut loader, set).unwrap() == *expected));
        }
    });
    assert!(reading.said("is left behind"), "{:?}", reading.told());
    assert_eq!(bucket.counters().get_requests, SAMPLES, "for the others nothing was read twice");
    delivered.order.extend(drain(&mut slow, &set).unwrap().order);
    assert!(delivered == expected);
    let excess = bucket.counters().get_requests - SAMPLES;
    let alone = |given: u64| SAMPLES - given * u64::from(BATCH);
    assert!((alone(AHEAD + 3)..=alone(3)).contains(&excess), "{excess}: it reads alone what it was not given");
    assert_eq!(slow.stats().requests, excess);
    drop(slow);
    for log in ["slow", "quick", "other"] {
        assert_once(&dir.path().join(log), 1);
    }
    assert_eq!(reading.end().0.slots, 0);
}

#[test]
fn a_job_that_keeps_more_than_its_share_goes_on_alone() {
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let reading = Reading::start(settings(&bucket), dir.path(), 1, Duration::from_millis(1));
    let mut loader = job(settings(&bucket), dir.path()).build().unwrap();
    let kept: Vec<_> = (0..AHEAD + 20).map(|_| loader.next_batch().unwrap().unwrap()).collect();
    assert_eq!(kept.iter().filter(|batch| batch.is_borrowed()).count() as u64, AHEAD);
    assert!(reading.said("keeps as many as a job may"), "{:?}", reading.told());
    let (mut delivered, mut rest) = (Delivered::default(), Delivered::default());
    kept.iter().for_each(|batch| take(batch, &loader, &set, &mut delivered));
    rest.order = drain(&mut loader, &set).unwrap().order;
    delivered.order.append(&mut rest.order);
    assert!(delivered == drain(&mut settings(&bucket).build().unwrap(), &set).unwrap());
    drop((kept, loader));
    assert_eq!(reading.end().0.slots, 0);
}

#[test]
fn memory_for_too_few_batches_is_refused_and_the_job_reads_alone() {
    let (set, dir) = (DataSet::digits(40, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let least = least_budget(settings(&bucket).share_dir(dir.path()));
    let sharing = settings(&bucket).memory_limit(ByteSize(least)).share_dir(dir.path());
    let mut sharing = sharing.share(SharingOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| sharing.serve(&|| false, &mut |_| {}).unwrap_err());
        let mut loader = job(settings(&bucket), dir.path()).build().unwrap();
        assert_eq!(drain(&mut loader, &set).unwrap().order.len(), 40);
        let error = serving.join().unwrap();
        assert!(error.kind() == Kind::Budget && error.to_string().contains("memory_limit"), "{error}");
    });
}

#[test]
fn who_comes_late_or_stands_elsewhere_reads_alone_and_who_stands_near_joins() {
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let expected = drain(&mut settings(&bucket).build().unwrap(), &set).unwrap();
    let notice = |loader: &Loader| loader.notices().iter().find(|notice| notice.contains("shared_read")).cloned();
    let alone = job(settings(&bucket), dir.path()).build().unwrap();
    assert!(notice(&alone).unwrap().contains("no process serves"), "{:?}", alone.notices());
    drop(alone);
    let reading = Reading::start(settings(&bucket), dir.path(), 1, PATIENCE);
    let mut first = job(settings(&bucket), dir.path()).build().unwrap();
    let mut delivered = some(&mut first, &set, 100);
    let state = |batches: u64| State { position: batches * u64::from(BATCH), ..first.state() };
    let build = |state: Option<State>| {
        let builder = job(settings(&bucket), dir.path());
        state.into_iter().fold(builder, LoaderBuilder::resume).build().unwrap()
    };
    let mut late = build(None);
    assert!(notice(&late).unwrap().contains("dropped already"), "{:?}", late.notices());
    assert!(drain(&mut late, &set).unwrap() == expected);
    let far = build(Some(state(270)));
    assert!(notice(&far).unwrap().contains("far ahead"), "{:?}", far.notices());
    let between = build(Some(State { position: 401, ..first.state() }));
    assert!(notice(&between).unwrap().contains("between two steps"), "{:?}", between.notices());
    drop((far, between));
    bucket.reset_counters();
    let at = first.state().position / u64::from(BATCH) + 5;
    let near = build(Some(state(at)));
    assert_eq!(notice(&near), None);
    let (set, expected) = (&set, &expected);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut near = near;
            let rest = drain(&mut near, set).unwrap();
            assert!(rest.order == expected.order[(at * u64::from(BATCH)) as usize..]);
            assert_eq!(near.stats().requests, 0);
        });
        delivered.order.extend(drain(&mut first, set).unwrap().order);
    });
    assert!(delivered == *expected);
    drop(first);
    let (stats, told) = reading.end();
    assert_eq!(stats.requests, SAMPLES, "{told:?}");
}

#[test]
fn each_setting_that_decides_batches_is_named_where_it_differs() {
    let (set, dir) = (DataSet::digits(40, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let reading = Reading::start(settings(&bucket), dir.path(), 9, PATIENCE);
    let refused = |name: &str, change: fn(LoaderBuilder) -> LoaderBuilder| {
        let error = change(job(settings(&bucket), dir.path())).build().unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{error}");
        assert!(error.cause().starts_with(&format!("shared_read: {name} is ")), "{name}: {error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("shared_read") || hint.contains("listing")), "{error}");
    };
    refused("seed", |builder| builder.seed(8));
    refused("shuffle", |builder| builder.shuffle(false));
    refused("order", |builder| builder.order("sticky".parse().unwrap()));
    refused("batch_size", |builder| builder.batch_size(5));
    refused("drop_last", |builder| builder.drop_last(true));
    refused("rank", |builder| builder.world(2).rank(1));
    refused("world", |builder| builder.world(2));
    refused("bad_samples", |builder| builder.bad_samples(fuelrail::BadSamples::Skip));
    refused("listing", |builder| {
        builder.listing(vec![fuelrail::Listed { key: "another".into(), size: 1, etag: None }])
    });
    let second = settings(&bucket).share_dir(dir.path()).share(SharingOptions::default()).unwrap_err();
    assert!(second.kind() == Kind::Usage && second.to_string().contains("another process listens"), "{second}");
    let no_dir = settings(&bucket).shared_read(true).build().unwrap_err();
    assert!(no_dir.kind() == Kind::Usage && no_dir.to_string().contains("share_dir"), "{no_dir}");
    assert_eq!(reading.told().iter().filter(|line| line.contains("is refused")).count(), 9);
}

/// Set in a child: what it shall do, as JSON.
const ROLE: &str = "SHARING_TEST_ROLE";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    pub uri: String,
    pub dir: PathBuf,
    /// Reads for others; otherwise takes three batches, says so by a file of this name, and keeps the third.
    pub reads: bool,
    pub mark: PathBuf,
}

impl Role {
    pub(crate) fn start(&self, test: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, serde_json::to_string(self).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .expect("this binary can be run again")
    }

    /// Plays the role of this process, if it has one.
    pub(crate) fn played() -> bool {
        let Ok(text) = std::env::var(ROLE) else { return false };
        let role: Role = serde_json::from_str(&text).expect("the parent wrote it");
        let builder = loader_at(&role.uri).batch_size(BATCH).seed(7);
        if role.reads {
            let reading = Reading::start(builder, &role.dir, 2, PATIENCE);
            std::fs::write(&role.mark, "").unwrap();
            reading.end();
            return true;
        }
        let mut loader = job(builder, &role.dir).build().unwrap();
        let _kept: Vec<_> = (0..3).map(|_| loader.next_batch().unwrap().unwrap()).collect();
        std::fs::write(&role.mark, "").unwrap();
        std::thread::sleep(PATIENCE);
        true
    }
}

pub(crate) fn kill(child: &mut Child) {
    child.kill().unwrap();
    assert!(child.wait().unwrap().code().is_none(), "it was killed");
}

#[test]
fn a_killed_job_frees_what_it_held_and_the_others_go_on() {
    if Role::played() {
        return;
    }
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let reading = Reading::start(settings(&bucket), dir.path(), 3, PATIENCE);
    let role = Role { uri: bucket.url(""), dir: dir.path().into(), reads: false, mark: dir.path().join("mark") };
    let mut child = role.start("sharing::a_killed_job_frees_what_it_held_and_the_others_go_on");
    let builder = || job(settings(&bucket), dir.path());
    std::thread::scope(|scope| {
        for n in 0..2 {
            let log = dir.path().join(format!("log-{n}"));
            let (builder, set) = (builder().audit(&log), &set);
            scope.spawn(move || {
                drain(&mut builder.build().unwrap(), set).unwrap();
                assert_once(&log, 1);
            });
        }
        eventually("the child takes its batches", || role.mark.exists());
        kill(&mut child);
    });
    let (stats, told) = reading.end();
    assert_eq!((stats.slots, bucket.counters().get_requests), (0, SAMPLES), "{told:?}");
    assert!(told.iter().all(|s| !s.contains("behind")) && told.iter().any(|s| s.contains("was lost")), "{told:?}");
}

#[test]
fn when_the_process_that_reads_is_killed_all_jobs_finish_alone() {
    if Role::played() {
        return;
    }
    let (set, dir) = (DataSet::digits(SAMPLES, 7), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "");
    let expected = drain(&mut settings(&bucket).build().unwrap(), &set).unwrap();
    let role = Role { uri: bucket.url(""), dir: dir.path().into(), reads: true, mark: dir.path().join("mark") };
    let mut child = role.start("sharing::when_the_process_that_reads_is_killed_all_jobs_finish_alone");
    eventually("the child listens", || role.mark.exists());
    let killed = Mutex::new(Some(&mut child));
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (log, set, expected, killed) = (dir.path().join(format!("log-{n}")), &set, &expected, &killed);
            let builder = job(settings(&bucket), dir.path()).audit(&log);
            scope.spawn(move || {
                let mut loader = builder.build().unwrap();
                let mut delivered = some(&mut loader, set, 50);
                if let Some(child) = killed.lock().unwrap().take() {
                    kill(child);
                }
                let held = loader.next_batch().unwrap().unwrap();
                take(&held, &loader, set, &mut delivered);
                delivered.order.extend(drain(&mut loader, set).unwrap().order);
                let mut again = Delivered::default();
                take(&held, &loader, set, &mut again);
                assert!(delivered == *expected && loader.stats().requests > 0, "job {n}");
                assert_once(&log, 1);
            });
        }
    });
}

/// Pictures of two sizes in two classes.
fn pictures(dir: &Path) {
    for n in 0..24u32 {
        let (width, height) = if n.is_multiple_of(2) { (20, 12) } else { (16, 16) };
        let mut pixels = scene(width as usize, height as usize, 3);
        pixels[..3].fill(n as u8);
        let file = png(width, height, ColorType::Rgb, BitDepth::Eight, &pixels);
        let folder = dir.join(["a", "b"][n as usize % 2]);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{n:02}.png")), file).unwrap();
    }
}

/// Labels and bytes of all batches.
fn all(loader: &mut Loader) -> Vec<(Vec<u32>, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some(batch) = loader.next_batch() {
        let batch = batch.unwrap();
        assert!(batch.shape().is_none_or(|shape| shape.dims().iter().product::<usize>() == batch.bytes().len()));
        let samples: Vec<u8> = batch.samples().flat_map(|sample| sample.bytes).copied().collect();
        found.push((batch.labels().to_vec(), samples));
    }
    found
}

#[test]
fn pictures_are_decoded_once_for_all_or_by_each_job_in_its_own_way() {
    let (files, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    pictures(files.path());
    let bucket = folder(files.path(), "");
    let raw = || loader(&bucket).batch_size(5).epochs(2).decode_threads(2);
    let decoded = |fit, flip| {
        let shape = fuelrail::Decode { fit, flip, ..fuelrail::Decode::exact(8, 8, 3) };
        raw().decode(shape)
    };
    let run = |reader: LoaderBuilder, jobs: [LoaderBuilder; 2], decodes: bool| {
        let reading = Reading::start(reader, dir.path(), 2, PATIENCE);
        std::thread::scope(|scope| {
            for builder in jobs {
                let expected = all(&mut builder.clone().build().unwrap());
                let dir = dir.path();
                scope.spawn(move || {
                    let mut loader = job(builder, dir).build().unwrap();
                    assert!(all(&mut loader) == expected);
                    let stats = loader.stats();
                    assert_eq!((stats.requests, stats.decode.is_some()), (0, decodes));
                });
            }
        });
        assert_eq!(reading.end().0.slots, 0);
    };
    run(decoded(Fit::RandomCrop, true), [(); 2].map(|()| decoded(Fit::RandomCrop, true)), false);
    run(raw(), [decoded(Fit::RandomCrop, true), decoded(Fit::CenterCrop, false)], true);
    let reading = Reading::start(decoded(Fit::RandomCrop, true), dir.path(), 9, PATIENCE);
    for (name, builder) in [("decode_flip", decoded(Fit::RandomCrop, false)), ("decode", raw())] {
        let error = job(builder, dir.path()).build().unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(&format!("{name} is ")), "{error}");
    }
    drop(reading);
}

#[test]
fn a_decoding_job_that_is_left_behind_decodes_what_it_reads_alone() {
    let (files, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    pictures(files.path());
    let bucket = folder(files.path(), "");
    let raw = || loader(&bucket).batch_size(1).epochs(8).decode_threads(1);
    let decoded = || raw().decode(fuelrail::Decode { fit: Fit::RandomCrop, ..fuelrail::Decode::exact(8, 8, 3) });
    let expected = all(&mut decoded().build().unwrap());
    for reader in [raw(), decoded()] {
        let reading = Reading::start(reader, dir.path(), 2, Duration::ZERO);
        let build = || {
            let builder = job(decoded(), dir.path());
            std::thread::spawn(move || builder.build().unwrap())
        };
        let [mut slow, mut quick] = [build(), build()].map(|thread| thread.join().unwrap());
        assert!(all(&mut quick) == expected);
        assert!(reading.said("is left behind"), "{:?}", reading.told());
        assert!(all(&mut slow) == expected);
        assert!(slow.stats().requests > 0);
        drop((slow, quick));
        assert_eq!(reading.end().0.slots, 0);
    }
}

#[test]
fn records_of_shards_are_shared_with_their_fields() {
    let (files, shards) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (dir, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for n in 0..40 {
        std::fs::write(files.path().join(format!("{n:03}.bin")), vec![n as u8; 100 + n]).unwrap();
        std::fs::write(files.path().join(format!("{n:03}.cls")), format!("{}", n % 3)).unwrap();
    }
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "-cf"]).arg(shards.path().join("0.tar")).arg("-C").arg(files.path()).arg(".");
    assert!(tar.status().unwrap().success());
    let bucket = folder(shards.path(), "");
    let builder = || {
        let builder = loader(&bucket).batch_size(3).epochs(2).listing_dir(kept.path()).cache_limit(ByteSize(1 << 20));
        builder.format(Format::WebDataset).label_field("cls")
    };
    let fields = |loader: &mut Loader| {
        let mut found = Vec::new();
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            for i in 0..batch.len() {
                let data = batch.field(i, "bin").unwrap().into_owned();
                found.push((batch.key(i).into_owned(), batch.labels()[i], data));
            }
        }
        found
    };
    let expected = fields(&mut builder().build().unwrap());
    assert!(expected.len() == 80 && expected.iter().all(|(_, label, data)| *label == u32::from(data[0]) % 3));
    bucket.reset_counters();
    let reading = Reading::start(builder(), dir.path(), 2, PATIENCE);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (builder, expected) = (job(builder(), dir.path()), &expected);
            scope.spawn(move || assert!(fields(&mut builder.build().unwrap()) == *expected));
        }
    });
    let (stats, told) = reading.end();
    assert_eq!((stats.slots, bucket.counters().get_requests), (0, stats.requests), "{told:?}");
}
