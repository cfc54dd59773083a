//! The C programs of the library's tests, examples included, compiled with the address and undefined-behaviour sanitizers; then under
//! valgrind, which sees the library's own reads and writes, too. Valgrind knows little of io_uring, so the ring is `poll` there.

use super::session::{Finding, Session, passes};
use crate::steps::cargo_in;
use std::path::Path;
use std::process::Command;

const NEEDS: &str =
    "need cc gcc libc6-dev && need c++ g++ && need valgrind valgrind && need pkg-config pkg-config && need nm binutils";
const SANITIZERS: &str = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer";
/// Definite leaks only: what the standard library makes once, and points into, counts as possibly lost.
const VALGRIND: &str = "valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
                        --show-leak-kinds=definite --fair-sched=yes";
/// What runs a program. Torch, which frees little at its end, is not to be judged.
const PROGRAMS: &str = "test(/^programs::/) and not test(the_example_trains)";

pub(super) fn prove(session: &Session<'_>) -> Finding {
    session.ready(NEEDS)?;
    let place = session.target("prove-c")?;
    let mut clib = Command::new(session.root.join("scripts/clib"));
    let mut usable = installs(session, &place, clib.arg(&place).arg("dev"))?;
    // cargo-c takes minutes to install: used where it is there.
    let has_cargo_c =
        cargo_in(session.root, ["cinstall", "--version"]).output().is_ok_and(|said| said.status.success());
    if has_cargo_c {
        let place = session.target("prove-cargo-c")?;
        let mut cinstall = cargo_in(session.root, ["cinstall", "--locked", "--debug", "--package", "fuelrail-c"]);
        cinstall.arg("--prefix").arg(&place).arg("--libdir").arg(place.join("lib"));
        usable &= installs(session, &place, &mut cinstall)?;
    }
    let tests = |settings: [(&str, &str); 2]| {
        session.tests(&["fuelrail-c"], |command| {
            command.args(["--no-tests", "fail", "--filterset", PROGRAMS]).envs(settings)
        })
    };
    let (sanitized, mut counts) = tests([("TEST_C_FLAGS", SANITIZERS), ("ASAN_OPTIONS", "detect_leaks=1")])?;
    let (checked, _) = tests([("TEST_C_RUNNER", VALGRIND), ("TEST_C_RING", "poll")])?;
    counts["cargo_c"] = has_cargo_c.into();
    Ok((usable && sanitized && checked, counts))
}

/// Whether the library that a command installs is found by pkg-config, compiled against, and loaded, can be linked into a program as a whole,
/// and exports the functions of `bindings/c/tests/symbols` and nothing else.
fn installs(session: &Session<'_>, place: &Path, command: &mut Command) -> Result<bool, String> {
    const COMPILE: &str = "cc bindings/c/examples/read.c -o $1/shared $(pkg-config --cflags --libs fuelrail) && \
                           cc bindings/c/examples/read.c -o $1/static -I$1/include $1/lib/libfuelrail.a -lm && \
                           for program in shared static; do $1/$program 2>/dev/null; [ $? = 2 ] || exit 1; done && \
                           nm -D --defined-only $1/lib/libfuelrail.so | cut -d' ' -f3 | LC_ALL=C sort | \
                           diff bindings/c/tests/symbols -";
    let mut compile = Command::new("sh");
    compile.args(["-uc", COMPILE, "sh"]).arg(place).current_dir(session.root);
    compile.env("PKG_CONFIG_PATH", place.join("lib/pkgconfig")).env("LD_LIBRARY_PATH", place.join("lib"));
    Ok(passes(command)? && passes(&mut compile)?)
}
