//! What a row costs: processor time without the bucket's, and the peak of resident memory.
//!
//! Owns nothing; reads `/proc/self`. The bucket runs in this process, so its threads (named `bucket-…`) are counted apart by
//! the scheduler's own nanoseconds and taken off.

use core::time::Duration;
use std::fs;

use fuelrail::internal::{memory_use, process_cpu};

/// Names of the bucket's threads start with this.
const BUCKET_THREADS: &str = "bucket-";
/// Written to `clear_refs`, it makes the peak of resident memory start again from now.
const RESET_PEAK: &str = "5";

/// Processor time of this process so far, the bucket's threads left out.
pub(super) fn cpu_without_bucket() -> Duration {
    let (user, system) = process_cpu();
    (user + system).saturating_sub(bucket_cpu())
}

/// Processor time of the bucket's threads so far; zero where `/proc` does not tell.
fn bucket_cpu() -> Duration {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let ours = threads
        .flatten()
        .map(|thread| thread.path())
        .filter(|thread| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with(BUCKET_THREADS)));
    let ran = ours.filter_map(|thread| ran_ns(&fs::read_to_string(thread.join("schedstat")).ok()?));
    Duration::from_nanos(ran.sum())
}

/// First number of a `schedstat` line: nanoseconds on a processor.
fn ran_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Lets the peak of resident memory start anew; what is resident now. Where the kernel refuses (it may be read-only in a container), the
/// peak is that of the whole process: an upper bound, which this figure beside it makes visible.
pub(super) fn restart_peak_rss() -> u64 {
    let _ = fs::write("/proc/self/clear_refs", RESET_PEAK);
    memory_use().rss_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_bucket::{Bucket, BucketConfig};
    use std::hint::black_box;

    #[test]
    fn the_buckets_time_is_taken_off() {
        let bucket = Bucket::start(BucketConfig::default()).unwrap();
        let mut client = crate::deli::http::Client::new(bucket.addr(), "bucket");
        let before = bucket_cpu();
        for _ in 0..50 {
            client.list_page(1000, None).unwrap();
        }
        assert!(bucket_cpu() > before, "fifty listings take some time");
        assert!(cpu_without_bucket() > Duration::ZERO);
        assert_eq!(ran_ns("1234 5 6\n"), Some(1234));
        assert_eq!(ran_ns(""), None);
    }

    #[test]
    fn peaks_are_seen() {
        let before = restart_peak_rss();
        drop(black_box(vec![1u8; 64 << 20]));
        assert!(before > 0 && memory_use().peak_rss_bytes >= 64 << 20);
    }
}
