//! Scenarios around a trainer that only pretends: turns, options, failures, figures. And around the real one, where there is one.
use crate::skip::skip_or_fail;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::program::cleared;
use super::{Ended, PROGRAM, fuelrail, utf8};

/// Notes how it was called, then does what `PART` says, then leaves a log of two steps and, as rank 0, an outcome. The first seed's steps in
/// lockstep take 40 ms on rank 0 and 80 on rank 1; asynchronous ones a quarter; those of later seeds three times as long.
const STAND_IN: &str = r#"#!/bin/sh
here=$(dirname "$0")
share=1
echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR, ${FUELRAIL_BATCH_SIZE-clean}: $*" >> "$here/calls"
while [ $# -gt 0 ]; do
  case "$1" in
    --json) json=$2 ;; --step-log) log=$2 ;; --switch-after) share=$2 ;; --seed) seed=$2 ;;
  esac
  shift
done
PART
case "$share" in
  1) step=40; accuracy=0.99; switch=null ;;
  *) step=10; accuracy=0.97; switch=0.002 ;;
esac
[ "$seed" = 1 ] || step=$((step * 3))
step=$((step * (RANK + 1)))
log=$(echo "$log" | sed "s/{rank}/$RANK/")
for loss in 2.5 null; do echo "{\"step\":1,\"loss\":$loss,\"wall_ms\":$step.0}"; done > "$log"
[ "$RANK" = 0 ] || exit 0
epoch="{\"samples\": 9, \"score\": {\"accuracy\": 0.5}, \"loader\": {\"landed_bytes\": 7$seed, \"hit_ratio\": 0.2, \"coverage\": 1}}"
cat > "$json" <<END
{"outcome": {"end": "done", "samples": 600, "meter": {"data_wait_s": 0.25}, "switch_s": $switch, "stale": 3},
 "epochs": [$epoch, $epoch, $epoch, $epoch, $epoch, $epoch, $epoch, $epoch],
 "score": {"samples": 50, "loss": null, "accuracy": $accuracy}, "device": "Cpu", "torch": "0.0"}
END
"#;

/// A process started while another test still writes its script would inherit the open file, and then the script cannot be run.
static ALONE: Mutex<()> = Mutex::new(());

struct Stage {
    folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    fn new(part: &str) -> Stage {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("fuelrail-train");
        std::fs::write(&program, STAND_IN.replace("PART", part)).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Stage { folder, _alone: alone }
    }

    /// A scenario with this trainer, small, twice.
    fn run(&self, args: &[&str]) -> Ended {
        let trainer = self.folder.path().join("fuelrail-train");
        let small = ["--trainer", utf8(&trainer), "--scale", "0.1", "--rounds", "2", "--set", "shards=1", "--json"];
        fuelrail(&[&["scenario"], args, &small].concat())
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }
}

/// Whether a process is there and alive.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

fn gone_soon(pid: &str) -> bool {
    let begun = Instant::now();
    while lives(pid) && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    !lives(pid)
}

