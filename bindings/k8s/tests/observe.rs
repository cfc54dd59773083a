//! Conversion from Kubernetes' objects to the pure part's types, and the objects that the operator sends.

use fuelrail_k8s::dataset::{Dataset, Locality, Task, TaskKind};
use fuelrail_k8s::gates::Placement;
use fuelrail_k8s::plan::{Job, JobOutcome};
use fuelrail_k8s::{objects, observe};
use k8s_openapi::api::batch::v1::Job as KubeJob;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const GPU: &str = "nvidia.com/gpu";

fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn set() -> Dataset {
    let mut set: Dataset = typed(json!({
        "apiVersion": "fuelrail.dev/v1alpha1", "kind": "Dataset",
        "metadata": { "name": "photos", "namespace": "ml", "uid": "set-1" },
        "spec": { "uri": "s3://b/; rm -rf /", "tiers": { "disk": { "limit": "1Gi" } }, "user": 1000, "verify": true },
    }));
    set.metadata.resource_version = Some("7".into());
    set
}

fn task(kind: TaskKind) -> Task {
    let (node, machine, path) = ("n1".into(), "n1/1".into(), "/var/lib/fuelrail/ml.photos".into());
    Task { kind, node, machine, path, source: String::new(), share: 1, of: 4 }
}

