//! Single decisions of the pure part, for which a failing simulation would not say what is wrong.

use std::slice::from_ref;

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
    let (jobs, roots) = (job.map(from_ref).unwrap_or_default(), ["/var/lib/fuelrail".to_owned()]);
    reconcile(set, View { jobs, nodes, readers: &[], roots: &roots, now_s })
}

/// One step whose status is written. Returns its action.
fn act(set: &mut Dataset, jobs: &[Job], nodes: &[Node], now_s: i64) -> Action {
    let roots = ["/var/lib/fuelrail".to_owned()];
    let outcome = reconcile(set, View { jobs, nodes, readers: &[], roots: &roots, now_s });
    set.status = Some(outcome.status);
    outcome.action
}

/// Starts the next task and returns its Job.
fn begin(set: &mut Dataset, jobs: &[Job], nodes: &[Node], now_s: i64) -> Job {
    let action = act(set, jobs, nodes, now_s);
    let Action::CreateJob(task) = action else { panic!("{action:?} {:?}", set.status) };
    let uid = format!("job-{now_s}-{}", task.node);
    Job { uid, task: Some(task), deleting_since_s: None, outcome: JobOutcome::Running }
}

fn node_of(job: &Job) -> &str {
    &job.task.as_ref().unwrap().node
}

/// Reason and message of a condition.
fn said<'a>(set: &'a Dataset, type_: &str) -> (&'a str, &'a str) {
    let conditions = &set.status.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (found.reason.as_str(), found.message.as_str())
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
    let job = Job { uid: uid.clone(), task: task.clone(), deleting_since_s: None, outcome };
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
    assert_eq!(said(&set, "Degraded"), ("NoNode", "no node has room for share 0"));
}

