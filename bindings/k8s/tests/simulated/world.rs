//! A cluster in memory: an API server with resource versions, nodes with disks, Jobs that load and clean, pods, and an operator whose view
//! may be stale and whose every step may fail.

mod passes;

use std::collections::{BTreeMap, BTreeSet};

use fuelrail_k8s::dataset::{Agent, CLEAN, Dataset, DatasetSpec, Locality, Preload, TaskKind};
use fuelrail_k8s::gates::{self, Placement};
use fuelrail_k8s::plan::{self, Job, JobOutcome, Node, Report};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

const ROOT: &str = "/var/lib/fuelrail";
const SHARE_BYTES: u64 = 100;

/// A mistake planted in the operator, which the rules must detect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    None,
    /// `Ready` with one share missing.
    ReadyEarly,
    /// The gate is removed in a request of its own, before the affinity is written.
    GateFirst,
    /// The status is written whatever version it was derived from.
    NoFence,
    /// Jobs are created before the status records their task.
    ActFirst,
    /// The machine that a load ran on is not checked.
    AnyMachine,
}

/// Counts of what happened, by name.
pub(crate) type Seen = BTreeMap<&'static str, u64>;

#[derive(Clone, Default, Debug)]
struct Pod {
    pod: gates::Pod,
    gated: bool,
    placement: Option<Placement>,
    /// Name and machine.
    node: Option<(String, String)>,
    version: u64,
}

/// Objects in the API server, and a copy of them as the operator's view.
#[derive(Clone, Default)]
struct Cluster {
    nodes: Vec<Node>,
    /// By name, with the resource version.
    sets: BTreeMap<String, (u64, Dataset)>,
    /// By the uid of the data set and the name of the node, which are the Job's name.
    jobs: BTreeMap<(String, String), Job>,
    pods: BTreeMap<String, Pod>,
}

/// A directory on a disk: the source of its blocks, and the shares that are whole.
#[derive(Clone, Default, Debug)]
struct Directory {
    source: String,
    shares: BTreeSet<(u32, u32)>,
}

pub(crate) struct World {
    mistake: Mistake,
    state: u64,
    now_s: i64,
    serial: u64,
    calm: bool,
    api: Cluster,
    view: Cluster,
    /// By machine, including those that have left, which the operator's view may still have.
    disks: BTreeMap<String, BTreeMap<String, Directory>>,
    pub(crate) seen: Seen,
}

type Rule = Result<(), String>;

impl World {
    pub(crate) fn new(seed: u64, mistake: Mistake) -> World {
        let (api, view) = (Cluster::default(), Cluster::default());
        let (disks, seen) = (BTreeMap::new(), Seen::new());
        let mut world =
            World { mistake, state: seed, now_s: 1_000_000, serial: 0, calm: false, api, view, disks, seen };
        (0..4).for_each(|n| world.add_node(n));
        ["photos", "text"].iter().for_each(|name| world.add_set(name));
        world
    }

