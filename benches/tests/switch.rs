//! Sync-Switch's harness around a trainer that only pretends: turns, words, failures, figures. And around the real one, where there is one.
use crate::skip::skip_or_fail;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuelrail::Kind;
use fuelrail_benches::harness::Stop;
use fuelrail_benches::report::result_html;
use fuelrail_benches::switch::{SwitchReport, Switching, switch};
use fuelrail_cli::train::find_trainer;

/// Notes how it was called, then does what `PART` says, then leaves a log of two steps and, as rank 0, an outcome. The first seed's steps in
/// lockstep take 40 ms on rank 0 and 80 on rank 1; asynchronous ones a quarter; those of later seeds three times as long.
const STAND_IN: &str = r#"#!/bin/sh
here=$(dirname "$0")
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
[ "$seed" = 0 ] || step=$((step * 3))
step=$((step * (RANK + 1)))
log=$(echo "$log" | sed "s/{rank}/$RANK/")
for loss in 2.5 null; do echo "{\"step\":1,\"loss\":$loss,\"wall_ms\":$step.0}"; done > "$log"
[ "$RANK" = 0 ] || exit 0
cat > "$json" <<END
{"outcome": {"end": "done", "samples": 600, "meter": {"data_wait_s": 0.25}, "switch_s": $switch, "stale": 3},
 "score": {"samples": 50, "loss": null, "accuracy": $accuracy}, "device": "Cpu", "torch": "0.0"}
END
"#;

/// Whoever starts a process while another test still writes its script would hold that script open, and then it cannot be run.
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

    fn switching(&self) -> Switching {
        let trainer = find_trainer(None, &self.folder.path().join("fuelrail"), &[]).unwrap();
        Switching {
            trainer,
            seeds: 2,
            shares: vec![1.0, 0.05, 0.0],
            count: 300,
            test_count: 50,
            ..Switching::default()
        }
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
    let mut heard = Vec::new();
    let report = switch(&stage.switching(), &mut |run| heard.push((run.seed, run.place, run.share))).unwrap();
    let turns = [(0, 0, 1.0), (0, 1, 0.05), (0, 2, 0.0), (1, 0, 0.05), (1, 1, 0.0), (1, 2, 1.0)];
    assert_eq!(heard, turns, "every seed begins with another setting");
    let calls = stage.read("calls");
    assert_eq!(calls.lines().count(), 12, "{calls}");
    for (number, call) in calls.lines().enumerate() {
        let (seed, _, share) = turns[number / 2];
        assert!(call.contains(&format!("--seed {seed} --switch-after {share} --slow 1=4 ")), "{call}");
        assert!(
            call.starts_with("0 of 2, 0 of 2, 127.0.0.1, clean: http://") || call.starts_with("1 of 2, 1 of 2, "),
            "{call}"
        );
        assert!(
            call.contains("/training/ --eval-uri http://") && call.contains("/training/ --decode 28x28x1"),
            "{call}"
        );
    }
    // In lockstep two steps of 80 ms on the slow rank; asynchronously of 20 ms, and the switch of 2 ms.
    let train_s: Vec<f64> = report.runs.iter().map(|run| (run.train_s * 1e3).round()).collect();
    assert_eq!(train_s, [160.0, 42.0, 42.0, 122.0, 122.0, 480.0]);
    assert!(
        report.runs.iter().all(|run| run.steps == [2, 2] && run.stale == 3 && run.test_loss.is_none()),
        "{report:?}"
    );
    assert!(report.runs.iter().all(|run| run.curve.loss == [2.5] && run.total_s > 0.0), "a curve ends where losses do");
    let [synchronous, switched, asynchronous] = &report.rows[..] else { panic!("three rows: {report:?}") };
    assert_eq!((synchronous.speed.mean, synchronous.switch_s, synchronous.accuracy.mean), (1.0, None, 0.99));
    assert!(
        (switched.speed.min - 160.0 / 42.0).abs() < 1e-9 && (switched.speed.max - 480.0 / 122.0).abs() < 1e-9,
        "{switched:?}"
    );
    assert!((switched.accuracy_difference.mean + 0.02).abs() < 1e-9 && switched.stale == 6, "{switched:?}");
    assert_eq!((asynchronous.switch_s.unwrap().max, asynchronous.speed_expected), (0.002, 2.5));
    assert_eq!((report.torch.as_str(), report.device.as_str()), ("0.0", "Cpu"));
    let back: SwitchReport = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(report, back, "a result reads back as it was written");
    let page = result_html("switch.json", &report);
    assert!(page.contains("<svg ") && page.contains("accuracy") && !page.contains("NaN"), "{page}");
}

