//! Probes of this machine, with cause and cure for everything it lacks. Everything `fuelrail doctor` prints.
//!
//! Files are read below a root folder, so that tests can build a machine of their own; what only a system call reports is
//! read from this one. Changes nothing and sends nothing over the network.

mod finding;
mod host;
mod network;

use std::fs;
use std::path::PathBuf;

use fuelrail_base::{ByteSize, Error, Result};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::arena::{THP_ENABLED, ThpMode, free_huge_pages, thp_mode};
use crate::cgroup::{Budget, budget_under, cgroup_limit};
use crate::process::open_files_max;
use crate::topology::{Topology, allowed_cores};

pub use finding::{Finding, Grade};
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

/// The results: values for programs, and lines for people.
#[derive(Clone, PartialEq, Debug)]
pub struct Probe {
    /// Whether there is io_uring, or why not and what to do (`Environment`).
    pub io_uring: Result<()>,
    /// Limit on locked memory, bytes; `None` when there is none.
    pub memlock_bytes: Option<u64>,
    /// The budget of a loader without a setting for it.
    pub default_budget: Budget,
    /// Cores, NUMA nodes and the cgroup's processor quota.
    pub topology: Topology,
    /// Network cards that are up.
    pub nics: Vec<Nic>,
    findings: Vec<Finding>,
}

/// Probes this machine. Opens and closes small rings; changes nothing.
pub fn probe() -> Probe {
    probe_under(&ProbeConfig::default())
}

/// Probes the machine that `config` describes.
pub fn probe_under(config: &ProbeConfig) -> Probe {
    let root = config.root.as_path();
    let (memlock_bytes, open_files) = (getrlimit(Resource::Memlock).current, open_files_max());
    let (topology, nics) = (Topology::under(root, &allowed_cores()), network::nics(root));
    let (default_budget, abilities) = (budget_under(root), host::abilities());
    let kernel = fs::read_to_string(root.join("proc/sys/kernel/osrelease"));
    let mut findings = vec![Finding::good("kernel", kernel.as_deref().map_or("unknown", str::trim))];
    let io_uring = match abilities {
        Ok(lines) => {
            findings.extend(lines);
            Ok(())
        }
        Err(error) => {
            findings.push(refused(&error));
            Err(error)
        }
    };
    let privileges = capabilities(None).map(|sets| sets.effective);
    findings.push(memlock(memlock_bytes, privileges.is_ok_and(|set| set.contains(CapabilitySet::IPC_LOCK))));
    findings.push(huge_pages(free_huge_pages(root), thp_mode(root)));
    let limit = cgroup_limit(root).map(|limit| format!("{} ({})", ByteSize(limit.bytes), limit.from));
    findings.push(Finding::good("cgroup memory limit", limit.unwrap_or_else(|| "none".to_owned())));
    let budget = format!("{}, {}", ByteSize(default_budget.bytes), default_budget.from);
    findings.push(Finding::good("default memory budget", budget));
    findings.push(cores(&topology));
    findings.push(nodes(&topology));
    findings.push(open_files_line(open_files));
    findings.extend(network::findings(&nics));
    findings.push(host::disk(root, &config.folder));
    findings.push(host::gpu(root));
    findings.extend(host::confinement(root, &topology));
    Probe { io_uring, memlock_bytes, default_budget, topology, nics, findings }
}

impl Probe {
    /// One line each, in the order to be printed.
    pub fn findings(&self) -> Vec<Finding> {
        self.findings.clone()
    }
}

fn refused(error: &Error) -> Finding {
    let (cause, text) = (error.cause(), error.to_string());
    let cure = text.strip_prefix(cause).unwrap_or(&text).trim_start_matches("; ");
    Finding::refused("io_uring", cause, cure)
}

/// What a ring locks at most.
const MEMLOCK_MIN: u64 = 512 << 10;

fn memlock(bytes: Option<u64>, is_privileged: bool) -> Finding {
    let name = "locked-memory limit";
    if is_privileged {
        return Finding::good(name, "none for this process, which may lock memory (CAP_IPC_LOCK)");
    }
    let Some(bytes) = bytes else { return Finding::good(name, "none") };
    let cure = "ulimit -l unlimited, LimitMEMLOCK=infinity, or docker --ulimit memlock=-1";
    if bytes >= MEMLOCK_MIN {
        return Finding::good(name, format!("{}; it matters with register = true only: {cure}", ByteSize(bytes)));
    }
    Finding::degraded(name, ByteSize(bytes).to_string(), format!("rings may need more on old kernels: {cure}"))
}

