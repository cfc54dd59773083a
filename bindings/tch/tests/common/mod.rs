//! What the trainer's tests share: a bucket of digits, ranks as processes of their own, and their logs.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use crate::ports::free_port;
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for something that must come. Only a hang meets it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A bucket of so many digits.
pub fn digits(count: u64, seed: u64) -> Bucket {
    let source = Source::Generated(DataSet::digits(count, seed));
    Bucket::start(BucketConfig { source, ..BucketConfig::default() }).expect("loopback can be listened on")
}

/// The ranks of one job.
pub struct Job {
    ranks: Vec<(Child, PathBuf)>,
}

/// How a rank ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub output: String,
}

/// A free port for ranks to meet at.
pub fn meeting_port() -> u16 {
    free_port(Ipv4Addr::LOCALHOST).port()
}

/// The trainer's program with what all tests want.
pub fn trainer(arguments: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fuelrail-train"));
    command.args(arguments).args(["--set", "memory_limit_bytes=128MB", "--set", "shards=1", "--set", "pin=false"]);
    command.args(["--device", "cpu", "--threads", "1"]).env("RUST_BACKTRACE", "0");
    clean(&mut command);
    command
}

/// Without what steers tests: to the program it would be a misspelt setting.
pub fn clean(command: &mut Command) {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FUELRAIL_")) {
        command.env_remove(name);
    }
}

impl Job {
    /// Starts `world` ranks, their output in files of `folder`.
    pub fn start(world: usize, folder: &Path, arguments: &[String]) -> Job {
        let port = meeting_port();
        let ranks = (0..world).map(|rank| {
            let mut command = trainer(arguments);
            let variables = [("RANK", rank), ("WORLD_SIZE", world), ("LOCAL_RANK", rank), ("MASTER_PORT", port.into())];
            command.envs(variables.map(|(name, value)| (name, value.to_string()))).env("MASTER_ADDR", "127.0.0.1");
            start(command, folder.join(format!("rank{rank}.out")))
        });
        Job { ranks: ranks.collect() }
    }

    /// Of processes started otherwise.
    pub fn of(ranks: Vec<(Child, PathBuf)>) -> Job {
        Job { ranks }
    }

    /// Sends a signal to one rank.
    pub fn signal(&self, rank: usize, signal: Signal) {
        let pid = i32::try_from(self.ranks[rank].0.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for all.
    pub fn wait(mut self) -> Vec<Ended> {
        let begun = Instant::now();
        let mut ended = Vec::new();
        for (child, output) in &mut self.ranks {
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                if begun.elapsed() > PATIENCE {
                    let text = std::fs::read_to_string(&output).unwrap_or_default();
                    child.kill().unwrap();
                    panic!("a rank hangs: {text}");
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            ended.push(Ended { status, output: std::fs::read_to_string(&output).unwrap() });
        }
        self.ranks.clear();
        ended
    }

    /// Waits for all, which must end well.
    pub fn done(self) -> Vec<Ended> {
        let ended = self.wait();
        for (rank, one) in ended.iter().enumerate() {
            assert!(one.status.success(), "rank {rank}: {}\n{}", one.status, one.output);
        }
        ended
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (child, _) in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a command with all its output in a file.
pub fn start(mut command: Command, output: PathBuf) -> (Child, PathBuf) {
    let file = std::fs::File::create(&output).unwrap();
    let both = file.try_clone().unwrap();
    let child = command.stdin(Stdio::null()).stdout(file).stderr(both).spawn().unwrap();
    (child, output)
}

/// One step as logged, all ranks together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    pub loss: f64,
    /// Samples of all ranks, in order of their number: ranks take turns in it, so their order says nothing.
    pub ids: Vec<u64>,
    pub mode: String,
}

/// The log of `world` ranks; of a step logged twice the later counts.
pub fn steps(folder: &Path, name: &str, world: usize) -> BTreeMap<u64, Step> {
    let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
    for rank in 0..world {
        let mut own: BTreeMap<u64, Step> = BTreeMap::new();
        for line in lines(&folder.join(name.replace("{rank}", &rank.to_string()))) {
            let ids = line["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
            let step = Step { loss: line["loss"].as_f64().unwrap(), ids, mode: line["mode"].as_str().unwrap().into() };
            own.insert(line["step"].as_u64().unwrap(), step);
        }
        for (number, step) in own {
            let all = steps.entry(number).or_default();
            (all.loss, all.mode) = (step.loss, step.mode);
            all.ids.extend(step.ids);
            all.ids.sort_unstable();
        }
    }
    steps
}

/// The whole lines of a log of JSON; a last one that is torn is left out.
pub fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until this rank has logged so many steps.
pub fn wait_for_steps(path: &Path, steps: u64) {
    let begun = Instant::now();
    while lines(path).last().is_none_or(|line| line["step"].as_u64().unwrap() < steps) {
        assert!(begun.elapsed() < PATIENCE, "step {steps} is not reached in {}", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Words of a command line.
pub fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Two losses of the same step agree as far as sums in another order do.
pub fn assert_near(step: u64, found: f64, expected: f64) {
    let tolerance = 2e-3 + 0.02 * expected.abs();
    assert!((found - expected).abs() <= tolerance, "step {step}: loss {found} instead of {expected}");
}
