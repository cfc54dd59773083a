//! The rest of the machine: GPUs and their driver, the clock, what confines this process, and whose cloud it is in.

use std::fs;
use std::path::Path;

use super::finding::Finding;
use crate::cgroup;
use crate::topology::Topology;

/// NVIDIA GPUs and what is there to use them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gpus {
    /// Cards on the PCI bus.
    pub cards: usize,
    /// Device files `/dev/nvidiaN`.
    pub devices: usize,
    /// Version line of the kernel driver.
    pub driver: Option<String>,
    /// Whether `libcuda.so.1` can be loaded; `None` when another machine's files were looked at.
    pub cuda_library: Option<bool>,
}

/// Who confines this process, and where it runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Confinement {
    /// Whether a seccomp filter is on.
    pub seccomp_filter: bool,
    /// The clock the kernel reads time from.
    pub clock_source: Option<String>,
    /// Times the cgroup's quota has stopped this process or its siblings, of so many periods.
    pub throttled: Option<(u64, u64)>,
    /// Whether firmware or hypervisor say that this is Amazon EC2.
    pub ec2: bool,
}

pub(super) fn gpus(root: &Path) -> Gpus {
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
    Gpus {
        cards: pci.filter(|entry| is_card(&entry.path())).count(),
        devices: devices.count(),
        driver: version
            .and_then(|text| Some(text.lines().next()?.trim_start_matches("NVRM version:").trim().to_owned())),
        cuda_library: (root == Path::new("/")).then(loads_cuda),
    }
}

/// Whether the dynamic linker finds the driver's library: what the CUDA side of the engine will ask it for.
fn loads_cuda() -> bool {
    // SAFETY: the name is a constant C string. Loading runs the initialisers of the driver's own library, which touch no
    // memory of ours; it is not called, and stays loaded when it was loaded before.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        !library.is_null() && libc::dlclose(library) == 0
    }
}

pub(super) fn confinement(root: &Path) -> Confinement {
    let line = |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
    let status = line("proc/self/status").unwrap_or_default();
    let dmi = ["sys_vendor", "board_vendor", "product_uuid"].map(|file| line(&format!("sys/class/dmi/id/{file}")));
    let is_ec2 = |text: &String| text == "Amazon EC2" || text.to_ascii_lowercase().starts_with("ec2");
    Confinement {
        seccomp_filter: status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2")),
        clock_source: line("sys/devices/system/clocksource/clocksource0/current_clocksource"),
        throttled: throttled(root),
        ec2: dmi.into_iter().chain([line("sys/hypervisor/uuid")]).flatten().any(|text| is_ec2(&text)),
    }
}

/// From the innermost cgroup that counts.
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

pub(super) fn gpu_finding(gpus: &Gpus) -> Finding {
    let name = "gpu";
    match (&gpus.driver, gpus.cuda_library, gpus.cards + gpus.devices) {
        (None, Some(false) | None, 0) => Finding::good(name, "none: batches stay in host memory"),
        (None, _, _) => Finding::degraded(
            name,
            format!("{} NVIDIA card(s), no driver", gpus.cards.max(gpus.devices)),
            "install the NVIDIA driver on the host",
        ),
        (Some(driver), _, _) if gpus.devices == 0 => Finding::degraded(
            name,
            format!("driver {driver}, no device file"),
            "give the container its GPUs: docker run --gpus all, or nvidia.com/gpu in the pod",
        ),
        (Some(driver), Some(false), _) => Finding::degraded(
            name,
            format!("{} device(s), driver {driver}, libcuda.so.1 cannot be loaded", gpus.devices),
            "the driver's library belongs into the container: NVIDIA container toolkit, with capability compute",
        ),
        (Some(driver), _, _) => Finding::good(name, format!("{} device(s), driver {driver}", gpus.devices)),
    }
}

