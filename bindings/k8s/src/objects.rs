//! Objects and patches that the operator sends to the API server.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Resource, ResourceExt};
use serde::ser::Error as _;
use serde_json::{Value, json};

use crate::dataset::{Agent, Dataset, DatasetSpec, DatasetStatus, FINALIZER, GATE, PLACED, Task, TaskKind, quantity};
use crate::gates::Placement;

/// Name of the operator: as a field manager, as a reporter of events, of its Lease, and in the label of its Jobs.
pub const NAME: &str = "fuelrail-operator";
/// On a Job and its pods: the label with the operator's name, by which the operator lists its Jobs.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// On a Job and its pods: the task that it was made for.
pub(crate) const TASK: &str = "fuelrail.dev/task";
/// On a node: the name by which affinities select it.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";
/// Environment variables of the clouds' credentials. Only these keys of the secret are used, so that it cannot set other variables.
const CREDENTIALS: &str = "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_REGION AWS_ENDPOINT_URL AWS_ROLE_ARN \
    AZURE_CLIENT_ID AZURE_CLIENT_SECRET AZURE_TENANT_ID AZURE_STORAGE_ACCOUNT AZURE_STORAGE_KEY AZURE_STORAGE_SAS_TOKEN";

/// The name of a data set's Jobs on a node, so that at most one exists. Names of nodes are too long for it: it has their FNV-1a hash.
pub fn job_name(set: &Dataset, node: &str) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = node.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("fuelrail-{}-{hash:016x}", set.uid().unwrap_or_default())
}

/// Variables, volumes and mounts of a container that reads the bucket and has the directory: its credentials, `/disk` and `/tmp`.
fn surroundings(spec: &DatasetSpec, task: &Task) -> (Vec<Value>, Vec<Value>, Vec<Value>) {
    let credentials = spec.credentials_secret.iter().flat_map(|secret| {
        let from = move |key: &str| json!({ "secretKeyRef": { "name": secret, "key": key, "optional": true } });
        CREDENTIALS.split(' ').map(move |key| json!({ "name": key, "valueFrom": from(key) }))
    });
    let mut env: Vec<Value> = credentials.collect();
    // An agent starts on no other machine than the one that was loaded.
    let type_ = if task.kind == TaskKind::Serve { "Directory" } else { "DirectoryOrCreate" };
    let mut volumes = vec![
        json!({ "name": "disk", "hostPath": { "path": task.path, "type": type_ } }),
        json!({ "name": "tmp", "emptyDir": {} }),
    ];
    let mut mounts =
        vec![json!({ "name": "disk", "mountPath": "/disk" }), json!({ "name": "tmp", "mountPath": "/tmp" })];
    if let Some(secret) = &spec.credentials_secret {
        let items = json!([{ "key": "key.json", "path": "key.json" }]);
        volumes.push(json!({ "name": "key", "secret": { "secretName": secret, "optional": true, "items": items } }));
        mounts.push(json!({ "name": "key", "mountPath": "/credentials", "readOnly": true }));
        env.push(json!({ "name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/credentials/key.json" }));
    }
    (env, volumes, mounts)
}