#[test]
fn settings_take_turns_and_rows_tell_what_ranks_left() {
    let stage = Stage::new("");
    let report = stage.run(&["switch"]).json();
    let runs = report["runs"].as_array().unwrap();
    let lags =
        [("synchronous", "1"), ("switched at 25 %", "0.25"), ("25 %, greedy", "0.25"), ("25 %, elastic", "0.25")];
    let well = [lags[0], lags[1], ("switched at 5 %", "0.05")].map(|(name, share)| (name.to_owned(), share));
    let named = lags.map(|(name, share)| (format!("a rank lags: {name}"), share));
    let apart = ("asynchronous".to_owned(), "0");
    let all = [&well[..], &[apart], &named, &[("a rank lags: asynchronous".to_owned(), "0")]].concat();
    let calls = stage.read("calls");
    assert_eq!((calls.lines().count(), runs.len()), (144, 36), "{calls}");
    for (number, call) in calls.lines().enumerate() {
        let (told, seed) = (&runs[number / 4], 1 + number / 72);
        // Every seed begins with another setting: the second one with the second.
        let (place, clip) = ((number / 4 % 18 + seed - 1) % 18 / 2, (number / 4 + seed - 1) % 2);
        let (name, share) = &all[place];
        let name = if clip == 0 { name.clone() } else { format!("{name}, gradients of length 1 at most") };
        assert_eq!((&told["round"], &told["run"]), (&seed.into(), &name.into()));
        let switched = format!("--switch-after {share}");
        assert!(call.contains(&format!("--seed {seed} --clip-norm {clip} --slow 0=4 ")), "{call}");
        assert!(call.contains(&switched) != (*share == "1"), "{call}");
        let ranks = [0, 1, 2, 3].map(|rank| format!("{rank} of 4, {rank} of 4, 127.0.0.1, clean: http://"));
        assert!(ranks.iter().any(|rank| call.starts_with(rank)), "{call}");
        assert!(call.contains("/training/ --eval-uri http://") && call.contains("--set shards=1 --json "), "{call}");
    }
    // In lockstep two steps of 160 ms on the slowest rank; asynchronously of 40 ms, and the switch of 2 ms.
    let train_ms = runs.iter().map(|run| (run["figures"]["train_s"].as_f64().unwrap() * 1e3).round());
    let train_ms: Vec<f64> = train_ms.collect();
    assert_eq!((&train_ms[..3], &train_ms[18..20]), (&[320.0, 320.0, 82.0][..], &[960.0, 242.0][..]));
    let value = |row: usize, title: &str, figure: &str| report["rows"][row]["values"][title][figure].as_f64();
    let speeds = ["min", "max"].map(|figure| value(2, "speed, × synchronous", figure).unwrap());
    assert!((speeds[0] - 320.0 / 82.0).abs() < 1e-9 && (speeds[1] - 960.0 / 242.0).abs() < 1e-9, "{speeds:?}");
    assert_eq!(value(0, "speed, × synchronous", "median"), Some(1.0));
    assert!((value(6, "accuracy, less synchronous", "median").unwrap() + 2.0).abs() < 1e-9, "{report}");
    assert_eq!((value(0, "switches ms", "max"), value(6, "switches ms", "max")), (None, Some(2.0)));
    assert_eq!((&report["facts"]["torch"], &report["facts"]["device"]), (&"0.0".into(), &"Cpu".into()));
}

#[test]
fn importance_is_told_by_epochs_against_the_uniform_run_of_the_same_set() {
    let stage = Stage::new("");
    let report = stage.run(&["importance"]).json();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[7]["run"]), (8, &"harder, on".into()));
    for row in rows.iter().map(|row| &row["values"]) {
        assert_eq!((&row["accuracy %"]["median"], &row["accuracy, less uniform"]["max"]), (&50.0.into(), &0.0.into()));
        assert_eq!((&row["bytes, × uniform"]["max"], &row["hit ratio"]["count"]), (&1.0.into(), &2.into()), "{row}");
    }
    assert_eq!(report["runs"][0]["figures"]["epochs.3.loader.landed_bytes"], 71.0, "epochs stay in the result");
    let calls = stage.read("calls");
    let shade = calls.lines().find(|call| call.contains("--importance shade ")).unwrap();
    let replaced = !shade.contains('%') && shade.replace("{rank}", "").find('{').is_none();
    assert!(shade.contains("--set cache_policy=importance") && replaced, "{shade}");
}

#[test]
fn a_failed_rank_is_reported_and_no_process_is_left() {
    let part = "if [ \"$RANK\" = 1 ]; then echo 'no such <gradient>' >&2; exit 3; fi\n\
                sleep 600 & echo $! > \"$here/sleeper\"; echo $$ > \"$here/first\"; wait";
    let stage = Stage::new(part);
    let Ended { code, err, .. } = stage.run(&["switch"]);
    for part in ["synchronous, round 1", "rank 1 failed", "exit status: 3", "no such <gradient>"] {
        assert!(code == 3 && err.contains(part), "{part}: {code} {err}");
    }
    // It may have been ended before it noted its number; who has noted one must be gone.
    for name in ["sleeper", "first"] {
        let pid = stage.read(name);
        assert!(pid.trim().is_empty() || gone_soon(pid.trim()), "{name} is left");
    }
}

