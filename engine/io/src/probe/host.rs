//! The rest of the machine: GPUs and their driver, the clock, limits of this process, and the cloud.

use std::fs;
use std::path::Path;

use super::finding::Finding;
use crate::cgroup;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::finding::Grade;
    use crate::tree::Tree;

    #[test]
    fn cards_driver_and_library_are_told_apart() {
        let tree = Tree::new("gpu", &[("dev/nvidiactl", ""), ("dev/null", "")]);
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
        let tree = Tree::new("host", &[("proc/self/status", "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n")]);
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
        let silent = Tree::new("silent-host", &[]);
        let lines = confinement(silent.root(), &Topology::under(silent.root(), &[0]));
        assert!(lines.len() == 3 && lines.iter().all(|line| line.grade == Grade::Good), "{lines:?}");
    }
}
