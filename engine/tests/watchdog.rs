//! Nothing hangs silently: when nothing moves, and on SIGUSR1, the state of every stage is told.

use crate::common::reading::Reading;
use crate::common::{PATIENCE, bucket, loader};
use fuelrail::{Kind, Taken};
use fuelrail_bucket::DataSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Every loader of a process hears its signals: one test at a time.
static SIGNALS: Mutex<()> = Mutex::new(());

/// How the lines begin, one of each a shard.
const STAGES: [&str; 9] = [
    ": assembler:",
    "; owner:",
    "\n  fetch:",
    "\n  cache:",
    "\n  assemble:",
    "\n  deliver:",
    "\n  channels:",
    "\n  ring:",
    "\n  arena:",
];

fn raise() {
    signal_hook::low_level::raise(signal_hook::consts::SIGUSR1).unwrap();
}

/// Waits for a report that says why and names an object, two shards, and every stage of each. Where a shard of a busy machine answers too
/// late for one, the next has it.
fn hears(told: &mpsc::Receiver<String>, why: &str, ask: impl Fn()) {
    let begun = Instant::now();
    loop {
        ask();
        let text = told.recv_timeout(PATIENCE).expect("it is told");
        let said = [why, "training/", "shard 0:", "shard 1:"].into_iter().all(|part| text.contains(part));
        if said && STAGES.into_iter().all(|stage| text.matches(stage).count() == 2) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "no '{why}', no object, no shard or no stage of each in: {text}");
    }
}

#[test]
fn a_stall_prints_every_stage() {
    let _alone = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let set = DataSet::digits(50, 1);
    let bucket = bucket(&set, "stall=1.0,per_key_max=1000000,only=*");
    let (tell, told) = mpsc::channel();
    let builder = loader(&bucket).batch_size(8).shards(2).cache_limit("100kB".parse().unwrap());
    let builder = builder
        .stall_after(Duration::from_secs(600))
        .attempts_max(1)
        .watchdog_after(Duration::from_millis(100))
        .report_on_sigusr1(true);
    let mut loader = builder.on_stall(move |text| drop(tell.send(text.to_owned()))).build().unwrap();
    let consumer = std::thread::spawn(move || loader.next_batch());
    // By itself, and again: what is stuck stays worth telling.
    for _ in 0..2 {
        hears(&told, "nothing moved", || {});
    }
    hears(&told, "SIGUSR1", raise);
    drop(bucket);
    let error = consumer.join().unwrap().expect("an error").expect_err("the bucket is gone");
    assert!(matches!(error.kind(), Kind::Network | Kind::Truncated), "{error}");
}

/// Requests that fail move nothing, however often they are sent.
#[test]
fn an_outage_is_told_with_what_requests_fail_from() {
    let set = DataSet::digits(50, 1);
    let bucket = bucket(&set, "slowdown=1.0,per_key_max=1000000,only=*");
    let (tell, told) = mpsc::channel();
    let builder = loader(&bucket).batch_size(8).attempts_max(1_000_000).watchdog_after(Duration::from_secs(3));
    let mut loader = builder.on_stall(move |text| drop(tell.send(text.to_owned()))).build().unwrap();
    let begun = Instant::now();
    let text = loop {
        assert!(begun.elapsed() < PATIENCE, "nothing was told");
        assert!(matches!(loader.next_batch_within(Duration::from_secs(10)), Ok(Taken::NotYet)));
        if let Ok(text) = told.try_recv() {
            break text;
        }
    };
    let server = bucket.url("").split('/').nth(2).unwrap().to_owned();
    let error = format!("last error of {server}: the server answered 503");
    assert!(text.contains("nothing moved") && text.contains(&error) && text.contains("since a block came"), "{text}");
}

#[test]
fn a_slow_transfer_is_not_reported() {
    let silence = Duration::from_secs(4);
    let set = DataSet::photos(1, 1);
    let bucket = bucket(&set, &format!("bandwidth={}", set.size(0) / 12));
    let (tell, told) = mpsc::channel();
    let builder = loader(&bucket).batch_size(1).watchdog_after(silence);
    let mut loader = builder.on_stall(move |text| drop(tell.send(text.to_owned()))).build().unwrap();
    let begun = Instant::now();
    assert_eq!(loader.next_batch().unwrap().unwrap().len(), 1);
    assert!(begun.elapsed() > silence, "it was slow");
    assert!(told.try_recv().is_err(), "bytes came all the time");
}

