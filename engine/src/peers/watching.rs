//! What the control plane asks other ranks beside the run. Once: which ranks earlier runs had, where this rank's disk does not say. And health
//! checks: every rank that is down is sent a request for one byte now and then, so that no batch waits for a rank that is still down.
//!
//! Shards report which ranks are down; one that responds fast enough is sent requests again ([`Health`](fuelrail_plan::health)). Of one that can
//! never work, for what it is set to, the user is told once.

use super::Others;
use super::former::Lists;
use super::server::LISTS;
use super::trust::{CERTIFICATES, NAMED_MAX, SECRETS};
use crate::client::{Ask, Client, within};
use crate::proxy::Route;
use crate::watch::Report;
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_plan::health::Down;
use fuelrail_plan::schedule::UseTime;
use fuelrail_wire::ranks::RunRanks;
use futures_util::{StreamExt, stream};
use hyper::{Method, StatusCode};
use std::time::{Duration, Instant};

/// Between two looks at which ranks are down.
const EVERY: Duration = Duration::from_millis(50);
/// From a rank's first failure to its health check; doubles with every failure in a row and every check that fails, …
const AWAY_MIN: Duration = Duration::from_millis(100);
/// … up to this.
const AWAY_MAX: Duration = Duration::from_secs(10);
/// Longest time to a response.
const PATIENCE: Duration = Duration::from_secs(1);
/// Checks at a time.
const AT_ONCE: usize = 32;
/// Other ranks that are asked which ranks earlier runs had: nodes that come are seldom nearly all, …
const ASKED_MAX: u16 = 8;
/// … and how long each may take, which listens already and answers once it has read what is on its disk.
const LISTS_PATIENCE: Duration = Duration::from_secs(60);

/// When the health check of a rank is due, and the pause before it.
#[derive(Clone, Copy, Default)]
struct Away {
    failures: u32,
    until: Option<Instant>,
    pause: Duration,
    /// Checks in a row with an error that does not pass by itself.
    refusals: u32,
}

impl Others {
    /// Asks which ranks earlier runs had, if `own` are lists without any. The first answer that has some is believed: where it is old, or wrong,
    /// blocks come from the bucket as they would without it.
    pub(super) async fn learn(&self, own: Option<&Lists>) {
        let Some(own) = own.filter(|own| own.former().is_empty()) else { return };
        let (rank, ranks) = (self.homes.rank(), self.homes.ranks());
        // Evenly: nodes that come often have neighbouring numbers.
        let step = (ranks - 1).div_ceil(ASKED_MAX).max(1);
        let asked = (1..ranks).step_by(step.into()).map(|on| (rank + on) % ranks);
        let ask = |rank| self.former_of(rank, own);
        let mut answers = stream::iter(asked.collect::<Vec<_>>()).map(ask).buffer_unordered(ASKED_MAX.into());
        while let Some(runs) = answers.next().await {
            if let Some(runs) = runs.ok().flatten().filter(|runs| !runs.is_empty()) {
                return self.homes.remember(&runs);
            }
        }
    }

    /// What another rank says of earlier runs; `None` where it says something else.
    async fn former_of(&self, rank: u16, own: &Lists) -> Result<Option<Vec<RunRanks>>> {
        let client = Client::new(self.route(rank), LISTS_PATIENCE)?;
        let ask = self.authorised(Ask::new(Method::GET, format!("{}/{LISTS}", self.asks.prefix())));
        let answer = within(LISTS_PATIENCE, async { client.send_whole(&ask).await?.read().await }).await??;
        Ok(own.heard(&answer.body).filter(|_| answer.status == StatusCode::OK))
    }