pub(super) fn findings(host: &Confinement, topology: &Topology) -> Vec<Finding> {
    let clock = host.clock_source.as_deref().unwrap_or("not told");
    let slow = matches!(clock, "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" | "xen");
    let mut findings = vec![
        Finding::good("seccomp filter", if host.seccomp_filter { "on" } else { "none" }),
        if slow {
            let cure =
                "reading the clock costs a system call or more: boot with clocksource=tsc (xen: kvm-clock or tsc)";
            Finding::degraded("clock source", clock, cure)
        } else {
            Finding::good("clock source", clock)
        },
        quota_finding(host, topology),
    ];
    if host.ec2 {
        findings.push(Finding::good("instance metadata", "Amazon EC2; not asked (fuelrail doctor --imds asks it)"));
    }
    findings
}

fn quota_finding(host: &Confinement, topology: &Topology) -> Finding {
    let name = "cgroup processor quota";
    let Some(quota) = &topology.quota else { return Finding::good(name, "none") };
    let value = format!("{} cores ({})", quota.cores, quota.from);
    match host.throttled {
        Some((stopped, periods)) if stopped > 0 => Finding::degraded(
            name,
            format!("{value}; stopped in {stopped} of {periods} periods"),
            "a stopped shard holds its batches up: raise the limit (cpu.max, resources.limits.cpu), or run fewer shards",
        ),
        _ => Finding::good(name, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::finding::Grade;
    use crate::tree::Tree;

    #[test]
    fn cards_driver_and_library_are_told_apart() {
        let tree = Tree::new("gpu", &[("dev/nvidiactl", ""), ("dev/null", "")]);
        assert_eq!(gpus(tree.root()), Gpus::default());
        assert_eq!(gpu_finding(&gpus(tree.root())).grade, Grade::Good);
        tree.add("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
        tree.add("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
        tree.add("sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");
        tree.add("sys/bus/pci/devices/0000:02:00.0/class", "0x068000\n");
        let bare = gpu_finding(&gpus(tree.root()));
        assert!(bare.value.contains("1 NVIDIA card(s), no driver") && bare.cure.is_some(), "{bare}");
        tree.add("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  570.86\nGCC version: 12\n");
        assert!(gpu_finding(&gpus(tree.root())).cure.unwrap().contains("--gpus"));
        tree.add("dev/nvidia0", "");
        let found = gpus(tree.root());
        assert_eq!((found.cards, found.devices, found.cuda_library), (1, 1, None));
        assert_eq!(gpu_finding(&found).value, "1 device(s), driver NVIDIA UNIX x86_64  570.86");
        let unloadable = Gpus { cuda_library: Some(false), ..found };
        assert!(gpu_finding(&unloadable).cure.unwrap().contains("toolkit"));
    }

    #[test]
    fn clocks_quotas_and_clouds_are_read() {
        let tree = Tree::new("host", &[("proc/self/status", "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n")]);
        tree.add("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
        tree.add("sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
        tree.add("proc/self/cgroup", "0::/box\n");
        tree.add("sys/fs/cgroup/box/cpu.max", "150000 100000\n");
        tree.add("sys/fs/cgroup/box/cpu.stat", "usage_usec 9\nnr_periods 40\nnr_throttled 7\nthrottled_usec 3\n");
        let host = confinement(tree.root());
        let wanted = Confinement {
            seccomp_filter: true,
            clock_source: Some("hpet".into()),
            throttled: Some((7, 40)),
            ec2: true,
        };
        assert_eq!(host, wanted);
        let lines = findings(&host, &Topology::under(tree.root(), &[0, 1]));
        let named = |name: &str| lines.iter().find(|line| line.name == name).unwrap();
        assert_eq!(named("seccomp filter").value, "on");
        assert!(named("clock source").cure.is_some());
        assert!(named("cgroup processor quota").value.contains("stopped in 7 of 40"), "{lines:?}");
        assert!(named("instance metadata").value.contains("--imds"));
        let silent = confinement(Tree::new("silent-host", &[]).root());
        assert_eq!(silent, Confinement::default());
    }
}
