//! Which cores this process may run on, and putting a thread on one of them.

use core::mem;

use fuelrail_base::{Error, Kind, Result};

/// Cores the calling thread may run on, in ascending order. Respects `taskset` and the cgroup's cpuset.
#[must_use]
pub fn allowed_cores() -> Vec<usize> {
    // SAFETY: an all-zero `cpu_set_t` is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes at most `size_of_val(&set)` bytes into `set`, which lives until after the call.
    let rc = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) };
    if rc != 0 {
        // Refused by a seccomp profile, or more than 1 024 cores: any core may be tried.
        return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
    }
    // SAFETY: reads `set` only, within its size.
    (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
}

/// Keeps the calling thread on `core`.
///
/// # Errors
/// `Environment` when the process may not use this core.
pub fn pin_current_thread(core: usize) -> Result<()> {
    let refused = |why: String| {
        Err(Error::new(Kind::Environment, format!("pinning a thread to core {core}: {why}"))
            .cure(format!("use one of the cores this process is allowed: {:?}", allowed_cores())))
    };
    if core >= libc::CPU_SETSIZE as usize {
        return refused(format!("core numbers end at {}", libc::CPU_SETSIZE - 1));
    }
    // SAFETY: an all-zero `cpu_set_t` is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `core` is below CPU_SETSIZE, so the bit lies inside `set`.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the kernel reads `set` only during the call.
    if unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &set) } != 0 {
        return refused(std::io::Error::last_os_error().to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_a_thread_and_refuses_cores_that_are_not_there() {
        std::thread::spawn(|| {
            let core = *allowed_cores().last().unwrap();
            pin_current_thread(core).unwrap();
            assert_eq!(allowed_cores(), [core]);
            for absent in [1_023, 1 << 20] {
                let error = pin_current_thread(absent).unwrap_err();
                assert_eq!(error.kind(), Kind::Environment);
                assert!(error.to_string().contains(&format!("core {absent}")), "{error}");
            }
        })
        .join()
        .unwrap();
    }
}
