//! What this process and its threads have cost: processor time, context switches, page faults, memory and, where the kernel counts
//! them, cycles and instructions.
//!
//! Owns the two `perf` events of one thread. Reading is a few system calls: done on request, never on the hot path.

use core::marker::PhantomData;
use core::mem;
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;

use fuelrail_base::{Duration, Error, Kind, Result};

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

/// What one thread has cost since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThreadUse {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Times the thread gave its core up by itself: it slept.
    pub switches_voluntary: u64,
    /// Times its core was taken from it.
    pub switches_involuntary: u64,
    /// Page faults served without a disk.
    pub faults_minor: u64,
    /// The core it is on now.
    pub core: Option<usize>,
    /// Cycles its core spent on it, kernel included, since the meter was opened.
    pub cycles: Option<u64>,
    /// Instructions retired, kernel included, since the meter was opened.
    pub instructions: Option<u64>,
}

/// Reads what the thread that opened it has cost. Stays on that thread.
#[derive(Debug)]
pub struct ThreadMeter {
    cycles: Option<File>,
    instructions: Option<File>,
    refusal: Option<String>,
    /// The kernel counts for the thread that opened the events.
    not_send: PhantomData<*const ()>,
}

/// Reading gives the count, the time the event was wanted and the time it was counted: a processor with fewer counters than
/// events takes turns.
const READ_FORMAT: u64 = 1 | 2;

/// `struct perf_event_attr` in its first published size, which every kernel takes.
#[repr(C)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags_and_breakpoint: [u64; 3],
}

impl ThreadMeter {
    /// A meter without `perf` events: they make every context switch of the thread a little dearer.
    #[must_use]
    pub fn plain() -> ThreadMeter {
        ThreadMeter { cycles: None, instructions: None, refusal: None, not_send: PhantomData }
    }

    /// A meter that counts cycles and instructions, where it may; [`refusal`](ThreadMeter::refusal) says why not.
    #[must_use]
    pub fn with_cycles() -> ThreadMeter {
        let mut meter = ThreadMeter::plain();
        match (event(0), event(1)) {
            (Ok(cycles), Ok(instructions)) => (meter.cycles, meter.instructions) = (Some(cycles), Some(instructions)),
            (Err(error), _) | (_, Err(error)) => meter.refusal = Some(error.to_string()),
        }
        meter
    }

    /// Why cycles are not counted, with the cure.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// What the thread has cost so far.
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
            cycles: self.cycles.as_ref().and_then(counted),
            instructions: self.instructions.as_ref().and_then(counted),
        }
    }
}

/// Opens one counting event of the calling thread, user and kernel mode: most of a receive is the kernel's copy. Of the hardware's
/// events, number 0 is cycles, 1 instructions.
fn event(config: u64) -> Result<File> {
    const HARDWARE: u32 = 0;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    let attributes = EventAttributes {
        kind: HARDWARE,
        size: mem::size_of::<EventAttributes>() as u32,
        config,
        sample_period: 0,
        sample_type: 0,
        read_format: READ_FORMAT,
        flags_and_breakpoint: [0; 3],
    };
    let (this_thread, any_core, no_group) = (0, -1, -1);
    // SAFETY: the kernel reads `attributes`, of the size it names, during the call only.
    let fd = unsafe {
        let attributes: *const EventAttributes = &raw const attributes;
        libc::syscall(libc::SYS_perf_event_open, attributes, this_thread, any_core, no_group, CLOSE_ON_EXEC)
    };
    match i32::try_from(fd) {
        // SAFETY: the descriptor was just returned by the kernel and nobody else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(refused(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))),
    }
}

fn refused(errno: i32) -> Error {
    let error = |cause: &str| Error::from_errno(Kind::Environment, cause, errno);
    match errno {
        libc::EPERM | libc::EACCES => error("counting cycles is refused").with_hint(
            "sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON and a seccomp profile that allows perf_event_open",
        ),
        libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP => error("this machine shows no cycle counter")
            .with_hint("virtual machines need a virtual PMU from their host"),
        _ => error("counting cycles"),
    }
}

/// The count, scaled up when the processor took turns.
fn counted(event: &File) -> Option<u64> {
    let mut words = [0u8; 24];
    let mut event = event;
    event.read_exact(&mut words).ok()?;
    let word = |n: usize| u64::from_ne_bytes(words[8 * n..8 * n + 8].try_into().expect("eight bytes"));
    let (count, wanted, ran) = (word(0), word(1), word(2));
    if ran == 0 {
        return None;
    }
    u64::try_from(u128::from(count) * u128::from(wanted) / u128::from(ran)).ok()
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
        assert!(after.core.is_some() && after.cycles.is_none());
    }

    #[test]
    fn cycles_are_counted_or_their_absence_is_explained() {
        let meter = ThreadMeter::with_cycles();
        let counted = work(&meter);
        match meter.refusal() {
            Some(why) => {
                assert!(counted.cycles.is_none() && counted.instructions.is_none(), "{counted:?}");
                assert!(why.contains("count"), "{why}");
            }
            // 20 ms of work are more than ten million cycles on anything that runs this.
            None => assert!(counted.cycles.unwrap() > 10_000_000 && counted.instructions.unwrap() > 0, "{counted:?}"),
        }
        for errno in [libc::EPERM, libc::ENOENT] {
            assert!(refused(errno).to_string().contains("; "), "no cure for {errno}");
        }
    }
}
