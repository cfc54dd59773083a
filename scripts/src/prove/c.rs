//! The C programs of the library's tests, examples included, compiled with the address and undefined-behaviour sanitizers; then under
//! valgrind, which sees the library's own reads and writes, too. Valgrind knows little of io_uring, so the ring is `poll` there.

use super::session::{Finding, Session};
use crate::steps::{Outcome, run};
use std::process::Command;

/// Installs what is missing, or says what to install.
const READY: &str = ". scripts/ready.bash && need cc gcc libc6-dev && need c++ g++ && need valgrind valgrind && need pkg-config pkg-config";
const SANITIZERS: &str = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer";
/// Definite leaks only: what the standard library makes once, and points into, counts as possibly lost.
const VALGRIND: &str = "valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
                        --show-leak-kinds=definite --fair-sched=yes";
/// What runs a program. Torch, which frees little at its end, is not to be judged.
const PROGRAMS: &str = "test(/^programs::/) and not test(the_example_trains)";

pub(super) fn prove(session: &Session<'_>) -> Finding {
    run(Command::new("bash").args(["-c", READY]).current_dir(session.root))?;
    installed(session)?;
    let tests = |settings: [(&str, &str); 2]| {
        session.tests(&["fuelrail-c"], |command| {
            command.args(["--no-tests", "fail", "--filterset", PROGRAMS]).envs(settings)
        })
    };
    let (sanitized, counts) = tests([("TEST_C_FLAGS", SANITIZERS), ("ASAN_OPTIONS", "detect_leaks=1")])?;
    let (checked, _) = tests([("TEST_C_RUNNER", VALGRIND), ("TEST_C_RING", "poll")])?;
    Ok((sanitized && checked, counts))
}

/// What `scripts/clib` installs is found by pkg-config, compiled against, and loaded; and linked into a program as a whole.
fn installed(session: &Session<'_>) -> Outcome {
    const COMPILE: &str = "cc bindings/c/examples/read.c -o $1/shared $(pkg-config --cflags --libs fuelrail) && \
                           cc bindings/c/examples/read.c -o $1/static -I$1/include $1/lib/libfuelrail.a -lm && \
                           for program in shared static; do $1/$program 2>/dev/null; [ $? = 2 ] || exit 1; done";
    let place = session.target("prove-c")?;
    run(Command::new(session.root.join("scripts/clib")).arg(&place).arg("dev"))?;
    let mut compile = Command::new("sh");
    compile.args(["-uc", COMPILE, "sh"]).arg(&place).current_dir(session.root);
    run(compile.env("PKG_CONFIG_PATH", place.join("lib/pkgconfig")).env("LD_LIBRARY_PATH", place.join("lib")))
}
