//! Settings of the C library's allocator.

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
