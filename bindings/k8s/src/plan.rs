//! The next step of one data set: a function of the observed cluster and the time.
//!
//! Pure, so that it can be simulated. One step at a time, and at most one task (load a share, or clean a directory) for each data set. Its
//! Job is named after the data set and the node, so the API server itself refuses a second one for a directory; one that cannot end delays
//! only its node. The rules that keep a `Ready` true:
//!
//! - **Record, then act.** What will be on a node's disk is in the status before its Job exists, and what is about to be deleted is out of
//!   it. The operator writes the status under the resource version that this function saw before it acts, so a stale view changes nothing.
//! - **A report counts once**, from a pod of the Job that was made for the recorded task; any other Job of the data set is deleted, and
//!   nothing runs on its node before it is gone.
//! - **A share counts** if its last pass fetched nothing, its node is ready, and it is the same boot of the same machine.
//!
//! An agent of a node is a Job, too, with the name that a task's Job has there, so that neither starts before the other has gone.

mod agents;
mod conditions;
mod nodes;

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::dataset::{
    CLEAN, Dataset, DatasetStatus, FINALIZER, Full, LABEL_MAX, NodeStatus, Preload, Share, Task, TaskKind, quantity,
};

/// Shares of a node that has not been ready for this long are loaded elsewhere, and a task that cannot run for as long is given up.
const AWAY_LIMIT_S: i64 = 300;
/// After this many consecutive failures on a node, a share goes to another node.
const PATIENCE: u32 = 2;
const RETRY_S: i64 = 10;
const RETRY_MAX_S: i64 = 600;
/// Longest failure message in a status.
const FAILURE_CHARS: usize = 512;

/// A node as observed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its label `kubernetes.io/hostname`, which affinities name.
    pub hostname: String,
    /// Its uid and boot id.
    pub machine: String,
    /// Time since which it has not been ready, in seconds since 1970; none if it is ready.
    pub away_since_s: Option<i64>,
    /// Whether it is unschedulable.
    pub cordoned: bool,
    /// Capacity for blocks.
    pub storage_bytes: u64,
    /// GPUs that are not allocated.
    pub free_gpus: u64,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A Job of the data set as observed.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its uid.
    pub uid: String,
    /// The task it was made for.
    pub task: Option<Task>,
    /// Time since which it is being deleted, in seconds since 1970.
    pub deleting_since_s: Option<i64>,
    /// Its outcome.
    pub outcome: JobOutcome,
}

/// The outcome of a Job.
#[derive(Clone, Debug, PartialEq)]
pub enum JobOutcome {
    /// It has not ended.
    Running,
    /// It has not ended, and is an agent that jobs can connect to.
    Serving,
    /// It has not ended: none of its containers has started since this time, in seconds since 1970, for this reason.
    NotStarted(i64, String),
    /// It failed after its retries, for this reason.
    Failed(String),
    /// It succeeded; without a report if its pod is gone or did not leave one.
    Succeeded(Option<Report>),
}

/// Result of a load: the termination message of its pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Bytes of the share.
    pub share_bytes: u64,
    /// … that its last pass fetched from the bucket: 0 means that all of it is on disk.
    pub missing_bytes: u64,
    /// Bytes on the disk, of this and other shares.
    pub held_bytes: u64,
    /// Blocks on the disk.
    pub held_blocks: u64,
    /// Blocks that did not match their checksum.
    pub corrupt_blocks: u64,
    /// Files of blocks that were given up for these blocks.
    #[serde(default)]
    pub evicted_segments: u64,
    /// Boot id of the kernel it ran on: a pod is pinned to a node by name, and the machine of that name may have been replaced.
    pub boot_id: String,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing.
    None,
    /// Add the finalizer to the data set.
    AddFinalizer,
    /// Remove it: the disks are clean.
    RemoveFinalizer,
    /// Create the Job of this task.
    CreateJob(Task),
    /// Delete the Job with this uid, and its pods first.
    DeleteJob(String),
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The status to write before acting, under the resource version of the data set that was seen.
    pub status: DatasetStatus,
    /// What to do after that.
    pub action: Action,
    /// Seconds until the next step, if nothing changes before.
    pub again_s: Option<i64>,
}

