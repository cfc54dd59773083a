//! A rank that hangs, never comes, or is cut off: the others end with a clear error, and the checkpoint stays whole.

use crate::common::{Job, digits, meeting_port, start, steps, trainer, wait_for_steps, words};
use crate::skip::skip_or_fail;
use rustix::process::Signal;
use std::process::Command;

#[test]
fn a_rank_that_hangs_ends_the_others_within_the_timeout() {
    let bucket = digits(6400, 3);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Both ranks have to start within that time, too, which takes seconds on a busy machine.
    let text = format!(
        "{} --decode 28x28x1 --batch-size 16 --checkpoint-every 3 --checkpoint {} --step-log {} --timeout-s 20 --slow 0=3",
        bucket.url("training/"),
        folder.join("saved").display(),
        folder.join("{rank}.jsonl").display(),
    );
    let job = Job::start(2, folder, &words(&text));
    wait_for_steps(&folder.join("1.jsonl"), 8);
    job.signal(1, Signal::STOP);
    let stopped = std::time::Instant::now();
    // The one that hangs is let go only when the other has given up.
    while !std::fs::read_to_string(folder.join("rank0.out")).unwrap().contains("error: ") {
        assert!(stopped.elapsed() < crate::common::PATIENCE, "the other rank hangs too");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    job.signal(1, Signal::KILL);
    let ended = job.wait();
    assert!(!ended[0].status.success());
    assert!(ended[0].output.contains("hangs or cannot be reached"), "{}", ended[0].output);
    // What it had saved is whole: another run goes on from it.
    let begun = steps(folder, "{rank}.jsonl", 2).len();
    assert!(begun >= 8);
    let one = trainer(&words(&text)).output().unwrap();
    let said = String::from_utf8_lossy(&one.stdout).into_owned();
    assert!(one.status.success() && said.contains("goes on from step"), "{said}");
}

#[test]
fn a_rank_that_never_comes_is_missed() {
    let bucket = digits(64, 3);
    let text = format!("{} --decode 28x28x1 --timeout-s 2", bucket.url("training/"));
    let mut command = trainer(&words(&text));
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")]);
    let output = command.env("MASTER_PORT", meeting_port().to_string()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("rank 0 of 2 cannot join the others") && text.contains("all ranks were started"), "{text}");
}

fn ip(arguments: &str) -> bool {
    Command::new("ip")
        .args(arguments.split_whitespace())
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// A second host: a network namespace at the other end of a cable. Gone with this.
struct Host(String);

impl Drop for Host {
    fn drop(&mut self) {
        ip(&format!("link del frt{}a", self.0));
        ip(&format!("netns del frt{}", self.0));
    }
}

#[test]
fn a_rank_that_is_cut_off_is_an_error_on_both_sides() {
    let id = std::process::id() % 10_000;
    let host = Host(id.to_string());
    let net = format!("10.{}.{}", 200 + id % 50, id % 250);
    let made = ip(&format!("netns add frt{id}"))
        && ip(&format!("link add frt{id}a type veth peer name frt{id}b netns frt{id}"))
        && ip(&format!("addr add {net}.1/24 dev frt{id}a"))
        && ip(&format!("link set frt{id}a up"))
        && ip(&format!("-n frt{id} addr add {net}.2/24 dev frt{id}b"))
        && ip(&format!("-n frt{id} link set frt{id}b up"));
    if !made {
        skip_or_fail("netns", "it is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let bucket = {
        use fuelrail_bucket::{Bucket, BucketConfig, DataSet, Source};
        let source = Source::Generated(DataSet::digits(6400, 3));
        let listen = format!("{net}.1:0").parse().unwrap();
        Bucket::start(BucketConfig { source, listen, ..BucketConfig::default() }).unwrap()
    };
    let text = format!(
        "{} --decode 28x28x1 --batch-size 16 --timeout-s 20 --step-log {} --slow 0=3",
        bucket.url("training/"),
        folder.join("{rank}.jsonl").display()
    );
    let port = meeting_port().to_string();
    let ranks = (0..2).map(|rank: usize| {
        let plain = trainer(&words(&text));
        let mut command = if rank == 0 {
            plain
        } else {
            let mut inside = Command::new("ip");
            inside.args(["netns", "exec", &format!("frt{id}")]).arg(plain.get_program()).args(plain.get_args());
            inside
        };
        crate::common::clean(&mut command);
        let end = if rank == 0 { "a" } else { "b" };
        command.envs([("RANK", rank.to_string()), ("WORLD_SIZE", "2".into()), ("LOCAL_RANK", "0".into())]);
        command.envs([("MASTER_ADDR", format!("{net}.1")), ("MASTER_PORT", port.clone())]);
        command.env("GLOO_SOCKET_IFNAME", format!("frt{id}{end}"));
        start(command, folder.join(format!("rank{rank}.out")))
    });
    let job = Job::of(ranks.collect());
    wait_for_steps(&folder.join("0.jsonl"), 5);
    assert!(ip(&format!("link set frt{id}a down")), "the cable is cut");
    for (rank, one) in job.wait().iter().enumerate() {
        assert!(!one.status.success(), "rank {rank}: {}", one.output);
        assert!(
            one.output.contains("cannot be reached") || one.output.contains("given up"),
            "rank {rank}: {}",
            one.output
        );
    }
    drop(host);
}
