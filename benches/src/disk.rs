//! Contestants over one file: a ring of ours that moves blocks, and fio, which is to move the same blocks in the same way.
//!
//! Owns what both are told. A pass is one way over the whole file. The file's path is the task's URI.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fuelrail::{Disk, DiskPlan, DiskWay, Error, Kind, Result, RingChoice};
use serde::Deserialize;

use crate::harness::protocol::serve;
use crate::harness::{Contestant, Said, Task};

/// A fact of fio's passes: what its job cost, s/GB. fio is started anew for every pass, and its start is no part of moving
/// blocks.
pub const JOB_CPU: &str = "job_cpu_s_per_gb";

/// What is moved, for every contestant alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Bytes a block.
    pub block_bytes: u64,
    /// Blocks under way at once.
    pub depth: u32,
    /// Bytes of the file.
    pub bytes: u64,
    /// Around the page cache.
    pub direct: bool,
}

impl Blocks {
    fn args(&self, way: DiskWay) -> Vec<String> {
        vec![
            format!("--way={}", word(way)),
            format!("--block-size={}", self.block_bytes),
            format!("--depth={}", self.depth),
            format!("--bytes={}", self.bytes),
            format!("--direct={}", self.direct),
        ]
    }

    /// The task of a contestant on this file.
    #[must_use]
    pub fn task(&self, path: &Path) -> Task {
        Task {
            uri: path.display().to_string(),
            // There are no objects to list, but the protocol has a place for the list.
            manifest: path.with_extension("tsv"),
            batch_size: self.depth,
            arena_bytes: self.block_bytes * u64::from(self.depth),
            seed: 0,
        }
    }
}

/// A way as one word.
#[must_use]
pub fn word(way: DiskWay) -> &'static str {
    match way {
        DiskWay::Write => "write",
        DiskWay::Read => "read",
    }
}

/// A ring as a contestant, by its name.
#[must_use]
pub fn ring_contestant(program: &Path, ring: &str, way: DiskWay, blocks: &Blocks) -> Contestant {
    let args = [vec!["contestant".into(), "disk".into(), format!("--ring={ring}")], blocks.args(way)];
    Contestant::new(ring, program, args.concat())
}

/// fio as a contestant.
#[must_use]
pub fn fio_contestant(program: &Path, way: DiskWay, blocks: &Blocks) -> Contestant {
    let args = [vec!["contestant".into(), "fio".into()], blocks.args(way)];
    Contestant::new("fio", program, args.concat())
}

/// Runs a ring as a contestant until its input ends. Ring, memory and file are open before it is ready, as fio's are
/// before it starts its clock.
///
/// # Errors
/// Those of [`DiskPlan::open`], [`Disk::pass`] and [`serve`].
pub fn run(
    ring: RingChoice,
    way: DiskWay,
    blocks: &Blocks,
    task: &Task,
    input: impl BufRead,
    output: impl Write,
) -> Result<()> {
    let plan = DiskPlan {
        path: PathBuf::from(&task.uri),
        ring,
        block_bytes: blocks.block_bytes,
        depth: blocks.depth,
        bytes: blocks.bytes,
        direct: blocks.direct,
        register: true,
    };
    let mut disk = plan.open()?;
    serve(input, output, || said(&mut disk, way))
}

fn said(disk: &mut Disk, way: DiskWay) -> Result<Said> {
    let pass = disk.pass(way)?;
    let per_byte = |count: u64| count as f64 / pass.bytes as f64;
    let facts =
        [("copied_bytes_per_byte", per_byte(pass.copied_bytes)), ("system_calls_per_mib", per_byte(pass.enters << 20))];
    let notices = disk.notices().iter().fold(String::new(), |all, notice| format!("{all}; {notice}"));
    Ok(Said {
        bytes: pass.bytes,
        objects: pass.blocks,
        wall_s: pass.wall_s,
        settings: format!("{}{notices}", disk.ring()),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Said::default()
    })
}

/// Runs fio as a contestant until the input ends: once per pass, with io_uring, registered buffers and a registered file.
///
/// # Errors
/// `Environment` when fio cannot be started, `Protocol` when it fails or says what we do not understand; those of
/// [`serve`].
pub fn run_fio(way: DiskWay, blocks: &Blocks, task: &Task, input: impl BufRead, output: impl Write) -> Result<()> {
    serve(input, output, || fio_pass(way, blocks, task))
}

