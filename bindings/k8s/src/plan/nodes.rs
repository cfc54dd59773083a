//! What the nodes of the cluster hold and can do: who holds a share, where the next one goes, and on which nodes a task would wait for ever.

use super::{AWAY_LIMIT_S, Job, JobOutcome, Node, PATIENCE, Step};
use crate::dataset::{NodeStatus, Task};
use crate::place::{Candidate, Demand, order, weights};

impl Step<'_> {
    pub(super) fn node(&self, name: &str) -> Option<&Node> {
        self.view.nodes.iter().find(|node| node.name == name)
    }

    /// Nodes that hold a share whole and have been away for less than `away_s`.
    pub(super) fn holders(&self, share: u32, away_s: i64) -> impl Iterator<Item = &NodeStatus> {
        let is_there = move |record: &&NodeStatus| {
            let away = self.node(&record.name).map_or(Some(i64::MIN), |node| node.away_since_s);
            away.is_none_or(|since| self.view.now_s.saturating_sub(since) < away_s)
        };
        let holds = move |record: &&NodeStatus| record.shares.iter().any(|held| held.index == share);
        self.status.nodes.iter().filter(holds).filter(is_there)
    }

    /// Bytes of a share as the last load measured it; an unloaded share is assumed to be as large as the largest one.
    pub(super) fn share_bytes(&self, index: u32) -> u64 {
        let all = || self.status.nodes.iter().flat_map(|record| &record.shares);
        let known = all().find(|share| share.index == index).map(|share| share.bytes);
        known.or(all().map(|share| share.bytes).max()).unwrap_or(0)
    }

    /// The node for a share: first-fit along DLCache's order for a job of one rank with one GPU.
    pub(super) fn choose(&self, share: u32) -> Option<usize> {
        let to = self.layout.as_ref().ok()?;
        let held = |record: &NodeStatus| record.shares.iter().map(|share| share.bytes).sum::<u64>();
        let candidate = |node: &Node| Candidate {
            name: node.name.clone(),
            free_gpus: node.free_gpus,
            storage_bytes: node.storage_bytes,
            held_bytes: self.record(&node.name).map_or(0, held),
        };
        let candidates: Vec<_> = self.view.nodes.iter().map(candidate).collect();
        let shares = || 0..to.preload.shares;
        let somewhere = shares().filter(|&share| self.holders(share, AWAY_LIMIT_S).next().is_some());
        let demand = Demand {
            gpus: 1,
            ranks: 1,
            total_bytes: shares().map(|share| self.share_bytes(share)).sum(),
            anywhere_bytes: somewhere.map(|share| self.share_bytes(share)).sum(),
        };
        let fits = |node: &Node, held_bytes: u64| {
            let selected = to.preload.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
            let full = self.record(&node.name).and_then(|record| record.full.as_ref());
            let known = full.filter(|full| full.limit == to.limit_bytes).map_or(u64::MAX, |full| full.bytes);
            let room = to.limit_bytes.min(node.storage_bytes).min(known).saturating_sub(held_bytes);
            let free = self.record(&node.name).is_none_or(|record| {
                let holds = record.shares.iter().any(|held| held.index == share);
                let avoided = record.failures >= PATIENCE && record.retry_after.is_some_and(|at| at > self.view.now_s);
                to.matches(record) && !holds && !avoided
            });
            node.away_since_s.is_none() && !node.cordoned && selected && free && room >= self.share_bytes(share).max(1)
        };
        let order = order(&candidates, &weights(&candidates, &demand));
        order.into_iter().find(|&at| fits(&self.view.nodes[at], candidates[at].held_bytes))
    }

    /// Whether a Job of the task says how it ended.
    pub(super) fn has_ended(&self, task: &Task) -> bool {
        let ended = |job: &Job| matches!(job.outcome, JobOutcome::Failed(_) | JobOutcome::Succeeded(_));
        let counts = |job: &Job| job.deleting_since_s.is_none() && job.task.as_ref() == Some(task);
        self.view.jobs.iter().any(|job| ended(job) && counts(job))
    }

    /// Why tasks of a node would wait for ever, if they would.
    pub(super) fn stuck(&self, node: &str) -> Option<String> {
        let long = |since: Option<i64>| since.is_some_and(|at| self.view.now_s.saturating_sub(at) >= AWAY_LIMIT_S);
        if long(self.node(node).and_then(|node| node.away_since_s)) {
            return Some(format!("the node has not been ready for {AWAY_LIMIT_S} s"));
        }
        let stays = self.jobs_on(node).any(|job| long(job.deleting_since_s));
        stays.then(|| format!("the pod of a deleted Job has not ended for {AWAY_LIMIT_S} s: its events say why"))
    }

    /// Jobs whose pods may write to a node's disk.
    pub(super) fn jobs_on(&self, node: &str) -> impl Iterator<Item = &Job> {
        self.view.jobs.iter().filter(move |job| job.task.as_ref().is_none_or(|task| task.node == node))
    }
}
