//! A run that is slower than predicted names the cause, and a notice with a known time is used.

use crate::common::{Job, digits, trainer, wait_for_steps, words};
use fuelrail_bucket::{Bucket, BucketConfig, Source};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;

fn outcome(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("outcome.json")).unwrap()).unwrap()
}

/// The diagnosis of a run that must end well, and what rank 0 said.
fn diagnosis(world: usize, arguments: &str) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("outcome.json");
    let text = format!("{arguments} --timeout-s 60 --json {}", json.display());
    let ended = Job::start(world, folder.path(), &words(&text)).done();
    (outcome(folder.path())["diagnosis"].clone(), ended[0].output.clone())
}

/// Pictures of six million pixels in few bytes, of two classes.
fn large_pictures() -> tempfile::TempDir {
    let (folder, mut file) = (tempfile::tempdir().unwrap(), Vec::new());
    let (width, height) = (3000, 2000);
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    let pixels: Vec<u8> = (0..width * height).map(|at| (at / 64) as u8).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    for number in 0..60 {
        let class = folder.path().join(format!("training/{}", number % 2));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("{number}.png")), &file).unwrap();
    }
    folder
}

#[test]
fn a_slow_bucket_slow_decoding_and_a_slow_rank_are_told_apart() {
    let far = digits(160, 3);
    far.set_script("latency=fixed:60ms".parse().unwrap()).unwrap();
    let near = digits(1280, 3);
    let folder = large_pictures();
    let source = Source::Directory(folder.path().to_owned());
    let large = Bucket::start(BucketConfig { source, ..BucketConfig::default() }).unwrap();
    let predicted = "--predicted-step-s 0.0001,0.001";
    let digits = |bucket: &Bucket, more: &str| format!("{} --decode 28x28x1 {more}", bucket.url("training/"));
    let (found, said) = diagnosis(1, &digits(&far, &format!("--batch-size 8 --set connections_max=4 {predicted}")));
    assert_eq!(found["cause"]["all"], "bucket", "{found} {said}");
    assert!(said.contains("slower than predicted") && said.contains("for the bucket"), "{said}");
    let decode = "--decode 28x28x1 --set decode_fit=center-crop --set decode_threads=1 --batch-size 2";
    let (found, said) = diagnosis(1, &format!("{} {decode} {predicted}", large.url("training/")));
    assert_eq!(found["cause"]["all"], "decode", "{found} {said}");
    let (found, said) = diagnosis(2, &digits(&near, &format!("--batch-size 32 --slow 1=8 {predicted}")));
    assert_eq!(found["cause"]["straggler"], serde_json::json!({"rank": 1, "by": "device"}), "{found} {said}");
    let (found, said) = diagnosis(1, &digits(&near, "--batch-size 32 --predicted-step-s 0,1000"));
    assert!(found.is_null() && !said.contains("slower than predicted"), "{found} {said}");
    let refused = trainer(&words(&digits(&near, "--predicted-step-s 2,1"))).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && text.contains("not LOW,HIGH"), "{text}");
}

#[test]
fn work_goes_on_after_a_notice_while_a_checkpoint_is_still_safe() {
    let (bucket, folder) = (digits(1280, 3), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let text = format!(
        "{} --decode 28x28x1 --batch-size 32 --epochs 2000 --checkpoint {} --checkpoint-every 3 --step-log {} --notice 3s",
        bucket.url("training/"),
        folder.join("saved").display(),
        folder.join("{rank}.jsonl").display()
    );
    let job = Job::start(2, folder, &words(&text));
    wait_for_steps(&folder.join("0.jsonl"), 12);
    // Rank 1 has saved nothing itself, and knows from rank 0 how long that takes.
    job.signal(1, Signal::TERM);
    let ended = job.wait();
    for (rank, one) in ended.iter().enumerate() {
        assert_eq!(one.status.code(), Some(4), "rank {rank}: {}", one.output);
    }
    assert!(ended[1].output.contains("loses least") && ended[0].output.contains("stopped after step"), "{ended:?}");
}