#[test]
fn shares_that_had_to_go_for_another_are_loaded_where_there_is_room() {
    let nodes = [node("n1", 1000), node("n2", 900)];
    let mut set = set(spec(2, 1, "250"));
    assert_eq!(load(&mut set, &nodes, 0, NOW_S).unwrap().node, "n1");
    // By the limit there is room for both on the first node; on its disk there is not.
    let mut second = begin(&mut set, &[], &nodes, NOW_S + 1);
    assert_eq!(node_of(&second), "n1");
    let report = Report { share_bytes: 100, held_bytes: 160, boot_id: "1".into(), ..Report::default() };
    second.outcome = JobOutcome::Succeeded(Some(Report { evicted_segments: 1, ..report }));
    assert_eq!(act(&mut set, from_ref(&second), &nodes, NOW_S + 2), Action::DeleteJob(second.uid.clone()));
    assert!(!is(&set, "Ready"), "the first share may have lost blocks");
    let again = load(&mut set, &nodes, 0, NOW_S + 3).unwrap();
    assert_eq!((again.node.as_str(), again.share), ("n2", 0));
    assert!(is(&set, "Ready"));
    let full = |set: &Dataset| set.status.as_ref().unwrap().nodes[0].full.is_some();
    let mut replaced = nodes.clone();
    replaced[0].machine = "n1/2".into();
    let outcome = step(&set, None, &replaced, NOW_S + 4);
    assert!(full(&set), "it is of a disk");
    set.status = Some(outcome.status);
    assert!(!full(&set), "and another machine has another disk");
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

/// The pod of a node that is away cannot end, so its Job stays until the node is back.
#[test]
fn a_job_whose_node_is_away_for_long_is_given_up_and_holds_up_nothing_else() {
    let mut nodes = [node("n1", 1000), node("n2", 1000)];
    let mut set = set(spec(1, 1, "1Ki"));
    let mut stuck = begin(&mut set, &[], &nodes, NOW_S);
    assert_eq!(node_of(&stuck), "n1");
    nodes[0].away_since_s = Some(NOW_S + 1);
    assert_eq!(act(&mut set, from_ref(&stuck), &nodes, NOW_S + 300), Action::None);
    assert!(!is(&set, "Degraded"));
    assert_eq!(act(&mut set, from_ref(&stuck), &nodes, NOW_S + 302), Action::DeleteJob(stuck.uid.clone()));
    assert!(is(&set, "Degraded") && !is(&set, "Ready"));
    assert_eq!(said(&set, "Degraded"), ("TaskFailed", "n1: the node has not been ready for 300 s"));

    stuck.deleting_since_s = Some(NOW_S + 302);
    let mut whole = begin(&mut set, from_ref(&stuck), &nodes, NOW_S + 303);
    assert_eq!(node_of(&whole), "n2");
    let report = Report { share_bytes: 100, held_bytes: 100, boot_id: "1".into(), ..Report::default() };
    whole.outcome = JobOutcome::Succeeded(Some(report));
    let uid = whole.uid.clone();
    assert_eq!(act(&mut set, &[stuck.clone(), whole], &nodes, NOW_S + 400), Action::DeleteJob(uid));
    assert!(is(&set, "Ready") && !is(&set, "Degraded"));

    // The node is back and the data set is deleted: no other Job starts on the node before the old one is gone.
    nodes[0].away_since_s = None;
    set.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(act(&mut set, from_ref(&stuck), &nodes, NOW_S + 500), Action::None);
    assert_eq!(node_of(&begin(&mut set, from_ref(&stuck), &nodes, NOW_S + 602)), "n2");
    assert!(is(&set, "Degraded") && said(&set, "Degraded").1.starts_with("n1: the pod of a deleted Job"));
    let mut cleaned = Vec::new();
    while set.status.as_ref().is_some_and(|status| !status.nodes.is_empty()) {
        let mut job = begin(&mut set, &[], &nodes, NOW_S + 700);
        job.outcome = JobOutcome::Succeeded(None);
        assert_eq!(act(&mut set, from_ref(&job), &nodes, NOW_S + 700), Action::DeleteJob(job.uid.clone()));
        cleaned.push(node_of(&job).to_owned());
    }
    assert_eq!(cleaned, ["n2", "n1"]);
    assert_eq!(act(&mut set, from_ref(&stuck), &nodes, NOW_S + 700), Action::None);
    assert_eq!(act(&mut set, &[], &nodes, NOW_S + 700), Action::RemoveFinalizer);
}

#[test]
fn a_job_that_does_not_start_is_given_up_and_other_nodes_go_on() {
    let nodes = [node("n1", 1000), node("n2", 1000)];
    let mut set = set(spec(1, 1, "1Ki"));
    let mut job = begin(&mut set, &[], &nodes, NOW_S);
    job.outcome = JobOutcome::NotStarted(NOW_S, "ImagePullBackOff".into());
    let outcome = step(&set, Some(&job), &nodes, NOW_S + 60);
    assert_eq!((outcome.action, outcome.again_s), (Action::None, Some(240)));
    assert_eq!(act(&mut set, from_ref(&job), &nodes, NOW_S + 300), Action::DeleteJob(job.uid.clone()));
    let why = "n1: its Job has not started for 300 s: ImagePullBackOff";
    assert_eq!((is(&set, "Degraded"), said(&set, "Degraded")), (true, ("TaskFailed", why)));
    let mut again = begin(&mut set, &[], &nodes, NOW_S + 310);
    again.outcome = JobOutcome::NotStarted(NOW_S + 310, "ImagePullBackOff".into());
    assert_eq!(act(&mut set, from_ref(&again), &nodes, NOW_S + 610), Action::DeleteJob(again.uid.clone()));
    assert_eq!((node_of(&again), node_of(&begin(&mut set, &[], &nodes, NOW_S + 611))), ("n1", "n2"));
}

/// The operator was not running for 5 minutes.
#[test]
fn a_job_that_ended_before_its_node_went_away_counts() {
    let mut nodes = [node("n1", 1000)];
    let mut set = set(spec(1, 1, "1Ki"));
    load(&mut set, &nodes, 0, NOW_S).unwrap();
    set.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let mut job = begin(&mut set, &[], &nodes, NOW_S);
    job.outcome = JobOutcome::Succeeded(None);
    nodes[0].away_since_s = Some(NOW_S + 1);
    assert_eq!(act(&mut set, from_ref(&job), &nodes, NOW_S + 301), Action::DeleteJob(job.uid.clone()));
    assert!(set.status.as_ref().unwrap().nodes.is_empty(), "{:?}", set.status);
}

/// Blocks belong to one user, and their directory, too.
#[test]
fn for_another_user_the_disks_are_cleaned_and_loaded_again() {
    let nodes = [node("n1", 1000)];
    let mut set = set(spec(1, 1, "1Ki"));
    load(&mut set, &nodes, 0, NOW_S).unwrap();
    assert!(is(&set, "Ready"));
    // As in records of versions that did not know the user.
    assert_eq!(set.status.as_ref().unwrap().nodes[0].source, "s3://b/ -");
    (set.spec.user, set.metadata.generation) = (1000, Some(2));
    let cleaning = begin(&mut set, &[], &nodes, NOW_S);
    assert_eq!((cleaning.task.unwrap().kind, is(&set, "Ready")), (TaskKind::Clean, false));
}

/// One step with pods that read on these nodes, whose status is written.
fn act_beside(set: &mut Dataset, jobs: &[Job], nodes: &[Node], readers: &[&str]) -> Action {
    let (readers, roots) =
        (readers.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), ["/var/lib/fuelrail".to_owned()]);
    let outcome = reconcile(set, View { jobs, nodes, readers: &readers, roots: &roots, now_s: NOW_S });
    set.status = Some(outcome.status);
    outcome.action
}

