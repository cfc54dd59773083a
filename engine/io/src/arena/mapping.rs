//! Mapping the arena on the largest pages available: a range of mapped memory, unmapped when dropped. Hands out addresses; never reads
//! or writes the bytes.

use core::ops::Range;
use core::ptr::NonNull;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use fuelrail_base::{ByteSize, Error, Kind, Result};
use rustix::fs::{MemfdFlags, SealFlags};

use super::config::{ArenaConfig, ArenaReport, HUGE_PAGE_BYTES, Huge, HugePages, PAGE_BYTES};

/// The mapping itself. Unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    /// Stays open as long as it is mapped: the file of memory that is lent, or the socket that it was lent over.
    pub(super) kept: Option<Arc<OwnedFd>>,
}

// SAFETY: a mapping is an address range; it hands out raw addresses only, whose use is governed by slots and windows.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method touches the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new mapping anywhere, to be read and written, of so many bytes of the file or else of zeroes. Populated when touched.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(len: usize, flags: libc::c_int, file: Option<&File>) -> io::Result<Mapping> {
        Mapping::with(len, libc::PROT_READ | libc::PROT_WRITE, flags, file.map_or(-1, AsRawFd::as_raw_fd))
    }

    /// A mapping of memory that another process lends, to be read alone. `kept` stays open as long as it lasts.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn borrowed(len: usize, memory: &OwnedFd, kept: Arc<OwnedFd>) -> io::Result<Mapping> {
        let mut mapping = Mapping::with(len, libc::PROT_READ, libc::MAP_SHARED, memory.as_raw_fd())?;
        mapping.kept = Some(kept);
        Ok(mapping)
    }

    /// A mapping of the first `len` bytes of a file, to be read alone.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn of_file(len: usize, file: &File) -> io::Result<Mapping> {
        Mapping::with(len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn with(len: usize, access: libc::c_int, flags: libc::c_int, fd: RawFd) -> io::Result<Mapping> {
        // SAFETY: asks for a new range anywhere; no existing memory is affected.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), len, access, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { base: NonNull::new(base.cast()).expect("a mapping is nowhere near zero"), len, kept: None })
    }

    /// An empty mapping, for tests that only count.
    #[cfg(all(test, loom))]
    pub(crate) fn none() -> Arc<Mapping> {
        Arc::new(Mapping { base: NonNull::dangling(), len: 0, kept: None })
    }

    /// The first byte and the length.
    pub(crate) fn range(&self) -> (*mut u8, usize) {
        (self.base.as_ptr(), self.len)
    }

    /// Address of the byte at `offset`, which must have `len` bytes of mapping from there on.
    pub(crate) fn at(&self, offset: u64, len: usize) -> NonNull<u8> {
        let fits = usize::try_from(offset).ok().and_then(|o| o.checked_add(len)).is_some_and(|end| end <= self.len);
        assert!(fits, "{offset}+{len} lies outside the mapping");
        // SAFETY: checked to lie inside the mapping; every user of the address holds the mapping through its remote free list.
        unsafe { self.base.add(offset as usize) }
    }

    /// Requests the pages of a range from a NUMA node, while it has any: before they are touched. Other nodes serve the rest when it is
    /// full, so nothing fails for lack of memory on one node.
    ///
    /// # Errors
    /// `Environment` when the kernel refuses: no such node, or a seccomp profile without `mbind`.
    fn prefer_node(&self, range: &Range<u64>, node: usize) -> Result<()> {
        const PREFERRED: libc::c_int = 1;
        const NODES_MAX: usize = 1024;
        let refused = |errno: i32| {
            let doing = format!("taking memory from NUMA node {node}");
            Error::from_errno(Kind::Environment, &doing, errno).with_hint(
                "allow mbind in the seccomp profile (CAP_SYS_NICE in Docker's), or run on one node (numactl -N 0)",
            )
        };
        if node >= NODES_MAX {
            return Err(refused(libc::EINVAL));
        }
        let mut mask = [0 as libc::c_ulong; NODES_MAX / libc::c_ulong::BITS as usize];
        mask[node / libc::c_ulong::BITS as usize] |= 1 << (node % libc::c_ulong::BITS as usize);
        let len = (range.end - range.start) as usize;
        let base = self.at(range.start, len);
        // SAFETY: sets a policy on a range inside this mapping; it changes which pages will back it, never what they hold. The kernel
        // reads `mask`, as long as it says, during the call only.
        let rc = unsafe {
            // The kernel uses one bit less than the given length.
            libc::syscall(libc::SYS_mbind, base.as_ptr(), len, PREFERRED, mask.as_ptr(), NODES_MAX + 1, 0)
        };
        if rc == 0 { Ok(()) } else { Err(refused(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))) }
    }

    /// Populates a range with pages: afterwards no access to it can fail.
    ///
    /// # Errors
    /// The kernel's, where an access would have been a SIGBUS, and `EINVAL` of kernels before 5.14, which cannot tell.
    fn populate(&self, range: &Range<u64>) -> io::Result<()> {
        let len = (range.end - range.start) as usize;
        // SAFETY: touches pages of our own mapping; what they hold stays.
        let rc = unsafe { libc::madvise(self.at(range.start, len).as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(all(test, loom))]
        if self.len == 0 {
            return;
        }
        // SAFETY: the range was mapped and belongs to this value. Every slot, window and operation holds
        // this mapping through its remote free list, and every ring that registered it holds it too: no pointer into it is left.
        let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(rc, 0, "the range is our own mapping");
    }
}

