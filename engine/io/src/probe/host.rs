//! This machine, without its network: abilities of the kernel's io_uring, found by opening small rings; the disk under a folder; GPUs and
//! their driver; the clock, limits of this process, and the cloud. Leaves no file: the one it tries has no name.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use fuelrail_base::{ByteSize, Result};
use rustix::fs::StatVfsMountFlags;

use super::finding::Finding;
use crate::cgroup;
use crate::ring::uring::{Mode, refusal};
use crate::topology::Topology;

/// NVIDIA GPUs, their driver and its library.
pub(super) fn gpu(root: &Path) -> Finding {
    let pci = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    let is_card = |folder: &Path| {
        let starts =
            |file: &str, what: &str| fs::read_to_string(folder.join(file)).is_ok_and(|text| text.starts_with(what));
        starts("vendor", "0x10de") && (starts("class", "0x0300") || starts("class", "0x0302"))
    };
    let devices = fs::read_dir(root.join("dev")).into_iter().flatten().flatten().filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    });
    let version = fs::read_to_string(root.join("proc/driver/nvidia/version")).ok();
    let driver = version.as_deref().and_then(|text| text.lines().next());
    let driver = driver.map(|line| line.trim_start_matches("NVRM version:").trim());
    let cards = pci.filter(|entry| is_card(&entry.path())).count();
    // The linker of another machine cannot be tried.
    let loads = (root == Path::new("/")).then(loads_cuda);
    gpu_line(cards, devices.count(), driver, loads)
}

fn gpu_line(cards: usize, devices: usize, driver: Option<&str>, loads: Option<bool>) -> Finding {
    let name = "gpu";
    match (driver, loads) {
        (None, Some(false) | None) if cards + devices == 0 => Finding::good(name, "none: batches stay in host memory"),
        (None, _) => Finding::degraded(
            name,
            format!("{} NVIDIA card(s), no driver", cards.max(devices)),
            "install the NVIDIA driver on the host",
        ),
        (Some(driver), _) if devices == 0 => Finding::degraded(
            name,
            format!("driver {driver}, no device file"),
            "give the container its GPUs: docker run --gpus all, or nvidia.com/gpu in the pod",
        ),
        (Some(driver), Some(false)) => Finding::degraded(
            name,
            format!("{devices} device(s), driver {driver}, libcuda.so.1 cannot be loaded"),
            "the driver's library belongs into the container: NVIDIA container toolkit, with capability compute",
        ),
        (Some(driver), _) => Finding::good(name, format!("{devices} device(s), driver {driver}")),
    }
}

/// Whether the dynamic linker finds the driver's library, as the crate `cuda` will load it.
fn loads_cuda() -> bool {
    // SAFETY: the name is a constant C string. Loading runs the initialisers of the driver's own library, which touch no
    // memory of ours; it is not called, and stays loaded when it was loaded before.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        !library.is_null() && libc::dlclose(library) == 0
    }
}

/// The seccomp filter, the clock source, the processor quota, and whether firmware or hypervisor report EC2.
pub(super) fn confinement(root: &Path, topology: &Topology) -> Vec<Finding> {
    let line = |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
    let status = line("proc/self/status").unwrap_or_default();
    let filtered = status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"));
    let clock = line("sys/devices/system/clocksource/clocksource0/current_clocksource");
    let clock = clock.as_deref().unwrap_or("unknown");
    let cure = "reading the clock costs a system call or more: boot with clocksource=tsc (xen: kvm-clock or tsc)";
    let mut findings = vec![
        Finding::good("seccomp filter", if filtered { "on" } else { "none" }),
        match clock {
            "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" | "xen" => {
                Finding::degraded("clock source", clock, cure)
            }
            _ => Finding::good("clock source", clock),
        },
        quota(root, topology),
    ];
    let dmi = ["sys_vendor", "board_vendor", "product_uuid"].map(|file| line(&format!("sys/class/dmi/id/{file}")));
    let is_ec2 = |text: &String| text == "Amazon EC2" || text.to_ascii_lowercase().starts_with("ec2");
    if dmi.into_iter().chain([line("sys/hypervisor/uuid")]).flatten().any(|text| is_ec2(&text)) {
        findings
            .push(Finding::good("instance metadata", "Amazon EC2; not queried (fuelrail doctor --imds queries it)"));
    }
    findings
}

