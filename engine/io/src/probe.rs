//! What this machine can do for the engine, with cause and cure for all it cannot. Everything `fuelrail doctor` prints.

use core::fmt;
use std::fs;
use std::path::Path;

use fuelrail_base::{ByteSize, Result};

use crate::affinity::allowed_cores;
use crate::arena::{Budget, THP_ENABLED, ThpMode, cgroup_limit, default_budget, free_huge_pages, thp_mode};
use crate::ring::uring::{Mode, memlock_bytes, refusal};

/// io_uring abilities of this kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Completion work waits for the thread to ask for it (kernel 6.1).
    pub defer_taskrun: bool,
    /// Completion work does not interrupt the thread (kernel 5.19).
    pub coop_taskrun: bool,
    /// Waits take a time limit and polls repeat (kernel 5.13). Without them there is no `uring` back-end.
    pub timed_waits: bool,
    /// Sockets can be registered in a table (kernel 5.19).
    pub registered_files: bool,
    /// Receives and sends can carry several buffers at once (kernel 6.10).
    pub bundles: bool,
    /// Payloads can be received without a copy, given a network card that does it (kernel 6.15).
    pub zero_copy_receive: bool,
}

/// How good a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Grade {
    /// As good as it gets.
    Good,
    /// Works, slower or with less.
    Degraded,
    /// Does not work.
    Refused,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What was looked at.
    pub name: &'static str,
    /// What was found.
    pub value: String,
    /// How good that is.
    pub grade: Grade,
    /// What to do, unless it is good.
    pub cure: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.grade {
            Grade::Good => "ok",
            Grade::Degraded => "slower",
            Grade::Refused => "refused",
        };
        write!(f, "{:<24} {mark:<8} {}", self.name, self.value)?;
        match &self.cure {
            Some(cure) => write!(f, "; {cure}"),
            None => Ok(()),
        }
    }
}

/// Everything that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
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
    /// Cores this process may run on.
    pub cores: Vec<usize>,
    /// NUMA nodes of the machine.
    pub numa_nodes: usize,
    /// Most open files.
    pub open_files_max: Option<u64>,
}

/// Looks at the machine. Opens and closes a small ring; changes nothing.
#[must_use]
pub fn probe() -> Probe {
    Probe {
        kernel: read_line("/proc/sys/kernel/osrelease"),
        io_uring: probe_io_uring(),
        memlock_bytes: memlock_bytes(),
        huge_pages_free: free_huge_pages(),
        transparent_huge_pages: thp_word(thp_mode()),
        cgroup_limit: cgroup_limit(Path::new("/")),
        default_budget: default_budget(),
        cores: allowed_cores(),
        numa_nodes: count_nodes(),
        open_files_max: open_files_max(),
    }
}

impl Probe {
    /// One line each, in the order to be printed.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let good = |name, value: String| Finding { name, value, grade: Grade::Good, cure: None };
        let cores = self.cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut findings = vec![good("kernel", self.kernel.clone())];
        findings.extend(self.io_uring_findings());
        findings.push(self.memlock_finding());
        findings.push(self.huge_page_finding());
        findings.push(match &self.cgroup_limit {
            Some(limit) => good("cgroup memory limit", format!("{} ({})", ByteSize(limit.bytes), limit.from)),
            None => good("cgroup memory limit", "none".into()),
        });
        let budget = &self.default_budget;
        findings.push(good("default memory budget", format!("{}, {}", ByteSize(budget.bytes), budget.from)));
        findings.push(good("cores", format!("{} ({cores})", self.cores.len())));
        findings.push(good("numa nodes", self.numa_nodes.to_string()));
        findings.push(self.open_files_finding());
        findings
    }

    fn io_uring_findings(&self) -> Vec<Finding> {
        let name = "io_uring";
        let features = match &self.io_uring {
            Ok(features) => features,
            Err(error) => {
                let (value, cure) = (error.cause().to_owned(), error.to_string());
                let cure = cure.strip_prefix(&value).map(|rest| rest.trim_start_matches("; ").to_owned());
                return vec![Finding { name, value, grade: Grade::Refused, cure }];
            }
        };
        let one = |name, has: bool, cure: &str| Finding {
            name,
            value: if has { "yes" } else { "no" }.into(),
            grade: if has { Grade::Good } else { Grade::Degraded },
            cure: (!has).then(|| cure.to_owned()),
        };
        let usable = Finding { name, value: "yes".into(), grade: Grade::Good, cure: None };
        let too_old = || Finding {
            name,
            value: "too old".into(),
            grade: Grade::Refused,
            cure: Some("use kernel 5.13 or later (6.1 for full speed)".into()),
        };
        vec![
            if features.timed_waits { usable } else { too_old() },
            one("  deferred completions", features.defer_taskrun, "kernel 6.1 has them"),
            one("  registered files", features.registered_files, "kernel 5.19 has them"),
            one("  bundles", features.bundles, "kernel 6.10 has them"),
            one("  zero-copy receive", features.zero_copy_receive, "kernel 6.15 has it, with a card that supports it"),
        ]
    }

    fn memlock_finding(&self) -> Finding {
        let name = "locked-memory limit";
        match self.memlock_bytes {
            None => Finding { name, value: "none".into(), grade: Grade::Good, cure: None },
            Some(bytes) => Finding {
                name,
                value: ByteSize(bytes).to_string(),
                grade: Grade::Degraded,
                cure: Some(
                    "unprivileged processes cannot register more memory than this: ulimit -l unlimited, \
                     LimitMEMLOCK=infinity, or docker --ulimit memlock=-1"
                        .into(),
                ),
            },
        }
    }

    fn huge_page_finding(&self) -> Finding {
        let value = format!("{} reserved and free, transparent: {}", self.huge_pages_free, self.transparent_huge_pages);
        let usable = self.huge_pages_free > 0 || matches!(self.transparent_huge_pages, "always" | "madvise");
        Finding {
            name: "huge pages",
            value,
            grade: if usable { Grade::Good } else { Grade::Degraded },
            cure: (!usable).then(|| format!("echo madvise > {THP_ENABLED}, or sysctl vm.nr_hugepages=N")),
        }
    }

    fn open_files_finding(&self) -> Finding {
        let name = "open-files limit";
        let enough = self.open_files_max.is_none_or(|most| most >= 1024);
        Finding {
            name,
            value: self.open_files_max.map_or("none".into(), |most| most.to_string()),
            grade: if enough { Grade::Good } else { Grade::Degraded },
            cure: (!enough).then(|| "few connections fit: ulimit -n 65536".into()),
        }
    }
}

