//! The loop around the pure part: watches, passes over all data sets and pods, and the requests that follow from them.
//!
//! One pass at a time over stores that the watches keep. A pass reads the clock once, and every write carries the resource version of
//! what it was derived from: if the stores are behind, the API server refuses (409) and the next change triggers another pass.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::runtime::reflector::{self, Store, store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

use crate::dataset::{DATASET_LABEL, Dataset, DatasetStatus, LABEL_MAX, TaskKind};
use crate::gates::{self, Verdict};
use crate::metrics::{Metric, Metrics};
use crate::objects::{MANAGED_BY, NAME};
use crate::plan::{self, Action, Outcome, View};
use crate::{objects, observe};

/// Changes within this time share one pass.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Time until the next pass after an error, and if nothing changes.
const RETRY: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(60);
/// Timeout of a request to the API server, watches excepted.
const REQUEST: Duration = Duration::from_secs(20);

/// What the operator is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Image of the Jobs: it has `fuelrail-operator` and `fuelrail`.
    pub image: String,
    /// The resource that counts GPUs.
    pub gpu: String,
    /// Directories that data sets may name.
    pub roots: Vec<String>,
}

/// The operator.
pub struct Operator {
    client: Client,
    options: Options,
    metrics: Arc<Metrics>,
    recorder: Recorder,
    nodes: Store<Node>,
    pods: Store<Pod>,
    sets: Store<Dataset>,
    jobs: Store<Job>,
    changed: Arc<Notify>,
    /// By uid of a pod, the reason for waiting in its last event.
    waiting: BTreeMap<String, String>,
}

type Failure = kube::Error;

impl Operator {
    /// Starts the watches.
    pub fn new(client: Client, options: Options, metrics: Arc<Metrics>) -> Operator {
        let changed = Arc::new(Notify::new());
        let jobs = watcher::Config::default().labels(&format!("{MANAGED_BY}={NAME}"));
        let all = watcher::Config::default;
        Operator {
            nodes: follow(&client, all(), &changed, objects::strip_node),
            pods: follow(&client, all(), &changed, objects::strip_pod),
            sets: follow(&client, all(), &changed, |_| {}),
            jobs: follow(&client, jobs, &changed, |_| {}),
            recorder: Recorder::new(client.clone(), NAME.into()),
            waiting: BTreeMap::new(),
            client,
            options,
            metrics,
            changed,
        }
    }

    /// Makes passes while `leads` is true; returns when its sender is dropped.
    pub async fn run(mut self, mut leads: watch::Receiver<bool>) {
        let ready = async {
            let _ = tokio::join!(
                self.nodes.wait_until_ready(),
                self.pods.wait_until_ready(),
                self.sets.wait_until_ready(),
                self.jobs.wait_until_ready()
            );
        };
        ready.await;
        self.metrics.synced.store(true, Ordering::Relaxed);
        let mut wait = Duration::ZERO;
        loop {
            let changed = Arc::clone(&self.changed);
            tokio::select! {
                () = changed.notified() => tokio::time::sleep(DEBOUNCE).await,
                () = tokio::time::sleep(wait) => {}
                led = leads.changed() => if led.is_err() { return },
            }
            let leading = *leads.borrow();
            if !leading {
                self.metrics.forget();
                wait = IDLE;
                continue;
            }
            self.metrics.set(Metric::Leads, 1);
            wait = self.pass(&leads).await;
        }
    }

    /// One pass. Returns the time until the next if nothing changes.
    async fn pass(&mut self, leads: &watch::Receiver<bool>) -> Duration {
        let begun = tokio::time::Instant::now();
        let now_s = Timestamp::now().as_second();
        let (pods, sets, jobs) = (self.pods.state(), self.sets.state(), self.jobs.state());
        let used = observe::used_gpus(pods.iter().map(Arc::as_ref), &self.options.gpu);
        let nodes = self.nodes.state();
        let given = |node: &Node| used.get(&node.name_any()).copied().unwrap_or(0);
        let mut nodes: Vec<_> = nodes.iter().map(|node| observe::node(node, &self.options.gpu, given(node))).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let uids: BTreeSet<String> = jobs.iter().filter_map(|job| job.uid()).collect();
        let mut wait = IDLE;
        for set in &sets {
            if !*leads.borrow() {
                return IDLE;
            }
            let own = jobs.iter().filter_map(|job| observe::job(set, job, pods.iter().map(Arc::as_ref)));
            let orphans = observe::orphans(set, &uids, pods.iter().map(Arc::as_ref), now_s);
            let own: Vec<_> = own.chain(orphans).collect();
            let readers = observe::readers(pods.iter().map(Arc::as_ref), set);
            let roots = &self.options.roots;
            let outcome = plan::reconcile(set, View { jobs: &own, nodes: &nodes, readers: &readers, roots, now_s });
            if let Some(again_s) = outcome.again_s {
                wait = wait.min(Duration::from_secs(again_s.max(1).unsigned_abs()));
            }
            let done = self.carry_out(set, outcome).await;
            wait = if self.failed("Dataset", &set.name_any(), done) { wait.min(RETRY) } else { wait };
        }
        if self.place(&pods, &sets, &nodes).await {
            wait = wait.min(RETRY);
        }
        self.count(&sets);
        self.metrics.add(Metric::Passes, 1);
        self.metrics.add(Metric::PassesUs, begun.elapsed().as_micros() as u64);
        wait
    }

