//! What machine a result was measured on: the facts that every result file carries, so that numbers can be compared.
//!
//! Owns nothing; reads `/proc`, `/sys` and the system clock once, when asked. Never names the host or its user: result
//! files are published.

use std::fs;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The machine, the build and the day of a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The processor, as the kernel names it; `unknown` when it does not.
    pub cpu: String,
    /// Logical cores this process may use, its cgroup's share of processor time included.
    pub cores: usize,
    /// Memory of the machine, bytes; 0 when `/proc` is not mounted.
    pub memory_bytes: u64,
    /// Kernel release, as `uname -r` says it.
    pub kernel: String,
    /// Frequency governor of the first core, where the kernel shows one. Virtual machines often do not.
    pub governor: Option<String>,
    /// Transparent huge pages: `always`, `madvise` or `never`. Absent in older results.
    #[serde(default)]
    pub huge_pages: Option<String>,
    /// Whether this build was optimised. Speeds of a debug build say nothing.
    pub optimised: bool,
    /// Version of the program.
    pub version: String,
    /// Commit the program was built from, when it was built inside its repository.
    pub git_commit: Option<String>,
    /// When it was measured: UTC, as `2026-03-01T12:30:00Z`.
    pub date: String,
}

impl Machine {
    /// This machine, now.
    pub fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).ok();
        let line = |path: &str| read(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let now = OffsetDateTime::now_utc().truncate_to_second();
        Machine {
            cpu: read("/proc/cpuinfo").as_deref().and_then(cpu_model).unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: read("/proc/meminfo").as_deref().and_then(memory_total).unwrap_or(0),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            huge_pages: line(HUGE_PAGES).as_deref().and_then(chosen).map(str::to_owned),
            optimised: !cfg!(debug_assertions),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            git_commit: option_env!("FUELRAIL_COMMIT").map(str::to_owned),
            date: now.format(&Rfc3339).unwrap_or_default(),
        }
    }

    /// What to tell before a measurement where other work keeps the cores: by the load of the last minute.
    pub fn busy(&self) -> Option<String> {
        let text = fs::read_to_string("/proc/loadavg").ok()?;
        let load: f64 = text.split(' ').next()?.parse().ok()?;
        let cores = self.cores;
        (load > cores as f64 / 2.0).then(|| {
            format!("this machine is busy (load {load} on {cores} cores): times will be longer than on a quiet one")
        })
    }

    /// One line for people: `2 cores of Xeon …, 23.0 GiB, Linux 6.18.5`.
    pub fn line(&self) -> String {
        let memory = fuelrail_base::ByteSize(self.memory_bytes);
        let build = if self.optimised { "" } else { ", unoptimised build" };
        format!("{} cores of {}, {memory}, Linux {}{build}", self.cores, self.cpu, self.kernel)
    }
}

/// Where the kernel says who gets transparent huge pages, and is told.
pub const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The one in brackets: `always [madvise] never`.
pub fn chosen(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

/// What a file of `/proc` says after a name, its blanks made single.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    // Arm kernels give no `model name`; the implementer and part numbers are all there is.
    let field = |name| field(cpuinfo, name);
    field("model name")
        .or_else(|| Some(format!("implementer {} part {}", field("CPU implementer")?, field("CPU part")?)))
}

fn memory_total(meminfo: &str) -> Option<u64> {
    Some(field(meminfo, "MemTotal")?.strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let intel = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)  Processor @ 2.60GHz\n";
        assert_eq!(cpu_model(intel).unwrap(), "Intel(R) Xeon(R) Processor @ 2.60GHz");
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
        assert_eq!(cpu_model(arm).unwrap(), "implementer 0x41 part 0xd40");
        assert_eq!(cpu_model(""), None);
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(memory_total("MemFree: 1 kB\nMemTotal:       24123456 kB\n"), Some(24_123_456 << 10));
    }

    #[test]
    fn knows_this_machine() {
        let here = Machine::here();
        assert!(here.cores > 0 && here.memory_bytes > 1 << 20, "{here:?}");
        assert!(here.date.len() == 20 && here.date.starts_with("20") && here.date.ends_with('Z'), "{here:?}");
        assert!(here.line().contains("cores of"), "{here:?}");
    }
}
