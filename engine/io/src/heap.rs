//! What the C library does with memory that was freed.

/// Bytes that are kept for later: glibc's own first value.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 128 << 10;

/// Makes this process give freed memory back to the system, where the C library is glibc. By itself that raises what every thread's heap
/// keeps each time a large piece is freed, up to 64 MiB a heap, which looks like a leak in a process that lives for days. Costs a
/// system call for each piece of more than 128 KiB, of which nothing that is fast makes any.
///
/// For programs, at their start, while they have one thread: not for libraries in programs of others.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    for option in [libc::M_TRIM_THRESHOLD, libc::M_MMAP_THRESHOLD] {
        // SAFETY: it takes two numbers and no memory of ours. What it changes is read by other threads' allocations, of which there
        // are none yet, and torn by none that come: they are aligned words.
        let taken = unsafe { libc::mallopt(option, KEPT_BYTES) };
        debug_assert_eq!(taken, 1, "glibc knows these options");
    }
}
