//! Placement of the pods that read a data set: node affinity for pods with the scheduling gate `fuelrail.dev/placement`.
//!
//! DLCache sends a job to one node. Here the required affinity names *all* nodes that have the data, and the weights become preferences:
//! a pod's affinity cannot be changed once its gate is removed, so a pod pinned to one node would wait for ever after that node left, and
//! only the scheduler sees what fits at the moment of binding.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::dataset::{DATASET_LABEL, Dataset, GATE, Locality, NodeStatus};
use crate::place::{Candidate, Demand, order, weights};
use crate::plan::Node;

/// Most nodes that a pod's affinity prefers by name.
const PREFERRED_MAX: usize = 16;

/// A pod with the gate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The data set that it reads; empty where its label is missing.
    pub dataset: String,
    /// The Job or JobSet that it belongs to.
    pub group: String,
    /// GPUs that it asks for.
    pub gpus: u64,
    /// The pod's own locality, if it has one.
    pub locality: Option<Locality>,
}

/// The affinity to write on a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Hostnames of the nodes that it may run on; empty means any.
    pub required: Vec<String>,
    /// Hostnames of the nodes that it should run on, with weights from 1 to 100.
    pub preferred: Vec<(String, i32)>,
    /// The node with the highest weight.
    pub best: String,
}

/// Whether a pod's gate can be removed.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Yes, with this affinity.
    Place(Placement),
    /// Not yet, for this reason.
    Wait(String),
}

/// Decides for each pod. Pods of one group are placed together, in the order of their names, and each takes its GPUs off its best node.
pub fn place(pods: &[Pod], sets: &[&Dataset], nodes: &[Node]) -> Vec<Verdict> {
    let mut free: BTreeMap<&str, u64> = nodes.iter().map(|node| (node.name.as_str(), node.free_gpus)).collect();
    let group = |pod: &Pod| (pod.namespace.clone(), pod.group.clone());
    let mut left: BTreeMap<_, u64> = BTreeMap::new();
    pods.iter().for_each(|pod| *left.entry(group(pod)).or_default() += 1);
    let mut turns: Vec<usize> = (0..pods.len()).collect();
    turns.sort_by_key(|&at| (group(&pods[at]), pods[at].name.clone()));
    let mut verdicts = vec![Verdict::Wait(String::new()); pods.len()];
    for at in turns {
        let pod = &pods[at];
        let ranks = left.get_mut(&group(pod)).map_or(1, |left| std::mem::replace(left, left.saturating_sub(1)));
        let of_pod =
            |set: &&&Dataset| set.namespace().as_ref() == Some(&pod.namespace) && set.name_any() == pod.dataset;
        verdicts[at] = match sets.iter().find(of_pod) {
            None if pod.dataset.is_empty() => {
                Verdict::Wait(format!("it has the gate {GATE} and no label {DATASET_LABEL} that names its Dataset"))
            }
            None => Verdict::Wait(format!("there is no Dataset {}", pod.dataset)),
            Some(set) => verdict(pod, ranks, set, nodes, &free),
        };
        if let Verdict::Place(placement) = &verdicts[at]
            && let Some(free) = free.get_mut(placement.best.as_str())
        {
            *free = free.saturating_sub(pod.gpus);
        }
    }
    verdicts
}