/// The mapping, and what was mapped. Reserved huge pages are populated.
pub(super) fn map(config: &ArenaConfig) -> Result<(Mapping, ArenaReport)> {
    map_with(config, |bytes| anonymous(bytes, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB))
}

/// The same, where `reserve` maps so many bytes of reserved huge pages.
fn map_with(config: &ArenaConfig, reserve: impl Fn(usize) -> Option<Mapping>) -> Result<(Mapping, ArenaReport)> {
    let regions = u64::from(config.regions);
    // Every region has a whole number of pages, and the sum is never above the budget.
    let shared = config.bytes - config.extra_bytes;
    let whole = |page: u64| shared / regions / page * page * regions + config.extra_bytes / page * page;
    let bytes = whole(PAGE_BYTES);
    // Reserved huge pages cannot be split. A budget that is no multiple of them gets ordinary pages, so that every byte
    // of it is there.
    let divides = whole(HUGE_PAGE_BYTES) == bytes && bytes > 0;
    let mut notices = Vec::new();
    let may_reserve = config.huge_pages == HugePages::Auto && divides && !config.lent;
    let reserved = may_reserve.then(|| reserve(bytes as usize)).flatten();
    let (mapping, page_bytes, huge) = match reserved.and_then(|mapping| populated(mapping, config, &mut notices)) {
        Some(mapping) => (mapping, HUGE_PAGE_BYTES, Huge::Explicit),
        None => {
            let others = if config.lent { lent(bytes)? } else { not_reserved(config, bytes)? };
            notices.extend(place(&others.0, config));
            others
        }
    };
    let extra_bytes = config.extra_bytes / PAGE_BYTES * PAGE_BYTES;
    let region_bytes = (bytes - extra_bytes) / regions;
    Ok((mapping, ArenaReport { bytes, region_bytes, extra_bytes, page_bytes, huge, notices }))
}

/// Populates the mapping; `None` and a notice when it cannot. The kernel maps reserved pages without checking the hugetlb cgroup,
/// which may refuse them at the first touch: that would be a SIGBUS.
fn populated(mapping: Mapping, config: &ArenaConfig, notices: &mut Vec<String>) -> Option<Mapping> {
    let refused = place(&mapping, config);
    let outcome = std::thread::scope(|scope| {
        let populate = |range| mapping.populate(&range);
        let threads: Vec<_> =
            config.ranges(mapping.len as u64).map(|range| scope.spawn(move || populate(range))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("populating does not panic"))
    });
    match outcome {
        Ok(()) => {
            notices.extend(refused);
            Some(mapping)
        }
        Err(error) => {
            notices.push(format!(
                "huge pages: the kernel promised {} of reserved ones and could not provide them (MADV_POPULATE_WRITE: {error}), \
                 so they are not used; raise the limit of the hugetlb cgroup (hugetlb.2MB.max) above memory_limit, and \
                 use Linux 5.14 or newer",
                ByteSize(mapping.len as u64)
            ));
            None
        }
    }
}