fn serving(set: &Dataset) -> Vec<&str> {
    let nodes = set.status.iter().flat_map(|status| &status.nodes);
    nodes.filter(|record| record.serving).map(|record| record.name.as_str()).collect()
}

/// A data set that is loaded onto `n1`, and the Job of the agent there, which serves.
fn served(nodes: &[Node]) -> (Dataset, Job) {
    let mut spec = spec(1, 1, "1Ki");
    spec["agent"] = json!({ "settings": { "batch_size": "8" } });
    let mut set = set(spec);
    assert_eq!(load(&mut set, nodes, 0, NOW_S).unwrap().node, "n1");
    let mut agent = begin(&mut set, &[], nodes, NOW_S);
    assert_eq!((agent.task.as_ref().unwrap().kind, node_of(&agent)), (TaskKind::Serve, "n1"));
    assert_eq!(act(&mut set, from_ref(&agent), nodes, NOW_S), Action::None);
    assert!(serving(&set).is_empty());
    agent.outcome = JobOutcome::Serving;
    assert_eq!(act(&mut set, from_ref(&agent), nodes, NOW_S), Action::None);
    assert_eq!(serving(&set), ["n1"]);
    (set, agent)
}

#[test]
fn agents_run_where_the_data_set_lies_beside_loads_elsewhere_and_make_way_for_one_there() {
    let mut nodes = [node("n1", 1000), node("n2", 900)];
    let (mut set, mut agent) = served(&nodes);
    (set.spec.preload.as_mut().unwrap().copies, set.metadata.generation) = (2, Some(2));
    let mut copy = begin(&mut set, from_ref(&agent), &nodes, NOW_S);
    assert_eq!((copy.task.as_ref().unwrap().kind, node_of(&copy)), (TaskKind::Load, "n2"));
    assert_eq!(act(&mut set, &[agent.clone(), copy.clone()], &nodes, NOW_S), Action::None);
    assert_eq!(serving(&set), ["n1"]);
    let report = Report { share_bytes: 100, held_bytes: 100, boot_id: "1".into(), ..Report::default() };
    copy.outcome = JobOutcome::Succeeded(Some(report));
    let uid = copy.uid.clone();
    assert_eq!(act(&mut set, &[agent.clone(), copy], &nodes, NOW_S), Action::DeleteJob(uid));
    let second = begin(&mut set, from_ref(&agent), &nodes, NOW_S);
    assert_eq!((second.task.as_ref().unwrap().kind, node_of(&second)), (TaskKind::Serve, "n2"));

    // The first node has rebooted: what lies there is loaded again, and the name of its Job has to be free.
    nodes[0].machine = "n1/2".into();
    let jobs = |agent: &Job| [agent.clone(), second.clone()];
    assert_eq!(act_beside(&mut set, &jobs(&agent), &nodes, &["n1"]), Action::None);
    assert_eq!(set.status.as_ref().unwrap().task.as_ref().unwrap().node, "n1");
    assert_eq!(act_beside(&mut set, &jobs(&agent), &nodes, &["n1"]), Action::DeleteJob(agent.uid.clone()));
    agent.deleting_since_s = Some(NOW_S);
    assert_eq!(act_beside(&mut set, &jobs(&agent), &nodes, &["n1"]), Action::None);
    let again = begin(&mut set, from_ref(&second), &nodes, NOW_S);
    assert_eq!((again.task.as_ref().unwrap().kind, node_of(&again)), (TaskKind::Load, "n1"));
}