    /// Checks the ranks that are down, for ever. `report` takes notices.
    pub(super) async fn watch(&self, report: &Report) {
        let (health, mut away) = (self.homes.health(), vec![Away::default(); self.routes.len()]);
        let mut reported = 0;
        loop {
            tokio::time::sleep(EVERY).await;
            let now = Instant::now();
            let due = health.down().filter(|down| away[usize::from(down.rank)].is_due(down.failures, now));
            let check = |down: Down| async move { (down.rank, self.has_recovered(down).await) };
            let mut checks = stream::iter(due.collect::<Vec<_>>()).map(check).buffer_unordered(AT_ONCE);
            while let Some((rank, recovered)) = checks.next().await {
                let away = &mut away[usize::from(rank)];
                let lasting = recovered.as_ref().err().filter(|error| is_lasting(error.kind()));
                away.refusals = if lasting.is_some() { away.refusals + 1 } else { 0 };
                // The first may come from a run before this one that is about to end.
                if let Some(error) = lasting.filter(|_| away.refusals == 2 && reported <= NAMED_MAX) {
                    reported += 1;
                    match reported > NAMED_MAX {
                        true => report("peers: further ranks send nothing; their blocks come from the bucket"),
                        false => report(&self.refused_by(rank, error)),
                    }
                }
                if recovered.unwrap_or(false) {
                    health.recovered(rank);
                    away.until = None;
                } else {
                    away.pause = (away.pause * 2).min(AWAY_MAX);
                    away.until = Some(Instant::now() + away.pause);
                }
            }
        }
    }

    fn route(&self, rank: u16) -> &Route {
        self.routes[usize::from(rank)].as_ref().expect("a rank sends no requests to itself")
    }

    /// A notice of a rank that can never work.
    fn refused_by(&self, rank: u16, error: &Error) -> String {
        let (address, compare) = (self.route(rank).endpoint.authority(), error.hint().unwrap_or_default());
        let cause = error.cause();
        format!("peers: rank {rank} ({address}) sends nothing: {cause}; {compare}. Its blocks come from the bucket")
    }

    /// Requests a byte of a rank twice: the first request opens the connection, the second is timed.
    async fn has_recovered(&self, down: Down) -> Result<bool> {
        let route = self.route(down.rank);
        let client = Client::new(route, PATIENCE)?;
        let ask = self.ask(Method::GET, SampleId(0), UseTime(0), "");
        let ask = ask.header("range", "bytes=0-0".to_owned()).header("cache-control", "only-if-cached".to_owned());
        let byte = async || {
            let answer = within(PATIENCE, async { client.send_whole(&ask).await?.read().await }).await?;
            // Hints of the client are for buckets.
            accepted(answer.map_err(|error| error.with_hint(CERTIFICATES))?.status)
        };
        byte().await?;
        let begun = Instant::now();
        byte().await?;
        Ok(begun.elapsed() <= down.limit)
    }
}

/// Whether a rank with this status would send the byte if it held it. What it lacks, or cannot get now, says nothing against it.
fn accepted(status: StatusCode) -> Result<()> {
    let (kind, compare) = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (Kind::Denied, SECRETS),
        StatusCode::NOT_FOUND => (
            Kind::NotFound,
            "compare what both read: all ranks need the same data set, as listed, and the same block_size",
        ),
        _ => return Ok(()),
    };
    Err(Error::new(kind, format!("it answers {status}")).with_hint(compare))
}

/// Whether an error of this kind stays until somebody changes a setting: one that is gone, cut off or slow may come back by itself.
fn is_lasting(kind: Kind) -> bool {
    matches!(kind, Kind::Denied | Kind::Untrusted | Kind::Protocol | Kind::NotFound)
}

impl Away {
    /// Whether the check of a rank that has failed so often in a row is due. A new failure begins a new pause.
    fn is_due(&mut self, failures: u32, now: Instant) -> bool {
        if self.until.is_none() || self.failures != failures {
            let pause = (AWAY_MIN * (1 << (failures.max(1) - 1).min(7))).min(AWAY_MAX);
            *self = Away { failures, until: Some(now + pause), pause, ..*self };
        }
        self.until.is_some_and(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_left_alone_for_longer_with_every_failure() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut away = Away::default();
        assert_eq!([0, 99, 100].map(|ms| away.is_due(1, at(ms))), [false, false, true]);
        assert_eq!([100, 299, 300].map(|ms| away.is_due(2, at(ms))), [false, false, true], "it failed again");
        away.is_due(255, at(0));
        assert_eq!(away.pause, AWAY_MAX);
        assert!(!away.is_due(1, at(400)) && away.is_due(1, at(500)), "it has sent blocks meanwhile");
    }
}
