//! The default budget: half of what this process may use, from its cgroup or else from the machine.

use std::fs;
use std::path::{Path, PathBuf};

use fuelrail_base::ByteSize;

/// A number of bytes and where it came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The bytes.
    pub bytes: u64,
    /// Where the number came from, to be printed at start.
    pub from: String,
}

/// Half of the smallest memory limit of this process's cgroups (version 2 `memory.max`, version 1
/// `memory.limit_in_bytes`, each with all parents), or half of the physical memory when there is none.
#[must_use]
pub fn default_budget() -> Budget {
    let physical = physical_bytes();
    match cgroup_limit().filter(|limit| limit.bytes < physical) {
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

/// The smallest limit set on this process's cgroups, and the file that says so. `None` when there is none.
pub(crate) fn cgroup_limit() -> Option<Budget> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_under(Path::new("/sys/fs/cgroup"), &membership)
}

fn physical_bytes() -> u64 {
    // SAFETY: both calls take a number and return one.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}

/// `membership` is `/proc/self/cgroup`: lines of `id:controllers:path`, version 2 with no controllers.
fn limit_under(mount: &Path, membership: &str) -> Option<Budget> {
    let mut limits = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        if controllers.is_empty() {
            walk(mount, path, "memory.max", &mut limits);
            // Hybrid hierarchies keep version 2 in a folder of its own.
            walk(&mount.join("unified"), path, "memory.max", &mut limits);
        } else if controllers.split(',').any(|controller| controller == "memory") {
            walk(&mount.join("memory"), path, "memory.limit_in_bytes", &mut limits);
        }
    }
    limits.into_iter().min_by_key(|limit: &Budget| limit.bytes)
}

/// Reads `file` in the folder of this cgroup and of all its parents. In a container the path may name a folder of the
/// host that cannot be seen; its limit then stands at the mount itself, which is always read.
fn walk(mount: &Path, path: &str, file: &str, limits: &mut Vec<Budget>) {
    let relative = Path::new(path.trim_start_matches('/'));
    let folders = relative.ancestors().map(|folder| mount.join(folder));
    for full in folders.map(|folder: PathBuf| folder.join(file)) {
        let Ok(text) = fs::read_to_string(&full) else { continue };
        // "max" does not parse; version 1 says "unlimited" as a number close to 2^63.
        if let Some(bytes) = text.trim().parse::<u64>().ok().filter(|bytes| *bytes < 1 << 62) {
            limits.push(Budget { bytes, from: full.display().to_string() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("fuelrail-cgroup-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_smallest_limit_up_the_hierarchy_wins() {
        let tree = Tree::new(
            "v2",
            &[("memory.max", "max\n"), ("pod/memory.max", "1073741824\n"), ("pod/box/memory.max", "4294967296\n")],
        );
        let limit = limit_under(&tree.0, "0::/pod/box\n").unwrap();
        assert_eq!(limit.bytes, 1 << 30);
        assert!(limit.from.ends_with("pod/memory.max"), "{}", limit.from);
    }

    #[test]
    fn version_one_and_paths_that_cannot_be_seen() {
        let tree = Tree::new(
            "v1",
            &[
                ("memory/memory.limit_in_bytes", "536870912\n"),
                ("memory/x/memory.limit_in_bytes", "9223372036854771712\n"),
            ],
        );
        let membership = "9:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/elsewhere\n";
        assert_eq!(limit_under(&tree.0, membership).unwrap().bytes, 512 << 20);
        assert_eq!(limit_under(&tree.0, "4:memory:/x\n").unwrap().bytes, 512 << 20);
        assert_eq!(limit_under(&tree.0.join("nothing"), membership), None);
    }

    #[test]
    fn the_default_is_positive_and_says_where_it_came_from() {
        let budget = default_budget();
        assert!(budget.bytes > 0 && budget.bytes <= physical_bytes() / 2);
        assert!(budget.from.starts_with("half of"), "{}", budget.from);
    }
}
