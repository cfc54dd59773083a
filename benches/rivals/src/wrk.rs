//! `wrk`: one process per pass, one thread, bodies dropped, for a fixed time.
//!
//! Owns its script and its list of paths. wrk stops by time: a pass reads more or less than the data set, and says how
//! much.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::bucket::Bucket;
use crate::flaw::{Flaw, Result};
use crate::manifest::{Object, order};
use crate::protocol::{Contestant, Passed};
use crate::set::Set;
use crate::tool::Tool;

const SCRIPT: &str = include_str!("wrk.lua");

/// wrk with what its passes need.
pub(crate) struct Wrk {
    endpoint: String,
    connections: String,
    duration: String,
    sizes: Vec<u64>,
    folder: TempDir,
    settings: String,
}

impl Wrk {
    /// Ready to run.
    ///
    /// # Errors
    /// When wrk is not there or its files cannot be written.
    pub(crate) fn new(bucket: &Bucket, objects: Vec<Object>, set: &Set, duration_s: u32) -> Result<Wrk> {
        let folder = TempDir::with_prefix("fuelrail-wrk-").map_err(|e| Flaw::of("making a scratch folder", e))?;
        let mut paths = String::new();
        let mut sizes = Vec::with_capacity(objects.len());
        for object in order(objects.len(), set.seed, 0) {
            let object = &objects[object as usize];
            paths.push_str(&bucket.path(&object.key));
            paths.push('\n');
            sizes.push(object.size as u64);
        }
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).map_err(|e| Flaw::of("writing wrk's files", e))
        };
        write("paths", &paths)?;
        write("wrk.lua", SCRIPT)?;
        installed()?;
        let settings = format!(
            "wrk, one thread, {} connections, drops the body, for {duration_s} s, its start included{}",
            set.connections,
            if bucket.tls { ", certificate not verified" } else { "" }
        );
        let connections = set.connections.to_string();
        let duration = format!("{duration_s}s");
        Ok(Wrk { endpoint: bucket.endpoint(), connections, duration, sizes, folder, settings })
    }

    fn file(&self, name: &str) -> String {
        Path::join(self.folder.path(), name).display().to_string()
    }
}

/// `wrk --version` prints its version and ends with 1: only whether it can be run at all is asked.
fn installed() -> Result<()> {
    match std::process::Command::new("wrk").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(error) => Err(Flaw::of("running wrk", error).cure("install the Debian package wrk")),
    }
}

impl Contestant for Wrk {
    fn pass(&mut self, _number: u64) -> Result<Passed> {
        let (script, paths) = (self.file("wrk.lua"), self.file("paths"));
        let options = ["--threads", "1", "--connections", &self.connections, "--duration", &self.duration];
        let rest = ["--script", &script, &self.endpoint, "--", &paths];
        let said = Tool::new("wrk", "wrk").args(options).args(rest).run()?;
        let (objects, duration_us) = summary(&said)?;
        let bytes = delivered(&self.sizes, objects);
        let wall_s = duration_us as f64 / 1e6;
        Ok(Passed { bytes, objects, wall_s, settings: self.settings.clone(), ..Passed::default() })
    }
}

/// Answers and microseconds, when nothing went wrong.
fn summary(said: &str) -> Result<(u64, u64)> {
    let line = said.lines().find_map(|line| line.strip_prefix("fuelrail "));
    let numbers: Option<Vec<u64>> = line.and_then(|line| line.split(' ').map(|word| word.parse().ok()).collect());
    match numbers.as_deref() {
        Some(&[0, ..]) => Err(Flaw::new("wrk got no answer").cure("give a longer --duration")),
        Some(&[objects, duration_us, 0, 0]) => Ok((objects, duration_us)),
        Some(&[_, _, broken, refused]) => {
            Err(Flaw::new(format!("wrk met {broken} broken connections and {refused} refusals")))
        }
        _ => Err(Flaw::new("wrk printed no summary")),
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
