//! Our own loader as a contestant: the same door that a trainer uses, under the harness's protocol.
//!
//! Owns one loader, which stays for all passes as a trainer's stays for all epochs: the first pass starts shards and touches
//! memory for the first time, the others are the epochs that follow. Only the manifest is read before the first.
//!
//! The loader looks ahead over the edge of an epoch, so a pass begins with batches that the pass before has fetched. Every
//! pass is therefore measured from rest to rest: it ends when the loader has fetched all it wants to, so that it pays for as
//! much of the next epoch as it was given of its own, and nothing is fetched while others have their turn. What was received
//! is told beside what was delivered: the two differ by what the look-ahead grew or shrank, and rates are of what was received.

use std::io::{BufRead, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use fuelrail::{Config, Error, Kind, Listed, Loader, LoaderBuilder, Overrides, Result, Stats, read_manifest};
use fuelrail_plan::run::EPOCHS_MAX;

use crate::harness::contestant::RECEIVED;
use crate::harness::protocol::serve;
use crate::harness::{Said, SetHash, Task};

/// How our loader takes part.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Own {
    /// A setting over the defaults, by the name of its field
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = fuelrail_cli::bench::setting)]
    pub settings: Vec<(String, String)>,
    /// Hash what comes
    #[arg(long)]
    pub hash: bool,
    /// End with the first pass, and fetch nothing of a next one
    #[arg(long)]
    pub once: bool,
}

/// The loader between passes.
struct Standing {
    loader: Loader,
    batches_per_pass: u64,
    /// Its counters at the end of the pass before.
    counted: Stats,
}

/// Runs the loader as a contestant until its input ends.
pub fn run(own: &Own, task: &Task, input: impl BufRead, output: impl Write) -> Result<()> {
    let (base, prefix) = split(&task.uri);
    let config = own.config(&Task { uri: base.to_owned(), ..task.clone() })?;
    let mut listing = read_manifest(&task.manifest)?;
    listing.iter_mut().for_each(|object| object.key.insert_str(0, prefix));
    let mut standing = None;
    serve(input, output, || own.pass(&mut standing, &config, &listing))
}

/// A task's URI as the bucket and what all keys begin with: a loader's keys are whole ones.
fn split(uri: &str) -> (&str, &str) {
    let path = uri.find("://").map_or(0, |at| at + 3);
    let slashes = uri[path..].match_indices('/').map(|(at, _)| path + at + 1);
    uri.split_at(slashes.take(2).last().unwrap_or(uri.len()))
}

impl Own {
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

    fn pass(&self, standing: &mut Option<Standing>, config: &Config, listing: &[Listed]) -> Result<Said> {
        let start = Instant::now();
        let mut said = Said::default();
        let standing = match standing {
            Some(standing) => standing,
            none => {
                let before = cpu_s();
                let started = none.insert(self.start(config, listing)?);
                said.facts.insert("start_cpu_s".to_owned(), cpu_s() - before);
                started
            }
        };
        let mut hash = self.hash.then(SetHash::default);
        for _ in 0..standing.batches_per_pass {
            let batch = standing.loader.next_batch().ok_or_else(over)??;
            said.first_batch_us.get_or_insert_with(|| start.elapsed().as_micros() as u64);
            said.bytes += batch.payload_bytes();
            said.objects += batch.len() as u64;
            if let Some(hash) = &mut hash {
                batch.samples().for_each(|sample| hash.add(sample.bytes));
            }
        }
        if !self.once {
            rest(&standing.loader, start);
        }
        said.wall_s = start.elapsed().as_secs_f64();
        said.hash = hash.map(|hash| hash.to_string());
        let stats = standing.loader.stats();
        said.settings = settings(standing.loader.config(), &stats.ring);
        said.facts.extend(facts(&standing.counted, &stats, said.bytes));
        standing.counted = stats;
        Ok(said)
    }

    fn start(&self, config: &Config, listing: &[Listed]) -> Result<Standing> {
        // How many passes will be asked for is not known: as many as there can be.
        let passes = if self.once { 1 } else { EPOCHS_MAX / config.epochs.max(1) };
        let builder = LoaderBuilder::new(config.clone()).epochs(config.epochs * passes);
        let loader = builder.listing(listing.to_vec()).build()?;
        Ok(Standing { batches_per_pass: loader.batches() / passes, loader, counted: Stats::default() })
    }
}

fn over() -> Error {
    Error::new(Kind::Protocol, "a second pass was requested with --once").with_hint("leave out --once")
}

fn cpu_s() -> f64 {
    let (user, system) = fuelrail::internal::process_cpu();
    (user + system).as_secs_f64()
}

/// Between two looks at the loader: a fixed share of the pass so far, so that looking neither costs nor lengthens it by more
/// than that; never so short that a shard has had no turn meanwhile.
const LOOKS_PER_PASS: u32 = 64;
const LOOK_MIN: Duration = Duration::from_millis(1);

/// Waits until the loader has fetched all it wants to: every request it owed has come to an end, and none was added since the
/// last look.
fn rest(loader: &Loader, start: Instant) {
    let mut before = None;
    loop {
        let stats = loader.stats();
        let owed = stats.asks + stats.retries - stats.hits - stats.shared;
        let ended = stats.gates.iter().find(|gate| gate.name == "fetch").map_or(0, |gate| gate.passed);
        if ended >= owed && before == Some(owed) {
            return;
        }
        before = Some(owed);
        sleep((start.elapsed() / LOOKS_PER_PASS).max(LOOK_MIN));
    }
}

/// What only the loader itself can count, of one pass.
fn facts(before: &Stats, after: &Stats, bytes: u64) -> [(String, f64); 7] {
    let since = |counter: fn(&Stats) -> u64| counter(after).saturating_sub(counter(before)) as f64;
    let per_byte = |count: f64| count / (bytes as f64).max(1.0);
    let (enters, completions) = (since(|stats| stats.enters), since(|stats| stats.completions));
    [
        ("copied_bytes_per_byte", per_byte(since(|stats| stats.copied_bytes))),
        (RECEIVED, per_byte(since(|stats| stats.landed_bytes + stats.hit_bytes))),
        ("page_faults", since(|stats| stats.shards.iter().map(|shard| shard.faults_minor).sum())),
        ("system_calls_per_mib", per_byte(enters * f64::from(1 << 20))),
        ("completions_per_system_call", completions / enters.max(1.0)),
        ("requests", since(|stats| stats.requests)),
        ("retries", since(|stats| stats.retries)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}

/// What differs from the defaults, and the ring with what it found.
fn settings(effective: &Config, ring: &str) -> String {
    let plain = |config: &Config| serde_json::to_value(config).expect("a configuration is a plain structure");
    let (ours, default) = (plain(effective), plain(&Config::default()));
    // Where it reads from is the task's, and differs from run to run; how many passes it is ready for says nothing.
    let told = |name: &str| !["uri", "ca_file", "epochs"].contains(&name);
    let changed = ours.as_object().into_iter().flatten().filter(|(name, value)| told(name) && default[name] != **value);
    let words: Vec<String> = changed.map(|(name, value)| format!("{name}={value}")).collect();
    format!("{}; ring {ring}", words.join(", "))
}
