//! Resource use of a row: CPU time without the bucket's, and the peak of resident memory.
//!
//! Holds no state; reads `/proc/self`. The bucket runs in this process, so the CPU time of its threads (named `bucket-…`)
//! is read from the scheduler and subtracted.

use core::time::Duration;
use std::fs;

use fuelrail::internal::{memory_use, process_cpu};

/// The prefix of the bucket's thread names.
const BUCKET_THREADS: &str = "bucket-";
/// Written to `clear_refs`, it resets the peak of resident memory.
const RESET_PEAK: &str = "5";

/// CPU time of this process so far, without the bucket's threads.
pub(super) fn cpu_without_bucket() -> Duration {
    let (user, system) = process_cpu();
    (user + system).saturating_sub(bucket_cpu())
}

/// CPU time of the bucket's threads so far; zero where `/proc` does not report it.
fn bucket_cpu() -> Duration {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let ours = threads
        .flatten()
        .map(|thread| thread.path())
        .filter(|thread| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with(BUCKET_THREADS)));
    let ran = ours.filter_map(|thread| ran_ns(&fs::read_to_string(thread.join("schedstat")).ok()?));
    Duration::from_nanos(ran.sum())
}

/// Returns the first number of a `schedstat` line: nanoseconds on a CPU.
fn ran_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Resets the peak of resident memory and returns the current value, bytes. Where the kernel refuses (the file may be read-only in a
/// container), the peak is that of the whole process so far: an upper bound, which this value makes recognisable.
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
