//! The C programs of the library's tests, examples included, compiled with the address and undefined-behaviour sanitizers; then under
//! valgrind, which sees the library's own reads and writes, too. Valgrind knows little of io_uring, so the ring is `poll` there.

use super::session::{Finding, Session};
use crate::steps::run;
use std::process::Command;

/// Installs what is missing, or says what to install.
const READY: &str = ". scripts/ready.bash && need cc gcc libc6-dev && need c++ g++ && need valgrind valgrind";
const SANITIZERS: &str = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer";
/// What is reachable at the end is the library's own, made once. Children are the tests' forks.
const VALGRIND: &str = "valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,possible \
                        --show-leak-kinds=definite,possible --fair-sched=yes";
/// What runs a program. Torch, which frees little at its end, is not to be judged.
const PROGRAMS: &str = "test(/^programs::/) and not test(the_example_trains)";

pub(super) fn prove(session: &Session<'_>) -> Finding {
    run(Command::new("bash").args(["-c", READY]).current_dir(session.root))?;
    let tests = |settings: [(&str, &str); 2]| {
        session.tests(&["fuelrail-c"], |command| {
            command.args(["--no-tests", "fail", "--filterset", PROGRAMS]).envs(settings)
        })
    };
    let (sanitized, counts) = tests([("TEST_C_FLAGS", SANITIZERS), ("ASAN_OPTIONS", "detect_leaks=1")])?;
    let (checked, _) = tests([("TEST_C_RUNNER", VALGRIND), ("TEST_C_RING", "poll")])?;
    Ok((sanitized && checked, counts))
}