fn seen(job: &KubeJob, exit_code: i32, owner: &str) -> Option<Job> {
    let pod: Pod = typed(json!({
        "metadata": { "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": owner, "controller": true }] },
        "status": { "containerStatuses": [{ "name": "x", "image": "x", "imageID": "x", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": exit_code, "message": "403 Forbidden" } } }] },
    }));
    observe::job(&set(), job, std::iter::once(&pod))
}

#[test]
fn a_job_that_failed_says_what_its_own_pod_said() {
    let mut job = objects::job(&set(), &task(TaskKind::Load), "image").unwrap();
    job.metadata.uid = Some("job-1".into());
    let outcome = |job: &KubeJob, owner: &str| seen(job, 1, owner).unwrap().outcome;
    assert_eq!(outcome(&job, "job-1"), JobOutcome::Running);
    job.status =
        Some(typed(json!({ "conditions": [{ "type": "Failed", "status": "True", "message": "too many retries" }] })));
    let failed = seen(&job, 1, "job-1").unwrap();
    assert_eq!((failed.outcome, failed.task), (JobOutcome::Failed("403 Forbidden".into()), Some(task(TaskKind::Load))));
    assert_eq!(outcome(&job, "job-2"), JobOutcome::Failed("too many retries".into()));
    // A Job of another data set, even of one with the same name, is neither read nor deleted.
    job.metadata.owner_references.as_mut().unwrap()[0].uid = "set-0".into();
    assert_eq!(seen(&job, 1, "job-1"), None);
}

#[test]
fn a_job_says_since_when_it_is_being_deleted_and_why_no_node_takes_its_pod() {
    let mut job = objects::job(&set(), &task(TaskKind::Load), "image").unwrap();
    job.metadata.uid = Some("job-1".into());
    job.metadata.deletion_timestamp = Some(typed(json!("1970-01-01T00:01:40Z")));
    let pod: Pod = typed(json!({
        "metadata": { "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "job-1", "controller": true }] },
        "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "Insufficient cpu", "lastTransitionTime": "1970-01-01T00:00:50Z" }] },
    }));
    let seen = observe::job(&set(), &job, std::iter::once(&pod)).unwrap();
    let outcome = JobOutcome::NotStarted(50, "not scheduled: Insufficient cpu".into());
    assert_eq!((seen.deleting_since_s, seen.outcome), (Some(100), outcome));
}

#[test]
fn a_job_says_since_when_and_why_no_container_of_it_has_started() {
    let mut job = objects::job(&set(), &task(TaskKind::Load), "image").unwrap();
    job.metadata.uid = Some("job-1".into());
    job.metadata.creation_timestamp = Some(typed(json!("1970-01-01T00:00:10Z")));
    let waits = |since_s: i64, why: &str| JobOutcome::NotStarted(since_s, why.to_owned());
    let none = observe::job(&set(), &job, std::iter::empty()).unwrap().outcome;
    assert_eq!(none, waits(10, "no pod was created: the events of the Job say why"));
    let outcome = |phase: &str, start: Value, state: Value| {
        let pod: Pod = typed(json!({
            "metadata": { "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "job-1", "controller": true }] },
            "status": { "phase": phase, "startTime": start, "containerStatuses": [
                { "name": "x", "image": "x", "imageID": "x", "ready": false, "restartCount": 0, "state": state },
            ] },
        }));
        observe::job(&set(), &job, std::iter::once(&pod)).unwrap().outcome
    };
    let (never, start) = (Value::Null, json!("1970-01-01T00:00:20Z"));
    let pull = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off" } });
    assert_eq!(outcome("Pending", start.clone(), pull), waits(20, "ImagePullBackOff: Back-off"));
    let creation = json!({ "waiting": { "reason": "ContainerCreating" } });
    let why = "ContainerCreating: the events of its pod say why";
    assert_eq!(outcome("Pending", never.clone(), creation), waits(10, why));
    assert_eq!(outcome("Running", start, json!({ "running": {} })), JobOutcome::Running);
    // Evicted: the Job tries again after a while.
    assert_eq!(outcome("Failed", never.clone(), json!({})), JobOutcome::Running);
    // A second pod that is refused does not come.
    let ended = json!({ "terminated": { "exitCode": 1, "finishedAt": "1970-01-01T00:01:00Z" } });
    assert_eq!(outcome("Failed", never, ended), waits(60, "no pod was created: the events of the Job say why"));
    // One that is there and not seen.
    job.status = Some(typed(json!({ "active": 1 })));
    assert_eq!(observe::job(&set(), &job, std::iter::empty()).unwrap().outcome, JobOutcome::Running);
}

/// `kubectl delete job` removes a Job before its pod has ended.
#[test]
fn a_pod_whose_job_is_gone_counts_as_a_job_that_is_being_deleted() {
    let job = objects::job(&set(), &task(TaskKind::Load), "image").unwrap();
    let mut meta = serde_json::to_value(job.spec.unwrap().template.metadata).unwrap();
    (meta["namespace"], meta["uid"]) = (json!("ml"), json!("pod-1"));
    meta["labels"]["batch.kubernetes.io/job-name"] = json!(job.metadata.name);
    meta["ownerReferences"] =
        json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "job-1", "controller": true }]);
    let mut pod: Pod = typed(json!({ "metadata": meta }));
    let seen = |set: &Dataset, pod: &Pod, job: &str| {
        observe::orphans(set, &[job.to_owned()].into(), std::iter::once(pod), 500)
    };
    let mut expected = Job {
        uid: "pod-1".into(),
        task: Some(task(TaskKind::Load)),
        deleting_since_s: Some(500),
        outcome: JobOutcome::Running,
    };
    assert_eq!(seen(&set(), &pod, "job-2"), [expected.clone()]);
    assert!(seen(&set(), &pod, "job-1").is_empty());
    let mut other = set();
    other.metadata.uid = Some("set-2".into());
    assert!(seen(&other, &pod, "job-2").is_empty());
    // One that has not started may never, and ages.
    pod.metadata.creation_timestamp = Some(typed(json!("1970-01-01T00:00:50Z")));
    pod.status = Some(typed(json!({ "phase": "Pending" })));
    expected.deleting_since_s = Some(50);
    assert_eq!(seen(&set(), &pod, "job-2"), [expected.clone()]);
    pod.metadata.deletion_timestamp = Some(typed(json!("1970-01-01T00:01:40Z")));
    expected.deleting_since_s = Some(100);
    assert_eq!(seen(&set(), &pod, "job-2"), [expected]);
    pod.status = Some(typed(json!({ "phase": "Succeeded" })));
    assert!(seen(&set(), &pod, "job-2").is_empty());
}