fn verdict(pod: &Pod, ranks: u64, set: &Dataset, nodes: &[Node], free: &BTreeMap<&str, u64>) -> Verdict {
    if set.metadata.deletion_timestamp.is_some() {
        return Verdict::Wait(format!("Dataset {} is being deleted", pod.dataset));
    }
    if set.status.as_ref().and_then(|status| status.observed_generation) != set.metadata.generation {
        return Verdict::Wait(format!("the spec of Dataset {} is not reconciled yet", pod.dataset));
    }
    let held = Held::of(set, nodes);
    let locality = pod.locality.unwrap_or(set.spec.locality);
    let required = locality == Locality::Required;
    if required && !held.all {
        let what = if set.spec.agent.is_some() { "no agent serves" } else { "no nodes hold" };
        return Verdict::Wait(format!("{what} all of Dataset {} yet", pod.dataset));
    }
    let may = |node: &&Node| node.away_since_s.is_none() && !node.cordoned && (!required || held.of_node(node) > 0);
    let nodes: Vec<&Node> = nodes.iter().filter(may).collect();
    let candidate = |node: &&Node| Candidate {
        name: node.name.clone(),
        free_gpus: free.get(node.name.as_str()).copied().unwrap_or(0),
        storage_bytes: node.storage_bytes,
        held_bytes: held.of_node(node),
    };
    let candidates: Vec<_> = nodes.iter().map(candidate).collect();
    let demand = Demand { gpus: pod.gpus, ranks, total_bytes: held.total_bytes, anywhere_bytes: held.anywhere_bytes };
    let weights = weights(&candidates, &demand);
    let order = order(&candidates, &weights);
    let Some(&best) = order.first() else { return Verdict::Wait("no node is ready".to_owned()) };
    let preferred = order.iter().take(PREFERRED_MAX).filter(|&&at| weights[at] > 0.0);
    let weight = |at: usize| (100.0 * weights[at] / weights[best]).round().clamp(1.0, 100.0) as i32;
    Verdict::Place(Placement {
        required: if required { nodes.iter().map(|node| node.hostname.clone()).collect() } else { Vec::new() },
        preferred: preferred.map(|&at| (nodes[at].hostname.clone(), weight(at))).collect(),
        best: nodes[best].name.clone(),
    })
}

/// What ready nodes hold of a data set.
struct Held {
    by_node: BTreeMap<String, u64>,
    total_bytes: u64,
    anywhere_bytes: u64,
    all: bool,
}

impl Held {
    fn of(set: &Dataset, nodes: &[Node]) -> Held {
        let ready = nodes.iter().filter(|node| node.away_since_s.is_none());
        let machines: BTreeMap<&str, &str> = ready.map(|node| (node.name.as_str(), node.machine.as_str())).collect();
        // With an agent, it alone makes use of the disk.
        let is_there = |record: &&NodeStatus| {
            let serves = set.spec.agent.is_none() || record.serving;
            serves && machines.get(record.name.as_str()) == Some(&record.machine.as_str())
        };
        let records = set.status.iter().flat_map(|status| &status.nodes);
        let (mut by_node, mut shares, mut of) = (BTreeMap::new(), BTreeMap::new(), 0);
        for record in records.filter(is_there) {
            // Empty shares count, too.
            let bytes: u64 = record.shares.iter().map(|share| share.bytes.max(1)).sum();
            by_node.insert(record.name.clone(), bytes);
            shares.extend(record.shares.iter().map(|share| (share.index, share.bytes.max(1))));
            of = record.shares.iter().map(|share| share.of).max().unwrap_or(of);
        }
        let anywhere_bytes: u64 = shares.values().sum();
        let total_bytes = set.status.as_ref().and_then(|status| status.total_bytes);
        let all = of > 0 && shares.len() == of as usize;
        Held { by_node, total_bytes: total_bytes.unwrap_or(0).max(anywhere_bytes), anywhere_bytes, all }
    }