/// A consumer that takes its time is not a stall, and neither is a signal to a loader at rest an error.
#[test]
fn a_resting_consumer_is_not_reported() {
    let _alone = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let set = DataSet::digits(50, 1);
    let bucket = bucket(&set, "");
    let (tell, told) = mpsc::channel();
    let builder = loader(&bucket).batch_size(8).watchdog_after(Duration::from_millis(300)).report_on_sigusr1(true);
    let mut loader = builder.on_stall(move |text| drop(tell.send(text.to_owned()))).build().unwrap();
    loader.next_batch().unwrap().unwrap();
    raise();
    let answer = || told.recv_timeout(PATIENCE).expect("the signal is answered");
    // A busy machine may have been slow with the first one, and tells of that before it answers.
    while !answer().contains("SIGUSR1") {}
    std::thread::sleep(Duration::from_millis(1_200));
    raise();
    let text = answer();
    assert!(text.contains("SIGUSR1"), "a rest was taken for a stall: {text}");
    assert_eq!(loader.by_ref().map(|batch| batch.unwrap().len()).sum::<usize>(), 42);
}

/// A job of a shared read has no shards: what moves is the batches that come.
#[test]
fn a_slow_shared_read_is_not_reported() {
    let silence = Duration::from_millis(500);
    let (set, dir) = (DataSet::digits(60, 1), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "latency=fixed:50ms");
    let settings = || loader(&bucket).batch_size(1).connections_max(1);
    let reading = Reading::start(settings(), dir.path(), 1, PATIENCE);
    let (last, (tell, told)) = (Arc::new(Mutex::new(Instant::now())), mpsc::channel());
    let seen = Arc::clone(&last);
    let job = settings().share_dir(dir.path()).shared_read(true).watchdog_after(silence);
    let job = job.on_stall(move |_| tell.send(seen.lock().unwrap().elapsed()).unwrap()).build().unwrap();
    let begun = Instant::now();
    for batch in job {
        assert_eq!(batch.unwrap().len(), 1);
        *last.lock().unwrap() = Instant::now();
    }
    assert!(begun.elapsed() > 4 * silence, "it was slow");
    // On a busy machine batches may really stay away, and one may come while that is told.
    let wrong: Vec<Duration> = told.try_iter().filter(|since| *since < silence / 2).collect();
    assert!(wrong.len() < 2, "a batch had come so long before: {wrong:?}");
    assert_eq!(reading.end().0.slots, 0);
}

/// One that waits for the bucket itself is waited for: it answers. The job tells which process that is.
#[test]
fn a_job_names_the_process_that_reads_and_waits_for_it_while_it_answers() {
    const SECOND: Duration = Duration::from_secs(1);
    let (set, dir) = (DataSet::digits(60, 1), tempfile::tempdir().unwrap());
    let bucket = bucket(&set, "stall=1.0,per_key_max=1000000,only=*");
    let settings = || loader(&bucket).batch_size(8).attempts_max(1);
    let reading = Reading::start(settings().stall_after(Duration::from_secs(600)), dir.path(), 1, PATIENCE);
    let (tell, told) = mpsc::channel();
    let job = settings().share_dir(dir.path()).shared_read(true).stall_after(SECOND).watchdog_after(SECOND);
    let mut job = job.on_stall(move |text| drop(tell.send(text.to_owned()))).build().unwrap();
    let consumer = std::thread::spawn(move || job.next_batch());
    let from = format!("batch 0 comes from process {} (socket fuelrail-share-", std::process::id());
    // At least a second between them: longer than a silent process is waited for.
    for _ in 0..8 {
        let text = told.recv_timeout(PATIENCE).expect("it is told");
        assert!(text.contains(&from) && text.contains(dir.path().to_str().unwrap()), "{text}");
    }
    assert!(!reading.said("has left"), "{:?}", reading.told());
    drop(reading);
    drop(bucket);
    consumer.join().unwrap().expect("an error").expect_err("the bucket is gone");
}

/// Schedulers use SIGUSR1 for words of their own: it is answered only where that was asked for.
#[test]
fn without_the_setting_a_signal_is_the_programs_own() {
    let _alone = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let set = DataSet::digits(50, 1);
    let bucket = bucket(&set, "");
    let (tell, told) = mpsc::channel();
    let builder = loader(&bucket).batch_size(8).watchdog_after(None);
    let _loader = builder.on_stall(move |text| drop(tell.send(text.to_owned()))).build().unwrap();
    let own = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&own)).unwrap();
    raise();
    assert!(own.load(Ordering::Acquire), "the program's own handler was called");
    let answer = told.recv_timeout(Duration::from_secs(1));
    assert!(answer.is_err(), "nobody asked for {answer:?}");
}
