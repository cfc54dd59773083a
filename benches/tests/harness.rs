//! The harness against contestants that behave and contestants that do not: whatever they do, it ends soon, says why, and
//! leaves nothing behind.
use crate::skip::skip_or_fail;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuelrail::Kind;
use fuelrail_benches::harness::account::Leaf;
use fuelrail_benches::harness::{Contest, Contestant, Entry, Patience, Place, Running, Scored, Stop, Task, hold};

/// A result line of a shell contestant.
const RESULT: &str =
    r#"{"bytes":1000000,"objects":10,"wall_s":0.001,"first_batch_us":5,"hash":"0a","settings":"shell"}"#;

fn task() -> Task {
    Task {
        uri: "http://127.0.0.1:9/".into(),
        manifest: "none.tsv".into(),
        batch_size: 4,
        arena_bytes: 1 << 20,
        seed: 0,
    }
}

/// A contestant that is a shell script.
fn shell(name: &str, script: &str) -> Contestant {
    // The tail of the protocol becomes the script's own arguments.
    Contestant::new(name, "/bin/sh", ["-c", script, "contestant"])
}

/// One that does as it should, busy for a while in every pass.
fn good(name: &str, loops: u32) -> Contestant {
    let busy = format!("i=0; while [ $i -lt {loops} ]; do i=$((i+1)); done");
    shell(name, &format!("echo ready; while read word; do {busy}; echo '{RESULT}'; done"))
}

/// So long a machine with much else to do may take; every failure below shows itself without waiting for it.
fn patience() -> Patience {
    Patience { ready: Duration::from_secs(50), pass: Duration::from_secs(50), end: Duration::from_secs(50) }
}

fn contest(rounds: u32) -> Contest {
    Contest { rounds, patience: patience(), ..Contest::default() }
}

fn entries(contestants: Vec<Contestant>) -> Vec<Entry> {
    contestants.into_iter().map(|contestant| Entry::new(contestant, task())).collect()
}

fn hold_one(contest: &Contest, contestant: Contestant) -> Scored {
    hold(contest, &entries(vec![contestant]), &mut |_| {}).unwrap().remove(0)
}

#[test]
fn passes_interleave_and_the_work_is_counted_from_outside() {
    let (mut turns, mut ended) = (Vec::new(), Vec::new());
    let all = entries(vec![good("light", 10), good("heavy", 60_000)]);
    let held = Contest { cold_rounds: 1, ..contest(2) };
    let scores = hold(&held, &all, &mut |turn| match turn.ended {
        None => turns.push((turn.name.to_owned(), turn.done, turn.total)),
        Some(pass) => ended.push(format!("{} {} {}", turn.stage, turn.name, pass.unwrap().objects)),
    })
    .unwrap();
    let names: Vec<&str> = turns.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["light", "heavy"].repeat(4), "cold, warm-up, two rounds");
    assert_eq!((turns[7].1, turns[7].2), (7, 8));
    let stages = ["cold round 1", "warm-up", "round 1", "round 2"];
    let told: Vec<String> =
        stages.iter().flat_map(|s| ["light", "heavy"].map(|name| format!("{s} {name} 10"))).collect();
    assert_eq!(ended, told, "every pass is told of when it has ended");
    for score in &scores {
        assert_eq!(score.failure, None);
        assert_eq!((score.passes.len(), score.cold_passes.len(), score.settings.as_str()), (2, 1, "shell"));
        assert!(score.warm_up.is_some() && !score.accounting.is_empty(), "{score:?}");
        assert_eq!((score.passes[0].bytes, score.passes[0].objects), (1_000_000, 10));
        // A cold pass is timed from the start of the process, whatever the contestant says.
        assert!(score.cold_passes[0].wall_s > 0.0 && score.cold_passes[0].first_batch_us > Some(5), "{score:?}");
    }
    let heavy = &scores[1].passes[1];
    assert!(heavy.cpu_s() > 0.01, "sixty thousand turns of a shell loop take time: {heavy:?}");
    assert!((heavy.cpu_s_per_gb().unwrap() - heavy.cpu_s() * 1e3).abs() < 1e-9, "1 MB was delivered");
    assert!((heavy.cpu_us_per_object().unwrap() - heavy.cpu_s() * 1e5).abs() < 1e-6);
}

#[test]
fn one_that_dies_is_out_with_its_own_words_and_the_rest_go_on() {
    let dying = shell("dying", "echo ready; read word; echo 'cannot import streams' >&2; exit 7");
    let mut failures = Vec::new();
    let scores = hold(&contest(2), &entries(vec![dying, good("sound", 10)]), &mut |turn| {
        failures.extend(turn.ended.and_then(Result::err).map(|why| format!("{} {}: {why}", turn.stage, turn.name)));
    })
    .unwrap();
    assert!(failures.len() == 1 && failures[0].starts_with("warm-up dying: "), "told once: {failures:?}");
    let failure = scores[0].failure.as_deref().unwrap();
    assert!(failure.contains("cannot import streams") && failure.contains("exit status: 7"), "{failure}");
    assert_eq!((scores[0].passes.len(), scores[1].passes.len(), &scores[1].failure), (0, 2, &None));
    let score = hold_one(&contest(1), Contestant::new("absent", "/does/not/exist", [""; 0]));
    // With a cgroup the shell that enters it finds nothing to run; without one the start itself fails.
    let failure = score.failure.unwrap();
    assert!(failure.contains("absent") && failure.contains("/does/not/exist"), "{failure}");
}