fn probe_io_uring() -> Result<Features> {
    let mut features = Features::default();
    let mut first = None;
    for mode in Mode::BEST_FIRST {
        match mode.build(8, 32) {
            Ok(ring) => {
                match mode {
                    Mode::Deferred => features.defer_taskrun = true,
                    Mode::Cooperative => features.coop_taskrun = true,
                    Mode::Plain => {}
                }
                first.get_or_insert(ring);
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL) => {}
                errno => return Err(refusal(errno.unwrap_or(libc::EIO))),
            },
        }
    }
    let ring = first.ok_or_else(|| refusal(libc::EINVAL))?;
    features.timed_waits = ring.params().is_feature_ext_arg() && ring.params().is_feature_resource_tagging();
    features.registered_files = ring.submitter().register_files_sparse(4).is_ok();
    features.bundles = ring.params().is_feature_recvsend_bundle();
    let mut known = io_uring::Probe::new();
    if ring.submitter().register_probe(&mut known).is_ok() {
        features.zero_copy_receive = known.is_supported(io_uring::opcode::RecvZc::CODE);
    }
    Ok(features)
}

fn thp_word(mode: ThpMode) -> &'static str {
    match mode {
        ThpMode::Always => "always",
        ThpMode::Madvise => "madvise",
        ThpMode::Never => "never",
        ThpMode::Absent => "absent",
    }
}

fn count_nodes() -> usize {
    let entries = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let nodes = names.filter(|name| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok()));
    nodes.count().max(1)
}

fn open_files_max() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit` into `limit`, which lives until after the call.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (rc == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_else(|_| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuelrail_base::{Error, Kind};

    #[test]
    fn this_machine_is_described() {
        let probe = probe();
        assert!(!probe.kernel.is_empty() && !probe.cores.is_empty() && probe.numa_nodes >= 1);
        let findings = probe.findings();
        for name in ["kernel", "io_uring", "locked-memory limit", "huge pages", "default memory budget", "cores"] {
            assert!(findings.iter().any(|finding| finding.name == name), "{name} is missing");
        }
    }

    #[test]
    fn all_that_is_not_good_has_a_cure() {
        let refused = Error::from_errno(Kind::Environment, "a seccomp filter refuses io_uring", libc::EPERM)
            .cure("allow it in the profile");
        let budget = Budget { bytes: 1 << 30, from: "half of 2.0 GiB".into() };
        let worst = Probe {
            kernel: "4.18".into(),
            io_uring: Err(refused),
            memlock_bytes: Some(64 << 10),
            huge_pages_free: 0,
            transparent_huge_pages: "never",
            cgroup_limit: None,
            default_budget: budget,
            cores: vec![0, 3],
            numa_nodes: 1,
            open_files_max: Some(256),
        };
        let poor = Probe { io_uring: Ok(Features::default()), ..worst.clone() };
        for finding in worst.findings().into_iter().chain(poor.findings()) {
            assert_eq!(finding.grade == Grade::Good, finding.cure.is_none(), "{finding:?}");
            assert!(finding.cure.as_deref() != Some(""), "{finding:?}");
        }
        let text = worst.findings()[1].to_string();
        assert!(text.contains("refused") && text.ends_with("; allow it in the profile"), "{text}");
    }
}