#[test]
fn what_takes_too_long_is_ended_and_told() {
    let stage = Stage::new("echo 'waiting for the others'; echo $$ > \"$here/pid-$RANK\"; sleep 600");
    let ended = stage.run(&["switch", "--limit", "1"]);
    assert!(ended.code != 0 && ended.err.contains("--limit"), "{}", ended.err);
    for rank in ["pid-0", "pid-1"] {
        let pid = stage.read(rank);
        assert!(pid.trim().is_empty() || gone_soon(pid.trim()), "{rank} is left");
    }
}

#[test]
fn a_trainer_of_another_kind_is_told() {
    let stage = Stage::new("exit 0");
    let ended = stage.run(&["switch"]);
    assert!(ended.code == 3 && ended.err.contains("left no outcome.json"), "{}", ended.err);
    let program = stage.folder.path().join("fuelrail-train");
    std::fs::write(&program, "#!/no/such/interpreter").unwrap();
    let ended = stage.run(&["importance"]);
    assert!(ended.code == 3 && ended.err.contains(&format!("starting {}", program.display())), "{}", ended.err);
}

#[test]
fn told_to_stop_it_stops() {
    let stage = Stage::new("sleep 600");
    let trainer = stage.folder.path().join("fuelrail-train");
    let mut command = cleared(Command::new(PROGRAM));
    command.args(["scenario", "switch", "--scale", "0.1", "--trainer"]).arg(trainer).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let begun = Instant::now();
    while stage.read("calls").is_empty() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = Ended::new(child.wait_with_output().unwrap());
    assert!(ended.code != 0 && ended.err.contains("interrupted"), "{} {}", ended.code, ended.err);
}

/// With `FUELRAIL_TRAINER=target/release/fuelrail-train`: four ranks learn for a moment, in lockstep and not.
#[test]
fn the_real_trainer_does_as_it_is_told() {
    let Some(trainer) = std::env::var_os("FUELRAIL_TRAINER") else {
        skip_or_fail("trainer", "FUELRAIL_TRAINER names no fuelrail-train");
        return;
    };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let args =
        ["scenario", "switch", "--scale", "0.2", "--rounds", "1", "--json", "--trainer", utf8(Path::new(&trainer))];
    let report = fuelrail(&args).json();
    for run in report["runs"].as_array().unwrap() {
        let name = run["run"].as_str().unwrap();
        let switched = !name.trim_start_matches("a rank lags: ").starts_with("synchronous");
        let figure = |name: &str| run["figures"][name].as_f64();
        assert!(figure("train_s") > Some(0.0) && figure("outcome.samples") >= Some(1024.0), "{run}");
        assert!((0.05..=1.0).contains(&figure("score.accuracy").unwrap()), "{run}");
        assert_eq!(figure("outcome.switch_s").is_some(), switched, "{run}");
        assert!(figure("outcome.switch_s").is_none_or(|switch_s| switch_s < 1.0), "in place: {run}");
    }
    let lockstep = &report["runs"][0]["figures"];
    assert_eq!(lockstep["steps.0"], lockstep["steps.1"], "in lockstep all ranks take the same steps");
}

/// Two trainers are killed when the plan's machines are taken away, and finish.
#[test]
fn revoked_trainers_finish_as_planned() {
    let refused = fuelrail(&["revoked", "--steps", "3"]);
    assert!(refused.code == 2 && refused.err.contains("runs of 3 steps"), "{}", refused.err);
    let Some(trainer) = std::env::var_os("FUELRAIL_TRAINER") else {
        skip_or_fail("trainer", "FUELRAIL_TRAINER names no fuelrail-train");
        return;
    };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let args = ["revoked", "--runs", "1", "--steps", "60", "--life-s", "8", "--json", "--trainer"];
    let report = fuelrail(&[&args[..], &[utf8(Path::new(&trainer))]].concat()).json();
    let row = &report["rows"][0];
    let of = |name: &str| row[name].as_f64().unwrap();
    assert!(
        of("low_s") <= of("predicted_s") && of("predicted_s") <= of("high_s") && of("finished_s") > 0.0,
        "{report}"
    );
    assert!(row["inside"].is_boolean() && report["pace"]["start_s"].as_f64() > Some(0.0), "{report}");
}
