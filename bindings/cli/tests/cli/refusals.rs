//! What is refused, with which exit code, in a line that says why and one that says what to do; and `doctor`.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use fuelrail_bucket::DataSet;

use super::{Ended, PROGRAM, bench_read, bucket_of, cleared, fuelrail, program};

/// The program said why not, and what to do.
fn refused(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, code, "{}", ended.err);
    assert_eq!(ended.out, "", "nothing on the output");
    let lines: Vec<&str> = ended.err.lines().collect();
    let is_hint = lines.get(1).is_none_or(|line| line.starts_with("hint: "));
    assert!(lines.len() <= 2 && lines[0].starts_with("error: ") && is_hint, "two lines: {}", ended.err);
    assert!(lines.iter().any(|line| line.contains(says)), "'{says}' in: {}", ended.err);
}

#[test]
fn wrong_use_is_2() {
    for (args, says) in [
        (&[][..], "no command is given"),
        (&["ls"], "<URI>"),
        (&["ls", "--lnog"], "a similar argument exists: '--long'"),
        (&["lst"], "unrecognized subcommand 'lst'"),
        (&["ls", "ftp://127.0.0.1/b"], "scheme"),
        (&["ls", "http://"], "no host"),
        (&["get", "http://127.0.0.1/b/k", "--json"], "--output"),
        (&["bench", "read"], "no uri is given"),
        (&["bench", "read", "http://h/b", "--batch-size", "many"], "--batch-size"),
        (&["bench", "read", "http://h/b", "--batch-size", "0"], "batch_size is 0"),
        (&["bench", "read", "http://h/b", "--cache-limit", "3 parsec"], "is not a size in bytes"),
        (&["bench", "read", "http://h/b", "--policy", "best"], "best"),
        (&["bench", "read", "http://h/b", "--bad-samples", "eat"], "eat"),
        (&["bench", "read", "http://h/b", "--rank", "2", "--world", "2"], "rank 2 of a world of 2"),
        (&["bench", "read", "http://h/b", "--config", "/no/such.toml"], "/no/such.toml"),
        (&["bench", "read", "http://h/b", "--step-ms", "1e30"], "--step-ms"),
        (&["share", "http://h/b", "--share-dir", "/tmp", "--jobs", "0"], "--jobs is 0"),
        (&["serve", "/no/such/folder"], "neither a data set nor a folder"),
        (&["serve", "digits", "--scale", "2"], "--scale does not apply to digits"),
        (&["serve", "digits", "--script", "reset=2"], "outside 0 to 1"),
        (&["serve", "digits", "--script", "rest=0.1"], "unknown setting `rest`"),
        (&["serve", "digits", "--bucket", "a/b"], "bucket name"),
        (&["serve", ".", "--write-to", "x"], "a folder of files already"),
    ] {
        refused(&fuelrail(args), 2, says);
    }
}

#[test]
fn variables_that_are_not_utf_8_matter_only_where_they_are_ours() {
    let bucket = bucket_of(&DataSet::digits(3, 1), "");
    let odd = || OsStr::from_bytes(b"\xFF");
    let listed = program().args(["ls", &bucket.url("")]).env("SOMEBODYS", odd()).env(odd(), "x").output().unwrap();
    assert_eq!(Ended::new(listed).done().lines().count(), 3);
    for args in [&["ls", "http://h/b"][..], &["bench", "read", "http://h/b"], &["tune", "http://h/b"]] {
        let output = program().args(args).env("FUELRAIL_REGION", odd()).output().unwrap();
        refused(&Ended::new(output), 2, "FUELRAIL_REGION is not UTF-8");
    }
}

