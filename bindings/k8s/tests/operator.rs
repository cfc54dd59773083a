//! The program `fuelrail-operator run` against the fake API server: data sets and pods from creation to deletion, with faults.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fuelrail_k8s::plan::Report;
use serde_json::{Value, json};

use crate::api::{Api, Fault};

const SET: &str = "/apis/fuelrail.dev/v1alpha1/namespaces/ml/datasets/photos";
const JOBS: &str = "/apis/batch/v1/jobs";
const POD: &str = "/api/v1/namespaces/ml/pods/train-0";
const PATIENCE: Duration = Duration::from_secs(90);

/// A replica of the operator, killed at the end of the test.
struct Replica {
    child: Child,
    metrics: String,
    _folder: tempfile::TempDir,
}

impl Replica {
    fn start(api: &Api, name: &str) -> Replica {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config");
        let cluster = json!([{ "name": "c", "cluster": { "server": format!("http://{}", api.address) } }]);
        let context = json!([{ "name": "c", "context": { "cluster": "c", "user": "u" } }]);
        let user = json!([{ "name": "u", "user": {} }]);
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "clusters": cluster, "contexts": context, "users": user,
            "current-context": "c",
        });
        std::fs::write(&config, text.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fuelrail-operator"));
        command.args(["run", "--image", "fuelrail:test", "--listen", "127.0.0.1:0", "--identity", name]);
        let mut child = command.env("KUBECONFIG", &config).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let metrics = first.strip_prefix("metrics on http://").expect(&first).trim_end_matches("/metrics").to_owned();
        // Further lines appear in the output of a test that fails.
        std::thread::spawn(move || lines.for_each(|line| eprintln!("operator: {}", line.unwrap_or_default())));
        Replica { child, metrics, _folder: folder }
    }

    fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.metrics).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Sends SIGTERM and waits for the end.
    fn stop(mut self) {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `find` finds something, while the Jobs run.
fn wait<T>(cluster: &Cluster, what: &str, find: impl Fn(&Api) -> Option<T>) -> T {
    poll(&cluster.api, what, |api| {
        cluster.run_jobs();
        find(api)
    })
}

/// Waits until `find` finds something.
fn poll<T>(api: &Api, what: &str, find: impl Fn(&Api) -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = find(api) {
            return found;
        }
        let (set, log) = (api.get(SET), api.log());
        assert!(Instant::now() < until, "{what}: {set:#?} {:#?}", log.iter().rev().take(12).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn condition(set: &Value, type_: &str) -> String {
    let all = set["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|condition| condition["type"] == type_);
    found.map_or_else(String::new, |found| found["status"].as_str().unwrap().to_owned())
}

fn is_agent(job: &Value) -> bool {
    job["metadata"]["annotations"]["fuelrail.dev/task"].as_str().unwrap().contains("\"kind\":\"Serve\"")
}

fn node_info() -> Value {
    let names = [
        "architecture",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    let mut info: Value = names.iter().map(|name| (name.to_string(), json!(""))).collect();
    info["bootID"] = json!("boot");
    info
}

/// The fake API server with two nodes, and the work of the kubelet and the Job controller.
struct Cluster {
    api: Api,
}

impl Cluster {
    fn start() -> Cluster {
        let api = Api::start();
        for (name, gpus) in [("a", "2"), ("b", "4")] {
            let ready = json!([{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
            let allocatable = json!({ "ephemeral-storage": "100Gi", "nvidia.com/gpu": gpus });
            let node = json!({
                "metadata": { "labels": { "kubernetes.io/hostname": format!("{name}.local") } },
                "status": { "conditions": ready, "allocatable": allocatable, "nodeInfo": node_info() },
            });
            api.put(&format!("/api/v1/nodes/{name}"), node);
        }
        Cluster { api }
    }

    fn add_set(&self, shares: u32) {
        let disk = json!({ "path": "/var/lib/fuelrail", "limit": "150" });
        let spec = json!({
            "uri": "s3://bucket/photos/", "tiers": { "disk": disk }, "preload": { "shares": shares, "copies": 1 },
            "locality": "Required", "credentialsSecret": "keys",
        });
        self.api.put(SET, json!({ "spec": spec }));
    }

    fn add_pod(&self) {
        let labels = json!({ "fuelrail.dev/dataset": "photos", "batch.kubernetes.io/job-name": "train" });
        let term = json!({ "matchExpressions": [{ "key": "pool", "operator": "In", "values": ["gpu"] }] });
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } } });
        let resources = json!({ "limits": { "nvidia.com/gpu": "2" } });
        let spec = json!({
            "schedulingGates": [{ "name": "fuelrail.dev/placement" }, { "name": "another.dev/gate" }],
            "affinity": affinity, "containers": [{ "name": "train", "image": "x", "resources": resources }],
        });
        self.api.put(POD, json!({ "metadata": { "labels": labels }, "spec": spec }));
    }

    /// Makes agents ready, completes every other running Job with a pod that reports a whole share of 100 bytes, and removes Jobs that are being deleted.
    fn run_jobs(&self) {
        for job in self.api.list(JOBS) {
            let (meta, name) = (&job["metadata"], job["metadata"]["name"].as_str().unwrap());
            let path = format!("/apis/batch/v1/namespaces/ml/jobs/{name}");
            let pods = self.api.list("/api/v1/pods");
            let own = pods.iter().filter(|pod| pod["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]);
            let own: Vec<String> = own.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect();
            if !meta["deletionTimestamp"].is_null() {
                own.iter().for_each(|pod| self.api.remove(&format!("/api/v1/namespaces/ml/pods/{pod}")));
                self.api.remove(&path);
            } else if job["status"].is_null() && is_agent(&job) {
                let mut ready = job.clone();
                ready["status"] = json!({ "active": 1, "ready": 1 });
                self.api.put(&path, ready);
            } else if job["status"].is_null() {
                let report = Report {
                    share_bytes: 100,
                    held_bytes: 100,
                    held_blocks: 1,
                    boot_id: "boot".into(),
                    ..Report::default()
                };
                self.add_worker(meta["uid"].as_str().unwrap(), &serde_json::to_string(&report).unwrap());
                self.end(&path, &job);
            }
        }
    }

    fn add_worker(&self, job: &str, message: &str) {
        let owner = json!({ "apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": job, "controller": true });
        let end = json!({ "exitCode": 0, "message": message });
        let status = json!({ "name": "fuelrail", "image": "x", "imageID": "x", "ready": false, "restartCount": 0, "state": { "terminated": end } });
        let pod = json!({
            "metadata": { "ownerReferences": [owner] },
            "spec": { "containers": [] },
            "status": { "phase": "Succeeded", "containerStatuses": [status] },
        });
        self.api.put(&format!("/api/v1/namespaces/ml/pods/worker-of-{job}"), pod);
    }

    fn end(&self, path: &str, job: &Value) {
        let mut ended = job.clone();
        ended["status"] = json!({ "conditions": [{ "type": "Complete", "status": "True" }] });
        self.api.put(path, ended);
    }
}

#[test]
fn a_data_set_is_loaded_its_pod_is_placed_and_its_disks_are_cleaned() {
    let cluster = Cluster::start();
    let api = &cluster.api;
    cluster.add_set(2);
    cluster.add_pod();
    let replica = Replica::start(api, "one");
    // Two shares of 100 bytes and disks of 150: one share on each node, one after the other.
    let set = wait(&cluster, "ready", |api| api.get(SET).filter(|set| condition(set, "Ready") == "True"));
    let nodes = set["status"]["nodes"].as_array().unwrap();
    let mut held: Vec<_> =
        nodes.iter().map(|node| (node["name"].as_str().unwrap(), &node["shares"][0]["index"])).collect();
    held.sort_by_key(|(name, _)| *name);
    assert_eq!(held.len(), 2, "{nodes:?}");
    assert_eq!((held[0].0, held[1].0, &set["status"]["totalBytes"]), ("a", "b", &json!(200)));
    assert_eq!(set["metadata"]["finalizers"], json!(["fuelrail.dev/disk"]));

    let free = |pod: &Value| pod["spec"]["schedulingGates"] == json!([{ "name": "another.dev/gate" }]);
    let pod = wait(&cluster, "placed", |api| api.get(POD).filter(free));
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
    let asked = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"];
    let hosts = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": ["a.local", "b.local"] });
    assert_eq!(asked, &json!([{ "key": "pool", "operator": "In", "values": ["gpu"] }, hosts]));
    assert_eq!(affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array().unwrap().len(), 2);
    let log = api.log();
    let patches = log.iter().filter(|line| line.starts_with("PATCH") && line.contains("/pods/train-0"));
    assert_eq!(patches.count(), 1, "gate and affinity go in one patch");
    assert!(log.iter().filter(|line| line.contains("/status")).all(|line| line.contains("apply-patch")), "{log:#?}");

    // A pass counts when it has placed.
    let told =
        ["fuelrail_operator_placements_total 1\n", "fuelrail_operator_datasets_ready 1\n", "build_info{version=\""];
    let is_told = |page: &String| told.iter().all(|line| page.contains(line));
    wait(&cluster, "counted", |_| Some(replica.page("/metrics")).filter(is_told));
    assert!(replica.page("/readyz").starts_with("HTTP/1.1 200"));
    let reasons: Vec<_> =
        api.list("/apis/events.k8s.io/v1/events").iter().map(|event| event["reason"].clone()).collect();
    assert!(["Ready", "Placed", "Loading"].iter().all(|reason| reasons.contains(&json!(reason))), "{reasons:?}");

    // A reader keeps its node's disk from being cleaned; when it has ended, all disks are cleaned and the data set is removed.
    let mut running = pod.clone();
    running["spec"]["nodeName"] = json!("a");
    running["spec"]["schedulingGates"] = json!([]);
    api.put(POD, running);
    let mut deleted = api.get(SET).unwrap();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    api.put(SET, deleted);
    let left =
        |set: &Value| set["status"]["nodes"].as_array().is_some_and(|all| all.len() == 1 && all[0]["name"] == "a");
    wait(&cluster, "b is clean", |api| api.get(SET).filter(left));
    api.remove(POD);
    wait(&cluster, "gone", |api| api.get(SET).is_none().then_some(()));
    wait(&cluster, "no Jobs", |api| api.list(JOBS).is_empty().then_some(()));
    replica.stop();
}

/// An agent starts when a node is loaded, pods go where it serves, and it ends before the disk is cleaned.
#[test]
fn an_agent_follows_the_load_and_is_gone_before_the_data_set_is() {
    let cluster = Cluster::start();
    let api = &cluster.api;
    cluster.add_set(1);
    let mut set = api.get(SET).unwrap();
    set["spec"]["agent"] = json!({ "settings": { "batch_size": "8" } });
    api.put(SET, set);
    cluster.add_pod();
    let replica = Replica::start(api, "one");
    let free = |pod: &Value| pod["spec"]["schedulingGates"] == json!([{ "name": "another.dev/gate" }]);
    let pod = wait(&cluster, "placed", |api| api.get(POD).filter(free));
    let set = api.get(SET).unwrap();
    let record = &set["status"]["nodes"][0];
    assert_eq!((condition(&set, "Ready"), &record["serving"]), ("True".into(), &json!(true)));
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let hosts = &required["nodeSelectorTerms"][0]["matchExpressions"][1]["values"];
    assert_eq!(hosts, &json!([format!("{}.local", record["name"].as_str().unwrap())]));
    let jobs = api.list(JOBS);
    assert!(jobs.len() == 1 && is_agent(&jobs[0]), "{jobs:?}");

    api.remove(POD);
    let mut deleted = api.get(SET).unwrap();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    api.put(SET, deleted);
    let ends = |job: &Value| is_agent(job) && !job["metadata"]["deletionTimestamp"].is_null();
    poll(api, "the agent ends", |api| api.list(JOBS).into_iter().find(ends));
    assert_eq!(api.list(JOBS).len(), 1, "its pod is there still");
    wait(&cluster, "gone", |api| api.get(SET).is_none().then_some(()));
    wait(&cluster, "no Jobs", |api| api.list(JOBS).is_empty().then_some(()));
    replica.stop();
}

/// A data set's name may be longer than the label by which pods give it.
#[test]
fn a_data_set_with_a_name_that_no_label_holds_is_refused_and_can_be_deleted() {
    let cluster = Cluster::start();
    let api = &cluster.api;
    let path = format!("/apis/fuelrail.dev/v1alpha1/namespaces/ml/datasets/{}", "p".repeat(64));
    let tiers = json!({ "disk": { "path": "/var/lib/fuelrail", "limit": "150" } });
    api.put(&path, json!({ "spec": { "uri": "s3://bucket/photos/", "tiers": tiers } }));
    let replica = Replica::start(api, "one");
    let refused = |set: &Value| condition(set, "Degraded") == "True";
    let mut set = wait(&cluster, "refused", |api| api.get(&path).filter(refused));
    assert_eq!((condition(&set, "Ready"), &set["status"]["nodes"]), ("False".into(), &json!([])));
    set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    api.put(&path, set);
    wait(&cluster, "gone", |api| api.get(&path).is_none().then_some(()));
    replica.stop();
}

#[test]
fn faults_of_every_kind_only_take_time() {
    let cluster = Cluster::start();
    let api = &cluster.api;
    use Fault::{AnswerLost, Conflict, Refused};
    api.fault(&[Refused, AnswerLost, Conflict, AnswerLost, Refused, Conflict, AnswerLost]);
    cluster.add_set(2);
    let replica = Replica::start(api, "one");
    wait(&cluster, "a Job", |api| (!api.list(JOBS).is_empty()).then_some(()));
    api.break_watches(false);
    api.fault(&[AnswerLost, Conflict]);
    wait(&cluster, "half", |api| api.get(SET).filter(|set| set["status"]["readyShares"] == 1));
    api.break_watches(true);
    wait(&cluster, "ready", |api| api.get(SET).filter(|set| condition(set, "Ready") == "True"));
    let page = replica.page("/metrics");
    let errors = page.lines().find_map(|line| line.strip_prefix("fuelrail_operator_api_errors_total ")).unwrap();
    assert!(errors.parse::<u64>().unwrap() >= 5, "{page}");
    replica.stop();
}

/// A pod that another Job owns reports that the share is whole.
#[test]
fn only_pods_of_the_own_job_are_believed() {
    let cluster = Cluster::start();
    let api = &cluster.api;
    cluster.add_set(1);
    let replica = Replica::start(api, "one");
    let job = poll(api, "a Job", |api| api.list(JOBS).pop());
    let whole = serde_json::to_string(&Report { share_bytes: 100, held_bytes: 100, ..Report::default() }).unwrap();
    cluster.add_worker("uid-of-another", &whole);
    let spec = &job["spec"]["template"]["spec"];
    assert_eq!(spec["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["name"], "keys");
    assert_eq!(spec["volumes"][0]["hostPath"]["path"], "/var/lib/fuelrail/ml.photos");
    let path = format!("/apis/batch/v1/namespaces/ml/jobs/{}", job["metadata"]["name"].as_str().unwrap());
    cluster.end(&path, &job);
    let failed = |set: &Value| set["status"]["nodes"][0]["failures"] == 1;
    let set = poll(api, "a failure", |api| api.get(SET).filter(failed));
    assert_eq!((condition(&set, "Ready"), condition(&set, "Degraded")), ("False".into(), "True".into()));
    // The report of the next Job's own pod counts.
    wait(&cluster, "ready", |api| api.get(SET).filter(|set| condition(set, "Ready") == "True"));
    replica.stop();
}

/// `kubectl delete job` removes a Job while its pod still writes.
#[test]
fn no_job_starts_on_a_node_before_the_pod_of_a_removed_one_has_ended() {
    let cluster = Cluster::start();
    let api = &cluster.api;
    cluster.add_set(1);
    let replica = Replica::start(api, "one");
    let job = poll(api, "a Job", |api| api.list(JOBS).pop());
    replica.stop();
    let (name, mut pod) = (&job["metadata"]["name"], job["spec"]["template"].clone());
    pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = name.clone();
    let owner = json!({ "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": true });
    pod["metadata"]["ownerReferences"] = json!([owner]);
    api.put("/api/v1/namespaces/ml/pods/left", pod);
    api.remove(&format!("/apis/batch/v1/namespaces/ml/jobs/{}", name.as_str().unwrap()));
    let replica = Replica::start(api, "two");
    let passed = |page: &String| {
        let passes = page.lines().find_map(|line| line.strip_prefix("fuelrail_operator_reconcile_passes_total "));
        passes.is_some_and(|number| number != "0")
    };
    poll(api, "a pass", |_| Some(replica.page("/metrics")).filter(passed));
    assert!(api.list(JOBS).is_empty());
    api.remove("/api/v1/namespaces/ml/pods/left");
    poll(api, "the next Job", |api| api.list(JOBS).pop());
    replica.stop();
}

#[test]
fn one_replica_leads_and_the_next_takes_over() {
    let cluster = Cluster::start();
    let api = &cluster.api;
    let holder =
        |api: &Api| Some(api.list("/apis/coordination.k8s.io/v1/leases").pop()?["spec"]["holderIdentity"].clone());
    let one = Replica::start(api, "one");
    wait(&cluster, "one leads", |api| holder(api).filter(|who| who == "one"));
    let two = Replica::start(api, "two");
    wait(&cluster, "two has seen the cluster", |_| two.page("/readyz").starts_with("HTTP/1.1 200").then_some(()));
    assert!(two.page("/metrics").contains("fuelrail_operator_leader 0\n"));
    one.stop();
    wait(&cluster, "two leads", |api| holder(api).filter(|who| who == "two"));
    cluster.add_set(1);
    wait(&cluster, "two works", |api| api.get(SET).filter(|set| condition(set, "Ready") == "True"));
    two.stop();
}
