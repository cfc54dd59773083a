//! A forked child that does something and tells how it went.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Does the work in a forked child, which exits with what it returns: that code, or `None` when the child was killed because
/// it had not ended in time.
///
/// For tests only. Of several threads the child has but this one, so a lock that another one holds stays held there.
///
/// # Panics
/// When the process may have no child.
pub fn in_fork(limit: Duration, work: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child works on its own copy of all memory, in which glibc keeps the allocator usable over a fork, and leaves
    // by `_exit`, so that nothing of the parent's runs there.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(101);
        // SAFETY: ends the child, which shares no memory with another process.
        unsafe { libc::_exit(code) };
    }
    let deadline = Instant::now() + limit;
    let mut status = 0;
    loop {
        // SAFETY: the status lives during the call.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if Instant::now() >= deadline {
            // SAFETY: our child, not waited for yet, so its number is still its own; the status lives during the call.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &raw mut status, 0);
            }
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