#[test]
fn settings_that_do_not_exist_are_2_wherever_they_stand() {
    let read = ["bench", "read", "http://h/b"];
    for args in [&read[..], &["ls", "http://h/b"], &["cp", "http://h/b/", "/nowhere/"]] {
        let output = program().args(args).env("FUELRAIL_BATCHSIZE", "3").output().unwrap();
        refused(&Ended::new(output), 2, "did you mean FUELRAIL_BATCH_SIZE?");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.toml");
    std::fs::write(&file, "epoch = 3\n").unwrap();
    refused(&fuelrail(&[&read[..], &["--config", super::utf8(&file)]].concat()), 2, "epoch");
}

#[test]
fn an_empty_prefix_is_2() {
    let bucket = bucket_of(&DataSet::digits(10, 1), "");
    let uri = bucket.url("nothing/");
    refused(&fuelrail(&["ls", &uri]), 2, "nothing/");
    refused(&bench_read(&uri, &[]), 2, "nothing/");
}

#[test]
fn a_budget_too_small_is_2_and_names_the_bytes_that_do() {
    let bucket = bucket_of(&DataSet::photos(64, 1), "");
    let uri = bucket.url("");
    let read = ["bench", "read", &uri, "--shards", "1", "--pin", "false", "--batch-size", "32", "--json"];
    let ended = fuelrail(&[&read[..], &["--memory-limit", "1MiB"]].concat());
    refused(&ended, 2, "memory_limit is 1.0 MiB");
    let (_, after) = ended.err.split_once("raise memory_limit to ").expect("names the bytes needed");
    let needed: String = after.chars().take_while(char::is_ascii_digit).collect();
    let report = fuelrail(&[&read[..], &["--memory-limit", &needed]].concat()).json();
    assert_eq!(report["samples"], 64, "the number named is enough");
    let less = (needed.parse::<u64>().unwrap() - 1).to_string();
    refused(&fuelrail(&[&read[..], &["--memory-limit", &less]].concat()), 2, &needed);
}

#[test]
fn what_is_not_there_is_1() {
    let bucket = bucket_of(&DataSet::digits(10, 1), "missing_keys=training/3/*");
    refused(&fuelrail(&["get", &bucket.url("training/3/00003.png")]), 1, "404");
    refused(&bench_read(&bucket.url(""), &[]), 1, "training/3/00003.png");
    refused(&fuelrail(&["inspect", "/no/such/file"]), 1, "/no/such/file");
    refused(&fuelrail(&["ls", "bucket/prefix"]), 1, "s3://BUCKET/PREFIX/");
}

#[test]
fn what_has_no_scheme_is_a_path_from_the_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("fold er")).unwrap();
    std::fs::write(dir.path().join("fold er/100%.txt"), "text").unwrap();
    let encoded = format!("file://{}/fold%20er", dir.path().display());
    for uri in ["fold er", "fold er/", "./fold er", &encoded] {
        let listed = program().args(["ls", uri]).current_dir(dir.path()).output().unwrap();
        assert_eq!(Ended::new(listed).done(), "100%.txt\n", "{uri}");
    }
    // A target whose scheme was forgotten is no file.
    let put = program().args(["put", "fold er/100%.txt", "bucket/key"]).current_dir(dir.path()).output().unwrap();
    refused(&Ended::new(put), 2, "s3://BUCKET/KEY");
    let copied = format!("file://{}/copied", dir.path().display());
    let copied = program().args(["cp", "fold er", &copied]).current_dir(dir.path()).output().unwrap();
    assert_eq!(copied.status.code(), Some(0), "{copied:?}");
    assert_eq!(std::fs::read(dir.path().join("copied/100%.txt")).unwrap(), b"text");
}

#[test]
fn an_unreachable_host_is_1_after_trying_again() {
    // Port 1 is never listened on, and never handed out.
    let closed = "127.0.0.1:1";
    refused(&fuelrail(&["ls", &format!("http://{closed}/bucket/")]), 1, closed);
}

#[test]
fn a_loader_that_waits_for_its_bucket_says_so() {
    let read = ["bench", "read", "http://127.0.0.1:1/bucket/", "--shards", "1", "--memory-limit", "64MiB"];
    let ended = Ended::new(program().args(read).env("FUELRAIL_OUTAGE_LIMIT", "15s").output().unwrap());
    let says = |text: &str| ended.err.contains(text);
    assert!(says("127.0.0.1:1 serves nothing (cannot reach") && says("waiting for it, 15 s at most"), "{}", ended.err);
    assert!(ended.code == 1 && says("error: ") && says("attempts"), "{}", ended.err);
}

