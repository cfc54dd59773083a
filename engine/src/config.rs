//! The configuration of a loader: plain structures, pure defaults, one function that reads them.
//!
//! Precedence: argument (builder or [`Overrides`]) > environment `FUELRAIL_<KEY>` > TOML file > default. Unknown keys
//! and unknown `FUELRAIL_*` variables are errors: a misspelt setting must not be silently ignored.
//!
//! A file has a setting in the table of its group, `[network]` with `stall_after = "10s"`, or by its key, `stall_after_ms = 10000`.

mod names;
mod settings;
#[cfg(test)]
mod tests;
mod text;

pub use settings::{Config, Decoding, Disk, Memory, Network, Order, Peers, Setting, Trust};
pub(crate) use settings::{setter, setters};
pub(crate) use text::Values;

use crate::access::Access;
use crate::credentials::Credentials;
use crate::decode::{Decode, PixelShape};
use crate::environment::Environment;
use crate::listing::ListingDir;
use crate::tls::Tls;
use core::fmt::{Debug, Display, Formatter};
use core::ops::RangeInclusive;
use fuelrail_base::limits::{
    BLOCK_BYTES_MAX, CONNECTIONS_PER_SHARD_MAX, DECODE_DEPTH_MAX, DECODE_THREADS_MAX, SHARDS_MAX,
};
use fuelrail_base::{ByteSize, Duration, Error, Kind, Result};
use fuelrail_io::{Topology, default_budget};
use fuelrail_plan::hedge::HedgeConfig;
use fuelrail_plan::importance::{ImportanceConfig, Mode};
use fuelrail_plan::order::OrderName;
use fuelrail_wire::uri::without_secrets;
use fuelrail_wire::{Cloud, Source};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use text::Given;

/// Settings given as arguments: they win over environment and file. Names are keys (`batch_size`), or those of a group's table
/// (`network.stall_after`); values are plain text.
pub type Overrides = Vec<(String, String)>;

/// The variable that names the file.
const CONFIG: &str = "FUELRAIL_CONFIG";

/// Settings of these keys say how a bucket is reached.
const ACCESS: [&str; 8] =
    ["ca_file", "tls_insecure", "region", "endpoint", "addressing", "profile", "anonymous", "requester_pays"];

impl Access {
    /// Reads the settings of access alone, as [`Config::load`] reads all: for what lists, gets and puts without a loader. Settings that are
    /// not of these are passed over, but for variables `FUELRAIL_…` that are no settings.
    ///
    /// # Errors
    /// `Usage` naming the unknown variable or the bad value; `File` when the file that `FUELRAIL_CONFIG` names cannot be read.
    pub fn load(
        uri: &str,
        environment: impl IntoIterator<Item = (String, String)>,
        overrides: &[(String, String)],
    ) -> Result<Access> {
        let is_ours = |name: &str, text: &str| {
            let (group, field) = name.split_once('.').unwrap_or(("", name));
            let setting = Config::setting(group, field);
            setting.is_some_and(|setting| ACCESS.contains(&setting.key)) && !text.is_empty()
        };
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        let mut names = environment.iter().map(|(name, _)| name).filter(|name| *name != CONFIG);
        names.try_for_each(|name| Config::of_variable(name).map(drop))?;
        let is_read = |(name, text): &&(String, String)| {
            name.strip_prefix("FUELRAIL_").is_none_or(|field| is_ours(&field.to_ascii_lowercase(), text))
        };
        let read: Vec<_> = environment.iter().filter(is_read).cloned().collect();
        let given = overrides.iter().filter(|(field, text)| is_ours(field, text)).cloned();
        let given: Overrides = [("uri".to_owned(), uri.to_owned())].into_iter().chain(given).collect();
        let named = environment.iter().find(|(name, path)| name == CONFIG && !path.is_empty());
        let mut values = named.map_or(Ok(Values::new()), |(_, path)| read_file(Path::new(path)))?;
        let is_access =
            |group: &str, name: &str| Config::setting(group, name).is_some_and(|found| ACCESS.contains(&found.key));
        values.retain(|name, given| match given {
            Some(Given::Group(fields)) => {
                fields.retain(|field, _| is_access(name, field));
                true
            }
            _ => is_access("", name),
        });
        let mut access = Config::from_values(values, read, &given)?.access();
        access.credentials.environment = Environment::given(environment);
        Ok(access)
    }
}