fn quota(root: &Path, topology: &Topology) -> Finding {
    let name = "cgroup processor quota";
    let Some(quota) = &topology.quota else { return Finding::good(name, "none") };
    let value = format!("{} cores ({})", quota.cores, quota.from);
    match throttled(root) {
        Some((stopped, periods)) if stopped > 0 => Finding::degraded(
            name,
            format!("{value}; throttled in {stopped} of {periods} periods"),
            "a throttled shard delays its batches: raise the limit (cpu.max, resources.limits.cpu), or run fewer shards",
        ),
        _ => Finding::good(name, value),
    }
}

/// Periods in which the cgroup's quota throttled this process or its siblings, and all periods: from the innermost cgroup that counts them.
fn throttled(root: &Path) -> Option<(u64, u64)> {
    let stats = cgroup::folders(root, "cpu").into_iter().map(|folder| fs::read_to_string(folder.join("cpu.stat")));
    stats.flatten().find_map(|text| {
        let count = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line?.trim().parse::<u64>().ok()
        };
        Some((count("nr_throttled")?, count("nr_periods")?))
    })
}

/// Probes the kernel with small rings that are closed again: a line for each ability.
///
/// # Errors
/// `Environment` with cause and cure when there is no io_uring for this process.
pub(super) fn abilities() -> Result<Vec<Finding>> {
    let (mut first, mut deferred) = (None, false);
    for mode in Mode::BEST_FIRST {
        match mode.build(8, 32) {
            Ok(ring) => {
                deferred |= mode == Mode::Deferred;
                first.get_or_insert(ring);
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL) => {}
                errno => return Err(refusal(errno.unwrap_or(libc::EIO))),
            },
        }
    }
    let ring = first.ok_or_else(|| refusal(libc::EINVAL))?;
    let timed_waits = ring.params().is_feature_ext_arg() && ring.params().is_feature_resource_tagging();
    let registered_files = ring.submitter().register_files_sparse(4).is_ok();
    Ok(lines(timed_waits, deferred, registered_files, ring.params().is_feature_recvsend_bundle()))
}

/// `timed_waits`: waits take a limit and polls repeat (kernel 5.13). Without them there is no `uring` back-end.
pub(super) fn lines(timed_waits: bool, deferred: bool, registered_files: bool, bundles: bool) -> Vec<Finding> {
    let one = |name: &str, has: bool, cure: &str| {
        if has { Finding::good(name, "yes") } else { Finding::degraded(name, "no", cure) }
    };
    vec![
        if timed_waits {
            Finding::good("io_uring", "yes")
        } else {
            Finding::refused("io_uring", "too old", "use kernel 5.13 or later (6.1 for full speed)")
        },
        one("  deferred completions", deferred, "kernel 6.1 has them"),
        one("  registered files", registered_files, "kernel 5.19 has them"),
        one("  bundles", bundles, "kernel 6.10 has them"),
    ]
}

/// Probes the disk under `folder`, described below `root`.
pub(super) fn disk(root: &Path, folder: &Path) -> Finding {
    let place = folder.display();
    let wrong = |what| Finding::degraded("disk", what, "name the folder that will hold the spill cache");
    let facts = match fs::metadata(folder) {
        Ok(facts) if facts.is_dir() => facts,
        Ok(_) => return wrong(format!("{place} is not a directory")),
        Err(error) if error.kind() == ErrorKind::NotFound => return wrong(format!("no folder {place}")),
        Err(error) => return wrong(format!("{place}: {error}")),
    };
    let (major, minor) = (libc::major(facts.dev()), libc::minor(facts.dev()));
    let found = described(root, folder, &format!("{major}:{minor}"), try_direct(folder));
    let Ok(volume) = rustix::fs::statvfs(folder) else { return found };
    let bytes = |blocks: u64| blocks.saturating_mul(volume.f_frsize);
    let is_read_only = volume.f_flag.contains(StatVfsMountFlags::RDONLY);
    with_room(found, (bytes(volume.f_bavail), bytes(volume.f_blocks)), is_read_only)
}

