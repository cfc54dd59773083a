//! Opening an io_uring: its configuration, the best mode of this kernel, registered files and memory, and the errors of refusals.

use std::sync::Arc;

use fuelrail_base::limits::RING_FILES_MAX;
use fuelrail_base::{ByteSize, Error, Kind, Result};
use io_uring::IoUring;
use rustix::process::{Resource, getrlimit};

use crate::arena::{Arena, Mapping};
use crate::ring::kernel::Abilities;
use crate::ring::requests::BUFFER_BYTES_MAX;

/// Most registered buffers of one ring: the kernel's limit.
const BUFFERS_MAX: usize = 1 << 14;

/// An open ring and the abilities it has.
pub(super) struct Opened {
    pub(super) ring: IoUring,
    pub(super) fixed_files: bool,
    /// The registered memory, to be kept until the ring is closed.
    pub(super) registered: Option<Arc<Mapping>>,
    pub(super) abilities: Abilities,
}

/// How completions reach the thread, best first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Completion work runs when the thread waits, never in between (kernel 6.1).
    Deferred,
    /// Completion work runs at the thread's next system call, without interrupting it (kernel 5.19).
    Cooperative,
    /// Completion work interrupts the thread.
    Plain,
}

impl Mode {
    pub(crate) const BEST_FIRST: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Plain];

    fn name(self) -> &'static str {
        match self {
            Mode::Deferred => "single_issuer+defer_taskrun",
            Mode::Cooperative => "coop_taskrun",
            Mode::Plain => "interrupting completions",
        }
    }

    pub(crate) fn build(self, entries: u32, completions: u32) -> std::io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(completions);
        match self {
            Mode::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
            }
            Mode::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
            }
            Mode::Plain => {}
        }
        builder.build(entries)
    }
}

/// The kernel version whose abilities are used at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// All abilities of the running kernel.
    Running,
    /// Those of 5.19: registered files, cooperative completions.
    V5_19,
    /// Those of 5.13: timed waits and multishot polls, nothing else.
    V5_13,
}

impl Kernel {
    fn modes(self) -> &'static [Mode] {
        match self {
            Kernel::Running => &Mode::BEST_FIRST,
            Kernel::V5_19 => &Mode::BEST_FIRST[1..],
            Kernel::V5_13 => &Mode::BEST_FIRST[2..],
        }
    }
}

pub(super) fn open(config: &UringConfig, kernel: Kernel) -> Result<Opened> {
    let entries = config.entries.next_power_of_two();
    // Every operation, one cancellation each, and the wake poll fit without overflow.
    let completions = entries.saturating_mul(4);
    let (ring, mode) = open_best(entries, completions, kernel.modes())?;
    // Resource tagging came with multishot polls, which have no flag of their own and which the waker needs.
    let params = ring.params();
    if !params.is_feature_ext_arg() || !params.is_feature_nodrop() || !params.is_feature_resource_tagging() {
        return Err(Error::new(Kind::Environment, "this kernel's io_uring is too old").with_hint(OLD_KERNEL));
    }
    let mut abilities = Abilities { used: vec![mode.name()], refusals: Vec::new() };
    if mode != Mode::Deferred {
        let why = "deferred completions are not available: every wake-up costs more; kernel 6.1 has them";
        abilities.refusals.push(why.to_owned());
    }
    let descriptors = config.sockets + RING_FILES_MAX;
    let table = match kernel {
        Kernel::V5_13 => Err(std::io::Error::from_raw_os_error(libc::EINVAL)),
        _ => ring.submitter().register_files_sparse(descriptors),
    };
    let table = table.map_err(|error| {
        let cure = match error.raw_os_error() {
            Some(libc::EMFILE) => format!("raise the limit of open files (ulimit -n) to {descriptors}"),
            _ => "kernel 5.19 has them".to_owned(),
        };
        format!("registering a table of {descriptors} files: {error}; {cure}")
    });
    let fixed_files = abilities.note("registered files", table);
    let mapping = config.register.as_ref().map(Arena::mapping);
    let registered = mapping.filter(|mapping| abilities.note("registered memory", register_memory(&ring, mapping)));
    Ok(Opened { ring, fixed_files, registered, abilities })
}

fn open_best(entries: u32, completions: u32, modes: &[Mode]) -> Result<(IoUring, Mode)> {
    let mut last = libc::EINVAL;
    for mode in modes.iter().copied() {
        match mode.build(entries, completions) {
            Ok(ring) => return Ok((ring, mode)),
            // An unknown flag: an older kernel.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => {
                last = error.raw_os_error().unwrap_or(libc::EIO);
                break;
            }
        }
    }
    Err(refusal(last))
}