fn fio_pass(way: DiskWay, blocks: &Blocks, task: &Task) -> Result<Said> {
    let args = fio_args(way, blocks, &task.uri);
    let run = Command::new("fio").args(&args).stdin(Stdio::null()).output();
    let run = run.map_err(|error| {
        Error::new(Kind::Environment, format!("starting fio: {error}")).cure("install it (apt-get install fio)")
    })?;
    let failed = |why: &str| Error::new(Kind::Protocol, format!("fio {}: {why}", args.join(" ")));
    if !run.status.success() {
        return Err(failed(String::from_utf8_lossy(&run.stderr).lines().last().unwrap_or("no reason given")));
    }
    let report = FioReport::parse(&run.stdout).map_err(|why| failed(&why))?;
    let moved = report.moved(way).ok_or_else(|| failed("no job in its report"))?;
    let job_cpu_s = report.jobs.first().map_or(0.0, FioJob::cpu_s);
    Ok(Said {
        bytes: moved.io_bytes,
        objects: moved.io_bytes / blocks.block_bytes,
        wall_s: moved.runtime as f64 / 1e3,
        // Where the file is differs from run to run.
        settings: format!("{}: {}", report.version, args[2..].join(" ")),
        facts: [(JOB_CPU.to_owned(), job_cpu_s * 1e9 / moved.io_bytes.max(1) as f64)].into(),
        ..Said::default()
    })
}

fn fio_args(way: DiskWay, blocks: &Blocks, path: &str) -> Vec<String> {
    let mut args = vec![
        format!("--filename={path}"),
        "--output-format=json".to_owned(),
        "--name=blocks".to_owned(),
        format!("--rw={}", word(way)),
        format!("--bs={}", blocks.block_bytes),
        format!("--iodepth={}", blocks.depth),
        format!("--size={}", blocks.bytes),
        format!("--direct={}", u8::from(blocks.direct)),
        "--ioengine=io_uring".to_owned(),
        "--fixedbufs=1".to_owned(),
        "--registerfiles=1".to_owned(),
    ];
    if way == DiskWay::Write {
        args.push("--end_fsync=1".to_owned());
    }
    args
}

/// The part of fio's report that we read.
#[derive(Deserialize)]
struct FioReport {
    #[serde(rename = "fio version")]
    version: String,
    jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct FioJob {
    /// Share of the job's time, percent.
    usr_cpu: f64,
    sys_cpu: f64,
    /// ms.
    job_runtime: u64,
    read: FioMoved,
    write: FioMoved,
}

impl FioJob {
    fn cpu_s(&self) -> f64 {
        (self.usr_cpu + self.sys_cpu) / 100.0 * self.job_runtime as f64 / 1e3
    }
}

/// What a job moved: bytes, and in how many milliseconds.
#[derive(Clone, Copy, Deserialize)]
struct FioMoved {
    io_bytes: u64,
    runtime: u64,
}

impl FioReport {
    /// Reads a report, which may follow lines of other text.
    fn parse(output: &[u8]) -> core::result::Result<FioReport, String> {
        let text = String::from_utf8_lossy(output);
        let json = text.find('{').map_or("", |at| &text[at..]);
        serde_json::from_str(json).map_err(|error| format!("a report that is not understood: {error}"))
    }

    fn moved(&self, way: DiskWay) -> Option<FioMoved> {
        self.jobs.first().map(|job| match way {
            DiskWay::Write => job.write,
            DiskWay::Read => job.read,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_fio_is_understood() {
        let text = br#"note: both iodepth >= 1 and synchronous I/O engine are selected
            {"fio version": "fio-3.33", "jobs": [{"jobname": "blocks", "usr_cpu": 1.5, "sys_cpu": 2.5, "job_runtime": 1000,
             "read": {"io_bytes": 0, "runtime": 0}, "write": {"io_bytes": 1073741824, "runtime": 912, "bw": 1}}]}"#;
        let report = FioReport::parse(text).unwrap();
        let moved = report.moved(DiskWay::Write).unwrap();
        assert_eq!((report.version.as_str(), moved.io_bytes, moved.runtime), ("fio-3.33", 1 << 30, 912));
        assert!((report.jobs[0].cpu_s() - 0.04).abs() < 1e-9);
        assert!(FioReport::parse(b"fio: pid=0, err=28").is_err());
    }

    #[test]
    fn fio_is_told_what_the_ring_is_told() {
        let blocks = Blocks { block_bytes: 1 << 20, depth: 8, bytes: 1 << 30, direct: true };
        let args = fio_args(DiskWay::Write, &blocks, "/x").join(" ");
        for part in ["--bs=1048576", "--iodepth=8", "--size=1073741824", "--direct=1", "--fixedbufs=1", "--end_fsync=1"]
        {
            assert!(args.contains(part), "{part} is missing: {args}");
        }
        assert!(!fio_args(DiskWay::Read, &blocks, "/x").join(" ").contains("fsync"));
    }
}
