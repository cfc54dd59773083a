//! The custom resource `Dataset` of `fuelrail.dev/v1alpha1`: the spec that users write, and the status that the operator reports.
#![allow(clippy::duplicated_attributes, reason = "kube's columns are one attribute each")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Finalizer of a data set, removed when its disks are clean.
pub const FINALIZER: &str = "fuelrail.dev/disk";
/// On a pod: the name of the data set that it reads, in the same namespace.
pub const DATASET_LABEL: &str = "fuelrail.dev/dataset";
/// Most characters of a label's value; names of objects may have 253.
pub(crate) const LABEL_MAX: usize = 63;
/// On a pod: the scheduling gate that the operator removes when it writes the affinity.
pub const GATE: &str = "fuelrail.dev/placement";
/// On a pod: `Required` or `Preferred`, overrides the data set's `locality`.
pub const LOCALITY: &str = "fuelrail.dev/locality";
/// On a pod, written by the operator: the node with the highest weight.
pub const PLACED: &str = "fuelrail.dev/placed";
/// On a data set: each new value cleans its disks once.
pub const CLEAN: &str = "fuelrail.dev/clean";
/// On a node: capacity for blocks, overrides the node's allocatable ephemeral storage.
pub const STORAGE: &str = "fuelrail.dev/storage";

/// A data set in a bucket, and where its blocks are kept near the jobs that read it.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "fuelrail.dev",
    version = "v1alpha1",
    kind = "Dataset",
    namespaced,
    status = "DatasetStatus",
    derive = "PartialEq",
    doc = "A data set in a bucket, and where its blocks are kept near the jobs that read it",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Loaded", type_ = "integer", json_path = ".status.readyShares"),
    printcolumn(name = "Shares", type_ = "integer", json_path = ".status.wantedShares"),
    printcolumn(name = "Bytes", type_ = "integer", json_path = ".status.heldBytes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct DatasetSpec {
    /// What to read, as `fuelrail bench read` takes it: `s3://bucket/prefix/`, `gs://…`, `az://…`, `https://…`.
    pub uri: String,
    /// How objects hold samples: webdataset, mds, tfrecord, tokens or objects; without it every object is a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// A secret of this namespace with the cloud's variables as keys (`AWS_ACCESS_KEY_ID` …); `key.json` for Google.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<String>,
    /// Where blocks are kept.
    pub tiers: Tiers,
    /// Load it before jobs start; without it, blocks come to disk as jobs read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preload: Option<Preload>,
    /// Whether jobs wait for a node that has the data, unless their pods say otherwise.
    #[serde(default)]
    pub locality: Locality,
    /// Read every block again after loading and compare it with its checksum.
    #[serde(default)]
    pub verify: bool,
    /// The user that trainers run as: blocks on disk belong to one user.
    #[serde(default)]
    pub user: u32,
    /// Let a process of each node that holds it read for the jobs there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
}

/// The process `fuelrail share` of a node that holds the data set, from which jobs there take their batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Memory of each pass, half of which holds batches.
    #[serde(default = "agent_memory")]
    pub memory: String,
    /// Most passes at a time; a job that is too late for one is served by another.
    #[serde(default = "agent_passes")]
    #[schemars(range(min = 1, max = 100))]
    pub passes: u32,
    /// Settings as the jobs have them, by their names, such as `batch_size`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

fn agent_memory() -> String {
    "4Gi".to_owned()
}

fn agent_passes() -> u32 {
    2
}

/// The tiers that hold blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tiers {
    /// A disk of each node.
    pub disk: Disk,
}

/// A directory on each node's disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// One of the directories that the operator was given; blocks go to `NAMESPACE.NAME` in it.
    #[serde(default = "disk_root")]
    pub path: String,
    /// Most that the data set takes on one node, such as `500Gi`.
    pub limit: String,
}

fn disk_root() -> String {
    "/var/lib/fuelrail".to_owned()
}

/// How a data set is spread over nodes before jobs start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preload {
    /// Labels of the nodes that may hold it; none means all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Parts that are placed one by one: share i is what rank i of this many reads in the sticky order. 1 keeps the set in one piece.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10_000))]
    pub shares: u32,
    /// Nodes that each share is loaded onto.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10_000))]
    pub copies: u32,
}

fn one() -> u32 {
    1
}

