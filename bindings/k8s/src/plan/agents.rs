//! Agents: on nodes that hold the data set whole, a Job that reads for the jobs there, until something else is to be done with the disk.

use super::{Action, Job, JobOutcome, Step};
use crate::dataset::{Agent, DatasetSpec, NodeStatus, Task, TaskKind, quantity};

/// What the names begin with of the settings that an agent may have: those that decide batches, and how they are read. Another one could send the
/// secret of the data set elsewhere.
const GIVEN: [&str; 22] = [
    "attempts_max",
    "bad_samples",
    "batch_size",
    "block_size",
    "cache_",
    "chunk_",
    "classes",
    "connections_max",
    "decode",
    "drop_last",
    "epochs",
    "fields",
    "hedge_percent",
    "label_field",
    "mixture",
    "order",
    "request_limit",
    "seed",
    "shards",
    "shuffle",
    "side_cars",
    "token_",
];

impl DatasetSpec {
    /// What is wrong with the agent that a spec asks for.
    pub(super) fn check_agent(&self) -> Result<(), String> {
        let Some(Agent { memory, settings, .. }) = &self.agent else { return Ok(()) };
        if self.preload.as_ref().is_none_or(|preload| preload.shares != 1) {
            return Err(
                "agent: it reads all of the data set from its node's disk; write preload: { shares: 1 }".to_owned()
            );
        }
        quantity(memory).filter(|&bytes| bytes > 0).ok_or_else(|| format!("agent.memory {memory}: not a size"))?;
        let is_name =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        for name in settings.keys() {
            if !is_name(name) {
                return Err(format!("agent.settings {name}: not the name of a setting; write it as in TOML"));
            }
            if !GIVEN.iter().any(|given| name.starts_with(given)) {
                return Err(format!("agent.settings {name}: not one that an agent takes; leave it out"));
            }
        }
        Ok(())
    }
}

impl Job {
    /// What it was made for, if it is an agent and no task.
    pub(super) fn agent(&self) -> Option<&Task> {
        self.task.as_ref().filter(|task| task.kind == TaskKind::Serve)
    }
}

impl Step<'_> {
    /// What the agent of a node is made for, if there is to be one.
    pub(super) fn agent_on(&self, node: &str) -> Option<Task> {
        let Agent { memory, passes, settings } = self.set.spec.agent.as_ref().filter(|_| !self.deleting)?;
        let to = self.layout.as_ref().ok()?;
        let is_whole = |record: &&NodeStatus| to.matches(record) && !record.shares.is_empty() && !self.is_used(node);
        let NodeStatus { name: node, machine, path, source, .. } = self.record(node).filter(is_whole)?.clone();
        let (limit, secret) = (to.limit_bytes, self.set.spec.credentials_secret.as_deref().unwrap_or("-"));
        let source = format!("{source} {limit} {secret} {memory} {passes} {settings:?}");
        Some(Task { kind: TaskKind::Serve, node, machine, path, source, share: 0, of: 1 })
    }

    /// Whether the recorded task needs the node's directory.
    fn is_used(&self, node: &str) -> bool {
        self.status.task.as_ref().is_some_and(|task| task.node == node)
    }

    /// Writes down which nodes are served. Ends an agent that failed or is not wanted, or starts one.
    pub(super) fn serve(&mut self) -> Action {
        self.status.nodes.iter_mut().for_each(|record| record.serving = false);
        let jobs = self.view.jobs;
        let there = jobs.iter().filter(|job| job.deleting_since_s.is_none());
        let ending: Vec<&Job> = there.filter(|job| self.has_to_end(job)).collect();
        match ending.first() {
            Some(job) => Action::DeleteJob(job.uid.clone()),
            None => self.next_agent().map_or(Action::None, Action::CreateJob),
        }
    }

    /// Applies an agent's outcome to the status. Whether it is one that is to be deleted.
    fn has_to_end(&mut self, job: &Job) -> bool {
        let Some(task) = job.agent() else { return false };
        let now_s = self.view.now_s;
        let is_wanted = self.agent_on(&task.node).as_ref() == Some(task);
        let is_there = self.node(&task.node).is_some_and(|node| node.away_since_s.is_none());
        let failure = match &job.outcome {
            // Somebody deleted its pod.
            JobOutcome::Succeeded(_) => return true,
            JobOutcome::Failed(why) => Some(why.clone()),
            JobOutcome::NotStarted(since_s, why) => self.overdue("agent", *since_s, why).filter(|_| is_there),
            JobOutcome::Serving if is_wanted => {
                self.note(&task.node, Ok(()));
                self.record_mut(&task.node).into_iter().for_each(|record| record.serving = true);
                return false;
            }
            JobOutcome::Running | JobOutcome::Serving => None,
        };
        let Some(failure) = failure else {
            // It ends when its jobs have, or its directory is needed. An invalid spec ends none.
            let has_jobs = job.outcome == JobOutcome::Serving && self.view.readers.contains(&task.node);
            let may_stay = has_jobs || (self.layout.is_err() && !self.deleting);
            return !is_wanted && (self.is_used(&task.node) || !may_stay);
        };
        // Once: it is seen again until it is deleted.
        let is_noted = |record: &NodeStatus| record.retry_after.is_some_and(|at| at > now_s);
        if is_wanted && !self.record(&task.node).is_some_and(is_noted) {
            self.note(&task.node, Err(failure));
        }
        true
    }

    /// The agent of a node that lacks one. A node that is cordoned gets none.
    fn next_agent(&mut self) -> Option<Task> {
        let lacking = |record: &NodeStatus| {
            let may_start = self.node(&record.name).is_some_and(|node| node.away_since_s.is_none() && !node.cordoned);
            let is_free = may_start && self.jobs_on(&record.name).next().is_none();
            // A spec that was edited is tried at once.
            let is_new = self.status.observed_generation != self.set.metadata.generation;
            let wait_s = record.retry_after.filter(|_| !is_new).map_or(0, |at| at - self.view.now_s);
            Some((self.agent_on(&record.name).filter(|_| is_free)?, wait_s))
        };
        let lacking: Vec<(Task, i64)> = self.status.nodes.iter().filter_map(lacking).collect();
        for (task, wait_s) in lacking {
            if wait_s <= 0 {
                return Some(task);
            }
            self.again(wait_s);
        }
        None
    }
}
