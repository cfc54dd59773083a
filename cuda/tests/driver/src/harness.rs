//! Running a test under the driver: the test's executable starts itself again with the driver in its way.
//!
//! Owns the temporary folder with the two names of the library, and the child process. Never touches the environment of
//! the process it runs in.

use crate::settings::{PREFIX, Settings};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `real`: tests that hold on every driver run on the machine's own, on its first device.
const WHICH: &str = "FUELRAIL_DRIVER";
/// Set in the child: the name of the test it runs.
const CHILD: &str = "FUELRAIL_DRIVER_TEST";
/// The library's file, as cargo leaves it beside the test executables.
const LIBRARY: &str = "libfuelrail_cuda_driver.so";
/// The names under which programs look for the driver.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// Whether tests that hold on every driver are to run on this machine's own: `FUELRAIL_DRIVER=real`.
pub fn on_device() -> bool {
    std::env::var_os(WHICH).is_some_and(|which| which == "real")
}

/// As [`under_driver`], for a test of bytes and order that holds on a device, too: there it runs in the process that asks.
pub fn under_any_driver(test: &str, settings: &Settings) -> bool {
    on_device() || under_driver(test, settings)
}

/// Runs a test under the driver. True in the process that has the driver: run the body there. False in the one that
/// started it, when the body has run and succeeded: return.
///
/// ```ignore
/// #[test]
/// fn copies_arrive() {
///     if !under_driver("copies_arrive", &Settings { seed: 7, ..Settings::default() }) {
///         return;
///     }
///     // CUDA calls.
/// }
/// ```
///
/// `test` is the test's full path, with its modules.
///
/// # Panics
/// When the child fails, with its output; when there is no library; when no test has this name; when a device is asked for.
pub fn under_driver(test: &str, settings: &Settings) -> bool {
    assert!(!on_device(), "'{test}' needs the driver of the tests: run it without {WHICH}");
    if std::env::var_os(CHILD).is_some_and(|name| name == test) {
        return true;
    }
    let folder = tempfile::tempdir().expect("a temporary folder for the driver");
    let library = library();
    for name in NAMES {
        // Links, so that both names are one file, and the loader sees one library under them.
        std::os::unix::fs::symlink(&library, folder.path().join(name)).expect("a link to the driver");
    }
    let executable = std::env::current_exe().expect("the path of this test executable");
    let mut command = Command::new(executable);
    command.args([test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", library_path(folder.path())).env(CHILD, test);
    for (name, text) in settings.pairs() {
        command.env(format!("{PREFIX}{}", name.to_uppercase()), text);
    }
    let output = command.output().expect("the test executable, started again");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "'{test}' under the driver: {}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "no test has the full name '{test}':\n{out}");
    false
}

/// The driver's file beside the running executable, or in the folder above (examples and plain binaries).
fn library() -> PathBuf {
    let executable = std::env::current_exe().expect("the path of this test executable");
    let near = executable
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.join(LIBRARY), folder.join("deps").join(LIBRARY)]);
    let found = near.into_iter().find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{LIBRARY} is not beside {}: build the package fuelrail-cuda-driver", executable.display())
    })
}

/// The folder before whatever the loader searches already.
fn library_path(folder: &Path) -> std::ffi::OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(before);
    }
    path
}
