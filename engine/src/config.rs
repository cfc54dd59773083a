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
use core::fmt::Display;
use core::ops::RangeInclusive;
use fuelrail_base::limits::{
    BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, CONNECTIONS_PER_SHARD_MAX, DECODE_DEPTH_MAX, DECODE_THREADS_MAX, SHARDS_MAX,
};
use fuelrail_base::{Error, Kind, Result};
use fuelrail_flow::BadSamples;
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

/// The settings with their types and defaults.
macro_rules! settings {
    ($($(#[$about:meta])* $name:ident: $kind:ty = $default:expr,)*) => {
        /// Every setting of a loader. The effective one is printed into every result.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            $($(#[$about])* pub $name: $kind,)*
        }

        impl Default for Config {
            fn default() -> Config {
                Config { $($name: $default,)* }
            }
        }
    };
}

settings! {
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://ACCOUNT/CONTAINER/PREFIX`, `http://HOST:PORT/BUCKET/PREFIX`, or `https`.
    /// Braces, `{train,val}` and `{000..127}`, stand for several prefixes.
    uri: String = String::new(),
    /// The region of an `s3://` bucket, and the one that requests are signed for, if they are; without one it is `AWS_REGION`, `AWS_DEFAULT_REGION` or
    /// that of the profile, else `us-east-1`.
    region: Option<String> = None,
    /// The server that `s3://`, `gs://` and `az://` mean, `http[s]://HOST[:PORT]`; empty takes `AWS_ENDPOINT_URL_S3`,
    /// `AWS_ENDPOINT_URL` or `STORAGE_EMULATOR_HOST`, else the cloud's own.
    endpoint: String = String::new(),
    /// Where requests name the bucket of an `s3://` or `gs://` URI: `auto`, `path` or `virtual`, in front of the host.
    addressing: String = "auto".into(),
    /// A manifest that names the objects, for servers that cannot list.
    manifest: Option<PathBuf> = None,
    /// A local directory in which the bucket's listing is kept: it is used again by later runs while the bucket seems to be as it
    /// was, and one that is interrupted goes on. Without one the bucket is listed at every start.
    listing_dir: Option<PathBuf> = None,
    /// A listing older than this is not used again, s; 0 uses none again.
    listing_max_age_s: u64 = 86_400,
    /// Under https, the authorities to believe instead of the system's, in PEM.
    ca_file: Option<PathBuf> = None,
    /// Under https, disable certificate verification (insecure; every use is a warning).
    tls_insecure: bool = false,
    /// The profile of the AWS files (`~/.aws`) whose keys are used, before those of the environment.
    profile: Option<String> = None,
    /// `true` signs nothing; `false` signs also what goes to a plain `http://` or `https://` URI, which by itself is signed
    /// only with `profile` set, or where `AWS_ENDPOINT_URL` names the server.
    anonymous: Option<bool> = None,
    /// Pay for the requests and the bytes, where the bucket's owner wants that of who asks.
    requester_pays: bool = false,
    /// Where the variables of the clouds' tools are read.
    #[serde(skip)]
    environment: Environment = Environment::default(),
    /// What hands out credentials in the place of what the clouds' tools would use.
    #[serde(skip)]
    credentials: Option<SharedProvider> = None,
    /// Samples per batch and rank.
    batch_size: u32 = 64,
    /// Epochs of the whole run, counted from epoch 0 also when resuming.
    epochs: u64 = 1,
    /// Seed of the order.
    seed: u64 = 0,
    /// Shuffled epochs, or key order.
    shuffle: bool = true,
    /// Which shuffle: `global`, or `sticky`, under which a sample comes back to the rank that had it, whose cache may have it.
    order: String = OrderName::default().word().into(),
    /// Drop the last step of an epoch when it is not full.
    drop_last: bool = false,
    /// This rank.
    rank: u32 = 0,
    /// How many ranks share each epoch.
    world: u32 = 1,
    /// Shards (threads); 0 chooses one per core that cpuset and quota allow, as far as memory feeds them; where samples are
    /// decoded, one for eight cores.
    shards: u16 = 0,
    /// All buffers together, bytes; 0 takes half of the cgroup's limit or of the machine.
    memory_limit_bytes: u64 = 0,
    /// RAM cache of blocks inside that, payload bytes; 0 keeps nothing.
    cache_limit_bytes: u64 = 0,
    /// What the cache keeps: `next-use`, `pinned`, `lru`, `fifo`, `dlcache` or `importance`.
    cache_policy: String = "next-use".into(),
    /// Directories on local disks that blocks go to which RAM has no room for; none keeps nothing on disk. Each belongs to root
    /// or to this user, and gets a directory `fuelrail-UID` that is this user's alone. Give each to one bucket or many, one
    /// loader or many of this machine: what is in them is found again by any later run.
    spill_dirs: Vec<PathBuf> = Vec::new(),
    /// Disk for blocks in all directories together, whichever loader and process of this machine wrote them, bytes; 0 takes
    /// what `spill_floor_bytes` leaves.
    spill_limit_bytes: u64 = 0,
    /// Room to leave free on every directory's file system, bytes; 0 leaves a twentieth of it.
    spill_floor_bytes: u64 = 0,
    /// What the disk keeps: `next-use`, `lru` or `fifo`.
    spill_policy: String = "next-use".into(),
    /// How far to look ahead: `lookahead`, or DELI's `full-fetch` and `50/50` over `prefetch_samples`.
    prefetch: String = "lookahead".into(),
    /// For DELI's strategies: their cache size, samples.
    prefetch_samples: u64 = 2048,
    /// Longest span fetched and cached as one, bytes.
    block_bytes: u64 = BLOCK_BYTES_DEFAULT,
    /// What happens when a sample cannot be had: `raise`, `skip` or `quarantine`.
    bad_samples: String = "raise".into(),
    /// Silence on a busy connection after which it is given up, ms; and an answer of which less than 1 KiB a second comes for as long.
    /// What has come is kept, and the rest asked for elsewhere.
    stall_after_ms: u64 = 10_000,
    /// No progress for this long is reported with every stage's state, ms; 0 never.
    watchdog_after_ms: u64 = 30_000,
    /// Answer SIGUSR1 with the same report. The signal is the program's own otherwise: schedulers use it for pre-emption.
    report_on_sigusr1: bool = false,
    /// Most connections per shard.
    connections_max: usize = 128,
    /// Most attempts per block without progress.
    attempts_max: u32 = 10,
    /// How long one block may fail in all its attempts, those with progress too, while others are served, s; 0 leaves it to the attempts.
    request_limit_s: u64 = 600,
    /// How long a bucket that has served before, and now serves nothing at all, is waited for, s; 0 leaves it to the attempts.
    outage_limit_s: u64 = 300,
    /// A local directory in which the loaders of this machine write down the rate of requests that a server asks for, so that they
    /// share it evenly; without one each finds a rate of its own.
    share_dir: Option<PathBuf> = None,
    /// Requests sent a second time over another connection because the first takes far longer than usual, in per cent of all requests
    /// at most; 0 sends none. The first answer that is whole is taken.
    hedge_percent: u32 = HedgeConfig::default().percent,
    /// Bind each shard to a core and its memory to that core's NUMA node: one of every physical core first, nodes in turn.
    pin: bool = true,
    /// The NUMA node, such as a GPU's, on whose cores shards are seated first; the nodes take turns without it.
    near: Option<u16> = None,
    /// The interface to the kernel: `auto` (`uring`, or `poll` where that is refused), `uring`, `poll`, and where the build
    /// has them `tokio-uring` and `glommio`.
    ring: String = "auto".into(),
    /// Register the arena with the ring: cheaper receives, but all of it becomes resident at start.
    register: bool = false,
    /// Which samples an epoch takes more than once, and which not at all: `off` and `uniform` take every sample once, `on` draws
    /// by the losses the trainer reports, `shade` and `shade-corrected` as SHADE does, to compare with.
    importance: String = "off".into(),
    /// Under `on`: the least rate of a sample, per cent of once an epoch; at least that share of all samples is in every epoch.
    importance_coverage_percent: u32 = 50,
    /// Under `on`, the most often a sample comes in an epoch; under SHADE's modes, how often what is cached is replayed.
    importance_replay: u32 = 3,
    /// Under `on`: deliver weights that make the mean over an epoch unbiased.
    importance_weights: bool = true,
    /// What PNG and JPEG objects are decoded to, `HEIGHTxWIDTHxCHANNELS`, such as `224x224x3`; empty delivers their bytes.
    decode: String = String::new(),
    /// How a picture of another size comes to that: `exact` (it is a bad sample), `center-crop` or `random-crop`.
    decode_fit: String = "exact".into(),
    /// Mirror every other decoded sample left to right, by seed, epoch and sample.
    decode_flip: bool = false,
    /// Threads that decode; 0 takes the cores that the shards leave, at least one.
    decode_threads: usize = 0,
    /// Batches decoded ahead, as far as memory has room for them.
    decode_depth: usize = 4,
    /// Where to log what was delivered, for the exactly-once proof.
    audit: Option<PathBuf> = None,
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
                    .map_err(|e| e.within(format_args!("environment variable {name}")))?;
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
        between("block_bytes", self.block_bytes, &(4096..=BLOCK_BYTES_MAX))?;
        between("connections_max", self.connections_max, &(1..=CONNECTIONS_PER_SHARD_MAX))?;
        check(self.attempts_max > 0, "attempts_max is 0".into(), "allow at least one attempt")?;
        check(self.stall_after_ms >= 10, format!("stall_after_ms is {}", self.stall_after_ms), "wait at least 10 ms")?;
        self.hedge().validate()?;
        check(
            self.near.is_none() || self.pin,
            format!("near = {} with pin = false", self.near.unwrap_or_default()),
            "only shards bound to cores can be near a node: leave pin on",
        )?;
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
        check(
            self.decode_threads <= DECODE_THREADS_MAX,
            format!("decode_threads is {}", self.decode_threads),
            "one per core is enough, at most 512; 0 chooses",
        )?;
        between("decode_depth", self.decode_depth, &(1..=DECODE_DEPTH_MAX))?;
        self.decode().map(drop)
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
    pub fn bad_samples(&self) -> Result<BadSamples> {
        self.bad_samples.parse()
    }
}

fn check(good: bool, cause: String, cure: &str) -> Result<()> {
    if good { Ok(()) } else { Err(Error::new(Kind::Usage, cause).cure(cure)) }
}

fn between<N: PartialOrd + Display + Copy>(name: &str, value: N, range: &RangeInclusive<N>) -> Result<()> {
    let cure = format!("choose between {} and {}", range.start(), range.end());
    check(range.contains(&value), format!("{name} is {value}"), &cure)
}

fn usage(cause: String) -> Error {
    Error::new(Kind::Usage, cause)
}
