//! Credentials that end again and again while a read goes on.

use crate::common::keys::{at_gate, environment, expects, keys, metadata, signed};
use crate::common::services::Service;
use crate::common::{bucket, eventually, listing, loader_at};
use fuelrail_bucket::{Bucket, DataSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Whether this process has a thread of this name.
fn has_thread(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.flatten().any(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name))
}

/// What a read with credentials of one lifetime was like.
struct Read {
    /// How often there were new ones.
    issued: usize,
    /// Credentials of which at least one request was signed.
    used: Vec<bool>,
    /// How long the consumer waited for every batch, the longest last.
    waits: Vec<Duration>,
    given_up: u64,
}

/// Reads all of a set at a pace that takes as long as `over`, in batches of `batch_size`, with credentials that last for `lasts` and a bucket
/// that refuses those that have ended.
fn read(set: &DataSet, bucket: &Bucket, batch_size: u32, lasts: Duration, over: Duration) -> Read {
    let issued: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let issue = Arc::clone(&issued);
    let service = metadata(move || {
        let mut issued = issue.lock().unwrap();
        issued.push(Instant::now());
        keys(&format!("marked-{}", issued.len() - 1), lasts.as_secs() as i64)
    });
    let look = Arc::clone(&issued);
    let gate = Service::before(
        bucket,
        expects(move |token| {
            let number = token.strip_prefix("marked-").and_then(|number| number.parse::<usize>().ok());
            number.is_some_and(|number| look.lock().unwrap()[number].elapsed() < lasts)
        }),
    );
    let environment = environment(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url())]);
    let builder = loader_at(&at_gate(&gate, bucket)).listing(listing(set)).batch_size(batch_size).shuffle(false);
    let mut loader = signed(builder, environment).build().unwrap();
    let (begun, mut samples, mut waits) = (Instant::now(), 0, Vec::new());
    loop {
        let asked = Instant::now();
        let Some(batch) = loader.next_batch() else { break };
        waits.push(asked.elapsed());
        for sample in batch.unwrap().samples() {
            set.verify(loader.key(sample.id), sample.bytes).expect("every byte is the generator's");
            samples += 1;
        }
        let due = over.mul_f64(samples as f64 / set.len() as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    assert_eq!(samples, set.len());
    waits.sort_unstable();
    let (issued, heard, given_up) = (issued.lock().unwrap().len(), gate.heard(), loader.stats().given_up);
    let used = (0..issued).map(|number| {
        let token = format!("marked-{number}");
        heard.iter().any(|heard| heard.header("x-amz-security-token") == token)
    });
    let used = used.collect();
    drop(loader);
    eventually("the thread that renews credentials outlived the last who signs", || !has_thread("fuelrail-keys"));
    Read { issued, used, waits, given_up }
}

#[test]
fn credentials_that_end_every_few_seconds_are_renewed_while_a_read_goes_on() {
    const LASTS: Duration = Duration::from_secs(3);
    let set = DataSet::digits(800, 3);
    let read = read(&set, &bucket(&set, ""), 1, LASTS, LASTS * 3);
    assert!(read.issued >= 3, "it was renewed more than once");
    assert!(read.used[0] && read.used[1] && read.used[2]);
    assert_eq!(read.given_up, 0);
}

/// Three minutes of credentials that last 20 s, beside three of some that last: `cargo nextest run -p fuelrail --test it
/// --run-ignored only --no-capture`.
#[test]
#[ignore = "a measurement"]
fn what_waits_for_credentials_that_last_20_seconds() {
    let set = DataSet::digits(36_000, 3);
    let bucket = bucket(&set, "latency=fixed:2ms");
    for lasts in [20, 3_600, 20, 3_600].map(Duration::from_secs) {
        let Read { issued, waits, given_up, .. } = read(&set, &bucket, 10, lasts, Duration::from_secs(180));
        let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        eprintln!(
            "credentials for {} s: {issued} issued, {given_up} given up; {} waits, ms: p50 {:.2}, p99 {:.2}, p99.9 {:.2}, longest {:.2}",
            lasts.as_secs(),
            waits.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        );
    }
}
