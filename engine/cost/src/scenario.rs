//! A scenario: data set, model, bucket, machines with their prices, and the clusters that are compared.
//!
//! Every price is a fact with its unit, date, region and source; this crate holds none of its own. Numbers are checked as they are read, so
//! that the reader of the file names the line.

use fuelrail_base::{Error, Kind, Result};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// All that a plan is made from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is about.
    pub name: String,
    /// The currency of all prices, as their units begin.
    pub currency: String,
    /// Hours until it must be done.
    #[serde(default, deserialize_with = "optional_positive")]
    pub deadline_hours: Option<f64>,
    /// Money that may be spent.
    #[serde(default, deserialize_with = "optional_positive")]
    pub budget: Option<f64>,
    /// Hour of the day at which it starts, for lives that depend on it; without, any hour.
    #[serde(default, deserialize_with = "optional_hour")]
    pub start_hour: Option<f64>,
    /// The data set.
    pub data: Data,
    /// The model.
    pub model: Model,
    /// Where the data set is.
    pub bucket: Bucket,
    /// Machine types.
    #[serde(rename = "machine")]
    pub machines: Vec<Machine>,
    /// What is compared; the first is what the others are held against.
    #[serde(rename = "cluster")]
    pub clusters: Vec<Cluster>,
}

/// The data set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Samples.
    #[serde(deserialize_with = "positive")]
    pub samples: f64,
    /// Bytes a sample.
    #[serde(deserialize_with = "positive")]
    pub sample_bytes: f64,
    /// Times each sample is used.
    #[serde(deserialize_with = "positive")]
    pub epochs: f64,
}

/// The model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Samples a step of one worker.
    #[serde(deserialize_with = "positive")]
    pub batch: f64,
    /// Seconds a step of one worker.
    #[serde(deserialize_with = "positive")]
    pub step_s: f64,
    /// Where the step time lies in nine of ten cases, as `fuelrail plan fit` says it.
    #[serde(default)]
    pub step_s_interval: Option<[f64; 2]>,
    /// Seconds to save a checkpoint, or to restore one.
    #[serde(deserialize_with = "positive")]
    pub checkpoint_s: f64,
    /// Core seconds to decode a gigabyte.
    #[serde(deserialize_with = "not_negative")]
    pub core_s_per_gb: f64,
}

/// The bucket as one worker sees it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// From request to first byte.
    #[serde(deserialize_with = "positive")]
    pub latency_s: f64,
    /// Requests at a time, of one worker.
    #[serde(deserialize_with = "positive")]
    pub connections: f64,
    /// Bytes a request.
    #[serde(deserialize_with = "positive")]
    pub block_bytes: f64,
    /// Gigabytes a second, of one worker.
    #[serde(deserialize_with = "positive")]
    pub gb_per_s: f64,
    /// Requests a second, of all workers.
    #[serde(deserialize_with = "positive")]
    pub requests_per_s: f64,
    /// To keep the data set.
    #[serde(deserialize_with = "per_gb_month")]
    pub storage: Fact,
    /// Reads.
    #[serde(deserialize_with = "per_million_requests")]
    pub requests: Fact,
    /// Bytes to the machines.
    #[serde(deserialize_with = "per_gb")]
    pub egress: Fact,
}

/// A kind of machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Its price on demand.
    #[serde(deserialize_with = "per_hour")]
    pub on_demand: Fact,
    /// Its price as a spot machine, where there is one.
    #[serde(default, deserialize_with = "optional_per_hour")]
    pub spot: Option<Fact>,
    /// RAM for samples.
    #[serde(deserialize_with = "not_negative")]
    pub ram_gb: f64,
    /// Disk for samples.
    #[serde(default, deserialize_with = "not_negative")]
    pub disk_gb: f64,
    /// The disk's rate.
    #[serde(default, deserialize_with = "not_negative")]
    pub disk_gb_per_s: f64,
    /// Cores.
    #[serde(deserialize_with = "positive")]
    pub cores: f64,
    /// Until a new machine works.
    #[serde(deserialize_with = "positive")]
    pub start_s: f64,
    /// Until a lost worker is replaced by a new machine.
    #[serde(deserialize_with = "positive")]
    pub replacement_s: f64,
    /// Until a lost worker is replaced by a machine that runs already.
    #[serde(default, deserialize_with = "optional_positive")]
    pub warm_replacement_s: Option<f64>,
    /// Share of spot machines that are taken away within 24 hours: a constant hazard.
    #[serde(default, deserialize_with = "optional_share")]
    pub revoked_within_24h: Option<f64>,
    /// Share of spot machines taken away up to an age, as pairs of hours and share; both rise. It replaces the constant hazard.
    #[serde(default)]
    pub revoked_by_age: Vec<[f64; 2]>,
    /// Instead of both a CSV file of lives, as `fuelrail plan lives` reads: those of this name in the region of the spot price.
    #[serde(default)]
    pub lives: Option<String>,
    /// From such lives: how many times as often as in the mean machines are taken away at each hour of the day.
    #[serde(skip)]
    pub hourly: Option<[f64; 24]>,
}