#[test]
fn a_process_without_descriptors_is_3_with_the_limit_to_raise() {
    let bucket = bucket_of(&DataSet::digits(4, 1), "");
    let mut refusals = 0;
    for files in 6..=12 {
        let script = format!("ulimit -n {files}; exec \"$0\" ls {}", bucket.url(""));
        let mut command = Command::new("sh");
        command.args(["-c", &script, PROGRAM]);
        let ended = Ended::new(cleared(command).output().unwrap());
        assert!(ended.code == 0 || ended.code == 3 && ended.err.contains("ulimit -n"), "{files}: {}", ended.err);
        refusals += u32::from(ended.code == 3);
    }
    assert!(refusals > 1, "of those, some are too few");
}

#[test]
fn a_port_that_is_taken_is_3() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    refused(&fuelrail(&["serve", "digits", "--port", &port]), 3, "use port 0");
}

#[test]
fn help_shows_examples_and_version_the_version() {
    for command in [
        &[][..],
        &["serve"],
        &["ls"],
        &["get"],
        &["put"],
        &["bench"],
        &["bench", "read"],
        &["cache"],
        &["doctor"],
        &["inspect"],
    ] {
        let help = fuelrail(&[command, &["--help"]].concat()).done();
        assert!(help.contains("Examples:\n  fuelrail "), "{help}");
    }
    assert_eq!(fuelrail(&["--version"]).done(), format!("fuelrail {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn doctor_grades_every_finding_and_cures_what_is_not_good() {
    let probe = fuelrail::internal::probe();
    let code = if probe.io_uring.is_ok() { 0 } else { 3 };
    let ended = fuelrail(&["doctor", "--json"]);
    assert_eq!(ended.code, code, "{}", ended.err);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["runs"], code == 0);
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["name"] == "io_uring"), "{json}");
    for finding in findings {
        assert!(finding["grade"] == "good" || finding["cure"].is_string(), "{finding}");
    }
    // Of other findings the exit code says nothing, and neither does the help.
    assert_eq!(fuelrail(&["doctor", "--disk", "/no/such/folder"]).code, code);
    assert!(fuelrail(&["doctor", "--help"]).done().contains("0 when the engine can use io_uring"));
    let text = fuelrail(&["doctor"]);
    assert_eq!(text.code, code);
    for finding in findings {
        let (grade, name) = (finding["grade"].as_str().unwrap(), finding["name"].as_str().unwrap());
        assert!(text.out.lines().any(|line| line.contains(grade) && line.contains(name)), "{finding}: {}", text.out);
    }
}

#[test]
fn doctor_describes_the_machine_it_is_pointed_at() {
    let machine = tempfile::tempdir().unwrap();
    let add = |path: &str, text: &str| {
        let path = machine.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    add("proc/sys/kernel/osrelease", "6.12.0-pod\n");
    add("proc/self/cgroup", "0::/pod\n");
    add("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
    add("sys/fs/cgroup/pod/cpu.stat", "nr_periods 10\nnr_throttled 4\n");
    add("sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
    add("sys/class/net/ens5/device/vendor", "0x1d0f\n");
    add("sys/class/net/ens5/mtu", "9001\n");
    add("sys/class/net/ens5/speed", "100000\n");
    add("sys/bus/pci/devices/0000:00:1e.0/vendor", "0x10de\n");
    add("sys/bus/pci/devices/0000:00:1e.0/class", "0x030200\n");
    let root = machine.path().to_str().unwrap();
    let ended = fuelrail(&["doctor", "--root", root, "--disk", root]);
    for said in [
        "6.12.0-pod",
        "1.5 cores",
        "throttled in 4 of 10 periods",
        "100 Gbit/s, MTU 9001",
        "1 NVIDIA card(s), no driver",
        "cure: install the NVIDIA driver",
        "Amazon EC2; not queried",
    ] {
        assert!(ended.out.contains(said), "{said}: {}", ended.out);
    }
}
