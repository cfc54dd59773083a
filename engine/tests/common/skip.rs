//! No test is skipped silently: what a test needs and this machine lacks fails it, unless `FUELRAIL_SKIP` names the thing.
//!
//! Shared by the tests of all crates (`#[path]`). Owns the rule and the record that `cargo x test` reads.
#![allow(unreachable_pub, reason = "the test programs of several crates include this file")]

use std::fmt::Display;
use std::io::Write;

/// Names of what may be missing, separated by commas.
const ALLOWED: &str = "FUELRAIL_SKIP";
/// A file that gets a line `NAME<TAB>TEST` for every test that was skipped.
const RECORD: &str = "FUELRAIL_SKIPPED_TO";

/// What a test calls where it finds that `name` (a program, a privilege, a kernel) is missing, for the reason `why`; it returns
/// early afterwards.
///
/// # Panics
/// Unless `FUELRAIL_SKIP` names it: a test that did not run must not count as passed.
pub fn skip_or_fail(name: &str, why: impl Display) {
    let allowed = std::env::var(ALLOWED).unwrap_or_default();
    assert!(
        allowed.split(',').any(|entry| entry.trim() == name),
        "this test needs '{name}', which this machine lacks: {why}. ./scripts/test installs what it can; \
         to run without, name it in {ALLOWED} (names separated by commas)"
    );
    if let Some(path) = std::env::var_os(RECORD) {
        let thread = std::thread::current();
        let test = std::env::var("NEXTEST_TEST_NAME").ok();
        let test = test.as_deref().or(thread.name()).unwrap_or("?");
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).expect("the record of skips");
        file.write_all(format!("{name}\t{test}\n").as_bytes()).expect("the record of skips");
    }
}
