//! The address sanitizer, leaks included, over the crates with unsafe code that run without an accelerator: the rings, and the copies
//! to cards against the driver of the tests. With libtorch there, over the trainer's shim as well.

use crate::prove::session::{Finding, Session, finding};
use crate::steps::{run as run_command, target};
use serde_json::json;

const PACKAGES: &[&str] = &["fuelrail-io", "fuelrail-cuda", "fuelrail-cuda-driver"];
const SHIM: &str = "fuelrail-tch";

pub(super) fn run(session: &Session<'_>) -> Result<Finding, String> {
    session.need("nextest")?;
    let torch = std::env::var_os("LIBTORCH").is_some();
    let packages: Vec<&str> = PACKAGES.iter().copied().chain(torch.then_some(SHIM)).collect();
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = session.cargo(["nextest", "run", "--no-fail-fast", "--profile", "prove", "--target", &host]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    command.env("CARGO_TARGET_DIR", target(session.root).join("sanitizers"));
    // The compiler that is there has the sanitizer, but calls it unstable.
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address").env("CXXFLAGS", "-fsanitize=address");
    finding(run_command(command), json!({ "packages": packages }))
}
