//! The commands that run on a node: load a share of a data set onto its disk, clean the disk, and say whether an agent serves.
//!
//! A share is whole when a pass over it fetches nothing. That is measured, not computed from sizes, so it also finds blocks that a full
//! disk did not keep and blocks of objects that have changed since.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;

use crate::plan::Report;

/// Passes in a row that may fetch about as much as one before them: a disk that is busy gets other tries.
const IDLE_PASSES_MAX: u32 = 3;
/// How much longer a pass takes for each idle one before it, ms. What the disk admits is on it when a pass ends; but one of few batches may
/// end before the first segment has been made, and then nothing was admitted.
const IDLE_PAUSE_MS: u64 = 3_000;

/// Sockets of the network that the processes of a pod share.
const SOCKETS: &str = "/proc/net/unix";

/// The kubelet reports this as the node's boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const LOAD_EXAMPLES: &str = "Examples:
  fuelrail-operator load --uri s3://bucket/training/ --directory /disk --limit 500000000000
  fuelrail-operator load --uri s3://bucket/training/ --directory /disk --limit 500000000000 --share 3 --of 16";

/// Load a share of a data set onto a disk, until a pass over it fetches nothing
#[derive(Args, Clone, Debug)]
#[command(after_help = LOAD_EXAMPLES)]
pub struct Load {
    /// What to read, as `fuelrail bench read` takes it
    #[arg(long)]
    pub uri: String,
    /// How objects hold samples
    #[arg(long)]
    pub format: Option<String>,
    /// Directory of the blocks
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// Largest size of the directory
    #[arg(long, value_name = "BYTES")]
    pub limit: u64,
    /// Index of the share, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub share: u32,
    /// Number of shares that the data set is cut into
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub of: u32,
    /// User that trainers run as; used if this program runs as root
    #[arg(long, value_name = "UID", default_value_t = 0)]
    pub user: u32,
    /// Compare every block on disk with its checksum afterwards
    #[arg(long)]
    pub verify: bool,
    /// Write the report to FILE as well as to standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The command `fuelrail`
    #[arg(long, value_name = "FILE", default_value = "fuelrail")]
    pub program: PathBuf,
}

const CLEAN_EXAMPLES: &str = "Examples:
  fuelrail-operator clean --directory /disk";

/// Empty a data set's directory
#[derive(Args, Clone, Debug)]
#[command(after_help = CLEAN_EXAMPLES)]
pub struct Clean {
    /// Directory of the blocks
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
}

impl Load {
    /// Loads the share and reports what is on disk.
    ///
    /// # Errors
    /// If the directory cannot be used or the program fails.
    pub fn run(&self) -> Result<Report, String> {
        let directory = &self.directory;
        let at = |error: std::io::Error| format!("{}: {error}", directory.display());
        fs::create_dir_all(directory).map_err(at)?;
        let owner = fs::metadata(directory).map_err(at)?.uid();
        if owner != self.user && is_root() {
            chown(directory, Some(self.user), Some(self.user)).map_err(at)?;
        }
        let boot_id = fs::read_to_string(BOOT_ID).map_err(|error| format!("{BOOT_ID}: {error}"))?;
        let mut report = Report { boot_id: boot_id.trim().to_owned(), ..Report::default() };
        // The first pass loads, the second checks. A disk that is too slow to take all gets more, while they bring it nearer.
        let (mut least, mut idle, mut step_ms) = (u64::MAX, 0, 0);
        while idle < IDLE_PASSES_MAX {
            let read = self.pass(step_ms)?;
            let number = |value: &Value| value.as_u64().ok_or("fuelrail bench read: its result lacks a number");
            let shards = read["shards"].as_array().ok_or("fuelrail bench read: its result lacks shards")?;
            let landed: Result<u64, _> = shards.iter().map(|shard| number(&shard["landed_bytes"])).sum();
            // None where no directory can be used.
            let count = |name: &str| read["disk"][name].as_u64().unwrap_or(0);
            report.evicted_segments += count("trims") + count("segments_reclaimed");
            (report.share_bytes, report.missing_bytes) = (number(&read["bytes"])?, landed?);
            let checked = least < u64::MAX;
            if report.missing_bytes == 0 || (checked && report.share_bytes > self.limit) {
                break;
            }
            idle = if report.missing_bytes > least - least / 16 { idle + 1 } else { 0 };
            least = least.min(report.missing_bytes);
            step_ms = u64::from(idle) * IDLE_PAUSE_MS / number(&read["batches"])?.max(1);
        }
        let listed = self.fuelrail(&["cache", "ls", "--json"], true)?;
        let segments = listed["directories"].as_array().into_iter().flatten();
        let segments: Vec<&Value> = segments.flat_map(|at| at["segments"].as_array().into_iter().flatten()).collect();
        let sum = |name: &str| segments.iter().filter_map(|segment| segment[name].as_u64()).sum::<u64>();
        (report.held_bytes, report.held_blocks) = (sum("block_bytes"), sum("blocks"));
        if self.verify {
            let verdict = self.fuelrail(&["cache", "verify", "--json"], true)?;
            report.corrupt_blocks =
                verdict["rotten"].as_u64().ok_or("fuelrail cache verify: its result lacks rotten")?;
        }
        Ok(report)
    }

