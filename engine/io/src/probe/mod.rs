//! What this machine can do for the engine, with cause and cure for all it cannot. Everything `fuelrail doctor` prints.
//!
//! Files are read below a root folder, so that tests can build a machine of their own; what only a system call tells is
//! asked of this one. Changes nothing and talks to nobody.

mod abilities;
mod disk;
mod finding;
mod host;
mod network;

use std::fs;
use std::path::{Path, PathBuf};

use fuelrail_base::{ByteSize, Result};
use rustix::process::{Resource, getrlimit};

use crate::arena::{Budget, THP_ENABLED, ThpMode, budget_under, cgroup_limit, free_huge_pages, thp_mode};
use crate::topology::{Topology, allowed_cores};

pub use abilities::Features;
pub use disk::Disk;
pub use finding::{Finding, Grade};
pub use host::{Confinement, Gpus};
pub use network::Nic;

/// Where to look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbeConfig {
    /// The folder that `/proc`, `/sys` and `/dev` are read below.
    pub root: PathBuf,
    /// The folder whose disk is looked at: where a spill cache would be.
    pub folder: PathBuf,
}

impl Default for ProbeConfig {
    /// This machine, and the disk under its folder of temporary files.
    fn default() -> ProbeConfig {
        ProbeConfig { root: "/".into(), folder: std::env::temp_dir() }
    }
}

/// Everything that was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Probe {
    /// Kernel release, as `uname -r` says it.
    pub kernel: String,
    /// io_uring, or why not and what to do (`Environment`).
    pub io_uring: Result<Features>,
    /// Limit on locked memory, bytes; `None` when there is none.
    pub memlock_bytes: Option<u64>,
    /// Reserved huge pages that are free.
    pub huge_pages_free: u64,
    /// Mode of transparent huge pages: `always`, `madvise`, `never`, or `absent`.
    pub transparent_huge_pages: &'static str,
    /// The smallest memory limit of this process's cgroups, and the file that says so.
    pub cgroup_limit: Option<Budget>,
    /// What a loader takes when it is not told.
    pub default_budget: Budget,
    /// Cores, NUMA nodes and the cgroup's processor quota.
    pub topology: Topology,
    /// Most open files.
    pub open_files_max: Option<u64>,
    /// Network cards that are up.
    pub nics: Vec<Nic>,
    /// The disk under [`ProbeConfig::folder`]; `None` when there is no such folder.
    pub disk: Option<Disk>,
    /// The folder that was asked about.
    pub folder: PathBuf,
    /// GPUs and their driver.
    pub gpus: Gpus,
    /// Confinement, clock and cloud.
    pub confinement: Confinement,
}

/// Looks at this machine. Opens and closes small rings; changes nothing.
#[must_use]
pub fn probe() -> Probe {
    probe_under(&ProbeConfig::default())
}

/// Looks where it is told to.
#[must_use]
pub fn probe_under(config: &ProbeConfig) -> Probe {
    let root = config.root.as_path();
    Probe {
        kernel: read_line(&root.join("proc/sys/kernel/osrelease")),
        io_uring: abilities::features(),
        memlock_bytes: getrlimit(Resource::Memlock).current,
        huge_pages_free: free_huge_pages(root),
        transparent_huge_pages: thp_word(thp_mode(root)),
        cgroup_limit: cgroup_limit(root),
        default_budget: budget_under(root),
        topology: Topology::under(root, &allowed_cores()),
        open_files_max: getrlimit(Resource::Nofile).current,
        nics: network::nics(root),
        disk: disk::disk(root, &config.folder),
        folder: config.folder.clone(),
        gpus: host::gpus(root),
        confinement: host::confinement(root),
    }
}

impl Probe {
    /// One line each, in the order to be printed.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![Finding::good("kernel", self.kernel.clone())];
        findings.extend(abilities::findings(&self.io_uring));
        findings.push(self.memlock_finding());
        findings.push(self.huge_page_finding());
        findings.push(match &self.cgroup_limit {
            Some(limit) => Finding::good("cgroup memory limit", format!("{} ({})", ByteSize(limit.bytes), limit.from)),
            None => Finding::good("cgroup memory limit", "none"),
        });
        let budget = &self.default_budget;
        findings.push(Finding::good("default memory budget", format!("{}, {}", ByteSize(budget.bytes), budget.from)));
        findings.push(self.cores_finding());
        findings.push(self.node_finding());
        findings.push(self.open_files_finding());
        findings.extend(network::findings(&self.nics));
        findings.push(disk::finding(self.disk.as_ref(), &self.folder));
        findings.push(host::gpu_finding(&self.gpus));
        findings.extend(host::findings(&self.confinement, &self.topology));
        findings
    }

    fn memlock_finding(&self) -> Finding {
        let name = "locked-memory limit";
        match self.memlock_bytes {
            None => Finding::good(name, "none"),
            Some(bytes) => Finding::degraded(
                name,
                ByteSize(bytes).to_string(),
                "unprivileged processes cannot register more memory than this: ulimit -l unlimited, \
                 LimitMEMLOCK=infinity, or docker --ulimit memlock=-1",
            ),
        }
    }

    fn huge_page_finding(&self) -> Finding {
        let name = "huge pages";
        let value = format!("{} reserved and free, transparent: {}", self.huge_pages_free, self.transparent_huge_pages);
        if self.huge_pages_free > 0 || matches!(self.transparent_huge_pages, "always" | "madvise") {
            Finding::good(name, value)
        } else {
            Finding::degraded(name, value, format!("echo madvise > {THP_ENABLED}, or sysctl vm.nr_hugepages=N"))
        }
    }

    fn cores_finding(&self) -> Finding {
        let cores = &self.topology.cores;
        let ids = cores.iter().map(|core| core.id.to_string()).collect::<Vec<_>>().join(",");
        let physical = self.topology.physical_cores();
        Finding::good("cores", format!("{} on {physical} physical ({ids})", cores.len()))
    }

    fn node_finding(&self) -> Finding {
        let Topology { cores, nodes, memory_nodes, .. } = &self.topology;
        let foreign: Vec<_> = cores.iter().filter(|core| !memory_nodes.contains(&core.node)).collect();
        let value = format!("{}, memory from {memory_nodes:?}", nodes.len());
        if foreign.is_empty() {
            return Finding::good("numa nodes", value);
        }
        let value = format!("{value}; {} core(s) of other nodes", foreign.len());
        Finding::degraded("numa nodes", value, "give the cpuset cores and memory of the same nodes (cpuset.mems)")
    }

    fn open_files_finding(&self) -> Finding {
        let name = "open-files limit";
        let value = self.open_files_max.map_or("none".into(), |most| most.to_string());
        if self.open_files_max.is_none_or(|most| most >= 1024) {
            Finding::good(name, value)
        } else {
            Finding::degraded(name, value, "few connections fit: ulimit -n 65536")
        }
    }
}