/// What a valid spec asks for.
struct Layout {
    path: String,
    source: String,
    limit_bytes: u64,
    preload: Preload,
}

/// The cluster around one data set.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The data set's Jobs.
    pub jobs: &'a [Job],
    /// All nodes.
    pub nodes: &'a [Node],
    /// Names of nodes on which pods that read the data set run.
    pub readers: &'a [String],
    /// Directories that specs may name.
    pub roots: &'a [String],
    /// Seconds since 1970.
    pub now_s: i64,
}

/// Decides the next step for `set`.
pub fn reconcile(set: &Dataset, view: View<'_>) -> Outcome {
    let status = set.status.clone().unwrap_or_default();
    let deleting = set.metadata.deletion_timestamp.is_some();
    if !set.finalizers().iter().any(|name| name == FINALIZER) {
        let action = if deleting { Action::None } else { Action::AddFinalizer };
        return Outcome { status, action, again_s: None };
    }
    let layout = layout(set, view.roots);
    let mut step = Step { set, view, deleting, layout, status, again_s: None, blocked: None };
    step.refresh();
    let action = step.act();
    step.conclude();
    Outcome { status: step.status, action, again_s: step.again_s }
}

/// What the spec asks for, or why it is invalid.
fn layout(set: &Dataset, roots: &[String]) -> Result<Layout, String> {
    let spec = &set.spec;
    let characters = set.name_any().len();
    if characters > LABEL_MAX {
        return Err(format!(
            "the name has {characters} characters: pods give it in a label, which takes {LABEL_MAX}; use a shorter one"
        ));
    }
    let root = spec.tiers.disk.path.trim_end_matches('/');
    if !roots.iter().any(|allowed| allowed.trim_end_matches('/') == root) {
        return Err(format!("tiers.disk.path {root}: the operator allows {}", roots.join(", ")));
    }
    if spec.uri.is_empty() {
        return Err("uri is empty".to_owned());
    }
    let limit = &spec.tiers.disk.limit;
    let limit_bytes =
        quantity(limit).filter(|&bytes| bytes > 0).ok_or_else(|| format!("tiers.disk.limit {limit}: not a size"))?;
    spec.check_agent()?;
    let preload = spec.preload.clone().unwrap_or(Preload { node_selector: Default::default(), shares: 0, copies: 0 });
    // Without the default user, as records of older versions have it: what they loaded is kept.
    let user = if spec.user == 0 { String::new() } else { format!(" {}", spec.user) };
    Ok(Layout {
        path: directory(set, root),
        source: format!("{} {}{user}", spec.uri, spec.format.as_deref().unwrap_or("-")),
        limit_bytes,
        preload,
    })
}

/// The directory of a data set below a root. It is unique, because names of namespaces contain no dot.
fn directory(set: &Dataset, root: &str) -> String {
    format!("{}/{}.{}", root.trim_end_matches('/'), set.namespace().unwrap_or_default(), set.name_any())
}

impl Layout {
    /// Whether a node's directory holds blocks of this source.
    fn matches(&self, record: &NodeStatus) -> bool {
        record.source == self.source && record.path == self.path
    }

    /// A node that holds nothing yet.
    fn record(&self, node: &Node) -> NodeStatus {
        let (path, source) = (self.path.clone(), self.source.clone());
        NodeStatus { name: node.name.clone(), machine: node.machine.clone(), path, source, ..NodeStatus::default() }
    }
}

struct Step<'a> {
    set: &'a Dataset,
    view: View<'a>,
    deleting: bool,
    layout: Result<Layout, String>,
    status: DatasetStatus,
    again_s: Option<i64>,
    blocked: Option<String>,
}