    /// Writes the status under the resource version that was seen, and acts only if that was accepted.
    async fn carry_out(&self, set: &Dataset, outcome: Outcome) -> Result<(), Failure> {
        let Outcome { status, action, .. } = outcome;
        let namespace = set.namespace().unwrap_or_default();
        let sets: Api<Dataset> = Api::namespaced(self.client.clone(), &namespace);
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), &namespace);
        let name = set.name_any();
        if action == Action::AddFinalizer {
            let patch = Patch::Merge(objects::finalizer_patch(set, true));
            return within(sets.patch(&name, &PatchParams::default(), &patch)).await.map(drop);
        }
        if action == Action::None && set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let patch = Patch::Apply(objects::status_patch(set, &status));
        let written = within(sets.patch_status(&name, &PatchParams::apply(NAME).force(), &patch)).await?;
        self.tell_conditions(set, &status).await;
        match action {
            Action::None | Action::AddFinalizer => Ok(()),
            Action::RemoveFinalizer => {
                // Listed again: a pod whose gate was just removed may not be in the store yet, and it will write to a disk. No pod has
                // a label with a longer name, and the API server refuses to look for one.
                let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
                let of_set = ListParams::default().labels(&format!("{DATASET_LABEL}={name}"));
                if name.len() <= LABEL_MAX && within(pods.list(&of_set)).await?.iter().any(observe::reads) {
                    return Ok(());
                }
                let patch = Patch::Merge(objects::finalizer_patch(&written, false));
                within(sets.patch(&name, &PatchParams::default(), &patch)).await.map(drop)
            }
            Action::CreateJob(task) => {
                let job = objects::job(set, &task, &self.options.image).map_err(kube::Error::SerdeError)?;
                match within(jobs.create(&PostParams::default(), &job)).await {
                    // Created by a pass whose response was lost, or by the previous leader.
                    Err(kube::Error::Api(status)) if status.is_already_exists() => return Ok(()),
                    other => drop(other?),
                }
                self.metrics.add(Metric::Jobs, 1);
                let (reason, what) = match task.kind {
                    TaskKind::Load => ("Loading", format!("share {} of {} onto {}", task.share, task.of, task.node)),
                    TaskKind::Clean => ("Cleaning", format!("{} on {}", task.path, task.node)),
                    TaskKind::Serve => ("Serving", format!("jobs on {} from {}", task.node, task.path)),
                };
                self.tell(&set.object_ref(&()), EventType::Normal, reason, what).await;
                Ok(())
            }
            Action::DeleteJob(uid) => {
                let Some(job) = self.jobs.find(|job| job.metadata.uid.as_ref() == Some(&uid)) else { return Ok(()) };
                // Pods first: the name is free only when no pod of this Job writes to the disk any more.
                let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
                let propagation_policy = Some(PropagationPolicy::Foreground);
                let how = DeleteParams { preconditions, propagation_policy, ..DeleteParams::default() };
                match within(jobs.delete(&job.name_any(), &how)).await {
                    Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
                    other => other.map(drop),
                }
            }
        }
    }

    /// Places pods with the gate. Whether any request failed.
    async fn place(&mut self, pods: &[Arc<Pod>], sets: &[Arc<Dataset>], nodes: &[plan::Node]) -> bool {
        let gated = |pod: &Arc<Pod>| Some((Arc::clone(pod), observe::gated(pod, &self.options.gpu)?));
        let (waiting, seen): (Vec<Arc<Pod>>, Vec<gates::Pod>) = pods.iter().filter_map(gated).unzip();
        let sets: Vec<&Dataset> = sets.iter().map(Arc::as_ref).collect();
        let verdicts = gates::place(&seen, &sets, nodes);
        self.metrics.set(Metric::PodsWaiting, verdicts.len() as u64);
        let before = std::mem::take(&mut self.waiting);
        let mut failed = false;
        for (pod, verdict) in waiting.iter().zip(verdicts) {
            let about = pod.object_ref(&());
            match verdict {
                Verdict::Wait(why) => {
                    let uid = pod.uid().unwrap_or_default();
                    if before.get(&uid) != Some(&why) {
                        self.tell(&about, EventType::Normal, "WaitingForData", why.clone()).await;
                    }
                    self.waiting.insert(uid, why);
                }
                Verdict::Place(placement) => {
                    let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
                    let patch = Patch::Merge(objects::placement_patch(pod, &placement));
                    let done = within(api.patch(&pod.name_any(), &PatchParams::default(), &patch)).await;
                    if done.is_ok() {
                        self.metrics.add(Metric::Placements, 1);
                        let what = format!("{} has the highest weight", placement.best);
                        self.tell(&about, EventType::Normal, "Placed", what).await;
                    }
                    failed |= self.failed("Pod", &pod.name_any(), done.map(drop));
                }
            }
        }
        failed
    }

    /// Publishes an event for each condition that became good or bad.
    async fn tell_conditions(&self, set: &Dataset, status: &DatasetStatus) {
        for now in &status.conditions {
            let before = set.status.iter().flat_map(|status| &status.conditions).find(|c| c.type_ == now.type_);
            let turned = before.is_none_or(|before| before.status != now.status);
            let good = now.type_ == "Ready" && now.status == "True";
            let bad = now.type_ == "Degraded" && now.status == "True";
            if turned && (good || bad) {
                let type_ = if bad { EventType::Warning } else { EventType::Normal };
                let reason = if bad { now.reason.as_str() } else { "Ready" };
                self.tell(&set.object_ref(&()), type_, reason, now.message.clone()).await;
            }
        }
    }

    /// Publishes an event. A failure is counted and does not stop the pass.
    async fn tell(&self, about: &ObjectReference, type_: EventType, reason: &str, note: String) {
        let event = Event { type_, reason: reason.into(), note: Some(note), action: reason.into(), secondary: None };
        let done = within(self.recorder.publish(&event, about)).await;
        self.failed("Event", reason, done);
    }

    /// Counts and prints an error. Whether there was one.
    fn failed(&self, kind: &str, name: &str, result: Result<(), Failure>) -> bool {
        let Err(error) = result else { return false };
        self.metrics.add(Metric::Errors, 1);
        if matches!(&error, kube::Error::Api(status) if status.code == 409) {
            self.metrics.add(Metric::Conflicts, 1);
            return true;
        }
        eprintln!("warning: {kind} {name}: {error}");
        true
    }

    fn count(&self, sets: &[Arc<Dataset>]) {
        let number = |is: fn(&Dataset) -> bool| sets.iter().filter(|set| is(set)).count() as u64;
        self.metrics.set(Metric::Datasets, sets.len() as u64);
        self.metrics.set(Metric::DatasetsReady, number(|set| plan::is(set, "Ready")));
        self.metrics.set(Metric::DatasetsDegraded, number(|set| plan::is(set, "Degraded")));
        let held = sets.iter().filter_map(|set| set.status.as_ref()).map(|status| status.held_bytes).sum();
        self.metrics.set(Metric::HeldBytes, held);
    }
}

