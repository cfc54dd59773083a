//! `fuelrail train --demo`: two ranks learn digits from the embedded bucket; one is killed on the way; both go on from the last checkpoint.

use std::path::Path;
use std::time::{Duration, Instant};

use super::ranks::Ranks;
use fuelrail::{Error, Kind};
use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
use serde_json::Value;

use crate::failure::{Failure, Outcome, file};
use crate::screen::{note, print};

/// The accuracy to reach on unseen digits.
const ACCURACY_MIN: f64 = 0.97;
const TRAINING_DIGITS: u64 = 8000;
const TEST_DIGITS: u64 = 2000;
/// Where rank 1 dies, of 250 steps.
const KILL_AT_STEP: u64 = 90;
/// Far more than the run takes: only a hang meets it.
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) fn run(program: &Path, folder: &Path) -> Outcome<()> {
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
