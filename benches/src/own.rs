//! Our own loader as a contestant: the same door that a trainer uses, under the harness's protocol.
//!
//! Owns one loader per pass. Everything a run costs is inside a pass: starting shards, memory from the kernel, requests,
//! batches, the end; only the manifest is read before. Nothing is fetched between passes.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Instant;

use fuelrail::{Config, Listed, LoaderBuilder, Overrides, Result, Stats, read_manifest};

use crate::harness::protocol::serve;
use crate::harness::{Said, SetHash, Task};

/// How our loader takes part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Own {
    /// Settings over the defaults, by the names of [`Config`]'s fields.
    pub settings: Overrides,
    /// Whether the samples are hashed.
    pub hash: bool,
}

/// Runs the loader as a contestant until its input ends.
///
/// # Errors
/// `Usage` for settings that do not exist; those of the loader; those of [`serve`].
pub fn run(own: &Own, task: &Task, input: impl BufRead, output: impl Write) -> Result<()> {
    let (base, prefix) = split(&task.uri);
    let config = own.config(&Task { uri: base.to_owned(), ..task.clone() })?;
    let mut listing = read_manifest(&task.manifest)?;
    listing.iter_mut().for_each(|object| object.key.insert_str(0, prefix));
    serve(input, output, || own.pass(&config, &listing))
}

/// A task's URI as the bucket and what all keys begin with: a loader's keys are whole ones.
pub(crate) fn split(uri: &str) -> (&str, &str) {
    let path = uri.find("://").map_or(0, |at| at + 3);
    let slashes = uri[path..].match_indices('/').map(|(at, _)| path + at + 1);
    uri.split_at(slashes.take(2).last().unwrap_or(uri.len()))
}

impl Own {
    /// The configuration of a pass.
    ///
    /// # Errors
    /// `Usage` for settings that do not exist or make no sense.
    pub fn config(&self, task: &Task) -> Result<Config> {
        let text = |value: u64| value.to_string();
        let mut given: Overrides = [
            ("uri", task.uri.clone()),
            ("batch_size", text(task.batch_size.into())),
            ("memory_limit_bytes", text(task.arena_bytes)),
            ("seed", text(task.seed)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        given.extend(self.settings.iter().cloned());
        // The environment is left alone: a contestant's settings are in its command line and nowhere else.
        Config::load(None, [], &given)
    }

    fn pass(&self, config: &Config, listing: &[Listed]) -> Result<Said> {
        let start = Instant::now();
        let mut loader = LoaderBuilder::new(config.clone()).listing(listing.to_vec()).build()?;
        let mut said = Said::default();
        let mut hash = self.hash.then(SetHash::default);
        while let Some(batch) = loader.next_batch() {
            let batch = batch?;
            said.first_batch_us.get_or_insert_with(|| start.elapsed().as_micros() as u64);
            said.bytes += batch.payload_bytes();
            said.objects += batch.len() as u64;
            if let Some(hash) = &mut hash {
                batch.samples().for_each(|sample| hash.add(sample.bytes));
            }
        }
        said.wall_s = start.elapsed().as_secs_f64();
        said.hash = hash.map(|hash| hash.to_string());
        let stats = loader.stats();
        said.settings = settings(loader.config(), &stats.ring);
        said.facts = facts(&stats, said.bytes);
        Ok(said)
    }
}

/// What only the loader itself can count.
fn facts(stats: &Stats, bytes: u64) -> BTreeMap<String, f64> {
    let mib = (bytes as f64 / f64::from(1 << 20)).max(f64::MIN_POSITIVE);
    [
        ("copied_bytes_per_byte", stats.copied_bytes_per_byte),
        ("system_calls_per_mib", stats.enters as f64 / mib),
        ("completions_per_system_call", stats.completions as f64 / (stats.enters as f64).max(1.0)),
        ("requests", stats.requests as f64),
        ("retries", stats.retries as f64),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// What differs from the defaults, and the ring with what it found.
fn settings(effective: &Config, ring: &str) -> String {
    let plain = |config: &Config| serde_json::to_value(config).expect("a configuration is a plain structure");
    let (ours, default) = (plain(effective), plain(&Config::default()));
    // Where it reads from is the task's, and differs from run to run.
    let told = |name: &str| !["uri", "ca_file"].contains(&name);
    let changed = ours.as_object().into_iter().flatten().filter(|(name, value)| told(name) && default[name] != **value);
    let words: Vec<String> = changed.map(|(name, value)| format!("{name}={value}")).collect();
    format!("{}; ring {ring}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_is_a_bucket_and_a_prefix() {
        assert_eq!(split("http://h:1/set/"), ("http://h:1/set/", ""));
        assert_eq!(split("http://h:1/bucket/set/deep/"), ("http://h:1/bucket/", "set/deep/"));
        assert_eq!(split("http://h"), ("http://h", ""));
    }
}