/// Machines that train together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// The kind of its workers.
    pub machine: String,
    /// How many.
    pub workers: u32,
    /// Whether the workers are spot machines.
    #[serde(default)]
    pub spot: bool,
    /// Machines that run and wait for a worker to be lost, which they replace warm; paid as workers are.
    #[serde(default)]
    pub standby: u32,
    /// Parameter servers, always on demand.
    #[serde(default)]
    pub servers: u32,
    /// The kind of the parameter servers.
    #[serde(default)]
    pub server_machine: Option<String>,
    /// Whether workers wait for each other at every step: only then is the accuracy that of one worker.
    pub synchronous: bool,
    /// Speed over that of one worker.
    #[serde(deserialize_with = "positive")]
    pub speedup: f64,
    /// Final accuracy, where it was measured.
    #[serde(default, deserialize_with = "optional_share")]
    pub accuracy: Option<f64>,
}

/// A price.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// The number.
    #[serde(deserialize_with = "not_negative")]
    pub value: f64,
    /// Of what: a currency, a slash, and what it buys.
    pub unit: String,
    /// The day it was read, `YYYY-MM-DD`.
    #[serde(deserialize_with = "date")]
    pub date: String,
    /// Where it holds.
    pub region: String,
    /// Where it was read.
    #[serde(deserialize_with = "not_empty")]
    pub source: String,
}

fn checked<'de, D: Deserializer<'de>>(from: D, holds: fn(f64) -> bool, wanted: &str) -> Result<f64, D::Error> {
    let number = f64::deserialize(from)?;
    if number.is_finite() && holds(number) {
        Ok(number)
    } else {
        Err(D::Error::custom(format!("{number} is not {wanted}")))
    }
}

fn positive<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    checked(from, |number| number > 0.0, "above 0")
}

fn not_negative<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    checked(from, |number| number >= 0.0, "0 or more")
}

fn optional_positive<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    positive(from).map(Some)
}

fn optional_share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    checked(from, |number| (0.0..1.0).contains(&number), "a share from 0 to below 1").map(Some)
}

fn optional_hour<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    checked(from, |number| (0.0..24.0).contains(&number), "an hour from 0 to below 24").map(Some)
}

fn not_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    if text.trim().is_empty() { Err(D::Error::custom("a price needs its source")) } else { Ok(text) }
}

fn date<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    let digits = |place: core::ops::Range<usize>| {
        text.get(place).filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?.parse::<u32>().ok()
    };
    let is_right =
        matches!((text.len(), digits(0..4), digits(5..7), digits(8..10)), (10, Some(_), Some(1..=12), Some(1..=31)))
            && text.bytes().filter(|byte| *byte == b'-').count() == 2;
    if is_right { Ok(text) } else { Err(D::Error::custom(format!("'{text}' is not a date, YYYY-MM-DD"))) }
}

/// Readers of prices, each of one thing bought.
macro_rules! prices {
    ($($name:ident = $bought:literal),+) => {
        $(fn $name<'de, D: Deserializer<'de>>(from: D) -> Result<Fact, D::Error> {
            let fact = Fact::deserialize(from)?;
            match fact.unit.split_once('/') {
                Some((_, $bought)) => Ok(fact),
                _ => Err(D::Error::custom(format!("the unit is '{}', not CURRENCY/{}", fact.unit, $bought))),
            }
        })+
    };
}
prices!(per_hour = "hour", per_gb_month = "GB-month", per_million_requests = "million requests", per_gb = "GB");

