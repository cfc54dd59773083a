//! The configuration of a loader: one plain struct, pure defaults, one function that reads it.
//!
//! Precedence: argument (builder or [`Overrides`]) > environment `FUELRAIL_<FIELD>` > TOML file > default. Unknown keys
//! and unknown `FUELRAIL_*` variables are errors: a misspelt setting must not be silently ignored.

#[cfg(test)]
mod tests;
mod text;

use crate::access::{Access, parse_addressing};
use crate::credentials::{Credentials, SharedProvider};
use crate::decode::Decode;
use crate::environment::Environment;
use crate::listing::ListingDir;
use crate::tls::Tls;
use fuelrail_base::limits::{
    BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, CONNECTIONS_PER_SHARD_MAX, DECODE_DEPTH_MAX, DECODE_THREADS_MAX, SHARDS_MAX,
};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_io::RingChoice;
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::importance::{ImportanceConfig, Mode};
use fuelrail_plan::order::OrderName;
use fuelrail_plan::policy::PolicyName;
use fuelrail_plan::spill::SpillPolicy;
use fuelrail_wire::{Cloud, Source};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use text::{ACCESS, read_sizes, set};

/// Every setting of a loader. The effective one is printed into every result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://ACCOUNT/CONTAINER/PREFIX`, `http://HOST:PORT/BUCKET/PREFIX`, or `https`.
    /// Braces, `{train,val}` and `{000..127}`, stand for several prefixes.
    pub uri: String,
    /// The region of an `s3://` bucket, and the one that requests are signed for, if they are; without one it is `AWS_REGION`, `AWS_DEFAULT_REGION` or
    /// that of the profile, else `us-east-1`.
    pub region: Option<String>,
    /// The server that `s3://`, `gs://` and `az://` mean, `http[s]://HOST[:PORT]`; empty takes `AWS_ENDPOINT_URL_S3`,
    /// `AWS_ENDPOINT_URL` or `STORAGE_EMULATOR_HOST`, else the cloud's own.
    pub endpoint: String,
    /// Where requests name the bucket of an `s3://` or `gs://` URI: `auto`, `path` or `virtual`, in front of the host.
    pub addressing: String,
    /// A manifest that names the objects, for servers that cannot list.
    pub manifest: Option<PathBuf>,
    /// A local directory in which the bucket's listing is kept: it is used again by later runs while the bucket seems to be as it
    /// was, and one that is interrupted goes on. Without one the bucket is listed at every start.
    pub listing_dir: Option<PathBuf>,
    /// A listing older than this is not used again, s; 0 uses none again.
    pub listing_max_age_s: u64,
    /// Under https, the authorities to believe instead of the system's, in PEM.
    pub ca_file: Option<PathBuf>,
    /// Under https, disable certificate verification (insecure; every use is a warning).
    pub tls_insecure: bool,
    /// The profile of the AWS files (`~/.aws`) whose keys are used, before those of the environment.
    pub profile: Option<String>,
    /// `true` signs nothing; `false` signs also what goes to a plain `http://` or `https://` URI, which by itself is signed
    /// only with `profile` set, or where `AWS_ENDPOINT_URL` names the server.
    pub anonymous: Option<bool>,
    /// Pay for the requests and the bytes, where the bucket's owner wants that of who asks.
    pub requester_pays: bool,
    /// Where the variables of the clouds' tools are read.
    #[serde(skip)]
    pub environment: Environment,
    /// What hands out credentials in the place of what the clouds' tools would use.
    #[serde(skip)]
    pub credentials: Option<SharedProvider>,
    /// Samples per batch and rank.
    pub batch_size: u32,
    /// Epochs of the whole run, counted from epoch 0 also when resuming.
    pub epochs: u64,
    /// Seed of the order.
    pub seed: u64,
    /// Shuffled epochs, or key order.
    pub shuffle: bool,
    /// Which shuffle: `global`, or `sticky`, under which a sample comes back to the rank that had it, whose cache may have it.
    pub order: String,
    /// Drop the last step of an epoch when it is not full.
    pub drop_last: bool,
    /// This rank.
    pub rank: u32,
    /// How many ranks share each epoch.
    pub world: u32,
    /// Shards (threads); 0 chooses one per core that cpuset and quota allow, as far as memory feeds them; where samples are
    /// decoded, one for eight cores.
    pub shards: u16,
    /// All buffers together, bytes; 0 takes half of the cgroup's limit or of the machine.
    pub memory_limit_bytes: u64,
    /// RAM cache of blocks inside that, payload bytes; 0 keeps nothing.
    pub cache_limit_bytes: u64,
    /// What the cache keeps: `next-use`, `pinned`, `lru`, `fifo`, `dlcache` or `importance`.
    pub cache_policy: String,
    /// Directories on local disks that blocks go to which RAM has no room for; none keeps nothing on disk. Each belongs to root
    /// or to this user, and gets a directory `fuelrail-UID` that is this user's alone. Give each to one bucket or many, one
    /// loader or many of this machine: what is in them is found again by any later run.
    pub spill_dirs: Vec<PathBuf>,
    /// Disk for blocks in all directories together, whichever loader and process of this machine wrote them, bytes; 0 takes
    /// what `spill_floor_bytes` leaves.
    pub spill_limit_bytes: u64,
    /// Room to leave free on every directory's file system, bytes; 0 leaves a twentieth of it.
    pub spill_floor_bytes: u64,
    /// What the disk keeps: `next-use`, `lru` or `fifo`.
    pub spill_policy: String,
    /// How far to look ahead: `lookahead`, or DELI's `full-fetch` and `50/50` over `prefetch_samples`.
    pub prefetch: String,
    /// For DELI's strategies: their cache size, samples.
    pub prefetch_samples: u64,
    /// Longest span fetched and cached as one, bytes.
    pub block_bytes: u64,
    /// What happens when a sample cannot be had: `raise`, `skip` or `quarantine`.
    pub bad_samples: String,
    /// Silence on a busy connection after which it is given up, ms; and an answer of which less than 1 KiB a second comes for as long.
    /// What has come is kept, and the rest asked for elsewhere.
    pub stall_after_ms: u64,
    /// No progress for this long is reported with every stage's state, ms; 0 never.
    pub watchdog_after_ms: u64,
    /// Answer SIGUSR1 with the same report. The signal is the program's own otherwise: schedulers use it for pre-emption.
    pub report_on_sigusr1: bool,
    /// Most connections per shard.
    pub connections_max: usize,
    /// Most attempts per block without progress.
    pub attempts_max: u32,
    /// How long one block may fail in all its attempts, those with progress too, while others are served, s; 0 leaves it to the attempts.
    pub request_limit_s: u64,
    /// How long a bucket that has served before, and now serves nothing at all, is waited for, s; 0 leaves it to the attempts.
    pub outage_limit_s: u64,
    /// A local directory in which the loaders of this machine write down the rate of requests that a server asks for, so that they
    /// share it evenly; without one each finds a rate of its own.
    pub share_dir: Option<PathBuf>,
    /// Requests sent a second time over another connection because the first takes far longer than usual, in per cent of all requests
    /// at most; 0 sends none. The first answer that is whole is taken.
    pub hedge_percent: u32,
    /// Bind each shard to a core and its memory to that core's NUMA node: one of every physical core first, nodes in turn.
    pub pin: bool,
    /// The NUMA node, such as a GPU's, on whose cores shards are seated first; the nodes take turns without it.
    pub near: Option<u16>,
    /// Count processor cycles and instructions of every shard, where the kernel allows: context switches get dearer.
    pub cycles: bool,
    /// The interface to the kernel: `auto` (`uring`, or `poll` where that is refused), `uring`, `poll`, and where the build
    /// has them `tokio-uring` and `glommio`.
    pub ring: String,
    /// Register the arena with the ring: cheaper receives, but all of it becomes resident at start.
    pub register: bool,
    /// Which samples an epoch takes more than once, and which not at all: `off` and `uniform` take every sample once, `on` draws
    /// by the losses the trainer reports, `shade` and `shade-corrected` as SHADE does, to compare with.
    pub importance: String,
    /// Under `on`: the least rate of a sample, per cent of once an epoch; at least that share of all samples is in every epoch.
    pub importance_coverage_percent: u32,
    /// Under `on`, the most often a sample comes in an epoch; under SHADE's modes, how often what is cached is replayed.
    pub importance_replay: u32,
    /// Under `on`: deliver weights that make the mean over an epoch unbiased.
    pub importance_weights: bool,
    /// What PNG and JPEG objects are decoded to, `HEIGHTxWIDTHxCHANNELS`, such as `224x224x3`; empty delivers their bytes.
    pub decode: String,
    /// How a picture of another size comes to that: `exact` (it is a bad sample), `center-crop` or `random-crop`.
    pub decode_fit: String,
    /// Mirror every other decoded sample left to right, by seed, epoch and sample.
    pub decode_flip: bool,
    /// Threads that decode; 0 takes the cores that the shards leave, at least one.
    pub decode_threads: usize,
    /// Batches decoded ahead, as far as memory has room for them.
    pub decode_depth: usize,
    /// Where to log what was delivered, for the exactly-once proof.
    pub audit: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            uri: String::new(),
            region: None,
            endpoint: String::new(),
            addressing: "auto".into(),
            manifest: None,
            listing_dir: None,
            listing_max_age_s: 86_400,
            ca_file: None,
            tls_insecure: false,
            profile: None,
            anonymous: None,
            requester_pays: false,
            environment: Environment::default(),
            credentials: None,
            batch_size: 64,
            epochs: 1,
            seed: 0,
            shuffle: true,
            order: OrderName::default().word().into(),
            drop_last: false,
            rank: 0,
            world: 1,
            shards: 0,
            memory_limit_bytes: 0,
            cache_limit_bytes: 0,
            cache_policy: "next-use".into(),
            spill_dirs: Vec::new(),
            spill_limit_bytes: 0,
            spill_floor_bytes: 0,
            spill_policy: "next-use".into(),
            prefetch: "lookahead".into(),
            prefetch_samples: 2048,
            block_bytes: BLOCK_BYTES_DEFAULT,
            bad_samples: "raise".into(),
            stall_after_ms: 10_000,
            watchdog_after_ms: 30_000,
            report_on_sigusr1: false,
            connections_max: 128,
            attempts_max: 10,
            request_limit_s: 600,
            outage_limit_s: 300,
            share_dir: None,
            hedge_percent: HedgeConfig::default().percent,
            pin: true,
            near: None,
            cycles: false,
            ring: "auto".into(),
            register: false,
            importance: "off".into(),
            importance_coverage_percent: 50,
            importance_replay: 3,
            importance_weights: true,
            decode: String::new(),
            decode_fit: "exact".into(),
            decode_flip: false,
            decode_threads: 0,
            decode_depth: 4,
            audit: None,
        }
    }
}