#[test]
fn rubbish_is_refused_by_name() {
    for (script, word) in [
        ("echo Loading model; echo ready; cat", "Loading model"),
        ("echo ready; read word; echo 'done in 3 s'; cat", "done in 3 s"),
        ("echo ready; read word; head -c 200000 /dev/zero | tr '\\0' x; cat", "a line without end"),
        ("printf 'ready\\n'; read word; printf '\\377\\n'; cat", "not UTF-8"),
    ] {
        let failure = hold_one(&contest(1), shell("babbling", script)).failure.unwrap();
        assert!(failure.contains("babbling") && failure.contains(word), "{script}: {failure}");
    }
    let flood = shell("flooding", "echo ready; while :; do echo \"$0\"; done");
    assert!(hold_one(&contest(1), flood).failure.unwrap().contains("expected a result"));
}

#[test]
fn one_that_hangs_is_given_up_and_gone() {
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("pid");
    let short = Duration::from_millis(200);
    let stuck = |patience: Patience, script: &str| {
        let script = format!("echo $$ > {}; {script}", note.display());
        let held = Contest { patience, ..contest(1) };
        hold_one(&held, shell("stuck", &script)).failure.unwrap()
    };
    // Its child ignores the pipes, so only the end of the whole tree ends it.
    let failure = stuck(Patience { pass: short, ..patience() }, "echo ready; sleep 600 & read word; wait");
    assert!(failure.contains("stuck printed nothing for 0.2 s before its result"), "{failure}");
    assert_gone(&note);
    let failure = stuck(Patience { ready: short, ..patience() }, "sleep 600");
    assert!(failure.contains("before `ready`"), "{failure}");
    let deaf = format!("echo ready; read word; echo '{RESULT}'; read word; echo '{RESULT}'; sleep 600");
    let failure = stuck(Patience { end: short, ..patience() }, &deaf);
    assert!(failure.contains("did not exit at the end of its input"), "{failure}");
    assert_gone(&note);
}

fn assert_gone(note: &Path) {
    let pid = std::fs::read_to_string(note).unwrap();
    let alive = PathBuf::from(format!("/proc/{}", pid.trim()));
    assert!(!alive.exists(), "{} lives on", alive.display());
}

#[test]
fn a_wish_to_stop_ends_everything() {
    let stop = Stop::default();
    let held = Contest { stop: stop.clone(), ..contest(5) };
    let asker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stop.ask();
    });
    let error =
        hold(&held, &entries(vec![shell("slow", "echo ready; read word; sleep 600")]), &mut |_| {}).unwrap_err();
    asker.join().unwrap();
    assert_eq!(error.kind(), Kind::Cancelled);
}

#[test]
fn wrong_bytes_put_a_contestant_out() {
    let held = |hash: &str| Contest { expected_hash: Some(hash.into()), ..contest(1) };
    let hashing = |name: &str| good(name, 1).proved_by(["--hash"]);
    let failure = hold_one(&held("0b"), hashing("wrong")).failure.unwrap();
    assert!(failure.contains("hash 0a, not 0b"), "{failure}");
    let score = hold_one(&held("0a"), hashing("right"));
    assert_eq!((score.failure, score.hash.as_deref(), score.passes.len()), (None, Some("0a"), 1));
    let score = hold_one(&held("0a"), good("cannot", 1));
    assert_eq!((score.failure, score.hash), (None, None), "one that cannot hash is not asked to");
    let silent = shell("silent", &format!("echo ready; read word; echo '{}'", RESULT.replace("\"0a\"", "null")));
    let failure = hold_one(&held("0a"), silent.proved_by(["--hash"])).failure.unwrap();
    assert!(failure.contains("returned no hash"), "{failure}");
}

#[test]
fn children_and_grandchildren_are_in_the_bill() {
    let busy = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
    let script = format!("echo ready; while read word; do sh -c '{busy}; exit 0'; echo '{RESULT}'; done");
    let score = hold_one(&contest(1), shell("parent", &script));
    assert_eq!(score.failure, None);
    assert!(score.passes[0].cpu_s() > 0.01, "{:?}", score.passes[0]);
}

#[test]
fn a_cgroup_goes_with_its_contestant() {
    let leaf = match Leaf::new() {
        Ok(leaf) => leaf,
        Err(error) => return skip_or_fail("cgroups", error),
    };
    let door = leaf.door();
    assert!(door.exists());
    drop(leaf);
    assert!(!door.exists(), "{}", door.display());
    let place = Place::default();
    let running = Running::start(&good("one", 1), &task(), &place, patience(), &Stop::default()).unwrap();
    assert_eq!(running.account.source(), "cgroup cpu.stat");
    running.finish().unwrap();
}