fn optional_per_hour<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Fact>, D::Error> {
    per_hour(from).map(Some)
}

/// Refuses values that contradict each other. The error's `object` is the text to look for in the file.
fn wrong<T>(text: &str, cause: String, cure: &str) -> Result<T> {
    Err(Error::new(Kind::Usage, cause).with_hint(cure).with_object(text))
}

impl Scenario {
    /// Checks what no single number shows.
    ///
    /// # Errors
    /// `Usage`; its object is a text of the file near the fault.
    pub fn validate(&self) -> Result<()> {
        if self.clusters.is_empty() || self.machines.is_empty() {
            return wrong(&self.name, "there is nothing to compare".to_owned(), "add a [[machine]] and a [[cluster]]");
        }
        if let Some([low, high]) = self.model.step_s_interval
            && !(0.0 < low && low <= self.model.step_s && self.model.step_s <= high && high.is_finite())
        {
            let cause = format!("step_s {} is not within its interval {low} to {high}", self.model.step_s);
            return wrong("step_s_interval", cause, "give the interval's lower end, then its upper one");
        }
        for fact in self.facts() {
            if fact.unit.split('/').next() != Some(&self.currency) {
                let cause = format!("a price is in {}, the scenario in {}", fact.unit, self.currency);
                return wrong(&fact.unit, cause, "convert it, and say so in its source");
            }
        }
        self.machines.iter().try_for_each(check_ages)?;
        for cluster in &self.clusters {
            self.check(cluster)?;
        }
        Ok(())
    }

    fn check(&self, cluster: &Cluster) -> Result<()> {
        let Cluster { name, workers, servers, .. } = cluster;
        if !(1..=1000).contains(workers) || *servers.max(&cluster.standby) > 1000 {
            return wrong(name, format!("it has {workers} workers and {servers} servers"), "give 1 to 1000 workers");
        }
        if *workers == 1 && !cluster.synchronous {
            return wrong(name, "one worker cannot be asynchronous".to_owned(), "set synchronous = true");
        }
        let machine = self.machine(cluster, &cluster.machine)?;
        if cluster.spot && machine.spot.is_none() {
            let cause = format!("machine '{}' has no spot price", machine.name);
            return wrong(
                name,
                cause,
                "add spot = { value, unit, date, region, source } to the machine, or set spot = false",
            );
        }
        if cluster.spot && machine.revoked_within_24h.is_none() && machine.revoked_by_age.is_empty() {
            let cause = format!("machine '{}' does not say how often it is revoked", machine.name);
            return wrong(name, cause, "add revoked_within_24h, revoked_by_age or lives to the machine");
        }
        if cluster.standby > 0 && machine.warm_replacement_s.is_none() {
            let cause = format!("machine '{}' does not say how long a warm replacement takes", machine.name);
            return wrong(name, cause, "add warm_replacement_s to the machine, or set standby = 0");
        }
        match (servers, &cluster.server_machine) {
            (0, _) => Ok(()),
            (_, Some(server)) => self.machine(cluster, server).map(|_| ()),
            (_, None) => wrong(name, "it has servers of no kind".to_owned(), "name one with server_machine"),
        }
    }

    pub(crate) fn machine(&self, cluster: &Cluster, name: &str) -> Result<&Machine> {
        match self.machines.iter().find(|machine| machine.name == name) {
            Some(machine) => Ok(machine),
            None => wrong(&cluster.name, format!("there is no machine '{name}'"), "name one of the [[machine]] tables"),
        }
    }

    /// All prices.
    pub fn facts(&self) -> impl Iterator<Item = &Fact> {
        let of_machines =
            self.machines.iter().flat_map(|machine| [Some(&machine.on_demand), machine.spot.as_ref()]).flatten();
        [&self.bucket.storage, &self.bucket.requests, &self.bucket.egress].into_iter().chain(of_machines)
    }
}

fn check_ages(machine: &Machine) -> Result<()> {
    let mut before = [0.0, 0.0];
    for age in &machine.revoked_by_age {
        if !(age[0] > before[0] && age[0].is_finite() && age[1] >= before[1] && age[1] < 1.0) {
            let cause = format!("revoked_by_age has {age:?} after {before:?}");
            return wrong(&machine.name, cause, "give pairs of hours and share, both rising, the shares below 1");
        }
        before = *age;
    }
    Ok(())
}
