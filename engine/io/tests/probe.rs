//! What the machine refuses is told with its cause and its cure, on this machine and on those that cannot be had here.

use fuelrail_base::Kind;
use fuelrail_io::{Grade, io_uring_refusal, probe};

#[test]
fn refusals_name_cause_and_cure() {
    let here = probe();
    for finding in here.findings() {
        let cured = finding.cure.as_deref().is_some_and(|cure| !cure.is_empty());
        assert_eq!(finding.grade != Grade::Good, cured, "{finding:?}");
    }
    if let Err(refused) = &here.io_uring {
        assert_eq!(refused.kind(), Kind::Environment, "{refused}");
    }
    // Error number, sysctl kernel.io_uring_disabled, whether a seccomp filter is on; what must be said.
    for (errno, disabled, filtered, cause, cure) in [
        (libc::EPERM, "2", false, "switched off for everyone", "io_uring_disabled=0"),
        (libc::EPERM, "1", true, "unprivileged", "io_uring_group"),
        (libc::EPERM, "0", true, "seccomp filter", "seccomp profile"),
        (libc::EACCES, "0", false, "security module", "SELinux"),
        (libc::EPERM, "0", false, "security module", "SELinux"),
        (libc::ENOSYS, "", true, "seccomp filter", "seccomp profile"),
        (libc::ENOSYS, "", false, "no io_uring", "kernel 5.13"),
        (libc::EMFILE, "0", false, "file descriptor", "ulimit -n"),
        (libc::EINVAL, "0", false, "opening", "kernel 5.13"),
        (libc::ENOMEM, "0", false, "no memory", "locked-memory limit (ulimit -l)"),
    ] {
        let refusal = io_uring_refusal(errno, disabled, filtered);
        let text = refusal.to_string();
        let said_cure = text.strip_prefix(refusal.cause()).and_then(|rest| rest.strip_prefix("; ")).unwrap_or_default();
        assert_eq!(refusal.kind(), Kind::Environment, "{text}");
        assert!(refusal.cause().contains(cause), "{errno}: {text}");
        assert!(refusal.cause().contains(&format!("os error {errno}")), "{errno}: {text}");
        assert!(said_cure.contains(cure), "{errno}: {text}");
    }
}
