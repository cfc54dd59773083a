//! The commands that run on nodes, with the real `fuelrail`, a real bucket and a real disk.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use fuelrail_k8s::dataset::{Dataset, Task, TaskKind};
use fuelrail_k8s::objects;
use fuelrail_k8s::plan::Report;
use serde_json::{Value, json};

use crate::skip::skip_or_fail;

const OPERATOR: &str = env!("CARGO_BIN_EXE_fuelrail-operator");

/// The command `fuelrail` of the same build.
fn fuelrail() -> Option<PathBuf> {
    let path = Path::new(OPERATOR).with_file_name("fuelrail");
    if path.exists() {
        return Some(path);
    }
    skip_or_fail("fuelrail", format_args!("{} is not there: cargo build --package fuelrail-cli", path.display()));
    None
}

struct Bucket(Child, String);

impl Bucket {
    fn start(program: &Path) -> Bucket {
        let mut command = Command::new(program);
        command.args(["serve", "photos", "--count", "40", "--for", "120"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at = line.find("http").expect(&line);
        Bucket(child, line[at..].trim().to_owned())
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn load(program: &Path, uri: &str, directory: &Path, more: &[&str]) -> Output {
    let mut command = plain(OPERATOR);
    command.args(["load", "--uri", uri, "--program"]).arg(program).arg("--directory").arg(directory).args(more);
    command.env("FUELRAIL_MEMORY_LIMIT_BYTES", "134217728").output().unwrap()
}

fn plain(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    // Variables of this test run must not configure the program.
    let ours = std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("FUELRAIL_"));
    for name in ours {
        command.env_remove(name);
    }
    // A bucket that is not there is an error at once.
    command.env("FUELRAIL_SHARDS", "1").env("FUELRAIL_SPILL_FLOOR_BYTES", "1").env("FUELRAIL_OUTAGE_LIMIT_S", "1");
    command
}

fn report(output: &Output) -> Report {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_share_is_whole_when_a_pass_fetches_nothing_and_a_clean_disk_is_empty() {
    let Some(program) = fuelrail() else { return };
    let bucket = Bucket::start(&program);
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    let message = folder.path().join("message");
    let more = ["--limit", "1073741824", "--verify", "--report", message.to_str().unwrap()];
    let all = report(&load(&program, &bucket.1, &disk, &more));
    assert_eq!((all.missing_bytes, all.corrupt_blocks), (0, 0), "{all:?}");
    assert!(all.share_bytes > 1_000_000 && all.held_bytes >= all.share_bytes && all.held_blocks >= 40, "{all:?}");
    assert_eq!(serde_json::from_str::<Report>(&fs::read_to_string(&message).unwrap()).unwrap(), all);
    assert!(fs::metadata(&message).unwrap().len() < 4096, "Kubernetes truncates longer messages");

    // Two shares make up the data set.
    let of = |share: &str| {
        let disk = folder.path().join(share);
        report(&load(&program, &bucket.1, &disk, &["--limit", "1073741824", "--share", share, "--of", "2"]))
    };
    let (first, second) = (of("0"), of("1"));
    assert_eq!(first.share_bytes + second.share_bytes, all.share_bytes);
    assert_eq!((first.missing_bytes, second.missing_bytes), (0, 0));

    let clean = |at: &Path| Command::new(OPERATOR).arg("clean").arg("--directory").arg(at).output().unwrap();
    let outside = folder.path().join("kept");
    fs::write(&outside, "kept").unwrap();
    std::os::unix::fs::symlink(folder.path(), disk.join("link")).unwrap();
    assert!(clean(&disk).status.success());
    assert_eq!((fs::read_dir(&disk).unwrap().count(), fs::read_to_string(&outside).unwrap()), (0, "kept".to_owned()));
    let missing = clean(&folder.path().join("nowhere"));
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && said.contains("cannot clean") && said.contains("nowhere"), "{said}");
}

/// The disk keeps nothing of the first pass.
#[test]
fn a_disk_that_was_busy_gets_further_passes() {
    let Some(program) = fuelrail() else { return };
    let bucket = Bucket::start(&program);
    let folder = tempfile::tempdir().unwrap();
    let (disk, slow, passes) = (folder.path().join("disk"), folder.path().join("slow"), folder.path().join("passes"));
    let (at, program, count) = (disk.display(), program.display(), passes.display());
    let script = format!(
        r#"#!/bin/sh
[ "$1" = bench ] || exec '{program}' "$@"
echo >> '{count}'
[ $(wc -l < '{count}') != 2 ] || find '{at}' -name '*.segment' -delete
exec '{program}' "$@"
"#
    );
    fs::write(&slow, script).unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    let report = report(&load(&slow, &bucket.1, &disk, &["--limit", "8388608"]));
    let passes = fs::read_to_string(&passes).unwrap().lines().count();
    assert!(report.missing_bytes == 0 && passes >= 3, "{passes} passes: {report:?}");
}

#[test]
fn a_disk_that_is_too_small_is_reported_as_short_and_a_bucket_that_is_not_there_as_a_failure() {
    let Some(program) = fuelrail() else { return };
    let bucket = Bucket::start(&program);
    let folder = tempfile::tempdir().unwrap();
    let small = report(&load(&program, &bucket.1, &folder.path().join("disk"), &["--limit", "2097152"]));
    assert!(small.missing_bytes > 0 && small.held_bytes <= 2_097_152, "{small:?}");
    let disk = folder.path().join("shares");
    let share = |n| report(&load(&program, &bucket.1, &disk, &["--limit", "4194304", "--share", n, "--of", "2"]));
    let (first, second) = (share("0"), share("1"));
    assert_eq!((first.evicted_segments, second.missing_bytes), (0, 0), "{first:?} {second:?}");
    assert!(second.evicted_segments > 0, "the first share had to go: {second:?}");
    let refused = load(&program, "http://127.0.0.1:1/bucket/", &folder.path().join("other"), &["--limit", "2097152"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("fuelrail bench read") && said.contains("127.0.0.1:1"),
        "{said}"
    );
}

/// The container of the agent's Job as a process, with a folder in the place of the node's disk.
fn agent(program: &Path, uri: &str, disk: &Path) -> Child {
    let spec = json!({
        "uri": uri, "tiers": { "disk": { "limit": "1Gi" } }, "preload": {},
        "agent": { "memory": "256Mi", "settings": { "batch_size": "8" } },
    });
    let mut set = Dataset::new("photos", serde_json::from_value(spec).unwrap());
    set.metadata.uid = Some("set-1".into());
    let (node, machine, path, source) = ("n1".into(), "n1/1".into(), "/disks/ml.photos".into(), String::new());
    let task = Task { kind: TaskKind::Serve, node, machine, path, source, share: 0, of: 1 };
    let job = serde_json::to_value(objects::job(&set, &task, "image").unwrap()).unwrap();
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["command"], json!(["fuelrail"]));
    let here = |value: &Value| value.as_str().unwrap().replace("/disk", disk.to_str().unwrap());
    let mut command = plain(program);
    command.args(container["args"].as_array().unwrap().iter().map(here));
    for variable in container["env"].as_array().unwrap() {
        command.env(here(&variable["name"]), here(&variable["value"]));
    }
    command
        .env("FUELRAIL_MEMORY_LIMIT_BYTES", "134217728")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn an_agent_is_ready_and_serves_jobs_one_after_the_other_from_the_disk_that_was_loaded() {
    let Some(program) = fuelrail() else { return };
    let bucket = Bucket::start(&program);
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    let loaded = report(&load(&program, &bucket.1, &disk, &["--limit", "1073741824"]));
    assert_eq!(loaded.missing_bytes, 0, "{loaded:?}");
    // Stopped at the end of the test.
    let mut agent = Bucket(agent(&program, &bucket.1, &disk), String::new());
    let mut lines = BufReader::new(agent.0.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("serving")), "it ended");
    let unread = std::thread::spawn(move || lines.for_each(drop));
    assert!(Command::new(OPERATOR).arg("ready").status().unwrap().success());
    for _ in 0..2 {
        let mut job = plain(&program);
        job.args(["bench", "read", &bucket.1, "--json", "--batch-size", "8", "--shared-read", "--share-dir"]);
        let output = job.arg(disk.join("share")).env("FUELRAIL_MEMORY_LIMIT_BYTES", "134217728").output().unwrap();
        let read: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!((&read["samples"], &read["requests"]), (&json!(40), &json!(0)), "{output:?}");
    }
    drop(agent);
    unread.join().unwrap();
}

#[test]
fn the_profile_is_installed_whole_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(OPERATOR);
    let mut child = command.args(["seccomp", "--install"]).arg(folder.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let installed = fs::read_to_string(folder.path().join("fuelrail.json")).expect(&line);
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/docs/seccomp/fuelrail.json");
    assert_eq!(installed.trim_end(), fs::read_to_string(kept).unwrap().trim_end());
    assert!(child.try_wait().unwrap().is_none(), "a DaemonSet's pod does not end");
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn every_command_has_examples() {
    for arguments in [&[][..], &["run"], &["crd"], &["load"], &["clean"], &["ready"], &["seccomp"]] {
        let output = Command::new(OPERATOR).args(arguments).arg("--help").output().unwrap();
        let help = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && help.contains("Examples:\n  fuelrail-operator"), "{arguments:?}: {help}");
    }
}