/// The pods of a Job have its name as a label.
#[test]
fn a_job_has_a_name_of_its_own_on_each_node_that_fits_a_label() {
    let mut set = set();
    set.metadata.uid = Some("01234567-89ab-cdef-0123-456789abcdef".into());
    let [one, two] = ["n1", &"n".repeat(253)].map(|node| objects::job_name(&set, node));
    assert!(one != two && one.len() <= 63 && two.len() <= 63, "{one} {two}");
}

#[test]
fn what_a_spec_says_goes_to_the_program_as_arguments_and_nothing_else() {
    let job = serde_json::to_value(objects::job(&set(), &task(TaskKind::Load), "image").unwrap()).unwrap();
    let pod = &job["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let arguments = json!([
        "load",
        "--directory=/disk",
        "--report=/dev/termination-log",
        "--user=1000",
        "--limit=1073741824",
        "--share=1",
        "--of=4",
        "--uri=s3://b/; rm -rf /",
        "--verify"
    ]);
    assert_eq!((&container["command"], &container["args"]), (&json!(["fuelrail-operator"]), &arguments));
    assert_eq!(
        container["securityContext"]["capabilities"],
        json!({ "add": ["CHOWN", "SETGID", "SETUID"], "drop": ["ALL"] })
    );
    let node =
        &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0];
    assert_eq!(node["matchFields"], json!([{ "key": "metadata.name", "operator": "In", "values": ["n1"] }]));
    let clean = serde_json::to_value(objects::job(&set(), &task(TaskKind::Clean), "image").unwrap()).unwrap();
    assert_eq!(clean["spec"]["template"]["spec"]["containers"][0]["args"], json!(["clean", "--directory", "/disk"]));
}

#[test]
fn an_agent_is_a_job_that_serves_when_its_pod_is_ready_and_runs_as_the_user_without_rights() {
    let mut set = set();
    let settings = json!({ "batch_size": "256", "label_field": "$(AWS_SECRET_ACCESS_KEY)" });
    set.spec.agent = Some(typed(json!({ "memory": "8Gi", "settings": settings })));
    let mut job = objects::job(&set, &task(TaskKind::Serve), "image").unwrap();
    assert_eq!(job.metadata.name, objects::job(&set, &task(TaskKind::Clean), "image").unwrap().metadata.name);
    job.metadata.uid = Some("job-1".into());
    let outcome = |job: &KubeJob| seen(job, 1, "job-2").unwrap().outcome;
    job.status = Some(typed(json!({ "active": 1, "ready": 0 })));
    assert_eq!(outcome(&job), JobOutcome::Running);
    job.status = Some(typed(json!({ "active": 1, "ready": 1 })));
    assert_eq!(outcome(&job), JobOutcome::Serving);

    let pod = serde_json::to_value(job.spec.unwrap().template.spec).unwrap();
    let agent = &pod["containers"][0];
    let arguments = json!(["share", "--stay", "--share-dir=/disk/share", "--passes-max=2", "--", "s3://b/; rm -rf /"]);
    assert_eq!((&agent["command"], &agent["args"]), (&json!(["fuelrail"]), &arguments));
    let env = json!([
        { "name": "FUELRAIL_SPILL_DIRS", "value": "/disk" },
        { "name": "FUELRAIL_SPILL_LIMIT_BYTES", "value": "1073741824" },
        { "name": "FUELRAIL_BATCH_SIZE", "value": "256" },
        { "name": "FUELRAIL_LABEL_FIELD", "value": "$$(AWS_SECRET_ACCESS_KEY)" },
    ]);
    assert_eq!(agent["env"], env);
    assert_eq!(agent["resources"]["limits"]["memory"], "17179869184");
    let security = &agent["securityContext"];
    assert_eq!((&security["runAsUser"], &security["capabilities"]["add"]), (&json!(1000), &json!([])));
    assert_eq!(agent["readinessProbe"]["exec"]["command"], json!(["fuelrail-operator", "ready"]));
    let host = json!({ "path": "/var/lib/fuelrail/ml.photos", "type": "Directory" });
    assert_eq!(pod["volumes"][0]["hostPath"], host);
}

