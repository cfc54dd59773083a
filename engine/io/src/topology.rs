//! The cores, NUMA nodes and processor time this process may use, and the order in which shards take the cores.
//!
//! Owns the reading of `/sys` and of the cgroup's processor quota, below a root folder so that tests can build a machine of
//! their own; and putting a thread on a core.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fuelrail_base::{Error, Kind, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::cgroup;

/// Cores the calling thread may run on, in ascending order. Respects `taskset` and the cgroup's cpuset.
pub fn allowed_cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(),
        // Refused by a seccomp profile, or more than 1 024 cores: any core may be tried.
        Err(_) => (0..std::thread::available_parallelism().map_or(1, usize::from)).collect(),
    }
}

/// Keeps the calling thread on `core`.
///
/// # Errors
/// `Environment` when the process may not use this core.
pub fn pin_current_thread(core: usize) -> Result<()> {
    let refused = |why: String| {
        Error::new(Kind::Environment, format!("pinning a thread to core {core}: {why}"))
            .with_hint(format!("use one of the cores this process is allowed: {:?}", allowed_cores()))
    };
    if core >= CpuSet::MAX_CPU {
        return Err(refused(format!("core numbers end at {}", CpuSet::MAX_CPU - 1)));
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|errno| refused(errno.to_string()))
}

/// A logical core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Core {
    /// The kernel's number.
    pub id: usize,
    /// Its NUMA node.
    pub node: usize,
    /// The processor package.
    pub package: usize,
    /// The physical core inside the package; logical cores that share it share its execution units and caches.
    pub physical: usize,
}

/// Processor time a cgroup allows.
#[derive(Clone, PartialEq, Debug)]
pub struct CpuQuota {
    /// Cores' worth of time, 1.5 for one and a half.
    pub cores: f64,
    /// The file it is from.
    pub from: String,
}

/// What this process may run on.
#[derive(Clone, PartialEq, Debug)]
pub struct Topology {
    /// Allowed logical cores in ascending order.
    pub cores: Vec<Core>,
    /// NUMA nodes of the machine.
    pub nodes: Vec<usize>,
    /// Those this process may take memory from.
    pub memory_nodes: Vec<usize>,
    /// The smallest processor quota of its cgroups; `None` when there is none.
    pub quota: Option<CpuQuota>,
}

impl Topology {
    /// This machine, as the calling thread may use it.
    pub fn here() -> Topology {
        Topology::under(Path::new("/"), &allowed_cores())
    }

    /// The machine described below `root` (`/` is this one), of which the cores `allowed` may be used.
    pub fn under(root: &Path, allowed: &[usize]) -> Topology {
        let nodes = node_cores(root);
        let node_of = |core: usize| nodes.iter().find(|(_, cores)| cores.contains(&core)).map_or(0, |(node, _)| *node);
        let cores = allowed.iter().map(|&id| {
            let number = |file: &str| -> Option<usize> {
                let path = root.join(format!("sys/devices/system/cpu/cpu{id}/topology/{file}"));
                fs::read_to_string(path).ok()?.trim().parse().ok()
            };
            Core {
                id,
                node: node_of(id),
                package: number("physical_package_id").unwrap_or(0),
                // Without this file the core counts as having no siblings.
                physical: number("core_id").unwrap_or(id),
            }
        });
        let mut machine: Vec<usize> = nodes.keys().copied().collect();
        if machine.is_empty() {
            machine.push(0);
        }
        let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
        let mems = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:")).map(list);
        let memory_nodes = mems.map_or_else(Vec::new, |mems| {
            machine.iter().copied().filter(|node| mems.contains(node)).collect::<Vec<_>>()
        });
        Topology {
            cores: cores.collect(),
            memory_nodes: if memory_nodes.is_empty() { machine.clone() } else { memory_nodes },
            nodes: machine,
            quota: quota(root),
        }
    }

    /// The allowed cores in the order shards take them: one of every physical core before the second of any, and node by
    /// node in turn, so that few shards already draw on the memory bandwidth of every node.
    pub fn seats(&self) -> Vec<Core> {
        let mut threads: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut places: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut seats: Vec<(usize, usize, Core)> = Vec::with_capacity(self.cores.len());
        for core in &self.cores {
            let sibling = threads.entry((core.package, core.physical)).or_default();
            let place = places.entry((*sibling, core.node)).or_default();
            seats.push((*sibling, *place, *core));
            *sibling += 1;
            *place += 1;
        }
        seats.sort_by_key(|(sibling, place, core)| (*sibling, *place, core.node));
        seats.into_iter().map(|(_, _, core)| core).collect()
    }

    /// How many shards can be busy at a time: the allowed cores, or fewer when the cgroup's quota gives less time. At
    /// least one.
    pub fn shards(&self) -> usize {
        // A thread that works a fraction of the time gets throttled in the middle of a batch: rounded down.
        let quota = self.quota.as_ref().map_or(usize::MAX, |quota| quota.cores as usize);
        self.cores.len().min(quota).max(1)
    }

    /// For one of `parts` processes that share it evenly: fewer shards, on the same cores.
    #[must_use]
    pub fn shared(mut self, parts: usize) -> Topology {
        if parts > 1 {
            let (cores, from) = (self.shards() as f64 / parts as f64, format!("{parts} ranks on this machine"));
            self.quota = Some(CpuQuota { cores, from });
        }
        self
    }

    /// Physical cores among the allowed ones.
    pub fn physical_cores(&self) -> usize {
        let mut cores: Vec<_> = self.cores.iter().map(|core| (core.package, core.physical)).collect();
        cores.sort_unstable();
        cores.dedup();
        cores.len()
    }
}

