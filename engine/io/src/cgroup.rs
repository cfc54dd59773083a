//! The cgroups this process is in, of version 1 and 2, and the folders whose files limit it.
//!
//! Owns the walk up the hierarchy; what a file in a folder means is the caller's. Reads below a root folder, so that
//! tests can build a machine of their own.

use std::fs;
use std::path::{Path, PathBuf};

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