/// Runs a request with the timeout.
async fn within<T>(request: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| kube::Error::Service(format!("no answer from the API server within {REQUEST:?}").into());
    tokio::time::timeout(REQUEST, request).await.map_err(late)?
}

/// A store that a watch keeps up to date, on a task of its own. Each change notifies `changed`.
fn follow<K>(client: &Client, config: watcher::Config, changed: &Arc<Notify>, strip: fn(&mut K)) -> Store<K>
where
    K: Resource<DynamicType = ()>
        + reflector::Lookup<DynamicType = ()>
        + Clone
        + Send
        + Sync
        + std::fmt::Debug
        + 'static,
    K: serde::de::DeserializeOwned,
{
    let (reader, writer) = store();
    let (api, changed) = (Api::all(client.clone()), Arc::clone(changed));
    tokio::spawn(async move {
        let events = watcher(api, config).default_backoff().modify(strip).reflect(writer);
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(_) => changed.notify_one(),
                Err(error) => eprintln!("warning: watch of {}: {error}", <K as Resource>::plural(&())),
            }
        }
    });
    reader
}

/// Catches SIGTERM and SIGINT from now on; what is returned ends with the first of them.
///
/// # Errors
/// If signal handlers cannot be installed.
pub fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let [mut term, mut int] = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