fn thp_word(mode: ThpMode) -> &'static str {
    match mode {
        ThpMode::Always => "always",
        ThpMode::Madvise => "madvise",
        ThpMode::Never => "never",
        ThpMode::Absent => "absent",
    }
}

fn read_line(path: &Path) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_else(|_| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Core;
    use crate::tree::Tree;
    use fuelrail_base::{Error, Kind};

    #[test]
    fn this_machine_is_described() {
        let probe = probe();
        assert!(!probe.kernel.is_empty() && !probe.topology.cores.is_empty() && !probe.topology.nodes.is_empty());
        let findings = probe.findings();
        for name in
            ["kernel", "io_uring", "locked-memory limit", "huge pages", "default memory budget", "cores", "disk", "gpu"]
        {
            assert!(findings.iter().any(|finding| finding.name == name), "{name} is missing");
        }
    }

    #[test]
    fn another_machine_is_described_from_its_files() {
        let tree = Tree::new("machine", &[("proc/sys/kernel/osrelease", "5.10.0-cloud\n"), ("spill/here", "")]);
        tree.add("proc/meminfo", "MemTotal: 8 kB\nHugePages_Free:       512\n");
        tree.add("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
        tree.add("proc/self/cgroup", "0::/pod\n");
        tree.add("sys/fs/cgroup/pod/memory.max", "1073741824\n");
        tree.add("sys/fs/cgroup/pod/cpu.max", "200000 100000\n");
        let probe = probe_under(&ProbeConfig { root: tree.root().to_owned(), folder: tree.root().join("spill") });
        assert_eq!((probe.kernel.as_str(), probe.huge_pages_free), ("5.10.0-cloud", 512));
        assert_eq!((probe.transparent_huge_pages, probe.default_budget.bytes), ("never", 512 << 20));
        let lines: Vec<String> = probe.findings().iter().map(ToString::to_string).collect();
        for what in ["5.10.0-cloud", "512 reserved", "1.0 GiB", "2 cores (", "none is visible", "stay in host memory"] {
            assert!(lines.iter().any(|line| line.contains(what)), "{what}: {lines:#?}");
        }
    }

    #[test]
    fn all_that_is_not_good_has_a_cure() {
        let refused = Error::from_errno(Kind::Environment, "a seccomp filter refuses io_uring", libc::EPERM)
            .cure("allow it in the profile");
        let core = |id, node| Core { id, node, package: 0, physical: id };
        let worst = Probe {
            kernel: "4.18".into(),
            io_uring: Err(refused),
            memlock_bytes: Some(64 << 10),
            huge_pages_free: 0,
            transparent_huge_pages: "never",
            cgroup_limit: None,
            default_budget: Budget { bytes: 1 << 30, from: "half of 2.0 GiB".into() },
            topology: Topology {
                cores: vec![core(0, 0), core(3, 1)],
                nodes: vec![0, 1],
                memory_nodes: vec![0],
                quota: None,
            },
            open_files_max: Some(256),
            nics: Vec::new(),
            disk: None,
            folder: "/nowhere".into(),
            gpus: Gpus { cards: 1, ..Gpus::default() },
            confinement: Confinement { clock_source: Some("hpet".into()), ..Confinement::default() },
        };
        let poor = Probe { io_uring: Ok(Features::default()), ..worst.clone() };
        for finding in worst.findings().into_iter().chain(poor.findings()) {
            assert_eq!(finding.grade == Grade::Good, finding.cure.is_none(), "{finding:?}");
            assert!(finding.cure.as_deref() != Some(""), "{finding:?}");
        }
        let text = worst.findings()[1].to_string();
        assert!(text.contains("refused") && text.ends_with("; allow it in the profile"), "{text}");
        let degraded = poor.findings().iter().filter(|finding| finding.grade != Grade::Good).count();
        assert!(degraded >= 11, "{:#?}", poor.findings());
    }
}