    /// One epoch of the share, with so long a pause behind each batch.
    fn pass(&self, step_ms: u64) -> Result<Value, String> {
        let (share, of, step_ms) = (self.share.to_string(), self.of.to_string(), step_ms.to_string());
        let mut arguments = vec!["bench", "read", "--epochs", "1", "--hash", "false", "--step-ms", &step_ms, "--json"];
        if self.of > 1 {
            arguments.extend(["--order", "sticky", "--world", &of, "--rank", &share]);
        }
        arguments.extend(self.format.iter().flat_map(|format| ["--format", format]));
        self.fuelrail(&arguments, false)
    }

    /// The JSON document that the command prints. `on_directory` appends the directory and accepts the document of a command that fails.
    fn fuelrail(&self, arguments: &[&str], on_directory: bool) -> Result<Value, String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).args(on_directory.then_some(&self.directory)).stderr(Stdio::inherit());
        command.env("FUELRAIL_URI", &self.uri).env("FUELRAIL_SPILL_DIRS", &self.directory);
        // The default policy, next-use, keeps blocks by this run's order, which a later run need not have.
        command.env("FUELRAIL_SPILL_POLICY", "lru").env("FUELRAIL_SPILL_LIMIT_BYTES", self.limit.to_string());
        if is_root() {
            command.uid(self.user).gid(self.user);
        }
        let output = command.output().map_err(|error| format!("{}: {error}", self.program.display()))?;
        let document = serde_json::from_slice(&output.stdout);
        match document {
            Ok(document) if output.status.success() || on_directory => Ok(document),
            _ => Err(format!("fuelrail {} failed ({}); its log says why", arguments.join(" "), output.status)),
        }
    }
}

impl Clean {
    /// Removes everything in the directory, without following symbolic links. The directory itself stays: it is a mount point.
    ///
    /// # Errors
    /// The first entry that cannot be removed.
    pub fn run(&self) -> Result<(), String> {
        let at = |path: &Path, error: std::io::Error| format!("cannot clean {}: {error}", path.display());
        let entries = fs::read_dir(&self.directory).map_err(|error| at(&self.directory, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| at(&self.directory, error))?;
            let is_directory = entry.file_type().map_err(|error| at(&entry.path(), error))?.is_dir();
            let removed = if is_directory { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
            removed.map_err(|error| at(&entry.path(), error))?;
        }
        Ok(())
    }
}

/// Whether a `fuelrail share` of this pod answers jobs: it has listed the data set, and listens under the name that says so.
///
/// # Errors
/// If they cannot.
pub fn ready() -> Result<(), String> {
    let table = fs::read(SOCKETS).map_err(|error| format!("{SOCKETS}: {error}"))?;
    let no = || "fuelrail share does not listen yet".to_owned();
    String::from_utf8_lossy(&table).lines().any(is_served).then_some(()).ok_or_else(no)
}

/// Whether a line of the table is of a socket that accepts connections for `fuelrail share`. One that was killed leaves a name, but no line.
fn is_served(line: &str) -> bool {
    line.contains(" 00010000 ") && line.contains("/fuelrail-share-") && line.ends_with(".ready")
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::is_served;

    #[test]
    fn an_agent_serves_while_its_socket_accepts_connections() {
        let line = |flags: &str, path: &str| format!("0000000000000000: 00000002 00000000 {flags} 0005 01 4711 {path}");
        let path = "/proc/self/fd/5/fuelrail-share-00c0ffee00c0ffee.ready";
        assert!(is_served(&line("00010000", path)));
        // While it lists, and another program's socket.
        assert!(!is_served(&line("00010000", path.trim_end_matches(".ready"))));
        assert!(!is_served(&line("00000000", path)) && !is_served(&line("00010000", "/run/other")));
    }
}
