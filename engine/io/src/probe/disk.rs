//! The disk under a folder: its kind, and whether it supports direct access.
//!
//! Leaves no file: the one it tries has no name.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::finding::Finding;

/// Probes the disk under `folder`, described below `root`.
pub(super) fn disk(root: &Path, folder: &Path) -> Finding {
    let Ok(facts) = fs::metadata(folder) else {
        let cure = "name the folder that will hold the spill cache";
        return Finding::degraded("disk", format!("no folder {}", folder.display()), cure);
    };
    let (major, minor) = (libc::major(facts.dev()), libc::minor(facts.dev()));
    described(root, folder, &format!("{major}:{minor}"), try_direct(folder))
}

/// The block device of this number; `direct`: whether files can be opened with `O_DIRECT`, the error number when not, `None` when it
/// could not be tried.
fn described(root: &Path, folder: &Path, number: &str, direct: Option<Result<(), i32>>) -> Finding {
    let (name, place) = ("disk", folder.display());
    let block = fs::canonicalize(root.join("sys/dev/block").join(number)).unwrap_or_default();
    let Some(device) = block.file_name().and_then(|device| device.to_str()) else {
        return Finding::degraded(
            name,
            format!("{place} is not on a local disk (memory, network or stacked file system)"),
            "put the spill cache on a local NVMe disk",
        );
    };
    // A partition has no queue of its own: its disk is the folder above.
    let queue = block.join(if block.join("queue").is_dir() { "queue" } else { "../queue" });
    let read = |file: &str| fs::read_to_string(queue.join(file)).map_or(String::new(), |text| text.trim().to_owned());
    // Disks of virtual machines always report that they rotate.
    let rotates = read("rotational") == "1" && !device.starts_with("vd") && !device.starts_with("xvd");
    let kind = if rotates { "rotational" } else { "not rotational" };
    let poll = if read("io_poll") == "1" { "poll queues" } else { "no poll queues" };
    let queue = read("nr_requests").parse::<u64>().map_or(String::new(), |n| format!(", {n} requests"));
    let value = |direct: &str| format!("{place} on {device}: {direct}, {kind}, {poll}{queue}");
    match direct {
        Some(Err(errno)) => {
            let error = std::io::Error::from_raw_os_error(errno);
            let cure = "spilling through the page cache costs a copy and its memory: use ext4 or xfs";
            Finding::degraded(name, value(&format!("O_DIRECT refused ({error})")), cure)
        }
        _ if rotates => Finding::degraded(name, value("O_DIRECT"), "random reads are slow on it: use an NVMe disk"),
        Some(Ok(())) => Finding::good(name, value("O_DIRECT")),
        None => Finding::degraded(name, value("O_DIRECT not tried"), "name a folder that can be written to"),
    }
}

fn try_direct(folder: &Path) -> Option<Result<(), i32>> {
    let open = |flags| OpenOptions::new().write(true).mode(0o600).custom_flags(libc::O_TMPFILE | flags).open(folder);
    match open(libc::O_DIRECT) {
        Ok(_) => Some(Ok(())),
        // Told apart from a folder that takes no nameless files at all, or none of ours.
        Err(error) => open(0).ok().map(|_| Err(error.raw_os_error().unwrap_or(libc::EIO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::finding::Grade;
    use crate::tree::Tree;

    #[test]
    fn a_partition_is_described_by_its_disk_and_what_is_not_good_has_a_cure() {
        let tree = Tree::new("disk", &[("sys/devices/nvme0n1/queue/rotational", "0\n")]);
        tree.add("sys/devices/nvme0n1/queue/io_poll", "1\n");
        tree.add("sys/devices/nvme0n1/queue/nr_requests", "1023\n");
        tree.add("sys/devices/nvme0n1/nvme0n1p1/partition", "1\n");
        tree.link("sys/dev/block/259:1", "../../devices/nvme0n1/nvme0n1p1");
        tree.add("sys/devices/sda/queue/rotational", "1\n");
        tree.link("sys/dev/block/8:0", "../../devices/sda");
        let line = |number, direct| described(tree.root(), Path::new("/scratch"), number, direct);
        let good = line("259:1", Some(Ok(())));
        assert_eq!(good.grade, Grade::Good, "{good}");
        assert_eq!(good.value, "/scratch on nvme0n1p1: O_DIRECT, not rotational, poll queues, 1023 requests");
        for (number, direct) in
            [("1:1", Some(Ok(()))), ("8:0", Some(Ok(()))), ("259:1", Some(Err(libc::EINVAL))), ("259:1", None)]
        {
            let poor = line(number, direct);
            assert!(poor.grade == Grade::Degraded && poor.cure.is_some(), "{poor}");
        }
    }

    #[test]
    fn looking_leaves_nothing_behind() {
        let tree = Tree::new("direct", &[("kept", "x")]);
        assert!(try_direct(tree.root()).is_some(), "a folder of our own can be written to");
        assert_eq!(fs::read_dir(tree.root()).unwrap().count(), 1);
        let absent = disk(Path::new("/"), &tree.root().join("absent"));
        assert!(absent.grade == Grade::Degraded && absent.value.contains("no folder"), "{absent}");
    }
}