/// The kubelet replaces `$(NAME)` in arguments by variables of the container, and `$$` by `$`.
#[test]
fn no_credential_of_the_job_can_be_written_into_a_uri() {
    let mut set = set();
    set.spec.uri = "http://another.example/$(AWS_SECRET_ACCESS_KEY)/$$(AWS_SECRET_ACCESS_KEY)/".into();
    let job = serde_json::to_value(objects::job(&set, &task(TaskKind::Load), "image").unwrap()).unwrap();
    let arguments = job["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
    let given = json!("--uri=http://another.example/$$(AWS_SECRET_ACCESS_KEY)/$$$$(AWS_SECRET_ACCESS_KEY)/");
    assert!(arguments.contains(&given), "{arguments:?}");
}

#[test]
fn nodes_are_seen_with_what_pods_have_left() {
    let node = |ready: &str, spec: Value, annotations: Value| {
        let node: Node = typed(json!({
            "metadata": { "name": "n1", "uid": "u", "annotations": annotations }, "spec": spec,
            "status": {
                "allocatable": { "nvidia.com/gpu": "8", "ephemeral-storage": "10Gi" },
                "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": "1970-01-01T00:01:40Z" }],
            },
        }));
        observe::node(&node, GPU, 3)
    };
    let up = node("True", json!({}), json!({}));
    assert_eq!((up.free_gpus, up.storage_bytes, up.away_since_s, up.cordoned), (5, 10 << 30, None, false));
    let away = node("Unknown", json!({ "unschedulable": true }), json!({ "fuelrail.dev/storage": "2T" }));
    assert_eq!((away.storage_bytes, away.away_since_s, away.cordoned), (2_000_000_000_000, Some(100), true));
}

#[test]
fn pods_are_seen_behind_their_gate_and_patched_once() {
    let container = json!({ "name": "x", "resources": { "limits": { "nvidia.com/gpu": "4" } } });
    let mut pod: Pod = typed(json!({
        "metadata": { "name": "p", "namespace": "ml", "resourceVersion": "9",
            "labels": { "fuelrail.dev/dataset": "photos", "jobset.sigs.k8s.io/jobset-name": "s", "batch.kubernetes.io/job-name": "j" },
            "annotations": { "fuelrail.dev/locality": "Required" } },
        "spec": { "containers": [container, container], "schedulingGates": [{ "name": "fuelrail.dev/placement" }] },
    }));
    let gated = observe::gated(&pod, GPU).unwrap();
    assert_eq!((gated.group.as_str(), gated.gpus, gated.locality), ("s", 8, Some(Locality::Required)));
    let placement = Placement { required: vec!["h1".into()], preferred: vec![("h1".into(), 100)], best: "n1".into() };
    let patch = objects::placement_patch(&pod, &placement);
    assert_eq!((&patch["metadata"]["resourceVersion"], &patch["spec"]["schedulingGates"]), (&json!("9"), &json!([])));
    let terms = &patch["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let host = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": ["h1"] });
    assert_eq!(terms["nodeSelectorTerms"], json!([{ "matchExpressions": [host] }]));

    // Without the gate and not bound yet, it takes GPUs of the node that it was placed on.
    pod.spec.as_mut().unwrap().scheduling_gates = None;
    pod.metadata.annotations.as_mut().unwrap().insert("fuelrail.dev/placed".into(), "n1".into());
    assert!(observe::gated(&pod, GPU).is_none());
    assert_eq!(observe::used_gpus(std::iter::once(&pod), GPU).into_iter().collect::<Vec<_>>(), [("n1".to_owned(), 8)]);
    assert_eq!(observe::readers(std::iter::once(&pod), &set()), Vec::<String>::new());
    pod.spec.as_mut().unwrap().node_name = Some("n2".into());
    assert_eq!(observe::readers(std::iter::once(&pod), &set()), ["n2"]);
}