#[test]
fn an_agent_is_made_anew_for_other_settings_when_its_jobs_have_gone_and_an_invalid_edit_leaves_it() {
    let nodes = [node("n1", 1000)];
    let (mut set, agent) = served(&nodes);
    set.spec.tiers.disk.path = "/etc".into();
    assert_eq!(act(&mut set, from_ref(&agent), &nodes, NOW_S), Action::None);
    assert!(is(&set, "Degraded"));
    set.spec.tiers.disk.path = "/var/lib/fuelrail".into();
    set.spec.agent.as_mut().unwrap().settings.insert("batch_size".into(), "16".into());
    assert_eq!(act_beside(&mut set, from_ref(&agent), &nodes, &["n1"]), Action::None);
    assert!(serving(&set).is_empty(), "new jobs would be refused by it");
    assert_eq!(act(&mut set, from_ref(&agent), &nodes, NOW_S), Action::DeleteJob(agent.uid.clone()));
    let mut next = begin(&mut set, &[], &nodes, NOW_S);
    assert_ne!(next.task, agent.task);
    next.outcome = JobOutcome::Serving;
    assert_eq!(act(&mut set, from_ref(&next), &nodes, NOW_S), Action::None);
    assert_eq!(serving(&set), ["n1"]);
    // Somebody deleted its pod, which ends with success.
    next.outcome = JobOutcome::Succeeded(None);
    assert_eq!(act(&mut set, from_ref(&next), &nodes, NOW_S), Action::DeleteJob(next.uid.clone()));
    set.spec.agent = None;
    next.outcome = JobOutcome::Serving;
    assert_eq!(act(&mut set, from_ref(&next), &nodes, NOW_S), Action::DeleteJob(next.uid));
}

#[test]
fn an_agent_that_fails_or_does_not_start_says_why_and_is_started_again_later() {
    let mut nodes = [node("n1", 1000)];
    let (mut set, mut agent) = served(&nodes);
    agent.outcome = JobOutcome::Failed("there is no setting batchsize".into());
    for _ in 0..2 {
        assert_eq!(act(&mut set, from_ref(&agent), &nodes, NOW_S), Action::DeleteJob(agent.uid.clone()));
        assert_eq!(set.status.as_ref().unwrap().nodes[0].failures, 1);
    }
    assert_eq!(said(&set, "Degraded"), ("TaskFailed", "n1: there is no setting batchsize"));
    assert!(is(&set, "Ready") && is(&set, "Degraded") && serving(&set).is_empty());
    let outcome = step(&set, None, &nodes, NOW_S + 3);
    assert_eq!((outcome.action, outcome.again_s), (Action::None, Some(7)));
    let mut again = begin(&mut set, &[], &nodes, NOW_S + 10);
    again.outcome = JobOutcome::NotStarted(NOW_S + 10, "not scheduled: Insufficient memory".into());
    let outcome = step(&set, Some(&again), &nodes, NOW_S + 20);
    assert_eq!((outcome.action, outcome.again_s), (Action::None, Some(290)));
    assert_eq!(act(&mut set, from_ref(&again), &nodes, NOW_S + 310), Action::DeleteJob(again.uid.clone()));
    let why = "n1: its agent has not started for 300 s: not scheduled: Insufficient memory";
    assert_eq!(said(&set, "Degraded"), ("TaskFailed", why));
    nodes[0].cordoned = true;
    assert_eq!(act(&mut set, &[], &nodes, NOW_S + 400), Action::None);
    nodes[0].cordoned = false;
    let mut last = begin(&mut set, &[], &nodes, NOW_S + 400);
    last.outcome = JobOutcome::Serving;
    assert_eq!(act(&mut set, from_ref(&last), &nodes, NOW_S + 400), Action::None);
    assert!(!is(&set, "Degraded"), "{:?}", set.status);
}

