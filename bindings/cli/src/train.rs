//! `fuelrail train`: hands over to `fuelrail-train`, which needs libtorch and is therefore a program of its own.
//!
//! Owns the search for it. Never links torch.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use fuelrail::{Error, Kind, Result};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::bench::this_program;
use crate::failure::{Failure, Outcome, Stop, file, usage};
use crate::screen::{note, print};

const EXAMPLES: &str = "Examples:
  fuelrail train --demo
  fuelrail train -- http://127.0.0.1:9000/bucket/training/ --decode 28x28x1 --epochs 3 --checkpoint run1
  torchrun --no-python --nproc-per-node 2 --max-restarts 3 fuelrail train -- http://HOST/photos/train/ --model resnet18 \\
    --decode 224x224x3 --checkpoint run2 --checkpoint-every 500

fuelrail train -- --help shows all options of the trainer.";

/// Train a model from a bucket, alone or as one rank of many (needs fuelrail-train, which needs libtorch)
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Train {
    /// Show it: two ranks learn digits, one is killed on the way, both go on from the last checkpoint
    #[arg(long, conflicts_with = "arguments")]
    demo: bool,
    /// With --demo, where its checkpoints and logs go
    #[arg(long, value_name = "FOLDER", default_value = "target/demo/training", requires = "demo")]
    folder: PathBuf,
    /// Handed to the trainer as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

pub(crate) fn run(args: &Train) -> Outcome {
    if !args.demo && args.arguments.is_empty() {
        return Err(usage("nothing to train from is given", "see fuelrail train --help"));
    }
    let path = folders(&std::env::var_os("PATH").unwrap_or_default());
    let program = find_trainer(None, &this_program()?, &path)?;
    if args.demo {
        return run_demo(&program, &args.folder).map(|()| ExitCode::SUCCESS);
    }
    // On success this process is the trainer: signals of launchers and schedulers reach it as they should.
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(Failure::Error(Error::from_io(Kind::Environment, format_args!("starting {}", program.display()), error)))
}

/// The trainer's program.
pub const TRAINER: &str = "fuelrail-train";

/// The folders of a `PATH`.
pub fn folders(path: &std::ffi::OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).filter(|folder| folder != Path::new("")).collect()
}

/// Finds the trainer: the one that was named, or one beside `beside`, or in one of `folders`.
///
/// # Errors
/// `Environment` with how to build it.
pub fn find_trainer(named: Option<&Path>, beside: &Path, folders: &[PathBuf]) -> fuelrail::Result<PathBuf> {
    let found = match named {
        Some(path) => path.is_file().then(|| path.to_owned()),
        None => {
            let here = beside.with_file_name(TRAINER);
            std::iter::once(here).chain(folders.iter().map(|folder| folder.join(TRAINER))).find(|path| path.is_file())
        }
    };
    // Ranks run in folders of their own.
    let found = found.and_then(|path| std::path::absolute(path).ok());
    found.ok_or_else(|| {
        let cause = match named {
            Some(path) => format!("there is no trainer {}", path.display()),
            None => format!("{TRAINER} is neither beside this program nor in PATH"),
        };
        Error::new(Kind::Environment, cause).with_hint(
            "build it where libtorch is: eval \"$(./scripts/libtorch)\" && cargo build --release -p fuelrail-tch; then put \
             target/release/fuelrail-train beside this program or in PATH",
        )
    })
}

/// The accuracy to reach on unseen digits.
const ACCURACY_MIN: f64 = 0.97;
const TRAINING_DIGITS: u64 = 8000;
const TEST_DIGITS: u64 = 2000;
/// Where rank 1 dies, of 250 steps.
const KILL_AT_STEP: u64 = 90;
/// Far more than the run takes: only a hang meets it.
const PATIENCE: Duration = Duration::from_secs(300);