/// The Job of a task or an agent, pinned to its node. The program of a task prepares the directory as root and reads as the data set's user.
///
/// # Errors
/// If the object does not deserialise as a Job, or the data set asks for no agent.
pub fn job(set: &Dataset, task: &Task, image: &str) -> Result<Job, serde_json::Error> {
    let (env, volumes, mounts) = surroundings(&set.spec, task);
    // A cleaning removes files of the trainers' user; a load changes the owner of the directory and then its own user.
    let capabilities: &[&str] = match task.kind {
        TaskKind::Load => &["CHOWN", "SETGID", "SETUID"],
        TaskKind::Clean => &["DAC_OVERRIDE", "FOWNER"],
        TaskKind::Serve => &[],
    };
    let mut container = json!({
        "name": "fuelrail",
        "image": image,
        "command": ["fuelrail-operator"],
        "args": arguments(set, task),
        "env": env,
        "volumeMounts": mounts,
        "resources": { "requests": { "cpu": "1", "memory": "2Gi" }, "limits": { "memory": "2Gi" } },
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"], "add": capabilities },
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    if task.kind == TaskKind::Serve {
        let agent = set.spec.agent.as_ref();
        let agent = agent.ok_or_else(|| serde_json::Error::custom("the data set asks for no agent"))?;
        serve(&mut container, &set.spec, agent);
    }
    let node = json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [task.node] }] });
    let required = json!({ "nodeSelectorTerms": [node] });
    let pod = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } },
        "tolerations": [{ "operator": "Exists", "effect": "NoSchedule" }],
        "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [container],
        "volumes": volumes,
    });
    let (labels, annotations) = (json!({ MANAGED_BY: NAME }), json!({ TASK: serde_json::to_string(task)? }));
    serde_json::from_value(json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(set, &task.node),
            "namespace": set.namespace(),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [set.controller_owner_ref(&())],
        },
        "spec": {
            "backoffLimit": 2,
            // The next pod starts after the previous one has ended: two would write to one directory.
            "podReplacementPolicy": "Failed",
            "template": { "metadata": { "labels": labels, "annotations": annotations }, "spec": pod },
        },
    }))
}

/// Makes the container of a task that of an agent: `fuelrail share`, as the user that the directory belongs to.
fn serve(container: &mut Value, spec: &DatasetSpec, agent: &Agent) {
    // Of half of it, the default, each pass takes its part.
    let memory = quantity(&agent.memory).unwrap_or(0).saturating_mul(agent.passes.into()).to_string();
    let ours = [
        ("spill_dirs", "/disk".to_owned()),
        ("spill_limit_bytes", quantity(&spec.tiers.disk.limit).unwrap_or(0).to_string()),
    ];
    let settings = agent.settings.iter().map(|(name, value)| (name.as_str(), literal(value)));
    let variable = |(name, value): (&str, String)| {
        let name = format!("FUELRAIL_{}", name.to_uppercase());
        json!({ "name": name, "value": value })
    };
    let variables = ours.into_iter().chain(settings).map(variable);
    if let Some(env) = container["env"].as_array_mut() {
        env.extend(variables);
    }
    container["command"] = json!(["fuelrail"]);
    container["resources"] = json!({ "requests": { "cpu": "1", "memory": memory }, "limits": { "memory": memory } });
    // No liveness probe: it ends when it fails, and while it lives, jobs hold memory of it.
    let probe = json!(["fuelrail-operator", "ready"]);
    container["readinessProbe"] = json!({ "exec": { "command": probe }, "periodSeconds": 5, "timeoutSeconds": 5 });
    let security = &mut container["securityContext"];
    (security["runAsUser"], security["runAsGroup"]) = (json!(spec.user), json!(spec.user));
    security["seccompProfile"] = json!({ "type": "Localhost", "localhostProfile": "fuelrail.json" });
}

/// Arguments of the Job's program. No shell interprets them, and the kubelet expands nothing in them.
fn arguments(set: &Dataset, task: &Task) -> Vec<String> {
    let spec = &set.spec;
    let fixed: &[&str] = match task.kind {
        TaskKind::Clean => &["clean", "--directory", "/disk"],
        TaskKind::Load => &["load", "--directory=/disk", "--report=/dev/termination-log"],
        TaskKind::Serve => &["share", "--stay", "--share-dir=/disk/share"],
    };
    let mut all: Vec<String> = fixed.iter().map(|text| (*text).to_owned()).collect();
    let format = spec.format.iter().map(|format| format!("--format={format}"));
    match task.kind {
        TaskKind::Clean => {}
        TaskKind::Load => {
            let limit = quantity(&spec.tiers.disk.limit).unwrap_or(0);
            all.extend([format!("--user={}", spec.user), format!("--limit={limit}")]);
            all.extend([format!("--share={}", task.share), format!("--of={}", task.of), format!("--uri={}", spec.uri)]);
            all.extend(format.chain(spec.verify.then(|| "--verify".to_owned())));
        }
        TaskKind::Serve => {
            all.extend(spec.agent.iter().map(|agent| format!("--passes-max={}", agent.passes)).chain(format));
            all.extend(["--".to_owned(), spec.uri.clone()]);
        }
    }
    all.iter().map(|argument| literal(argument)).collect()
}