/// Whether pods may run on nodes without the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Locality {
    /// Nodes that have the data are preferred; the job may go elsewhere.
    #[default]
    Preferred,
    /// The job waits for a node that has the data.
    Required,
}

/// What the operator reports about a data set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatasetStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `Preloading` and `Degraded`.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Shares, times copies, that ready nodes hold whole.
    #[serde(default)]
    pub ready_shares: u32,
    /// Shares, times copies, that are asked for.
    #[serde(default)]
    pub wanted_shares: u32,
    /// Bytes of the data set; absent until every share was loaded once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Bytes that all nodes' disks hold together.
    #[serde(default)]
    pub held_bytes: u64,
    /// Nodes whose disks may hold some of it.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub nodes: Vec<NodeStatus>,
    /// The task in progress; at most one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// Uid of the last Job whose outcome is in this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<String>,
    /// The last value of the annotation `fuelrail.dev/clean` that was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleaned: Option<String>,
}

/// A node whose disk may hold blocks of the data set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Its uid and boot id: after a reboot its shares are loaded again, which fetches only the blocks that its disk has lost.
    pub machine: String,
    /// Directory of the blocks.
    pub path: String,
    /// What they are blocks of: URI, format and user, unless it is 0. Blocks of anything else are cleaned.
    pub source: String,
    /// Bytes of blocks on its disk.
    #[serde(default)]
    pub bytes: u64,
    /// Blocks on its disk.
    #[serde(default)]
    pub blocks: u64,
    /// Shares that it holds whole.
    #[serde(default)]
    pub shares: Vec<Share>,
    /// Jobs there can connect to an agent that is as the spec asks for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serving: bool,
    /// What its disk was found to hold when blocks were evicted; used while the limit is the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<Full>,
    /// Consecutive tasks that failed on it.
    #[serde(default)]
    pub failures: u32,
    /// Earliest time of the next try, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<i64>,
    /// Why the last task failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A disk that was full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Full {
    /// The limit at that time, bytes.
    pub limit: u64,
    /// Bytes of blocks on it.
    pub bytes: u64,
}

/// A share that a node holds whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// Index of the share, from 0.
    pub index: u32,
    /// Number of shares that the data set is cut into.
    pub of: u32,
    /// Bytes of the share.
    pub bytes: u64,
}

/// What one Job does on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// What the task does.
    pub kind: TaskKind,
    /// Name of the node that it runs on.
    pub node: String,
    /// Uid and boot id of the node when the task was planned.
    pub machine: String,
    /// Directory of the blocks.
    pub path: String,
    /// URI, format, user, and settings of an agent; empty for a cleaning.
    pub source: String,
    /// Index of the share to load, from 0.
    pub share: u32,
    /// Number of shares that the data set is cut into.
    pub of: u32,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaskKind {
    /// Loads a share.
    Load,
    /// Empties the directory.
    Clean,
    /// Reads for the jobs of the node until it is deleted.
    Serve,
}

/// Parses a quantity of Kubernetes (`500Gi`, `1.5T`, `2e9`), rounded down; none if it is invalid or negative.
pub fn quantity(text: &str) -> Option<u64> {
    let (text, base) = text.strip_suffix('i').map_or((text, 1000.0_f64), |text| (text, 1024.0));
    let units = if base == 1000.0 { "mkMGTPE" } else { "mKMGTPE" };
    let unit = text.chars().next_back().and_then(|unit| units.find(unit));
    if base == 1024.0 && unit == Some(0) {
        return None;
    }
    let number = if unit.is_some() { &text[..text.len() - 1] } else { text };
    let valid = number.bytes().all(|byte| byte.is_ascii_digit() || b".+-eE".contains(&byte));
    let power = unit.map_or(0, |at| if at == 0 { -1 } else { at as i32 });
    let value = number.parse::<f64>().ok().filter(|_| valid && (unit.is_some() || base == 1000.0))? * base.powi(power);
    (value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        let read = ["500Gi", "1.5T", "2e9", "0", "3E", "1500m"].map(quantity);
        assert_eq!(
            read.map(Option::unwrap_or_default),
            [536_870_912_000, 1_500_000_000_000, 2_000_000_000, 0, 3_000_000_000_000_000_000, 1]
        );
        assert!(
            ["", "Gi", "5i", "5K", "5ki", "5000mi", "-1", "1 Gi", "inf", "NaN", "1e40", "five"]
                .iter()
                .all(|text| quantity(text).is_none())
        );
    }
}
