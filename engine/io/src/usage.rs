//! Resource usage of this process and its threads: processor time, context switches, page faults and memory. Reading takes a few
//! system calls: on request, never on the hot path.

use core::marker::PhantomData;
use core::mem;

use fuelrail_base::Duration;

/// Processor time of the whole process since it started: (user, system).
#[must_use]
pub fn process_cpu() -> (Duration, Duration) {
    times(&used_by(libc::RUSAGE_SELF))
}

/// Processor time of the calling thread since it started: (user, system).
#[must_use]
pub fn thread_cpu() -> (Duration, Duration) {
    times(&used_by(libc::RUSAGE_THREAD))
}

fn used_by(who: libc::c_int) -> libc::rusage {
    // SAFETY: an all-zero `rusage` is a valid value.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one `rusage` into `usage`, which lives until after the call.
    let rc = unsafe { libc::getrusage(who, &mut usage) };
    assert_eq!(rc, 0, "getrusage knows these two arguments");
    usage
}

fn times(usage: &libc::rusage) -> (Duration, Duration) {
    let duration = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1_000);
    (duration(usage.ru_utime), duration(usage.ru_stime))
}

/// Resident memory of this process, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// Now.
    pub rss_bytes: u64,
    /// Its peak.
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

/// Resource usage of one thread since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThreadUse {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Voluntary context switches: the thread slept.
    pub switches_voluntary: u64,
    /// Involuntary context switches: the thread was preempted.
    pub switches_involuntary: u64,
    /// Page faults served without a disk.
    pub faults_minor: u64,
    /// The core it is on now.
    pub core: Option<usize>,
}

/// Reads the usage of the thread that opened it. Stays on that thread.
#[derive(Debug)]
pub struct ThreadMeter(PhantomData<*const ()>);

impl ThreadMeter {
    /// A meter of the calling thread.
    #[must_use]
    pub fn plain() -> ThreadMeter {
        ThreadMeter(PhantomData)
    }

    /// The thread's usage so far.
    #[must_use]
    pub fn read(&self) -> ThreadUse {
        let usage = used_by(libc::RUSAGE_THREAD);
        let (user, system) = times(&usage);
        let count = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
        ThreadUse {
            user,
            system,
            switches_voluntary: count(usage.ru_nvcsw),
            switches_involuntary: count(usage.ru_nivcsw),
            faults_minor: count(usage.ru_minflt),
            core: Some(rustix::thread::sched_getcpu()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn reads_the_status_file() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nVmRSSx:\t 7 kB\n";
        assert_eq!(parse_status(text), MemoryUse { rss_bytes: 1 << 20, peak_rss_bytes: 2 << 20 });
        assert_eq!(parse_status(""), MemoryUse::default());
        let now = memory_use();
        assert!(now.rss_bytes > 0 && now.peak_rss_bytes >= now.rss_bytes, "{now:?}");
    }

    fn work(meter: &ThreadMeter) -> ThreadUse {
        let start = meter.read();
        let mut x = 1u64;
        loop {
            for _ in 0..100_000 {
                x = black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            }
            let now = meter.read();
            if now.user + now.system >= start.user + start.system + Duration::from_millis(20) {
                return now;
            }
        }
    }

    #[test]
    fn counts_this_thread_only() {
        let (meter, process) = (ThreadMeter::plain(), process_cpu());
        let before = meter.read();
        std::thread::spawn(|| work(&ThreadMeter::plain())).join().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let between = meter.read();
        let after = work(&meter);
        assert!(after.user + after.system >= between.user + between.system + Duration::from_millis(20));
        let used = process_cpu().0 + process_cpu().1 - process.0 - process.1;
        assert!(used >= Duration::from_millis(35), "both threads are the process's: {used:?}");
        // What the other thread did cost this one next to nothing, and its own sleep was one.
        assert!(between.switches_voluntary > before.switches_voluntary, "{before:?} {between:?}");
        assert!(between.user + between.system < before.user + before.system + Duration::from_millis(20));
        assert!(after.core.is_some());
    }
}