impl Config {
    /// Reads the effective configuration. `environment` is what the process was started with
    /// ([`environment_variables`](crate::environment_variables)). Without a `file` it is the one that `config` names among the overrides,
    /// else the variable `FUELRAIL_CONFIG`.
    ///
    /// # Errors
    /// `Usage` naming the unknown key, the bad value or the field out of range; `File` when the file cannot be read.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        overrides: &[(String, String)],
    ) -> Result<Config> {
        let (mut environment, mut overrides) = (Vec::from_iter(environment), overrides.to_vec());
        let named = [take_named(&mut overrides, "config"), take_named(&mut environment, CONFIG)];
        let named = named.into_iter().flatten().find(|path| !path.is_empty());
        let Some(path) = file.map(Path::to_owned).or(named.map(Into::into)) else {
            return Config::from_values(Values::new(), environment, &overrides);
        };
        let values = read_file(&path)?;
        Config::default().take(&values).map_err(|error| error.within(path.display()))?;
        Config::from_values(values, environment, &overrides)
    }

    /// As [`Config::load`], from what the file says.
    pub(crate) fn from_values(
        values: Values,
        environment: impl IntoIterator<Item = (String, String)>,
        overrides: &[(String, String)],
    ) -> Result<Config> {
        let mut config = Config::default();
        config.take(&values)?;
        let environment: BTreeMap<String, String> = environment.into_iter().collect();
        for (name, text) in &environment {
            if let Some(setting) = Config::of_variable(name)? {
                let taken = config.set("", setting.key, &Given::Text(text.clone()));
                taken.map_err(|e| e.within(format_args!("environment variable {name}")))?;
            }
        }
        for (name, text) in overrides {
            let (group, field) = name.split_once('.').unwrap_or(("", name));
            config.set(group, field, &Given::Text(text.clone()))?;
        }
        config.take_vendors(&environment);
        config.validate()?;
        Ok(config)
    }

    /// Takes all of a file, or of a result.
    fn take(&mut self, values: &Values) -> Result<()> {
        let mut taken = BTreeSet::new();
        let mut take = |group: &str, name: &str, given: &Given| {
            let setting = self.set(group, name, given)?;
            check(
                taken.insert(setting.key),
                format!("{} is set twice, under two names", setting.name),
                "keep one of them",
            )
        };
        for (name, given) in values {
            match given {
                Some(Given::Group(fields)) => {
                    let mut set = fields.iter().filter_map(|(field, given)| Some((field, given.as_ref()?)));
                    set.try_for_each(|(field, given)| take(name, field, given))?;
                }
                Some(given) => take("", name, given)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Refuses a list that has a setting twice, under one name or two: a caller that appends no overrides to its own has made a mistake.
    ///
    /// # Errors
    /// `Usage` naming the setting.
    #[doc(hidden)]
    pub fn check_once(overrides: &[(String, String)]) -> Result<()> {
        let mut taken = BTreeSet::new();
        overrides.iter().try_for_each(|(name, _)| {
            let (group, field) = name.split_once('.').unwrap_or(("", name));
            // What is no setting is refused where it is set.
            let key = Config::setting(group, field).map_or(name.as_str(), |setting| setting.key);
            check(taken.insert(key), format!("{key} is set twice"), "keep one of them")
        })
    }

    /// Sets one setting.
    fn set(&mut self, group: &str, name: &str, given: &Given) -> Result<&'static Setting> {
        let setting = Config::known(group, name, str::to_owned)?;
        (setting.set)(self, given).map_err(|error| error.within(setting.name))?;
        Ok(setting)
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
        check(self.batch_size > 0, "batch_size is 0".into(), "ask for at least one sample per batch")?;
        check(self.epochs > 0, "epochs is 0".into(), "ask for at least one epoch")?;
        check(
            self.world > 0 && self.rank < self.world,
            format!("rank {} of a world of {}", self.rank, self.world),
            "ranks count from 0 to world - 1",
        )?;
        let (Network { connections_max, attempts_max, stall_after, .. }, Decoding { threads, depth, .. }) =
            (&self.network, &self.decode);
        let shards = self.shards.unwrap_or(1);
        check((1..=SHARDS_MAX).contains(&shards), format!("{shards} shards"), "one per core is enough, at most 256")?;
        between("block_size", self.memory.block_size.0, &(4096..=BLOCK_BYTES_MAX))?;
        between("connections_max", *connections_max, &(1..=CONNECTIONS_PER_SHARD_MAX))?;
        check(*attempts_max > 0, "attempts_max is 0".into(), "allow at least one attempt")?;
        let too_short = *stall_after < Duration::from_millis(10);
        check(!too_short, format!("stall_after is {stall_after:?}"), "wait at least 10 ms")?;
        let no_room = self.disk.limit == Some(ByteSize(0));
        check(!no_room, "spill_limit is 0".into(), "leave it out for no limit, or spill_dirs out for no disk")?;
        self.hedge().validate()?;
        check(
            self.near.is_none() || self.pin,
            format!("near = {} with pin = false", self.near.unwrap_or_default()),
            "only shards bound to cores can be near a node: leave pin on",
        )?;
        let dirs = self.disk.dirs.iter().map(|dir| ("spill_dirs", dir));
        let dirs = dirs.chain(self.network.share_dir.iter().map(|dir| ("share_dir", dir)));
        let mut dirs = dirs.chain(self.network.listing_dir.iter().map(|dir| ("listing_dir", dir)));
        if let Some((name, dir)) = dirs.find(|(_, dir)| !dir.is_absolute()) {
            let cause = format!("{name} has '{}', which is not an absolute path", dir.display());
            check(false, cause, "write where it is from the root: ranks may start elsewhere")?;
        }
        self.check_format()?;
        check(
            !self.network.shared_read || self.network.share_dir.is_some(),
            "shared_read without a share_dir".into(),
            "name the directory that the process that reads is given: fuelrail share --share-dir",
        )?;
        check(
            !self.network.shared_read || self.order.importance.is_none() && self.peers.addresses.is_empty(),
            "shared_read with importance or peers".into(),
            "jobs that draw epochs by their own losses read alone; peers are a setting of the process that reads",
        )?;
        self.importance(0)?;
        self.check_mixture()?;
        between("decode_threads", threads.unwrap_or(1), &(1..=DECODE_THREADS_MAX))?;
        between("decode_depth", *depth, &(1..=DECODE_DEPTH_MAX))?;
        let Some(decode) = self.decoded() else { return Ok(()) };
        let decodes = cfg!(feature = "decode") || self.decode.function.is_some();
        check(decodes, "this build does not decode".into(), "build it with the feature `decode`")?;
        decode.validate()
    }

    /// Refuses settings of samples and labels that the chosen format ignores: samples would be others than the program was written for. Settings
    /// beside a switch that is off (`decode`, `mixture`, `importance`, `spill_dirs`) may stay.
    fn check_format(&self) -> Result<()> {
        let format = self.format.map_or("none", |format| format.word());
        check(
            self.fields.is_empty() || format == "parquet" || format != "none" && self.decode.shape.is_some(),
            format!("fields is set, and format is {format}"),
            "leave it out: without decode batches have all fields of a record, and without format samples have none",
        )?;
        let of_tokens = "set format = tokens, or leave it out";
        let (has_fields, is_tokens) = (!["none", "tokens"].contains(&format), format == "tokens");
        let settings = [
            ("side_cars", self.side_cars.is_empty() || format == "objects", "set format = objects, or leave it out"),
            (
                "record_file",
                self.record_file.is_none() || format == "manifest",
                "set format = manifest, or leave it out",
            ),
            ("label_field", self.label_field.is_none() || has_fields, "set the format of the records, or leave it out"),
            (
                "classes",
                self.classes.is_empty() || format == "none",
                "leave it out: labels of records are in label_field",
            ),
            ("token_window", self.token_window.is_none() || is_tokens, of_tokens),
            ("token_stride", self.token_stride.is_none() || is_tokens, of_tokens),
            ("token_bytes", self.token_bytes == Config::default().token_bytes || is_tokens, of_tokens),
            ("token_document_end", self.token_document_end.is_none() || is_tokens, of_tokens),
        ];
        for (name, is_good, hint) in settings {
            check(is_good, format!("{name} is set, and format is {format}"), hint)?;
        }
        check(
            self.token_stride.is_none() || self.token_window.is_some(),
            "token_stride without a token_window".into(),
            "set how many tokens make a sample as token_window",
        )
    }

    /// The same without what is said about records: samples are objects, or ranges of them.
    #[doc(hidden)]
    #[must_use]
    pub fn without_format(self) -> Config {
        let Config { format, record_file, side_cars, fields, label_field, classes, .. } = Config::default();
        let Config { token_window, token_stride, token_bytes, token_document_end, .. } = Config::default();
        let plain = Config { format, record_file, side_cars, fields, label_field, classes, ..self };
        Config { token_window, token_stride, token_bytes, token_document_end, ..plain }
    }

    /// A mixture has an order of its own.
    fn check_mixture(&self) -> Result<()> {
        let Order { mixture: Some(_), name, importance, shuffle, .. } = &self.order else { return Ok(()) };
        check(
            *name == OrderName::Global,
            format!("a mixture with order = {name}"),
            "a mixture has an order of its own: leave order at global",
        )?;
        check(
            importance.is_none(),
            "a mixture with importance".into(),
            "one of the two says how often a sample comes: leave importance off, or mixture out",
        )?;
        check(
            *shuffle,
            "a mixture with shuffle = false".into(),
            "a mixture is in random order: leave shuffle on, or read each data set by itself",
        )
    }

    /// Which requests are sent a second time.
    pub(crate) fn hedge(&self) -> HedgeConfig {
        HedgeConfig { percent: self.network.hedge_percent, ..HedgeConfig::default() }
    }

    /// How epochs are drawn, with so many samples in the cache; `None` where every sample comes once.
    pub(crate) fn importance(&self, cached_samples: u64) -> Result<Option<ImportanceConfig>> {
        let Order { importance, coverage_percent, replay, weights, .. } = self.order;
        let coverage = f64::from(coverage_percent) / 100.0;
        let mode = importance.unwrap_or(Mode::Uniform);
        let config = ImportanceConfig { mode, coverage, replay, weights, cached_samples };
        config.validate()?;
        Ok(importance.map(|_| config))
    }

    /// Of Parquet, the columns that are read; of other formats all fields are.
    pub(crate) fn columns(&self) -> &[String] {
        if self.format.is_some_and(|format| format.word() == "parquet") { &self.fields } else { &[] }
    }

    /// What samples are decoded to; `None` where they are delivered as the bucket has them.
    #[must_use]
    pub fn decoded(&self) -> Option<Decode> {
        let Decoding { shape, fit, flip, dtype, layout, mean, std, .. } = self.decode;
        let PixelShape { height, width, channels } = shape?;
        Some(Decode { height, width, channels, fit, flip, dtype, layout, mean, std })
    }

    /// What is not set, from the variables of the cloud's own tools.
    fn take_vendors(&mut self, environment: &BTreeMap<String, String>) {
        let mut access = self.access();
        access.take_vendors(&self.uri, |name| environment.get(name).cloned());
        let set = |text: String| (!text.is_empty()).then_some(text);
        let Cloud { region, endpoint, .. } = access.cloud;
        (self.network.endpoint, self.trust.ca_file) = (set(endpoint), access.tls.ca_file);
        self.network.region = set(region);
        let ranks = environment.get("LOCAL_WORLD_SIZE").and_then(|text| text.parse().ok());
        self.local_world = self.local_world.or(ranks);
    }

    /// One rank's part of the machine's cores.
    pub(crate) fn topology(&self) -> Topology {
        Topology::here().shared(self.local_world.unwrap_or(1).max(1) as usize)
    }

    /// The memory limit: as set, or this rank's part of the default, with where that is from.
    #[doc(hidden)]
    #[must_use]
    pub fn memory_limit(&self) -> (ByteSize, Option<String>) {
        if let Some(limit) = self.memory.limit {
            return (limit, None);
        }
        let (budget, ranks) = (default_budget(), u64::from(self.local_world.unwrap_or(1).max(1)));
        let shared = if ranks > 1 { format!(", shared by {ranks} ranks") } else { String::new() };
        (ByteSize(budget.bytes / ranks), Some(format!("{}{shared}", budget.from)))
    }

    /// How the bucket is reached.
    #[must_use]
    pub fn access(&self) -> Access {
        let Trust { ca_file, tls_insecure, profile, anonymous, requester_pays, environment, credentials } =
            self.trust.clone();
        let Network { region, endpoint, addressing, .. } = &self.network;
        Access {
            tls: Tls { ca_file, insecure: tls_insecure },
            cloud: Cloud {
                region: region.clone().unwrap_or_default(),
                endpoint: endpoint.clone().unwrap_or_default(),
                addressing: *addressing,
            },
            credentials: Credentials {
                region: region.clone(),
                profile,
                anonymous,
                requester_pays,
                environment,
                provider: credentials,
            },
        }
    }

    /// Where the listing is kept, if it is.
    pub(crate) fn listing_dir(&self) -> Option<ListingDir> {
        let path = self.network.listing_dir.clone()?;
        Some(ListingDir { path, max_age: self.network.listing_max_age })
    }

    /// The bucket and the prefixes that `uri` stands for, and how it is reached.
    pub(crate) fn source(&self) -> Result<(Access, Source)> {
        let access = self.access().settled(&self.uri)?;
        let source = access.source(&self.uri)?;
        Ok((access, source))
    }
}

/// All that is set, by key. Addresses may be wrong ones: of them nothing that may be secret.
impl Debug for Config {
    fn fmt(&self, f: &mut Formatter<'_>) -> core::fmt::Result {
        let set = Config::SETTINGS.iter().filter_map(|setting| match (setting.get)(self) {
            Json::Null => None,
            Json::String(text) => Some((setting.key, without_secrets(&text))),
            other => Some((setting.key, other.to_string())),
        });
        f.debug_map().entries(set).finish()
    }
}

/// All that is set, by key.
impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for setting in Config::SETTINGS {
            let value = (setting.get)(self);
            if !value.is_null() {
                map.serialize_entry(setting.key, &value)?;
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        let mut config = Config::default();
        config.take(&Values::deserialize(deserializer)?).map_err(serde::de::Error::custom)?;
        Ok(config)
    }
}

#[cfg(feature = "toml")]
fn read_file(path: &Path) -> Result<Values> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::from_io(Kind::File, format_args!("cannot read {}", path.display()), e))?;
    toml::from_str(&text).map_err(|e| {
        let cause = format!("{} is not TOML: {}", path.display(), e.to_string().trim_end().replace('\n', " "));
        Error::new(Kind::Usage, cause).with_source(e).with_hint("write settings as name = value, a line each")
    })
}

/// Takes what stands under `name`, the last of them.
fn take_named(pairs: &mut Overrides, name: &str) -> Option<String> {
    pairs.extract_if(.., |(key, _)| key == name).last().map(|(_, value)| value)
}

#[cfg(not(feature = "toml"))]
fn read_file(path: &Path) -> Result<Values> {
    let cause = format!("this build does not read {}", path.display());
    Err(Error::new(Kind::Usage, cause).with_hint("build it with the feature `toml`, or set variables"))
}

fn check(good: bool, cause: String, hint: &str) -> Result<()> {
    if good { Ok(()) } else { Err(Error::new(Kind::Usage, cause).with_hint(hint)) }
}

fn between<N: PartialOrd + Display + Copy>(name: &str, value: N, range: &RangeInclusive<N>) -> Result<()> {
    let hint = format!("choose between {} and {}", range.start(), range.end());
    check(range.contains(&value), format!("{name} is {value}"), &hint)
}