fn huge_pages(free: u64, transparent: ThpMode) -> Finding {
    let mode = match transparent {
        ThpMode::Always => "always",
        ThpMode::Madvise => "madvise",
        ThpMode::Never => "never",
        ThpMode::Absent => "absent",
    };
    let value = format!("{free} reserved and free, transparent: {mode}");
    if free > 0 || matches!(transparent, ThpMode::Always | ThpMode::Madvise) {
        Finding::good("huge pages", value)
    } else {
        Finding::degraded("huge pages", value, format!("echo madvise > {THP_ENABLED}, or sysctl vm.nr_hugepages=N"))
    }
}

fn cores(topology: &Topology) -> Finding {
    let ids = topology.cores.iter().map(|core| core.id.to_string()).collect::<Vec<_>>().join(",");
    let (cores, physical) = (topology.cores.len(), topology.physical_cores());
    Finding::good("cores", format!("{cores} on {physical} physical ({ids})"))
}

fn nodes(topology: &Topology) -> Finding {
    let Topology { cores, nodes, memory_nodes, .. } = topology;
    let foreign = cores.iter().filter(|core| !memory_nodes.contains(&core.node)).count();
    let value = format!("{}, memory from {memory_nodes:?}", nodes.len());
    if foreign == 0 {
        return Finding::good("numa nodes", value);
    }
    let value = format!("{value}; {foreign} core(s) of other nodes");
    Finding::degraded("numa nodes", value, "give the cpuset cores and memory of the same nodes (cpuset.mems)")
}

fn open_files_line(most: Option<u64>) -> Finding {
    let (name, value) = ("open-files limit", most.map_or("none".into(), |most| most.to_string()));
    if most.is_none_or(|most| most >= 1024) {
        Finding::good(name, value)
    } else {
        Finding::degraded(name, value, "few connections fit: ulimit -n 65536")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Core;
    use crate::tree::Tree;
    use fuelrail_base::Kind;

    #[test]
    fn this_machine_is_described() {
        let findings = probe().findings();
        for name in
            ["kernel", "io_uring", "locked-memory limit", "huge pages", "default memory budget", "cores", "disk", "gpu"]
        {
            assert!(findings.iter().any(|finding| finding.name == name), "{name} is missing");
        }
    }

    #[test]
    fn another_machine_is_described_from_its_files() {
        let tree = Tree::new(&[("proc/sys/kernel/osrelease", "5.10.0-cloud\n"), ("spill/here", "")]);
        tree.add("proc/meminfo", "MemTotal: 8 kB\nHugePages_Free:       512\n");
        tree.add("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
        tree.add("proc/self/cgroup", "0::/pod\n");
        tree.add("sys/fs/cgroup/pod/memory.max", "1073741824\n");
        tree.add("sys/fs/cgroup/pod/cpu.max", "200000 100000\n");
        let probe = probe_under(&ProbeConfig { root: tree.root().to_owned(), folder: tree.root().join("spill") });
        assert_eq!(probe.default_budget.bytes, 512 << 20);
        let lines: Vec<String> = probe.findings().iter().map(ToString::to_string).collect();
        for what in [
            "5.10.0-cloud",
            "512 reserved and free, transparent: never",
            "1.0 GiB",
            "2 cores (",
            "none is visible",
            "stay in host memory",
        ] {
            assert!(lines.iter().any(|line| line.contains(what)), "{what}: {lines:#?}");
        }
    }

    #[test]
    fn all_that_is_not_good_has_a_cure() {
        let error = Error::from_errno(Kind::Environment, "a seccomp filter refuses io_uring", libc::EPERM);
        let io_uring = refused(&error.with_hint("allow it in the profile"));
        assert!(io_uring.to_string().ends_with("; allow it in the profile"), "{io_uring}");
        let core = |id, node| Core { id, node, package: 0, physical: id };
        let cores = vec![core(0, 0), core(3, 1)];
        let topology = Topology { cores, nodes: vec![0, 1], memory_nodes: vec![0], quota: None };
        let mut poor = host::lines(false, false, false, false);
        poor.extend([io_uring, memlock(Some(64 << 10), false), huge_pages(0, ThpMode::Never), nodes(&topology)]);
        poor.push(open_files_line(Some(256)));
        for finding in poor {
            assert!(finding.grade != Grade::Good && finding.cure.as_deref() != Some(""), "{finding:?}");
        }
    }
}