fn run_demo(program: &Path, folder: &Path) -> Outcome<()> {
    let saved = folder.join("checkpoints");
    let (first, second) = (folder.join("first"), folder.join("second"));
    for place in [&saved, &first, &second] {
        std::fs::create_dir_all(place).map_err(|e| file("making the folder", place, &e))?;
    }
    clear(folder)?;
    clear(&saved)?;
    let (training, test) = (bucket(TRAINING_DIGITS, 1)?, bucket(TEST_DIGITS, 2)?);
    let (log, outcome) = (folder.join("steps-rank{rank}.jsonl"), folder.join("outcome.json"));
    let words = format!(
        "{}|--eval-uri|{}|--model|lenet|--decode|28x28x1|--global-batch-size|64|--epochs|2|--rate|0.05|--checkpoint-every|25|--device|cpu|\
         --timeout-s|30|--threads|1|--set|memory_limit_bytes=128MB|--set|shards=1|--step-log|{}|--json|{}|--checkpoint|{}",
        training.url("training/"),
        test.url("training/"),
        log.display(),
        outcome.display(),
        saved.display()
    );
    let arguments: Vec<String> = words.split('|').map(str::to_owned).collect();
    note(&format!("training: two ranks over gloo on the CPU, LeNet on {TRAINING_DIGITS} digits, two epochs"));
    let begun = Instant::now();
    let mut ranks = Ranks::start(program, &arguments, 2, &first)?;
    let step = wait_for_step(&mut ranks, &folder.join("steps-rank1.jsonl"))?;
    ranks.kill(1);
    note(&format!("training: rank 1 killed at step {step}"));
    let ended = ranks.ended()?;
    let (status, said) = &ended[0];
    if status.success() {
        return Err(failed("rank 0 went on without rank 1", said));
    }
    // Its error and hint, the last that it says.
    let error = said.rfind("error: ").map_or(said.trim(), |at| said[at..].trim());
    note(&format!("training: rank 0 says: {}", error.replace('\n', "; ")));
    note("training: both ranks start again");
    let ended = Ranks::start(program, &arguments, 2, &second)?.ended()?;
    if let Some((_, said)) = ended.iter().find(|(status, _)| !status.success()) {
        return Err(failed("a rank failed after the restart", said));
    }
    tell(&ended[0].1, &outcome, begun.elapsed())
}

/// Removes what an earlier demo left: files only, and only of names a demo gives.
fn clear(folder: &Path) -> Outcome<()> {
    let entries = std::fs::read_dir(folder).map_err(|e| file("reading", folder, &e))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let ours = ["step-", "steps-rank", "outcome.json"].iter().any(|n| name.starts_with(n));
        if ours && path.is_file() {
            std::fs::remove_file(&path).map_err(|e| file("removing", &path, &e))?;
        }
    }
    Ok(())
}

fn bucket(count: u64, seed: u64) -> Outcome<Bucket> {
    let source = Source::Generated(DataSet::digits(count, seed));
    Ok(Bucket::start(BucketConfig { source, ..BucketConfig::default() })?)
}