#[test]
fn a_failed_rank_is_heard_and_nobody_is_left() {
    let part = "if [ \"$RANK\" = 1 ]; then echo 'no such <gradient>' >&2; exit 3; fi\n\
                sleep 600 & echo $! > \"$here/sleeper\"; echo $$ > \"$here/first\"; wait";
    let stage = Stage::new(part);
    let error = switch(&stage.switching(), &mut |run| panic!("no run ends: {run:?}")).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), Kind::Environment, "{text}");
    for part in ["seed 0, synchronous", "rank 1 failed", "exit status: 3", "no such <gradient>"] {
        assert!(text.contains(part), "{part}: {text}");
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
    let limit = Duration::from_millis(500);
    let error = switch(&Switching { limit, ..stage.switching() }, &mut |_| {}).unwrap_err();
    assert!(error.kind() == Kind::Stalled && error.to_string().contains("--limit"), "{error}");
    for rank in ["pid-0", "pid-1"] {
        let pid = stage.read(rank);
        assert!(pid.trim().is_empty() || gone_soon(pid.trim()), "{rank} is left");
    }
}

#[test]
fn a_trainer_of_another_kind_is_told() {
    let stage = Stage::new("exit 0");
    let error = switch(&stage.switching(), &mut |_| {}).unwrap_err();
    assert!(error.kind() == Kind::Environment && error.to_string().contains("left no outcome.json"), "{error}");
    let stage_of_none = Switching { trainer: PathBuf::from("/no/such/trainer"), ..stage.switching() };
    let error = switch(&stage_of_none, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("starting /no/such/trainer"), "{error}");
}

#[test]
fn told_to_stop_it_stops() {
    let stage = Stage::new("sleep 600");
    let stop = Stop::default();
    let asked = stop.clone();
    let asking = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        asked.ask();
    });
    let error = switch(&Switching { stop, ..stage.switching() }, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled, "{error}");
    asking.join().unwrap();
}

/// With `FUELRAIL_TRAINER=target/release/fuelrail-train`: two ranks learn for a moment, in lockstep and not.
#[test]
fn the_real_trainer_does_as_it_is_told() {
    let Some(trainer) = std::env::var_os("FUELRAIL_TRAINER") else {
        skip_or_fail("trainer", "FUELRAIL_TRAINER names no fuelrail-train");
        return;
    };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let trainer = find_trainer(Some(Path::new(&trainer)), Path::new(""), &[]).unwrap();
    let shares = vec![1.0, 0.5, 0.0];
    let switching = Switching {
        trainer,
        seeds: 1,
        shares,
        epochs: 2,
        count: 512,
        test_count: 256,
        slow: 2.0,
        ..Switching::default()
    };
    let report = switch(&switching, &mut |_| {}).unwrap();
    for run in &report.runs {
        assert!(run.samples >= 1024 && run.train_s > 0.0 && run.train_s < run.total_s, "{run:?}");
        assert!(
            (0.05..=1.0).contains(&run.accuracy) && run.test_loss.is_some() && !run.curve.loss.is_empty(),
            "{run:?}"
        );
        assert_eq!(run.switch_s.is_some(), run.share < 1.0, "{run:?}");
        assert!(run.switch_s.is_none_or(|switch_s| switch_s < 1.0), "in place, not by starting again: {run:?}");
    }
    let [synchronous, ..] = &report.runs[..] else { panic!("{report:?}") };
    assert_eq!(synchronous.steps, [8, 8], "in lockstep all ranks take the same steps");
}