/// The same, with what is free of all room of its file system, bytes: whether anything can be kept there.
fn with_room(found: Finding, (free, total): (u64, u64), is_read_only: bool) -> Finding {
    let value = format!("{}, {} free of {}", found.value, ByteSize(free), ByteSize(total));
    if is_read_only {
        let cure = "nothing can be kept there: mount it to be written to, or use another disk";
        return Finding::degraded(found.name, format!("{value}, read-only"), cure);
    }
    if free < total / 20 {
        let cure = "nothing is kept there, as spill_floor leaves a twentieth free: free some space, or set spill_floor";
        return Finding::degraded(found.name, value, cure);
    }
    Finding { value, ..found }
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
    fn cards_driver_and_library_are_told_apart() {
        let tree = Tree::new(&[("dev/nvidiactl", ""), ("dev/null", "")]);
        assert_eq!(gpu(tree.root()).grade, Grade::Good);
        tree.add("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
        tree.add("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
        tree.add("sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");
        tree.add("sys/bus/pci/devices/0000:02:00.0/class", "0x068000\n");
        let bare = gpu(tree.root());
        assert!(bare.value.contains("1 NVIDIA card(s), no driver") && bare.cure.is_some(), "{bare}");
        tree.add("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  570.86\nGCC version: 12\n");
        assert!(gpu(tree.root()).cure.unwrap().contains("--gpus"));
        tree.add("dev/nvidia0", "");
        assert_eq!(gpu(tree.root()).value, "1 device(s), driver NVIDIA UNIX x86_64  570.86");
        assert!(gpu_line(1, 1, Some("570.86"), Some(false)).cure.unwrap().contains("toolkit"));
    }

    #[test]
    fn clocks_quotas_and_clouds_are_read() {
        let tree = Tree::new(&[("proc/self/status", "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n")]);
        tree.add("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
        tree.add("sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
        tree.add("proc/self/cgroup", "0::/box\n");
        tree.add("sys/fs/cgroup/box/cpu.max", "150000 100000\n");
        tree.add("sys/fs/cgroup/box/cpu.stat", "usage_usec 9\nnr_periods 40\nnr_throttled 7\nthrottled_usec 3\n");
        let lines = confinement(tree.root(), &Topology::under(tree.root(), &[0, 1]));
        let named = |name: &str| lines.iter().find(|line| line.name == name).unwrap();
        assert_eq!(named("seccomp filter").value, "on");
        assert!(named("clock source").value == "hpet" && named("clock source").cure.is_some());
        assert!(named("cgroup processor quota").value.contains("throttled in 7 of 40"), "{lines:?}");
        assert!(named("instance metadata").value.contains("--imds"));
        let silent = Tree::new(&[]);
        let lines = confinement(silent.root(), &Topology::under(silent.root(), &[0]));
        assert!(lines.len() == 3 && lines.iter().all(|line| line.grade == Grade::Good), "{lines:?}");
    }

    #[test]
    fn a_partition_is_described_by_its_disk_and_what_is_not_good_has_a_cure() {
        let tree = Tree::new(&[("sys/devices/nvme0n1/queue/rotational", "0\n")]);
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
        let tree = Tree::new(&[("kept", "x")]);
        assert!(try_direct(tree.root()).is_some(), "a folder of our own can be written to");
        assert_eq!(fs::read_dir(tree.root()).unwrap().count(), 1);
        let absent = disk(Path::new("/"), &tree.root().join("absent"));
        assert!(absent.grade == Grade::Degraded && absent.value.contains("no folder"), "{absent}");
        let file = disk(Path::new("/"), &tree.root().join("kept"));
        assert!(file.value.ends_with("is not a directory"), "{file}");
        assert!(disk(Path::new("/"), tree.root()).value.contains(" free of "));
    }

    #[test]
    fn a_disk_that_takes_nothing_is_not_good() {
        let good = || Finding::good("disk", "/scratch on nvme0n1");
        let roomy = with_room(good(), (1 << 30, 2 << 30), false);
        assert_eq!((roomy.grade, &*roomy.value), (Grade::Good, "/scratch on nvme0n1, 1.0 GiB free of 2.0 GiB"));
        let full = with_room(good(), (0, 2 << 30), false);
        assert!(full.grade == Grade::Degraded && full.cure.unwrap().contains("spill_floor"));
        let kept = with_room(good(), (1 << 30, 2 << 30), true);
        assert!(kept.grade == Grade::Degraded && kept.value.ends_with("read-only"), "{kept}");
    }
}