#[test]
fn an_agent_ends_behind_its_jobs_and_before_its_disk_is_cleaned() {
    let nodes = [node("n1", 1000)];
    let (mut set, mut agent) = served(&nodes);
    set.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(act_beside(&mut set, from_ref(&agent), &nodes, &["n1"]), Action::None);
    assert_eq!(act(&mut set, from_ref(&agent), &nodes, NOW_S), Action::DeleteJob(agent.uid.clone()));
    agent.deleting_since_s = Some(NOW_S);
    assert_eq!(act(&mut set, from_ref(&agent), &nodes, NOW_S), Action::None);
    let mut cleaning = begin(&mut set, &[], &nodes, NOW_S);
    assert_eq!(cleaning.task.as_ref().unwrap().kind, TaskKind::Clean);
    cleaning.outcome = JobOutcome::Succeeded(None);
    assert_eq!(act(&mut set, from_ref(&cleaning), &nodes, NOW_S), Action::DeleteJob(cleaning.uid.clone()));
    assert_eq!(act(&mut set, from_ref(&agent), &nodes, NOW_S), Action::None, "its pod is there still");
    assert_eq!(act(&mut set, &[], &nodes, NOW_S), Action::RemoveFinalizer);
}

#[test]
fn an_agent_that_could_never_serve_is_refused() {
    let agents = [
        (json!({ "settings": { "LD_PRELOAD": "x" } }), 1, "as in TOML"),
        (json!({ "settings": { "spill_dirs": "/" } }), 1, "leave it out"),
        (json!({ "memory": "much" }), 1, "not a size"),
        (json!({}), 2, "shares: 1"),
    ];
    for (agent, shares, why) in agents {
        let mut spec = spec(shares, 1, "1Ki");
        spec["agent"] = agent;
        let mut set = set(spec);
        assert_eq!(act(&mut set, &[], &[node("n1", 1000)], NOW_S), Action::None);
        let (reason, message) = said(&set, "Degraded");
        assert!(reason == "InvalidSpec" && message.contains(why), "{message}");
    }
}

#[test]
fn a_set_for_which_jobs_would_wait_for_ever_is_refused_and_its_readers_are_still_seen() {
    for (locality, ready) in [("Required", false), ("Preferred", true)] {
        let spec = json!({ "uri": "s3://b/", "tiers": { "disk": { "limit": "1Ki" } }, "locality": locality });
        let mut set = set(spec);
        let (nodes, readers, roots) = ([node("n1", 1000)], ["n1".to_owned()], ["/var/lib/fuelrail".to_owned()]);
        let view = View { jobs: &[], nodes: &nodes, readers: &readers, roots: &roots, now_s: NOW_S };
        set.status = Some(reconcile(&set, view).status);
        assert_eq!((is(&set, "Ready"), is(&set, "Degraded")), (ready, !ready), "{locality}");
        assert!(ready || said(&set, "Degraded").1.contains("write preload"), "{:?}", said(&set, "Degraded"));
        assert_eq!(set.status.unwrap().nodes.len(), 1);
    }
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
        let job = Job { uid: "x".into(), task: Some(other), deleting_since_s: None, outcome };
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