/// Settings given as arguments: they win over environment and file. Values are written as in TOML or as plain text.
pub type Overrides = Vec<(String, String)>;

impl Access {
    /// Reads the settings of access alone, as [`Config::load`] reads all: for what lists, gets and puts without a loader. Settings that are
    /// not of these are passed over.
    ///
    /// # Errors
    /// `Usage` naming the bad value.
    pub fn load(
        uri: &str,
        environment: impl IntoIterator<Item = (String, String)>,
        overrides: &[(String, String)],
    ) -> Result<Access> {
        let is_ours = |field: &str, text: &str| ACCESS.contains(&field) && !text.is_empty();
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        let is_read = |(name, text): &&(String, String)| {
            name.strip_prefix("FUELRAIL_").is_none_or(|field| is_ours(&field.to_ascii_lowercase(), text))
        };
        let read: Vec<_> = environment.iter().filter(is_read).cloned().collect();
        let given = overrides.iter().filter(|(field, text)| is_ours(field, text)).cloned();
        let given: Overrides = [("uri".to_owned(), uri.to_owned())].into_iter().chain(given).collect();
        let mut access = Config::from_table(toml::Table::new(), read, &given)?.access()?;
        access.credentials.environment = Environment::given(environment);
        Ok(access)
    }
}

impl Config {
    /// Reads the effective configuration. `environment` is what the process was started with
    /// ([`environment_variables`](crate::environment_variables)).
    ///
    /// # Errors
    /// `Usage` naming the unknown key, the bad value or the field out of range; `File` when `file` cannot be read.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        overrides: &Overrides,
    ) -> Result<Config> {
        let table = match file {
            None => toml::Table::new(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|e| Error::new(Kind::File, format!("cannot read {}: {e}", path.display())))?;
                text.parse().map_err(|e| usage(format!("{} is not TOML: {e}", path.display())))?
            }
        };
        Config::from_table(table, environment, overrides)
    }

    /// As [`Config::load`], from what the file says.
    pub(crate) fn from_table(
        mut table: toml::Table,
        environment: impl IntoIterator<Item = (String, String)>,
        overrides: &Overrides,
    ) -> Result<Config> {
        read_sizes(&mut table)?;
        let defaults = toml::Table::try_from(Config::default()).expect("settings can be printed");
        let environment: BTreeMap<String, String> = environment.into_iter().collect();
        for (name, text) in &environment {
            if let Some(field) = name.strip_prefix("FUELRAIL_") {
                set(&mut table, &defaults, &field.to_ascii_lowercase(), text)
                    .map_err(|e| usage(format!("environment variable {name}: {}", e.cause())))?;
            }
        }
        for (field, text) in overrides {
            set(&mut table, &defaults, field, text)?;
        }
        let mut config: Config = table.try_into().map_err(|e: toml::de::Error| usage(e.message().to_string()))?;
        config.take_vendors(&environment)?;
        config.validate()?;
        Ok(config)
    }

    /// Checks every field that can be checked without the listing.
    ///
    /// # Errors
    /// `Usage` naming the field and what to write.
    pub fn validate(&self) -> Result<()> {
        check(
            !self.uri.is_empty(),
            "no uri is given".into(),
            "write s3://BUCKET/PREFIX, or http://HOST/BUCKET/PREFIX",
        )?;
        parse_addressing(&self.addressing)?;
        check(self.batch_size > 0, "batch_size is 0".into(), "ask for at least one sample per batch")?;
        check(self.epochs > 0, "epochs is 0".into(), "ask for at least one epoch")?;
        check(
            self.world > 0 && self.rank < self.world,
            format!("rank {} of a world of {}", self.rank, self.world),
            "ranks count from 0 to world - 1",
        )?;
        check(self.shards <= SHARDS_MAX, format!("{} shards", self.shards), "one per core is enough, at most 256")?;
        check(
            (4096..=BLOCK_BYTES_MAX).contains(&self.block_bytes),
            format!("block_bytes is {}", self.block_bytes),
            "choose between 4096 and 1 GiB",
        )?;
        check(
            (1..=CONNECTIONS_PER_SHARD_MAX).contains(&self.connections_max),
            format!("connections_max is {}", self.connections_max),
            "choose between 1 and 256",
        )?;
        check(self.attempts_max > 0, "attempts_max is 0".into(), "allow at least one attempt")?;
        check(self.stall_after_ms >= 10, format!("stall_after_ms is {}", self.stall_after_ms), "wait at least 10 ms")?;
        self.hedge().validate()?;
        if let (Some(node), false) = (self.near, self.pin) {
            check(
                false,
                format!("near = {node} with pin = false"),
                "only shards bound to cores can be near a node: leave pin on",
            )?;
        }
        self.order.parse::<OrderName>()?;
        self.cache_policy.parse::<PolicyName>()?;
        self.spill_policy.parse::<SpillPolicy>()?;
        let dirs = self.spill_dirs.iter().map(|dir| ("spill_dirs", dir));
        let dirs = dirs.chain(self.share_dir.iter().map(|dir| ("share_dir", dir)));
        let mut dirs = dirs.chain(self.listing_dir.iter().map(|dir| ("listing_dir", dir)));
        if let Some((name, dir)) = dirs.find(|(_, dir)| !dir.is_absolute()) {
            let cause = format!("{name} has '{}', which is not an absolute path", dir.display());
            check(false, cause, "write where it is from the root: ranks may start elsewhere")?;
        }
        self.ring.parse::<RingChoice>()?;
        self.bad_samples()?;
        self.importance(0)?;
        self.validate_decoding()
    }

    fn validate_decoding(&self) -> Result<()> {
        check(
            self.decode_threads <= DECODE_THREADS_MAX,
            format!("decode_threads is {}", self.decode_threads),
            "one per core is enough, at most 512; 0 chooses",
        )?;
        check(
            (1..=DECODE_DEPTH_MAX).contains(&self.decode_depth),
            format!("decode_depth is {}", self.decode_depth),
            "choose between 1 and 256",
        )?;
        self.decode()?;
        Ok(())
    }

    /// Which requests are sent a second time.
    #[must_use]
    pub fn hedge(&self) -> HedgeConfig {
        HedgeConfig { percent: self.hedge_percent, ..HedgeConfig::default() }
    }

    /// How epochs are drawn, with so many samples in the cache; `None` where every sample comes once.
    ///
    /// # Errors
    /// `Usage` for an unknown name or a number out of range.
    pub fn importance(&self, cached_samples: u64) -> Result<Option<ImportanceConfig>> {
        let coverage = f64::from(self.importance_coverage_percent) / 100.0;
        let (replay, weights) = (self.importance_replay, self.importance_weights);
        let mode = if self.importance == "off" { Mode::Uniform } else { self.importance.parse()? };
        let config = ImportanceConfig { mode, coverage, replay, weights, cached_samples };
        config.validate()?;
        Ok((self.importance != "off").then_some(config))
    }

    /// What samples are decoded to; `None` where they are delivered as the bucket has them.
    ///
    /// # Errors
    /// `Usage` when `decode` or `decode_fit` is not understood.
    pub fn decode(&self) -> Result<Option<Decode>> {
        let fit = self.decode_fit.parse()?;
        if self.decode.is_empty() {
            return Ok(None);
        }
        Decode::parse(&self.decode, fit, self.decode_flip).map(Some)
    }

    /// What is not set, from the variables of the cloud's own tools.
    fn take_vendors(&mut self, environment: &BTreeMap<String, String>) -> Result<()> {
        let mut access = self.access()?;
        access.take_vendors(&self.uri, |name| environment.get(name).cloned());
        let Cloud { region, endpoint, .. } = access.cloud;
        (self.endpoint, self.ca_file) = (endpoint, access.tls.ca_file);
        self.region = (!region.is_empty()).then_some(region);
        Ok(())
    }

    /// How the server's certificate is judged.
    #[must_use]
    pub fn tls(&self) -> Tls {
        Tls { ca_file: self.ca_file.clone(), insecure: self.tls_insecure }
    }

    /// How the bucket is reached.
    ///
    /// # Errors
    /// `Usage` for an unknown way of addressing.
    pub fn access(&self) -> Result<Access> {
        let addressing = parse_addressing(&self.addressing)?;
        Ok(Access {
            tls: self.tls(),
            cloud: Cloud {
                region: self.region.clone().unwrap_or_default(),
                endpoint: self.endpoint.clone(),
                addressing,
            },
            credentials: Credentials {
                region: self.region.clone(),
                profile: self.profile.clone(),
                anonymous: self.anonymous,
                requester_pays: self.requester_pays,
                environment: self.environment.clone(),
                provider: self.credentials.clone(),
            },
        })
    }

    /// Where the listing is kept, if it is.
    pub(crate) fn listing_dir(&self) -> Option<ListingDir> {
        let path = self.listing_dir.clone()?;
        Some(ListingDir { path, max_age_s: self.listing_max_age_s })
    }

    /// The bucket and the prefixes that `uri` stands for, and how it is reached.
    pub(crate) fn source(&self) -> Result<(Access, Source)> {
        let access = self.access()?.settled(&self.uri)?;
        let source = access.source(&self.uri)?;
        Ok((access, source))
    }

    /// The policy for bad samples.
    ///
    /// # Errors
    /// `Usage` for an unknown name.
    pub fn bad_samples(&self) -> Result<fuelrail_flow::BadSamples> {
        use fuelrail_flow::BadSamples;
        match self.bad_samples.as_str() {
            "raise" => Ok(BadSamples::Raise),
            "skip" => Ok(BadSamples::Skip),
            "quarantine" => Ok(BadSamples::Quarantine),
            other => Err(usage(format!("bad_samples is '{other}'")).cure("use raise, skip or quarantine")),
        }
    }
}

fn check(good: bool, cause: String, cure: &str) -> Result<()> {
    if good { Ok(()) } else { Err(Error::new(Kind::Usage, cause).cure(cure)) }
}

fn usage(cause: String) -> Error {
    Error::new(Kind::Usage, cause)
}
