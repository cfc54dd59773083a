//! The cgroups this process is in, of version 1 and 2, the folders whose files limit it, and the default memory budget: half of what
//! this process may use.
//!
//! Owns the walk up the hierarchy; what a file in a folder means is the caller's. Reads below a root folder, so that
//! tests can build a machine of their own.

use std::fs;
use std::path::{Path, PathBuf};

use fuelrail_base::ByteSize;

/// The folders that may hold a limit of `controller` for this process: its own cgroup and all parents. In a container the
/// path may name a folder of the host that cannot be seen; its limit then stands at the mount itself, which is always among
/// them. Folders need not exist.
pub(crate) fn folders(root: &Path, controller: &str) -> Vec<PathBuf> {
    // Lines of `id:controllers:path`, version 2 with no controllers.
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mount = root.join("sys/fs/cgroup");
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let relative = Path::new(path.trim_start_matches('/'));
        let mut climb = |mount: PathBuf| found.extend(relative.ancestors().map(|folder| mount.join(folder)));
        if controllers.is_empty() {
            climb(mount.clone());
            // Hybrid hierarchies keep version 2 in a folder of its own.
            climb(mount.join("unified"));
        } else if controllers.split(',').any(|one| one == controller) {
            climb(mount.join(controller));
        }
    }
    found
}

/// A number of bytes and its source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The bytes.
    pub bytes: u64,
    /// The source of the number, to be printed at start.
    pub from: String,
}

/// Half of the smallest memory limit of this process's cgroups (version 2 `memory.max`, version 1
/// `memory.limit_in_bytes`, each with all parents), or half of the physical memory when there is none.
pub fn default_budget() -> Budget {
    budget_under(Path::new("/"))
}

/// The same, with the cgroups of the machine below `root`.
pub(crate) fn budget_under(root: &Path) -> Budget {
    let physical = physical_bytes();
    match cgroup_limit(root).filter(|limit| limit.bytes < physical) {
        Some(limit) => Budget {
            bytes: limit.bytes / 2,
            from: format!("half of the cgroup's limit of {} ({})", ByteSize(limit.bytes), limit.from),
        },
        None => Budget {
            bytes: physical / 2,
            from: format!("half of the physical memory of {} (no cgroup limit below it)", ByteSize(physical)),
        },
    }
}

/// The smallest limit set on this process's cgroups, and the file it is from, on the machine below `root`. `None` when
/// there is none.
pub(crate) fn cgroup_limit(root: &Path) -> Option<Budget> {
    let mut limits = Vec::new();
    for folder in folders(root, "memory") {
        for full in ["memory.max", "memory.limit_in_bytes"].map(|file| folder.join(file)) {
            let Ok(text) = fs::read_to_string(&full) else { continue };
            // "max" does not parse; version 1 says "unlimited" as a number close to 2^63.
            if let Some(bytes) = text.trim().parse::<u64>().ok().filter(|bytes| *bytes < 1 << 62) {
                limits.push(Budget { bytes, from: full.display().to_string() });
            }
        }
    }
    limits.into_iter().min_by_key(|limit: &Budget| limit.bytes)
}

fn physical_bytes() -> u64 {
    // SAFETY: both calls take a number and return one.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    #[test]
    fn the_smallest_limit_up_the_hierarchy_wins() {
        let tree = Tree::new(&[("proc/self/cgroup", "0::/pod/box\n")]);
        tree.add("sys/fs/cgroup/memory.max", "max\n");
        tree.add("sys/fs/cgroup/pod/memory.max", "1073741824\n");
        tree.add("sys/fs/cgroup/pod/box/memory.max", "4294967296\n");
        let limit = cgroup_limit(tree.root()).unwrap();
        assert_eq!(limit.bytes, 1 << 30);
        assert!(limit.from.ends_with("pod/memory.max"), "{}", limit.from);
    }

    #[test]
    fn version_one_and_paths_that_cannot_be_seen() {
        let tree = Tree::new(&[("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n")]);
        assert_eq!(cgroup_limit(tree.root()), None);
        tree.add("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
        for membership in ["9:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/elsewhere\n", "4:memory:/x\n"] {
            tree.add("proc/self/cgroup", membership);
            assert_eq!(cgroup_limit(tree.root()).unwrap().bytes, 512 << 20);
        }
    }

    #[test]
    fn the_default_is_positive_and_says_where_it_came_from() {
        let budget = default_budget();
        assert!(budget.bytes > 0 && budget.bytes <= physical_bytes() / 2);
        assert!(budget.from.starts_with("half of"), "{}", budget.from);
    }
}