    /// Runs a phase with faults, then two without in which all data sets become ready, the first while a node stays away, then the
    /// deletion of all data sets.
    pub(crate) fn play(&mut self) -> Rule {
        for _ in 0..200 {
            self.trouble();
            self.step()?;
        }
        self.calm = true;
        self.heal();
        // The one on which a Job of a task runs, if there is one: its pod cannot end.
        let runs = self.api.jobs.iter().find(|(_, job)| job.outcome != JobOutcome::Serving);
        let runs = runs.map(|((_, node), _)| node.clone());
        let away = runs.unwrap_or_else(|| format!("n{}", self.below(4)));
        let (now_s, nodes) = (self.now_s, &mut self.api.nodes);
        nodes.iter_mut().filter(|node| node.name == away).for_each(|node| node.away_since_s = Some(now_s));
        self.settle("all is ready without a node", |world| {
            let ready = |set: &Dataset| plan::is(set, "Ready") || set.metadata.deletion_timestamp.is_some();
            world.api.sets.values().all(|(_, set)| ready(set))
        })?;
        self.api.nodes.iter_mut().for_each(|node| node.away_since_s = None);
        self.settle("all is ready", |world| {
            let served = |set: &Dataset| {
                let mut nodes = set.status.iter().flat_map(|status| &status.nodes);
                set.spec.agent.is_none() || nodes.all(|record| record.serving || record.shares.is_empty())
            };
            let ready = |set: &Dataset| plan::is(set, "Ready") && !plan::is(set, "Degraded") && served(set);
            world.api.sets.values().all(|(_, set)| ready(set)) && world.api.pods.is_empty()
        })?;
        for (version, set) in self.api.sets.values_mut() {
            (set.metadata.deletion_timestamp, *version) = (Some(Time(Timestamp::UNIX_EPOCH)), *version + 1_000_000);
        }
        self.settle("all is gone", |world| world.api.sets.is_empty() && world.api.jobs.is_empty())?;
        let left = self.api.nodes.iter().filter_map(|node| Some((&node.name, self.disks.get(&node.machine)?)));
        let left: Vec<_> = left.filter(|(_, disk)| !disk.is_empty()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {left:?}")) }
    }

    fn settle(&mut self, what: &str, done: fn(&World) -> bool) -> Rule {
        for _ in 0..600 {
            if done(self) {
                return Ok(());
            }
            self.view = self.api.clone();
            self.step()?;
        }
        let state: Vec<_> = self.api.sets.values().map(|(_, set)| (&set.metadata, &set.status)).collect();
        let pods: Vec<_> = self.api.pods.values().collect();
        Err(format!("not within 600 steps: {what}: pods {pods:?} jobs {:?} sets {state:?}", self.api.jobs))
    }

    fn step(&mut self) -> Rule {
        self.now_s += if self.calm { 60 } else { self.below(20) as i64 };
        self.run_jobs();
        self.run_pods();
        self.pass()?;
        self.holds()
    }

    /// Checks the invariants.
    fn holds(&mut self) -> Rule {
        for (name, (_, set)) in &self.api.sets {
            let preload =
                set.spec.preload.clone().unwrap_or(Preload { node_selector: BTreeMap::new(), shares: 0, copies: 0 });
            if !plan::is(set, "Ready") || set.metadata.deletion_timestamp.is_some() {
                continue;
            }
            saw(&mut self.seen, "ready");
            let status = set.status.as_ref().expect("a condition");
            let user = if set.spec.user == 0 { String::new() } else { format!(" {}", set.spec.user) };
            let source = format!("{} -{user}", set.spec.uri);
            let whole = |record: &&fuelrail_k8s::dataset::NodeStatus, share: u32| {
                let directory = self.disks.get(&record.machine).and_then(|disk| disk.get(&path(name)));
                record.shares.iter().any(|held| held.index == share)
                    && directory.is_some_and(|d| d.source == source && d.shares.contains(&(share, preload.shares)))
            };
            let short = |share: &u32| {
                (status.nodes.iter().filter(|record| whole(record, *share)).count() as u32) < preload.copies
            };
            if let Some(share) = (0..preload.shares).find(short) {
                return Err(format!("{name} is called ready without share {share}: {status:?} {:?}", self.disks));
            }
        }
        match self.api.pods.values().find(|pod| !pod.gated && pod.placement.is_none()) {
            Some(pod) => Err(format!("the gate of {} was lifted without an affinity", pod.pod.name)),
            None => Ok(()),
        }
    }

    // The cluster.

    fn add_node(&mut self, n: u64) {
        self.serial += 1;
        let (name, machine) = (format!("n{n}"), format!("machine-{}", self.serial));
        self.disks.insert(machine.clone(), BTreeMap::new());
        let hostname = name.clone();
        let (storage_bytes, free_gpus) = (100_000, 8);
        let node = Node { name, hostname, machine, storage_bytes, free_gpus, ..Node::default() };
        self.api.nodes.retain(|other| other.name != node.name);
        self.api.nodes.push(node);
    }

    fn add_set(&mut self, name: &str) {
        self.serial += 1;
        let spec = json!({ "uri": "s3://b/0", "tiers": { "disk": { "limit": "100k" } }, "preload": { "shares": 3 } });
        let mut spec: DatasetSpec = serde_json::from_value(spec).expect("a spec");
        if name == "text" {
            spec.agent = Some(agent(1));
            spec.preload.iter_mut().for_each(|preload| preload.shares = 1);
        }
        let mut set = Dataset::new(name, spec);
        set.metadata.namespace = Some("ml".into());
        (set.metadata.uid, set.metadata.generation) = (Some(format!("uid-{}", self.serial)), Some(1));
        self.api.sets.insert(name.into(), (self.serial, set));
    }

    fn trouble(&mut self) {
        // Each kind has a watch of its own, which may lag.
        let slow = self.below(4);
        (0..4).filter(|&kind| kind != slow).for_each(|kind| self.watch(kind));
        let name = if self.chance(50) { "photos" } else { "text" };
        match self.below(40) {
            0..3 => {
                let n = self.below(4);
                saw(&mut self.seen, "nodes_lost");
                self.add_node(n); // Another machine under its name.
            }
            3 => {
                let at = self.below(self.api.nodes.len() as u64) as usize;
                self.api.nodes[at].away_since_s = Some(self.now_s);
            }
            4..6 => self.api.nodes.iter_mut().for_each(|node| node.away_since_s = None),
            6 => {
                let gone = self.below(4);
                self.api.nodes.retain(|node| node.name != format!("n{gone}") || gone == 0);
            }
            7 => self.edit(name, |set, n| set.spec.uri = format!("s3://b/{}", n % 3)),
            8 => self.edit(name, |set, n| {
                let (shares, copies) = (1 + n as u32 % 4, 1 + n as u32 / 4 % 2);
                let preload = Preload { node_selector: BTreeMap::new(), shares, copies };
                set.spec.preload = (n % 5 > 0).then_some(preload);
            }),
            9 => self.edit(name, |set, n| {
                set.metadata.annotations.get_or_insert_default().insert(CLEAN.into(), n.to_string());
            }),
            10 => self.edit(name, |set, n| set.spec.tiers.disk.path = ["/etc", ROOT][n as usize % 2].into()),
            11 if self.chance(30) => {
                if let Some((version, set)) = self.api.sets.get_mut(name) {
                    self.serial += 1;
                    *version = self.serial;
                    set.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
                }
            }
            12..14 if !self.api.sets.contains_key(name) => self.add_set(name),
            14..17 => self.add_pod(name),
            17 => self.edit(name, |set, n| {
                if let Some(now) = &mut set.spec.agent {
                    *now = agent(n);
                }
            }),
            _ => {}
        }
    }

    fn watch(&mut self, kind: u64) {
        match kind {
            0 => self.view.nodes.clone_from(&self.api.nodes),
            1 => self.view.sets.clone_from(&self.api.sets),
            2 => self.view.jobs.clone_from(&self.api.jobs),
            _ => self.view.pods.clone_from(&self.api.pods),
        }
    }

    fn edit(&mut self, name: &str, change: impl FnOnce(&mut Dataset, u64)) {
        let n = self.below(1000);
        self.serial += 1;
        if let Some((version, set)) = self.api.sets.get_mut(name) {
            change(set, n);
            (*version, set.metadata.generation) = (self.serial, set.metadata.generation.map(|old| old + 1));
        }
    }

    fn add_pod(&mut self, name: &str) {
        self.serial += 1;
        let required = self.chance(50);
        let pod = gates::Pod {
            namespace: "ml".into(),
            name: format!("pod-{}", self.serial),
            dataset: name.into(),
            group: "train".into(),
            gpus: 1,
            locality: Some(if required { Locality::Required } else { Locality::Preferred }),
        };
        self.api.pods.insert(pod.name.clone(), Pod { pod, gated: true, version: self.serial, ..Pod::default() });
    }

    /// Brings back all nodes, makes all specs satisfiable, and removes pods whose data set is gone.
    fn heal(&mut self) {
        self.api.nodes.iter_mut().for_each(|node| node.away_since_s = None);
        let missing = |n: &u64| !self.api.nodes.iter().any(|node| node.name == format!("n{n}"));
        (0..4).filter(missing).collect::<Vec<_>>().into_iter().for_each(|n| self.add_node(n));
        for name in ["photos", "text"] {
            self.edit(name, |set, _| {
                set.spec.tiers.disk.path = ROOT.into();
                let has_agent = set.spec.agent.is_some();
                let preload = Preload { node_selector: BTreeMap::new(), shares: 2, copies: 1 };
                let preload = set.spec.preload.get_or_insert(preload);
                preload.shares = if has_agent { 1 } else { preload.shares };
            });
        }
        // Gated pods of a data set that is being deleted would wait for ever.
        let sets = &self.api.sets;
        let stays =
            |pod: &Pod| sets.get(&pod.pod.dataset).is_some_and(|(_, set)| set.metadata.deletion_timestamp.is_none());
        self.api.pods.retain(|_, pod| stays(pod) || !pod.gated);
    }

    // What runs in it.

    fn run_jobs(&mut self) {
        for name in self.api.jobs.keys().cloned().collect::<Vec<_>>() {
            let (moves, fails, short) = (self.chance(40) || self.calm, self.chance(15), self.chance(8));
            let job = self.api.jobs.get_mut(&name).expect("a key");
            let task = job.task.clone().expect("ours have one");
            let node = self.api.nodes.iter().find(|node| node.name == task.node);
            let Some(node) = node.filter(|node| node.away_since_s.is_none()) else {
                // Pods of a node that left are garbage-collected; those of a node that is not ready stay until it is back.
                if job.outcome == JobOutcome::Serving {
                    job.outcome = JobOutcome::Running;
                }
                if node.is_none() && job.deleting_since_s.is_some() {
                    self.api.jobs.remove(&name);
                } else if node.is_none() && job.outcome == JobOutcome::Running {
                    job.outcome = JobOutcome::Failed("the pod was lost".into());
                }
                continue;
            };
            let disk = self.disks.get_mut(&node.machine).expect("a machine");
            if job.outcome == JobOutcome::Running && task.kind == TaskKind::Load {
                let directory = disk.entry(task.path.clone()).or_default();
                if directory.source != task.source {
                    *directory = Directory { source: task.source.clone(), ..Directory::default() };
                }
            }
            let deleting = job.deleting_since_s.is_some();
            if deleting && moves {
                self.api.jobs.remove(&name);
            } else if !deleting && job.outcome == JobOutcome::Serving && fails && !self.calm {
                job.outcome = JobOutcome::Failed("out of memory".into());
            } else if !deleting && job.outcome == JobOutcome::Running && moves {
                job.outcome = match task.kind {
                    _ if fails && !self.calm => {
                        saw(&mut self.seen, "failed_jobs");
                        JobOutcome::Failed("the bucket refused".into())
                    }
                    TaskKind::Clean => {
                        saw(&mut self.seen, "cleanings");
                        disk.remove(&task.path);
                        JobOutcome::Succeeded(None)
                    }
                    // The kubelet starts none where the directory is not.
                    TaskKind::Serve if !disk.contains_key(&task.path) => JobOutcome::Running,
                    TaskKind::Serve => {
                        saw(&mut self.seen, "agents");
                        JobOutcome::Serving
                    }
                    TaskKind::Load => {
                        saw(&mut self.seen, "loads");
                        let directory = disk.get_mut(&task.path).expect("just made");
                        let missing_bytes = u64::from(short && !self.calm);
                        if missing_bytes == 0 {
                            directory.shares.insert((task.share, task.of));
                        }
                        let any = self.mistake == Mistake::AnyMachine;
                        let boot_id = if any { task.machine.clone() } else { node.machine.clone() };
                        let held_bytes = directory.shares.len() as u64 * SHARE_BYTES;
                        let report = Report {
                            share_bytes: SHARE_BYTES,
                            boot_id,
                            missing_bytes,
                            held_bytes,
                            ..Report::default()
                        };
                        // Its pod may be garbage-collected before the operator reads the report.
                        JobOutcome::Succeeded((!fails || self.calm).then_some(report))
                    }
                };
            }
        }
    }

    fn run_pods(&mut self) {
        for name in self.api.pods.keys().cloned().collect::<Vec<_>>() {
            let (moves, pick) = (self.chance(30) || self.calm, self.below(4) as usize);
            let pod = self.api.pods.get_mut(&name).expect("a key");
            let up = |node: &&Node| node.away_since_s.is_none();
            let nodes = &self.api.nodes;
            match (&pod.placement, &pod.node) {
                _ if pod.gated || !moves => {}
                (_, Some((node, machine))) => {
                    // It ends only after the status has recorded its node: the operator cannot clean up after pods that it never saw.
                    let is_there = nodes.iter().any(|other| other.name == *node && other.machine == *machine);
                    let set = self.api.sets.get(&pod.pod.dataset).and_then(|(_, set)| set.status.as_ref());
                    let known = set.is_none_or(|status| {
                        let cleaning = status.task.as_ref().is_some_and(|task| task.node == *node);
                        status.nodes.iter().any(|record| record.name == *node) && !cleaning
                    });
                    if known || !is_there {
                        self.api.pods.remove(&name);
                    }
                }
                (placement, None) => {
                    let required = placement.as_ref().map(|placement| placement.required.clone()).unwrap_or_default();
                    let fits = |node: &&Node| required.is_empty() || required.contains(&node.hostname);
                    let fitting: Vec<&Node> = nodes.iter().filter(up).filter(fits).collect();
                    if let Some(node) = fitting.get(pick % fitting.len().max(1)) {
                        let (directory, disk) = (path(&pod.pod.dataset), self.disks.get_mut(&node.machine));
                        disk.expect("a machine").entry(directory).or_default();
                        pod.node = Some((node.name.clone(), node.machine.clone()));
                    }
                }
            }
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn agent(n: u64) -> Agent {
    serde_json::from_value(json!({ "passes": 1 + n % 2 })).expect("an agent")
}

fn path(set: &str) -> String {
    format!("{ROOT}/ml.{set}")
}

fn saw(seen: &mut Seen, what: &'static str) {
    *seen.entry(what).or_default() += 1;
}
