//! What this kernel's io_uring can do, found out by opening small rings and asking.

use fuelrail_base::Result;

use super::finding::Finding;
use crate::ring::uring::{Mode, refusal};

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
    Ok(features)
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
