//! Model checking: the tests named `models`, with our own crates compiled under `cfg(loom)`.

use crate::prove::session::{Finding, Session, finding};
use crate::steps::{run as run_command, target};
use serde_json::json;
use std::os::unix::fs::PermissionsExt as _;

/// The crates that have some.
const PACKAGES: &[&str] = &["fuelrail-io", "fuelrail-flow"];

/// Between cargo and the compiler, for our own crates only: the others stay compiled as they are, and some of them would mean their own
/// models by `cfg(loom)`.
const COMPILER: &str = "#!/bin/sh\nexec \"$@\" --cfg loom\n";

pub(super) fn run(session: &Session<'_>) -> Result<Finding, String> {
    session.need("nextest")?;
    let compiler = std::path::absolute(target(session.root).join("models/rustc")).map_err(|e| e.to_string())?;
    let written = compiler.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = written.and_then(|()| std::fs::write(&compiler, COMPILER));
    let written = written.and_then(|()| std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755)));
    written.map_err(|e| format!("{}: {e}", compiler.display()))?;
    let mut command = session.cargo(["nextest", "run", "--no-fail-fast", "--no-tests", "fail", "--lib"]);
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    command.args(["--filterset", "test(/(^|::)models::/)"]).env("RUSTC_WORKSPACE_WRAPPER", compiler);
    finding(run_command(command), json!({ "packages": PACKAGES }))
}
