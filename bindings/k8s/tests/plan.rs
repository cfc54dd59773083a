//! Single decisions of the pure part, for which a failing simulation would not say what is wrong.

use fuelrail_k8s::dataset::{Dataset, DatasetSpec, DatasetStatus, FINALIZER, NodeStatus, Task, TaskKind};
use fuelrail_k8s::plan::{Action, Job, JobOutcome, Node, Outcome, Report, View, is, reconcile};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

const NOW_S: i64 = 1_000_000;

fn set(spec: Value) -> Dataset {
    let mut set = Dataset::new("photos", serde_json::from_value::<DatasetSpec>(spec).unwrap());
    let meta = &mut set.metadata;
    (meta.namespace, meta.uid, meta.generation) = (Some("ml".into()), Some("u".into()), Some(1));
    meta.finalizers = Some(vec![FINALIZER.into()]);
    set
}

fn spec(shares: u32, copies: u32, limit: &str) -> Value {
    let preload = json!({ "shares": shares, "copies": copies });
    json!({ "uri": "s3://b/", "tiers": { "disk": { "limit": limit } }, "preload": preload })
}

fn node(name: &str, storage_bytes: u64) -> Node {
    let (hostname, machine) = (name.to_owned(), format!("{name}/1"));
    Node { name: name.into(), hostname, machine, storage_bytes, free_gpus: 4, ..Node::default() }
}

fn step(set: &Dataset, job: Option<&Job>, nodes: &[Node], now_s: i64) -> Outcome {
    let roots = ["/var/lib/fuelrail".to_owned()];
    reconcile(set, View { job, nodes, readers: &[], roots: &roots, now_s })
}

/// Carries out the next load, whose report says that `missing` of its 100 bytes are missing. Returns its task.
fn load(set: &mut Dataset, nodes: &[Node], missing: u64, now_s: i64) -> Option<Task> {
    let outcome = step(set, None, nodes, now_s);
    set.status = Some(outcome.status);
    let Action::CreateJob(task) = outcome.action else { return None };
    let (held_bytes, boot_id) = (100 - missing, "1".into());
    let report = Report { share_bytes: 100, missing_bytes: missing, held_bytes, boot_id, ..Report::default() };
    let uid = format!("job-{now_s}-{}-{}", task.node, task.share);
    let (task, outcome) = (Some(task), JobOutcome::Succeeded(Some(report)));
    let job = Job { uid: uid.clone(), task: task.clone(), deleting: false, outcome };
    let outcome = step(set, Some(&job), nodes, now_s);
    assert_eq!(outcome.action, Action::DeleteJob(uid));
    set.status = Some(outcome.status);
    task
}

#[test]
fn shares_go_first_fit_along_the_weights() {
    // As in the paper's table: the largest disk first, then the node that already holds some of it, until it is full.
    let nodes = [node("n1", 1000), node("n2", 1000), node("n3", 2000)];
    let mut set = set(spec(5, 1, "250"));
    let mut went = Vec::new();
    while let Some(task) = load(&mut set, &nodes, 0, NOW_S) {
        assert!(!is(&set, "Ready") || went.len() == 4, "ready with {} of 5 shares", went.len() + 1);
        went.push((task.node, task.share));
    }
    let went: Vec<_> = went.iter().map(|(node, share)| (node.as_str(), *share)).collect();
    assert_eq!(went, [("n3", 0), ("n3", 1), ("n1", 2), ("n1", 3), ("n2", 4)]);
    let status = set.status.as_ref().unwrap();
    assert!(is(&set, "Ready") && !is(&set, "Preloading") && !is(&set, "Degraded"));
    assert_eq!((status.total_bytes, status.held_bytes, status.ready_shares), (Some(500), 300, 5));
}

#[test]
fn copies_lie_on_different_nodes_and_a_set_without_room_says_so() {
    let nodes = [node("n1", 1000), node("n2", 1000)];
    let mut set = set(spec(1, 3, "1Ki"));
    let went: Vec<_> = std::iter::from_fn(|| load(&mut set, &nodes, 0, NOW_S)).map(|task| task.node).collect();
    assert_eq!(went, ["n1", "n2"]);
    assert!(!is(&set, "Ready") && is(&set, "Degraded") && is(&set, "Preloading"));
    let conditions = &set.status.as_ref().unwrap().conditions;
    let degraded = conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
    assert_eq!((degraded.reason.as_str(), degraded.message.as_str()), ("NoNode", "no node has room for share 0"));
}

