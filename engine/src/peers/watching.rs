//! Looks after ranks that are down: asks each for a byte now and then, so that no batch waits for one that is still down.
//!
//! Which ranks are down, shards say; one that answers as fast as it has to is asked for blocks again ([`Health`](fuelrail_plan::health)).

use super::Others;
use crate::client::{Client, within};
use fuelrail_base::{Error, Kind, Result, SampleId};
use fuelrail_plan::health::Down;
use fuelrail_plan::schedule::UseTime;
use futures_util::{StreamExt, stream};
use hyper::Method;
use std::time::{Duration, Instant};

/// Between two looks at which ranks are down.
const EVERY: Duration = Duration::from_millis(50);
/// How long a rank is left alone that has failed once; that doubles with every failure in a row, and with every time that it is asked, …
const AWAY_MIN: Duration = Duration::from_millis(100);
/// … up to this.
const AWAY_MAX: Duration = Duration::from_secs(10);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Ranks that are asked at a time.
const AT_ONCE: usize = 32;

/// When a rank that is down is asked, and for how long it is left alone then.
#[derive(Clone, Copy, Default)]
struct Away {
    failures: u32,
    until: Option<Instant>,
    pause: Duration,
}

impl Others {
    /// Asks the ranks that are down, again and again.
    pub(super) async fn watch(&self) {
        let (health, mut away) = (self.homes.health(), vec![Away::default(); self.routes.len()]);
        loop {
            tokio::time::sleep(EVERY).await;
            let now = Instant::now();
            let due = health.down().filter(|down| away[usize::from(down.rank)].is_over(down.failures, now));
            let ask = |down: Down| async move { (down.rank, self.answers(down).await.is_ok()) };
            let mut asked = stream::iter(due.collect::<Vec<_>>()).map(ask).buffer_unordered(AT_ONCE);
            while let Some((rank, answers)) = asked.next().await {
                let away = &mut away[usize::from(rank)];
                if answers {
                    health.answers(rank);
                    away.until = None;
                } else {
                    away.pause = (away.pause * 2).min(AWAY_MAX);
                    away.until = Some(Instant::now() + away.pause);
                }
            }
        }
    }

    /// Asks a rank for a byte, over a connection that stands.
    async fn answers(&self, down: Down) -> Result<()> {
        let Some(route) = &self.routes[usize::from(down.rank)] else { return Ok(()) };
        let client = Client::new(route, PATIENCE)?;
        let ask = self.ask(Method::GET, SampleId(0), UseTime(0), "");
        let ask = ask.header("range", "bytes=0-0".to_owned()).header("cache-control", "only-if-cached".to_owned());
        let byte = async || within(PATIENCE, async { client.send_whole(&ask).await?.read().await }).await?;
        byte().await?;
        let begun = Instant::now();
        byte().await?;
        let took = begun.elapsed();
        if took > down.limit {
            return Err(Error::new(Kind::Stalled, format!("it took {took:?}")));
        }
        Ok(())
    }
}

impl Away {
    /// Whether the rank, which has failed so often in a row, is to be asked now.
    fn is_over(&mut self, failures: u32, now: Instant) -> bool {
        if self.until.is_none() || self.failures != failures {
            let pause = (AWAY_MIN * (1 << (failures.max(1) - 1).min(7))).min(AWAY_MAX);
            *self = Away { failures, until: Some(now + pause), pause };
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
        assert_eq!([0, 99, 100].map(|ms| away.is_over(1, at(ms))), [false, false, true]);
        assert_eq!([100, 299, 300].map(|ms| away.is_over(2, at(ms))), [false, false, true], "it failed again");
        away.is_over(255, at(0));
        assert_eq!(away.pause, AWAY_MAX);
        assert!(!away.is_over(1, at(400)) && away.is_over(1, at(500)), "it has sent blocks meanwhile");
    }
}
