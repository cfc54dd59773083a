//! What this kernel's io_uring can do, found out by opening small rings and asking.

use fuelrail_base::Result;
use std::os::fd::AsRawFd;

use super::finding::Finding;
use crate::ring::uring::{Mode, REGISTER_ZCRX_IFQ, mixed_ring, refusal};

/// io_uring abilities of this kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Completion work waits for the thread to ask for it (kernel 6.1).
    pub defer_taskrun: bool,
    /// Completion work does not interrupt the thread (kernel 5.19).
    pub coop_taskrun: bool,
    /// Waits take a time limit and polls repeat (kernel 5.13). Without them there is no `uring` back-end.
    pub timed_waits: bool,
    /// Sockets can be registered in a table (kernel 5.19).
    pub registered_files: bool,
    /// Receives and sends can carry several buffers at once (kernel 6.10).
    pub bundles: bool,
    /// Payloads can be received without a copy, given a network card that does it (kernel 6.15).
    pub zero_copy_receive: bool,
    /// Whether this process could register a card's queue for that.
    pub zero_copy_queue: ZeroCopyQueue,
}

/// What asking to register a network card's receive queue comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZeroCopyQueue {
    /// The kernel does not know the request, was built without it, or has no ring that takes it (kernel 6.18).
    #[default]
    Unknown,
    /// The kernel knows it and wants `CAP_NET_ADMIN`.
    NeedsPrivilege,
    /// The kernel would look at the request.
    Allowed,
}

/// Asks the kernel, on small rings that are closed again.
///
/// # Errors
/// `Environment` with cause and cure when there is no io_uring for this process.
pub(super) fn features() -> Result<Features> {
    let mut features = Features::default();
    let mut first = None;
    for mode in Mode::BEST_FIRST {
        match mode.build(8, 32) {
            Ok(ring) => {
                match mode {
                    Mode::Deferred => features.defer_taskrun = true,
                    Mode::Cooperative => features.coop_taskrun = true,
                    Mode::Plain => {}
                }
                first.get_or_insert(ring);
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL) => {}
                errno => return Err(refusal(errno.unwrap_or(libc::EIO))),
            },
        }
    }
    let ring = first.ok_or_else(|| refusal(libc::EINVAL))?;
    features.timed_waits = ring.params().is_feature_ext_arg() && ring.params().is_feature_resource_tagging();
    features.registered_files = ring.submitter().register_files_sparse(4).is_ok();
    features.bundles = ring.params().is_feature_recvsend_bundle();
    let mut known = io_uring::Probe::new();
    if ring.submitter().register_probe(&mut known).is_ok() {
        features.zero_copy_receive = known.is_supported(io_uring::opcode::RecvZc::CODE);
    }
    features.zero_copy_queue = zero_copy_queue();
    Ok(features)
}

/// Asks for a queue with an argument that cannot be read: a kernel that knows the request and would carry it out says so,
/// and no card is touched.
fn zero_copy_queue() -> ZeroCopyQueue {
    let Ok(ring) = mixed_ring(8, 32) else { return ZeroCopyQueue::Unknown };
    // SAFETY: the argument's address is in the first page, which is never mapped: the kernel's read of it fails, and it
    // writes nothing.
    let rc = unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), REGISTER_ZCRX_IFQ, 8usize, 1) };
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EFAULT) if rc < 0 => ZeroCopyQueue::Allowed,
        Some(libc::EPERM) if rc < 0 => ZeroCopyQueue::NeedsPrivilege,
        _ => ZeroCopyQueue::Unknown,
    }
}

pub(super) fn findings(io_uring: &Result<Features>) -> Vec<Finding> {
    let name = "io_uring";
    let features = match io_uring {
        Ok(features) => features,
        Err(error) => {
            let (value, text) = (error.cause().to_owned(), error.to_string());
            let cure = text.strip_prefix(&value).unwrap_or(&text).trim_start_matches("; ").to_owned();
            return vec![Finding::refused(name, value, cure)];
        }
    };
    let one = |name: &str, has: bool, cure: &str| {
        if has { Finding::good(name, "yes") } else { Finding::degraded(name, "no", cure) }
    };
    let usable = Finding::good(name, "yes");
    let too_old = || Finding::refused(name, "too old", "use kernel 5.13 or later (6.1 for full speed)");
    vec![
        if features.timed_waits { usable } else { too_old() },
        one("  deferred completions", features.defer_taskrun, "kernel 6.1 has them"),
        one("  registered files", features.registered_files, "kernel 5.19 has them"),
        one("  bundles", features.bundles, "kernel 6.10 has them"),
    ]
}
