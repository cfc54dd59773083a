//! The system: other programs (`ip`, `cc`, `pip`, …) run to their end, with their complaint in the error; files that cannot be written.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fuelrail::{Error, Kind, Listed, Result, list, read_manifest};
use fuelrail_bucket::{Bucket, BucketConfig};
use fuelrail_cli::machine::{HUGE_PAGES, chosen};

/// Runs a command that must succeed.
///
/// # Errors
/// `Environment` with the line of its output that names an error, else the last.
pub(crate) fn run(command: &mut Command, what: &str, cure: &str) -> Result<()> {
    let failed = |why: String| Err(Error::new(Kind::Environment, format!("{what}: {why}")).with_hint(cure));
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => output,
        Err(error) => return failed(error.to_string()),
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let named = said.lines().find(|line| line.contains("error:"));
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
    failed(format!("{}, {}", output.status, named.unwrap_or(last).trim()))
}

/// Huge pages for every program of this machine that asks for memory, as long as this lives: contestants differ otherwise in who advises
/// the kernel to use them.
pub(crate) struct HugePages {
    before: Option<String>,
}

impl HugePages {
    /// Turned on, or what kept them off, which takes root.
    pub(crate) fn on() -> (HugePages, Option<String>) {
        let before = fs::read_to_string(HUGE_PAGES).ok().as_deref().and_then(chosen).map(str::to_owned);
        match before.is_some().then(|| fs::write(HUGE_PAGES, "always")) {
            Some(Ok(())) => (HugePages { before }, None),
            other => {
                let why = other
                    .and_then(std::result::Result::err)
                    .map_or("this kernel has none".to_owned(), |e| e.to_string());
                let notice = format!(
                    "huge pages are not the same for all contestants ({why}): run as root, or compare large objects with care"
                );
                (HugePages { before: None }, Some(notice))
            }
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Nothing depends on it any more.
            let _ = fs::write(HUGE_PAGES, before);
        }
    }
}

pub(crate) fn embedded(config: BucketConfig) -> Result<Bucket> {
    Bucket::start(config).map_err(|error| Error::new(Kind::Environment, format!("the embedded bucket: {error}")))
}

/// Writes a file, and makes the folders above it.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(path, content)).map_err(|error| unwritable(path, &error))
}

pub(crate) fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Kind::File, format!("writing {}: {error}", path.display()))
}

/// Reads a time of so many seconds (`s`) or minutes (`min`).
pub(crate) fn positive(text: &str, unit: &str) -> Result<Duration> {
    let seconds = text.parse::<f64>().map(|number| if unit == "min" { number * 60.0 } else { number });
    let time = seconds.ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let refused =
        || Error::new(Kind::Usage, format!("`{text} {unit}` is not a duration")).with_hint("give a positive number");
    time.filter(|time| !time.is_zero()).ok_or_else(refused)
}

/// The objects of a bucket, from a manifest where there is one.
pub(crate) fn listing(uri: &str, manifest: Option<&Path>) -> Result<Vec<Listed>> {
    manifest.map_or_else(|| list(uri, |_| {}), read_manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_carry_the_last_words_and_a_cure() {
        let mut command = Command::new("sh");
        let error =
            run(command.args(["-c", "echo begun; echo 'no room' >&2; exit 2"]), "pip", "make room").unwrap_err();
        assert_eq!(error.to_string(), "pip: exit status: 2, no room; make room");
    }
}