/// Requests every region's pages from its node. Returns the refusals.
fn place(mapping: &Mapping, config: &ArenaConfig) -> Option<String> {
    let mut wanted = config.ranges(mapping.len as u64).zip(&config.nodes);
    wanted.find_map(|(range, node)| mapping.prefer_node(&range, (*node)?).err()).map(|error| error.to_string())
}

/// The mapping on pages that are not reserved, the requested page size, and the state of huge pages.
fn not_reserved(config: &ArenaConfig, bytes: u64) -> Result<(Mapping, u64, Huge)> {
    if config.huge_pages == HugePages::Off {
        return Ok((ordinary(bytes)?, PAGE_BYTES, Huge::None("huge pages were switched off".into())));
    }
    if bytes < HUGE_PAGE_BYTES {
        let why = format!("the arena is smaller than one huge page of {}", ByteSize(HUGE_PAGE_BYTES));
        return Ok((ordinary(bytes)?, PAGE_BYTES, Huge::None(why)));
    }
    match thp_mode(Path::new("/")) {
        ThpMode::Always | ThpMode::Madvise => {
            let mapping = aligned(bytes as usize)?;
            let (base, len) = mapping.range();
            // SAFETY: advice about our own mapping; it changes which pages back it, never what they hold.
            if unsafe { libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE) } == 0 {
                return Ok((mapping, HUGE_PAGE_BYTES, Huge::Transparent));
            }
            let why = format!("the kernel refused MADV_HUGEPAGE: {}", std::io::Error::last_os_error());
            Ok((mapping, PAGE_BYTES, Huge::None(why)))
        }
        mode => {
            let why = format!(
                "no free reserved huge pages ({} free) and transparent ones are {}; reserve some \
                 (sysctl vm.nr_hugepages={}) or allow transparent ones (echo madvise > {THP_ENABLED})",
                free_huge_pages(Path::new("/")),
                if mode == ThpMode::Never { "switched off" } else { "not in this kernel, or /sys is hidden" },
                bytes.div_ceil(HUGE_PAGE_BYTES),
            );
            Ok((ordinary(bytes)?, PAGE_BYTES, Huge::None(why)))
        }
    }
}

/// Memory with a descriptor (memfd) that can be sent to other processes. It is sealed against shrinking, which would end processes that read it
/// with a SIGBUS, against growing, and against writing through any other mapping. It cannot have reserved huge pages, and transparent ones only
/// where the system allows them for shared memory.
fn lent(bytes: u64) -> Result<(Mapping, u64, Huge)> {
    let sealed = || -> io::Result<Mapping> {
        let memory = rustix::fs::memfd_create("fuelrail", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&memory, bytes)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mut mapping = Mapping::with(bytes as usize, access, libc::MAP_SHARED, memory.as_raw_fd())?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals)?;
        mapping.kept = Some(Arc::new(memory));
        Ok(mapping)
    };
    let mapping = sealed().map_err(|error| {
        Error::from_io(Kind::Environment, format_args!("making memory of {} to share (memfd)", ByteSize(bytes)), error)
            .with_hint("allow memfd_create in the seccomp profile, and use Linux 5.1 or newer")
    })?;
    let (base, len) = mapping.range();
    // SAFETY: advice about our own mapping; it changes which pages back it, never what they hold.
    let advised = unsafe { libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE) } == 0;
    let text = std::fs::read_to_string(format!("/{SHMEM_ENABLED}")).unwrap_or_default();
    if advised && ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|word| text.contains(word)) {
        return Ok((mapping, HUGE_PAGE_BYTES, Huge::Transparent));
    }
    let why = format!("shared memory has them where the system allows it (echo advise > /{SHMEM_ENABLED})");
    Ok((mapping, PAGE_BYTES, Huge::None(why)))
}

fn ordinary(bytes: u64) -> Result<Mapping> {
    anonymous(bytes as usize, 0).ok_or_else(|| refused(bytes))
}

