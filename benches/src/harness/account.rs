//! What a process tree has used: processor time and peak memory, from a cgroup of its own where we may make one, else from
//! `/proc`.
//!
//! Owns the cgroup and removes it. A cgroup counts to the microsecond and forgets no child; `/proc` counts in ticks of 10 ms
//! and is asked only where cgroups are refused. Never starts a process.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io};

use fuelrail::{Error, Kind, Result};

/// Processor time of a whole process tree, s.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cpu {
    pub user_s: f64,
    pub system_s: f64,
}

impl Cpu {
    pub fn total_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    pub fn since(&self, earlier: Cpu) -> Cpu {
        Cpu { user_s: (self.user_s - earlier.user_s).max(0.0), system_s: (self.system_s - earlier.system_s).max(0.0) }
    }
}

/// A cgroup of version 2 made for one contestant.
#[derive(Debug)]
pub struct Leaf {
    folder: PathBuf,
}

/// Leaves made by this process so far, for their names.
static LEAVES: AtomicU32 = AtomicU32::new(0);
/// How often, and with what pause, the kernel is asked to remove a cgroup whose processes are just ending.
const REMOVALS_MAX: u32 = 200;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

impl Leaf {
    /// A new leaf below the cgroup of this process.
    pub fn new() -> Result<Leaf> {
        let refused = |why: String| {
            Error::new(Kind::Environment, format!("no cgroup for contestants: {why}"))
                .with_hint("run as root, or in a delegated cgroup (`systemd-run --user --scope`)")
        };
        let read = |path: &str| fs::read_to_string(path).map_err(|error| refused(format!("{path}: {error}")));
        let mount =
            mount_point(&read("/proc/self/mounts")?).ok_or_else(|| refused("version 2 is not mounted".into()))?;
        let cgroups = read("/proc/self/cgroup")?;
        let own = own_path(&cgroups).ok_or_else(|| refused("this process is in none".into()))?;
        let number = LEAVES.fetch_add(1, Ordering::Relaxed);
        let folder = mount.join(own.trim_start_matches('/')).join(format!("bench-{}-{number}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| refused(format!("making {}: {error}", folder.display())))?;
        let leaf = Leaf { folder };
        leaf.cpu()?;
        Ok(leaf)
    }

    /// The file a process writes its id to in order to belong here.
    pub fn door(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    fn cpu(&self) -> Result<Cpu> {
        let path = self.folder.join("cpu.stat");
        let text = fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<f64>().ok()
        };
        match (field("user_usec "), field("system_usec ")) {
            (Some(user), Some(system)) => Ok(Cpu { user_s: user / 1e6, system_s: system / 1e6 }),
            _ => Err(Error::new(Kind::Environment, format!("{} has no user_usec and system_usec", path.display()))),
        }
    }

    fn pids(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.door()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Ends everything in it at once. Best effort: kernels before 5.14 have no such file, and children of a killed parent
    /// end by themselves when their pipes break.
    fn kill(&self) {
        let _ = fs::write(self.folder.join("cgroup.kill"), "1");
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        self.kill();
        for _ in 0..REMOVALS_MAX {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(REMOVAL_PAUSE),
                _ => return,
            }
        }
    }
}

#[derive(Debug)]
pub enum Account {
    Leaf(Leaf),
    /// The process with this id and all below it, by `/proc`.
    Tree(u32),
}

/// What is read often enough is read twice: a thread's last slice is booked when it leaves the processor, which may be just
/// after it has answered.
const SETTLE_READS_MAX: u32 = 20;
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

impl Account {
    /// How processor time is counted, for the result.
    pub fn source(&self) -> &'static str {
        match self {
            Account::Leaf(_) => "cgroup cpu.stat",
            Account::Tree(_) => "/proc/PID/stat, ticks of 10 ms",
        }
    }

    pub fn cpu(&self) -> Result<Cpu> {
        match self {
            Account::Leaf(leaf) => leaf.cpu(),
            Account::Tree(root) => {
                let stats = tree(*root);
                Ok(Cpu {
                    user_s: stats.iter().map(|stat| stat.user_ticks).sum::<u64>() as f64 / TICKS_PER_S,
                    system_s: stats.iter().map(|stat| stat.system_ticks).sum::<u64>() as f64 / TICKS_PER_S,
                })
            }
        }
    }

    /// Processor time once the tree has gone to rest: read until it stands still for a millisecond.
    pub fn settled_cpu(&self) -> Result<Cpu> {
        let mut last = self.cpu()?;
        for _ in 0..SETTLE_READS_MAX {
            std::thread::sleep(SETTLE_PAUSE);
            let now = self.cpu()?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(last)
    }

    /// Most memory the tree held: of the cgroup where it counts memory, else the sum of every living process's own peak.
    pub fn peak_memory_bytes(&self) -> u64 {
        let pids = match self {
            Account::Leaf(leaf) => {
                let peak = fs::read_to_string(leaf.folder.join("memory.peak")).ok();
                if let Some(bytes) = peak.and_then(|text| text.trim().parse().ok()) {
                    return bytes;
                }
                leaf.pids()
            }
            Account::Tree(root) => tree(*root).iter().map(|stat| stat.pid).collect(),
        };
        let peak = |pid: u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        pids.into_iter().filter_map(peak).sum::<u64>() << 10
    }

    /// Ends every process of the tree that is not gone yet.
    pub fn kill(&self) {
        if let Account::Leaf(leaf) = self {
            leaf.kill();
        }
    }
}

/// The kernel counts process times for user space in hundredths of a second, whatever its own clock.
const TICKS_PER_S: f64 = 100.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stat {
    pid: u32,
    parent: u32,
    user_ticks: u64,
    system_ticks: u64,
}

/// The process and all its descendants. Times of children that were waited for are in their parent's.
fn tree(root: u32) -> Vec<Stat> {
    let mut open: Vec<Stat> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .collect();
    let mut found: Vec<Stat> = open.extract_if(.., |stat| stat.pid == root).collect();
    let mut next = 0;
    while next < found.len() {
        let parent = found[next].pid;
        found.extend(open.extract_if(.., |stat| stat.parent == parent));
        next += 1;
    }
    found
}

/// One `/proc/PID/stat`. The second field is the program's name in parentheses and may hold anything.
fn stat(text: &str) -> Option<Stat> {
    let (pid, rest) = text.split_once(' ')?;
    let fields: Vec<&str> = rest.get(rest.rfind(')')? + 1..)?.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        pid: pid.parse().ok()?,
        parent: u32::try_from(number(1)?).ok()?,
        user_ticks: number(11)? + number(13)?,
        system_ticks: number(12)? + number(14)?,
    })
}

fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields.get(2) == Some(&"cgroup2")).then(|| Path::new(fields[1]).to_path_buf())
    })
}

fn own_path(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(Kind::Environment, format!("reading {}: {error}", path.display()))
}

/// Where a contestant runs. The steps to there are taken by a shell and `nsenter` and `taskset`, each replacing itself by the next, so
/// that the contestant's own process is in place before its first instruction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The cores they may use; empty for all.
    pub cores: Vec<usize>,
    /// The network namespace they are in; none for that of this process.
    pub netns: Option<String>,
}

/// Folder in which `ip netns` keeps its namespaces.
const NETNS_FOLDER: &str = "/run/netns";

impl Place {
    /// The command that runs `program` here with `args`, in the cgroup if there is one.
    pub fn command(&self, leaf: Option<&Leaf>, program: &Path, args: &[OsString]) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |parts: &[&OsStr]| words.extend(parts.iter().map(|part| (*part).to_owned()));
        if let Some(leaf) = leaf {
            let enter = "echo $$ > \"$0\" && exec \"$@\"";
            add(&["sh".as_ref(), "-c".as_ref(), enter.as_ref(), leaf.door().as_os_str()]);
        }
        if let Some(netns) = &self.netns {
            let file = format!("--net={NETNS_FOLDER}/{netns}");
            add(&["nsenter".as_ref(), file.as_ref(), "--".as_ref()]);
        }
        if !self.cores.is_empty() {
            let list: Vec<String> = self.cores.iter().map(ToString::to_string).collect();
            add(&["taskset".as_ref(), "--cpu-list".as_ref(), list.join(",").as_ref()]);
        }
        add(&[program.as_os_str()]);
        words.extend(args.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 10 20 3 4 20 0 1 0 100 0 0";
        assert_eq!(stat(text), Some(Stat { pid: 42, parent: 7, user_ticks: 13, system_ticks: 24 }));
        assert_eq!(stat("42 (x"), None);
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_point(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!((own_path("9:name=systemd:/\n0::/a/b\n"), own_path("9:cpu:/\n")), (Some("/a/b"), None));
    }

    #[test]
    fn the_tree_holds_this_process() {
        let all = tree(std::process::id());
        assert_eq!(all[0].pid, std::process::id());
        let account = Account::Tree(std::process::id());
        assert!(account.peak_memory_bytes() > 1 << 20);
        assert!(account.cpu().unwrap().total_s() >= 0.0);
    }

    #[test]
    fn every_step_hands_over_to_the_next() {
        let words = |place: Place| {
            let command = place.command(None, Path::new("/bin/x"), &["--uri".into(), "u".into()]);
            let all = std::iter::once(command.get_program()).chain(command.get_args());
            all.map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(Place::default()), "/bin/x --uri u");
        let far = Place { cores: vec![1, 3], netns: Some("fr1".into()) };
        assert_eq!(words(far), "nsenter --net=/run/netns/fr1 -- taskset --cpu-list 1,3 /bin/x --uri u");
    }
}