/// Waits until the log has reached the step to die at; the last step in it.
fn wait_for_step(ranks: &mut Ranks, log: &Path) -> Outcome<u64> {
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let last = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok()?["step"].as_u64());
        if last.is_some_and(|step| step >= KILL_AT_STEP) || ranks.has_ended(0) || ranks.has_ended(1) {
            return Ok(last.unwrap_or(0));
        }
        if begun.elapsed() > PATIENCE {
            return Err(failed("the ranks make no progress", &text));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn tell(said: &str, outcome: &Path, took: Duration) -> Outcome<()> {
    let text = std::fs::read_to_string(outcome).map_err(|e| file("reading", outcome, &e))?;
    let report: Value = serde_json::from_str(&text).unwrap_or_default();
    let (Some(accuracy), Some(steps)) = (report["score"]["accuracy"].as_f64(), report["outcome"]["steps"].as_u64())
    else {
        return Err(failed("the trainer's report lacks its score", &text));
    };
    print(&format!("\ntraining, in {:.1} s with a kill and a restart:\n", took.as_secs_f64()))?;
    for line in said.lines().filter(|line| !line.starts_with("notice") && !line.starts_with("checkpoint")) {
        print(&format!("  {line}\n"))?;
    }
    print(&format!(
        "training: {steps} steps, {:.2} % of {TEST_DIGITS} unseen digits right; report: {}\n",
        accuracy * 100.0,
        outcome.display()
    ))?;
    if accuracy <= ACCURACY_MIN {
        return Err(failed(&format!("the accuracy {accuracy} is not above {ACCURACY_MIN}"), said));
    }
    Ok(())
}

fn failed(what: &str, said: &str) -> Failure {
    let last: Vec<&str> = said.lines().rev().take(5).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Failure::Error(Error::new(Kind::Mismatch, format!("{what}: {}", last.join(" / "))))
}

/// Processes that belong together.
#[derive(Debug)]
pub struct Ranks {
    children: Vec<Child>,
    folder: PathBuf,
}

/// How often is looked whether one has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// When one has failed, the others may fail of it and say so; then they are ended.
const GRACE: Duration = Duration::from_secs(1);
/// Lines of a failed rank's words that are shown.
const LINES_MAX: usize = 30;

impl Ranks {
    /// Starts `count` ranks of `program`; what they say goes to files in `folder`.
    ///
    /// # Errors
    /// `Environment` when the program cannot be started, `File` when the folder cannot be written to.
    pub fn start(program: &Path, words: &[String], count: u32, folder: &Path) -> Result<Ranks> {
        let port = free_port()?;
        let mut ranks = Ranks { children: Vec::new(), folder: folder.to_owned() };
        for rank in 0..count {
            let out = File::create(ranks.out(rank as usize));
            let out = out.and_then(|out| Ok((out.try_clone()?, out)));
            let (out, err) = out.map_err(|error| Error::from_io(Kind::File, "writing what ranks say", error))?;
            let mut command = Command::new(program);
            // What is set for the loader of this process is not meant for theirs: a result names all that counts.
            for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FUELRAIL_")) {
                command.env_remove(name);
            }
            command.args(words).env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
            command.env("WORLD_SIZE", count.to_string()).env("LOCAL_WORLD_SIZE", count.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            // Its own group: Ctrl-C reaches this process alone, which ends them in order, with what they may have started.
            command.process_group(0).stdin(Stdio::null()).stdout(out).stderr(err);
            let child = command.spawn().map_err(|error| {
                Error::from_io(Kind::Environment, format_args!("starting {}", program.display()), error)
            })?;
            ranks.children.push(child);
        }
        Ok(ranks)
    }

    /// Waits until all have ended well.
    ///
    /// # Errors
    /// `Environment` with the last words of the rank that failed first; `Stalled` beyond the limit; `Cancelled` on a stop.
    pub fn wait(&mut self, limit: Duration, stop: &Stop) -> Result<()> {
        let begun = Instant::now();
        let mut failed: Option<(usize, ExitStatus, Instant)> = None;
        loop {
            stop.check()?;
            let mut running = 0;
            for rank in 0..self.children.len() {
                match self.children[rank].try_wait() {
                    Ok(None) => running += 1,
                    Ok(Some(status)) if !status.success() && failed.is_none() => {
                        failed = Some((rank, status, Instant::now()));
                    }
                    Ok(Some(_)) => {}
                    Err(error) => {
                        return Err(Error::from_io(Kind::Environment, format_args!("waiting for rank {rank}"), error));
                    }
                }
            }
            match failed {
                Some((rank, status, at)) if running == 0 || at.elapsed() > GRACE => {
                    return Err(Error::new(
                        Kind::Environment,
                        format!("rank {rank} failed ({status}){}", self.words(rank)),
                    ));
                }
                None if running == 0 => return Ok(()),
                _ => {}
            }
            if begun.elapsed() > limit {
                let words: String = (0..self.children.len()).map(|rank| self.words(rank)).collect();
                let cause = format!("the ranks have not ended within {:.0} s{words}", limit.as_secs_f64());
                return Err(Error::new(Kind::Stalled, cause));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends one rank, with what it may have started, as a power cut would.
    pub fn kill(&mut self, rank: usize) {
        kill(&mut self.children[rank]);
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self, rank: usize) -> bool {
        self.children[rank].try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for all, however they end: each one's status and all it said.
    ///
    /// # Errors
    /// `Environment` when one cannot be waited for, `File` when its words cannot be read.
    pub fn ended(mut self) -> Result<Vec<(ExitStatus, String)>> {
        let mut ended = Vec::new();
        for rank in 0..self.children.len() {
            let status = self.children[rank]
                .wait()
                .map_err(|error| Error::from_io(Kind::Environment, format_args!("waiting for rank {rank}"), error))?;
            let said = std::fs::read_to_string(self.out(rank))
                .map_err(|error| Error::from_io(Kind::File, format_args!("reading what rank {rank} said"), error))?;
            ended.push((status, said));
        }
        Ok(ended)
    }

    fn out(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("out-{rank}"))
    }

    /// The last lines of what a rank said.
    fn words(&self, rank: usize) -> String {
        let said = std::fs::read(self.out(rank)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n  ");
        if last.is_empty() { format!("\nrank {rank} said nothing") } else { format!("\nrank {rank} said:\n  {last}") }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(kill);
    }
}

/// Ends a process and its group, if it has not ended.
fn kill(child: &mut Child) {
    // One that has been waited for has no number any more, and its group may be another's by now.
    if matches!(child.try_wait(), Ok(None)) {
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    let found = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let found = found.map_err(|error| Error::from_io(Kind::Environment, "looking for a free port", error));
    found.map(|address| address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_is_beside_the_program_or_in_the_path_or_said_how_to_build() {
        let folder = tempfile::tempdir().unwrap();
        let (beside, elsewhere) = (folder.path().join("fuelrail"), folder.path().join("bin"));
        let folders = [elsewhere.clone()];
        let error = find_trainer(None, &beside, &folders).unwrap_err();
        assert!(error.kind() == Kind::Environment && error.to_string().contains("-p fuelrail-tch"), "{error}");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join(TRAINER), "").unwrap();
        assert_eq!(find_trainer(None, &beside, &folders).unwrap(), elsewhere.join(TRAINER));
        std::fs::write(folder.path().join(TRAINER), "").unwrap();
        assert_eq!(find_trainer(None, &beside, &folders).unwrap(), folder.path().join(TRAINER));
        let named = folder.path().join("absent");
        let error = find_trainer(Some(&named), &beside, &folders).unwrap_err();
        assert!(error.to_string().contains("absent"), "{error}");
    }
}