/// A mapping that starts at a multiple of the huge page size, so that every huge page of it can be one.
fn aligned(bytes: usize) -> Result<Mapping> {
    let huge = HUGE_PAGE_BYTES as usize;
    let loose = anonymous(bytes + huge, 0).ok_or_else(|| refused(bytes as u64))?;
    let (base, len) = loose.range();
    let skip = base.align_offset(huge);
    // From here on the two trimmed ends and the rest are separate mappings with separate owners.
    std::mem::forget(loose);
    let part = |from: usize, len: usize| {
        // SAFETY: `from + len` lies inside the mapping just made; the pointer is not null because its base is not.
        Mapping { base: unsafe { NonNull::new_unchecked(base.add(from)) }, len, kept: None }
    };
    if skip > 0 {
        drop(part(0, skip));
    }
    let tail = skip + bytes;
    if tail < len {
        drop(part(tail, len - tail));
    }
    Ok(part(skip, bytes))
}

/// A private anonymous mapping: zeroes, populated when touched.
fn anonymous(bytes: usize, more_flags: libc::c_int) -> Option<Mapping> {
    Mapping::new(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more_flags, None).ok()
}

fn refused(bytes: u64) -> Error {
    let cause = format!("mapping {}: {}", ByteSize(bytes), std::io::Error::last_os_error());
    Error::new(Kind::Budget, cause).with_hint("ask for less memory, or raise the address-space limit (ulimit -v)")
}

const SHMEM_ENABLED: &str = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
pub(crate) const THP_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The kernel's mode for transparent huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ThpMode {
    Always,
    Madvise,
    Never,
    Absent,
}

/// The mode of the machine below `root`.
pub(crate) fn thp_mode(root: &Path) -> ThpMode {
    let path = root.join(THP_ENABLED.trim_start_matches('/'));
    parse_thp(&std::fs::read_to_string(path).unwrap_or_default())
}

/// The bracketed word of `always [madvise] never`.
fn parse_thp(text: &str) -> ThpMode {
    match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word) {
        Some("always") => ThpMode::Always,
        Some("madvise") => ThpMode::Madvise,
        Some(_) => ThpMode::Never,
        None => ThpMode::Absent,
    }
}

/// Reserved huge pages of the default size that are free, on the machine below `root`.
pub(crate) fn free_huge_pages(root: &Path) -> u64 {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_bracketed_mode() {
        assert_eq!(parse_thp("always [madvise] never\n"), ThpMode::Madvise);
        assert_eq!(parse_thp("[always] madvise never\n"), ThpMode::Always);
        assert_eq!(parse_thp("always madvise [never]\n"), ThpMode::Never);
        assert_eq!(parse_thp(""), ThpMode::Absent);
    }

    #[test]
    fn aligned_mappings_are_aligned_and_usable_to_the_last_byte() {
        let mapping = aligned(3 * HUGE_PAGE_BYTES as usize).unwrap();
        let (base, len) = mapping.range();
        assert!((base as usize).is_multiple_of(HUGE_PAGE_BYTES as usize));
        // SAFETY: both bytes lie inside the mapping, which lives until the end of this function.
        unsafe {
            base.write(1);
            base.add(len - 1).write(2);
            assert_eq!((base.read(), base.add(1).read(), base.add(len - 1).read()), (1, 0, 2));
        }
    }

    /// A hugetlb cgroup lets pages be mapped and refuses them when they are touched.
    #[test]
    fn reserved_pages_that_cannot_be_provided_are_not_used_and_a_notice_says_why() {
        let promise = |bytes| anonymous(bytes, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB | libc::MAP_NORESERVE);
        let bytes = (free_huge_pages(Path::new("/")) + 4) * HUGE_PAGE_BYTES;
        let config = ArenaConfig { bytes, regions: 2, ..ArenaConfig::default() };
        let (mapping, report) = map_with(&config, promise).unwrap();
        let (base, len) = mapping.range();
        for at in (0..len).step_by(HUGE_PAGE_BYTES as usize) {
            // SAFETY: inside the mapping, which lives until the end of this function.
            unsafe { base.add(at).write(1) };
        }
        assert!(report.huge != Huge::Explicit && report.bytes == bytes, "{report:?}");
        assert_eq!(
            report.notices.len(),
            usize::from(promise(len).is_some()),
            "a kernel may be built without them: {report:?}"
        );
        assert!(report.notices.iter().all(|notice| notice.contains("MADV_POPULATE_WRITE")), "{report:?}");
    }
}