impl Step<'_> {
    /// Removes from the status what no longer holds.
    fn refresh(&mut self) {
        let View { nodes, now_s, readers, .. } = self.view;
        let node = |name: &str| nodes.iter().find(|node| node.name == name);
        // A node that left the cluster is dropped with its disk. So is a path that is not one of the data set's own directories: write
        // access to the status must not choose what a root program empties.
        let ours: Vec<String> = self.view.roots.iter().map(|root| directory(self.set, root)).collect();
        self.status.nodes.retain(|record| node(&record.name).is_some() && ours.contains(&record.path));
        let token = self.set.annotations().get(CLEAN);
        let clean = self.deleting || (token.is_some() && token != self.status.cleaned.as_ref());
        self.status.cleaned = token.cloned().or(self.status.cleaned.take());
        // Under an invalid spec agents go on, from what they were made for.
        let keeps = !clean && self.layout.is_err() && self.set.spec.agent.is_some();
        for record in &mut self.status.nodes {
            let machine = node(&record.name).map(|node| node.machine.clone()).unwrap_or_default();
            if clean {
                record.source.clear();
            }
            // What the spec asks for, where the directory is of it.
            let to = self.layout.as_ref().ok().filter(|to| to.matches(record));
            // A lower limit has the next program that opens the disk drop what is beyond it.
            let is_asked =
                |share: &Share| to.map_or(keeps, |to| share.of == to.preload.shares && share.bytes <= to.limit_bytes);
            record.shares.retain(|share| record.machine == machine && is_asked(share));
            if record.machine != machine {
                (record.full, record.machine) = (None, machine);
            }
        }
        // Jobs also fill the disks of the nodes they run on, which have to be cleaned later.
        for name in readers {
            let known = self.status.nodes.iter().any(|record| record.name == *name);
            if let (false, Some(node), Ok(to)) = (known, node(name), &self.layout) {
                self.status.nodes.push(to.record(node));
            }
        }
        let valid = |task: &Task| {
            let asked = |record: &NodeStatus| match (task.kind, &self.layout) {
                // A directory that is read again before its Job exists is left alone.
                (TaskKind::Clean, _) => {
                    let begun = self.view.jobs.iter().any(|job| job.task.as_ref() == Some(task));
                    record.shares.is_empty() && (begun || !readers.contains(&task.node))
                }
                (TaskKind::Load, Ok(to)) => self.is_current(record) && to.preload.shares == task.of,
                (TaskKind::Load, Err(_)) | (TaskKind::Serve, _) => false,
            };
            let same = |record: &NodeStatus| record.path == task.path && record.machine == task.machine;
            self.record(&task.node).is_some_and(|record| same(record) && asked(record))
        };
        if !self.status.task.as_ref().is_some_and(valid) {
            self.status.task = None;
        }
        if let Some(task) = self.status.task.clone()
            && !self.has_ended(&task)
            && let Some(why) = self.stuck(&task.node)
        {
            self.end(&task, Err(why));
        }
        let away = nodes.iter().filter_map(|node| Some(node.away_since_s? + AWAY_LIMIT_S - now_s));
        if let Some(left_s) = away.filter(|&left_s| left_s > 0).min() {
            self.again(left_s);
        }
    }

    fn again(&mut self, left_s: i64) {
        self.again_s = Some(self.again_s.map_or(left_s, |sooner| sooner.min(left_s)));
    }

    /// Tasks come before agents.
    fn act(&mut self) -> Action {
        let served = self.serve();
        match self.work() {
            Action::None => served,
            action => action,
        }
    }

    /// Follows the existing Jobs of tasks, or plans the next one.
    fn work(&mut self) -> Action {
        let jobs = self.view.jobs;
        let jobs: Vec<&Job> = jobs.iter().filter(|job| job.agent().is_none()).collect();
        let done: Vec<&Job> = jobs.iter().copied().filter(|job| self.absorb(job)).collect();
        if let Some(job) = done.iter().find(|job| job.deleting_since_s.is_none()) {
            return Action::DeleteJob(job.uid.clone());
        }
        if done.len() < jobs.len() {
            return Action::None;
        }
        if self.status.task.is_none() {
            self.status.task = self.next();
        }
        let Some(task) = self.status.task.clone() else {
            let clean = self.deleting && self.status.nodes.is_empty() && self.view.readers.is_empty();
            return if clean && self.view.jobs.is_empty() { Action::RemoveFinalizer } else { Action::None };
        };
        self.intend(&task);
        if self.jobs_on(&task.node).next().is_some() { Action::None } else { Action::CreateJob(task) }
    }

    /// Whether a node's directory holds blocks that the spec names. An invalid spec keeps all blocks that are not marked for cleaning.
    fn is_current(&self, record: &NodeStatus) -> bool {
        self.layout.as_ref().map_or(!record.source.is_empty(), |to| to.matches(record))
    }

    /// Records in the status what a task is about to change.
    fn intend(&mut self, task: &Task) {
        match self.record_mut(&task.node) {
            Some(record) if task.kind == TaskKind::Clean => record.shares.clear(),
            Some(_) => {}
            None => {
                let Task { node: name, machine, path, source, .. } = task.clone();
                self.status.nodes.push(NodeStatus { name, machine, path, source, ..NodeStatus::default() });
            }
        }
    }

    /// Applies a Job's outcome to the status. Whether the Job is no longer needed.
    fn absorb(&mut self, job: &Job) -> bool {
        if self.status.finished.as_ref() == Some(&job.uid) {
            return true;
        }
        let Some(task) = job.task.clone().filter(|task| self.status.task.as_ref() == Some(task)) else {
            // Not the recorded task. A cleaning may nevertheless have deleted shares that the status lists.
            if let Some(task) = job.task.as_ref().filter(|task| task.kind == TaskKind::Clean) {
                self.record_mut(&task.node).into_iter().for_each(|record| record.shares.clear());
            }
            return true;
        };
        let result = match &job.outcome {
            // A deleted one has no say: its task runs again when it is gone.
            _ if job.deleting_since_s.is_some() => return true,
            JobOutcome::Running | JobOutcome::Serving => return false,
            JobOutcome::NotStarted(since_s, why) => match self.overdue("Job", *since_s, why) {
                None => return false,
                Some(why) => Err(why),
            },
            JobOutcome::Failed(why) => Err(why.clone()),
            JobOutcome::Succeeded(report) => self.take(&task, report.as_ref()),
        };
        self.status.finished = Some(job.uid.clone());
        self.end(&task, result);
        true
    }

    /// Why a Job whose containers have not started since then counts as failed, once that is long ago; until then it is looked at again.
    fn overdue(&mut self, what: &str, since_s: i64, why: &str) -> Option<String> {
        let left_s = since_s.saturating_add(AWAY_LIMIT_S) - self.view.now_s;
        if left_s > 0 {
            self.again(left_s);
            return None;
        }
        Some(format!("its {what} has not started for {AWAY_LIMIT_S} s: {why}"))
    }

    /// Ends the recorded task. One that failed is tried again later.
    fn end(&mut self, task: &Task, result: Result<(), String>) {
        self.status.task = None;
        self.note(&task.node, result);
    }

    /// Writes down how a task or an agent of the node did.
    fn note(&mut self, node: &str, result: Result<(), String>) {
        let now_s = self.view.now_s;
        if let Some(record) = self.record_mut(node) {
            record.failures = result.as_ref().map_or_else(|_| record.failures.saturating_add(1), |()| 0);
            let wait_s = RETRY_S << record.failures.saturating_sub(1).min(6);
            record.retry_after = result.is_err().then(|| now_s + wait_s.min(RETRY_MAX_S));
            record.failure = result.err().map(|why| why.chars().take(FAILURE_CHARS).collect());
        }
    }

    fn record(&self, node: &str) -> Option<&NodeStatus> {
        self.status.nodes.iter().find(|record| record.name == node)
    }

    fn record_mut(&mut self, node: &str) -> Option<&mut NodeStatus> {
        self.status.nodes.iter_mut().find(|record| record.name == node)
    }

    /// Applies a task whose Job succeeded, or returns why it counts as failed.
    fn take(&mut self, task: &Task, report: Option<&Report>) -> Result<(), String> {
        if task.kind == TaskKind::Clean {
            self.status.nodes.retain(|record| record.name != task.node);
            return Ok(());
        }
        let report = report.ok_or("the Job succeeded, but its pod and report are gone")?;
        let limit = self.layout.as_ref().map_or(0, |to| to.limit_bytes);
        let Some(record) = self.record_mut(&task.node) else { return Ok(()) };
        if task.machine.rsplit('/').next() != Some(&report.boot_id) {
            return Err(format!("it ran on boot {} of {}, not on {}", report.boot_id, task.node, task.machine));
        }
        (record.bytes, record.blocks) = (report.held_bytes, report.held_blocks);
        let Report { share_bytes, missing_bytes, corrupt_blocks, evicted_segments, .. } = *report;
        if evicted_segments > 0 {
            // They may have been of other shares, which are loaded again, here only where there is room.
            record.full = Some(Full { limit, bytes: report.held_bytes });
            record.shares.clear();
        }
        if corrupt_blocks > 0 {
            return Err(format!("{corrupt_blocks} blocks do not match their checksums: the disk is failing"));
        }
        if missing_bytes > 0 {
            let held = share_bytes.saturating_sub(missing_bytes);
            return Err(format!(
                "{held} of {share_bytes} bytes stayed on disk: raise tiers.disk.limit, or take more shares"
            ));
        }
        record.shares.retain(|share| share.index != task.share);
        record.shares.push(Share { index: task.share, of: task.of, bytes: share_bytes });
        record.shares.sort_by_key(|share| share.index);
        Ok(())
    }

    /// The next task: cleaning before loading, and the first share that lacks a copy.
    fn next(&mut self) -> Option<Task> {
        let stale: Vec<_> = self.status.nodes.iter().filter(|record| !self.is_current(record)).cloned().collect();
        for record in &stale {
            let is_there = self.node(&record.name).is_some_and(|node| node.away_since_s.is_none())
                && !self.view.readers.contains(&record.name);
            let wait_s = record.retry_after.map_or(0, |at| at - self.view.now_s);
            match (is_there, wait_s) {
                (true, ..=0) => {
                    let NodeStatus { name: node, machine, path, .. } = record.clone();
                    let (source, share, of) = (String::new(), 0, 0);
                    return Some(Task { kind: TaskKind::Clean, node, machine, path, source, share, of });
                }
                (true, _) => self.again(wait_s),
                (false, _) => {}
            }
        }
        if self.deleting {
            return None;
        }
        let to = self.layout.as_ref().ok()?;
        let (copies, shares) = (to.preload.copies, to.preload.shares);
        let lacking = (0..copies).find_map(|copy| {
            let placed = |share: u32| self.holders(share, AWAY_LIMIT_S).count() as u32;
            (0..shares).find(|&share| placed(share) <= copy)
        })?;
        let Some(at) = self.choose(lacking) else {
            self.blocked = Some(format!("no node has room for share {lacking}"));
            let waits = self.status.nodes.iter().filter_map(|record| Some(record.retry_after? - self.view.now_s));
            waits.filter(|&wait_s| wait_s > 0).min().into_iter().for_each(|wait_s| self.again(wait_s));
            return None;
        };
        let node = &self.view.nodes[at];
        let retry_after = self.record(&node.name).and_then(|record| record.retry_after);
        if let Some(wait_s) = retry_after.map(|at| at - self.view.now_s).filter(|&wait_s| wait_s > 0) {
            self.again(wait_s);
            return None;
        }
        let NodeStatus { name: node, machine, path, source, .. } = to.record(node);
        Some(Task { kind: TaskKind::Load, node, machine, path, source, share: lacking, of: shares })
    }
}

/// Whether a condition is true for the current generation of the spec.
pub fn is(set: &Dataset, type_: &str) -> bool {
    let mut conditions = set.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| {
        let current = condition.observed_generation == set.metadata.generation;
        condition.type_ == type_ && current && condition.status == "True"
    })
}