/// What the kubelet makes this text of again: it replaces `$(NAME)` by a variable, which may be a credential, and `$$` by `$`.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// Server-side apply of the status of `set`, under the resource version that was seen.
pub fn status_patch(set: &Dataset, status: &DatasetStatus) -> Value {
    json!({
        "apiVersion": Dataset::api_version(&()),
        "kind": Dataset::kind(&()),
        "metadata": { "name": set.name_any(), "resourceVersion": set.resource_version() },
        "status": status,
    })
}

/// Merge patch of the finalizers of `set` with or without the operator's, under the resource version that was seen.
pub fn finalizer_patch(set: &Dataset, with: bool) -> Value {
    let others = set.finalizers().iter().filter(|name| *name != FINALIZER).cloned();
    let all: Vec<String> = others.chain(with.then(|| FINALIZER.to_owned())).collect();
    json!({ "metadata": { "resourceVersion": set.resource_version(), "finalizers": all } })
}

/// Merge patch that writes a pod's affinity and removes the gate, under the resource version that was seen: in one request, so that the
/// gate is never removed before the affinity is written. The pod's own terms stay, because Kubernetes allows only to narrow them.
pub fn placement_patch(pod: &Pod, placement: &Placement) -> Value {
    let spec = pod.spec.clone().unwrap_or_default();
    let mut affinity = spec.affinity.unwrap_or_default();
    let mut node = affinity.node_affinity.take().unwrap_or_default();
    let within = |hosts: &[String]| json!({ "key": HOSTNAME, "operator": "In", "values": hosts });
    let mut required = json!(node.required_during_scheduling_ignored_during_execution.take());
    if !placement.required.is_empty() {
        let asked = within(&placement.required);
        match required.pointer_mut("/nodeSelectorTerms").and_then(Value::as_array_mut) {
            Some(terms) => terms.iter_mut().for_each(|term| match term["matchExpressions"].as_array_mut() {
                Some(all) => all.push(asked.clone()),
                None => term["matchExpressions"] = json!([asked]),
            }),
            None => required = json!({ "nodeSelectorTerms": [{ "matchExpressions": [asked] }] }),
        }
    }
    let mut preferred: Vec<Value> =
        node.preferred_during_scheduling_ignored_during_execution.iter().flatten().map(|term| json!(term)).collect();
    preferred.extend(placement.preferred.iter().map(|(host, weight)| {
        json!({ "weight": weight, "preference": { "matchExpressions": [within(std::slice::from_ref(host))] } })
    }));
    let mut affinity = json!(affinity);
    affinity["nodeAffinity"] = json!({ "preferredDuringSchedulingIgnoredDuringExecution": preferred });
    if !required.is_null() {
        affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = required;
    }
    let gates: Vec<_> = spec.scheduling_gates.into_iter().flatten().filter(|gate| gate.name != GATE).collect();
    json!({
        "metadata": { "resourceVersion": pod.resource_version(), "annotations": { PLACED: placement.best } },
        "spec": { "affinity": affinity, "schedulingGates": gates },
    })
}

/// Drops the parts of a node that the operator does not read, to save memory in large clusters.
pub(crate) fn strip_node(node: &mut Node) {
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}

/// Drops the parts of a pod that the operator does not read.
pub(crate) fn strip_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if let Some(spec) = &mut pod.spec {
        spec.volumes = None;
        spec.containers.iter_mut().for_each(|container| {
            (container.env, container.volume_mounts) = (None, None);
            (container.args, container.command) = (None, None);
        });
    }
}
