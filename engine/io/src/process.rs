//! This process: the machine's clocks (the monotonic one for waits, wall time for signatures), which only this module reads; resource
//! usage of the process and its threads (a few system calls: on request, never on the hot path); settings of the C library's allocator;
//! and whether it was forked.

use core::marker::PhantomData;
use core::mem;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use fuelrail_base::{Duration, Error, Instant, Kind, Result, WallTime};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Processor time of the whole process since it started: (user, system).
pub fn process_cpu() -> (Duration, Duration) {
    times(&used_by(libc::RUSAGE_SELF))
}

/// Processor time of the calling thread since it started.
pub fn thread_cpu() -> Duration {
    let (user, system) = times(&used_by(libc::RUSAGE_THREAD));
    user + system
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
    pub fn plain() -> ThreadMeter {
        ThreadMeter(PhantomData)
    }

    /// The thread's usage so far.
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

/// Files and sockets that this process may have open at a time; `None` without a limit.
pub fn open_files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The longest file that this process may write, bytes; `None` without a limit.
pub fn file_bytes_max() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Whether this process may write a file of so many bytes. A write beyond its limit ends the process (SIGXFSZ), unless that is ignored.
pub fn may_write(len: u64) -> bool {
    file_bytes_max().is_none_or(|most| len <= most)
}

/// The monotonic clock as an [`Instant`]: nanoseconds since the machine's boot-time origin, the same for every thread
/// and every real ring of this machine, so instants taken on different shards compare.
pub fn monotonic_now() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Wall time, as of the kernel's last tick: a few milliseconds old, and cheaper for it. Signatures are dated with it.
pub fn wall_now() -> WallTime {
    WallTime(u64::try_from(clock_gettime(ClockId::RealtimeCoarse).tv_sec).unwrap_or(0))
}

/// Bytes kept for later allocations: glibc's initial value.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 128 << 10;

/// Makes glibc return freed memory to the system. By default glibc raises what every thread's heap keeps each time a large piece is
/// freed, up to 64 MiB a heap, which looks like a leak in a long-lived process. Costs a system call for each allocation of more than
/// 128 KiB, which the hot path makes none of.
///
/// For programs, at their start, while they have one thread; not for libraries.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    for option in [libc::M_TRIM_THRESHOLD, libc::M_MMAP_THRESHOLD] {
        // SAFETY: it takes two numbers and no memory of ours. It changes aligned words that allocations of
        // other threads read; no other thread exists yet.
        let taken = unsafe { libc::mallopt(option, KEPT_BYTES) };
        debug_assert_eq!(taken, 1, "glibc knows these options");
    }
}

/// Returns freed memory that glibc still holds to the system. May be called at any time; takes milliseconds.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number, and glibc locks each heap it trims.
    unsafe {
        libc::malloc_trim(0);
    }
}

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Detects that the process is not the one it was made in.
///
/// Rings and pinned memory do not survive a fork: the child shares the parent's ring but not its memory. Every child of libc's `fork`
/// increments a counter, so a check costs one load and no system call.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    forks: u32,
    pid: u32,
}

impl Default for ForkGuard {
    fn default() -> ForkGuard {
        ForkGuard::new()
    }
}

impl ForkGuard {
    /// A guard for this process.
    #[must_use]
    pub fn new() -> ForkGuard {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler is a function of this program, alive as long as the process; all it does is one
            // atomic addition, which is allowed between fork and exec.
            let rc = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            assert_eq!(rc, 0, "no memory left to register a fork handler");
        });
        ForkGuard { forks: FORKS.load(Ordering::Relaxed), pid: std::process::id() }
    }

    /// Whether this is still the process the guard was made in.
    pub fn holds(&self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// The same as an error.
    ///
    /// # Errors
    /// `Environment` in a child made by `fork` since.
    pub fn check(&self) -> Result<()> {
        if self.holds() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Environment,
            format!("process {} is a fork of {}, in which the loader was opened", std::process::id(), self.pid),
        )
        .with_hint("open the loader after the fork, or start workers with spawn or forkserver instead of fork"))
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

    #[test]
    fn wall_time_is_that_of_the_standard_library() {
        let since = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let (before, now, after) = (since(), wall_now().0, since());
        assert!((before - 1..=after).contains(&now), "{before} {now} {after}");
    }
}
