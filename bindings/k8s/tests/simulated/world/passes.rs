//! The operator's passes, as `Operator` makes them, over a view that may be stale, with restarts between requests.

use fuelrail_k8s::dataset::{Dataset, FINALIZER};
use fuelrail_k8s::gates::{self, Verdict};
use fuelrail_k8s::plan::{self, Action, Job, JobOutcome, View};

use super::{Cluster, Mistake, Pod, ROOT, Rule, World, saw};

impl World {
    /// One pass as in `Operator::pass`, over the operator's view. The operator may restart anywhere in it.
    pub(super) fn pass(&mut self) -> Rule {
        let view = std::mem::take(&mut self.view);
        let goes_on = self.pass_over(&view)?;
        // After a restart everything is listed again.
        self.view = if goes_on { view } else { self.api.clone() };
        Ok(())
    }

    fn pass_over(&mut self, view: &Cluster) -> Result<bool, String> {
        for (name, (version, set)) in &view.sets {
            if !self.calm && self.chance(5) {
                saw(&mut self.seen, "restarts");
                return Ok(false);
            }
            let uid = set.metadata.uid.clone().expect("a uid");
            let on = |pod: &&Pod| pod.pod.dataset == *name;
            let mut readers: Vec<_> =
                view.pods.values().filter(on).filter_map(|pod| Some(pod.node.clone()?.0)).collect();
            readers.sort();
            let own = view.jobs.iter().filter(|((of, _), _)| *of == uid);
            let (jobs, roots) = (own.map(|(_, job)| job.clone()).collect::<Vec<_>>(), [ROOT.to_owned()]);
            let seen = View { jobs: &jobs, nodes: &view.nodes, readers: &readers, roots: &roots, now_s: self.now_s };
            let mut outcome = plan::reconcile(set, seen);
            if self.mistake == Mistake::ReadyEarly && outcome.status.ready_shares + 1 == outcome.status.wanted_shares {
                let ready = outcome.status.conditions.iter_mut().find(|condition| condition.type_ == "Ready");
                ready.into_iter().for_each(|ready| ready.status = "True".into());
            }
            if self.mistake == Mistake::ActFirst {
                self.act(&uid, outcome.action.clone());
            }
            if outcome.action == Action::AddFinalizer {
                self.write(name, *version, |set| set.metadata.finalizers = Some(vec![FINALIZER.into()]));
                continue;
            }
            if outcome.action == Action::None && set.status.as_ref() == Some(&outcome.status) {
                continue;
            }
            let status = outcome.status.clone();
            let Some(version) = self.write(name, *version, move |set| set.status = Some(status)) else { continue };
            self.holds()?;
            if !self.calm && self.chance(10) {
                saw(&mut self.seen, "restarts"); // Between the status and the action.
                continue;
            }
            let reads = |pod: &Pod| pod.pod.dataset == *name && !pod.gated;
            match outcome.action {
                Action::RemoveFinalizer if self.api.pods.values().any(reads) => {}
                Action::RemoveFinalizer => drop(self.write(name, version, |set| set.metadata.finalizers = None)),
                action => self.act(&uid, action),
            }
        }
        self.place(view);
        Ok(true)
    }

    /// A write under a resource version; its response may be lost.
    fn write(&mut self, name: &str, version: u64, change: impl FnOnce(&mut Dataset)) -> Option<u64> {
        let fence = self.mistake != Mistake::NoFence;
        let Some((current, set)) = self.api.sets.get_mut(name).filter(|(current, _)| !fence || *current == version)
        else {
            saw(&mut self.seen, "conflicts");
            return None;
        };
        change(set);
        self.serial += 1;
        *current = self.serial;
        if set.metadata.deletion_timestamp.is_some() && set.metadata.finalizers.is_none() {
            let uid = set.metadata.uid.clone().unwrap_or_default();
            self.api.sets.remove(name);
            // The garbage collector.
            self.api.jobs.retain(|(of, _), _| *of != uid);
        }
        let version = self.serial;
        let lost = !self.calm && self.chance(5);
        if lost {
            saw(&mut self.seen, "lost_answers");
        }
        (!lost).then_some(version)
    }

    fn act(&mut self, uid: &str, action: Action) {
        match action {
            Action::CreateJob(task) if self.api.jobs.contains_key(&(uid.to_owned(), task.node.clone())) => {
                drop(task);
                saw(&mut self.seen, "stale_jobs"); // 409: the name is taken.
            }
            Action::CreateJob(task) => {
                self.serial += 1;
                let uid_of_job = format!("job-{}", self.serial);
                let name = (uid.to_owned(), task.node.clone());
                let (task, outcome) = (Some(task), JobOutcome::Running);
                self.api.jobs.insert(name, Job { uid: uid_of_job, task, deleting_since_s: None, outcome });
            }
            Action::DeleteJob(job) => {
                let same = self.api.jobs.values_mut().find(|other| other.uid == job);
                same.into_iter().for_each(|job| job.deleting_since_s = job.deleting_since_s.or(Some(self.now_s)));
            }
            Action::None | Action::AddFinalizer | Action::RemoveFinalizer => {}
        }
    }

    fn place(&mut self, view: &Cluster) {
        let gated: Vec<&Pod> = view.pods.values().filter(|pod| pod.gated).collect();
        let seen: Vec<gates::Pod> = gated.iter().map(|pod| pod.pod.clone()).collect();
        let sets: Vec<&Dataset> = view.sets.values().map(|(_, set)| set).collect();
        for (pod, verdict) in gated.iter().zip(gates::place(&seen, &sets, &view.nodes)) {
            let Verdict::Place(placement) = verdict else { continue };
            let restarts = !self.calm && self.chance(10);
            self.serial += 1;
            let Some(real) = self.api.pods.get_mut(&pod.pod.name).filter(|real| real.version == pod.version) else {
                saw(&mut self.seen, "conflicts");
                continue;
            };
            real.version = self.serial;
            real.gated = false;
            saw(&mut self.seen, "placed");
            if self.mistake == Mistake::GateFirst && restarts {
                continue;
            }
            real.placement = Some(placement);
        }
    }
}
