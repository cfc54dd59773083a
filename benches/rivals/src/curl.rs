//! `curl`: one process per pass with all URLs in a configuration file, bodies to `/dev/null`.
//!
//! Owns that file. curl's start is in every pass: it cannot be told to wait.

use std::fmt::Write;
use std::time::Instant;

use tempfile::TempDir;

use crate::bucket::Bucket;
use crate::flaw::{Flaw, Result};
use crate::manifest::{Object, order};
use crate::protocol::{Contestant, Passed};
use crate::set::Set;
use crate::tool::{Tool, version};

/// curl with what its passes need.
pub(crate) struct Curl {
    bucket: Bucket,
    objects: Vec<Object>,
    seed: u64,
    connections: u16,
    folder: TempDir,
    settings: String,
}

impl Curl {
    /// Ready to run.
    ///
    /// # Errors
    /// When curl is not there or a scratch folder cannot be made.
    pub(crate) fn new(bucket: Bucket, objects: Vec<Object>, set: &Set) -> Result<Curl> {
        let version = version(Tool::new("curl", "curl").args(["--version"]))?;
        let way = if set.connections == 1 { "one after the other".into() } else { format!("-Z {}", set.connections) };
        let settings = format!("{version}, {way}, writes to /dev/null, its start included");
        let folder = TempDir::with_prefix("fuelrail-curl-").map_err(|e| Flaw::of("making a scratch folder", e))?;
        Ok(Curl { bucket, objects, seed: set.seed, connections: set.connections, folder, settings })
    }

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
}

impl Contestant for Curl {
    fn pass(&mut self, number: u64) -> Result<Passed> {
        let file = self.folder.path().join("urls");
        std::fs::write(&file, self.config(number)).map_err(|e| Flaw::of("writing curl's configuration", e))?;
        let started = Instant::now();
        let said =
            Tool::new("curl", "curl").args(["--disable".as_ref(), "--config".as_ref(), file.as_os_str()]).run()?;
        let wall_s = started.elapsed().as_secs_f64();
        let (objects, bytes) = count(&said)?;
        let wanted: u64 = self.objects.iter().map(|object| object.size as u64).sum();
        if bytes != wanted {
            return Err(Flaw::new(format!("curl received {bytes} bytes of {wanted}")));
        }
        Ok(Passed { bytes, objects, wall_s, settings: self.settings.clone(), ..Passed::default() })
    }
}

/// Objects and bytes from one size per line.
fn count(said: &str) -> Result<(u64, u64)> {
    said.lines().try_fold((0, 0), |(objects, bytes), line| {
        let size: u64 = line.trim().parse().map_err(|_| Flaw::new(format!("curl said {line:?}, not a size")))?;
        Ok((objects + 1, bytes + size))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted() {
        assert_eq!(count("5\n0\n7\n").unwrap(), (3, 12));
        assert!(count("5\ncurl: (22)\n").is_err());
    }
}
