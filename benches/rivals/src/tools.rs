//! The command-line tools: `curl`, one process per pass with all URLs in a configuration file, bodies to `/dev/null`; and `wrk`, one
//! process per pass, one thread, bodies dropped, for a fixed time. Their start is in every pass: they cannot be told to wait.

use std::fmt::Write;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::Passed;
use crate::bucket::{Bucket, Object, order};

/// Runs a tool to its end and returns its standard output; its Debian package has its name.
fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program} cannot be run (install the Debian package {program})"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    ensure!(output.status.success(), "{program} ended with {}: {last}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn scratch() -> Result<TempDir> {
    TempDir::with_prefix("fuelrail-rival-").context("making a scratch folder")
}

pub(crate) struct Curl {
    bucket: Bucket,
    objects: Vec<Object>,
    seed: u64,
    connections: u16,
    folder: TempDir,
    settings: String,
}

impl Curl {
    pub(crate) fn new(bucket: Bucket, objects: Vec<Object>, seed: u64, connections: u16) -> Result<Curl> {
        let said = run(Command::new("curl").arg("--version"))?;
        let version = said.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        let way = if connections == 1 { "one after the other".into() } else { format!("-Z {connections}") };
        let settings = format!("{version}, {way}, writes to /dev/null, its start included");
        Ok(Curl { bucket, objects, seed, connections, folder: scratch()?, settings })
    }

    /// The configuration file of a pass.
    fn config(&self, pass: u64) -> String {
        let mut text = String::from("fail\nsilent\nshow-error\nwrite-out = \"%{size_download}\\n\"\n");
        if let Some(file) = &self.bucket.ca_file {
            let _ = writeln!(text, "cacert = \"{}\"", file.display());
        }
        if self.connections > 1 {
            let _ = writeln!(text, "parallel\nparallel-max = {}", self.connections);
        }
        let endpoint = self.bucket.endpoint();
        for object in order(self.objects.len(), self.seed, pass) {
            let path = self.bucket.path(&self.objects[object as usize].key);
            let _ = writeln!(text, "url = \"{endpoint}{path}\"\noutput = \"/dev/null\"");
        }
        text
    }

    pub(crate) fn pass(&self, number: u64) -> Result<Passed> {
        let file = self.folder.path().join("urls");
        fs::write(&file, self.config(number)).context("writing curl's configuration")?;
        let started = Instant::now();
        let said = run(Command::new("curl").args(["--disable", "--config"]).arg(&file))?;
        let wall_s = started.elapsed().as_secs_f64();
        // One size per line.
        let sizes: Option<Vec<u64>> = said.lines().map(|line| line.trim().parse().ok()).collect();
        let sizes = sizes.with_context(|| format!("curl said {said:?}, not sizes"))?;
        let (bytes, wanted) = (sizes.iter().sum(), self.objects.iter().map(|object| object.size as u64).sum::<u64>());
        ensure!(bytes == wanted, "curl received {bytes} bytes of {wanted}");
        let objects = sizes.len() as u64;
        Ok(Passed { bytes, objects, wall_s, settings: self.settings.clone(), ..Passed::default() })
    }
}

/// wrk stops by time: a pass reads more or less than the data set, and says how much.
pub(crate) struct Wrk {
    args: Vec<String>,
    /// Sizes in the order of the list.
    sizes: Vec<u64>,
    _folder: TempDir,
    settings: String,
}

impl Wrk {
    pub(crate) fn new(
        bucket: &Bucket,
        objects: &[Object],
        seed: u64,
        connections: u16,
        duration_s: u32,
    ) -> Result<Wrk> {
        // `wrk --version` ends with 1: only whether it can be run at all is asked.
        let there = Command::new("wrk").arg("--version").output();
        there.context("wrk cannot be run (install the Debian package wrk)")?;
        let order = order(objects.len(), seed, 0);
        let paths: String = order.iter().map(|&object| bucket.path(&objects[object as usize].key) + "\n").collect();
        let folder = scratch()?;
        let write = |name: &str, text: &str| -> Result<String> {
            let path = folder.path().join(name);
            fs::write(&path, text).context("writing wrk's files")?;
            Ok(path.display().to_string())
        };
        let (script, paths) = (write("wrk.lua", include_str!("wrk.lua"))?, write("paths", &paths)?);
        let certificate = if bucket.tls { ", certificate not verified" } else { "" };
        let settings = format!(
            "wrk, one thread, {connections} connections, drops the body, for {duration_s} s, its start included{certificate}"
        );
        let options = format!("--threads 1 --connections {connections} --duration {duration_s}s --script");
        let options = options.split(' ').map(str::to_owned);
        let args = options.chain([script, bucket.endpoint(), "--".to_owned(), paths]).collect();
        let sizes = order.iter().map(|&object| objects[object as usize].size as u64).collect();
        Ok(Wrk { args, sizes, _folder: folder, settings })
    }

    pub(crate) fn pass(&self) -> Result<Passed> {
        let (objects, duration_us) = summary(&run(Command::new("wrk").args(&self.args))?)?;
        let (bytes, wall_s) = (delivered(&self.sizes, objects), duration_us as f64 / 1e6);
        Ok(Passed { bytes, objects, wall_s, settings: self.settings.clone(), ..Passed::default() })
    }
}

/// Answers and microseconds, when nothing went wrong.
fn summary(said: &str) -> Result<(u64, u64)> {
    let line = said.lines().find_map(|line| line.strip_prefix("fuelrail "));
    let numbers: Option<Vec<u64>> = line.and_then(|line| line.split(' ').map(|word| word.parse().ok()).collect());
    match numbers.as_deref() {
        Some(&[0, ..]) => bail!("wrk got no answer; give a longer --duration"),
        Some(&[objects, duration_us, 0, 0]) => Ok((objects, duration_us)),
        Some(&[_, _, broken, refused]) => bail!("wrk met {broken} broken connections and {refused} refusals"),
        _ => bail!("wrk printed no summary"),
    }
}

/// Bytes of the first `objects` answers of a list that is asked for round and round.
fn delivered(sizes: &[u64], objects: u64) -> u64 {
    let count = sizes.len() as u64;
    let begun = &sizes[..(objects % count) as usize];
    sizes.iter().sum::<u64>() * (objects / count) + begun.iter().sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_fails_or_is_absent_is_told() {
        let failed = run(Command::new("sh").args(["-c", "echo a >&2; echo b >&2; exit 3"])).unwrap_err();
        assert_eq!(failed.to_string(), "sh ended with exit status: 3: b");
        let absent = run(&mut Command::new("no-such-program-here")).unwrap_err().to_string();
        assert!(absent.contains("install the Debian package no-such-program-here"), "{absent}");
    }

    #[test]
    fn what_wrk_says_becomes_objects_and_bytes() {
        assert_eq!(summary("Running 2s\n\nfuelrail 7 2000123 0 0\n").unwrap(), (7, 2_000_123));
        assert_eq!(delivered(&[1, 10, 100], 7), 223);
        assert_eq!(delivered(&[5], 0), 0);
    }

    #[test]
    fn what_went_wrong_is_told() {
        let told = |said| summary(said).unwrap_err().to_string();
        assert_eq!(told("fuelrail 7 2 0 1\n"), "wrk met 0 broken connections and 1 refusals");
        assert_eq!(told("fuelrail 0 2 0 0\n"), "wrk got no answer; give a longer --duration");
        assert_eq!(told("unable to connect"), "wrk printed no summary");
    }
}