#[test]
fn a_share_that_lacks_a_byte_is_tried_again_later_and_then_elsewhere() {
    let nodes = [node("n1", 1000), node("n2", 1000)];
    let mut set = set(spec(1, 1, "1Ki"));
    assert_eq!(load(&mut set, &nodes, 1, NOW_S).unwrap().node, "n1");
    assert!(!is(&set, "Ready") && is(&set, "Degraded"));
    let outcome = step(&set, None, &nodes, NOW_S + 3);
    assert_eq!((outcome.action, outcome.again_s), (Action::None, Some(7)));
    assert_eq!(load(&mut set, &nodes, 1, NOW_S + 10).unwrap().node, "n1");
    assert_eq!(load(&mut set, &nodes, 0, NOW_S + 11).unwrap().node, "n2");
    assert!(is(&set, "Ready"));
}

#[test]
fn a_node_that_is_away_counts_no_more_and_is_replaced_after_a_while() {
    let mut nodes = [node("n1", 1000), node("n2", 1000)];
    let mut set = set(spec(1, 1, "1Ki"));
    load(&mut set, &nodes, 0, NOW_S).unwrap();
    let ready_since = |set: &Dataset| set.status.as_ref().unwrap().conditions[0].last_transition_time.0.as_second();
    set.status = Some(step(&set, None, &nodes, NOW_S + 50).status);
    assert_eq!((is(&set, "Ready"), ready_since(&set)), (true, NOW_S));
    nodes[0].away_since_s = Some(NOW_S + 60);
    let outcome = step(&set, None, &nodes, NOW_S + 60);
    set.status = Some(outcome.status);
    assert_eq!((is(&set, "Ready"), ready_since(&set), outcome.action), (false, NOW_S + 60, Action::None));
    assert_eq!(load(&mut set, &nodes, 0, NOW_S + 360).unwrap().node, "n2");
    assert!(is(&set, "Ready"));
}

#[test]
fn directories_that_the_operator_was_not_given_are_refused() {
    for path in ["/etc", "/var/lib/fuelrail/../../../etc", "/var/lib", ""] {
        let mut spec = spec(1, 1, "1Ki");
        spec["tiers"]["disk"]["path"] = json!(path);
        let mut set = set(spec);
        let outcome = step(&set, None, &[node("n1", 1000)], NOW_S);
        set.status = Some(outcome.status);
        assert_eq!((outcome.action, is(&set, "Ready"), is(&set, "Degraded")), (Action::None, false, true), "{path}");
    }
}

#[test]
fn a_job_that_no_task_names_is_deleted_and_its_report_is_not_believed() {
    let nodes = [node("n1", 1000)];
    let mut set = set(spec(1, 1, "1Ki"));
    set.status = Some(step(&set, None, &nodes, NOW_S).status);
    let task = set.status.as_ref().unwrap().task.clone().unwrap();
    let report = Report { share_bytes: 100, held_bytes: 100, ..Report::default() };
    for other in [Task { share: 1, ..task.clone() }, Task { kind: TaskKind::Clean, ..task.clone() }] {
        let outcome = JobOutcome::Succeeded(Some(report.clone()));
        let job = Job { uid: "x".into(), task: Some(other), deleting: false, outcome };
        let outcome = step(&set, Some(&job), &nodes, NOW_S);
        assert_eq!((outcome.action, outcome.status.ready_shares), (Action::DeleteJob("x".into()), 0));
    }
}

/// Write access to a status must not choose the directory that a root program empties.
#[test]
fn no_status_makes_the_operator_clean_another_directory() {
    let nodes = [node("n1", 1000)];
    let mut set = set(spec(1, 1, "1Ki"));
    set.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    for (path, cleans) in
        [("/etc", false), ("/var/lib/fuelrail/ml.other", false), ("/var/lib/fuelrail/ml.photos", true)]
    {
        let record =
            NodeStatus { name: "n1".into(), machine: "n1/1".into(), path: path.into(), ..NodeStatus::default() };
        set.status = Some(DatasetStatus { nodes: vec![record], ..DatasetStatus::default() });
        let action = step(&set, None, &nodes, NOW_S).action;
        assert_eq!(matches!(action, Action::CreateJob(_)), cleans, "{path}: {action:?}");
    }
}
