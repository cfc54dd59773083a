//! torchrun starts the job again when a rank dies, and the job goes on by itself. Runs where `FUELRAIL_TORCHRUN` names a torchrun (`pip install
//! torch`); torch's package is too large to be fetched for every test run.

use crate::common::{Job, digits, start, steps, trainer, wait_for_steps, words};
use crate::skip::skip_or_fail;
use std::process::Command;

#[test]
fn torchrun_restarts_the_job_and_it_goes_on_by_itself() {
    let Some(torchrun) = std::env::var_os("FUELRAIL_TORCHRUN") else {
        skip_or_fail("torchrun", "FUELRAIL_TORCHRUN names none (pip install torch)");
        return;
    };
    let bucket = digits(1280, 3);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = format!(
        "{} --decode 28x28x1 --batch-size 16 --epochs 2 --checkpoint {} --checkpoint-every 4 --timeout-s 20 --slow 0=4 --step-log {}",
        bucket.url("training/"),
        folder.join("saved").display(),
        folder.join("{rank}.jsonl").display()
    );
    let plain = trainer(&words(&text));
    let mut command = Command::new(torchrun);
    command.args(["--standalone", "--no-python", "--nproc-per-node", "2", "--max-restarts", "3"]);
    crate::common::clean(&mut command);
    command.arg(plain.get_program()).args(plain.get_args());
    let job = Job::of(vec![start(command, folder.join("rank0.out"))]);
    wait_for_steps(&folder.join("1.jsonl"), 9);
    let ranks = format!("^[^ ]*fuelrail-train .*{}", folder.display());
    let found = Command::new("pgrep").args(["-f", &ranks]).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let newest = found.lines().last().expect("a rank runs").to_owned();
    assert!(Command::new("kill").args(["-9", &newest]).status().unwrap().success());
    let ended = job.wait();
    let said = &ended[0].output;
    assert!(ended[0].status.success(), "{said}");
    assert!(said.contains("goes on from step"), "{said}");
    assert_eq!(*steps(folder, "{rank}.jsonl", 2).keys().last().unwrap(), 80, "{said}");
}
