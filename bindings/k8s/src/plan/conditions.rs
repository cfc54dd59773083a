//! Counts and conditions of a status, by Kubernetes' API conventions: the transition time changes only with a condition's status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::{AWAY_LIMIT_S, Step};
use crate::dataset::{Locality, NodeStatus};

impl Step<'_> {
    /// Sets counts and conditions.
    pub(super) fn conclude(&mut self) {
        let preload = self.layout.as_ref().map_or((0, 0), |to| (to.preload.shares, to.preload.copies));
        let (shares, copies) = if self.deleting { (0, 0) } else { preload };
        let there = |share| (self.holders(share, 0).count() as u32).min(copies);
        let placed = |share| (self.holders(share, AWAY_LIMIT_S).count() as u32).min(copies);
        let (ready, placed): (u32, u32) = ((0..shares).map(there).sum(), (0..shares).map(placed).sum());
        let known = (0..shares).all(|share| self.holders(share, i64::MAX).next().is_some());
        let total: u64 = (0..shares).map(|share| self.share_bytes(share)).sum();
        // The total of another source says nothing.
        let same_spec = self.status.observed_generation == self.set.metadata.generation;
        self.status.ready_shares = ready;
        self.status.wanted_shares = shares.saturating_mul(copies);
        self.status.total_bytes =
            (shares > 0 && known).then_some(total).or(self.status.total_bytes.filter(|_| shares > 0 && same_spec));
        self.status.held_bytes = self.status.nodes.iter().map(|record| record.bytes).sum();
        self.status.observed_generation = self.set.metadata.generation;
        let wanted = self.status.wanted_shares;
        let count = format!("{ready} of {wanted} shares are on disk");
        // A failure matters only if shares or an agent are missing, or the node has to be cleaned.
        let unserved = |record: &&NodeStatus| !record.serving && self.agent_on(&record.name).is_some();
        let pending = |record: &&NodeStatus| placed < wanted || !self.is_current(record) || unserved(record);
        let failing = self.status.nodes.iter().filter(|record| record.failures > 0).find(pending);
        let failure = failing.map(|record| format!("{}: {}", record.name, record.failure.as_deref().unwrap_or("?")));
        let invalid = self.layout.as_ref().err().cloned().or_else(|| self.waits_for_ever());
        let (is_ready, reason, text) = match (&invalid, wanted) {
            _ if self.deleting => (false, "Deleting", "its disks are being cleaned".to_owned()),
            (Some(why), _) => (false, "InvalidSpec", why.clone()),
            (None, 0) => (true, "NoPreload", "no preload: blocks come to disk as jobs read".to_owned()),
            _ if ready == wanted => (true, "Complete", count.clone()),
            _ if placed == wanted => (false, "NodeAway", count.clone()),
            _ => (false, "Incomplete", count.clone()),
        };
        self.condition("Ready", is_ready, reason, text);
        let loading = placed < wanted;
        self.condition("Preloading", loading, if loading { "Loading" } else { "Idle" }, count.clone());
        let (reason, text) = match (invalid, &self.blocked, failure) {
            (Some(why), ..) => ("InvalidSpec", why),
            (_, Some(why), _) => ("NoNode", why.clone()),
            (.., Some(why)) => ("TaskFailed", why),
            _ if placed > ready => ("NodeAway", count),
            _ => ("AsExpected", String::new()),
        };
        self.condition("Degraded", reason != "AsExpected", reason, text);
    }

    /// Why jobs would wait for ever. The layout is valid all the same: pods may say otherwise, and what they write has to be cleaned.
    fn waits_for_ever(&self) -> Option<String> {
        let waits = self.set.spec.locality == Locality::Required && self.set.spec.preload.is_none();
        let why = "locality Required without preload: jobs would wait for blocks that come only as jobs read; \
                   write preload: { shares: 1 }, or locality: Preferred";
        waits.then(|| why.to_owned())
    }

    fn condition(&mut self, type_: &str, is: bool, reason: &str, message: String) {
        let status = if is { "True" } else { "False" };
        let at = self.status.conditions.iter().position(|condition| condition.type_ == type_);
        let before = at.map(|at| &self.status.conditions[at]).filter(|before| before.status == status);
        let since = before.map(|before| before.last_transition_time.clone());
        let now = Time(Timestamp::from_second(self.view.now_s).unwrap_or(Timestamp::UNIX_EPOCH));
        let condition = Condition {
            last_transition_time: since.unwrap_or(now),
            message,
            observed_generation: self.set.metadata.generation,
            reason: reason.to_owned(),
            status: status.to_owned(),
            type_: type_.to_owned(),
        };
        match at {
            Some(at) => self.status.conditions[at] = condition,
            None => self.status.conditions.push(condition),
        }
    }
}
