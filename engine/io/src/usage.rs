//! What this process has used: processor time and memory, as the kernel counts them.

use core::mem;

use fuelrail_base::Duration;

/// Processor time of the whole process since it started: (user, system).
#[must_use]
pub fn process_cpu() -> (Duration, Duration) {
    cpu_of(libc::RUSAGE_SELF)
}

/// Processor time of the calling thread since it started: (user, system).
#[must_use]
pub fn thread_cpu() -> (Duration, Duration) {
    cpu_of(libc::RUSAGE_THREAD)
}

fn cpu_of(who: libc::c_int) -> (Duration, Duration) {
    // SAFETY: an all-zero `rusage` is a valid value.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one `rusage` into `usage`, which lives until after the call.
    let rc = unsafe { libc::getrusage(who, &mut usage) };
    assert_eq!(rc, 0, "getrusage knows these two arguments");
    let duration = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1_000);
    (duration(usage.ru_utime), duration(usage.ru_stime))
}

/// Resident memory of this process, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// Now.
    pub rss_bytes: u64,
    /// The most it ever was.
    pub peak_rss_bytes: u64,
}

/// Resident memory now and at its peak. Zeroes when `/proc` is not mounted.
#[must_use]
pub fn memory_use() -> MemoryUse {
    parse_status(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
}

fn parse_status(status: &str) -> MemoryUse {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let bytes = |name: &str| kib(name).unwrap_or(0) << 10;
    MemoryUse { rss_bytes: bytes("VmRSS:"), peak_rss_bytes: bytes("VmHWM:") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_grows_with_work() {
        let (process, thread) = (process_cpu(), thread_cpu());
        let mut x = 1u64;
        while (thread_cpu().0 + thread_cpu().1).saturating_sub(thread.0 + thread.1) < Duration::from_millis(20) {
            x = std::hint::black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        }
        let used = process_cpu().0 + process_cpu().1 - process.0 - process.1;
        assert!(used >= Duration::from_millis(15), "{used:?}");
    }

    #[test]
    fn reads_the_status_file() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nVmRSSx:\t 7 kB\n";
        assert_eq!(parse_status(text), MemoryUse { rss_bytes: 1 << 20, peak_rss_bytes: 2 << 20 });
        assert_eq!(parse_status(""), MemoryUse::default());
        let now = memory_use();
        assert!(now.rss_bytes > 0 && now.peak_rss_bytes >= now.rss_bytes, "{now:?}");
    }
}
