//! `fuelrail train` from outside: who it hands over to, what it says without a trainer, and its demo.

use crate::skip::skip_or_fail;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The program alone in a folder, so that nothing lies beside it.
fn alone(folder: &Path) -> Command {
    let program = folder.join("fuelrail");
    std::fs::copy(env!("CARGO_BIN_EXE_fuelrail"), &program).unwrap();
    let mut command = Command::new(program);
    command.env("PATH", folder);
    command
}

#[test]
fn without_a_trainer_it_says_how_to_build_one() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["train", "--demo"][..], &["train", "--", "http://127.0.0.1:1/b/"]] {
        let output = alone(folder.path()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", text(&output));
        assert!(
            text(&output).contains("scripts/libtorch") && text(&output).contains("fuelrail-tch"),
            "{}",
            text(&output)
        );
    }
    let output = alone(folder.path()).arg("train").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn arguments_signals_and_exit_codes_are_the_trainers() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let trainer = folder.path().join("fuelrail-train");
    std::fs::write(&trainer, "#!/bin/sh\necho \"$$ $*\"\nexit 4\n").unwrap();
    std::fs::set_permissions(&trainer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = alone(folder.path());
    command.args(["train", "--", "http://h/b/", "--demo", "--epochs", "3"]).stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    // The same process: a signal to it reaches the trainer.
    assert_eq!(text(&output).trim(), format!("{pid} http://h/b/ --demo --epochs 3"));
}

#[test]
fn its_demo_learns_digits_through_a_kill() {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_fuelrail"));
    if !program.with_file_name("fuelrail-train").is_file() {
        skip_or_fail("libtorch", "build it: eval \"$(./scripts/libtorch)\" && cargo build -p fuelrail-tch");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("demo");
    // Twice in a row, in the same folder.
    for _ in 0..2 {
        let mut command = Command::new(&program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FUELRAIL_")) {
            command.env_remove(name);
        }
        let output = command.args(["train", "--demo", "--folder"]).arg(&place).output().unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        for word in
            ["rank 1 killed at step", "another rank has died", "goes on from step", "readiness", "unseen digits right"]
        {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}
