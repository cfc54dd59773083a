//! The disk under a folder: what it is, and whether it can be read past the page cache.
//!
//! Leaves nothing behind: the file it tries has no name.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::finding::Finding;

/// The disk under one folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// The folder looked at.
    pub folder: PathBuf,
    /// The block device; `None` for memory, network and stacked file systems.
    pub device: Option<String>,
    /// Whether it spins.
    pub rotational: bool,
    /// Whether completions can be polled for instead of interrupting.
    pub poll_queues: bool,
    /// Requests its queue takes.
    pub queue_requests: Option<u64>,
    /// Whether files can be opened past the page cache; the error number when not, `None` when it could not be tried.
    pub direct: Option<Result<(), i32>>,
}

/// Looks at the disk under `folder`, described below `root`. `None` when there is no such folder.
pub(super) fn disk(root: &Path, folder: &Path) -> Option<Disk> {
    let device_number = fs::metadata(folder).ok()?.dev();
    let (major, minor) = (libc::major(device_number), libc::minor(device_number));
    Some(described(root, folder, &format!("{major}:{minor}"), try_direct(folder)))
}

fn described(root: &Path, folder: &Path, number: &str, direct: Option<Result<(), i32>>) -> Disk {
    let block = fs::canonicalize(root.join("sys/dev/block").join(number)).ok();
    // A partition has no queue of its own: its disk is the folder above.
    let queue = block
        .as_ref()
        .map(|block| if block.join("queue").is_dir() { block.join("queue") } else { block.join("../queue") });
    let device = block.as_ref().and_then(|block| Some(block.file_name()?.to_str()?.to_owned()));
    let read = |file: &str| fs::read_to_string(queue.as_ref()?.join(file)).ok().map(|text| text.trim().to_owned());
    Disk {
        folder: folder.to_owned(),
        // Disks of virtual machines say they rotate, whatever is behind them.
        rotational: read("rotational").is_some_and(|text| text == "1") && !device.as_deref().is_some_and(is_virtual),
        device,
        poll_queues: read("io_poll").is_some_and(|text| text == "1"),
        queue_requests: read("nr_requests").and_then(|text| text.parse().ok()),
        direct,
    }
}

fn is_virtual(device: &str) -> bool {
    device.starts_with("vd") || device.starts_with("xvd")
}

fn try_direct(folder: &Path) -> Option<Result<(), i32>> {
    let open = |flags| OpenOptions::new().write(true).mode(0o600).custom_flags(libc::O_TMPFILE | flags).open(folder);
    match open(libc::O_DIRECT) {
        Ok(_) => Some(Ok(())),
        // Told apart from a folder that takes no nameless files at all, or none of ours.
        Err(error) => open(0).ok().map(|_| Err(error.raw_os_error().unwrap_or(libc::EIO))),
    }
}

pub(super) fn finding(disk: Option<&Disk>, folder: &Path) -> Finding {
    let name = "disk";
    let Some(disk) = disk else {
        return Finding::degraded(
            name,
            format!("no folder {}", folder.display()),
            "name the folder that will hold the spill cache",
        );
    };
    let place = disk.folder.display();
    let Some(device) = &disk.device else {
        return Finding::degraded(
            name,
            format!("{place} is on no disk of this machine (memory, network or stacked file system)"),
            "put the spill cache on a local NVMe disk",
        );
    };
    let kind = if disk.rotational { "rotational" } else { "not rotational" };
    let poll = if disk.poll_queues { "poll queues" } else { "no poll queues" };
    let queue = disk.queue_requests.map_or(String::new(), |n| format!(", {n} requests"));
    let value = |direct: &str| format!("{place} on {device}: {direct}, {kind}, {poll}{queue}");
    match disk.direct {
        Some(Err(errno)) => {
            let error = std::io::Error::from_raw_os_error(errno);
            let cure = "spilling through the page cache costs a copy and its memory: use ext4 or xfs";
            Finding::degraded(name, value(&format!("O_DIRECT refused ({error})")), cure)
        }
        _ if disk.rotational => Finding::degraded(name, value("O_DIRECT"), "random reads of blocks want an NVMe disk"),
        Some(Ok(())) => Finding::good(name, value("O_DIRECT")),
        None => Finding::degraded(name, value("O_DIRECT not tried"), "name a folder that can be written to"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::finding::Grade;
    use crate::tree::Tree;

    #[test]
    fn a_partition_is_described_by_its_disk() {
        let tree = Tree::new("disk", &[("sys/devices/nvme0n1/queue/rotational", "0\n")]);
        tree.add("sys/devices/nvme0n1/queue/io_poll", "1\n");
        tree.add("sys/devices/nvme0n1/queue/nr_requests", "1023\n");
        tree.add("sys/devices/nvme0n1/nvme0n1p1/partition", "1\n");
        tree.link("sys/dev/block/259:1", "../../devices/nvme0n1/nvme0n1p1");
        let disk = described(tree.root(), Path::new("/scratch"), "259:1", Some(Ok(())));
        assert_eq!(
            (disk.device.as_deref(), disk.poll_queues, disk.queue_requests),
            (Some("nvme0n1p1"), true, Some(1023))
        );
        let line = finding(Some(&disk), Path::new("/scratch"));
        assert_eq!(line.grade, Grade::Good, "{line}");
        assert!(line.value.contains("/scratch on nvme0n1p1: O_DIRECT, not rotational, poll queues"), "{line}");
    }

    #[test]
    fn what_is_not_good_has_a_cure() {
        let good = Disk {
            folder: "/x".into(),
            device: Some("vda".into()),
            rotational: false,
            poll_queues: false,
            queue_requests: None,
            direct: Some(Ok(())),
        };
        let poor = [
            Disk { device: None, ..good.clone() },
            Disk { rotational: true, ..good.clone() },
            Disk { direct: Some(Err(libc::EINVAL)), ..good.clone() },
            Disk { direct: None, ..good.clone() },
        ];
        for disk in poor.iter().map(Some).chain([None]) {
            let line = finding(disk, Path::new("/x"));
            assert!(line.grade == Grade::Degraded && line.cure.is_some(), "{line}");
        }
        assert_eq!(finding(Some(&good), Path::new("/x")).grade, Grade::Good);
    }

    #[test]
    fn looking_leaves_nothing_behind() {
        let tree = Tree::new("direct", &[("kept", "x")]);
        let disk = disk(Path::new("/"), tree.root()).unwrap();
        assert_eq!(fs::read_dir(tree.root()).unwrap().count(), 1);
        assert!(disk.direct.is_some(), "a folder of our own can be written to: {disk:?}");
        assert_eq!(super::disk(Path::new("/"), &tree.root().join("absent")), None);
    }
}