fn node_cores(root: &Path) -> BTreeMap<usize, Vec<usize>> {
    let entries = fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten().flatten();
    let numbered = entries.filter_map(|entry| {
        let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((node, list(&fs::read_to_string(entry.path().join("cpulist")).unwrap_or_default())))
    });
    numbered.collect()
}

/// A kernel's list of numbers: `0-3,8,10-11`. What does not parse is left out.
fn list(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

fn quota(root: &Path) -> Option<CpuQuota> {
    let found = cgroup::folders(root, "cpu").into_iter().filter_map(|folder| quota_of(&folder));
    found.min_by(|a, b| a.cores.total_cmp(&b.cores))
}

fn quota_of(folder: &Path) -> Option<CpuQuota> {
    let read = |file: PathBuf| fs::read_to_string(file).ok();
    let (file, quota, period) = match read(folder.join("cpu.max")) {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            ("cpu.max", quota.to_owned(), period.to_owned())
        }
        // Version 1; no limit is -1 there, "max" above: neither parses below.
        None => ("cpu.cfs_quota_us", read(folder.join("cpu.cfs_quota_us"))?, read(folder.join("cpu.cfs_period_us"))?),
    };
    let (quota, period) = (quota.trim().parse::<u64>().ok()?, period.trim().parse::<u64>().ok()?);
    (period > 0)
        .then(|| CpuQuota { cores: quota as f64 / period as f64, from: folder.join(file).display().to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    #[test]
    fn pins_a_thread_and_refuses_cores_that_are_not_there() {
        std::thread::spawn(|| {
            let core = *allowed_cores().last().unwrap();
            pin_current_thread(core).unwrap();
            assert_eq!(allowed_cores(), [core]);
            for absent in [1_023, 1 << 20] {
                let error = pin_current_thread(absent).unwrap_err();
                assert_eq!(error.kind(), Kind::Environment);
                assert!(error.to_string().contains(&format!("core {absent}")), "{error}");
            }
        })
        .join()
        .unwrap();
    }

    /// Two nodes of two physical cores with two threads each, numbered as kernels do: siblings are four apart.
    fn dual_node(more: &[(&str, &str)]) -> Tree {
        let tree = Tree::new(&[("sys/devices/system/node/node0/cpulist", "0-1,4-5\n")]);
        tree.add("sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
        tree.add("sys/devices/system/node/possible", "0-1\n");
        for core in 0..8 {
            let folder = format!("sys/devices/system/cpu/cpu{core}/topology");
            tree.add(&format!("{folder}/physical_package_id"), &format!("{}\n", core % 4 / 2));
            tree.add(&format!("{folder}/core_id"), &format!("{}\n", core % 2));
        }
        more.iter().for_each(|(path, text)| tree.add(path, text));
        tree
    }

    fn seats(topology: &Topology) -> Vec<usize> {
        topology.seats().iter().map(|core| core.id).collect()
    }

    #[test]
    fn physical_cores_come_first_and_nodes_take_turns() {
        let tree = dual_node(&[]);
        let all = Topology::under(tree.root(), &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(seats(&all), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!((all.nodes.as_slice(), all.physical_cores(), all.shards()), ([0, 1].as_slice(), 4, 8));
        assert_eq!(all.memory_nodes, [0, 1]);
        // A cpuset of one node and a bit: node 1 gives its only core early, siblings still come last.
        let some = Topology::under(tree.root(), &[0, 1, 3, 4, 7]);
        assert_eq!(seats(&some), [0, 3, 1, 4, 7]);
        assert_eq!(some.physical_cores(), 3);
        assert_eq!(some.cores[2], Core { id: 3, node: 1, package: 1, physical: 1 });
    }

    #[test]
    fn the_quota_bounds_the_shards_and_the_cpuset_the_memory() {
        let tree = dual_node(&[
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/cpu.max", "350000 100000\n"),
            ("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n"),
            ("proc/self/status", "Name:\tx\nMems_allowed_list:\t1\n"),
        ]);
        let here = Topology::under(tree.root(), &[0, 1, 2, 3, 4, 5, 6, 7]);
        let quota = here.quota.clone().unwrap();
        assert_eq!((quota.cores, here.shards()), (3.5, 3));
        assert!(quota.from.ends_with("pod/cpu.max"), "{}", quota.from);
        assert_eq!(here.memory_nodes, [1]);
        tree.add("proc/self/cgroup", "3:cpu,cpuacct:/job\n0::/\n");
        tree.add("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
        tree.add("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
        assert_eq!(Topology::under(tree.root(), &[0, 1]).shards(), 1, "half a core still runs one shard");
        tree.add("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
        assert_eq!(Topology::under(tree.root(), &[0, 1]).quota, None);
    }

    #[test]
    fn a_machine_that_says_nothing_is_one_node_of_independent_cores() {
        let tree = Tree::new(&[]);
        let silent = Topology::under(tree.root(), &[0, 3]);
        assert_eq!((seats(&silent), silent.nodes.as_slice()), (vec![0, 3], [0].as_slice()));
        assert_eq!((silent.physical_cores(), silent.shards(), silent.memory_nodes), (2, 2, vec![0]));
    }

    #[test]
    fn this_machine_has_a_seat_for_every_allowed_core() {
        let here = Topology::here();
        let mut ids = seats(&here);
        ids.sort_unstable();
        assert_eq!(ids, allowed_cores());
        assert!(here.shards() >= 1 && here.physical_cores() <= here.cores.len());
    }
}