fn register_memory(ring: &IoUring, mapping: &Mapping) -> core::result::Result<(), String> {
    let (base, len) = mapping.range();
    let buffers: Vec<libc::iovec> = (0..len)
        .step_by(BUFFER_BYTES_MAX)
        .map(|offset| libc::iovec {
            iov_base: base.wrapping_add(offset).cast(),
            iov_len: (len - offset).min(BUFFER_BYTES_MAX),
        })
        .collect();
    let size = ByteSize(len as u64);
    if buffers.len() > BUFFERS_MAX {
        return Err(format!("registering {size}: the kernel's limit is {}", ByteSize((BUFFERS_MAX as u64) << 30)));
    }
    // SAFETY: the buffers are this mapping, which the ring keeps (`Opened::registered`) until it is closed.
    unsafe { ring.submitter().register_buffers(&buffers) }.map_err(|error| registering_refused(size.0, &error))
}

/// The error of a refused registration of `bytes`, with the cure.
fn registering_refused(bytes: u64, error: &std::io::Error) -> String {
    let cure = match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            let limit = getrlimit(Resource::Memlock)
                .current
                .map_or("unlimited".to_owned(), |limit| ByteSize(limit).to_string());
            format!(
                "the locked-memory limit is {limit}: raise it (ulimit -l, LimitMEMLOCK=, docker --ulimit memlock=-1) \
                 or grant CAP_IPC_LOCK"
            )
        }
        _ => "receives use unregistered memory instead, which costs a little more".to_owned(),
    };
    format!("registering {} of memory with io_uring: {error}; {cure}", ByteSize(bytes))
}

const OLD_KERNEL: &str = "use kernel 5.13 or later (6.1 for full speed)";

/// The error of a failed `io_uring_setup`, with the cure.
pub(crate) fn refusal(errno: i32) -> Error {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let filtered = status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"));
    io_uring_refusal(errno, disabled.trim(), filtered)
}

/// The error of `io_uring_setup` failing with `errno` where sysctl `kernel.io_uring_disabled` reads `disabled` (empty:
/// there is none) and a seccomp filter is on or not. Public so that every refusal can be tested on one machine.
#[doc(hidden)]
pub fn io_uring_refusal(errno: i32, disabled: &str, filtered: bool) -> Error {
    const PROFILE: &str = "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile \
                           (docker run --security-opt seccomp=fuelrail.json, or seccompProfile in the pod): \
                           engine/docs/CONTAINERS.md says how";
    let refused = matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS);
    let (cause, cure) = match (errno, disabled) {
        (libc::EPERM, "2") => (
            "io_uring is switched off for everyone (sysctl kernel.io_uring_disabled=2)",
            "switch it on: sysctl -w kernel.io_uring_disabled=0",
        ),
        (libc::EPERM, "1") => (
            "io_uring is switched off for unprivileged processes (sysctl kernel.io_uring_disabled=1)",
            "switch it on (sysctl -w kernel.io_uring_disabled=0), join the group kernel.io_uring_group, or grant \
             CAP_SYS_ADMIN",
        ),
        _ if refused && filtered => {
            ("a seccomp filter refuses io_uring (the default of Docker 25 and of containerd 2 does)", PROFILE)
        }
        (libc::ENOSYS, _) => ("this kernel has no io_uring", OLD_KERNEL),
        _ if refused => ("a security module refuses io_uring", "allow it in the SELinux or AppArmor policy"),
        (libc::ENOMEM, _) => (
            "the kernel has no memory for a ring",
            "raise the locked-memory limit (ulimit -l): kernels before 5.12 count rings against it",
        ),
        (libc::EMFILE | libc::ENFILE, _) => {
            ("no file descriptor left for a ring", "raise the limit of open files (ulimit -n)")
        }
        _ => ("opening an io_uring", OLD_KERNEL),
    };
    Error::from_errno(Kind::Environment, cause, errno).with_hint(cure)
}

/// How to make an io_uring ring.
#[derive(Clone, Debug)]
pub struct UringConfig {
    /// Operations that can be in flight.
    pub entries: u32,
    /// Sockets that can be open.
    pub sockets: u32,
    /// Arena to register with the kernel, so that receives into one window skip the page lookup. Registering touches
    /// and locks all of it. When it is refused, the ring works without it and [`RingFacts::refusals`](crate::RingFacts::refusals) says why.
    pub register: Option<Arena>,
}

impl Default for UringConfig {
    /// 512 operations, 512 sockets, nothing registered.
    fn default() -> UringConfig {
        UringConfig { entries: 512, sockets: 512, register: None }
    }
}

impl UringConfig {
    /// Most operations of a ring.
    pub const ENTRIES_MAX: u32 = 1 << 14;
    /// Most sockets of a ring.
    pub const SOCKETS_MAX: u32 = 1 << 15;

    /// Checks the counts.
    ///
    /// # Errors
    /// `Usage` for counts of zero or beyond the kernel's limits.
    pub fn validate(&self) -> Result<()> {
        let operations = ("operations", self.entries, UringConfig::ENTRIES_MAX);
        for (name, count, most) in [operations, ("sockets", self.sockets, UringConfig::SOCKETS_MAX)] {
            if count == 0 || count > most {
                return Err(Error::new(Kind::Usage, format!("a ring has 1 to {most} {name}, not {count}")));
            }
        }
        Ok(())
    }
}
