//! Converts Kubernetes' objects to the types of the pure part: nodes, pods with the gate, a data set's Jobs.
//!
//! The termination message of a pod counts only if the pod is owned by a Job that is owned by the data set, by uid.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::Job as KubeJob;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, Node as KubeNode, Pod as KubePod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::dataset::{DATASET_LABEL, Dataset, GATE, LOCALITY, Locality, PLACED, STORAGE, Task, TaskKind, quantity};
use crate::gates;
use crate::objects::{HOSTNAME, MANAGED_BY, NAME, TASK, job_name};
use crate::plan::{Job, JobOutcome, Node};

/// Labels with the name of a pod's group, the widest group first.
const GROUPS: [&str; 2] = ["jobset.sigs.k8s.io/jobset-name", JOB_NAME];
/// On a pod: the name of its Job.
const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// A node, `used` of whose GPUs are allocated.
pub fn node(node: &KubeNode, gpu: &str, used: u64) -> Node {
    let status = node.status.clone().unwrap_or_default();
    let allocatable = |name: &str| {
        status.allocatable.as_ref().and_then(|all| all.get(name)).and_then(|amount| quantity(&amount.0)).unwrap_or(0)
    };
    let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
    let since_s = ready.and_then(|ready| ready.last_transition_time.as_ref()).map_or(0, |time| time.0.as_second());
    let stated = node.annotations().get(STORAGE).and_then(|text| quantity(text));
    let boot = status.node_info.as_ref().map(|info| info.boot_id.as_str()).unwrap_or_default();
    Node {
        name: node.name_any(),
        hostname: node.labels().get(HOSTNAME).cloned().unwrap_or_else(|| node.name_any()),
        machine: format!("{}/{boot}", node.uid().unwrap_or_default()),
        away_since_s: ready.is_none_or(|ready| ready.status != "True").then_some(since_s),
        cordoned: node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)),
        storage_bytes: stated.unwrap_or_else(|| allocatable("ephemeral-storage")),
        free_gpus: allocatable(gpu).saturating_sub(used),
        labels: node.labels().clone(),
    }
}

/// GPUs of each node that are allocated to pods bound to it, or placed on it and not bound yet.
pub fn used_gpus<'a>(pods: impl Iterator<Item = &'a KubePod>, gpu: &str) -> BTreeMap<String, u64> {
    let mut used = BTreeMap::new();
    for pod in pods.filter(|pod| reads(pod)) {
        let sent = pod.annotations().get(PLACED);
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).or(sent) {
            *used.entry(node.clone()).or_default() += gpus(pod, gpu);
        }
    }
    used
}

/// Names of the nodes with pods that read `set`.
pub fn readers<'a>(pods: impl Iterator<Item = &'a KubePod>, set: &Dataset) -> Vec<String> {
    let of_set = |pod: &&KubePod| {
        pod.labels().get(DATASET_LABEL) == set.metadata.name.as_ref() && pod.namespace() == set.namespace()
    };
    let running = pods.filter(of_set).filter(|pod| reads(pod));
    let mut nodes: Vec<_> = running.filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// The pod, if it has the gate.
pub fn gated(pod: &KubePod, gpu: &str) -> Option<gates::Pod> {
    if !is_gated(pod) || has_ended(pod) || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let group = GROUPS.iter().find_map(|label| pod.labels().get(*label)).cloned();
    let said = pod.annotations().get(LOCALITY).or(pod.labels().get(LOCALITY)).map(String::as_str);
    Some(gates::Pod {
        namespace: pod.namespace()?,
        name: pod.name_any(),
        dataset: pod.labels().get(DATASET_LABEL).cloned().unwrap_or_default(),
        group: group.unwrap_or_else(|| pod.name_any()),
        gpus: gpus(pod, gpu),
        locality: match said {
            Some("Required") => Some(Locality::Required),
            Some("Preferred") => Some(Locality::Preferred),
            _ => None,
        },
    })
}

/// A Job, if it belongs to `set`, with its outcome as reported by its own pods.
pub fn job<'a>(set: &Dataset, job: &KubeJob, pods: impl Iterator<Item = &'a KubePod>) -> Option<Job> {
    let uid = job.uid()?;
    if job.namespace() != set.namespace() || !is_owned(&job.metadata, "Dataset", &set.uid()?) {
        return None;
    }
    let task: Option<Task> = job.annotations().get(TASK).and_then(|text| serde_json::from_str(text).ok());
    let is_agent = task.as_ref().is_some_and(|task| task.kind == TaskKind::Serve);
    let is_ready = job.status.as_ref().and_then(|status| status.ready).unwrap_or(0) > 0;
    let conditions = || job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let of_type = |type_: &str| conditions().find(|condition| condition.type_ == type_ && condition.status == "True");
    let pods: Vec<_> = pods.filter(|pod| is_owned(&pod.metadata, "Job", &uid)).collect();
    let own: Vec<_> = pods.iter().copied().filter_map(ended).collect();
    let outcome = if of_type("Complete").is_some() {
        let said = own.iter().filter(|end| end.exit_code == 0).find_map(|end| end.message.as_ref());
        JobOutcome::Succeeded(said.and_then(|text| serde_json::from_str(text).ok()))
    } else if let Some(failed) = of_type("Failed") {
        let said = own.iter().filter(|end| end.exit_code != 0).find_map(|end| end.message.clone());
        JobOutcome::Failed(said.or(failed.message.clone()).unwrap_or_else(|| "the Job failed".to_owned()))
    } else if is_agent && is_ready {
        JobOutcome::Serving
    } else {
        not_started(job, &pods).unwrap_or(JobOutcome::Running)
    };
    let deleting_since_s = job.metadata.deletion_timestamp.as_ref().map(|time| time.0.as_second());
    Some(Job { uid, task, deleting_since_s, outcome })
}

