//! Any number of ranks trains as one does.

use crate::common::{Job, assert_near, digits, lines, meeting_port, steps, wait_for_steps, words};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

fn train(bucket: &str, folder: &Path, world: usize, more: &str) -> BTreeMap<u64, crate::common::Step> {
    let log = format!("{world}-{{rank}}.jsonl");
    let place = folder.join(&log);
    let arguments = format!(
        "{bucket} --decode 28x28x1 --global-batch-size 64 --warm-up 0.2 --step-log {} --timeout-s 60 {more}",
        place.display()
    );
    Job::start(world, folder, &words(&arguments)).done();
    steps(folder, &log, world)
}

fn compare(more: &str) {
    // 49 full steps and one of 20 samples, of which a fourth rank gets few or none.
    let bucket = digits(3156, 3);
    let folder = tempfile::tempdir().unwrap();
    let uri = bucket.url("training/");
    let one = train(&uri, folder.path(), 1, more);
    assert_eq!(one.len(), 50);
    let seen: Vec<u64> = one.values().flat_map(|step| step.ids.clone()).collect();
    assert_eq!(seen.len(), 3156);
    let (first, last) = (one[&1].loss, one[&50].loss);
    assert!(last < 0.5 * first, "it learns: {first} to {last}");
    for world in [2, 4] {
        let many = train(&uri, folder.path(), world, more);
        assert_eq!(many.len(), 50, "{world} ranks");
        for (number, step) in &one {
            assert_eq!(many[number].ids, step.ids, "{world} ranks, step {number}");
            assert_near(*number, many[number].loss, step.loss);
        }
    }
}

#[test]
fn two_and_four_ranks_make_the_steps_of_one() {
    compare("--rate 0.02");
}

#[test]
fn and_with_accumulated_gradients_and_adamw() {
    // Two batches of 32 make a step: the same steps, though a rank's share comes in pieces.
    let bucket = digits(640, 3);
    let folder = tempfile::tempdir().unwrap();
    let uri = bucket.url("training/");
    let plain = train(&uri, folder.path(), 2, "--optimiser adamw --rate 0.001");
    let pieces = Path::new(folder.path()).join("pieces");
    std::fs::create_dir(&pieces).unwrap();
    let log = pieces.join("{rank}.jsonl");
    let arguments = format!(
        "{uri} --decode 28x28x1 --global-batch-size 32 --accumulate 2 --warm-up 0.2 --step-log {} --optimiser adamw --rate 0.001",
        log.display()
    );
    Job::start(2, &pieces, &words(&arguments)).done();
    let pieces = steps(&pieces, "{rank}.jsonl", 2);
    assert_eq!(pieces.len(), plain.len());
    for (number, step) in &plain {
        assert_eq!(pieces[number].ids, step.ids, "step {number}");
        assert_near(*number, pieces[number].loss, step.loss);
    }
}

#[test]
fn gradients_in_many_small_buckets_are_the_same_sums() {
    let bucket = digits(640, 3);
    let folder = tempfile::tempdir().unwrap();
    let uri = bucket.url("training/");
    let one = train(&uri, folder.path(), 1, "--rate 0.02");
    let many = train(&uri, folder.path(), 2, "--rate 0.02 --bucket-bytes 4096");
    for (number, step) in &one {
        assert_eq!(many[number].ids, step.ids);
        assert_near(*number, many[number].loss, step.loss);
    }
}

#[test]
fn each_rank_of_a_machine_shows_its_counters_at_an_address_of_its_own() {
    let (bucket, folder, port) = (digits(640, 3), tempfile::tempdir().unwrap(), meeting_port());
    let folder = folder.path();
    let text = format!(
        "{} --decode 28x28x1 --epochs 100000 --timeout-s 60 --step-log {} --set metrics_listen=127.0.{{local_rank}}.1{{rank}}:{port}",
        bucket.url("training/"),
        folder.join("{rank}.jsonl").display()
    );
    let job = Job::start(2, folder, &words(&text));
    for rank in 0..2 {
        wait_for_steps(&folder.join(format!("{rank}.jsonl")), 2);
        let mut socket = TcpStream::connect(format!("127.0.{rank}.1{rank}:{port}")).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).unwrap();
        assert!(page.contains(&format!("\nfuelrail_batches_total{{rank=\"{rank}\"}} ")), "{page}");
    }
    job.signal(0, Signal::TERM);
    for (rank, one) in job.wait().iter().enumerate() {
        assert_eq!(one.status.code(), Some(4), "rank {rank}: {}", one.output);
    }
}

#[test]
fn only_batches_that_were_not_there_are_waited_for() {
    let (bucket, folder) = (digits(1280, 3), tempfile::tempdir().unwrap());
    train(&bucket.url("training/"), folder.path(), 1, "--slow 0=8 --epochs 2");
    let steps = lines(&folder.path().join("1-0.jsonl"));
    let ready = |step: &serde_json::Value| step["ready"].as_bool().unwrap();
    assert!(steps.iter().all(|step| ready(step) == (step["data_wait_ms"].as_f64() == Some(0.0))), "{steps:?}");
    assert!(steps.iter().any(ready), "{steps:?}");
}
