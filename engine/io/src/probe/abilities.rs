//! Abilities of this kernel's io_uring, found by opening small rings.

use fuelrail_base::Result;

use super::finding::Finding;
use crate::ring::uring::{Mode, refusal};

/// Probes the kernel with small rings that are closed again: a line for each ability.
///
/// # Errors
/// `Environment` with cause and cure when there is no io_uring for this process.
pub(super) fn abilities() -> Result<Vec<Finding>> {
    let (mut first, mut deferred) = (None, false);
    for mode in Mode::BEST_FIRST {
        match mode.build(8, 32) {
            Ok(ring) => {
                deferred |= mode == Mode::Deferred;
                first.get_or_insert(ring);
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL) => {}
                errno => return Err(refusal(errno.unwrap_or(libc::EIO))),
            },
        }
    }
    let ring = first.ok_or_else(|| refusal(libc::EINVAL))?;
    let timed_waits = ring.params().is_feature_ext_arg() && ring.params().is_feature_resource_tagging();
    let registered_files = ring.submitter().register_files_sparse(4).is_ok();
    Ok(lines(timed_waits, deferred, registered_files, ring.params().is_feature_recvsend_bundle()))
}

/// `timed_waits`: waits take a limit and polls repeat (kernel 5.13). Without them there is no `uring` back-end.
pub(super) fn lines(timed_waits: bool, deferred: bool, registered_files: bool, bundles: bool) -> Vec<Finding> {
    let one = |name: &str, has: bool, cure: &str| {
        if has { Finding::good(name, "yes") } else { Finding::degraded(name, "no", cure) }
    };
    vec![
        if timed_waits {
            Finding::good("io_uring", "yes")
        } else {
            Finding::refused("io_uring", "too old", "use kernel 5.13 or later (6.1 for full speed)")
        },
        one("  deferred completions", deferred, "kernel 6.1 has them"),
        one("  registered files", registered_files, "kernel 5.19 has them"),
        one("  bundles", bundles, "kernel 6.10 has them"),
    ]
}