    fn of_node(&self, node: &Node) -> u64 {
        self.by_node.get(&node.name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{DatasetSpec, DatasetStatus, Share};

    fn node(name: &str, free_gpus: u64) -> Node {
        let (hostname, machine) = (format!("{name}.local"), format!("{name}/1"));
        Node { name: name.into(), hostname, machine, storage_bytes: 100, free_gpus, ..Node::default() }
    }

    /// A data set of two shares of 10 bytes, and which nodes hold which.
    fn set(locality: Locality, held: &[(&str, &[u32])]) -> Dataset {
        let spec = serde_json::json!({ "uri": "s3://b/", "tiers": { "disk": { "limit": "1Gi" } } });
        let spec = serde_json::from_value::<DatasetSpec>(spec).unwrap();
        let mut set = Dataset::new("photos", DatasetSpec { locality, ..spec });
        set.metadata.namespace = Some("ml".into());
        let shares = |of: &[u32]| of.iter().map(|&index| Share { index, of: 2, bytes: 10 }).collect();
        let record = |(name, held): &(&str, &[u32])| NodeStatus {
            name: (*name).into(),
            machine: format!("{name}/1"),
            shares: shares(held),
            ..NodeStatus::default()
        };
        let nodes = held.iter().map(record).collect();
        set.status = Some(DatasetStatus { nodes, total_bytes: Some(20), ..DatasetStatus::default() });
        set
    }

    fn pods(count: usize, gpus: u64, locality: Option<Locality>) -> Vec<Pod> {
        let pod = |n| Pod {
            namespace: "ml".into(),
            name: format!("train-{n}"),
            dataset: "photos".into(),
            group: "train".into(),
            gpus,
            locality,
        };
        (0..count).map(pod).collect()
    }

    fn best(verdict: &Verdict) -> &str {
        match verdict {
            Verdict::Place(placement) => &placement.best,
            Verdict::Wait(why) => why,
        }
    }

    #[test]
    fn a_job_waits_for_its_data_only_where_locality_is_required() {
        let nodes = [node("n1", 1), node("n2", 4)];
        let half = set(Locality::Required, &[("n1", &[0])]);
        assert_eq!(best(&place(&pods(1, 2, None), &[&half], &nodes)[0]), "no nodes hold all of Dataset photos yet");
        let elsewhere = place(&pods(1, 2, Some(Locality::Preferred)), &[&half], &nodes);
        let Verdict::Place(placement) = &elsewhere[0] else { panic!("{elsewhere:?}") };
        assert_eq!((placement.best.as_str(), &placement.required), ("n2", &Vec::new()));
        assert_eq!(placement.preferred, [("n2.local".to_owned(), 100), ("n1.local".to_owned(), 60)]);

        // n1 holds all and has no GPUs free: where locality is required it is the only choice, and the pod waits there.
        let whole = set(Locality::Required, &[("n1", &[0, 1])]);
        let placed = place(&pods(1, 2, None), &[&whole], &nodes);
        let Verdict::Place(placement) = &placed[0] else { panic!("{placed:?}") };
        assert_eq!(
            (placement.best.as_str(), placement.required.as_slice()),
            ("n1", ["n1.local".to_owned()].as_slice())
        );
    }

    #[test]
    fn a_node_that_was_replaced_or_is_away_holds_nothing() {
        let whole = set(Locality::Required, &[("n1", &[0, 1])]);
        let wait = "no nodes hold all of Dataset photos yet";
        let replaced = Node { machine: "n1/2".into(), ..node("n1", 4) };
        assert_eq!(best(&place(&pods(1, 2, None), &[&whole], &[replaced])[0]), wait);
        let away = Node { away_since_s: Some(0), ..node("n1", 4) };
        assert_eq!(best(&place(&pods(1, 2, None), &[&whole], &[away])[0]), wait);
    }

    #[test]
    fn with_an_agent_jobs_go_only_where_it_serves() {
        let nodes = [node("n1", 4), node("n2", 4)];
        let mut whole = set(Locality::Required, &[("n1", &[0, 1]), ("n2", &[0, 1])]);
        whole.spec.agent = Some(serde_json::from_value(serde_json::json!({})).unwrap());
        assert_eq!(best(&place(&pods(1, 2, None), &[&whole], &nodes)[0]), "no agent serves all of Dataset photos yet");
        whole.status.as_mut().unwrap().nodes[1].serving = true;
        let placed = place(&pods(1, 2, None), &[&whole], &nodes);
        let Verdict::Place(placement) = &placed[0] else { panic!("{placed:?}") };
        assert_eq!((placement.best.as_str(), placement.required.as_slice()), ("n2", &["n2.local".to_owned()][..]));
    }

    #[test]
    fn ranks_of_a_job_take_the_gpus_that_they_are_sent_to() {
        let nodes = [node("n1", 4), node("n2", 8), node("n3", 2)];
        let set = set(Locality::Preferred, &[]);
        let verdicts = place(&pods(7, 2, None), &[&set], &nodes);
        let best: Vec<_> = verdicts.iter().map(best).collect();
        assert_eq!(best, ["n2", "n2", "n1", "n2", "n1", "n2", "n3"]);
    }

    #[test]
    fn a_pod_of_an_unknown_data_set_keeps_its_gate() {
        let verdict = |pod: Pod| best(&place(&[pod], &[], &[node("n1", 0)])[0]).to_owned();
        let pod = pods(1, 0, None).remove(0);
        assert_eq!(verdict(pod.clone()), "there is no Dataset photos");
        let nameless = verdict(Pod { dataset: String::new(), ..pod });
        assert_eq!(
            nameless,
            "it has the gate fuelrail.dev/placement and no label fuelrail.dev/dataset that names its Dataset"
        );
    }
}