/// Pods of `set` that may still write though their Job is not among `jobs` (uids), each as a Job that is being deleted: `kubectl delete`
/// removes a Job before its pods. They have the name of the set's Job on the task's node, so a forged one makes the set wait or load again.
pub fn orphans<'a>(
    set: &Dataset,
    jobs: &BTreeSet<String>,
    pods: impl Iterator<Item = &'a KubePod>,
    now_s: i64,
) -> Vec<Job> {
    let orphan = |pod: &KubePod| {
        let ours = pod.labels().get(MANAGED_BY).is_some_and(|name| name == NAME) && pod.namespace() == set.namespace();
        let mut owners = pod.metadata.owner_references.iter().flatten();
        if !ours || has_ended(pod) || owners.any(|owner| owner.controller == Some(true) && jobs.contains(&owner.uid)) {
            return None;
        }
        let task: Task = serde_json::from_str(pod.annotations().get(TASK)?).ok()?;
        if *pod.labels().get(JOB_NAME)? != job_name(set, &task.node) {
            return None;
        }
        // One that runs ends by itself; one that has not started may never.
        let is_pending = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
        let created = pod.metadata.creation_timestamp.as_ref().filter(|_| is_pending);
        let since = pod.metadata.deletion_timestamp.as_ref().or(created);
        let since_s = since.map_or(now_s, |time| time.0.as_second());
        let outcome = JobOutcome::Running;
        Some(Job { uid: pod.uid()?, task: Some(task), deleting_since_s: Some(since_s), outcome })
    };
    pods.filter_map(orphan).collect()
}

/// Since when and why no container of a Job's last try has started, unless one has.
fn not_started(job: &KubeJob, pods: &[&KubePod]) -> Option<JobOutcome> {
    let created = job.metadata.creation_timestamp.as_ref();
    let Some(pod) = pods.iter().find(|pod| !has_ended(pod)) else {
        let status = job.status.clone().unwrap_or_default();
        let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
        let uncounted = [uncounted.failed, uncounted.succeeded].into_iter().flatten().flatten().count();
        let (active, succeeded) = (status.active.unwrap_or(0), status.succeeded.unwrap_or(0));
        if active > 0 || succeeded > 0 || uncounted > 0 {
            // Its pod is not seen yet, or not any more.
            return None;
        }
        let is_first = pods.is_empty() && status.failed.unwrap_or(0) == 0;
        let last = pods.iter().filter_map(|pod| ended(pod)?.finished_at.as_ref()).max_by_key(|time| time.0);
        let since_s = last.or(created.filter(|_| is_first))?.0.as_second();
        let why = "no pod was created: the events of the Job say why".to_owned();
        return Some(JobOutcome::NotStarted(since_s, why));
    };
    let status = pod.status.clone().unwrap_or_default();
    let states = || status.container_statuses.iter().flatten().filter_map(|container| container.state.as_ref());
    if states().any(|state| state.running.is_some() || state.terminated.is_some()) {
        return None;
    }
    let mut conditions = status.conditions.iter().flatten();
    let refused = conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    let refused_at = refused.and_then(|refused| refused.last_transition_time.as_ref());
    let since = refused_at.or(status.start_time.as_ref()).or(pod.metadata.creation_timestamp.as_ref()).or(created)?;
    let waiting = states().find_map(|state| state.waiting.as_ref());
    let reason = refused.map_or(waiting.and_then(|waiting| waiting.reason.as_deref()), |_| Some("not scheduled"));
    let message = refused.map_or(waiting.and_then(|waiting| waiting.message.as_deref()), |it| it.message.as_deref());
    let why = format!("{}: {}", reason.unwrap_or("waiting"), message.unwrap_or("the events of its pod say why"));
    Some(JobOutcome::NotStarted(since.0.as_second(), why))
}

fn is_owned(meta: &ObjectMeta, kind: &str, uid: &str) -> bool {
    let owners = meta.owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).any(|owner| owner.kind == kind && owner.uid == uid)
}

fn ended(pod: &KubePod) -> Option<&ContainerStateTerminated> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()?.terminated.as_ref()
}

fn has_ended(pod: &KubePod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether a pod reads or will read: it has no gate and has not ended.
pub(crate) fn reads(pod: &KubePod) -> bool {
    !has_ended(pod) && !is_gated(pod)
}

fn is_gated(pod: &KubePod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.into_iter().any(|gate| gate.name == GATE)
}

/// GPUs that a pod requests: the sum over its containers, or the largest init container if that is more.
fn gpus(pod: &KubePod, gpu: &str) -> u64 {
    let asked = |container: &Container| {
        let resources = container.resources.iter().flat_map(|all| [&all.limits, &all.requests]);
        let amount = resources.flatten().find_map(|amounts| amounts.get(gpu));
        amount.and_then(|amount| quantity(&amount.0)).unwrap_or(0)
    };
    let Some(spec) = &pod.spec else { return 0 };
    let first = spec.init_containers.iter().flatten().map(asked).max().unwrap_or(0);
    spec.containers.iter().map(asked).sum::<u64>().max(first)
}
